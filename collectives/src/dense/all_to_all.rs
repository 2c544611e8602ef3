//! All-to-all: every rank sends every rank a block.

use ucx_sys_wrap::buffer::Chunk;

use super::reduce_scatter::{join, segments};
use super::{Collective, Lengths, Place, by, check_length, whole_blocks};
use crate::buffers::{Buffers, Layout, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::host::{self, SlotTurn};
use crate::plan::{Algorithm, Estimate, Ground, Row, Topology, Work, always, fastest, over_slots};

/// An all-to-all: block `i` of the input goes to rank `i`, and block `i` of the output comes from it. In
/// place the output is the input.
///
/// With lengths of their own, each rank knows those of the blocks that it sends and receives. In place both
/// are the same.
#[derive(Clone, Debug)]
pub struct AllToAll {
    element: u8,
    size: usize,
    sent: Lengths,
    received: Lengths,
}

impl AllToAll {
    /// An all-to-all of elements of type `T`. The lengths of the blocks that are sent and received are both
    /// equal, or both not.
    #[must_use]
    pub fn new<T: Element>(sent: Lengths, received: Lengths) -> Self {
        Self::of(T::TYPE, sent, received)
    }

    /// An all-to-all of elements of a type.
    #[must_use]
    pub fn of(data: DataType, sent: Lengths, received: Lengths) -> Self {
        Self { element: data.number(), size: data.bytes(), sent, received }
    }

    /// The layouts of input and output.
    fn layouts(&self, memory: Sizes, world_size: u32) -> Result<(Layout, Layout)> {
        let each = (whole_blocks(memory.output, world_size, self.size), self.size);
        Ok((self.sent.layout(each, world_size)?, self.received.layout(each, world_size)?))
    }
}

impl Collective for AllToAll {
    const OPERATION: Operation = Operation::ALL_TO_ALL;
    const ROWS: &'static [Row] = &[
        Row { algorithm: Algorithm::Pairwise, fits: always, estimate: pairwise },
        Row {
            algorithm: Algorithm::Direct,
            fits: |work, ground| !work.is_uneven && ground.world_size <= 32,
            estimate: |work, ground| ground.burst_of_levels(work.bytes as f64, ground.topology.most),
        },
        Row {
            algorithm: Algorithm::Bruck,
            fits: |work, _| !work.is_uneven,
            estimate: |work, ground| {
                let mut all = Estimate::default();
                for round in 0..ground.rounds() {
                    // Blocks whose distance has this bit.
                    let (hop, ranks) = (1u64 << round, u64::from(ground.world_size));
                    let blocks = ranks / (2 * hop) * hop + (ranks % (2 * hop)).saturating_sub(hop);
                    let bytes = work.bytes as f64 * blocks as f64;
                    all = all.then(ground.message(bytes).computing(2.0 * ground.copying(bytes)));
                }
                all
            },
        },
        Row {
            algorithm: Algorithm::Hosts,
            fits: |work, ground| !work.is_uneven && ground.topology.is_even(),
            estimate: hosts,
        },
        over_slots(|work, ground| ground.over_slots(work.bytes as f64 * (ground.ranks() - 1.0))),
    ];

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        let lists = |lengths: &Lengths| usize::from(lengths.is_uneven()) * place.world_size as usize;
        let (sent, received) = (lists(&self.sent), lists(&self.received));
        if sent != received {
            let what = "the list of received lengths (list both or neither)";
            return Err(Error::Length { what, found: received, expected: sent });
        }
        let (sent, received) = self.layouts(memory, place.world_size)?;
        check_length("the received vector", memory.output, received.total(), self.size)?;
        match memory.input {
            Some(input) => {
                check_length("the sent vector", input, sent.total(), self.size)?;
                let own = place.rank as usize;
                let (sent, received) = (sent.block(own).len(), received.block(own).len());
                check_length("the block of this rank to itself", sent, received, self.size)
            }
            None if self.sent == self.received => Ok(()),
            None => {
                let differs = |rank: &usize| sent.block(*rank).len() != received.block(*rank).len();
                let rank = (0..sent.ranks()).find(differs).unwrap_or_default();
                let (sent, received) = (sent.block(rank).len(), received.block(rank).len());
                check_length("a block in place", sent, received, self.size)
            }
        }
    }

    fn description(&self, memory: Sizes, place: Place) -> Description {
        let count = self.work(memory, place).bytes / self.size;
        self.sent.on_some_ranks(Description::new(Self::OPERATION, self.element, count))
    }

    fn work(&self, memory: Sizes, place: Place) -> Work {
        let is_uneven = self.sent.is_uneven();
        let bytes = match is_uneven {
            true => 0,
            false => whole_blocks(memory.output, place.world_size, self.size),
        };
        Work { bytes, wide_bytes: bytes, is_exact: true, is_uneven, ..Work::default() }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        let (sent, received) = self.layouts(memory.sizes(), call.world_size())?;
        if algorithm != Algorithm::Hosts {
            return flat(call, algorithm, memory, (&sent, &received)).await;
        }
        let ranks = call.plan().ground.topology.most as usize;
        let slice = match call.slice_bytes() {
            0 => 0,
            bytes => (bytes / ranks / self.size).max(1) * self.size,
        };
        let blocks = (memory.input.map(|input| sent.read(input)), received.split(memory.output));
        let segments = segments(blocks, received.longest(), slice);
        by::hosts::all_to_all(call, self.size, segments).await.map(join)
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
        let (sent, received) = self.layouts(memory.sizes(), turn.world_size())?;
        host::all_to_all(turn, memory.input, memory.output, (sent.blocks(), received.blocks())).await
    }
}

