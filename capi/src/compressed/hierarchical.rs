//! Hierarchical all-reduce.

use brevity::compress::SparseView;
use brevity::{Group, PutBack};
use brevity_collectives::sparse::{HierarchicalAllReduce, LeaderSum};

use super::entries::{coder, put_back};
use super::vector::Vectors;
use super::{Arguments, Begun, Results, brv_sparse};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::policy::{brv_put_back, brv_values};

/// The number of a way in which leaders sum. C may pass any number, so this is not a Rust enum.
pub type brv_leader_sum = u32;

/// As in C.
pub(super) struct HierarchicalArguments {
    pub(super) input: *const f32,
    pub(super) kept: *mut f32,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) leader_sum: brv_leader_sum,
    pub(super) put_back: brv_put_back,
    pub(super) format: brv_values,
    pub(super) sum: *mut brv_sparse,
}

impl HierarchicalArguments {
    /// The collective, on memory with the values of the input that becomes what is kept, and the object for
    /// the sum.
    ///
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read<'a>(
        self,
        group: &Group,
    ) -> Result<(HierarchicalAllReduce<Stretch<f32>>, Results<'a>), Failure> {
        let Self { input, kept, n, k, leader_sum, put_back: rule, format, sum } = self;
        let by = of_number(leader_sum, put_back(rule)?)?;
        let coder = coder(format)?;
        Stretch::new(input, n, "in")?;
        // Refused only by the collective, a vector that is too long would have been copied.
        SparseView::new(n, &[], &[]).map_err(brevity::Error::from)?;
        // SAFETY: the caller of this function guarantees a live vector.
        let results = unsafe { Results::hold([(sum, "sum".to_owned(), false)]) }?;
        let vectors = Vectors { input, output: kept, n };
        // SAFETY: the caller of this function guarantees the memory.
        let vector = unsafe { vectors.fill_as("kept", group, None) }?;
        Ok((HierarchicalAllReduce { vector, k, by, coder }, results))
    }
}

fn of_number(leader_sum: brv_leader_sum, rule: PutBack) -> Result<LeaderSum, Failure> {
    match leader_sum {
        1 => Ok(LeaderSum::Topk),
        2 => Ok(LeaderSum::Gtopk(rule)),
        _ => {
            Err(Failure::argument(format!("leader_sum is {leader_sum}, expected a brv_leader_sum (1 or 2)")))
        }
    }
}

impl Arguments for HierarchicalArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (HierarchicalAllReduce { vector, k, by, coder }, results) = unsafe { self.read(group) }?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses, set just now.
        let vector = unsafe { vector.write() };
        let sum = group.call_compressed(&mut HierarchicalAllReduce { vector, k, by, coder })?;
        results.set(vec![sum]);
        Ok(())
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let (HierarchicalAllReduce { vector, k, by, coder }, results) = unsafe { self.read(group) }?;
        // SAFETY: likewise, until the call has ended; what is kept was set just now.
        let vector = unsafe { Lent::new(vector, &shared.loans) };
        let handle = group.start_compressed(HierarchicalAllReduce { vector, k, by, coder });
        Ok(Begun::into_vectors(handle, results, |sum| vec![sum]))
    }
}
