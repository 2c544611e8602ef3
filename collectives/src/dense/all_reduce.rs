//! All-reduce: every rank gets the elementwise reduction of all ranks' vectors.

use std::ops::ControlFlow;

use bytemuck::Pod;
use ucx_sys_wrap::buffer::Chunk;

use super::{Collective, Place, by, check_length};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{Element, ReduceOp, Reducer, Reduction};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::plan::{
    Algorithm, Cut, Estimate, Ground, Row, Topology, Work, always, any_order, by_hosts, fastest, over_slots,
};

/// An all-reduce: input and output are vectors of equal length.
#[derive(Clone, Debug)]
pub struct AllReduce {
    reducer: Reducer,
}

impl AllReduce {
    /// An all-reduce of elements of type `T`.
    ///
    /// # Errors
    /// [`Error::Reduction`](crate::Error::Reduction).
    pub fn new<T: Pod>(reduction: impl Into<Reduction<T>>) -> Result<Self> {
        reduction.into().reducer().map(Self::of)
    }

    /// An all-reduce of a reducer's elements.
    #[must_use]
    pub fn of(reducer: Reducer) -> Self {
        Self { reducer }
    }

    /// What ranks of an all-reduce of `count` elements must agree on.
    #[must_use]
    pub fn describe(&self, count: usize) -> Description {
        self.reducer.describe(Self::OPERATION, count)
    }
}

/// What ranks of an all-reduce must agree on.
#[must_use]
pub fn describe_all_reduce<T: Element>(count: usize, op: ReduceOp) -> Description {
    let description = Description::new(Operation::ALL_REDUCE, T::TYPE.number(), count);
    Description { reduction: op.number(), ..description }
}

/// Reduces `data` over all ranks, inside the body of a call. All ranks get the same bits, except for NaN
/// payloads of sums.
///
/// # Errors
/// [`Error::Reduction`](crate::Error::Reduction), before anything is sent; errors of the transport, and lack
/// of memory to receive into: `data` is lost.
pub async fn all_reduce<'env, T: Pod>(
    call: &Call<'_, 'env>,
    data: Chunk<'env, T>,
    reduction: impl Into<Reduction<T>>,
) -> Result<Chunk<'env, T>> {
    call.run_in_place(&AllReduce::new::<T>(reduction)?, data).await
}

/// What a reduction of `bytes` bytes is to do.
pub(super) fn work(reducer: &Reducer, bytes: usize) -> Work {
    let wide_bytes = bytes / reducer.size() * reducer.wide();
    Work { bytes, wide_bytes, is_exact: reducer.is_exact(), ..Work::default() }
}

impl Collective for AllReduce {
    const OPERATION: Operation = Operation::ALL_REDUCE;
    const ROWS: &'static [Row] = &[
        Row { algorithm: Algorithm::Doubling, fits: always, estimate: doubling },
        Row {
            algorithm: Algorithm::Halving,
            fits: |work, _| work.wide_bytes == work.bytes,
            estimate: halving,
        },
        Row { algorithm: Algorithm::Direct, fits: always, estimate: direct },
        Row { algorithm: Algorithm::Ring, fits: any_order, estimate: ring },
        Row { algorithm: Algorithm::Hosts, fits: by_hosts, estimate: hosts },
        over_slots(|work, ground| {
            let others = ground.ranks() - 1.0;
            ground.over_slots(2.0 * work.bytes as f64 * others / ground.ranks())
        }),
    ];

    fn check(&self, memory: Sizes, _: Place) -> Result<()> {
        let (found, expected) = (memory.output, memory.input());
        check_length("the reduced vector", found, expected, self.reducer.size())
    }

    fn description(&self, memory: Sizes, _: Place) -> Description {
        self.describe(memory.output / self.reducer.size())
    }

    fn work(&self, memory: Sizes, _: Place) -> Work {
        work(&self.reducer, memory.output)
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let size = self.reducer.size();
        let slices = match algorithm {
            Algorithm::Hosts => return by::hosts::all_reduce(call, &self.reducer, memory).await,
            Algorithm::Direct | Algorithm::Ring => call.world_size() as usize,
            _ => 2,
        };
        let segment = call.slice_bytes() / size * size * slices;
        if segment == 0 || memory.output.len() <= segment {
            return flat_segment_of(call, &self.reducer, algorithm, memory).await;
        }
        let run =
            |lane, memory| async move { flat_segment_of(&lane, &self.reducer, algorithm, memory).await };
        in_lanes(call, memory.segments(segment), run).await.map(Chunk::join_all)
    }

    fn element_bytes(&self) -> usize {
        self.reducer.size()
    }

    fn at_once(
        &self,
        turn: &mut SlotTurn<'_>,
        memory: &mut Buffers<'_>,
    ) -> ControlFlow<Result<()>, host::Rest> {
        host::at_once(turn, &self.reducer, memory.input, memory.output)
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        rest: host::Rest,
    ) -> Result<()> {
        host::all_reduce_rest(turn, &self.reducer, memory.input, memory.output, rest).await
    }
}

