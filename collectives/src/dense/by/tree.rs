//! Trees of messages, for broadcasts.
//!
//! Broadcast of n bytes in a tree of radix `k`: `ceil(log_k P)` levels; the root sends `k - 1` messages of n
//! bytes a level, `ceil(log_k P) (alpha + (k - 1) n beta)`. With `k = 2` the tree is binomial. A rank shares
//! one buffer among all its sends.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, SendBuffer};

use crate::call::Call;
use crate::error::Result;
use crate::pattern::{Binomial, Knomial};

/// Copies the vector of `root` to all ranks.
pub(in crate::dense) async fn broadcast<'env>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, u8>,
    root: u32,
    radix: u32,
) -> Result<Chunk<'env, u8>> {
    let place = Knomial::new(call.rank(), root, call.world_size(), radix);
    if let Some((parent, round)) = place.parent() {
        data = call.recv(parent, round, data).await?;
    }
    let shared = Arc::new(data);
    let sends: Vec<_> = place
        .children()
        .into_iter()
        .rev()
        .map(|(child, round)| call.send(child, round, Arc::clone(&shared)))
        .collect();
    for send in sends {
        drop(send.await?);
    }
    Ok(Arc::into_inner(shared).unwrap_or_else(|| unreachable!("every send has given its count back")))
}

/// Sends one buffer to all children in a binomial tree, the child with the largest subtree first, in rounds
/// from `first_round` on. Returns the buffer if it has no other holder.
pub(crate) async fn to_children<'env, B: SendBuffer + Clone + 'env>(
    call: &Call<'_, 'env>,
    place: Binomial,
    first_round: u32,
    buffer: B,
) -> Result<B> {
    let sends: Vec<_> = place
        .children()
        .rev()
        .map(|(child, round)| call.send(child, first_round + round, buffer.clone()))
        .collect();
    for send in sends {
        drop(send.await?);
    }
    Ok(buffer)
}
