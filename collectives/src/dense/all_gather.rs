//! All-gather: every rank gets all ranks' blocks.

use ucx_sys_wrap::buffer::Chunk;

use super::reduce_scatter::{join, segments};
use super::{Collective, Lengths, Place, by, check_length, whole_blocks};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::plan::{Algorithm, Estimate, Ground, Row, Topology, Work, always, over_slots};

/// An all-gather: the input is this rank's block, and the output has the blocks of all ranks. In place this
/// rank's block is in the output.
#[derive(Clone, Debug)]
pub struct AllGather {
    element: u8,
    size: usize,
    lengths: Lengths,
}

impl AllGather {
    /// An all-gather of elements of type `T`.
    #[must_use]
    pub fn new<T: Element>(lengths: Lengths) -> Self {
        Self::of(T::TYPE, lengths)
    }

    /// An all-gather of elements of a type.
    #[must_use]
    pub fn of(data: DataType, lengths: Lengths) -> Self {
        Self { element: data.number(), size: data.bytes(), lengths }
    }

    fn layout(&self, memory: Sizes, world_size: u32) -> Result<Layout> {
        let each = match memory.input {
            Some(input) => input,
            None => whole_blocks(memory.output, world_size, self.size),
        };
        self.lengths.layout((each, self.size), world_size)
    }
}

/// Gathers vectors of equal length, inside the body of a call. `all` holds `P` vectors, this rank's in its
/// place.
///
/// # Errors
/// Errors of the transport; `all` is lost.
pub async fn all_gather<'env, T: Element>(
    call: &Call<'_, 'env>,
    all: Chunk<'env, T>,
) -> Result<Chunk<'env, T>> {
    call.run_in_place(&AllGather::new::<T>(Lengths::Equal), all).await
}

impl Collective for AllGather {
    const OPERATION: Operation = Operation::ALL_GATHER;
    const ROWS: &'static [Row] = &[
        Row {
            algorithm: Algorithm::Direct,
            fits: always,
            estimate: |work, ground| {
                let segment = ground.slice_bytes as f64;
                Estimate::in_segments(work.bytes as f64, segment, |bytes| ground.burst(bytes))
            },
        },
        Row {
            algorithm: Algorithm::Bruck,
            fits: always,
            estimate: |work, ground| {
                let bytes = work.bytes as f64 * (ground.ranks() - 1.0);
                let waits = ground.message(0.0).times(ground.rounds().saturating_sub(1));
                waits.then(ground.message(bytes)).computing(ground.copying(bytes))
            },
        },
        Row {
            algorithm: Algorithm::Ring,
            fits: always,
            estimate: |work, ground| {
                let segment = ground.slice_bytes as f64;
                Estimate::in_segments(work.bytes as f64, segment, |bytes| {
                    ground.message(bytes).times(ground.world_size - 1)
                })
            },
        },
        Row { algorithm: Algorithm::Hosts, fits: |_, ground| ground.topology.is_even(), estimate: hosts },
        over_slots(|work, ground| ground.over_slots(work.bytes as f64 * (ground.ranks() - 1.0))),
    ];

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        let layout = self.layout(memory, place.world_size)?;
        if let Some(input) = memory.input {
            let own = layout.block(place.rank as usize).len();
            check_length("the block of this rank", input, own, self.size)?;
        }
        check_length("the gathered vector", memory.output, layout.total(), self.size)
    }

    fn description(&self, memory: Sizes, place: Place) -> Description {
        let count = match self.lengths {
            Lengths::Equal => self.work(memory, place).bytes / self.size,
            Lengths::Each(_) => 0,
        };
        self.lengths.on_all_ranks(Description::new(Self::OPERATION, self.element, count))
    }

    fn work(&self, memory: Sizes, place: Place) -> Work {
        let bytes = self.layout(memory, place.world_size).map_or(0, |layout| layout.longest());
        Work {
            bytes,
            wide_bytes: bytes,
            is_exact: true,
            is_uneven: self.lengths.is_uneven(),
            ..Work::default()
        }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let layout = self.layout(memory.sizes(), call.world_size())?;
        let mut output = memory.output;
        if let Some(input) = memory.input {
            // A copy: this rank's own block, the only one of gathering in place.
            output[layout.block(call.rank() as usize)].copy_from_slice(input);
        }
        if algorithm == Algorithm::Bruck {
            return by::bruck::all_gather(call, output, &layout).await;
        }
        let run = |call: Call<'a, 'env>, (_, mut blocks): (_, Vec<Chunk<'env, u8>>)| async move {
            match algorithm {
                Algorithm::Ring => by::ring::all_gather(&call, &mut blocks, 0).await?,
                _ => by::direct::all_gather(&call, &mut blocks, 0).await?,
            }
            Ok(blocks)
        };
        let segments = segments((None, layout.split(output)), layout.longest(), call.slice_bytes());
        if algorithm == Algorithm::Hosts {
            let segments = segments.into_iter().map(|(_, blocks)| blocks).collect();
            return Ok(join(by::hosts::all_gather(call, self.size, segments).await?));
        }
        Ok(join(in_lanes(call, segments, run).await?))
    }

    fn element_bytes(&self) -> usize {
        self.size
    }

    async fn run_on_host<'a, 'b, 'env>(
        &'a self,
        turn: &'a mut SlotTurn<'b>,
        memory: &'a mut Buffers<'env>,
        _: host::Rest,
    ) -> Result<()> {
        let layout = self.layout(memory.sizes(), turn.world_size())?;
        host::all_gather(turn, memory.input, memory.output, layout.blocks()).await
    }
}

/// The blocks of one rank of each host, and then those of the ranks of this host.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let Topology { hosts, most, .. } = ground.topology;
    let (inside, across) = (ground.inside(most), ground.across(most));
    let segment = ground.slice_bytes as f64;
    Estimate::in_segments(work.bytes as f64, segment, |bytes| {
        let others = f64::from(most - 1) * f64::from(hosts);
        across.burst(bytes).then(inside.messages(others, others * bytes))
    })
}
