//! Pieces: a message that is longer than the pocket takes goes through the ring piece by piece, each announced by a cell.

use super::super::cell::{CELLS, Head, Kind};
use super::{Sender, Stream};
use crate::Statistics;
use crate::shm::LINE_BYTES;

/// Bytes of a piece: about a quarter of its message, within these.
const LEAST_PIECE: usize = 2 << 10;
const MOST_PIECE: usize = 64 << 10;

/// Cells that pieces leave to messages.
const CELLS_FOR_HEADS: u64 = 16;

/// After so many cells a piece that waits comes before the next message.
const CELLS_BEFORE_PIECE: u64 = 16;

impl Sender {
    /// The header of a message that goes through the ring, with its first piece if it is its turn.
    pub(super) fn write_long(&mut self, head: &Head, message: Stream, counts: &mut Statistics) {
        counts.bytes_sent += LINE_BYTES as u64;
        let is_first = self.streams.is_empty();
        self.streams.push_back(message);
        let first = if is_first { self.copy_piece(counts).unwrap_or(0) } else { 0 };
        self.publish_head(Kind::Long, head, first.div_ceil(LINE_BYTES) as u16, head.long_words());
        self.advance(first);
    }

    /// Writes the next piece of the first message, if there is room for it; says so.
    pub(super) fn write_piece(&mut self, counts: &mut Statistics) -> bool {
        let Some(count) = self.copy_piece(counts) else { return false };
        self.publish(Kind::Piece, 0, 0, [count as u64]);
        self.advance(count);
        true
    }

    /// Copies the next piece of the first message into the ring, if there is room; gives its bytes.
    fn copy_piece(&mut self, counts: &mut Statistics) -> Option<usize> {
        let stream = self.streams.front()?;
        let piece =
            (stream.bytes / 4).next_power_of_two().clamp(LEAST_PIECE, MOST_PIECE.min(self.ring.bytes() / 8));
        let count = piece.min(stream.bytes - stream.sent);
        let room = self.ring.bytes() as u64 - (self.ring_written - self.ring_taken);
        if count as u64 > room {
            return None;
        }
        // A copy: the bytes go to the neighbour through the ring.
        self.ring.write(self.ring_written, &stream.payload, stream.sent, stream.sent + count);
        self.ring_written += count.next_multiple_of(LINE_BYTES) as u64;
        counts.copies += 1;
        counts.bytes_copied += count as u64;
        counts.bytes_sent += count as u64;
        Some(count)
    }

    /// The first message has sent `count` bytes more.
    fn advance(&mut self, count: usize) {
        self.put_off_piece();
        if let Some(stream) = self.streams.front_mut() {
            stream.sent += count;
            if stream.sent == stream.bytes
                && let Some(stream) = self.streams.pop_front()
            {
                self.end(stream, Ok(()));
            }
        }
    }

    /// Whether a message may be written before anything that waits.
    #[inline]
    pub(super) fn may_go_now(&mut self) -> bool {
        self.queue.is_empty() && !self.is_piece_due()
    }

    /// Whether so many messages have gone before a piece that waits that it comes before the next: small ones
    /// without end do not keep a large one back.
    #[inline]
    pub(super) fn is_piece_due(&mut self) -> bool {
        if self.position < self.piece_due {
            return false;
        }
        let waits = !self.streams.is_empty();
        if !waits {
            self.put_off_piece();
        }
        waits
    }

    #[inline]
    pub(super) fn put_off_piece(&mut self) {
        self.piece_due = self.position + CELLS_BEFORE_PIECE;
    }

    /// Whether there is a cell besides those that are left to messages.
    pub(super) fn has_cell_for_piece(&self) -> bool {
        self.position - self.cells_taken < CELLS - CELLS_FOR_HEADS
    }
}
