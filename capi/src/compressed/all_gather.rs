//! Sparse all-gather.

use brevity::Group;
use brevity::compress::SparseVec;
use brevity_collectives::sparse::SparseAllGather;

use super::entries::{Entries, coder};
use super::{Results, SparseArguments, brv_sparse};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::policy::brv_values;

/// As in C.
pub(super) struct SparseAllGatherArguments {
    pub(super) entries: Entries,
    pub(super) limit: usize,
    pub(super) format: brv_values,
    pub(super) all: *const *mut brv_sparse,
}

impl SparseArguments for SparseAllGatherArguments {
    type Collective = SparseAllGather;

    unsafe fn read<'a>(self, group: &Group) -> Result<(SparseAllGather, Results<'a>), Failure> {
        let Self { entries, limit, .. } = self;
        let coder = coder(self.format)?;
        // SAFETY: the caller of this function guarantees the entries.
        let local = unsafe { entries.read(limit, "limit") }?;
        let all = Stretch::new(self.all, group.world_size() as usize, "all")?;
        // SAFETY: the caller of this function guarantees a handle for each rank.
        let handles = unsafe { all.read() }.iter().enumerate();
        let handles = handles.map(|(rank, &sparse)| (sparse, format!("all[{rank}]"), false));
        // SAFETY: the caller of this function guarantees live vectors.
        let results = unsafe { Results::hold(handles) }?;
        Ok((SparseAllGather { local, limit, coder }, results))
    }

    fn results(gathered: Vec<SparseVec>) -> Vec<SparseVec> {
        gathered
    }
}
