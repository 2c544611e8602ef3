//! Top-k all-reduce.

use brevity::Group;
use brevity::compress::SparseVec;
use brevity_collectives::sparse::{TopK, TopkAllReduce};

use super::entries::{Entries, coder};
use super::{Results, SparseArguments, brv_sparse};
use crate::failure::Failure;
use crate::policy::brv_values;

/// As in C.
pub(super) struct TopkArguments {
    pub(super) entries: Entries,
    pub(super) limit: usize,
    pub(super) format: brv_values,
    pub(super) sum: *mut brv_sparse,
    pub(super) kept: *mut brv_sparse,
}

impl SparseArguments for TopkArguments {
    type Collective = TopkAllReduce;

    const HAS_ALGORITHMS: bool = true;

    unsafe fn read<'a>(self, _: &Group) -> Result<(TopkAllReduce, Results<'a>), Failure> {
        let Self { entries, limit, .. } = self;
        let coder = coder(self.format)?;
        // SAFETY: the caller of this function guarantees the entries.
        let local = unsafe { entries.read(limit, "limit") }?;
        // SAFETY: the caller of this function guarantees live vectors.
        let results = unsafe { Results::of_sum(self.sum, self.kept, coder.wire().is_exact()) }?;
        Ok((TopkAllReduce { local, limit, coder }, results))
    }

    fn results(TopK { sum, kept }: TopK) -> Vec<SparseVec> {
        vec![sum, kept]
    }
}
