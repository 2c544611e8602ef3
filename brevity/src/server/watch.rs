//! What a rank that serves waits for: all workers gone, or a silence of them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use brevity_collectives::{Error as Collective, Message, Peers};
use parking_lot::Mutex;

use super::desk::Counter;
use crate::Handle;

/// How a wait for all workers ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// All have left or are gone.
    Deserted,
    /// Some have not, and none of them was heard of for too long.
    Silent,
}

/// A receive of a message that nobody sends, which ends at its deadline.
pub(super) type Alarm = Handle<(Vec<u8>, brevity_collectives::Result<Message>)>;

/// The tag of that message.
const ALARM: u32 = 3;

pub(super) fn set_alarm(peers: &Peers, after: Duration) -> Alarm {
    peers.start_recv(Vec::new(), peers.rank(), ALARM, after)
}

/// Ready when the workers have been silent for too long. Otherwise the alarm is set again.
pub(super) fn poll_alarm(
    counter: &Counter,
    alarm: &mut Option<Alarm>,
    context: &mut Context<'_>,
) -> Poll<Ended> {
    while let Some(pending) = alarm {
        let (_, ended) = ready!(Pin::new(pending).poll(context));
        if !matches!(ended, Err(Collective::MessageTimeout { .. })) {
            // This rank itself has died, or its group is closed.
            *alarm = None;
            break;
        }
        let heard = counter.shard.lock().map_or(Duration::ZERO, |shard| shard.heard());
        match counter.watch.left(heard, counter.peers.now()) {
            Some(left) if left.is_zero() => {
                *alarm = None;
                return Poll::Ready(Ended::Silent);
            }
            left => *alarm = left.map(|left| set_alarm(&counter.peers, left)),
        }
    }
    Poll::Pending
}

/// Watches for a silence of all workers.
#[derive(Default)]
pub(super) struct Watch(Mutex<Option<(Duration, Duration)>>);

impl Watch {
    /// From a time on, for a silence that is as long.
    pub(super) fn begin(&self, since: Option<(Duration, Duration)>) {
        *self.0.lock() = since;
    }

    /// For a silence that is as long: from the time on when it began, or from now on.
    pub(super) fn go_on(&self, now: Duration, longest: Duration) {
        let mut watched = self.0.lock();
        *watched = Some((watched.map_or(now, |(since, _)| since), longest));
    }

    /// How long they may still be silent, if something was last heard at that time; `None` if nobody watches.
    pub(super) fn left(&self, heard: Duration, now: Duration) -> Option<Duration> {
        let (since, longest) = (*self.0.lock())?;
        Some(longest.saturating_sub(now.saturating_sub(heard.max(since))))
    }

    /// Whether they have been silent for too long. Nobody watches any more then.
    pub(super) fn has_found(&self, heard: Duration, now: Duration) -> bool {
        let is_found = self.left(heard, now).is_some_and(|left| left.is_zero());
        if is_found {
            self.begin(None);
        }
        is_found
    }
}
