//! Algorithms of dense collectives, by messages. Each is written for one segment of a vector, on bytes.
//!
//! Sums have the fixed [order](crate::data::order) in all of them but [`ring`].

pub(super) mod bruck;
pub(super) mod direct;
pub(super) mod doubling;
pub(super) mod halving;
pub(super) mod hosts;
pub(super) mod linear;
pub(super) mod pairwise;
pub(super) mod reduce_tree;
pub(super) mod ring;
pub(super) mod spread;
pub(super) mod tree;

use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::error::Result;
use crate::plan::Algorithm;

/// Copies a segment of the vector of `root` to all ranks, by an algorithm without levels.
pub(super) async fn broadcast<'env>(
    call: &Call<'_, 'env>,
    algorithm: Algorithm,
    data: Chunk<'env, u8>,
    root: u32,
) -> Result<Chunk<'env, u8>> {
    match algorithm {
        Algorithm::Spread => spread::broadcast(call, data, root).await,
        Algorithm::Knomial4 => tree::broadcast(call, data, root, 4).await,
        Algorithm::Knomial8 => tree::broadcast(call, data, root, 8).await,
        _ => tree::broadcast(call, data, root, 2).await,
    }
}
