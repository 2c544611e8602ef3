//! Room: what the neighbour has taken of what was sent to it.

use super::super::cell::{CELLS, MESSAGE_BYTES, POCKET_BYTES, POCKETED_BYTES};
use super::super::{CELLS_TAKEN_AT, EAGER_TAKEN_AT, LEAST_OPEN, POCKET_TAKEN_AT, RING_TAKEN_AT};
use super::Sender;
use crate::Result;
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, cost};
use crate::shm::LINE_BYTES;

/// Messages of so many bytes and fewer are not worth an offer.
const LIKELY_BYTES: usize = 8 << 10;

/// Cells that are written before a pocket that was full is looked at again.
const CELLS_TO_WAIT: u64 = 16;

impl Sender {
    /// Whether there is a cell, by what is known or by a new look.
    #[inline]
    pub(super) fn has_cell(&mut self) -> bool {
        let has = |sender: &Self| sender.position - sender.cells_taken < CELLS;
        has(self) || (self.read_acknowledgements().is_ok() && has(self))
    }

    /// Whether the ring has room for so many bytes, by what is known or by a new look.
    #[inline]
    pub(super) fn has_ring(&mut self, bytes: usize) -> bool {
        let has = |sender: &Self| {
            let used = sender.ring_written - sender.ring_taken;
            used + bytes.next_multiple_of(LINE_BYTES) as u64 <= sender.ring.bytes() as u64
        };
        has(self) || (self.read_acknowledgements().is_ok() && has(self))
    }

    /// Whether a message of so many bytes with a head finds room in its cell or in the pocket.
    #[inline]
    pub(super) fn has_place(&mut self, bytes: usize) -> bool {
        bytes <= MESSAGE_BYTES || self.has_pocket(bytes)
    }

    /// Whether a message of so many bytes may lie in the pocket, and finds room there, by what is known or by
    /// a new look. There are other places, so nobody looks again and again.
    #[inline]
    pub(super) fn has_pocket(&mut self, bytes: usize) -> bool {
        let has = |sender: &Self| {
            let used = sender.pocket_written - sender.pocket_taken;
            used + bytes.next_multiple_of(LINE_BYTES) as u64 <= POCKET_BYTES as u64
        };
        if bytes > POCKETED_BYTES || has(self) {
            return bytes <= POCKETED_BYTES;
        }
        if self.position < self.pocket_full_until {
            return false;
        }
        let has_room = self.read_acknowledgements().is_ok() && has(self);
        if !has_room {
            self.pocket_full_until = self.position + CELLS_TO_WAIT;
        }
        has_room
    }

    /// Whether so many bytes may be sent without asking, by what is known or by a new look.
    #[inline]
    pub(super) fn has_credit(&mut self, bytes: usize) -> bool {
        let has = |sender: &Self| sender.eager_sent - sender.eager_taken + cost(bytes) <= CREDIT_BYTES;
        has(self) || (self.read_acknowledgements().is_ok() && has(self))
    }

    /// Whether so many bytes may be sent without asking, and had better be: they are few, or likely to be
    /// expected, or can't be read where they lie. What is not expected the neighbour copies once more, and
    /// what it may read not.
    #[inline]
    pub(super) fn may_be_eager(&mut self, bytes: usize) -> bool {
        let is_better = bytes <= LIKELY_BYTES || self.has_caught_up() || !self.may_be_open(bytes);
        is_better && bytes <= MAX_EAGER_BYTES && self.has_credit(bytes)
    }

    /// Whether the neighbour could read a message of so many bytes that is offered.
    pub(super) fn may_be_open(&self, bytes: usize) -> bool {
        bytes >= LEAST_OPEN && self.open != u64::MAX && self.may_be_read()
    }

    /// Whether nothing that was sent is known to wait.
    fn has_caught_up(&mut self) -> bool {
        let has = |sender: &Self| sender.eager_sent == sender.eager_taken;
        let is_idle = self.queue.is_empty() && self.streams.is_empty() && self.offers.is_empty();
        is_idle && (has(self) || (self.read_acknowledgements().is_ok() && has(self)))
    }

    /// Looks at what the neighbour has taken.
    pub(super) fn read_acknowledgements(&mut self) -> Result<()> {
        let cells = self.theirs.load(CELLS_TAKEN_AT);
        let ring = self.theirs.load(RING_TAKEN_AT);
        let eager = self.theirs.load(EAGER_TAKEN_AT);
        let pocket = self.theirs.load(POCKET_TAKEN_AT);
        let is_true = (self.cells_taken..=self.position).contains(&cells)
            && (self.ring_taken..=self.ring_written).contains(&ring)
            && (self.eager_taken..=self.eager_sent).contains(&eager)
            && (self.pocket_taken..=self.pocket_written).contains(&pocket);
        if !is_true {
            let what = format!(
                "acknowledgements of {cells} cells, {ring}, {pocket} and {eager} bytes, of {}, {}, {} and {} sent",
                self.position, self.ring_written, self.pocket_written, self.eager_sent
            );
            return Err(self.refusal(what));
        }
        (self.cells_taken, self.eager_taken) = (cells, eager);
        (self.ring_taken, self.pocket_taken) = (ring, pocket);
        Ok(())
    }
}
