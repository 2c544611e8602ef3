//! How receives end when the neighbour is gone, or when all is over.

use super::super::receives::{Body, Unexpected};
use super::offers::copy_kept;
use super::{Receiver, Target};
use crate::tag::Posted;
use crate::{Error, Statistics};

impl Receiver {
    /// The neighbour is gone: what it sent whole can still be received. Says whether a receive waited for
    /// more.
    ///
    /// If it has left in good order, a receive that waits for the rest of a message whose send was taken back
    /// gets the next one of its tag, unless a receive that was posted later may have had that.
    pub(in super::super) fn finish(
        &mut self,
        error: &Error,
        has_left: bool,
        counts: &mut Statistics,
    ) -> bool {
        self.receives.forget_incomplete();
        let granted = self.granted.drain().filter_map(|(_, granted)| granted.receive);
        let read = self.reads.drain(..).filter_map(|reading| reading.receive);
        let streamed = self.streams.drain(..).filter_map(|stream| match stream.target {
            Target::Posted(key) => Some(key),
            Target::Kept(_) | Target::Discarded => None,
        });
        let cut: Vec<usize> = granted.chain(read).chain(streamed).filter(|_| has_left).collect();
        for Posted { key, tag, .. } in self.receives.may_have_later(&cut) {
            let Some(Unexpected { head, body: Body::Bytes(_, bytes) }) = self.receives.take_unexpected(tag)
            else {
                continue;
            };
            let checked = self.receives.check(key, &head);
            if checked.is_ok() {
                copy_kept(self.receives.places(key, &head, 0, bytes.len()), &bytes, counts);
                counts.messages_received += 1;
            }
            self.receives.end(key, checked.map(|()| head.arrival()));
        }
        let is_missed = self.receives.has_operations();
        self.receives.end_all(error);
        is_missed
    }

    /// Ends all receives, and forgets what has come.
    pub(in super::super) fn close(&mut self, error: &Error) {
        self.receives.end_all(error);
        self.receives.forget_all();
        self.streams.clear();
        self.reads.clear();
    }
}
