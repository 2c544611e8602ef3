//! Reduce by hosts.

use ucx_sys_wrap::buffer::Chunk;

use super::{RADIX, Representatives, ended, inside, leaders, slots, widened};
use crate::buffers::Memory;
use crate::call::Call;
use crate::data::Reducer;
use crate::dense::by::reduce_tree;
use crate::dense::{Collective, Reduce};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::{Lanes, in_lanes};
use crate::plan::Work;

/// Reduces the vectors of all ranks to the output of `root`. Other outputs are not written, unless they are
/// the input.
pub(in crate::dense) async fn reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
    root: u32,
) -> Result<Chunk<'env, u8>> {
    let segment = call.slice_bytes() / reducer.wide() * reducer.size();
    let segments = memory.segments(segment);
    let way = Way::new(call, reducer, root);
    let done = match slots(call, reducer.size()) {
        Some((mut place, terms)) => {
            let mut turn = SlotTurn::begin(&mut place, &terms).await?;
            over_slots(call, &mut turn, &way, segments).await?
        }
        None => {
            let way = &way;
            in_lanes(call, segments, |lane, memory| async move { by_messages(&lane, way, memory).await })
                .await?
        }
    };
    Ok(Chunk::join_all(done))
}

/// The way of a reduction to its root.
struct Way<'a> {
    reducer: &'a Reducer,
    partial: Reducer,
    is_root: bool,
    to: Representatives,
}

impl<'a> Way<'a> {
    fn new(call: &Call<'_, '_>, reducer: &'a Reducer, root: u32) -> Self {
        let is_root = call.rank() == root;
        Self { reducer, partial: reducer.partial(), is_root, to: Representatives::new(call, root) }
    }

    /// What this rank has for the sums of its host.
    fn prepare<'env>(&self, call: &Call<'_, 'env>, memory: Memory<'env>) -> Result<Prepared<'env>> {
        let (Memory { input, output }, kept) = widened(call, self.reducer, memory)?;
        match input {
            // The output is not for these sums.
            Some(input) if self.to.is_own && !self.is_root => {
                let sums = call.scratch_chunk(input.len())?;
                Ok(Prepared { memory: Memory { input: Some(input), output: sums }, kept: Some(output) })
            }
            _ => Ok(Prepared { memory: Memory { input, output }, kept }),
        }
    }

    /// Reduces the sums of this host over the hosts, if this rank has them, and ends them at the root.
    async fn between<'env>(
        &self,
        call: &Call<'_, 'env>,
        mut sums: Chunk<'env, u8>,
        kept: Option<Chunk<'env, u8>>,
    ) -> Result<Chunk<'env, u8>> {
        if let Some(across) = self.to.across(call) {
            let (bytes, is_exact) = (sums.len(), self.partial.is_exact());
            let work = Work { is_exact, ..Work::moving(bytes) };
            let algorithm = leaders(call).choose(Reduce::OPERATION, Reduce::ROWS, &work);
            let memory = Memory { input: None, output: sums };
            let over_hosts = Reduce::of(self.partial.clone(), self.to.host);
            sums = over_hosts.segment(&across, algorithm, memory).await?;
        }
        if self.is_root {
            return Ok(ended(self.reducer, sums, kept, call.world_size()));
        }
        Ok(kept.unwrap_or(sums))
    }
}

/// A vector, and where the sums of the host go.
struct Prepared<'env> {
    memory: Memory<'env>,
    /// This rank's output, if the sums go elsewhere.
    kept: Option<Chunk<'env, u8>>,
}

async fn by_messages<'env>(
    call: &Call<'_, 'env>,
    way: &Way<'_>,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let Prepared { memory, kept } = way.prepare(call, memory)?;
    let sums = reduce_tree::reduce(&inside(call), &way.partial, memory, (way.to.place, RADIX)).await?;
    way.between(call, sums, kept).await
}

/// While some segments are on their way between hosts, the next one is summed inside.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    way: &Way<'_>,
    segments: Vec<Memory<'env>>,
) -> Result<Vec<Chunk<'env, u8>>> {
    let mut lanes = Lanes::new();
    let mut done = Vec::with_capacity(segments.len());
    for memory in segments {
        if lanes.are_full() {
            done.push(lanes.end().await?);
        }
        let Prepared { memory: Memory { input, output: mut sums }, kept } = way.prepare(call, memory)?;
        lanes.beside(host::reduce_part(turn, &way.partial, (input, &mut sums), way.to.place)).await?;
        turn.slots().wake();
        lanes.start(call, |lane| async move { way.between(&lane, sums, kept).await });
    }
    while !lanes.is_empty() {
        done.push(lanes.end().await?);
    }
    turn.finish();
    Ok(done)
}
