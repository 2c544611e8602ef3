//! Short messages: they lie in their cells, and say of themselves only what differs from the one before.

use std::sync::atomic::Ordering;

use super::super::cell::{INLINE_BYTES, Kind, SHORT_FIRST_BYTES, offset_of, stamp};
use super::Sender;
use crate::limits::cost;
use crate::shm::{LINE_BYTES, blocks, store_words};
use crate::transport::SendParts;
use crate::{Envelope, Statistics};

impl Sender {
    /// Writes a message that may be short and finds room; says whether it was one.
    #[inline]
    pub(super) fn send_short(&mut self, envelope: &Envelope, parts: &SendParts, counts: &mut Statistics) -> bool {
        let [part] = &parts[..] else { return false };
        let bytes = part.bytes();
        let is_short = bytes.len() <= INLINE_BYTES && (envelope.signature, envelope.mark) == self.last;
        if !is_short || !self.queue.is_empty() || !self.has_credit(bytes.len()) || !self.has_cell() {
            return false;
        }
        let at = offset_of(self.position);
        // A copy: the message goes to the neighbour through the cell.
        let (now, later) = bytes.split_at(bytes.len().min(SHORT_FIRST_BYTES));
        if !later.is_empty() {
            self.cells.write_block(at + LINE_BYTES, later);
        }
        let line = self.cells.line(at);
        line[1].store(envelope.tag.0, Ordering::Relaxed);
        store_words(&line[2..], now);
        line[0].store(stamp(self.position, Kind::Short, 1, bytes.len() as u16), Ordering::Release);
        // From here on the neighbour is at work; nothing below keeps it waiting.
        self.position += 1;
        self.neighbourhood.wake(self.place);
        self.eager_sent += cost(bytes.len());
        counts.copies += u64::from(!bytes.is_empty());
        counts.bytes_copied += bytes.len() as u64;
        counts.bytes_sent += (LINE_BYTES + bytes.len()) as u64;
        blocks::demote(&self.cells, at, LINE_BYTES + later.len());
        true
    }
}
