//! Short and middling messages: they say of themselves only what differs from the one before, and lie in
//! their cells, in the pocket or, as a whole, in the ring.

use std::sync::atomic::Ordering;

use super::super::cell::{INLINE_BYTES, Kind, MIDDLING_BYTES, SHORT_AT, offset_of, stamp};
use super::Sender;
use crate::limits::cost;
use crate::shm::{LINE_BYTES, blocks};
use crate::{Envelope, Statistics, Tag};

/// What is longer than so many bytes lies in the pocket rather than in a cell: all cells together are larger
/// than the first cache of a processor.
const LEAST_POCKETED: usize = 256;

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
        if bytes.len() > LEAST_POCKETED && self.has_pocket(bytes.len()) {
            self.send_pocketed(envelope.tag, bytes, counts);
            return true;
        }
        if bytes.len() > INLINE_BYTES {
            return self.send_middling(envelope.tag, bytes, counts);
        }
        let at = offset_of(self.position);
        // A copy: the message goes to the neighbour through the cell.
        self.cells.write_block(at + SHORT_AT, bytes);
        self.publish_short(Kind::Short, envelope.tag, bytes.len(), counts);
        blocks::demote(&self.cells, at, LINE_BYTES.max(SHORT_AT + bytes.len()));
        true
    }

    /// Writes a message into the pocket, which has room for it.
    fn send_pocketed(&mut self, tag: Tag, bytes: &[u8], counts: &mut Statistics) {
        // A copy: the message goes to the neighbour through the pocket.
        self.pocket.write_little(self.pocket_written, bytes);
        self.pocket_written += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        self.publish_short(Kind::Pocketed, tag, bytes.len(), counts);
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
        self.ring.write_little(self.ring_written, bytes);
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
