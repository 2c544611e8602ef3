//! Gather by hosts: to one rank of each host, and from it, in one message, to the root.

use ucx_sys_wrap::buffer::Chunk;

use super::{Representatives, by_host, inside, places, slots};
use crate::buffers::Layout;
use crate::call::Call;
use crate::dense::by::linear;
use crate::description::Operation;
use crate::error::Result;
use crate::host::{self, Blocks, SlotTurn};
use crate::plan::Algorithm;

/// Gathers equal blocks of all ranks in the `output` of `root`. `own` is this rank's block. Returns `output`,
/// which is not written on other ranks.
pub(in crate::dense) async fn gather<'env>(
    call: &Call<'_, 'env>,
    size: usize,
    own: Chunk<'env, u8>,
    (root, mut output): (u32, Chunk<'env, u8>),
) -> Result<Chunk<'env, u8>> {
    let (way, bytes, layout) = (Representatives::new(call, root), own.len(), by_host(call, own.len()));
    let host = places(call).host(call.rank()) as usize;
    if call.rank() != root {
        let here = if way.is_own { layout.block(host).len() } else { 0 };
        let here = inside_host(call, size, own, (&way, call.scratch_chunk(here)?)).await?;
        if let Some(across) = way.across(call) {
            match way.choose(call, Operation::GATHER, bytes) {
                Algorithm::Binomial => {
                    linear::gather_in_tree(&across, &here, &mut [], (way.host, here.len())).await?
                }
                _ => drop(across.send(way.host, 0, here).await?),
            }
        }
        return Ok(output);
    }
    let is_in_order = places(call).are_in_order();
    let room = if is_in_order { output.take() } else { call.scratch_chunk(layout.total())? };
    let mut parts = layout.split(room);
    parts[host] = inside_host(call, size, own, (&way, parts[host].take())).await?;
    let all = from_hosts(call, &way, parts, bytes).await?;
    if is_in_order {
        return Ok(all);
    }
    for (place, rank) in places(call).by_host().enumerate() {
        // A copy: from the order of hosts to that of ranks.
        output[rank as usize * bytes..][..bytes].copy_from_slice(&all[place * bytes..][..bytes]);
    }
    Ok(output)
}

/// Gathers the blocks of this host in the `here` of its representative. Returns that.
async fn inside_host<'env>(
    call: &Call<'_, 'env>,
    size: usize,
    own: Chunk<'env, u8>,
    (way, mut here): (&Representatives, Chunk<'env, u8>),
) -> Result<Chunk<'env, u8>> {
    let blocks = Blocks::Equal(own.len());
    if let Some((mut place, terms)) = slots(call, size) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        host::gather(&mut turn, Some(&own), &mut here, blocks, way.place).await?;
        return Ok(here);
    }
    let inside = inside(call);
    if !way.is_own {
        drop(inside.send(way.place, 0, own).await?);
        return Ok(here);
    }
    let mut blocks = Layout::Equal { bytes: own.len(), ranks: inside.world_size() as usize }.split(here);
    // A copy: this rank's own block.
    blocks[way.place as usize].copy_from_slice(&own);
    linear::gather(&inside, &mut blocks).await?;
    Ok(Chunk::join_all(blocks))
}

/// Gathers the blocks of all hosts, of which the root has those of its own.
async fn from_hosts<'env>(
    call: &Call<'_, 'env>,
    way: &Representatives,
    mut parts: Vec<Chunk<'env, u8>>,
    bytes: usize,
) -> Result<Chunk<'env, u8>> {
    let Some(across) = way.across(call) else { unreachable!("the root stands for its host") };
    if way.choose(call, Operation::GATHER, bytes) != Algorithm::Binomial {
        linear::gather(&across, &mut parts).await?;
        return Ok(Chunk::join_all(parts));
    }
    let here = &parts[way.host as usize];
    let mut own = call.scratch_chunk(here.len())?;
    own.copy_from_slice(here);
    let mut all = Chunk::join_all(parts);
    linear::gather_in_tree(&across, &own, &mut all, (way.host, own.len())).await?;
    Ok(all)
}
