//! Where things lie in what a rank shares.

use std::ops::Range;

/// Bytes of a segment for slots.
pub const SLOTS_BYTES: usize = 3 << 20;

/// The most ranks of one host that share memory.
pub(super) const MAX_NEIGHBOURS: usize = 256;

/// Bytes of the header page, whose fields are words.
pub(super) const HEADER_BYTES: usize = 4096;
pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
pub(super) const RANK_AT: usize = 16;
pub(super) const BYTES_AT: usize = 24;
/// Where the mark lies in the memory of the segment's process.
pub(super) const ADDRESS_AT: usize = 32;
/// A random word, which no other process has at that place of its memory.
pub(super) const MARK_AT: usize = 40;
/// Counts the sleeps of the rank; alone in its line and in the next, which processors fetch together.
pub(super) const SLEEP_AT: usize = 128;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"brevshm\0");
pub(super) const VERSION: u64 = 10;

/// Bytes of the fixed part of a block: small messages and acknowledgements.
const BLOCK_FIXED_BYTES: usize = 28 << 10;

/// Bytes that one rank spends on the rings of payload to all its neighbours, unless they get the least or the
/// most of all. The most is what the second cache of a processor has, or twice as much.
const RINGS_BYTES: usize = 8 << 20;
const LEAST_RING_BYTES: usize = 64 << 10;
const MOST_RING_BYTES: usize = 2 << 20;

/// Where things lie in the segments and blocks of a host with so many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    ring_bytes: usize,
}

impl Layout {
    /// The layout for a host with `ranks` ranks.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        let share = RINGS_BYTES / ranks.max(1);
        let share = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
        Self { ring_bytes: share.clamp(LEAST_RING_BYTES, MOST_RING_BYTES) }
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + SLOTS_BYTES
    }

    /// The slots.
    #[must_use]
    pub fn slots(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + SLOTS_BYTES
    }

    /// Bytes at the end of a block for the payload of larger messages, a power of two.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Bytes of a block: what one rank tells one other.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        BLOCK_FIXED_BYTES + self.ring_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_aligned() {
        for ranks in 1..=MAX_NEIGHBOURS {
            let layout = Layout::new(ranks);
            assert!(layout.ring_bytes().is_power_of_two());
            assert!(layout.slots().start >= SLEEP_AT + 128 && layout.slots().end == layout.bytes());
            assert!(layout.block_bytes().is_multiple_of(4096) && layout.block_bytes() > layout.ring_bytes());
        }
    }

    #[test]
    fn few_ranks_get_large_rings() {
        assert_eq!(Layout::new(2).ring_bytes(), MOST_RING_BYTES);
        assert_eq!(Layout::new(4).ring_bytes(), MOST_RING_BYTES);
        assert_eq!(Layout::new(5).ring_bytes(), MOST_RING_BYTES / 2);
        assert_eq!(Layout::new(MAX_NEIGHBOURS).ring_bytes(), LEAST_RING_BYTES);
    }
}
