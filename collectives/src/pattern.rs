//! Rank arithmetic of the communication patterns.

use std::ops::Range;

/// The rank after `rank` on a ring.
#[must_use]
pub const fn ring_successor(rank: u32, world_size: u32) -> u32 {
    (rank + 1) % world_size
}

/// The rank before `rank` on a ring.
#[must_use]
pub const fn ring_predecessor(rank: u32, world_size: u32) -> u32 {
    (rank + world_size - 1) % world_size
}

/// The chunk `steps` before that of `rank` on a ring.
#[must_use]
pub const fn ring_chunk(rank: u32, steps: u32, world_size: u32) -> usize {
    ((rank + world_size - steps % world_size) % world_size) as usize
}

/// The elements of chunk `index` if `count` elements are cut into `pieces` by rounding up: the last may be
/// shorter or empty.
#[must_use]
pub fn chunk_range(count: usize, pieces: u32, index: usize) -> Range<usize> {
    let length = count.div_ceil(pieces as usize);
    (index * length).min(count)..((index + 1) * length).min(count)
}

/// The rounds in which a value reaches `world_size` ranks if each round doubles its holders: `ceil(log2 P)`.
#[must_use]
pub const fn doubling_rounds(world_size: u32) -> u32 {
    u32::BITS - world_size.saturating_sub(1).leading_zeros()
}

/// The position of a rank in a binomial tree, as an offset from the root (modulo the world size).
///
/// The parent of an offset is the offset without its lowest set bit, and that bit's number is the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binomial {
    offset: u32,
    root: u32,
    world_size: u32,
}

impl Binomial {
    /// The position of `rank` in the tree of `root`.
    #[must_use]
    pub const fn new(rank: u32, root: u32, world_size: u32) -> Self {
        Self { offset: (rank + world_size - root) % world_size, root, world_size }
    }

    /// The parent, and the round in which this rank communicates with it; `None` for the root.
    #[must_use]
    pub fn parent(self) -> Option<(u32, u32)> {
        (self.offset != 0).then(|| {
            let round = self.offset.trailing_zeros();
            (self.rank_of(self.offset & (self.offset - 1)), round)
        })
    }

    /// The children and their rounds, in the rising order of a reduction. A broadcast goes backwards.
    pub fn children(self) -> impl DoubleEndedIterator<Item = (u32, u32)> {
        let own = if self.offset == 0 { u32::BITS } else { self.offset.trailing_zeros() };
        (0..doubling_rounds(self.world_size).min(own)).filter_map(move |round| {
            let offset = self.offset.checked_add(1 << round)?;
            (offset < self.world_size).then(|| (self.rank_of(offset), round))
        })
    }

    const fn rank_of(self, offset: u32) -> u32 {
        (offset + self.root) % self.world_size
    }
}

/// The role of a rank in recursive doubling among any number of ranks.
///
/// With `half` the largest power of two that fits, `world_size - half` ranks are guests: the even ones below
/// twice that number. A guest first sends its data to its right local peer, and receives the result from it
/// at the end. So every rank first communicates with a ring local peer, as in a barrier and in a ring, and
/// ranks that make different calls detect it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubling {
    /// Sends its data to `keeper` and gets the result from it.
    Guest {
        /// The rank that represents this one.
        keeper: u32,
    },
    /// Exchanges with one other member per round.
    Member(Member),
}

/// A rank that exchanges; see [`Doubling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The rank that this one represents.
    pub guest: Option<u32>,
    place: u32,
    guests: u32,
    half: u32,
}

impl Doubling {
    /// The role of `rank`.
    #[must_use]
    pub const fn new(rank: u32, world_size: u32) -> Self {
        let half = 1 << world_size.ilog2();
        let guests = world_size - half;
        if rank >= 2 * guests {
            return Self::Member(Member { guest: None, place: rank - guests, guests, half });
        }
        if rank.is_multiple_of(2) {
            return Self::Guest { keeper: rank + 1 };
        }
        Self::Member(Member { guest: Some(rank - 1), place: rank / 2, guests, half })
    }
}