/// By an algorithm without levels.
pub(super) async fn flat<'env>(
    call: &Call<'_, 'env>,
    algorithm: Algorithm,
    memory: Memory<'env>,
    (sent, received): (&Layout, &Layout),
) -> Result<Chunk<'env, u8>> {
    let mut output = memory.output;
    if algorithm == Algorithm::Bruck {
        let bytes = received.block(0).len();
        let kept;
        let input = match memory.input {
            Some(input) => input,
            None => {
                let mut copy = call.scratch::<u8>(output.len())?;
                copy.copy_from_slice(&output);
                kept = copy;
                &kept[..]
            }
        };
        by::bruck::all_to_all(call, input, &mut output, bytes).await?;
        return Ok(output);
    }
    let mut blocks = received.split(output);
    match memory.input {
        None if algorithm == Algorithm::Direct => by::direct::exchange(call, &mut blocks).await?,
        None => by::pairwise::exchange(call, &mut blocks).await?,
        Some(input) if algorithm == Algorithm::Direct => {
            by::direct::all_to_all(call, &sent.read(input), &mut blocks).await?
        }
        Some(input) => by::pairwise::all_to_all(call, &sent.read(input), &mut blocks).await?,
    }
    Ok(Chunk::join_all(blocks))
}

/// Two partners a round, and one in the last round of an odd number of partners; those of this host over its
/// own links.
fn pairwise(work: &Work, ground: &Ground) -> Estimate {
    let bytes = work.bytes as f64;
    let with = |ground: &Ground, partners: u32| {
        ground.messages(2.0, 2.0 * bytes).times(partners / 2).then(ground.message(bytes).times(partners % 2))
    };
    if !ground.topology.has_levels() {
        return with(ground, ground.world_size - 1);
    }
    let most = ground.topology.most;
    with(&ground.inside(most), most - 1).then(with(&ground.across(most), ground.world_size - most))
}

/// The blocks for all ranks of a host in one message, and then those for each rank of this one. A block is
/// copied when it is packed, between the two, and where it belongs.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let Topology { hosts, most, .. } = ground.topology;
    let (inside, across) = (ground.inside(most), ground.across(most));
    let segment = ground.slice_bytes as f64 / f64::from(most);
    Estimate::in_segments(work.bytes as f64, segment, |bytes| {
        let of_host = f64::from(most) * bytes;
        let (_, between) = fastest(AllToAll::ROWS, &Work::moving(of_host as usize), &across);
        let passed = inside.burst(f64::from(hosts) * bytes);
        between.then(passed).computing(3.0 * ground.copying(f64::from(hosts) * of_host))
    })
}
