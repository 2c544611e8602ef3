//! What gathering and scattering have in common: the blocks of all ranks, in a vector of one rank.

use ucx_sys_wrap::Rank;

use super::{Lengths, Place, check_length, check_root, whole_blocks};
use crate::buffers::Layout;
use crate::data::DataType;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::host::Blocks;
use crate::plan::{Algorithm, Estimate, Ground, Row, Topology, Work, always, fastest, over_slots};

/// The blocks of all ranks, in a vector of one rank.
#[derive(Clone, Debug)]
pub(super) struct AtRoot {
    element: u8,
    pub(super) size: usize,
    pub(super) root: u32,
    pub(super) lengths: Lengths,
}

/// The bytes of what a rank has: its block, unless that lies in the vector; and the vector, on the root.
pub(super) struct Parts {
    pub(super) block: Option<usize>,
    pub(super) vector: Option<usize>,
}

impl AtRoot {
    pub(super) fn of(data: DataType, root: u32, lengths: Lengths) -> Self {
        Self { element: data.number(), size: data.bytes(), root, lengths }
    }

    /// The layout of the vector.
    pub(super) fn layout(&self, parts: &Parts, world_size: u32) -> Result<Layout> {
        self.lengths.layout((self.each(parts, world_size), self.size), world_size)
    }

    /// The bytes of a block, if blocks are equal; otherwise 0.
    pub(super) fn each(&self, parts: &Parts, world_size: u32) -> usize {
        match (&self.lengths, parts.block) {
            (Lengths::Each(_), _) => 0,
            (Lengths::Equal, Some(block)) => block,
            (Lengths::Equal, None) => whole_blocks(parts.vector.unwrap_or(0), world_size, self.size),
        }
    }

    /// What a rank without the vector knows of the blocks.
    pub(super) fn known_blocks(&self, parts: &Parts, world_size: u32) -> Blocks<'static> {
        if self.lengths.is_uneven() { Blocks::Ends(&[]) } else { Blocks::Equal(self.each(parts, world_size)) }
    }

    /// Checks the root, and there the lengths. `vector` is the name of the vector.
    pub(super) fn check(&self, vector: &'static str, parts: &Parts, place: Place) -> Result<()> {
        check_root(self.root, place)?;
        let Some(bytes) = parts.vector else { return Ok(()) };
        let layout = self.layout(parts, place.world_size)?;
        if let Some(block) = parts.block {
            let own = layout.block(place.rank as usize).len();
            check_length("the block of this rank", block, own, self.size)?;
        }
        check_length(vector, bytes, layout.total(), self.size)
    }

    /// What all ranks of the call must agree on.
    pub(super) fn description(&self, operation: Operation, parts: &Parts, world_size: u32) -> Description {
        let count = self.each(parts, world_size) / self.size;
        let call = Description::new(operation, self.element, count);
        self.lengths.on_some_ranks(Description { root: Some(Rank(self.root)), ..call })
    }

    /// What there is to do.
    pub(super) fn work(&self, parts: &Parts, world_size: u32) -> Work {
        let bytes = self.each(parts, world_size);
        Work {
            bytes,
            wide_bytes: bytes,
            is_exact: true,
            is_uneven: self.lengths.is_uneven(),
            ..Work::default()
        }
    }
}

/// The algorithms.
pub(super) const ROWS: &[Row] = &[
    Row {
        algorithm: Algorithm::Linear,
        fits: always,
        // Only the root's host sends or receives all blocks.
        estimate: |work, ground| ground.burst_of_levels(work.bytes as f64, 1),
    },
    Row {
        algorithm: Algorithm::Binomial,
        fits: |work, _| !work.is_uneven,
        estimate: |work, ground| {
            let bytes = work.bytes as f64 * (ground.ranks() - 1.0);
            let waits = ground.message(0.0).times(ground.rounds().saturating_sub(1));
            waits.then(ground.message(bytes)).computing(2.0 * ground.copying(bytes))
        },
    },
    Row {
        algorithm: Algorithm::Hosts,
        fits: |work, ground| !work.is_uneven && ground.topology.has_levels(),
        estimate: hosts,
    },
    over_slots(|work, ground| ground.over_slots(work.bytes as f64 * (ground.ranks() - 1.0))),
];

/// The blocks of each host in one message.
fn hosts(work: &Work, ground: &Ground) -> Estimate {
    let (inside, across) = (ground.inside(ground.topology.most), ground.across(1));
    let (_, between) = fastest(ROWS, &of_hosts(work.bytes, &ground.topology), &across);
    let copied = ground.copying(work.bytes as f64 * ground.ranks());
    inside.burst(work.bytes as f64).then(between).computing(copied)
}

/// What there is to do between hosts, whose ranks have blocks of `bytes` bytes.
pub(super) fn of_hosts(bytes: usize, topology: &Topology) -> Work {
    let Topology { least, most, .. } = *topology;
    Work { is_uneven: least != most, ..Work::moving(bytes.saturating_mul(most as usize)) }
}