impl Member {
    /// The ranks to exchange with, in order of rounds.
    pub fn partners(self) -> impl Iterator<Item = u32> {
        (0..self.half.ilog2()).map(move |round| {
            let place = self.place ^ 1 << round;
            if place < self.guests { 2 * place + 1 } else { place + self.guests }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_close() {
        for world_size in 1..=33 {
            for rank in 0..world_size {
                assert_eq!(ring_predecessor(ring_successor(rank, world_size), world_size), rank);
                assert_eq!(ring_chunk(rank, 0, world_size), rank as usize);
                assert_eq!(ring_chunk(rank, 1, world_size), ring_predecessor(rank, world_size) as usize);
                assert_eq!(ring_chunk(rank, world_size, world_size), rank as usize);
            }
        }
    }

    #[test]
    fn chunks_cover_everything_once() {
        for world_size in 1..=33 {
            for count in [0, 1, 2, 31, 32, 33, 1000] {
                let mut next = 0;
                for index in 0..world_size as usize {
                    let range = chunk_range(count, world_size, index);
                    assert_eq!(range.start, next.min(count));
                    next = range.end;
                }
                assert_eq!(next, count);
            }
        }
    }

    #[test]
    fn every_rank_but_the_root_has_one_parent_that_knows_it() {
        for world_size in 1..=33 {
            for root in 0..world_size {
                let mut found = 0;
                for rank in 0..world_size {
                    let place = Binomial::new(rank, root, world_size);
                    match place.parent() {
                        None => assert_eq!(rank, root),
                        Some((parent, round)) => {
                            let children: Vec<_> =
                                Binomial::new(parent, root, world_size).children().collect();
                            assert!(
                                children.contains(&(rank, round)),
                                "P={world_size} root={root} rank={rank}"
                            );
                        }
                    }
                    let rounds: Vec<_> = place.children().map(|(_, round)| round).collect();
                    assert!(
                        rounds.is_sorted() && rounds.iter().all(|&round| round < doubling_rounds(world_size))
                    );
                    found += rounds.len();
                }
                assert_eq!(found as u32, world_size - 1);
            }
        }
    }

    #[test]
    fn a_parent_hears_a_child_after_the_child_has_heard_its_own() {
        for world_size in 1..=33 {
            for rank in 0..world_size {
                let place = Binomial::new(rank, 0, world_size);
                if let Some((_, round)) = place.parent() {
                    assert!(place.children().all(|(_, earlier)| earlier < round));
                }
            }
        }
    }

    #[test]
    fn doubling_pairs_guests_with_members_and_members_with_each_other() {
        for world_size in 1..=33u32 {
            let mut members = 0;
            for rank in 0..world_size {
                let member = match Doubling::new(rank, world_size) {
                    Doubling::Guest { keeper } => {
                        let keeper = Doubling::new(keeper, world_size);
                        assert!(matches!(keeper, Doubling::Member(member) if member.guest == Some(rank)));
                        continue;
                    }
                    Doubling::Member(member) => member,
                };
                members += 1;
                assert!(member.guest.is_none_or(|guest| {
                    guest + 1 == rank && Doubling::new(guest, world_size) == Doubling::Guest { keeper: rank }
                }));
                for (round, partner) in member.partners().enumerate() {
                    let Doubling::Member(partner) = Doubling::new(partner, world_size) else {
                        panic!("a guest")
                    };
                    assert_eq!(partner.partners().nth(round), Some(rank));
                }
                assert!(member.partners().next().is_none_or(|first| first.abs_diff(rank) <= 2));
            }
            assert_eq!(members, 1 << world_size.ilog2());
        }
    }

    #[test]
    fn after_all_rounds_of_doubling_every_member_has_everything() {
        for world_size in 1..=33u32 {
            let parts = (0..world_size).map(|rank| Doubling::new(rank, world_size));
            let mut known: Vec<Vec<u32>> = (0..world_size).map(|rank| vec![rank]).collect();
            let mut partners: Vec<Vec<u32>> = Vec::new();
            for (rank, part) in parts.enumerate() {
                partners.push(match part {
                    Doubling::Guest { .. } => Vec::new(),
                    Doubling::Member(member) => {
                        known[rank].extend(member.guest);
                        member.partners().collect()
                    }
                });
            }
            for round in 0..world_size.ilog2() as usize {
                let before = known.clone();
                for (rank, partners) in partners.iter().enumerate() {
                    known[rank]
                        .extend(partners.get(round).iter().flat_map(|partner| &before[**partner as usize]));
                }
            }
            for (rank, known) in known.iter_mut().enumerate().filter(|(rank, _)| !partners[*rank].is_empty())
            {
                known.sort_unstable();
                assert_eq!(*known, (0..world_size).collect::<Vec<_>>(), "P = {world_size}, rank {rank}");
            }
        }
    }

    #[test]
    fn rounds_are_logarithms_rounded_up() {
        for (world_size, rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)] {
            assert_eq!(doubling_rounds(world_size), rounds);
        }
    }
}
