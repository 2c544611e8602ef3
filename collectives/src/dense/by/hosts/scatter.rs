//! Scatter by hosts: from the root, in one message, to one rank of each host, and from it to the others.

use ucx_sys_wrap::buffer::Chunk;

use super::{Representatives, by_host, inside, places, slots};
use crate::buffers::Layout;
use crate::call::Call;
use crate::dense::by::linear;
use crate::description::Operation;
use crate::error::Result;
use crate::host::{self, Blocks, SlotTurn};
use crate::plan::Algorithm;

/// The vector of the root.
pub(in crate::dense) struct Scattered<'a> {
    pub(in crate::dense) root: u32,
    /// The bytes of a block.
    pub(in crate::dense) bytes: usize,
    /// All blocks, at the root.
    pub(in crate::dense) all: &'a [u8],
}

/// Sends each rank its block, of equal length, for its `own`. An empty one of the root means that its block
/// stays where it is. Returns `own`.
pub(in crate::dense) async fn scatter<'env>(
    call: &Call<'_, 'env>,
    size: usize,
    vector: Scattered<'_>,
    mut own: Chunk<'env, u8>,
) -> Result<Chunk<'env, u8>> {
    let way = Representatives::new(call, vector.root);
    if let Some((mut place, terms)) = slots(call, size) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        let here = to_hosts(call, &way, &vector).await?;
        host::scatter(&mut turn, &here, &mut own, Blocks::Equal(vector.bytes), way.place).await?;
        return Ok(own);
    }
    let here = to_hosts(call, &way, &vector).await?;
    let inside = inside(call);
    if !way.is_own {
        return inside.recv(way.place, 0, own).await;
    }
    let ranks = inside.world_size() as usize;
    let mut blocks = Layout::Equal { bytes: vector.bytes, ranks }.split(here);
    linear::scatter_own(&inside, &mut blocks).await?;
    if !own.is_empty() {
        // A copy: this rank's own block.
        own.copy_from_slice(&blocks[way.place as usize]);
    }
    Ok(own)
}

/// Sends the representatives the blocks of their hosts. Returns those of this rank's, if it is one of them.
async fn to_hosts<'env>(
    call: &Call<'_, 'env>,
    way: &Representatives,
    vector: &Scattered<'_>,
) -> Result<Chunk<'env, u8>> {
    let Scattered { root, bytes, all } = *vector;
    let (layout, host) = (by_host(call, bytes), places(call).host(call.rank()) as usize);
    let Some(across) = way.across(call) else { return call.scratch_chunk(0) };
    let is_in_tree = way.choose(call, Operation::SCATTER, bytes) == Algorithm::Binomial;
    if call.rank() != root {
        let mut here = call.scratch_chunk(layout.block(host).len())?;
        if !is_in_tree {
            return across.recv(way.host, 0, here).await;
        }
        let bytes = here.len();
        linear::scatter_in_tree(&across, &[], &mut here, (way.host, bytes)).await?;
        return Ok(here);
    }
    let mut packed = call.scratch_chunk(layout.total())?;
    for (place, rank) in places(call).by_host().enumerate() {
        // A copy: one message for all ranks of a host.
        packed[place * bytes..][..bytes].copy_from_slice(&all[rank as usize * bytes..][..bytes]);
    }
    if is_in_tree {
        let mut here = call.scratch_chunk(layout.block(host).len())?;
        let bytes = here.len();
        linear::scatter_in_tree(&across, &packed, &mut here, (way.host, bytes)).await?;
        return Ok(here);
    }
    let mut parts = layout.split(packed);
    linear::scatter_own(&across, &mut parts).await?;
    Ok(parts[host].take())
}
