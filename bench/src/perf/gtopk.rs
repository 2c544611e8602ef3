//! The gTop-k all-reduce of vectors that are already sparse: the selection is not timed.

use brevity::compress::select::{TopKScratch, top_k};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, PutBack};

use super::workload::{Difference, Workload};
use crate::oracle;

/// A sum of sparse vectors of which the largest entries are kept.
pub struct GtopkAllReduce {
    k: usize,
    local: SparseVec,
    last: Option<SparseVec>,
    expected: Vec<(u32, f32)>,
}

impl GtopkAllReduce {
    /// This rank's vectors, made of the largest of `count` elements.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(group: &Group, count: usize, density: Density) -> brevity::collectives::Result<Self> {
        let k = density.entries(count);
        let mut local = SparseVec::new(count);
        top_k(&oracle::vector(group.rank(), count, oracle::WIDE), k, &mut local, &mut TopKScratch::new())?;
        let expected = oracle::gtopk(group.world_size(), count, oracle::WIDE, k);
        Ok(Self { k, local, last: None, expected })
    }
}

impl Workload for GtopkAllReduce {
    fn prepare(&mut self) {
        self.last = None;
    }

    fn run(&mut self, group: &Group) -> brevity::collectives::Result<()> {
        let outcome = group.gtopk_all_reduce(self.local.view(), self.k, PutBack::Conserving)?;
        self.last = Some(outcome.result);
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        let found: Vec<_> = self.last.iter().flat_map(SparseVec::iter).collect();
        Difference::find(&found, &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
