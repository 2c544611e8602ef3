//! What the ranks of a world share, and what they lend each other.

use std::time::Instant;

use super::mailbox::{Mailbox, Payload, Returned, Why};
use super::matching::Key;
use super::remote::Tables;
use crate::on_end::OnEnd;
use crate::transport::SendDone;
use crate::{Error, Rank};

pub(super) struct World {
    pub(super) start: Instant,
    pub(super) mailboxes: Box<[Mailbox]>,
    pub(super) regions: Tables,
}

/// A send whose memory is lent to the receiver until `done`.
pub(super) struct Outgoing {
    pub(super) to: Rank,
    pub(super) key: Key,
    pub(super) done: Option<SendDone>,
    pub(super) on_end: OnEnd,
}

impl World {
    /// Returns a message's memory to its sender, if it is lent.
    pub(super) fn give_back(&self, sender: Rank, payload: Payload, why: Why) {
        if let Payload::Lent(id, parts) = payload {
            self.mailboxes[sender.index()].give_back(Returned { id, parts, why });
        }
    }
}

impl Outgoing {
    pub(super) fn end(&mut self, done: SendDone) {
        self.done = Some(done);
        self.on_end.tell();
    }

    /// Ends the send with `error` if its message is unmatched.
    pub(super) fn take_back(&mut self, world: &World, error: &Error) {
        if self.done.is_none()
            && let Some(parts) = world.mailboxes[self.to.index()].take_back(&self.key)
        {
            self.end(SendDone { parts, result: Err(error.clone()) });
        }
    }
}
