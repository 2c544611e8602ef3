//! Inside each host, and between hosts.
//!
//! | collective | inside | between `H` hosts | inside |
//! | --- | --- | --- | --- |
//! | barrier | to one rank of each host | dissemination | to the others |
//! | all-reduce of n bytes | every rank sums a part of its host's vectors | an all-reduce of each part | each part to all |
//! | reduce | to one rank of each host, in a tree | to the root | |
//! | broadcast | | to one rank of each host | to the others, in a tree |
//! | reduce-scatter of blocks of b bytes | every rank sums a block of each host | each block to its rank | |
//! | all-gather of blocks of b bytes | | the blocks of one rank of each host | each block to all |
//! | gather of blocks of b bytes | to one rank of each host | to the root | |
//! | scatter of blocks of b bytes | | to one rank of each host | to the others |
//! | all-to-all of blocks of b bytes | | to the rank at the same place, for all of its host | each block to its rank |
//!
//! An all-reduce sends 2 n (H - 1) / H bytes out of a host, an all-gather b P (H - 1) / H, a reduce-scatter b
//! (P - L) of L ranks, an all-to-all b L (P - L); all ranks of a host have a part in that, as many as the
//! host with the fewest ranks has. In the others one rank stands for each host; what is between these has the
//! algorithm that is the fastest for so many ranks.
//!
//! What is inside a host goes over its slots, or by messages where its ranks share no memory, or where the
//! collective runs beside others of one call. It makes no difference to other hosts. Over slots, a long
//! vector is cut into segments as by messages: while some are on their way between hosts, the next one is
//! summed, and an earlier one is copied to all ranks.
//!
//! Sums have the fixed order where the number of hosts is a power of two, and each has an aligned block of
//! `2^j` ranks: then the sum of a host is a node of the tree of all ranks. Sums of 16-bit numbers go between
//! hosts as `f32`; results do not.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod gather;
mod reduce;
mod reduce_scatter;
mod scatter;

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use crate::buffers::{Layout, Memory};
use crate::call::Call;
use crate::data::Reducer;
use crate::dense::{MOST_SLOT_ELEMENT, at_root};
use crate::description::Operation;
use crate::error::Result;
use crate::host::{InsideTicket, Terms};
use crate::plan::{Algorithm, Places, Plan};

pub(in crate::dense) use all_gather::all_gather;
pub(in crate::dense) use all_reduce::all_reduce;
pub(in crate::dense) use all_to_all::all_to_all;
pub(in crate::dense) use barrier::barrier;
pub(in crate::dense) use broadcast::broadcast;
pub(in crate::dense) use gather::gather;
pub(in crate::dense) use reduce::reduce;
pub(in crate::dense) use reduce_scatter::reduce_scatter;
pub(in crate::dense) use scatter::{Scattered, scatter};

/// Of the trees inside a host.
const RADIX: u32 = 2;

fn places<'a>(call: &Call<'a, '_>) -> &'a Places {
    call.plan().places.as_deref().unwrap_or_else(|| unreachable!("the algorithm fits if there are levels"))
}

/// The plan of the representatives of all hosts.
fn leaders<'a>(call: &Call<'a, '_>) -> &'a Plan {
    call.plan().leaders().unwrap_or_else(|| unreachable!("there are several hosts"))
}

/// The layout of blocks of `bytes` bytes of all ranks, host after host: a part for each host.
fn by_host(call: &Call<'_, '_>, bytes: usize) -> Layout {
    let mut end = 0;
    let ends = places(call).sizes().map(|ranks| {
        end += ranks * bytes;
        end
    });
    Layout::Ends(ends.collect())
}

/// The call as the ranks of this host see it.
fn inside<'a, 'env>(call: &Call<'a, 'env>) -> Call<'a, 'env> {
    call.among(places(call).here(call.rank()).clone())
}

/// The ranks that stand for their hosts in a collective with a root: on its own host the root, on others the
/// first rank.
struct Representatives {
    /// By host.
    ranks: Arc<[u32]>,
    /// The place on this host of its representative.
    place: u32,
    /// Whether this rank is it.
    is_own: bool,
    /// The host of the root.
    host: u32,
}

impl Representatives {
    fn new(call: &Call<'_, '_>, root: u32) -> Self {
        let places = places(call);
        let ranks = places.representatives(root);
        let here = ranks[places.host(call.rank()) as usize];
        Self { is_own: call.rank() == here, place: places.place(here), host: places.host(root), ranks }
    }

    /// The algorithm for the blocks of hosts, of which ranks have `bytes` bytes each.
    fn choose(&self, call: &Call<'_, '_>, operation: Operation, bytes: usize) -> Algorithm {
        let work = at_root::of_hosts(bytes, &places(call).topology);
        leaders(call).choose(operation, at_root::ROWS, &work)
    }

    /// The call as they see it, if this rank is one of them.
    fn across<'a, 'env>(&self, call: &Call<'a, 'env>) -> Option<Call<'a, 'env>> {
        self.is_own.then(|| call.among(Arc::clone(&self.ranks)))
    }
}

/// The right to use the slots of this host, for elements of `size` bytes.
fn slots<'a>(call: &'a Call<'_, '_>, size: usize) -> Option<(InsideTicket<'a>, Terms<'a>)> {
    if size <= MOST_SLOT_ELEMENT { call.host_turn() } else { None }
}

/// The memory for partial results. Where their elements are wide, that is new memory with this rank's vector,
/// and the output comes beside it.
fn widened<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<(Memory<'env>, Option<Chunk<'env, u8>>)> {
    if !reducer.is_wide() {
        return Ok((memory, None));
    }
    let mut sums = call.scratch_chunk(memory.input().len() / reducer.size() * reducer.wide())?;
    reducer.in_mode(|| reducer.start(&mut sums, memory.input()));
    Ok((Memory { input: None, output: sums }, Some(memory.output)))
}

/// The result of partial results: in `output`, if their elements are wide.
fn ended<'env>(
    reducer: &Reducer,
    mut sums: Chunk<'env, u8>,
    output: Option<Chunk<'env, u8>>,
    ranks: u32,
) -> Chunk<'env, u8> {
    reducer.in_mode(|| match output {
        Some(mut output) => {
            reducer.end(&mut output, &mut sums, ranks);
            output
        }
        None => {
            reducer.end_in_place(&mut sums, ranks);
            sums
        }
    })
}
