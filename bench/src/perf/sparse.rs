//! The sparse all-gather of vectors that are already sparse: the selection is not timed.

use brevity::collectives::sparse::{Coder, Wire};
use brevity::compress::codec::{Choice, Encoder, decode};
use brevity::compress::select::{TopKScratch, top_k};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, collectives};

use super::workload::{Difference, Workload};
use crate::oracle;

/// The vectors of all ranks, gathered by each.
pub struct SparseAllGather {
    k: usize,
    local: SparseVec,
    coder: Coder,
    last: Vec<SparseVec>,
    expected: Vec<SparseVec>,
}

impl SparseAllGather {
    /// This rank's vectors, made of the largest of `count` elements.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(group: &Group, count: usize, density: Density, wire: Wire) -> collectives::Result<Self> {
        let k = density.entries(count);
        let mut local = SparseVec::new(count);
        top_k(&oracle::vector(group.rank(), count, oracle::WIDE), k, &mut local, &mut TopKScratch::new())?;
        let said = |rank| said(count, oracle::largest_of(rank, count, oracle::WIDE, k), wire);
        let expected = (0..group.world_size()).map(said).collect::<collectives::Result<_>>()?;
        Ok(Self { k, local, coder: Coder::new(wire), last: Vec::new(), expected })
    }
}

/// What ranks read of these entries.
fn said(count: usize, entries: Vec<(u32, f32)>, wire: Wire) -> collectives::Result<SparseVec> {
    let (indices, values) = entries.into_iter().unzip();
    let entries = SparseVec::from_parts(count, indices, values)?;
    let Wire::Coded(values) = wire else { return Ok(entries) };
    let (mut message, mut said) = (Vec::new(), SparseVec::new(count));
    Encoder::new().encode(entries.view(), Choice::Fast, &mut *values.quantiser(), &mut message)?;
    decode(&message, count, entries.len(), &mut said)?;
    Ok(said)
}

impl Workload for SparseAllGather {
    fn prepare(&mut self) {
        self.last.clear();
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        self.last = group.sparse_all_gather_by(self.local.view(), self.k, &mut self.coder)?;
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        let all = |vectors: &[SparseVec]| vectors.iter().flat_map(SparseVec::iter).collect::<Vec<_>>();
        Difference::find(&all(&self.last), &all(&self.expected))
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
