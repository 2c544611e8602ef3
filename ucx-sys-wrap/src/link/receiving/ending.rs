//! How receives end when the neighbour has left, or when all is over.

use super::super::receives::{Body, Unexpected};
use super::offers::copy_kept;
use super::{Receiver, Target};
use crate::{Error, Statistics};

impl Receiver {
    /// The neighbour has left: what it sent whole can still be received. Says whether a receive waited for more.
    ///
    /// A receive that waits for the rest of a message whose send was taken back gets the next one of its tag.
    pub(in super::super) fn finish(&mut self, error: &Error, counts: &mut Statistics) -> bool {
        self.receives.forget_incomplete();
        let granted = self.granted.drain().filter_map(|(_, (_, receive))| receive);
        let read = self.reads.drain(..).filter_map(|reading| reading.receive);
        let streamed = self.streams.drain(..).filter_map(|stream| match stream.target {
            Target::Posted(key) => Some(key),
            Target::Kept(_) | Target::Discarded => None,
        });
        let cut = granted.chain(read).chain(streamed).collect();
        for (key, tag) in self.receives.in_order(cut) {
            let Some(Unexpected { head, body: Body::Bytes(_, bytes) | Body::Fetched(bytes) }) =
                self.receives.take_unexpected(tag)
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
