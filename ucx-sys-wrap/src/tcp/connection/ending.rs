//! How a connection ends: in good order, with a cause that the peer is told, or at once.

use super::Connection;
use crate::tag::Posted;
use crate::tcp::frame::Frame;
use crate::tcp::incoming::Found;
use crate::tcp::outgoing::Written;
use crate::{Error, Failure, Rank, Statistics};

impl Connection {
    /// The peer has said bye: ends what still waits for it, and says whether anything did. What it sent
    /// before can still be received.
    ///
    /// A receive that waits for a message that was offered, and whose send was then taken back, gets the next
    /// one of its tag, unless a receive that was posted later may have had that.
    pub(in crate::tcp) fn finish(&mut self, statistics: &mut Statistics) -> bool {
        let error = self.lost();
        self.receives.forget_offers();
        for Posted { key, tag, .. } in self.receives.may_have_later(&self.incoming.forget_granted()) {
            if let Found::Whole(header, bytes) = self.incoming.find(tag, &mut self.receives) {
                let checked = self.receives.check(key, &header);
                if checked.is_ok() {
                    self.receives.scatter(key, &header, 0, &bytes, statistics);
                    statistics.messages_received += 1;
                }
                self.receives.end(key, checked.map(|()| (header.mark, header.lengths)));
            }
        }
        let is_missed = self.has_operations();
        self.receives.end_all(&error);
        self.outgoing.drop_all(&error);
        self.incoming.accesses.end_all(&error, &mut self.outgoing);
        self.wire = None;
        is_missed
    }

    /// Queues the good-bye of a transport that is closed in good order.
    pub(in crate::tcp) fn say_bye(&mut self) {
        self.say(&Frame::Bye);
    }

    /// Ends every operation with `error` and tells the peer the cause, if there is one to tell.
    ///
    /// A half-written message is copied, so that the peer gets it whole and then the cause.
    pub(in crate::tcp) fn fail(&mut self, error: &Error, cause: Failure, statistics: &mut Statistics) {
        self.incoming.discard();
        self.receives.end_all(error);
        self.receives.forget_unexpected();
        self.outgoing.cancel_all(error, statistics);
        self.incoming.accesses.end_all(error, &mut self.outgoing);
        self.say(&Frame::Failed(cause));
        self.wind_down(statistics);
    }

    /// Writes what is queued and throws away what comes, for a transport that has failed.
    pub(in crate::tcp) fn wind_down(&mut self, statistics: &mut Statistics) {
        let Some(wire) = &mut self.wire else { return };
        let written = self.outgoing.flush(wire, usize::MAX, statistics);
        let is_open = self.incoming.throw_away(wire, statistics);
        if !is_open || written == Written::Broken {
            self.outgoing.drop_all(&Error::Closed);
            self.wire = None;
        }
    }

    /// Throws away what has come; the peer, while the kernel has something left to send to it.
    pub(in crate::tcp) fn linger(&mut self) -> Option<Rank> {
        let wire = self.wire.as_mut()?;
        let is_open = !self.write_broken && self.incoming.throw_away(wire, &mut Statistics::default());
        (is_open && wire.has_unsent()).then_some(self.peer)
    }

    /// Ends every operation with `error` and closes the socket at once.
    pub(in crate::tcp) fn close(&mut self, error: &Error, statistics: &mut Statistics) {
        self.incoming.discard();
        self.receives.end_all(error);
        self.receives.forget_unexpected();
        self.outgoing.drop_all(error);
        self.incoming.accesses.end_all(error, &mut self.outgoing);
        if let Some(mut wire) = self.wire.take() {
            // Bytes that are left unread would make the kernel reset the connection, and drop what the peer
            // has not read.
            wire.finish_sending();
            self.incoming.throw_away(&mut wire, statistics);
        }
    }

    fn say(&mut self, frame: &Frame) {
        if self.wire.is_some() {
            self.outgoing.push_last(frame);
        }
    }
}
