//! Gathering and scattering: all blocks at once, or through a binomial tree.
//!
//! | algorithm | rounds | bytes of the root | time |
//! | --- | --- | --- | --- |
//! | linear | 1 | b (P - 1) | alpha + b (P - 1) beta, and the root's work for P - 1 messages |
//! | binomial | ceil(log2 P) | b (P - 1) | ceil(log2 P) alpha + b (P - 1) beta |
//!
//! The root of the linear form has at most 16 receives or sends under way, so that the messages of many ranks
//! don't all come before their places are named.

use std::collections::VecDeque;

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer};

use super::direct::peers;
use crate::buffers::Layout;
use crate::call::Call;
use crate::error::Result;
use crate::pattern::Binomial;

const AT_ONCE: usize = 16;

/// Receives the blocks of all other ranks.
pub(in crate::dense) async fn gather<'env>(
    call: &Call<'_, 'env>,
    blocks: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let mut receives = VecDeque::with_capacity(AT_ONCE);
    for (_, from) in peers(call.rank() as usize, blocks.len()) {
        if receives.len() == AT_ONCE
            && let Some((from, receive)) = receives.pop_front()
        {
            let receive: crate::call::Receiving<'_, 'env, Chunk<'env, u8>> = receive;
            blocks[from] = receive.await?;
        }
        let place = blocks[from].take();
        receives.push_back((from, call.recv(from as u32, 0, place)));
    }
    for (from, receive) in receives {
        blocks[from] = receive.await?;
    }
    Ok(())
}

/// Sends every other rank its block.
pub(in crate::dense) async fn scatter<'env>(call: &Call<'_, 'env>, blocks: &[&'env [u8]]) -> Result<()> {
    let mut sends = VecDeque::with_capacity(AT_ONCE);
    for (to, _) in peers(call.rank() as usize, blocks.len()) {
        if sends.len() == AT_ONCE
            && let Some(send) = sends.pop_front()
        {
            let send: crate::call::Sending<'_, 'env, &'env [u8]> = send;
            send.await?;
        }
        sends.push_back(call.send(to as u32, 0, blocks[to]));
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Likewise, from blocks that the caller gives up meanwhile.
pub(in crate::dense) async fn scatter_own<'env>(
    call: &Call<'_, 'env>,
    blocks: &mut [Chunk<'env, u8>],
) -> Result<()> {
    let mut sends = VecDeque::with_capacity(AT_ONCE);
    for (to, _) in peers(call.rank() as usize, blocks.len()) {
        if sends.len() == AT_ONCE
            && let Some((to, send)) = sends.pop_front()
        {
            let send: crate::call::Sending<'_, 'env, Chunk<'env, u8>> = send;
            blocks[to] = send.await?;
        }
        let block = blocks[to].take();
        sends.push_back((to, call.send(to as u32, 0, block)));
    }
    for (to, send) in sends {
        blocks[to] = send.await?;
    }
    Ok(())
}

/// Gathers blocks of `bytes` in a tree: a rank sends the blocks of its subtree, which are those of the ranks
/// from itself on. Only the root has `all`, with its own block in it.
pub(in crate::dense) async fn gather_in_tree(
    call: &Call<'_, '_>,
    own: &[u8],
    all: &mut [u8],
    (root, bytes): (u32, usize),
) -> Result<()> {
    let tree = Subtree::new(call, root);
    if tree.ranks == 1
        && let Some((parent, round)) = tree.place.parent()
    {
        let mut block = call.scratch::<u8>(bytes)?;
        block.copy_from_slice(own);
        return call.send(parent, round, block).await.map(drop);
    }
    let mut blocks = call.scratch::<u8>(tree.ranks * bytes)?;
    blocks[..bytes].copy_from_slice(own);
    let mut receives = Vec::new();
    for (child, round) in tree.place.children() {
        let held = tree.held(round);
        receives.push((1 << round, call.recv(child, round, call.scratch::<u8>(held * bytes)?)));
    }
    for (first, receive) in receives {
        let come: PoolBuffer<u8> = receive.await?;
        // A copy: the blocks of several children go on as one message.
        blocks[first * bytes..][..come.len()].copy_from_slice(&come);
    }
    match tree.place.parent() {
        Some((parent, round)) => call.send(parent, round, blocks).await.map(drop),
        None => {
            let layout = Layout::Equal { bytes, ranks: tree.ranks };
            for offset in 1..tree.ranks {
                let from = (root as usize + offset) % tree.ranks;
                all[layout.block(from)].copy_from_slice(&blocks[layout.block(offset)]);
            }
            Ok(())
        }
    }
}

/// Scatters blocks of `bytes` in a tree. Only the root has `all`. `own` gets this rank's block, also at the
/// root.
pub(in crate::dense) async fn scatter_in_tree(
    call: &Call<'_, '_>,
    all: &[u8],
    own: &mut [u8],
    (root, bytes): (u32, usize),
) -> Result<()> {
    let tree = Subtree::new(call, root);
    let mut blocks = call.scratch::<u8>(tree.ranks * bytes)?;
    match tree.place.parent() {
        Some((parent, round)) => blocks = call.recv(parent, round, blocks).await?,
        None => {
            let layout = Layout::Equal { bytes, ranks: tree.ranks };
            for offset in 0..tree.ranks {
                let to = (root as usize + offset) % tree.ranks;
                blocks[layout.block(offset)].copy_from_slice(&all[layout.block(to)]);
            }
        }
    }
    let mut sends = Vec::new();
    for (child, round) in tree.place.children().rev() {
        let (first, held) = (1 << round, tree.held(round));
        let mut part = call.scratch::<u8>(held * bytes)?;
        // A copy: one message for a whole subtree.
        part.copy_from_slice(&blocks[first * bytes..][..held * bytes]);
        sends.push(call.send(child, round, part));
    }
    own.copy_from_slice(&blocks[..bytes]);
    for send in sends {
        drop(send.await?);
    }
    Ok(())
}

/// The ranks below one in a binomial tree.
struct Subtree {
    place: Binomial,
    /// The ranks of the subtree, this one included.
    ranks: usize,
}

impl Subtree {
    fn new(call: &Call<'_, '_>, root: u32) -> Self {
        let (rank, world_size) = (call.rank(), call.world_size());
        let offset = (rank + world_size - root) % world_size;
        let most = if offset == 0 { world_size } else { 1 << offset.trailing_zeros() };
        let place = Binomial::new(rank, root, world_size);
        Self { place, ranks: most.min(world_size - offset) as usize }
    }

    /// The ranks of the subtree of the child of a round.
    fn held(&self, round: u32) -> usize {
        (1 << round).min(self.ranks - (1 << round))
    }
}
