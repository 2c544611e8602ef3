//! The name of one participant.

use std::fmt;

/// A rank: one participant of a job, numbered from 0 to the world size minus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a table with one entry per rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All ranks of a world of `world_size`, rising.
    pub fn all(world_size: u32) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator {
        (0..world_size).map(Rank)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
