//! All-to-all by hosts.
//!
//! First between hosts: a rank sends the one at its place of every other host the blocks for all ranks there,
//! in one message. Then inside: it passes each rank of its host what has come for that one from all hosts. So
//! a rank sends `H - 1` and `L - 1` messages, where a direct exchange sends P - 1.
//!
//! J. L. Träff, A. Rougier, "MPI collectives and datatypes for hierarchical all-to-all communication", 2014.

use std::sync::Arc;

use ucx_sys_wrap::buffer::Chunk;

use super::{inside, places, slots};
use crate::buffers::{Layout, Memory};
use crate::call::Call;
use crate::dense::all_to_all::{AllToAll, flat};
use crate::dense::reduce_scatter::Segment;
use crate::dense::{Collective, by::direct};
use crate::error::Result;
use crate::host::{self, SlotTurn};
use crate::lanes::{Lanes, in_lanes};
use crate::plan::Work;

/// Exchanges equal blocks, in these segments. Every host has as many ranks.
pub(in crate::dense) async fn all_to_all<'a, 'env>(
    call: &Call<'a, 'env>,
    size: usize,
    segments: Vec<Segment<'env>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    let way = &Way::new(call);
    if let Some((mut place, terms)) = slots(call, size) {
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        return over_slots(call, &mut turn, way, segments).await;
    }
    let run = |lane: Call<'a, 'env>, (input, mut output): Segment<'env>| async move {
        let come = way.between(&lane, input.as_deref(), &output).await?;
        let inside = inside(&lane);
        let mut parts = way.inside(come.len()).split(come);
        direct::exchange(&inside, &mut parts).await?;
        way.unpack(&Chunk::join_all(parts), &mut output);
        Ok(output)
    };
    in_lanes(call, segments, run).await
}

/// While some segments are on their way between hosts, one that has come is passed on inside.
async fn over_slots<'env>(
    call: &Call<'_, 'env>,
    turn: &mut SlotTurn<'_>,
    way: &Way,
    segments: Vec<Segment<'env>>,
) -> Result<Vec<Vec<Chunk<'env, u8>>>> {
    let mut lanes = Lanes::new();
    let mut done = Vec::with_capacity(segments.len());
    let mut segments = segments.into_iter();
    loop {
        while !lanes.are_full()
            && let Some((input, output)) = segments.next()
        {
            lanes.start(call, |lane| async move {
                let come = way.between(&lane, input.as_deref(), &output).await?;
                Ok((come, output))
            });
        }
        if lanes.is_empty() {
            break;
        }
        let (mut come, mut output) = lanes.end().await?;
        lanes.beside(host::all_to_all_part(turn, &mut come)).await?;
        turn.slots().wake();
        way.unpack(&come, &mut output);
        done.push(output);
    }
    turn.finish();
    Ok(done)
}

/// The way of the blocks of a rank.
struct Way {
    /// The ranks at each place of the hosts.
    rows: Vec<Arc<[u32]>>,
    /// This rank's place.
    place: usize,
    hosts: usize,
}

impl Way {
    fn new(call: &Call<'_, '_>) -> Self {
        let places = places(call);
        Self {
            rows: (0..places.topology.least).map(|place| places.across(place)).collect(),
            place: places.place(call.rank()) as usize,
            hosts: places.topology.hosts as usize,
        }
    }

    /// The ranks with their hosts and places.
    fn ranks(&self) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let of = |(place, row): (usize, &'_ Arc<[u32]>)| {
            let ranks: Vec<_> = row.iter().map(|rank| *rank as usize).collect();
            ranks.into_iter().enumerate().map(move |(host, rank)| (rank, host, place))
        };
        self.rows.iter().enumerate().flat_map(of)
    }

    /// The layout of blocks of `bytes` in all, for the ranks of this host.
    fn inside(&self, bytes: usize) -> Layout {
        Layout::Equal { bytes: bytes / self.rows.len(), ranks: self.rows.len() }
    }

    /// Exchanges blocks with the ranks at this place of all hosts. Returns those for the ranks of this host,
    /// in their order; those for one rank are in the order of hosts.
    async fn between<'env>(
        &self,
        call: &Call<'_, 'env>,
        input: Option<&[&[u8]]>,
        output: &[Chunk<'env, u8>],
    ) -> Result<Chunk<'env, u8>> {
        let (places, bytes) = (self.rows.len(), output.first().map_or(0, |block| block.len()));
        let mut packed = call.scratch_chunk(places * self.hosts * bytes)?;
        for (rank, host, place) in self.ranks() {
            let block = input.map_or_else(|| &output[rank][..], |input| input[rank]);
            // A copy: one message for all ranks of a host.
            packed[(host * places + place) * bytes..][..bytes].copy_from_slice(block);
        }
        let Some(plan) = call.plan().across() else { unreachable!("there are several hosts") };
        let part = Layout::Equal { bytes: places * bytes, ranks: self.hosts };
        let work = Work::moving(part.longest());
        let algorithm = plan.choose(AllToAll::OPERATION, AllToAll::ROWS, &work);
        let across = call.among(Arc::clone(&self.rows[self.place]));
        let memory = Memory { input: None, output: packed };
        let come = flat(&across, algorithm, memory, (&part, &part)).await?;
        let mut sorted = call.scratch_chunk(come.len())?;
        for (_, host, place) in self.ranks() {
            let from = &come[(host * places + place) * bytes..][..bytes];
            // A copy: one message for a rank of this host.
            sorted[(place * self.hosts + host) * bytes..][..bytes].copy_from_slice(from);
        }
        Ok(sorted)
    }

    /// Puts what has come from the ranks of this host, of those at their places, where it belongs.
    fn unpack(&self, come: &[u8], output: &mut [Chunk<'_, u8>]) {
        for (rank, host, place) in self.ranks() {
            let block = &mut output[rank];
            let bytes = block.len();
            // A copy: from the order of places to that of ranks.
            block.copy_from_slice(&come[(place * self.hosts + host) * bytes..][..bytes]);
        }
    }
}
