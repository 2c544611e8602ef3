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

/// The position of a rank in a tree of a radix `k`, as an offset from the root (modulo the world size). For
/// `k = 2` it is a [`Binomial`] one.
///
/// The parent of an offset is the offset without its lowest digit to the base `k` that is not 0, and that
/// digit's place is the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knomial {
    offset: u32,
    root: u32,
    world_size: u32,
    radix: u32,
}

impl Knomial {
    /// The position of `rank` in the tree of `root`. The radix is at least 2.
    #[must_use]
    pub const fn new(rank: u32, root: u32, world_size: u32, radix: u32) -> Self {
        Self { offset: (rank + world_size - root) % world_size, root, world_size, radix }
    }

    /// The parent, and the round in which this rank communicates with it; `None` for the root.
    #[must_use]
    pub fn parent(self) -> Option<(u32, u32)> {
        let (round, power) = self.level()?;
        Some((self.rank_of(self.offset - self.offset / power % self.radix * power), round))
    }

    /// The children and their rounds, in the rising order of a reduction. A broadcast goes backwards.
    #[must_use]
    pub fn children(self) -> Vec<(u32, u32)> {
        let end = self.level().map_or(u32::MAX, |(_, power)| power);
        let mut children = Vec::new();
        let (mut power, mut round) = (1u32, 0);
        while power < end && power < self.world_size {
            for digit in 1..self.radix {
                let offset = u64::from(self.offset) + u64::from(digit) * u64::from(power);
                if offset < u64::from(self.world_size) {
                    children.push((self.rank_of(offset as u32), round));
                }
            }
            power = power.saturating_mul(self.radix);
            round += 1;
        }
        children
    }

    /// The place of the lowest digit of the offset that is not 0, and its power; `None` for the root.
    fn level(self) -> Option<(u32, u32)> {
        let (mut power, mut round) = (1, 0);
        if self.offset == 0 {
            return None;
        }
        while (self.offset / power).is_multiple_of(self.radix) {
            power *= self.radix;
            round += 1;
        }
        Some((round, power))
    }

    const fn rank_of(self, offset: u32) -> u32 {
        ((offset as u64 + self.root as u64) % self.world_size as u64) as u32
    }
}

/// The part of a rank in a reduction to `root` in the fixed [order](crate::data::order) of sums.
///
/// Ranks from `m` on, the largest power of two up to `P`, are guests: rank `m + i` gives its vector to rank
/// `i`, its keeper. The `m` members are numbered by the exclusive or with the root's number, which maps
/// aligned blocks of `2^j` ranks to aligned blocks. In level `l` a member whose number is a multiple of
/// `k^(l+1)` combines the results of those at distances `k^l`, `2 k^l`, up to `(k - 1) k^l`. A root that is a
/// guest changes places with its keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumTree {
    /// The rank that gives its vector to this one first, in round 0.
    pub guest: Option<u32>,
    /// The levels in which this rank combines.
    pub levels: Vec<Level>,
    /// Where the result goes.
    pub towards: Towards,
}

/// The children of a level of a [`SumTree`], in their order: with this rank, a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The ranks.
    pub children: Vec<u32>,
    /// The round of their messages.
    pub round: u32,
}

/// Where the result of a rank of a [`SumTree`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// To a parent.
    Root {
        /// The rank.
        parent: u32,
        /// The round of the message.
        round: u32,
    },
    /// This rank is the root.
    Nobody,
}

impl SumTree {
    /// The part of `rank`. The radix is a power of two.
    #[must_use]
    pub fn new(rank: u32, root: u32, world_size: u32, radix: u32) -> Self {
        let members = 1 << world_size.ilog2();
        let guests = world_size - members;
        let root_member = root & (members - 1);
        // The one of a pair that is a member of the tree: the keeper, unless the guest is the root.
        let acting = |member: u32| if member == root_member { root } else { member };
        let member = rank & (members - 1);
        if rank != acting(member) {
            let towards = Towards::Root { parent: acting(member), round: 0 };
            return Self { guest: None, levels: Vec::new(), towards };
        }
        let partner = if rank == member { member + members } else { member };
        let guest = (member < guests).then_some(partner);
        let number = member ^ root_member;
        let (mut levels, mut power, mut round) = (Vec::new(), 1, 1);
        while power < members {
            // The last level may have fewer.
            let width = radix.min(members / power);
            let digit = number / power % width;
            if digit != 0 {
                let parent = acting((number - digit * power) ^ root_member);
                return Self { guest, levels, towards: Towards::Root { parent, round } };
            }
            let children = (1..width).map(|digit| acting((number + digit * power) ^ root_member)).collect();
            levels.push(Level { children, round });
            power *= width;
            round += 1;
        }
        Self { guest, levels, towards: Towards::Nobody }
    }
}

/// The role of a rank in recursive doubling among any number of ranks.
///
/// With `half` the largest power of two that fits, rank `half + i` is a guest of rank `i`: it first sends its
/// data to it, and receives the result from it at the end. Results so have the fixed
/// [order](crate::data::order) of sums.
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
    rank: u32,
    half: u32,
}

impl Doubling {
    /// The role of `rank`.
    #[must_use]
    pub const fn new(rank: u32, world_size: u32) -> Self {
        let half = 1 << world_size.ilog2();
        if rank >= half {
            return Self::Guest { keeper: rank - half };
        }
        let guest = if rank + half < world_size { Some(rank + half) } else { None };
        Self::Member(Member { guest, rank, half })
    }
}

impl Member {
    /// The ranks to exchange with, in order of rounds.
    pub fn partners(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.half.ilog2()).map(move |round| self.rank ^ 1 << round)
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
