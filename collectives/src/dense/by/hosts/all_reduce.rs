//! All-reduce by hosts.

use std::collections::VecDeque;

use ucx_sys_wrap::buffer::Chunk;

use super::{ended, inside, places, slots, widened};
use crate::buffers::{Layout, Memory};
use crate::call::Call;
use crate::data::Reducer;
use crate::dense::Collective;
use crate::dense::all_reduce::{AllReduce, flat_segment_of};
use crate::dense::by::direct;
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::{IN_FLIGHT, Lanes, in_lanes};
use crate::plan::{Algorithm, Work};

/// Reduces a vector over all ranks.
pub(in crate::dense) async fn all_reduce<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let (size, parts) = (reducer.size(), places(call).topology.least as usize);
    let segment = call.slice_bytes() / reducer.wide() * size * parts;
    let segments = memory.segments(segment);
    let done = match slots(call, size) {
        Some((mut place, terms)) => {
            let mut turn = SlotTurn::begin(&mut place, &terms).await?;
            over_slots(call, &mut turn, reducer, segments).await?
        }
        None => {
            in_lanes(call, segments, |lane, memory| async move { by_messages(&lane, reducer, memory).await })
                .await?
        }
    };
    Ok(Chunk::join_all(done))
}

/// A segment, whose sums are in blocks: one for each rank of this host, of which the last may be empty.
struct Segment<'env> {
    /// The layout of the results.
    layout: Layout,
    /// The results, but for this rank's part.
    blocks: Vec<Chunk<'env, u8>>,
    /// This rank's part of the sums of this host.
    part: Chunk<'env, u8>,
    /// Where its result goes, if elements of sums are wide.
    output: Option<Chunk<'env, u8>>,
}

/// The layout of sums of `bytes` bytes, in parts of which the ranks of this host have one each.
fn layout(call: &Call<'_, '_>, reducer: &Reducer, bytes: usize) -> Layout {
    let places = places(call);
    let ranks = places.here(call.rank()).len() as u32;
    Layout::of_lines(bytes, places.topology.least, reducer.wide()).with_empty(ranks)
}

impl<'env> Segment<'env> {
    /// Of the blocks of sums, of which this rank has reduced its own.
    fn new(
        reducer: &Reducer,
        (layout, own): (Layout, usize),
        mut sums: Vec<Chunk<'env, u8>>,
        output: Option<Chunk<'env, u8>>,
    ) -> Self {
        let part = sums[own].take();
        let Some(output) = output else { return Self { layout, blocks: sums, part, output: None } };
        let layout = layout.narrowed(reducer.size(), reducer.wide());
        let mut blocks = layout.split(output);
        let output = Some(blocks[own].take());
        Self { layout, blocks, part, output }
    }
}

async fn by_messages<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    let (inside, partial) = (inside(call), reducer.partial());
    let own = inside.rank() as usize;
    let (memory, output) = widened(call, reducer, memory)?;
    let layout = layout(call, reducer, memory.output.len());
    let input = memory.input.map(|input| layout.read(input));
    let mut sums = layout.split(memory.output);
    direct::reduce_scatter(&inside, &partial, input.as_deref(), (&mut sums[..], own), 0).await?;
    let Segment { mut blocks, part, output, .. } = Segment::new(reducer, (layout, own), sums, output);
    blocks[own] = between(call, reducer, part, output).await?;
    direct::all_gather(&inside, &mut blocks, 1).await?;
    Ok(Chunk::join_all(blocks))
}

