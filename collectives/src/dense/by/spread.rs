//! Broadcast as scatter and all-gather.
//!
//! The root sends every other rank a part of the vector, and the ranks pass their parts to all others: 2
//! rounds; the root sends n bytes, others n (P - 2) / (P - 1); `2 alpha + 2 n beta`. A tree takes a time that
//! grows with `log P`.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use super::direct::peers;
use crate::buffers::line;
use crate::call::Call;
use crate::error::Result;

/// Copies the vector of `root` to all ranks.
pub(in crate::dense) async fn broadcast<'env>(
    call: &Call<'_, 'env>,
    data: Chunk<'env, u8>,
    root: u32,
) -> Result<Chunk<'env, u8>> {
    let (rank, ranks, root) = (call.rank() as usize, call.world_size() as usize, root as usize);
    // Parts are numbered by distance from the root, which has none.
    let rank_of = |part: usize| (root + 1 + part) % ranks;
    let each = data.len().div_ceil(ranks - 1).next_multiple_of(line(1));
    let lengths: Vec<usize> = (0..ranks - 1)
        .map(|part| ((part + 1) * each).min(data.len()) - (part * each).min(data.len()))
        .collect();
    let mut parts = data.split_into(lengths);
    if rank == root {
        let sends: Vec<_> = (0..ranks - 1)
            .map(|part| (part, call.send(rank_of(part) as u32, 0, parts[part].take())))
            .collect();
        for (part, send) in sends {
            parts[part] = send.await?;
        }
        return Ok(Chunk::join_all(parts));
    }
    let part_of = |rank: usize| (rank + ranks - root - 1) % ranks;
    let own = part_of(rank);
    let others = || peers(rank, ranks).filter(|(to, _)| *to != root).map(|(to, _)| to);
    let mut receives = Vec::with_capacity(ranks);
    for from in others() {
        let place = parts[part_of(from)].take();
        receives.push((part_of(from), call.recv(from as u32, 1, place)));
    }
    let shared = Arc::new(call.recv(root as u32, 0, parts[own].take()).await?);
    let sends: Vec<_> = others().map(|to| call.send(to as u32, 1, Arc::clone(&shared))).collect();
    for (part, receive) in receives {
        parts[part] = receive.await?;
    }
    for send in sends {
        drop(send.await?);
    }
    parts[own] =
        Arc::into_inner(shared).unwrap_or_else(|| unreachable!("every send has given its count back"));
    Ok(Chunk::join_all(parts))
}
