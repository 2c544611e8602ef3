//! Reduce-scatter: every rank gets its block of the elementwise reduction of all ranks' vectors.

use bytemuck::Pod;
use ucx_sys_wrap::buffer::Chunk;

use super::all_reduce::{doubled, work};
use super::{Collective, Lengths, Place, by, check_length, whole_blocks};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{Reducer, Reduction};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::plan::{
    Algorithm, Estimate, Ground, Row, Topology, Work, always, any_order, by_hosts, over_slots,
};

/// A reduce-scatter: the input has a block for each rank, and the output is this rank's. In place the output
/// is the whole vector; its other blocks are unspecified afterwards.
#[derive(Clone, Debug)]
pub struct ReduceScatter {
    reducer: Reducer,
    lengths: Lengths,
}

impl ReduceScatter {
    /// A reduce-scatter of elements of type `T`.
    ///
    /// # Errors
    /// [`Error::Reduction`](crate::Error::Reduction).
    pub fn new<T: Pod>(reduction: impl Into<Reduction<T>>, lengths: Lengths) -> Result<Self> {
        Ok(Self::of(reduction.into().reducer()?, lengths))
    }

    /// A reduce-scatter of a reducer's elements.
    #[must_use]
    pub fn of(reducer: Reducer, lengths: Lengths) -> Self {
        Self { reducer, lengths }
    }

    fn layout(&self, memory: Sizes, world_size: u32) -> Result<Layout> {
        let each = match memory.input {
            Some(_) => memory.output,
            None => whole_blocks(memory.output, world_size, self.reducer.size()),
        };
        self.lengths.layout((each, self.reducer.size()), world_size)
    }
}

impl Collective for ReduceScatter {
    const OPERATION: Operation = Operation::REDUCE_SCATTER;
    const ROWS: &'static [Row] = &[
        Row {
            algorithm: Algorithm::Direct,
            fits: always,
            estimate: |work, ground| {
                Estimate::in_segments(work.bytes as f64, ground.slice_bytes as f64, |bytes| {
                    ground.burst(bytes).computing(ground.combining((ground.ranks() - 1.0) * bytes))
                })
            },
        },
        Row {
            algorithm: Algorithm::Doubling,
            fits: |work, _| !work.is_uneven,
            estimate: |work, ground| {
                let copied = ground.copying(work.bytes as f64 * ground.ranks());
                doubled(work.wide_bytes as f64 * ground.ranks(), ground).computing(copied)
            },
        },
        Row {
            algorithm: Algorithm::Ring,
            fits: any_order,
            estimate: |work, ground| {
                Estimate::in_segments(work.bytes as f64, ground.slice_bytes as f64, |bytes| {
                    let step = ground.message(bytes).computing(ground.combining(bytes));
                    step.times(ground.world_size - 1)
                })
            },
        },
        Row {
            algorithm: Algorithm::Hosts,
            fits: |work, ground| by_hosts(work, ground) && ground.topology.is_even(),
            estimate: hosts,
        },
        over_slots(|work, ground| ground.over_slots(work.bytes as f64 * (ground.ranks() - 1.0))),
    ];

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        let (layout, size) = (self.layout(memory, place.world_size)?, self.reducer.size());
        let Some(input) = memory.input else {
            return check_length("the vector", memory.output, layout.total(), size);
        };
        let own = layout.block(place.rank as usize).len();
        check_length("the block of this rank", memory.output, own, size)?;
        check_length("the vector", input, layout.total(), size)
    }

    fn description(&self, memory: Sizes, place: Place) -> Description {
        let count = match self.lengths {
            Lengths::Equal => self.work(memory, place).bytes / self.reducer.size(),
            Lengths::Each(_) => 0,
        };
        self.lengths.on_all_ranks(self.reducer.describe(Self::OPERATION, count))
    }

    fn work(&self, memory: Sizes, place: Place) -> Work {
        let longest = self.layout(memory, place.world_size).map_or(0, |layout| layout.longest());
        Work { is_uneven: self.lengths.is_uneven(), ..work(&self.reducer, longest) }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let (rank, reducer) = (call.rank() as usize, &self.reducer);
        let layout = self.layout(memory.sizes(), call.world_size())?;
        if algorithm == Algorithm::Doubling {
            return self.by_doubling(call, memory, &layout).await;
        }
        let input = memory.input.map(|input| layout.read(input));
        let output = match input {
            Some(_) => vec![memory.output],
            None => layout.split(memory.output),
        };
        let own = if input.is_some() { 0 } else { rank };
        let run = |call: Call<'a, 'env>, (input, mut output): Segment<'env>| async move {
            let blocks = (&mut output[..], own);
            match algorithm {
                Algorithm::Ring => by::ring::reduce_scatter(&call, reducer, input.as_deref(), blocks).await?,
                _ => by::direct::reduce_scatter(&call, reducer, input.as_deref(), blocks, 0).await?,
            }
            Ok(output)
        };
        let element = if algorithm == Algorithm::Hosts { reducer.wide() } else { reducer.size() };
        let slice = call.slice_bytes() / element * reducer.size();
        let segments = segments((input, output), layout.longest(), slice);
        if algorithm == Algorithm::Hosts {
            return Ok(join(by::hosts::reduce_scatter(call, reducer, segments).await?));
        }
        let done = in_lanes(call, segments, run).await?;
        Ok(join(done))
    }

    fn element_bytes(&self) -> usize {
        self.reducer.size()
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        _: host::Rest,
    ) -> Result<()> {
        let layout = self.layout(memory.sizes(), turn.world_size())?;
        host::reduce_scatter(turn, &self.reducer, memory.input, memory.output, layout.blocks()).await
    }
}

