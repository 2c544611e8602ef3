//! The dense collectives: their names, the lengths of their vectors, and what each rank gives and gets.
//!
//! With `P` ranks, the bytes of a row are those
//!
//! - of the vector that every rank has in a broadcast, a reduce, an all-reduce, and of all parts together in
//!   a reduce-scatter;
//! - of one rank's part in an all-gather, a gather, a scatter, and from one rank to another in an all-to-all,
//!   in which the longest vector has `P` parts.
//!
//! The root is rank 0. An all-reduce and a broadcast are in place, the others are not.

mod ours;
mod tight;

use std::fmt;

use brevity::Element;
use half::{bf16, f16};

use crate::oracle::{self, EXACT};

pub use ours::{Entry, Started, entry, measured};
pub use tight::{all_reduce, broadcast, hang, microseconds_since_epoch};

/// The rank that has what all get, or gets what all have.
pub const ROOT: u32 = 0;

/// A dense collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Waits for all ranks.
    Barrier,
    /// The root's vector to all.
    Broadcast,
    /// The sum of all ranks' vectors to the root.
    Reduce,
    /// The sum of all ranks' vectors to all.
    AllReduce,
    /// To each rank its part of the sum of all ranks' vectors.
    ReduceScatter,
    /// All ranks' vectors to all.
    AllGather,
    /// All ranks' vectors to the root.
    Gather,
    /// To each rank its part of the root's vector.
    Scatter,
    /// From each rank a part to each rank.
    AllToAll,
}

/// A rank among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
}

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors<T> {
    /// What the rank gives; empty in place, and where it gives nothing.
    pub input: Vec<T>,
    /// What the rank gets; empty where it gets nothing.
    pub output: Vec<T>,
}

impl<T> Default for Vectors<T> {
    fn default() -> Self {
        Self { input: Vec::new(), output: Vec::new() }
    }
}

/// A type that represents small integers exactly.
pub trait Number: Element {
    /// Integers up to this, of which it holds the sums over a few hundred ranks.
    const MAGNITUDE: u32;

    /// The value of an `f32`, rounded if need be; an integer up to the magnitude is not.
    fn of(value: f32) -> Self;

    /// Its bits.
    fn bits(self) -> u64;
}

impl Number for f32 {
    const MAGNITUDE: u32 = EXACT;

    fn of(value: f32) -> Self {
        value
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Number for f64 {
    const MAGNITUDE: u32 = EXACT;

    fn of(value: f32) -> Self {
        value.into()
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }
}

impl Number for f16 {
    const MAGNITUDE: u32 = 8;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Number for bf16 {
    const MAGNITUDE: u32 = 1;

    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn bits(self) -> u64 {
        self.to_bits().into()
    }
}

impl Collective {
    /// All collectives, in the order of tables.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::Reduce,
        Self::ReduceScatter,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Barrier,
    ];

    /// The name in orders, tables and on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllReduce => "allreduce",
            Self::ReduceScatter => "reducescatter",
            Self::AllGather => "allgather",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "alltoall",
        }
    }

    /// Whether the output also is the input.
    #[must_use]
    pub fn is_in_place(self) -> bool {
        matches!(self, Self::AllReduce | Self::Broadcast)
    }

    /// Whether all ranks expect the same output.
    #[must_use]
    pub fn has_one_output(self) -> bool {
        matches!(self, Self::Barrier | Self::Broadcast | Self::AllReduce | Self::AllGather)
    }

    /// The bytes of the longest vector of a row of `bytes`.
    #[must_use]
    pub fn longest(self, bytes: usize, world_size: u32) -> usize {
        match self {
            Self::Barrier => 0,
            Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll => bytes * world_size as usize,
            Self::Broadcast | Self::Reduce | Self::AllReduce | Self::ReduceScatter => bytes,
        }
    }

    /// The bytes that the busiest port must send or receive at least in a row of `bytes`, between hosts of
    /// which each has one port.
    #[must_use]
    pub fn busiest_port(self, bytes: usize, world_size: u32, hosts: u32) -> f64 {
        let (bytes, hosts, ranks) = (bytes as f64, f64::from(hosts), f64::from(world_size));
        let elsewhere = (hosts - 1.0) / hosts;
        match self {
            Self::Barrier => 0.0,
            Self::Broadcast | Self::Reduce => bytes * elsewhere.ceil(),
            Self::AllReduce => 2.0 * bytes * elsewhere,
            Self::ReduceScatter => bytes * elsewhere,
            Self::AllGather | Self::Gather | Self::Scatter => bytes * ranks * elsewhere,
            Self::AllToAll => bytes * ranks * elsewhere * (ranks / hosts),
        }
    }

    /// The memory of a rank before the call, for a row of `count` elements.
    #[must_use]
    pub fn vectors<T: Number>(self, place: Place, count: usize) -> Vectors<T> {
        let Place { rank, world_size } = place;
        let (own, is_root) = (|| vector(rank, count), rank == ROOT);
        let zeros = || vec![T::of(0.0); self.expected_length(place, count)];
        let input = match self {
            Self::Barrier => Vec::new(),
            Self::Broadcast => {
                return Vectors { input: Vec::new(), output: if is_root { own() } else { zeros() } };
            }
            Self::AllReduce => return Vectors { input: Vec::new(), output: own() },
            Self::Reduce | Self::AllGather | Self::Gather => own(),
            // As long as its parts.
            Self::ReduceScatter => vector(rank, count / world_size as usize * world_size as usize),
            Self::Scatter if is_root => joined((0..world_size).map(|rank| vector(rank, count))),
            Self::Scatter => Vec::new(),
            Self::AllToAll => joined((0..world_size).map(|to| vector(number(rank, to, world_size), count))),
        };
        Vectors { input, output: zeros() }
    }

