//! Receives the messages of all other ranks, each by itself, and sends replies.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ucx_sys_wrap::buffer::{Port, next_turn};
use ucx_sys_wrap::{Error as Fault, Found, Rank, Tag, Wanted};

use super::Mail;
use super::mail::Polls;
use crate::context::Ranks;
use crate::error::Result;

/// What a rank does with the messages of others; see [`Peers::start_serving`](crate::Peers::start_serving).
///
/// Its functions run on whichever thread turns the engine, one at a time. They must not block. They hear of
/// the messages of a rank in the order of sending, dropped ones included.
pub trait Handler: Send + 'static {
    /// The longest message that is taken from a rank now, in bytes. A longer one is dropped.
    fn limit(&mut self, source: u32) -> usize;

    /// Takes a message. What is put into `out` is sent.
    fn receive(&mut self, source: u32, bytes: Vec<u8>, out: &mut Outbox);

    /// A message of so many bytes was dropped: it was longer than its limit, two others of its source were
    /// being received, or there was no memory for it.
    fn dropped(&mut self, source: u32, bytes: u64, out: &mut Outbox);

    /// A rank is gone: it has died, left, or closed its side. No message of it comes any more.
    fn gone(&mut self, rank: u32, out: &mut Outbox);

    /// Time may have passed. Called on a simulated network alone, in every turn of the engine: there a
    /// handler has no thread that looks at the clock.
    fn tick(&mut self, out: &mut Outbox) {
        let _ = out;
    }

    /// Whether to stop receiving. What is in `out` is still sent.
    fn has_ended(&self) -> bool;
}

/// Messages to be sent, and the time that it has taken to make them.
#[derive(Default)]
pub struct Outbox {
    messages: Vec<(u32, u32, Vec<u8>)>,
    computed: Duration,
}

impl Outbox {
    /// Sends bytes to a rank, with a tag.
    pub fn send(&mut self, to: u32, tag: u32, bytes: Vec<u8>) {
        self.messages.push((to, tag, bytes));
    }

    /// On a simulated network, charges this rank for computing: it does nothing else for so long, and sends
    /// afterwards.
    pub fn computed(&mut self, lasting: Duration) {
        self.computed += lasting;
    }
}

/// The messages of one rank that are received at once. More than that are dropped: each takes memory.
const MOST_AT_ONCE: usize = 2;

type Outcome<T> = std::result::Result<T, Fault>;

/// A message with its length, in a place that may be longer.
type Arrived = Outcome<(Vec<u8>, usize)>;

/// A message that is being received, or is there and waits for an earlier one of its source.
struct Receiving<'a> {
    source: u32,
    bytes: Pin<Box<dyn Future<Output = Arrived> + Send + 'a>>,
    arrived: Option<Arrived>,
}

/// A message that is being sent.
type Sending<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

struct Serving<'a, 'env, 'h, H> {
    mail: Mail<'a, 'env>,
    tag: u32,
    handler: &'h mut H,
    receiving: Vec<Receiving<'a>>,
    /// The sources of messages that are not there yet; reused in each poll.
    late: Vec<u32>,
    sending: Vec<Sending<'a>>,
    out: Outbox,
    /// On a simulated network: until when this rank computes. Other calls of the rank may turn the engine
    /// before.
    busy_until: Duration,
    polls: Polls,
    /// The members that are gone, by rank of the group; those that seemed so in the last round.
    gone: Vec<bool>,
    leaving: Vec<bool>,
}

/// Serves until the handler has ended, or the task is canceled.
pub(crate) async fn serve<H: Handler>(mail: Mail<'_, '_>, tag: u32, handler: &mut H) -> Result<()> {
    let size = mail.ranks.size() as usize;
    let mut serving = Serving {
        mail,
        tag,
        handler,
        receiving: Vec::new(),
        late: Vec::new(),
        sending: Vec::new(),
        out: Outbox::default(),
        busy_until: Duration::ZERO,
        polls: Polls::default(),
        gone: vec![false; size],
        leaving: vec![false; size],
    };
    let ended = poll_fn(|context| serving.poll(context)).await;
    ended.map_err(|fault| mail.ranks.error(fault))
}

