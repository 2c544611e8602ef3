//! Rendezvous and cancellation: replies to RTS, and guard words.

use std::sync::atomic::{Ordering, fence};

use super::super::{GUARDS, GUARDS_AT, Reply};
use super::{Queued, Sender, Stream};
use crate::limits::cost;
use crate::transport::SendParts;
use crate::{Error, Result, Statistics};

impl Sender {
    /// Handles the peer's reply to an RTS.
    pub(in super::super) fn handle_reply(&mut self, reply: Reply, counts: &mut Statistics) -> Result<()> {
        let (Reply::Cts(number) | Reply::Fin(number) | Reply::Nack(number)) = reply;
        let is_written = self.rendezvous.get(number as usize).is_some_and(|rendezvous| rendezvous.is_written);
        let Some(rendezvous) = is_written.then(|| self.rendezvous.try_remove(number as usize)).flatten()
        else {
            return Err(self.protocol_error(format!("a reply to RTS {number}, which is not outstanding")));
        };
        // The peer no longer reads the message, so its guard word need not be cleared before it is used
        // again.
        if let Some((guard, _)) = rendezvous.guard {
            self.guards &= !(1 << guard);
        }
        match reply {
            Reply::Nack(_) => self.end(rendezvous.message, Ok(())),
            Reply::Fin(_) => {
                counts.bytes_sent += rendezvous.message.bytes as u64;
                self.end(rendezvous.message, Ok(()));
            }
            Reply::Cts(_) => {
                self.queue.push_back(Queued::Data(number, rendezvous.message));
                // At once: while anything is queued, the peer's messages can't be read (see `can_reply`).
                self.flush(counts);
                self.wake();
            }
        }
        Ok(())
    }

    /// Ends a send early: a message of which nothing is written is withdrawn, the rest of another is copied.
    pub(in super::super) fn cancel(&mut self, key: usize, error: &Error, counts: &mut Statistics) {
        let is_it = |message: &Stream| message.operation == Some(key);
        // The peer waits for a message after its CTS, so it is sent in any case.
        let cleared = self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Data(_, message) if is_it(message) => Some(message),
            _ => None,
        });
        if let Some(message) = cleared.or_else(|| self.streams.iter_mut().find(|stream| is_it(stream))) {
            let parts = message.detach(counts);
            return self.finish(key, parts, Err(error.clone()));
        }
        let queued = self.queue.iter().position(|queued| match queued {
            Queued::Eager(_, message) => is_it(message),
            Queued::Rts(_, number) => {
                self.rendezvous.get(*number as usize).is_some_and(|rendezvous| is_it(&rendezvous.message))
            }
            Queued::Reply(_) | Queued::Data(..) => false,
        });
        if let Some(queued) = queued.and_then(|position| self.queue.remove(position)) {
            let message = match queued {
                Queued::Eager(header, message) => {
                    self.eager_sent -= cost(header.bytes());
                    Some(message)
                }
                Queued::Rts(_, number) => self.rendezvous.try_remove(number as usize).map(|rendezvous| {
                    self.clear_guard(rendezvous.guard);
                    self.eager_sent -=
                        if rendezvous.takes_credit { cost(rendezvous.message.bytes) } else { 0 };
                    rendezvous.message
                }),
                Queued::Reply(_) | Queued::Data(..) => None,
            };
            if let Some(message) = message {
                self.end(message, Err(error.clone()));
            }
            return;
        }
        if let Some((_, rendezvous)) =
            self.rendezvous.iter_mut().find(|(_, rendezvous)| is_it(&rendezvous.message))
        {
            let parts = rendezvous.message.detach(counts);
            let guard = rendezvous.guard.take();
            self.clear_guard(guard);
            self.finish(key, parts, Err(error.clone()));
        }
    }

    /// Ends every send with `error`, and drops what was not written.
    pub(in super::super) fn end_all(&mut self, error: &Error) {
        for guard in 0..GUARDS {
            self.channel.word(GUARDS_AT + 8 * guard).store(0, Ordering::SeqCst);
        }
        // As in `clear_guard`: owners write into their memory only after this fence.
        fence(Ordering::SeqCst);
        for queued in std::mem::take(&mut self.queue) {
            if let Queued::Eager(_, message) | Queued::Data(_, message) = queued {
                self.end(message, Err(error.clone()));
            }
        }
        for stream in std::mem::take(&mut self.streams) {
            self.end(stream, Err(error.clone()));
        }
        for rendezvous in std::mem::take(&mut self.rendezvous).drain() {
            self.end(rendezvous.message, Err(error.clone()));
        }
    }

    /// Takes a guard word for a message that may be read; returns the word and its serial number.
    pub(super) fn take_guard(&mut self) -> (usize, u64) {
        let guard = self.guards.trailing_ones() as usize;
        self.guards |= 1 << guard;
        self.serial += 1;
        self.channel.word(GUARDS_AT + 8 * guard).store(self.serial, Ordering::Release);
        (guard, self.serial)
    }

    /// Ends the permission to read a message. A peer that is reading it finds the guard word changed
    /// afterwards.
    fn clear_guard(&mut self, guard: Option<(usize, u64)>) {
        if let Some((guard, _)) = guard {
            self.channel.word(GUARDS_AT + 8 * guard).store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.guards &= !(1 << guard);
        }
    }
}

impl Stream {
    /// Leaves a copy of the unsent bytes; gives the parts back.
    fn detach(&mut self, counts: &mut Statistics) -> SendParts {
        self.operation = None;
        // A copy: the send ends and its memory goes back, but the peer must still get the whole message.
        counts.copies += 1;
        counts.bytes_copied += (self.bytes - self.sent) as u64;
        self.payload.detach(self.sent, self.bytes)
    }
}
