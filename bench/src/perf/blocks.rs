//! All-reduces of dense vectors of which most blocks are zero.

use std::sync::Arc;

use brevity::collectives::sparse::{Draw, RandomPlaces};
use brevity::compress::Density;
use brevity::compress::select::BLOCK_PLACES;
use brevity::{Group, collectives};

use super::workload::{Difference, Going, Workload};
use crate::oracle;

/// This rank's part, with the expected result. Each rank has a share of the blocks, at random places.
pub struct InBlocks {
    vector: Vec<f32>,
    before: Vec<f32>,
    expected: Arc<[f32]>,
    present: usize,
}

impl InBlocks {
    /// The sums of the vectors of `count` elements of all ranks.
    ///
    /// # Errors
    /// If the vectors are too long.
    pub fn sums(world_size: u32, count: usize, density: Density) -> collectives::Result<Arc<[f32]>> {
        let mut sums = vec![0.0; count];
        for rank in 0..world_size {
            let vector = vector(rank, count, density)?;
            sums.iter_mut().zip(&vector).for_each(|(sum, value)| *sum += value);
        }
        Ok(sums.into())
    }

    /// This rank's vector, as long as the [sums](Self::sums), of whose blocks this share is not zero.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(group: &Group, density: Density, expected: Arc<[f32]>) -> collectives::Result<Self> {
        let count = expected.len();
        let before = vector(group.rank(), count, density)?;
        let present = (density.entries(count.div_ceil(BLOCK_PLACES)) * BLOCK_PLACES).min(count);
        Ok(Self { vector: before.clone(), before, expected, present })
    }
}

fn vector(rank: u32, count: usize, density: Density) -> collectives::Result<Vec<f32>> {
    let blocks = vec![0.0; count.div_ceil(BLOCK_PLACES)];
    let k = density.entries(blocks.len());
    let places = RandomPlaces { draw: Draw::Scattered, k, seed: rank.into(), step: 0 }.select(&blocks)?;
    let (all, mut vector) = (oracle::vector(rank, count, oracle::EXACT), vec![0.0; count]);
    for place in places.indices() {
        let start = *place as usize * BLOCK_PLACES;
        let elements = start..(start + BLOCK_PLACES).min(count);
        vector[elements.clone()].copy_from_slice(&all[elements]);
    }
    Ok(vector)
}

impl Workload for InBlocks {
    fn prepare(&mut self) {
        self.vector.copy_from_slice(&self.before);
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        group.block_all_reduce(&mut self.vector, BLOCK_PLACES)
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let started = group.start_block_all_reduce(std::mem::take(&mut self.vector), BLOCK_PLACES);
        Box::pin(async move {
            let (given, outcome) = started.await;
            self.vector = given.vector;
            outcome
        })
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.vector, &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.present)
    }
}