/// Sums a segment inside the host, starts it between hosts, and copies the one of two stages before to all
/// ranks: so as many are on their way as lanes allow. All ranks of the host take the same steps.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    segments: Vec<Memory<'env>>,
) -> Result<Vec<Chunk<'env, u8>>> {
    const BEHIND: usize = IN_FLIGHT - 1;
    let own = places(call).place(call.rank()) as usize;
    let (mut lanes, mut waiting) = (Lanes::new(), VecDeque::with_capacity(IN_FLIGHT));
    let mut done = Vec::with_capacity(segments.len());
    let stages = segments.len() + BEHIND;
    let mut segments = segments.into_iter();
    for stage in 0..stages {
        if let Some(memory) = segments.next() {
            let summed = lanes.beside(sum_here(call, turn, reducer, memory)).await?;
            turn.slots().wake();
            let Segment { layout, blocks, part, output } = summed;
            waiting.push_back((layout, blocks));
            lanes.start(call, |lane| async move { between(&lane, reducer, part, output).await });
        }
        if stage >= BEHIND {
            let part = lanes.end().await?;
            let Some((layout, mut blocks)) = waiting.pop_front() else { continue };
            blocks[own] = part;
            let mut segment = Chunk::join_all(blocks);
            lanes.beside(host::all_gather_part(turn, None, &mut segment, layout.blocks())).await?;
            turn.slots().wake();
            done.push(segment);
        }
    }
    turn.finish();
    Ok(done)
}

/// Sums a part of a segment over the ranks of this host, over slots.
async fn sum_here<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    reducer: &Reducer,
    memory: Memory<'env>,
) -> Result<Segment<'env>> {
    let (own, partial) = (turn.place().rank as usize, reducer.partial());
    let (Memory { input, output: mut sums }, output) = widened(call, reducer, memory)?;
    let layout = layout(call, reducer, sums.len());
    let blocks = match input {
        Some(input) => {
            let mut blocks = layout.split(sums);
            let memory = (Some(input), &mut blocks[own][..]);
            host::reduce_scatter_part(turn, &partial, memory, layout.blocks()).await?;
            blocks
        }
        None => {
            host::reduce_scatter_part(turn, &partial, (None, &mut sums), layout.blocks()).await?;
            layout.split(sums)
        }
    };
    Ok(Segment::new(reducer, (layout, own), blocks, output))
}

/// Reduces this rank's part over the ranks at its place on all hosts, if they have one, and ends it: in
/// `output`, if elements of sums are wide.
async fn between<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    part: Chunk<'env, u8>,
    output: Option<Chunk<'env, u8>>,
) -> Result<Chunk<'env, u8>> {
    let (places, ranks) = (places(call), call.world_size());
    let place = places.place(call.rank());
    if place >= places.topology.least {
        return Ok(output.unwrap_or(part));
    }
    let Some(plan) = call.plan().across() else { unreachable!("there are several hosts") };
    // The part has the same length on all hosts.
    let (bytes, partial) = (part.len(), reducer.partial());
    let work = Work { bytes, wide_bytes: bytes, is_exact: partial.is_exact(), ..Work::default() };
    let algorithm = plan.choose(AllReduce::OPERATION, AllReduce::ROWS, &work);
    let across = call.among(places.across(place));
    if let Some(output) = output {
        if algorithm != Algorithm::Doubling {
            return in_narrow_results(&across, reducer, (part, output), ranks).await;
        }
        let part =
            flat_segment_of(&across, &partial, algorithm, Memory { input: None, output: part }).await?;
        return Ok(ended(reducer, part, Some(output), ranks));
    }
    let part = flat_segment_of(&across, &partial, algorithm, Memory { input: None, output: part }).await?;
    Ok(ended(reducer, part, None, ranks))
}

/// Direct exchange of sums, and of results that are shorter.
async fn in_narrow_results<'env>(
    across: &Call<'_, 'env>,
    reducer: &Reducer,
    (sums, output): (Chunk<'env, u8>, Chunk<'env, u8>),
    ranks: u32,
) -> Result<Chunk<'env, u8>> {
    let own = across.rank() as usize;
    let layout = Layout::of_lines(sums.len(), across.world_size(), reducer.wide());
    let mut results = layout.narrowed(reducer.size(), reducer.wide()).split(output);
    let mut sums = layout.split(sums);
    direct::reduce_scatter(across, &reducer.partial(), None, (&mut sums[..], own), 0).await?;
    results[own] = ended(reducer, sums[own].take(), Some(results[own].take()), ranks);
    direct::all_gather(across, &mut results, 1).await?;
    Ok(Chunk::join_all(results))
}
