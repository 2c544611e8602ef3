//! Short and middling messages: they say of themselves only what differs from the one before, and lie in
//! their cells, in the pocket or, as a whole, in the ring.

use std::sync::atomic::Ordering;

use super::super::cell::{Kind, MIDDLING_BYTES, SHORT_AT, SHORT_BYTES, offset_of, stamp};
use super::super::payload::write_round;
use super::Sender;
use crate::limits::cost;
use crate::shm::{LINE_BYTES, blocks};
use crate::{Envelope, Statistics, Tag};

impl Sender {
    /// Writes a message of one part that may be short or middling and finds room; says whether it was one.
    #[inline]
    pub(in super::super) fn send_short(
        &mut self,
        envelope: &Envelope,
        bytes: &[u8],
        counts: &mut Statistics,
    ) -> bool {
        let may_be = bytes.len() <= MIDDLING_BYTES && (envelope.signature, envelope.mark) == self.last;
        if !may_be || !self.may_go_now() || !self.may_be_eager(bytes.len()) || !self.has_cell() {
            return false;
        }
        // A copy: the message goes to the neighbour through the cell or the pocket.
        if bytes.len() <= SHORT_BYTES {
            self.cells.write_block(offset_of(self.position) + SHORT_AT, bytes);
        } else if self.has_pocket(bytes.len()) {
            write_round(&self.pocket, self.pocket_written, bytes);
            self.pocket_written += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        } else {
            return self.send_middling(envelope.tag, bytes, counts);
        }
        self.publish_short(Kind::Short, envelope.tag, bytes.len(), counts);
        true
    }

    /// Writes a middling message, if the ring has room for it; says so.
    fn send_middling(&mut self, tag: Tag, bytes: &[u8], counts: &mut Statistics) -> bool {
        // An eighth of the ring at most: where there is no room, eight cells are to be taken, with which the
        // neighbour wakes who starves.
        if bytes.len() > self.ring.bytes() / 8 || !self.has_ring(bytes.len()) {
            return false;
        }
        blocks::ask_to_write(&self.cells, offset_of(self.position), LINE_BYTES);
        // A copy: the message goes to the neighbour through the ring.
        self.ring.write_whole(self.ring_written, bytes);
        self.ring_written += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        self.publish_short(Kind::Middling, tag, bytes.len(), counts);
        true
    }

    /// Writes the words of the next cell's line that say what it is.
    #[inline]
    fn publish_short(&mut self, kind: Kind, tag: Tag, bytes: usize, counts: &mut Statistics) {
        let line = self.cells.line(offset_of(self.position));
        line[1].store(tag.0, Ordering::Relaxed);
        line[0].store(stamp(self.position, kind, 1, bytes as u16), Ordering::Release);
        // From here on the neighbour is at work; nothing below keeps it waiting.
        self.position += 1;
        self.neighbourhood.wake(self.place);
        self.eager_sent += cost(bytes);
        counts.copies += u64::from(bytes > 0);
        counts.bytes_copied += bytes as u64;
        counts.bytes_sent += (LINE_BYTES + bytes) as u64;
    }
}
