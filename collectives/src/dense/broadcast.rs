//! Broadcast: every rank gets the root's vector.
//!
//! Binomial tree: `ceil(log2 P)` rounds of the whole vector; the root sends it `ceil(log2 P)` times. What a
//! rank passes on is one buffer, lent to all of its sends at once.

use std::sync::Arc;

use ucx_sys_wrap::buffer::{Chunk, PoolBuffer, SendBuffer, SharedBuffer};

use crate::call::Call;
use crate::element::Element;
use crate::error::Result;
use crate::host;
use crate::pattern::Binomial;

/// Copies `data` of `root` to all ranks. All ranks pass equal lengths.
///
/// # Errors
/// What the transport reports: `data` is then lost.
pub async fn broadcast<'env, T: Element>(
    call: &Call<'_, 'env>,
    mut data: Chunk<'env, T>,
    root: u32,
) -> Result<Chunk<'env, T>> {
    call.check_open()?;
    if let Some(claim) = call.claim(data.len() * size_of::<T>()) {
        host::broadcast(&mut claim.borrow().await?.begin().await?, &mut data, root).await?;
        return Ok(data);
    }
    let place = Binomial::new(call.rank(), root, call.world_size());
    if let Some((parent, round)) = place.parent() {
        data = call.recv(parent, round, data).await?;
    }
    let shared = to_children(call, place, 0, Arc::new(data)).await?;
    Ok(Arc::into_inner(shared).unwrap_or_else(|| unreachable!("every send has given its count back")))
}

/// Fills `buffer` with that of `root` and freezes it: what was received is what is sent on and what is given
/// back. All ranks pass equal lengths.
///
/// # Errors
/// What the transport reports: `buffer` is then lost, its memory goes back to its pool.
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

/// The root's part of a [`broadcast_shared`] of what is frozen already.
///
/// # Errors
/// What the transport reports.
pub async fn broadcast_frozen<T: Element>(
    call: &Call<'_, '_>,
    buffer: SharedBuffer<T>,
) -> Result<SharedBuffer<T>> {
    call.check_open()?;
    to_children(call, Binomial::new(call.rank(), call.rank(), call.world_size()), 0, buffer).await
}

/// Sends the same buffer to all children of a tree, the child with the largest subtree first. The rounds are
/// shifted by `first_round`. Gives the buffer back when nobody else has it any more.
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
