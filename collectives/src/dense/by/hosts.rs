//! Inside each host, and between hosts.
//!
//! | collective | inside | between `H` hosts | inside |
//! | --- | --- | --- | --- |
//! | all-reduce of n bytes | every rank sums a part of its host's vectors | an all-reduce of each part | each part to all |
//! | reduce | to one rank of each host, in a tree | to the root, in a tree | |
//! | broadcast | | to one rank of each host, in a tree | to the others, in a tree |
//! | all-gather of blocks of b bytes | | the blocks of one rank of each host | each block to all |
//!
//! An all-reduce sends 2 n (H - 1) / H bytes out of a host, an all-gather b P (H - 1) / H; all ranks of a
//! host have a part in that, as many as the host with the fewest ranks has. Messages inside a host go through
//! its shared memory, where it has such.
//!
//! Sums have the fixed order where the number of hosts is a power of two, and each has an aligned block of
//! `2^j` ranks: then the sum of a host is a node of the tree of all ranks.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use super::{direct, reduce_tree, tree};
use crate::buffers::{Layout, Memory};
use crate::call::Call;
use crate::data::Reducer;
use crate::dense::Collective;
use crate::dense::all_reduce::{self, AllReduce};
use crate::error::Result;
use crate::plan::{Places, Work};

fn places<'a>(call: &Call<'a, '_>) -> &'a Places {
    call.plan().places.as_deref().unwrap_or_else(|| unreachable!("the algorithm fits if there are levels"))
}

/// Reduces a vector over all ranks. Elements of partial results are not wide.
pub(in crate::dense) async fn all_reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let (places, partial) = (places(call), reducer.partial());
    let place = places.place(call.rank());
    let inside = call.among(places.here(call.rank()).clone());
    let parts = places.topology.least;
    let layout = Layout::of_lines(memory.output.len(), parts, reducer.size());
    let layout = layout.with_empty(inside.world_size());
    let input = memory.input.map(|input| layout.read(input));
    let mut blocks = layout.split(memory.output);
    let own = place as usize;
    direct::reduce_scatter(&inside, &partial, input.as_deref(), (&mut blocks[..], own), 0).await?;
    if place < parts {
        let mut part = between(call, (places, place), &partial, blocks[own].take()).await?;
        reducer.in_mode(|| reducer.end_in_place(&mut part, call.world_size()));
        blocks[own] = part;
    }
    direct::all_gather(&inside, &mut blocks, 1).await?;
    Ok(Chunk::join_all(blocks))
}

/// Reduces a part of the vector over the ranks at a place of all hosts.
async fn between<'env>(
    call: &Call<'_, 'env>,
    (places, place): (&Places, u32),
    partial: &Reducer,
    part: Chunk<'env, u8>,
) -> Result<Chunk<'env, u8>> {
    let Some(plan) = call.plan().across() else { unreachable!("there are several hosts") };
    // The part has the same length on all hosts.
    let bytes = part.len();
    let work = Work { bytes, wide_bytes: bytes, is_exact: partial.is_exact(), is_uneven: false };
    let algorithm = plan.choose(AllReduce::OPERATION, AllReduce::ROWS, &work);
    let across = call.among(places.across(place));
    let memory = Memory { input: None, output: part };
    all_reduce::flat_segment_of(&across, partial, algorithm, memory).await
}

/// Reduces the vectors of all ranks to the output of `root`. Other outputs are not written.
pub(in crate::dense) async fn reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
    root: u32,
) -> Result<Chunk<'env, u8>> {
    let (places, partial) = (places(call), reducer.partial());
    let (host, representatives) = (places.host(call.rank()), places.representatives(root));
    let own = representatives[host as usize];
    let inside = call.among(places.here(call.rank()).clone());
    let here = (places.place(own), RADIX);
    if call.rank() != own {
        return reduce_tree::reduce(&inside, &partial, memory, here).await;
    }
    let Memory { input, mut output } = memory;
    // Where the output is not for the sum of this host, that is in scratch memory.
    let is_apart = input.is_some() && call.rank() != root;
    let mut sum = match input {
        Some(input) if is_apart => call.zeroed_bytes(input.len())?,
        _ => output.take(),
    };
    sum = reduce_tree::reduce(&inside, &partial, Memory { input, output: sum }, here).await?;
    let (across, there) = (call.among(representatives), (places.host(root), RADIX));
    sum = reduce_tree::reduce(&across, &partial, Memory { input: None, output: sum }, there).await?;
    if call.rank() == root {
        reducer.in_mode(|| reducer.end_in_place(&mut sum, call.world_size()));
    }
    Ok(if is_apart { output } else { sum })
}

/// Of the trees.
const RADIX: u32 = 2;

/// Copies the vector of `root` to all ranks.
pub(in crate::dense) async fn broadcast<'env>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, u8>,
    root: u32,
) -> Result<Chunk<'env, u8>> {
    let places = places(call);
    let (host, representatives) = (places.host(call.rank()), places.representatives(root));
    let own = representatives[host as usize];
    if call.rank() == own {
        let across = call.among(representatives);
        data = tree::broadcast(&across, data, places.host(root), RADIX).await?;
    }
    let inside = call.among(places.here(call.rank()).clone());
    tree::broadcast(&inside, data, places.place(own), RADIX).await
}

/// Gathers the blocks of all ranks; this rank's is in its place. Every host has as many ranks.
pub(in crate::dense) async fn all_gather<'env>(
    call: &Call<'_, 'env>,
    blocks: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let places = places(call);
    let row = places.across(places.place(call.rank()));
    let across = call.among(row.clone());
    let mut own: Vec<_> = row.iter().map(|rank| blocks[*rank as usize].take()).collect();
    direct::all_gather(&across, &mut own, 0).await?;
    let inside = call.among(places.here(call.rank()).clone());
    let (rank, ranks) = (places.place(call.rank()) as usize, inside.world_size() as usize);
    let shared: Vec<_> = own.into_iter().map(Arc::new).collect();
    let hosts = 0..shared.len();
    let (mut receives, mut sends) = (Vec::new(), Vec::new());
    for (_, from) in direct::peers(rank, ranks) {
        for (host, member) in hosts.clone().zip(places.across(from as u32).iter()) {
            let place = blocks[*member as usize].take();
            receives.push((*member, inside.recv(from as u32, host as u32, place)));
        }
    }
    for (to, _) in direct::peers(rank, ranks) {
        for (host, block) in hosts.clone().zip(&shared) {
            sends.push(inside.send(to as u32, host as u32, Arc::clone(block)));
        }
    }
    for (member, receive) in receives {
        blocks[member as usize] = receive.await?;
    }
    for send in sends {
        drop(send.await?);
    }
    for (member, block) in row.iter().zip(shared) {
        let block = Arc::into_inner(block);
        blocks[*member as usize] =
            block.unwrap_or_else(|| unreachable!("every send has given its count back"));
    }
    Ok(())
}
