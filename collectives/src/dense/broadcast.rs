//! Broadcast: every rank gets the root's vector.

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::{Collective, Place, by, check_length, check_root};
use crate::buffers::{Buffers, Memory, Sizes};
use crate::call::Call;
use crate::data::{DataType, Element};
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::in_lanes;
use crate::plan::{Algorithm, Cut, Estimate, Ground, Row, Work, always, by_hosts, fastest, over_slots};

/// A broadcast: the output of all ranks gets the input of the root, of equal length. In place that is the
/// output of the root. The input of other ranks is not looked at.
#[derive(Clone, Debug)]
pub struct Broadcast {
    element: u8,
    size: usize,
    root: u32,
}

impl Broadcast {
    /// A broadcast of elements of type `T` of `root`.
    #[must_use]
    pub fn new<T: Element>(root: u32) -> Self {
        Self::of(T::TYPE, root)
    }

    /// A broadcast of elements of a type of `root`.
    #[must_use]
    pub fn of(data: DataType, root: u32) -> Self {
        Self { element: data.number(), size: data.bytes(), root }
    }
}

/// Copies `data` of `root` to all ranks, inside the body of a call. The lengths are equal.
///
/// # Errors
/// Errors of the transport; `data` is lost.
pub async fn broadcast<'env, T: Element>(
    call: &Call<'_, 'env>,
    data: Chunk<'env, T>,
    root: u32,
) -> Result<Chunk<'env, T>> {
    call.run_in_place(&Broadcast::new::<T>(root), data).await
}

/// A tree of a radix. The last of the highest level may be missing.
fn tree(work: &Work, ground: &Ground, radix: u32) -> Estimate {
    Estimate::in_segments(work.bytes as f64, ground.slice_bytes as f64, |bytes| {
        let level = |children: u32| ground.messages(children.into(), f64::from(children) * bytes);
        let (mut all, mut ranks) = (Estimate::default(), ground.world_size);
        while ranks > 1 {
            all = all.then(level(radix.min(ranks) - 1));
            ranks = ranks.div_ceil(radix);
        }
        all
    })
}

/// A part to each rank, and from each to all others: ports that receive both are never idle.
fn spread(work: &Work, ground: &Ground) -> Estimate {
    let others = ground.ranks() - 1.0;
    Estimate::in_segments(work.bytes as f64, others * ground.slice_bytes as f64, |bytes| {
        let cut = Cut::new(bytes, others);
        let parts = ground.messages(others, cut.blocks * cut.block);
        let passed = ground.messages(others - 1.0, (others - 1.0) * cut.block);
        Estimate { bytes, port: parts.port, ..parts.then(passed) }
    })
}

/// To one rank of each host, by the fastest algorithm there, and from it to the others.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let (inside, across) = (ground.inside(ground.topology.most), ground.across(1));
    Estimate::in_segments(work.bytes as f64, ground.slice_bytes as f64, |bytes| {
        let part = Work { bytes: bytes as usize, wide_bytes: bytes as usize, ..*work };
        fastest(Broadcast::ROWS, &part, &across).1.then(tree(&part, &inside, 2))
    })
}

impl Collective for Broadcast {
    const OPERATION: Operation = Operation::BROADCAST;
    const ROWS: &'static [Row] = &[
        Row { algorithm: Algorithm::Binomial, fits: always, estimate: |work, ground| tree(work, ground, 2) },
        Row { algorithm: Algorithm::Knomial4, fits: always, estimate: |work, ground| tree(work, ground, 4) },
        Row { algorithm: Algorithm::Knomial8, fits: always, estimate: |work, ground| tree(work, ground, 8) },
        Row { algorithm: Algorithm::Spread, fits: |_, ground| ground.world_size > 2, estimate: spread },
        Row { algorithm: Algorithm::Hosts, fits: by_hosts, estimate: hosts },
        over_slots(|work, ground| ground.over_slots(work.bytes as f64)),
    ];

    fn check(&self, memory: Sizes, place: Place) -> Result<()> {
        check_root(self.root, place)?;
        if place.rank != self.root {
            return Ok(());
        }
        check_length("the broadcast vector", memory.output, memory.input(), self.size)
    }

    fn description(&self, memory: Sizes, _: Place) -> Description {
        let description = Description::new(Self::OPERATION, self.element, memory.output / self.size);
        Description { root: Some(Rank(self.root)), ..description }
    }

    fn work(&self, memory: Sizes, _: Place) -> Work {
        let bytes = memory.output;
        Work { bytes, wide_bytes: bytes, is_exact: true, ..Work::default() }
    }

    async fn run<'a, 'env>(
        &'a self,
        call: &'a Call<'a, 'env>,
        algorithm: Algorithm,
        mut memory: Memory<'env>,
    ) -> Result<Chunk<'env, u8>> {
        memory.input = memory.input.filter(|_| call.rank() == self.root);
        let slices = if algorithm == Algorithm::Spread { call.world_size() as usize - 1 } else { 1 };
        let segment = call.slice_bytes() * slices;
        let root = self.root;
        let run = |call: Call<'a, 'env>, memory: Memory<'env>| async move {
            by::broadcast(&call, algorithm, memory.loaded(), root).await
        };
        let segments = memory.segments(segment);
        if algorithm == Algorithm::Hosts {
            let done = by::hosts::broadcast(call, self.size, segments, root).await?;
            return Ok(Chunk::join_all(done));
        }
        in_lanes(call, segments, run).await.map(Chunk::join_all)
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
        let input = memory.input.filter(|_| turn.place().rank == self.root);
        host::broadcast(turn, input, memory.output, self.root).await
    }
}
