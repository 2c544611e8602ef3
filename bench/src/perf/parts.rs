//! All-reduces of dense vectors of which only a part travels: choosing it is timed.

use brevity::collectives::sparse::{Draw, RandomPlaces};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, collectives};

use super::workload::{Difference, Workload};
use crate::oracle;

/// A collective on dense vectors that sends a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentPart {
    /// The sum at random places.
    RandomK,
    /// The sum at consecutive places from a random one on.
    RandomBlock,
    /// The sum, without blocks that are zero.
    Blocks,
    /// The largest sums, dense inside hosts and sparse between them.
    Hosts,
}

impl SentPart {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RandomK, Self::RandomBlock, Self::Blocks, Self::Hosts];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RandomK => "randomk-allreduce",
            Self::RandomBlock => "randomblock-allreduce",
            Self::Blocks => "block-allreduce",
            Self::Hosts => "hierarchical-allreduce",
        }
    }
}

/// This rank's part, with the expected result. Each iteration is a step, with places of its own.
pub struct InParts {
    vector: Vec<f32>,
    places: RandomPlaces,
    last: SparseVec,
    sums: Vec<f32>,
}

impl InParts {
    /// This rank's vector of `count` elements.
    pub fn new(group: &Group, draw: Draw, count: usize, density: Density) -> Self {
        let places = RandomPlaces { draw, k: density.entries(count), seed: 1, step: 0 };
        Self {
            vector: oracle::vector(group.rank(), count, oracle::EXACT),
            places,
            last: SparseVec::new(count),
            sums: oracle::sum(group.world_size(), 0..count, oracle::EXACT),
        }
    }
}

impl Workload for InParts {
    fn prepare(&mut self) {
        self.places.step += 1;
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        self.last = group.random_k_all_reduce(&self.vector, self.places)?;
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        let expected = self.places.select(&self.sums);
        let expected = expected.unwrap_or_else(|error| panic!("sums of integers: {error}"));
        let list = |entries: &SparseVec| entries.iter().collect::<Vec<_>>();
        Difference::find(&list(&self.last), &list(&expected))
    }

    fn kept(&self) -> Option<usize> {
        Some(self.places.k)
    }
}
