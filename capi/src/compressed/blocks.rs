//! Block-sparse all-reduce.

use brevity::Group;
use brevity_collectives::sparse::BlockAllReduce;

use super::vector::Vectors;
use super::{Arguments, Begun};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::memory::Stretch;
use crate::request::finished;

/// As in C.
pub(super) struct BlockArguments {
    pub(super) input: *const f32,
    pub(super) output: *mut f32,
    pub(super) n: usize,
    pub(super) block: usize,
}

impl BlockArguments {
    /// The output, with the values of the input.
    ///
    /// # Safety
    /// As for [`Arguments::wait`].
    unsafe fn read(&self, group: &Group) -> Result<Stretch<f32>, Failure> {
        let &Self { input, output, n, block } = self;
        if block == 0 {
            return Err(Failure::argument("block is 0, expected 1 or more values"));
        }
        if u32::try_from(n.div_ceil(block)).is_err() {
            return Err(Failure::argument(format!(
                "n is {n} and block {block}, expected fewer than 2^32 blocks: choose longer ones"
            )));
        }
        // SAFETY: the caller of this function guarantees the memory.
        unsafe { Vectors { input, output, n }.fill(group, None) }
    }
}

impl Arguments for BlockArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let vector = unsafe { self.read(group) }?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses, set just now.
        let vector = unsafe { vector.write() };
        Ok(group.call_compressed(&mut BlockAllReduce { vector, block: self.block })?)
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        // SAFETY: the caller of this function guarantees the same.
        let vector = unsafe { self.read(group) }?;
        // SAFETY: likewise, until the call has ended.
        let vector = unsafe { Lent::new(vector, &shared.loans) };
        let collective = BlockAllReduce { vector, block: self.block };
        Ok(Begun::on_memory(finished(group.start_compressed(collective))))
    }
}
