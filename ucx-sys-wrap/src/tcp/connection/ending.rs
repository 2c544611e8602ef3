//! How a connection ends: in good order, or at once.

use std::collections::VecDeque;

use super::Connection;
use crate::tag::Posted;
use crate::tcp::frame::Frame;
use crate::tcp::matching::Body;
use crate::tcp::reading::Target;
use crate::{Error, Rank, Statistics};

impl Connection {
    /// The peer has sent bye: ends the operations that still wait for it, and says whether there were any.
    /// What it sent before can still be received.
    ///
    /// A receive whose message was announced and then canceled by the sender gets the next message of its
    /// tag, unless a receive that was posted later may have had that.
    pub(in crate::tcp) fn finish(&mut self, statistics: &mut Statistics) -> bool {
        let error = self.lost();
        self.incoming.receives.forget_announced();
        let cut = self.incoming.flow_control.forget_transfers();
        for Posted { key, tag, .. } in self.incoming.receives.may_have_later(&cut) {
            // No message is arriving: bye is a frame of its own.
            let signature = self.incoming.receives.signature(key);
            if let Some((header, Body::Bytes(bytes))) = self.incoming.take_unexpected(tag, signature) {
                let checked = self.incoming.receives.check(key, &header);
                if checked.is_ok() {
                    self.incoming.receives.scatter(key, &header, 0, &bytes, statistics);
                    statistics.messages_received += 1;
                }
                self.incoming.receives.end(key, checked.map(|()| (header.mark, header.lengths)));
            }
        }
        let is_missed = self.has_operations();
        self.incoming.receives.end_all(&error);
        self.outgoing.drop_all(&error);
        self.incoming.accesses.end_all(&error, &mut self.outgoing);
        self.wire = None;
        is_missed
    }

    /// Queues the close frame of this rank.
    pub(in crate::tcp) fn push_close_frame(&mut self, frame: &Frame) {
        if self.wire.is_some() {
            self.outgoing.push_last(frame);
        }
    }

    /// Discards what has come; gives the peer while the kernel has unsent bytes for it.
    pub(in crate::tcp) fn linger(&mut self) -> Option<Rank> {
        let wire = self.wire.as_mut()?;
        let is_open = !self.write_broken && self.incoming.discard_input(wire, &mut Statistics::default());
        (is_open && wire.has_unsent()).then_some(self.peer)
    }

    /// Ends every operation with `error` and closes the socket at once.
    pub(in crate::tcp) fn close(&mut self, error: &Error, statistics: &mut Statistics) {
        self.forget_received(error);
        self.outgoing.drop_all(error);
        self.incoming.accesses.end_all(error, &mut self.outgoing);
        if let Some(mut wire) = self.wire.take() {
            wire.finish_sending();
            // Unread bytes would make the kernel reset the connection, and drop what the peer has not read.
            self.incoming.discard_input(&mut wire, statistics);
        }
    }

    /// Ends every receive with `error` and drops the messages that came before their receive.
    fn forget_received(&mut self, error: &Error) {
        self.incoming.redirect(Target::Discarded);
        self.incoming.receives.end_all(error);
        self.incoming.receives.unexpected = VecDeque::new();
    }
}
