//! Broadcast of shared buffers.

use ucx_sys_wrap::buffer::{PoolBuffer, SharedBuffer};

use super::to_children;
use crate::call::Call;
use crate::data::Element;
use crate::error::Result;
use crate::pattern::Binomial;

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