impl<H: Handler> Serving<'_, '_, '_, H> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome<()>> {
        loop {
            if self.mail.comm.is_given_up() {
                return Poll::Ready(Ok(()));
            }
            if self.mail.comm.port().is_simulated() {
                if self.mail.comm.port().now() < self.busy_until {
                    return next_turn(context);
                }
                self.handler.tick(&mut self.out);
            }
            let has_ended = self.handler.has_ended();
            self.send_replies();
            let mut moved = self.poll_sends(context);
            if has_ended && self.sending.is_empty() && self.out.messages.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !has_ended {
                match self.begin_to_receive() {
                    Ok(false) => {}
                    Ok(true) => (moved, self.polls) = (true, Polls::default()),
                    Err(fault) => return Poll::Ready(Err(fault)),
                }
                moved |= self.poll_receives(context);
                if let Some(round) = self.polls.next_look() {
                    moved |= self.look_for_the_gone(round);
                }
            }
            let port = self.mail.comm.port();
            let computed = std::mem::take(&mut self.out.computed);
            if port.is_simulated() && computed > Duration::ZERO {
                self.busy_until = port.now().saturating_add(computed);
                port.compute(computed);
                return next_turn(context);
            }
            if !moved {
                return next_turn(context);
            }
        }
    }

    fn send_replies(&mut self) {
        let Mail { comm, ranks } = self.mail;
        for (to, tag, bytes) in self.out.messages.drain(..) {
            let envelope = ranks.envelope(Tag::of_user(comm.port().rank(), ranks.number, tag));
            let sending = comm.send(ranks.member(to), envelope, bytes);
            // Of a receiver that is gone the handler is told anyhow.
            self.sending.push(Box::pin(async move { drop(sending.await) }));
        }
    }

    fn poll_sends(&mut self, context: &mut Context<'_>) -> bool {
        let before = self.sending.len();
        self.sending.retain_mut(|sending| sending.as_mut().poll(context).is_pending());
        self.sending.len() < before
    }

    /// Posts receives of the messages that have come. Returns whether there were any.
    fn begin_to_receive(&mut self) -> Outcome<bool> {
        let Mail { comm, ranks } = self.mail;
        let before = self.receiving.len();
        loop {
            let after = ranks.messages.last();
            let (context, epoch, tag) = (ranks.number, ranks.epoch, Some(self.tag));
            let wanted = Wanted { context, epoch, source: None, tag, after };
            let (handler, receiving) = (&mut *self.handler, &self.receiving);
            let place = |found: &Found| {
                let bytes = found.lengths.iter().sum();
                let source = ranks.place(found.tag.source())?;
                let at_once = receiving.iter().filter(|receiving| receiving.source == source).count();
                let is_short = at_once < MOST_AT_ONCE && bytes <= handler.limit(source);
                // The transport drops what does not fit: it holds up no other, also without memory.
                Some(if is_short { zeros(bytes).unwrap_or_default() } else { Vec::new() })
            };
            let Some((found, receive)) = comm.recv_found(&wanted, ranks.signature(), place)? else { break };
            ranks.messages.took(found.tag.source());
            let Some(source) = ranks.place(found.tag.source()) else { continue };
            let bytes = Box::pin(async move {
                receive.await.map(|(bytes, arrival)| (bytes, arrival.lengths.iter().sum()))
            });
            self.receiving.push(Receiving { source, bytes, arrived: None });
        }
        Ok(self.receiving.len() > before)
    }

    /// Hands over what has come. A short message may be there before a longer one that was sent earlier: it
    /// waits for it.
    fn poll_receives(&mut self, context: &mut Context<'_>) -> bool {
        let Self { receiving, late, handler, out, .. } = self;
        let before = receiving.len();
        late.clear();
        receiving.retain_mut(|Receiving { source, bytes, arrived }| {
            if arrived.is_none()
                && let Poll::Ready(ended) = bytes.as_mut().poll(context)
            {
                *arrived = Some(ended);
            }
            if late.contains(source) {
                return true;
            }
            let Some(ended) = arrived.take() else {
                late.push(*source);
                return true;
            };
            match ended {
                Ok((mut bytes, count)) => {
                    bytes.truncate(count);
                    handler.receive(*source, bytes, out);
                }
                Err(Fault::TooLong { sent, .. }) => handler.dropped(*source, sent, out),
                // Of a sender that is gone the handler is told anyhow.
                Err(_) => {}
            }
            false
        });
        receiving.len() < before
    }

    /// Tells the handler of members that are gone, once nothing of them is left to be received. Returns
    /// whether there were any.
    fn look_for_the_gone(&mut self, round: u32) -> bool {
        let Mail { comm, ranks } = self.mail;
        let port = comm.port();
        let known = ranks.known_gone(port);
        let mut any = false;
        for place in ranks.looked_at(round) {
            let index = place as usize;
            let member = ranks.member(place);
            let is_known = place == ranks.own || self.gone[index];
            if is_known || !(port.watch(member) || known.contains(&member)) {
                continue;
            }
            // What it sent before has come by a later look, after a turn of the transport.
            let is_confirmed = std::mem::replace(&mut self.leaving[index], true);
            let is_receiving = self.receiving.iter().any(|receiving| receiving.source == place);
            if is_confirmed && !is_receiving {
                self.gone[index] = true;
                self.handler.gone(place, &mut self.out);
                any = true;
            }
        }
        any
    }
}

impl Ranks {
    /// Whether a member has died, left, or closed its side.
    pub(crate) fn has_gone(&self, port: &Port, rank: u32) -> bool {
        let member = self.member(rank);
        rank != self.own && (port.watch(member) || self.known_gone(port).contains(&member))
    }

    /// The members that have died, or closed their side.
    fn known_gone(&self, port: &Port) -> Vec<Rank> {
        let departed = port.departed(self.number).into_iter().map(|(rank, _)| rank);
        port.lost().into_iter().chain(departed).collect()
    }
}

fn zeros(bytes: usize) -> Option<Vec<u8>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(bytes).ok()?;
    zeros.resize(bytes, 0);
    Some(zeros)
}
