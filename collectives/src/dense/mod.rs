//! Collectives on dense vectors.
//!
//! A [`Collective`] is what a call is to do: its reduction, root and lengths. It works on bytes, in
//! [`Buffers`]. A [`Group`](crate::Group) makes a call of it, and inside the body of a call
//! [`Call::run`](crate::Call::run) runs it. Each has a row for each of its [algorithms](crate::Algorithm).

mod all_gather;
mod all_reduce;
mod all_to_all;
mod at_root;
mod barrier;
mod broadcast;
pub(crate) mod by;
mod frozen;
mod gather;
mod lengths;
mod reduce;
mod reduce_scatter;
mod scatter;
mod varying;

use std::future::Future;
use std::ops::ControlFlow;

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use crate::buffers::{Buffers, Memory, Sizes};
use crate::call::Call;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::host::{Rest, SlotTurn};
use crate::plan::{Algorithm, Row, Work};

pub use all_gather::{AllGather, all_gather};
pub use all_reduce::{AllReduce, all_reduce, describe_all_reduce};
pub use all_to_all::AllToAll;
pub use barrier::{Barrier, barrier};
pub use broadcast::{Broadcast, broadcast};
pub(crate) use by::tree::to_children;
pub use frozen::{broadcast_frozen, broadcast_shared};
pub use gather::Gather;
pub use lengths::Lengths;
pub use reduce::Reduce;
pub use reduce_scatter::ReduceScatter;
pub use scatter::Scatter;
pub use varying::all_gather_varying;

/// This rank, and the number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// This rank in the group.
    pub rank: u32,
    /// The number of ranks in the group.
    pub world_size: u32,
}

/// A collective on dense vectors: what a call is to do.
pub trait Collective: Clone + Send + Sync + 'static {
    /// The operation.
    const OPERATION: Operation;

    /// The algorithms. One by messages fits everything.
    const ROWS: &'static [Row];

    /// Checks lengths and root, before a call is made.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::NoSuchRoot`].
    fn check(&self, memory: Sizes, place: Place) -> Result<()>;

    /// What all ranks of the call must agree on.
    fn description(&self, memory: Sizes, place: Place) -> Description;

    /// What the choice of an algorithm depends on, equal on all ranks.
    fn work(&self, memory: Sizes, place: Place) -> Work;

    /// Runs it by messages among several ranks: by any algorithm but [`Algorithm::Slots`].
    fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> impl Future<Output = Result<Chunk<'env, u8>>> + Send + use<'a, 'env, Self>;

    /// Bytes of an element that is not cut: one that is longer than [`MOST_SLOT_ELEMENT`] does not go through
    /// slots.
    fn element_bytes(&self) -> usize;

    /// Tries to run it over the slots of a host without the overhead of waiting. Returns what is left.
    fn at_once(&self, _: &mut SlotTurn<'_>, _: &mut Buffers<'_>) -> ControlFlow<Result<()>, Rest> {
        ControlFlow::Continue(Rest::All)
    }

    /// Runs the rest over the slots of a host.
    fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        rest: Rest,
    ) -> impl Future<Output = Result<()>> + Send + use<'a, 'b, 'env, Self>;
}

/// The longest element that goes through the slots of a host.
pub const MOST_SLOT_ELEMENT: usize = 512;

/// Whether elements are short enough for slots.
pub(crate) fn suits_slots<C: Collective>(collective: &C) -> bool {
    collective.element_bytes() <= MOST_SLOT_ELEMENT
}

/// By default, segments of a long vector have so many bytes of each message that a rank sends, which are
/// still in the processor's cache when they are reduced.
pub(crate) const SLICE_BYTES: usize = 512 << 10;

pub(crate) fn check_root(root: u32, Place { world_size, .. }: Place) -> Result<()> {
    if root < world_size { Ok(()) } else { Err(Error::NoSuchRoot { root: Rank(root), world_size }) }
}

/// The bytes of each of some blocks of whole elements, of `bytes` in all or a little more.
fn whole_blocks(bytes: usize, ranks: u32, size: usize) -> usize {
    (bytes / size).div_ceil(ranks as usize) * size
}

/// Checks the length of an argument, which is told in elements of `size` bytes.
fn check_length(what: &'static str, found: usize, expected: usize, size: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Length { what, found: found / size, expected: expected / size })
}
