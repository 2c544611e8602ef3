//! Sparse reduce-scatter.

use brevity::Group;
use brevity::compress::SparseVec;
use brevity_collectives::sparse::{Scattered, SparseReduceScatter};

use super::entries::{Entries, coder};
use super::{Results, SparseArguments, brv_sparse};
use crate::failure::Failure;
use crate::policy::brv_values;

/// As in C.
pub(super) struct SparseReduceScatterArguments {
    pub(super) entries: Entries,
    pub(super) limit: usize,
    pub(super) format: brv_values,
    pub(super) sum: *mut brv_sparse,
    pub(super) kept: *mut brv_sparse,
}

impl SparseArguments for SparseReduceScatterArguments {
    type Collective = SparseReduceScatter;

    unsafe fn read<'a>(self, _: &Group) -> Result<(SparseReduceScatter, Results<'a>), Failure> {
        let Self { entries, limit, .. } = self;
        let coder = coder(self.format)?;
        // SAFETY: the caller of this function guarantees the entries.
        let local = unsafe { entries.read(limit, "limit") }?;
        // SAFETY: the caller of this function guarantees live vectors.
        let results = unsafe { Results::of_sum(self.sum, self.kept, coder.wire().is_exact()) }?;
        Ok((SparseReduceScatter { local, limit, coder }, results))
    }

    fn results(Scattered { sum, kept }: Scattered) -> Vec<SparseVec> {
        vec![sum, kept]
    }
}
