//! All-gather: every rank gets all ranks' vectors.
//!
//! Ring: `P - 1` rounds. In each, a rank passes on what it received in the round before, so it sends all
//! vectors except its successor's.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::element::Element;
use crate::error::Result;
use crate::host;
use crate::pattern::{ring_chunk, ring_predecessor, ring_successor};

/// Gathers vectors of equal length. `all` holds `P` vectors, this rank's at its position.
///
/// # Errors
/// Errors of the transport; `all` is lost.
pub async fn all_gather<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut all: Chunk<'env, T>,
) -> Result<Chunk<'env, T>> {
    call.check_open()?;
    let (rank, world_size) = (call.rank(), call.world_size());
    if let Some(claim) = call.claim(all.len() / world_size as usize * size_of::<T>()) {
        host::all_gather(&mut claim.borrow().await?.begin().await?, &mut all).await?;
        return Ok(all);
    }
    let (next, previous) = (ring_successor(rank, world_size), ring_predecessor(rank, world_size));
    let length = all.len() / world_size as usize;
    let mut blocks = all.split_into((0..world_size).map(|_| length));
    for round in 0..world_size - 1 {
        let (out, into) = (ring_chunk(rank, round, world_size), ring_chunk(rank, round + 1, world_size));
        let sending = call.send(next, round, blocks[out].take());
        let receiving = call.recv(previous, round, blocks[into].take());
        blocks[into] = receiving.await?;
        blocks[out] = sending.await?;
    }
    Ok(Chunk::join_all(blocks))
}

/// Gathers vectors of any length, in rank order. The lengths travel first, on the same ring.
///
/// # Errors
/// Errors of the transport.
pub async fn all_gather_varying<'env, T: Element>(call: &Call<'_, 'env>, own: Vec<T>) -> Result<Vec<Vec<T>>> {
    let (rank, world_size) = (call.rank(), call.world_size());
    let (next, previous) = (ring_successor(rank, world_size), ring_predecessor(rank, world_size));
    let mut lengths = vec![0u64; world_size as usize];
    lengths[rank as usize] = own.len() as u64;
    let lengths = all_gather(call, Chunk::from(lengths)).await?;

    let mut blocks: Vec<Arc<Vec<T>>> = vec![Arc::default(); world_size as usize];
    blocks[rank as usize] = Arc::new(own);
    for step in 0..world_size - 1 {
        let round = world_size - 1 + step;
        let (out, into) = (ring_chunk(rank, step, world_size), ring_chunk(rank, step + 1, world_size));
        let sending = call.send(next, round, Arc::clone(&blocks[out]));
        let place = zeroed(lengths[into]).ok_or_else(|| {
            let what = format!("a length of {} elements, more than there is memory for", lengths[into]);
            call.refuse(into as u32, what)
        })?;
        blocks[into] = Arc::new(call.recv(previous, round, place).await?);
        sending.await?;
    }
    Ok(blocks.into_iter().map(Arc::unwrap_or_clone).collect())
}

/// A vector of `length` zeros; `None` if there is no memory, because the length comes from a peer.
fn zeroed<T: Element>(length: u64) -> Option<Vec<T>> {
    let length = usize::try_from(length).ok()?;
    let mut vector = Vec::new();
    vector.try_reserve_exact(length).ok()?;
    vector.resize(length, T::zeroed());
    Some(vector)
}
