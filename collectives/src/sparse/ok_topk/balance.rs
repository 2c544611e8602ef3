//! Moves sums from their owners to other ranks, so that all hold as many for the all-gather.

use std::ops::Range;

use brevity_compress::SparseVec;

use super::Sums;
use super::state::Regions;
use super::threshold::is_uneven;
use crate::all_pairs::all_pairs;
use crate::call::Call;
use crate::error::Result;
use crate::sparse::message::{Message, Room, invalid};

/// The round of the messages.
pub(super) const ROUND: u32 = 1;

/// How many entries each rank holds for the all-gather.
#[derive(Debug)]
pub(super) struct Holdings {
    /// In rank order.
    entries: Vec<usize>,
    /// How they come there, if it pays to move them.
    pub(super) moves: Option<Moves>,
}

/// Where the entries of each owner go. All entries have places in the order of their indices, and each rank
/// holds an equal part of the places.
#[derive(Debug)]
pub(super) struct Moves {
    /// The places of each owner's entries.
    owned: Vec<Range<usize>>,
    /// The places that each rank holds.
    held: Vec<Range<usize>>,
}

impl Holdings {
    /// Of ranks that own so many entries.
    pub(super) fn new(owned: impl Iterator<Item = usize>) -> Self {
        let entries: Vec<usize> = owned.collect();
        if !is_uneven(entries.iter().map(|entries| *entries as u64)) {
            return Self { entries, moves: None };
        }
        let moves = Moves::new(&entries);
        Self { entries: moves.held.iter().map(ExactSizeIterator::len).collect(), moves: Some(moves) }
    }

    /// The entries of a rank.
    pub(super) fn of(&self, rank: u32) -> usize {
        self.entries.get(rank as usize).copied().unwrap_or(0)
    }

    /// The indices that the entries of a rank may have.
    pub(super) fn indices(&self, rank: u32, regions: &Regions) -> Range<usize> {
        let Some(moves) = &self.moves else { return regions.of(rank) };
        let owners = (0..moves.owned.len() as u32).filter(|owner| !moves.between(*owner, rank).is_empty());
        let places = owners.map(|owner| regions.of(owner));
        places.reduce(|all, region| all.start..region.end).unwrap_or(0..0)
    }

    /// The entries of the rank that has most.
    pub(super) fn most(&self) -> usize {
        self.entries.iter().copied().max().unwrap_or(0)
    }
}

impl Moves {
    fn new(entries: &[usize]) -> Self {
        let mut total = 0;
        let owned: Vec<_> = entries
            .iter()
            .map(|entries| {
                total += entries;
                total - entries..total
            })
            .collect();
        let ranks = entries.len();
        let cut = |rank: usize| (total as u128 * rank as u128 / ranks as u128) as usize;
        Self { owned, held: (0..ranks).map(|rank| cut(rank)..cut(rank + 1)).collect() }
    }

    /// The entries, by their number, that an owner sends to a holder.
    pub(super) fn between(&self, owner: u32, holder: u32) -> Range<usize> {
        let (owned, held) = (&self.owned[owner as usize], &self.held[holder as usize]);
        let start = owned.start.max(held.start);
        let end = owned.end.min(held.end).max(start);
        if start == end { 0..0 } else { start - owned.start..end - owned.start }
    }
}

