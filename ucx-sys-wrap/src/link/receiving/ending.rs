//! The end of receives when the peer is gone, or the transport is closed.

use super::super::receives::{Body, Unexpected};
use super::rendezvous::copy_unexpected;
use super::{Receiver, Target};
use crate::tag::Posted;
use crate::{Error, Statistics};

impl Receiver {
    /// The peer is gone: messages that have arrived as a whole can still be received. Returns whether a
    /// receive waited for more.
    ///
    /// If the peer has left in good order, a receive whose message was cut (its send was canceled) gets the
    /// next message of its tag, unless a receive that was posted later may have it.
    pub(in super::super) fn finish(
        &mut self,
        error: &Error,
        has_left: bool,
        counts: &mut Statistics,
    ) -> bool {
        self.receives.forget_incomplete();
        let cleared = self.cleared.drain().filter_map(|(_, cleared)| cleared.receive);
        let read = self.reads.drain(..).filter_map(|reading| reading.receive);
        let streamed = self.streams.drain(..).filter_map(|stream| match stream.target {
            Target::Posted(key) => Some(key),
            Target::Unexpected(_) | Target::Discarded => None,
        });
        let cut: Vec<usize> = cleared.chain(read).chain(streamed).filter(|_| has_left).collect();
        for Posted { key, tag, .. } in self.receives.may_have_later(&cut) {
            let epoch = self.receives.signature(key).epoch();
            let is_meant =
                |message: &Unexpected| message.header.tag == tag && message.header.signature.epoch() == epoch;
            let Some(Unexpected { header, body: Body::Bytes(_, bytes) }) =
                self.receives.take_unexpected_if(is_meant)
            else {
                continue;
            };
            let checked = self.receives.check(key, &header);
            if checked.is_ok() {
                copy_unexpected(self.receives.slices(key, &header, 0, bytes.len()), &bytes, counts);
                counts.messages_received += 1;
            }
            self.receives.end(key, checked.map(|()| header.arrival()));
        }
        let is_missed = self.receives.has_operations();
        self.receives.end_all(error);
        is_missed
    }

    /// Ends all receives, and drops what has come.
    pub(in super::super) fn close(&mut self, error: &Error) {
        self.receives.end_all(error);
        self.receives.forget_all();
        self.streams.clear();
        self.reads.clear();
    }
}