/// Recursive doubling of a vector of partial results, in one piece.
pub(super) fn doubled(bytes: f64, ground: &Ground) -> Estimate {
    let round = ground.message(bytes).computing(ground.combining(bytes));
    round.times(ground.world_size.ilog2()).then(guests(bytes, ground))
}

/// Guests send their vectors first, and get the result last.
fn guests(bytes: f64, ground: &Ground) -> Estimate {
    if ground.world_size.is_power_of_two() {
        return Estimate::default();
    }
    ground.message(bytes).times(2).computing(ground.combining(bytes))
}

/// Two messages of a segment are as long as a rank may send at once.
fn doubling(work: &Work, ground: &Ground) -> Estimate {
    Estimate::in_segments(work.bytes as f64, 2.0 * ground.slice_bytes as f64, |bytes| {
        doubled(bytes * work.widening(), ground)
    })
}

fn halving(work: &Work, ground: &Ground) -> Estimate {
    Estimate::in_segments(work.bytes as f64, 2.0 * ground.slice_bytes as f64, |bytes| {
        let mut all = Estimate::default();
        let mut part = bytes;
        for _ in 0..ground.world_size.ilog2() {
            part /= 2.0;
            all = all.then(ground.message(part).times(2).computing(ground.combining(part)));
        }
        all.then(guests(bytes, ground))
    })
}

fn direct(work: &Work, ground: &Ground) -> Estimate {
    Estimate::in_segments(work.bytes as f64, ground.ranks() * ground.slice_bytes as f64, |bytes| {
        let cut = Cut::new(bytes, ground.ranks());
        let combining = ground.combining((ground.ranks() - 1.0) * cut.block);
        ground.burst(cut.block).times(2).computing(combining)
    })
}

fn ring(work: &Work, ground: &Ground) -> Estimate {
    Estimate::in_segments(work.bytes as f64, ground.ranks() * ground.slice_bytes as f64, |bytes| {
        let block = Cut::new(bytes, ground.ranks()).block;
        ground.message(block).times(2).computing(ground.combining(block)).times(ground.world_size - 1)
    })
}

/// The sums of each host, in parts, between hosts by the fastest algorithm there, and to all of each host.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let Topology { least, most, .. } = ground.topology;
    let (inside, across) = (ground.inside(most), ground.across(least));
    let (parts, widening) = (f64::from(least), work.widening());
    Estimate::in_segments(work.bytes as f64, parts * ground.slice_bytes as f64 / widening, |bytes| {
        let block = Cut::new(bytes * widening, parts).block;
        let part = Work { bytes: block as usize, wide_bytes: block as usize, ..*work };
        let (algorithm, mut between) = fastest(AllReduce::ROWS, &part, &across);
        if widening > 1.0 && algorithm != Algorithm::Doubling {
            between = narrow_results(block, widening, &across);
        }
        // A rank of a host where all have a part sends and receives one less.
        let others = f64::from(most - 1);
        let sums = inside.messages(others, others * block).computing(ground.combining(others * block));
        sums.then(between).then(inside.messages(others, others * block / widening))
    })
}

/// A direct exchange of `bytes` bytes of sums, and of results that are shorter.
fn narrow_results(bytes: f64, widening: f64, ground: &Ground) -> Estimate {
    let cut = Cut::new(bytes, ground.ranks());
    let combining = ground.combining((ground.ranks() - 1.0) * cut.block);
    ground.burst(cut.block).computing(combining).then(ground.burst(cut.block / widening))
}

/// A segment of a vector, by an algorithm without levels.
pub(super) async fn flat_segment_of<'env>(
    call: &Call<'_, 'env>,
    reducer: &Reducer,
    algorithm: Algorithm,
    memory: Memory<'env>,
) -> Result<Chunk<'env, u8>> {
    match algorithm {
        Algorithm::Halving => return by::halving::all_reduce(call, reducer, memory).await,
        Algorithm::Direct | Algorithm::Ring => {}
        _ => return by::doubling::all_reduce(call, reducer, memory).await,
    }
    let layout = Layout::of_lines(memory.output.len(), call.world_size(), reducer.size());
    let input = memory.input.map(|input| layout.read(input));
    let mut blocks = layout.split(memory.output);
    let output = (&mut blocks[..], call.rank() as usize);
    if algorithm == Algorithm::Ring {
        by::ring::reduce_scatter(call, reducer, input.as_deref(), output).await?;
        by::ring::all_gather(call, &mut blocks, call.world_size()).await?;
    } else {
        by::direct::reduce_scatter(call, reducer, input.as_deref(), output, 0).await?;
        by::direct::all_gather(call, &mut blocks, 1).await?;
    }
    Ok(Chunk::join_all(blocks))
}
