//! The numbers of steps, and the sets of slots in which they begin anew.

use super::{CHUNK_BYTES, CHUNKS_AT, CONTROL_AT, CONTROL_BYTES, DEPTH, LINE_BYTES};

/// The number of a step, the same on all ranks of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step(pub(super) u64);

impl Step {
    /// The step `later` steps later.
    #[inline]
    #[must_use]
    pub const fn plus(self, later: u64) -> Self {
        Self(self.0 + later)
    }

    /// Its number, from 1.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The offset at which to put up to so many bytes: different in each step, so that no other processor
    /// still has the lines in its cache. The same on all ranks.
    #[inline]
    #[must_use]
    pub const fn place_for(self, bytes: usize) -> usize {
        let room = if bytes > CHUNK_BYTES { CHUNK_BYTES } else { bytes.next_multiple_of(LINE_BYTES) };
        let rooms = CHUNK_BYTES / if room == 0 { LINE_BYTES } else { room };
        (self.0 / DEPTH % rooms as u64) as usize * room
    }

    pub(super) const fn control(self) -> usize {
        CONTROL_AT + (self.0 % DEPTH) as usize * CONTROL_BYTES
    }

    pub(super) const fn chunk(self) -> usize {
        CHUNKS_AT + (self.0 % DEPTH) as usize * CHUNK_BYTES
    }
}

/// A set of slots, for the use of one group after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSet {
    /// Its number in the segments.
    pub index: usize,
    /// How many groups have used it before, on any of the members. Less than [`MAX_GENERATIONS`].
    pub generation: u64,
}

/// The most groups that use a set one after another: the steps of a generation begin where no step of an
/// earlier one can have come.
pub const MAX_GENERATIONS: u64 = 1 << (63 - GENERATION_BITS);

/// Bits of a step's number inside its generation.
const GENERATION_BITS: u32 = 48;
pub(super) const LAST_STEP: u64 = (1 << GENERATION_BITS) - 1;

impl SlotSet {
    /// What all numbers of this generation are above.
    pub(in super::super) const fn start(self) -> u64 {
        self.generation << GENERATION_BITS
    }
}
