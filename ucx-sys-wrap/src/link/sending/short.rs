//! EagerShort and EagerInRing messages, which repeat signature and mark of the message before.

use std::sync::atomic::Ordering;

use super::super::descriptor::{
    Kind, MAX_IN_RING_BYTES, SHORT_INLINE_AT, SHORT_INLINE_BYTES, offset_of, stamp,
};
use super::super::payload::write_ring_block;
use super::Sender;
use crate::limits::cost;
use crate::shm::{LINE_BYTES, blocks};
use crate::{Envelope, Statistics, Tag};

impl Sender {
    /// Writes a message of one part if it repeats signature and mark and finds room; returns whether it did.
    #[inline]
    pub(in super::super) fn send_short(
        &mut self,
        envelope: &Envelope,
        bytes: &[u8],
        counts: &mut Statistics,
    ) -> bool {
        let may_be = bytes.len() <= MAX_IN_RING_BYTES && (envelope.signature, envelope.mark) == self.last;
        if !may_be
            || !self.may_bypass_queue()
            || !self.should_send_eagerly(bytes.len())
            || !self.has_descriptor()
        {
            return false;
        }
        // A copy: through the descriptor or the fast box.
        if bytes.len() <= SHORT_INLINE_BYTES {
            self.descriptors.write_block(offset_of(self.position) + SHORT_INLINE_AT, bytes);
        } else if self.has_fast_box(bytes.len()) {
            write_ring_block(&self.fast_box, self.fast_box_written, bytes);
            self.fast_box_written += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        } else {
            return self.send_in_ring(envelope.tag, bytes, counts);
        }
        self.publish_short(Kind::EagerShort, envelope.tag, bytes.len(), counts);
        true
    }

    fn send_in_ring(&mut self, tag: Tag, bytes: &[u8], counts: &mut Statistics) -> bool {
        // At most an eighth of the ring: then a sender without room has written eight descriptors or more,
        // and the receiver wakes it on its way through them.
        if bytes.len() > self.ring.bytes() / 8 || !self.has_ring(bytes.len()) {
            return false;
        }
        blocks::prefetch_to_write(&self.descriptors, offset_of(self.position), LINE_BYTES);
        // A copy: through the ring.
        self.ring.write_block(self.ring_written, bytes);
        self.ring_written += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        self.publish_short(Kind::EagerInRing, tag, bytes.len(), counts);
        true
    }

    #[inline]
    fn publish_short(&mut self, kind: Kind, tag: Tag, bytes: usize, counts: &mut Statistics) {
        let line = self.descriptors.line(offset_of(self.position));
        line[1].store(tag.0, Ordering::Relaxed);
        line[0].store(stamp(self.position, kind, 1, bytes as u16), Ordering::Release);
        // The peer is at work from here on; the rest delays nobody.
        self.position += 1;
        self.local_group.wake(self.place);
        self.eager_sent += cost(bytes);
        counts.copies += u64::from(bytes > 0);
        counts.bytes_copied += bytes as u64;
        counts.bytes_sent += (LINE_BYTES + bytes) as u64;
    }
}
