//! Dense collectives: a call of C becomes a [`Collective`] and its memory.
//!
//! The functions of C are in `blocking.rs` and `started.rs`, which a test makes from the list in
//! `tests/capi/list.rs`. They only pass their arguments on.

mod blocking;
mod blocks;
mod memory;
mod reduction;
mod started;

use std::ffi::c_void;
use std::sync::Arc;

use brevity::Group;
use brevity_collectives::dense::{
    AllGather, AllReduce, AllToAll, Broadcast, Collective, Gather, Reduce, ReduceScatter, Scatter,
};

use crate::element::{brv_reduction, brv_type, data_type};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of, rank_of};
use crate::options::{Options, brv_options, waiting_dense_call};
use crate::request::{Started, brv_request, finished, start};
use crate::status::brv_status;

pub use blocking::*;
pub(crate) use reduction::Reductions;
pub use reduction::{brv_reduce_function, brv_reduction_register, brv_reduction_unregister};
pub use started::*;

use blocks::Blocks;
use memory::{Memory, Places, lend};
use reduction::reducer;

/// What a call is to do.
#[derive(Clone, Copy)]
enum Operation {
    Barrier,
    Broadcast { root: i32 },
    BroadcastTo { root: i32 },
    Reduce { reduction: brv_reduction, root: i32 },
    AllReduce { reduction: brv_reduction },
    ReduceScatter { reduction: brv_reduction },
    AllGather,
    Gather { root: i32 },
    Scatter { root: i32 },
    AllToAll,
}

/// What a call is given: memory, the lengths of its blocks, and the type of its elements.
#[derive(Clone, Copy)]
struct Arguments {
    input: *const c_void,
    output: *mut c_void,
    count: Count,
    r#type: brv_type,
}

impl Arguments {
    const NONE: Self =
        Self { input: std::ptr::null(), output: std::ptr::null_mut(), count: Count::Each(0), r#type: 0 };
}

/// Elements of a vector or a block; or of each of the blocks of all ranks.
#[derive(Clone, Copy)]
enum Count {
    Each(usize),
    Lengths(*const usize),
    SentAndReceived(*const usize, *const usize),
}

/// How a call is made, and what that gives.
trait Form {
    type Done;

    fn group(&self) -> &Group;

    /// # Safety
    /// `memory` is as `Memory::lend` demands until the call has ended.
    unsafe fn call<C: Collective>(&self, collective: C, memory: Memory) -> Result<Self::Done, Failure>;

    fn barrier(&self) -> Result<Self::Done, Failure>;
}

/// Waits until the call has ended.
struct Waiting<'a>(&'a Group);

impl Form for Waiting<'_> {
    type Done = ();

    fn group(&self) -> &Group {
        self.0
    }

    #[inline]
    unsafe fn call<C: Collective>(&self, collective: C, memory: Memory) -> Result<(), Failure> {
        // SAFETY: the caller of this function guarantees the memory.
        Ok(self.0.call(&collective, unsafe { memory.lend() })?)
    }

    fn barrier(&self) -> Result<(), Failure> {
        Ok(self.0.barrier()?)
    }
}

/// Starts the call.
struct Starting<'a>(&'a Group, &'a Shared);

impl Form for Starting<'_> {
    type Done = Box<dyn Started>;

    fn group(&self) -> &Group {
        self.0
    }

    unsafe fn call<C: Collective>(&self, collective: C, memory: Memory) -> Result<Self::Done, Failure> {
        // SAFETY: the caller of this function guarantees the memory.
        let lent = unsafe { memory.lent(&self.1.loans) };
        Ok(finished(self.0.start_call(Ok(collective), lent, lend)))
    }

    fn barrier(&self) -> Result<Self::Done, Failure> {
        Ok(finished(self.0.start_barrier()))
    }
}

