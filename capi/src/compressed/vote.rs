//! Vote.

use brevity::Group;
use brevity_collectives::vote::VoteAllReduce;

use super::vector::Vectors;
use super::{Arguments, Begun};
use crate::failure::Failure;
use crate::group::Shared;
use crate::lent::Lent;
use crate::request::finished;

/// As in C.
pub(super) struct VoteArguments {
    pub(super) input: *const f32,
    pub(super) output: *mut f32,
    pub(super) n: usize,
}

impl Arguments for VoteArguments {
    unsafe fn wait(self, group: &Group) -> Result<(), Failure> {
        let Self { input, output, n } = self;
        // SAFETY: the caller of this function guarantees the memory.
        let vector = unsafe { Vectors { input, output, n }.fill(group, None) }?;
        // SAFETY: the caller of this function guarantees memory that nobody else uses, set just now.
        let vector = unsafe { vector.write() };
        Ok(group.call_compressed(&mut VoteAllReduce { vector })?)
    }

    unsafe fn start<'a>(self, group: &Group, shared: &Shared) -> Result<Begun<'a>, Failure> {
        let Self { input, output, n } = self;
        // SAFETY: the caller of this function guarantees the memory.
        let vector = unsafe { Vectors { input, output, n }.fill(group, None) }?;
        // SAFETY: likewise, until the call has ended.
        let vector = unsafe { Lent::new(vector, &shared.loans) };
        Ok(Begun::on_memory(finished(group.start_compressed(VoteAllReduce { vector }))))
    }
}
