//! The layout of shared memory.

use std::ops::Range;

/// Bytes of a set of slots.
pub const SLOTS_BYTES: usize = 3 << 20;

/// The sets of slots of a segment: so many groups of this host can have slots at a time. A set that nobody
/// uses takes no memory.
pub const SLOT_SETS: usize = 8;

pub(super) const MAX_LOCAL_PEERS: usize = 256;

/// Bytes of the header page, which consists of words.
pub(super) const HEADER_BYTES: usize = 4096;
pub(super) const MAGIC_AT: usize = 0;
pub(super) const VERSION_AT: usize = 8;
pub(super) const RANK_AT: usize = 16;
pub(super) const BYTES_AT: usize = 24;
/// The address of the cookie in its process's memory.
pub(super) const COOKIE_ADDRESS_AT: usize = 32;
/// A random word that identifies the process (see `process.rs`).
pub(super) const COOKIE_AT: usize = 40;
/// Counts the rank's sleeps. Alone in its cache line and the next, which processors fetch together.
pub(super) const SLEEP_AT: usize = 128;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"brevshm\0");
pub(super) const VERSION: u64 = 11;

/// Bytes of a channel before the ring.
const CHANNEL_FIXED_BYTES: usize = 28 << 10;

/// Bytes of a rank's rings to all local peers together, within the limits for one ring. The largest ring is
/// about as large as a second-level cache: a line that the peer's cache still holds is slow to write again.
const RINGS_BYTES: usize = 8 << 20;
const MIN_RING_BYTES: usize = 64 << 10;
const MAX_RING_BYTES: usize = 2 << 20;

/// The layout of segments and channels on a host with a given number of ranks.
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
        Self { ring_bytes: share.clamp(MIN_RING_BYTES, MAX_RING_BYTES) }
    }

    /// Bytes of a segment.
    #[must_use]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + SLOT_SETS * SLOTS_BYTES
    }

    /// The slots of set `set`.
    ///
    /// # Panics
    /// When there is no such set: they are numbered up to [`SLOT_SETS`].
    #[must_use]
    pub fn slots(&self, set: usize) -> Range<usize> {
        assert!(set < SLOT_SETS, "set {set} of {SLOT_SETS} sets of slots");
        let start = HEADER_BYTES + set * SLOTS_BYTES;
        start..start + SLOTS_BYTES
    }

    /// Bytes of the ring at the end of a channel, a power of two.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Bytes of a channel.
    #[must_use]
    pub fn channel_bytes(&self) -> usize {
        CHANNEL_FIXED_BYTES + self.ring_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_aligned() {
        for ranks in 1..=MAX_LOCAL_PEERS {
            let layout = Layout::new(ranks);
            assert!(layout.ring_bytes().is_power_of_two());
            assert!(layout.slots(0).start >= SLEEP_AT + 128);
            assert_eq!(layout.slots(SLOT_SETS - 1).end, layout.bytes());
            assert!(
                layout.channel_bytes().is_multiple_of(4096) && layout.channel_bytes() > layout.ring_bytes()
            );
        }
    }

    #[test]
    fn few_ranks_get_large_rings() {
        assert_eq!(Layout::new(2).ring_bytes(), MAX_RING_BYTES);
        assert_eq!(Layout::new(4).ring_bytes(), MAX_RING_BYTES);
        assert_eq!(Layout::new(5).ring_bytes(), MAX_RING_BYTES / 2);
        assert_eq!(Layout::new(MAX_LOCAL_PEERS).ring_bytes(), MIN_RING_BYTES);
    }
}
