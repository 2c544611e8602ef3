//! Begins a server from what ranks of an earlier one have saved, also where these were others.

use std::ops::Range;

use brevity_compress::SparseVec;

use super::layout::ShardLayout;
use super::plan::Plan;
use super::saved::{Head, Saved, SavedShard, SavedWorker};
use super::seat::{Aside, Seat};
use super::shard::Shard;
use super::worker::Worker;
use crate::error::Result;

/// Gives a shard what was saved of its elements. Of several states the one with the highest clock counts.
pub(super) fn load_shard(shard: &mut Shard, all: &[Saved]) {
    let own = {
        let layout = &shard.plan.layout.shards[shard.number];
        layout.first..layout.first + layout.len
    };
    let mut states: Vec<(&Head, &SavedShard)> =
        all.iter().filter_map(|saved| Some((&saved.head, saved.shard.as_ref()?))).collect();
    states.sort_by_key(|(_, saved)| saved.clock);
    for (head, saved) in states {
        let range = head.range(head.shard as usize - 1);
        let (start, end) = (range.start.max(own.start), range.end.min(own.end));
        if start >= end {
            continue;
        }
        let (from, to) = (start - range.start..end - range.start, start - own.start..end - own.start);
        shard.model[to.clone()].copy_from_slice(&saved.model[from.clone()]);
        if !shard.squares.is_empty() && !saved.squares.is_empty() {
            shard.squares[to].copy_from_slice(&saved.squares[from]);
        }
        shard.clock = shard.clock.max(saved.clock);
        // The numbers of pushes hold for the same workers and the same cut.
        if range == own && saved.applied.len() == shard.clients.len() {
            for (client, applied) in shard.clients.iter_mut().zip(&saved.applied) {
                (client.applied, client.saved) = (*applied, *applied);
            }
        }
    }
}

/// Gives a worker the residuals that were saved by those whose number is its own, modulo the number of
/// workers, and the pushes that were not applied.
pub(super) fn load_worker(plan: &Plan, worker: &mut Worker, number: usize, all: &[Saved]) -> Result<()> {
    let workers = plan.roles.workers.len();
    for saved in all {
        let Some(SavedWorker { vectors, aside, steps }) = &saved.worker else { continue };
        let from = saved.head.worker as usize - 1;
        if from % workers != number {
            continue;
        }
        for seat in &mut worker.seats {
            absorb(plan, seat, vectors)?;
        }
        let is_same = saved.head.workers == workers as u64 && saved.head.servers == worker.seats.len() as u64;
        if is_same {
            worker.seats.iter_mut().zip(steps).for_each(|(seat, step)| seat.step = *step);
        }
        for (shard, step, push) in aside {
            if is_same {
                worker.seats[*shard].aside.push_back((*step, push.clone()));
                continue;
            }
            // The shards say now which they have applied. Of one that is not there nothing is known: at most
            // once.
            let of_shard = all.iter().filter(|other| other.head.shard as usize == shard + 1);
            let of_shard = of_shard.filter(|other| other.head.servers == saved.head.servers);
            let applied = of_shard.filter_map(|other| other.shard.as_ref()?.applied.get(from).copied()).max();
            if applied.is_some_and(|applied| *step > applied) {
                put_back(plan, &mut worker.seats, saved.head.range(*shard), push)?;
            }
        }
    }
    Ok(())
}

/// Adds a saved worker's vectors to the lanes of a shard.
fn absorb(plan: &Plan, seat: &mut Seat, vectors: &[Vec<f32>]) -> Result<()> {
    let layout = &plan.layout.shards[seat.shard];
    for (lane, range) in seat.lanes.iter_mut().zip(&layout.lanes) {
        let elements = layout.first + range.start..layout.first + range.end;
        let parts: Vec<&[f32]> = vectors.iter().map(|vector| &vector[elements.clone()]).collect();
        lane.absorb(&parts)?;
    }
    Ok(())
}

/// Puts a push back to shards that are cut otherwise than the one that it was for, which had these elements.
fn put_back(plan: &Plan, seats: &mut [Seat], elements: Range<usize>, push: &Aside) -> Result<()> {
    for seat in seats {
        let part = part_of(push, elements.start, &plan.layout.shards[seat.shard]);
        seat.put_back(plan, &part)?;
    }
    Ok(())
}

/// The entries of a push that are in a shard. Those of the push begin with element `first`.
fn part_of(push: &Aside, first: usize, layout: &ShardLayout) -> Aside {
    let own = layout.first..layout.first + layout.len;
    match push {
        Aside::Sparse(entries) => {
            let mut part = SparseVec::new(layout.len);
            for (index, value) in entries.iter() {
                let element = first + index as usize;
                if own.contains(&element) {
                    part.push((element - own.start) as u32, value);
                }
            }
            Aside::Sparse(part)
        }
        Aside::Dense(values) => {
            let mut part = vec![0.0; layout.len];
            for (element, value) in (first..).zip(values).filter(|(element, _)| own.contains(element)) {
                part[element - own.start] = *value;
            }
            Aside::Dense(part)
        }
    }
}
