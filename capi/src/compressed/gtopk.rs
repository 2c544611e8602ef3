//! gTop-k all-reduce.

use brevity::Group;
use brevity::compress::SparseVec;
use brevity_collectives::sparse::{Gtopk, GtopkAllReduce};

use super::entries::{Entries, coder, put_back};
use super::{Results, SparseArguments, brv_sparse};
use crate::failure::Failure;
use crate::policy::{brv_put_back, brv_values};

/// As in C.
pub(super) struct GtopkArguments {
    pub(super) entries: Entries,
    pub(super) k: usize,
    pub(super) put_back: brv_put_back,
    pub(super) format: brv_values,
    pub(super) sum: *mut brv_sparse,
    pub(super) kept: *mut brv_sparse,
}

impl SparseArguments for GtopkArguments {
    type Collective = GtopkAllReduce;

    unsafe fn read<'a>(self, _: &Group) -> Result<(GtopkAllReduce, Results<'a>), Failure> {
        let Self { entries, k, .. } = self;
        let (rule, coder) = (put_back(self.put_back)?, coder(self.format)?);
        // SAFETY: the caller of this function guarantees the entries.
        let local = unsafe { entries.read(k, "k") }?;
        // SAFETY: the caller of this function guarantees live vectors.
        let results = unsafe { Results::of_sum(self.sum, self.kept, false) }?;
        Ok((GtopkAllReduce { local, k, rule, coder }, results))
    }

    fn results(Gtopk { result, put_back }: Gtopk) -> Vec<SparseVec> {
        vec![result, put_back]
    }
}