/// The sums of each host, of a block on each host to each rank, and then over the hosts.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let Topology { hosts, most, .. } = ground.topology;
    let (inside, across) = (ground.inside(most), ground.across(most));
    let segment = ground.slice_bytes as f64 / work.widening();
    Estimate::in_segments(work.bytes as f64, segment, |bytes| {
        let bytes = bytes * work.widening();
        let (sent, hosts) = (f64::from(most - 1) * f64::from(hosts), f64::from(hosts));
        let sums = inside.messages(sent, sent * bytes).computing(ground.combining(sent * bytes));
        sums.then(across.burst(bytes).computing(ground.combining((hosts - 1.0) * bytes)))
    })
}

impl ReduceScatter {
    /// Reduces all blocks on all ranks.
    async fn by_doubling<'env>(
        &self,
        call: &Call<'_, 'env>,
        memory: Memory<'env>,
        layout: &Layout,
    ) -> Result<Chunk<'env, u8>> {
        let mut all = call.scratch_chunk(layout.total())?;
        // A copy: the vector stays as it is.
        all.copy_from_slice(memory.input());
        let all = by::doubling::all_reduce(call, &self.reducer, Memory { input: None, output: all }).await?;
        let (own, mut output) = (layout.block(call.rank() as usize), memory.output);
        let into = if memory.input.is_some() { 0..own.len() } else { own.clone() };
        output[into].copy_from_slice(&all[own]);
        Ok(output)
    }
}

/// A part of the blocks of a vector: of the input, if that is apart, and of the output.
pub(super) type Segment<'env> = (Option<Vec<&'env [u8]>>, Vec<Chunk<'env, u8>>);

/// Cuts blocks into segments of at most `length` bytes of each block, unless that is 0. `longest` is the
/// length of the longest block of any rank, so that all ranks have as many segments.
pub(super) fn segments<'env>(
    (input, output): Segment<'env>,
    longest: usize,
    length: usize,
) -> Vec<Segment<'env>> {
    let count = if length == 0 { 1 } else { longest.div_ceil(length).max(1) };
    if count == 1 {
        return vec![(input, output)];
    }
    let cut =
        |bytes: usize, segment: usize| (segment * length).min(bytes)..((segment + 1) * length).min(bytes);
    let mut segments: Vec<Segment<'env>> = (0..count)
        .map(|segment| {
            let input = input.as_ref();
            (
                input.map(|blocks| blocks.iter().map(|block| &block[cut(block.len(), segment)]).collect()),
                Vec::new(),
            )
        })
        .collect();
    for block in output {
        let bytes = block.len();
        let pieces = block.split_into((0..count).map(|segment| cut(bytes, segment).len()));
        for (segment, piece) in segments.iter_mut().zip(pieces) {
            segment.1.push(piece);
        }
    }
    segments
}

/// Joins the outputs of segments.
pub(super) fn join(segments: Vec<Vec<Chunk<'_, u8>>>) -> Chunk<'_, u8> {
    let mut segments: Vec<_> = segments.into_iter().map(Vec::into_iter).collect();
    let blocks = segments.first().map_or(0, ExactSizeIterator::len);
    let mut next = || Chunk::join_all(segments.iter_mut().filter_map(Iterator::next));
    Chunk::join_all((0..blocks).map(|_| next()))
}