/// Sends the `chosen` entries of this rank to those that hold them. Returns what this rank holds.
pub(super) async fn balance(
    call: &Call<'_, '_>,
    chosen: &SparseVec,
    moves: &Moves,
    regions: &Regions,
    sums: &mut Sums<'_>,
) -> Result<SparseVec> {
    let (rank, dim, wire) = (call.rank(), chosen.dim(), sums.coder.wire());
    let mut pieces: Vec<SparseVec> = (0..call.world_size()).map(|_| SparseVec::new(dim)).collect();
    pieces[rank as usize] = part(chosen, moves.between(rank, rank))?;
    let mut going = going(call, chosen, moves, sums)?;
    let send = |to: u32| {
        let message = going[to as usize].take();
        async move {
            match message {
                Some(message) => message.send(call, to, ROUND).await.map(drop),
                None => Ok(()),
            }
        }
    };
    let room = |from: u32| Room { dim, limit: moves.between(from, rank).len(), wire };
    let receive = |from: u32| async move {
        if room(from).limit == 0 {
            return Ok(None);
        }
        Message::Pairs(SparseVec::new(dim)).receive(call, from, ROUND, room(from)).await.map(Some)
    };
    all_pairs(call, send, receive, |from, message| {
        let Some(message) = message else { return Ok(()) };
        let piece = sums.coder.read(message, room(from)).map_err(|error| invalid(call, from, error))?;
        let region = regions.of(from);
        if piece.view().within(region.clone()).len() < piece.len() {
            return Err(call.refuse(from, format!("a sum with indices outside of {region:?}")));
        }
        pieces[from as usize] = piece;
        Ok(())
    })
    .await?;
    let mut held = SparseVec::with_capacity(dim, pieces.iter().map(SparseVec::len).sum());
    // Regions are in rank order.
    pieces.iter().for_each(|piece| held.append(piece.view()));
    Ok(held)
}

/// The messages of this rank to each holder, if it has entries for it.
fn going(
    call: &Call<'_, '_>,
    chosen: &SparseVec,
    moves: &Moves,
    sums: &mut Sums,
) -> Result<Vec<Option<Message>>> {
    let (rank, wire) = (call.rank(), sums.coder.wire());
    let mut going = Vec::with_capacity(call.world_size() as usize);
    for holder in 0..call.world_size() {
        let piece = part(chosen, moves.between(rank, holder))?;
        if holder == rank || piece.is_empty() {
            going.push(None);
            continue;
        }
        let (message, rounded) = call.computed(sums.coder.message(piece, wire))?;
        sums.keep(call, &rounded);
        going.push(Some(message));
    }
    Ok(going)
}

/// The entries with these numbers.
fn part(entries: &SparseVec, numbers: Range<usize>) -> Result<SparseVec> {
    let (indices, values) = (&entries.indices()[numbers.clone()], &entries.values()[numbers]);
    Ok(SparseVec::from_parts(entries.dim(), indices.to_vec(), values.to_vec())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_moves_to_one_holder_and_all_hold_as_many() {
        for entries in [vec![100, 0, 0, 0, 0, 0], vec![0, 3, 0, 90, 0, 1, 0], vec![0, 0, 0, 0, 0, 9]] {
            let (total, ranks) = (entries.iter().sum::<usize>(), entries.len() as u32);
            let holdings = Holdings::new(entries.iter().copied());
            let moves = holdings.moves.as_ref().unwrap();
            for (owner, &entries) in (0..).zip(&entries) {
                let sent = (0..ranks).map(|holder| moves.between(owner, holder));
                let sent: Vec<usize> = sent.flatten().collect();
                assert_eq!(sent, (0..entries).collect::<Vec<_>>());
            }
            for holder in 0..ranks {
                let held: usize = (0..ranks).map(|owner| moves.between(owner, holder).len()).sum();
                assert_eq!(held, holdings.of(holder));
                assert!(held.abs_diff(total / ranks as usize) <= 1, "{held} of {total}");
                // Regions of 10 indices each.
                let regions =
                    Regions::new(10 * ranks as usize, (1..u64::from(ranks)).map(|r| 10 * r).collect());
                let place = holdings.indices(holder, &regions);
                let of_owner = |owner: &u32| !moves.between(*owner, holder).is_empty();
                let owners: Vec<u32> = (0..ranks).filter(of_owner).collect();
                let ends = owners.first().zip(owners.last());
                let ends = ends.map_or(0..0, |(a, b)| 10 * *a as usize..10 * (*b as usize + 1));
                assert_eq!(place, ends);
            }
        }
    }

    #[test]
    fn entries_stay_where_they_are_spread() {
        let holdings = Holdings::new([4, 0, 1, 0, 0].into_iter());
        assert!(holdings.moves.is_none() && holdings.of(0) == 4 && holdings.most() == 4);
        let none = Holdings::new([0, 0].into_iter());
        assert!(none.moves.is_none() && none.most() == 0);
    }
}