/// Makes a call and waits for its end.
///
/// # Safety
/// `group` is NULL or a live group; `options` are as for `Options::read`; `arguments` as for [`dense`].
#[inline]
unsafe fn waiting(
    group: *mut brv_group,
    operation: Operation,
    arguments: Arguments,
    options: *const brv_options,
) -> brv_status {
    let body = |options: &Options| {
        // SAFETY: the caller of this function guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        let group = options.on(&shared.group);
        // SAFETY: the caller of this function guarantees the arguments.
        unsafe { dense(&Waiting(&group), (shared, options), operation, &arguments) }
    };
    // SAFETY: the caller of this function guarantees the options.
    unsafe { waiting_dense_call(options, body) }
}

/// Starts a call.
///
/// # Safety
/// As for [`waiting`], until the call has ended; `request` is NULL or may be written.
unsafe fn starting(
    group: *mut brv_group,
    operation: Operation,
    arguments: Arguments,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let begin = |options: &Options, shared: &Arc<Shared>| {
        let group = options.on(&shared.group);
        // SAFETY: the caller of this function guarantees the arguments.
        unsafe { dense(&Starting(&group, shared), (shared, options), operation, &arguments) }
    };
    // SAFETY: the caller of this function guarantees what `start` demands.
    unsafe { start(group, request, options, begin) }
}

/// Makes a call of a collective on the memory of its arguments.
///
/// # Safety
/// Until the call has ended: `input` and `output` have the elements that the header demands for this
/// operation, or are NULL. Those of `input` are set (for a broadcast, those of `output` on the root), and
/// nobody else writes them; nobody else uses those of `output`. Lists of lengths have one for each rank.
unsafe fn dense<F: Form>(
    form: &F,
    (shared, options): (&Shared, &Options),
    operation: Operation,
    arguments: &Arguments,
) -> Result<F::Done, Failure> {
    if matches!(operation, Operation::Barrier) {
        options.check_algorithm_of_barrier()?;
        return form.barrier();
    }
    let group = form.group();
    let data = data_type(arguments.r#type)?;
    // SAFETY: the caller of this function guarantees the lists.
    let (blocks, received) = unsafe { Blocks::read(arguments.count, group.world_size()) }?;
    let places = Places { rank: group.rank() as usize, size: data.bytes(), arguments, blocks, received };
    let root = |root| rank_of(group, root, "root");
    let reducer = |number| reducer(&shared.reductions, number, data);
    // SAFETY: here and below, the caller of this function guarantees the memory.
    unsafe {
        match operation {
            Operation::Barrier => form.barrier(),
            Operation::Broadcast { root: rank } => {
                let root = root(rank)?;
                form.call(Broadcast::of(data, root), places.broadcast(root)?)
            }
            Operation::BroadcastTo { root: rank } => {
                let root = root(rank)?;
                form.call(Broadcast::of(data, root), places.broadcast_to(root)?)
            }
            Operation::Reduce { reduction, root: rank } => {
                let (root, reducer) = (root(rank)?, reducer(reduction)?);
                blocks.check_units(&reducer, data)?;
                form.call(Reduce::of(reducer, root), places.reduce(root)?)
            }
            Operation::AllReduce { reduction } => {
                let reducer = reducer(reduction)?;
                blocks.check_units(&reducer, data)?;
                form.call(AllReduce::of(reducer), places.all_reduce()?)
            }
            Operation::ReduceScatter { reduction } => {
                let reducer = reducer(reduction)?;
                let lengths = blocks.lengths_for(&reducer, data)?;
                let collective = ReduceScatter::of(reducer, lengths);
                form.call(collective, places.reduce_scatter()?)
            }
            Operation::AllGather => form.call(AllGather::of(data, blocks.lengths()), places.all_gather()?),
            Operation::Gather { root: rank } => {
                let root = root(rank)?;
                form.call(Gather::of(data, root, blocks.lengths()), places.gather(root)?)
            }
            Operation::Scatter { root: rank } => {
                let root = root(rank)?;
                form.call(Scatter::of(data, root, blocks.lengths()), places.scatter(root)?)
            }
            Operation::AllToAll => {
                let memory = places.all_to_all()?;
                form.call(AllToAll::of(data, blocks.lengths(), received.lengths()), memory)
            }
        }
    }
}
