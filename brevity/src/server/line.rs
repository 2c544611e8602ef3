//! The way from a worker to one shard and back.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use brevity_collectives::{Error as Collective, Message};

use super::desk::{REPLIES, REQUESTS, Sending};
use super::trailer::Kind;
use super::worker::Around;
use crate::Handle;
use crate::error::{Error, Result};

/// How often a blocking wait looks whether the servers are still there.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the receive of a message ends with.
type Received = (Vec<u8>, brevity_collectives::Result<Message>);

/// A reply, and the bytes of its request.
pub(super) type Came = (Vec<u8>, usize);

pub(super) struct Line {
    /// The server, as a rank of the group.
    rank: u32,
    is_own: bool,
    pub(super) pending: Option<Pending>,
}

/// A request whose reply has not been taken.
pub(super) struct Pending {
    pub(super) kind: Kind,
    sent: usize,
    /// `None` for this rank's own shard.
    way: Option<Way>,
    /// What this rank's own shard costs on a simulated network, and is not charged yet.
    pub(super) cost: Duration,
}

/// A request and its reply.
struct Way {
    _sending: Sending,
    reply: Handle<Received>,
}

/// How a wait for a reply ends.
pub(super) enum Outcome {
    Came(Vec<u8>),
    /// It may still come.
    Silent,
    Lost,
    Failed(Collective),
}

impl Outcome {
    /// Of this rank's own shard, which has panicked if nothing comes.
    fn of_own(reply: Option<Vec<u8>>) -> Self {
        reply.map_or(Self::Lost, Self::Came)
    }

    fn of_receive((mut bytes, received): Received) -> Self {
        match received {
            Ok(message) => {
                bytes.truncate(message.bytes);
                Self::Came(bytes)
            }
            Err(Collective::PeerLost { .. } | Collective::Aborted { .. }) => Self::Lost,
            Err(error) => Self::Failed(error),
        }
    }

    /// Of an alarm, which ends at its deadline, or with this rank.
    pub(super) fn of_alarm(ended: Received) -> Self {
        match ended.1 {
            Ok(_) | Err(Collective::MessageTimeout { .. }) => Self::Silent,
            Err(Collective::PeerLost { .. } | Collective::Aborted { .. }) => Self::Lost,
            Err(error) => Self::Failed(error),
        }
    }
}

/// What looks at a line: a task, or a thread.
#[derive(Clone, Copy)]
pub(super) struct Look<'a> {
    /// Woken by the reply.
    pub(super) waker: Option<&'a Waker>,
    /// Whether it asks if the server is still there.
    pub(super) finds_lost: bool,
}

impl Line {
    pub(super) fn new(rank: u32, is_own: bool) -> Self {
        Self { rank, is_own, pending: None }
    }

    pub(super) fn ask(&mut self, around: &Around<'_>, kind: Kind, message: Vec<u8>, room: usize) {
        let sent = message.len();
        let (way, cost) = match around.desk.filter(|_| self.is_own) {
            Some(desk) => (None, desk.ask(message)),
            None => {
                // The receive first: the reply then goes to its place. Its timeout begins with a wait.
                let reply = around.peers.start_recv(vec![0u8; room], self.rank, REPLIES, Duration::MAX);
                let sending = around.peers.start_send(message, self.rank, REQUESTS);
                (Some(Way { _sending: sending, reply }), Duration::ZERO)
            }
        };
        self.pending = Some(Pending { kind, sent, way, cost });
    }

    /// Whether a reply to such a request is to come.
    pub(super) fn asks(&self, kind: Kind) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.kind == kind)
    }

    /// Sends a message without a reply. `None` where it needs no way.
    pub(super) fn tell(&self, around: &Around<'_>, message: Vec<u8>) -> Option<Sending> {
        match around.desk.filter(|_| self.is_own) {
            Some(desk) => {
                desk.ask(message);
                None
            }
            None => Some(around.peers.start_send_within(message, self.rank, REQUESTS, around.timeout)),
        }
    }

    /// How the wait for the reply ends, if it does.
    pub(super) fn look(&mut self, around: &Around<'_>, look: Look<'_>) -> Option<Outcome> {
        let pending = self.pending.as_mut()?;
        let mut context = Context::from_waker(look.waker.unwrap_or(Waker::noop()));
        let Some(Way { reply, .. }) = &mut pending.way else {
            let letterbox = around.desk?.letterbox();
            let letter = match look.waker {
                Some(_) => letterbox.poll(&context),
                None => letterbox.wait(Duration::ZERO),
            };
            return if let Poll::Ready(reply) = letter { Some(Outcome::of_own(reply)) } else { None };
        };
        let has_ended = look.waker.map_or_else(|| reply.has_ended(), |waker| reply.wake_at_end(waker));
        if !has_ended {
            // One that has closed its side ends no receive. Its last reply may have come just now.
            let is_lost = look.finds_lost && around.peers.has_gone(self.rank) && !reply.has_ended();
            return is_lost.then_some(Outcome::Lost);
        }
        match Pin::new(reply).poll(&mut context) {
            Poll::Ready(ended) => Some(Outcome::of_receive(ended)),
            Poll::Pending => None,
        }
    }

    /// Ends a wait. The request stays pending if its reply may still come.
    pub(super) fn end(
        &mut self,
        around: &Around<'_>,
        shard: usize,
        outcome: Outcome,
    ) -> Result<Option<Came>> {
        let (rank, shard) = (around.peers.member(self.rank).0, shard as u32);
        match outcome {
            Outcome::Came(bytes) => Ok(self.pending.take().map(|pending| (bytes, pending.sent))),
            Outcome::Silent => Err(Error::ServerSilent { rank, shard, after: around.timeout }),
            Outcome::Lost => {
                self.pending = None;
                Err(Error::ServerLost { rank, shard })
            }
            Outcome::Failed(error) => {
                self.pending = None;
                Err(error.into())
            }
        }
    }
}

/// Blocks until the first reply that is not there may have come, at most so long. Returns whether it is time
/// to look for lost servers.
pub(super) fn rest(lines: &[Line], around: &Around<'_>, longest: Duration) -> bool {
    let mut ways = lines.iter().filter_map(|line| line.pending.as_ref()?.way.as_ref());
    match ways.next() {
        Some(Way { reply, .. }) => !around.peers.wait_until(LOOK_EVERY.min(longest), || reply.has_ended()),
        None => {
            // This rank's own shard alone.
            if let Some(desk) = around.desk {
                desk.letterbox().await_letter(longest);
            }
            false
        }
    }
}