    /// The output of a rank after the call.
    #[must_use]
    pub fn expected<T: Number>(self, place: Place, count: usize) -> Vec<T> {
        let Place { rank, world_size } = place;
        let ranks = || 0..world_size;
        match self {
            Self::Barrier => Vec::new(),
            Self::Broadcast => vector(ROOT, count),
            Self::Reduce | Self::Gather if rank != ROOT => Vec::new(),
            Self::Reduce | Self::AllReduce => numbers(&oracle::sum(world_size, 0..count, T::MAGNITUDE)),
            Self::ReduceScatter => {
                let (part, rank) = (count / world_size as usize, rank as usize);
                numbers(&oracle::sum(world_size, part * rank..part * (rank + 1), T::MAGNITUDE))
            }
            Self::AllGather | Self::Gather => joined(ranks().map(|rank| vector(rank, count))),
            Self::Scatter => vector(rank, count),
            Self::AllToAll => joined(ranks().map(|from| vector(number(from, rank, world_size), count))),
        }
    }

    fn expected_length(self, Place { rank, world_size }: Place, count: usize) -> usize {
        match self {
            Self::Barrier => 0,
            Self::Reduce | Self::Gather if rank != ROOT => 0,
            Self::Broadcast | Self::Reduce | Self::AllReduce | Self::Scatter => count,
            Self::ReduceScatter => count / world_size as usize,
            Self::AllGather | Self::Gather | Self::AllToAll => count * world_size as usize,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The vector that goes from one rank to another in an all-to-all.
fn number(from: u32, to: u32, world_size: u32) -> u32 {
    from * world_size + to
}

fn vector<T: Number>(number: u32, count: usize) -> Vec<T> {
    numbers(&oracle::vector(number, count, T::MAGNITUDE))
}

fn numbers<T: Number>(integers: &[f32]) -> Vec<T> {
    integers.iter().map(|&integer| T::of(integer)).collect()
}

fn joined<T: Number>(vectors: impl Iterator<Item = Vec<T>>) -> Vec<T> {
    vectors.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: [usize; 4] = [0, 1, 6, 13];

    #[test]
    fn outputs_have_room_for_what_is_expected() {
        for collective in Collective::ALL {
            for world_size in 1..=5 {
                for (rank, count) in (0..world_size).flat_map(|rank| COUNTS.map(|count| (rank, count))) {
                    let place = Place { rank, world_size };
                    let Vectors { input, output } = collective.vectors::<f32>(place, count);
                    let expected = collective.expected::<f32>(place, count);
                    assert_eq!(output.len(), expected.len(), "{collective}, {place:?}, {count}");
                    assert!(!collective.is_in_place() || input.is_empty());
                    let of_root = collective.expected::<f32>(Place { rank: ROOT, world_size }, count);
                    assert!(!collective.has_one_output() || of_root == expected, "{collective}, {place:?}");
                    let longest = input.len().max(output.len()) * 4;
                    assert!(longest <= collective.longest(count * 4, world_size), "{collective}, {place:?}");
                }
            }
        }
    }

    /// Up to 256 ranks for those of 8 significant bits.
    #[test]
    fn sums_of_short_floats_are_exact() {
        const { assert!(256 * f16::MAGNITUDE <= 2048 && 256 * bf16::MAGNITUDE <= 256) };
        for integer in [-256.0, -129.0, 3.0, 255.0] {
            assert_eq!((f16::of(integer).to_f32(), bf16::of(integer).to_f32()), (integer, integer));
        }
    }

    #[test]
    fn no_rank_has_its_result_before() {
        for collective in Collective::ALL.into_iter().filter(|&all| all != Collective::Barrier) {
            for rank in 1..3 {
                let place = Place { rank, world_size: 3 };
                let before = collective.vectors::<f64>(place, 9);
                let after = collective.expected::<f64>(place, 9);
                assert!(
                    after.is_empty() || (before.output != after && before.input != after),
                    "{collective}"
                );
            }
        }
    }

    #[test]
    fn floors_are_those_of_one_port_a_host() {
        let floor = |collective: Collective, hosts| collective.busiest_port(100, 4, hosts);
        assert_eq!(floor(Collective::AllReduce, 4), 150.0);
        assert_eq!(floor(Collective::AllReduce, 2), 100.0);
        assert_eq!([2, 4].map(|hosts| floor(Collective::Broadcast, hosts)), [100.0; 2]);
        assert_eq!(floor(Collective::AllGather, 4), 300.0);
        assert_eq!([4, 2].map(|hosts| floor(Collective::AllToAll, hosts)), [300.0, 400.0]);
        assert_eq!(Collective::ALL.map(|collective| collective.busiest_port(100, 4, 1)), [0.0; 9]);
    }
}
