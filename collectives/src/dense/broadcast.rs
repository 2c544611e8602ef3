//! Broadcast: every rank gets the root's vector.
//!
//! Binomial tree: `ceil(log2 P)` rounds of the whole vector, which the root sends `ceil(log2 P)` times. A
//! rank shares one buffer among all its sends.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer, SendBuffer, SharedBuffer};

use crate::call::Call;
use crate::element::Element;
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::pattern::Binomial;

/// Copies `data` of `root` to all ranks. The lengths must be equal.
///
/// # Errors
/// Errors of the transport; `data` is lost.
pub async fn broadcast<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, T>,
    root: u32,
) -> Result<Chunk<'env, T>> {
    call.check_open()?;
    if let Some((mut place, terms)) = call.slot_turn(data.len() * size_of::<T>()) {
        host::broadcast(&mut SlotTurn::begin(&mut place, &terms).await?, &mut data, root).await?;
        return Ok(data);
    }
    let place = Binomial::new(call.rank(), root, call.world_size());
    if let Some((parent, round)) = place.parent() {
        data = call.recv(parent, round, data).await?;
    }
    let shared = to_children(call, place, 0, Arc::new(data)).await?;
    Ok(Arc::into_inner(shared).unwrap_or_else(|| unreachable!("every send has given its count back")))
}

/// Fills `buffer` with that of `root` and freezes it. The received buffer is also sent on and returned,
/// without a copy. The lengths must be equal.
///
/// # Errors
/// Errors of the transport; `buffer` is lost, and its memory goes back to its pool.
pub async fn broadcast_shared<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut buffer: PoolBuffer<T>,
    root: u32,
) -> Result<SharedBuffer<T>> {
    call.check_open()?;
    let place = Binomial::new(call.rank(), root, call.world_size());
    if let Some((parent, round)) = place.parent() {
        buffer = call.recv(parent, round, buffer).await?;
    }
    to_children(call, place, 0, buffer.freeze()).await
}

/// The root's part of a [`broadcast_shared`], for an already frozen buffer.
///
/// # Errors
/// Errors of the transport.
pub async fn broadcast_frozen<T: Element>(
    call: &Call<'_, '_>,
    buffer: SharedBuffer<T>,
) -> Result<SharedBuffer<T>> {
    call.check_open()?;
    to_children(call, Binomial::new(call.rank(), call.rank(), call.world_size()), 0, buffer).await
}

/// Sends one buffer to all children in a tree, the child with the largest subtree first, in rounds from
/// `first_round` on. Returns the buffer if it has no other holder.
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
