//! All-reduces of dense vectors of which most blocks are zero.

use brevity::collectives::sparse::{Draw, RandomPlaces};
use brevity::compress::Density;
use brevity::compress::select::BLOCK_PLACES;
use brevity::{Group, collectives};

use super::workload::{Difference, Workload};
use crate::oracle;

/// This rank's part, with the expected result. Each rank has a share of the blocks, at random places.
pub struct InBlocks {
    vector: Vec<f32>,
    before: Vec<f32>,
    expected: Vec<f32>,
    present: usize,
}

impl InBlocks {
    /// This rank's vector of `count` elements, of whose blocks this share is not zero.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(group: &Group, count: usize, density: Density) -> collectives::Result<Self> {
        let (mut before, mut expected) = (Vec::new(), vec![0.0; count]);
        for rank in 0..group.world_size() {
            let vector = vector(rank, count, density)?;
            expected.iter_mut().zip(&vector).for_each(|(sum, value)| *sum += value);
            if rank == group.rank() {
                before = vector;
            }
        }
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

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.vector, &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.present)
    }
}
