//! Broadcast by hosts.

use ucx_sys_wrap::buffer::Chunk;

use super::{RADIX, Representatives, inside, leaders, slots};
use crate::buffers::Memory;
use crate::call::Call;
use crate::dense::by::{self, tree};
use crate::dense::{Broadcast, Collective};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::{Lanes, in_lanes};
use crate::plan::Work;

/// Copies the vector of `root`, in these segments, to all ranks.
pub(in crate::dense) async fn broadcast<'a, 'env>(
    call: &Call<'a, 'env>,
    size: usize,
    segments: Vec<Memory<'env>>,
    root: u32,
) -> Result<Vec<Chunk<'env, u8>>> {
    let way = Representatives::new(call, root);
    if let Some((mut place, terms)) = slots(call, size) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        return over_slots(call, &mut turn, &way, segments).await;
    }
    let way = &way;
    let run = |lane: Call<'a, 'env>, memory: Memory<'env>| async move {
        let data = between(&lane, way, memory.loaded()).await?;
        tree::broadcast(&inside(&lane), data, way.place, RADIX).await
    };
    in_lanes(call, segments, run).await
}

/// Copies the vector to the representatives, if this rank is one of them.
async fn between<'env>(
    call: &Call<'_, 'env>,
    way: &Representatives,
    data: Chunk<'env, u8>,
) -> Result<Chunk<'env, u8>> {
    let Some(across) = way.across(call) else { return Ok(data) };
    let work = Work::moving(data.len());
    let algorithm = leaders(call).choose(Broadcast::OPERATION, Broadcast::ROWS, &work);
    by::broadcast(&across, algorithm, data, way.host).await
}

/// While some segments are on their way between hosts, one that has come is copied inside.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    way: &Representatives,
    segments: Vec<Memory<'env>>,
) -> Result<Vec<Chunk<'env, u8>>> {
    let mut lanes = Lanes::new();
    let mut done = Vec::with_capacity(segments.len());
    let mut segments = segments.into_iter();
    loop {
        while !lanes.are_full()
            && let Some(memory) = segments.next()
        {
            lanes.start(call, |lane| async move { between(&lane, way, memory.loaded()).await });
        }
        if lanes.is_empty() {
            break;
        }
        let mut data = lanes.end().await?;
        lanes.beside(host::broadcast_part(turn, &mut data, way.place)).await?;
        turn.slots().wake();
        done.push(data);
    }
    turn.finish();
    Ok(done)
}
