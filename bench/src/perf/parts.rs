//! All-reduces of dense vectors of which only a part travels: choosing it is timed.

use std::sync::Arc;

use brevity::collectives::sparse::{Draw, RandomPlaces};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, collectives};

use super::workload::{Difference, Going, Workload};
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
    sums: Arc<[f32]>,
}

impl InParts {
    /// The sums of the vectors of `count` elements of all ranks.
    pub fn sums(world_size: u32, count: usize) -> Arc<[f32]> {
        oracle::sum(world_size, 0..count, oracle::EXACT).into()
    }

    /// This rank's vector, as long as the [sums](Self::sums).
    pub fn new(group: &Group, draw: Draw, density: Density, sums: Arc<[f32]>) -> Self {
        let count = sums.len();
        let places = RandomPlaces { draw, k: density.entries(count), seed: 1, step: 0 };
        Self {
            vector: oracle::vector(group.rank(), count, oracle::EXACT),
            places,
            last: SparseVec::new(count),
            sums,
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

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let started = group.start_random_k_all_reduce(std::mem::take(&mut self.vector), self.places);
        Box::pin(async move {
            let (given, sum) = started.await;
            self.vector = given.vector;
            self.last = sum?;
            Ok(())
        })
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
