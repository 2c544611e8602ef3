//! Algorithms that are to be used wherever an operation is called.

use std::fmt;
use std::str::FromStr;

use super::{Algorithm, Row};
use crate::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::description::Operation;
use crate::sparse::topk;

/// The operations that have algorithms, by their names.
pub(super) const OPERATIONS: [(&str, Operation, &[Row]); 10] = [
    ("broadcast", Operation::BROADCAST, Broadcast::ROWS),
    ("reduce", Operation::REDUCE, Reduce::ROWS),
    ("all-reduce", Operation::ALL_REDUCE, AllReduce::ROWS),
    ("reduce-scatter", Operation::REDUCE_SCATTER, ReduceScatter::ROWS),
    ("all-gather", Operation::ALL_GATHER, AllGather::ROWS),
    ("gather", Operation::GATHER, Gather::ROWS),
    ("scatter", Operation::SCATTER, Scatter::ROWS),
    ("all-to-all", Operation::ALL_TO_ALL, AllToAll::ROWS),
    ("barrier", Operation::BARRIER, Barrier::ROWS),
    ("top-k-all-reduce", Operation::TOPK_ALL_REDUCE, topk::ROWS),
];

/// An algorithm for some operations, in place of the cheapest: for tests and measurements.
///
/// A call that its algorithm does not fit is refused ([`Error::Algorithm`](crate::Error::Algorithm)). All but
/// [`Algorithm::Slots`] go by messages, also among ranks that share memory.
///
/// ```
/// use brevity_collectives::Wishes;
///
/// let wishes: Wishes = "all-reduce:halving,broadcast:binomial".parse()?;
/// assert_eq!(wishes.to_string(), "broadcast:binomial,all-reduce:halving");
/// assert!("all-reduce:bruck".parse::<Wishes>().is_err());
/// # Ok::<(), brevity_collectives::UnknownWish>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes([Option<Algorithm>; OPERATIONS.len()]);

/// A wish that names no operation, or none of its algorithms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no algorithm of an operation: expected {expected}")]
pub struct UnknownWish {
    /// The text.
    pub found: String,
    /// What would do.
    pub expected: String,
}

impl Wishes {
    /// The algorithm for an operation, if there is a wish.
    #[must_use]
    pub fn of(&self, operation: Operation) -> Option<Algorithm> {
        let place = OPERATIONS.iter().position(|(_, other, _)| *other == operation)?;
        self.0[place]
    }

    /// A number for each operation: 0, or that of an algorithm.
    pub(crate) fn encode(&self) -> [u8; OPERATIONS.len()] {
        self.0.map(|wish| wish.map_or(0, Algorithm::number))
    }

    /// `None` if a number is none of an algorithm of its operation.
    pub(crate) fn decode(numbers: &[u8; OPERATIONS.len()]) -> Option<Self> {
        let mut wishes = Self::default();
        for ((wish, number), (_, _, rows)) in wishes.0.iter_mut().zip(numbers).zip(OPERATIONS) {
            if *number > 0 {
                *wish = Some(rows.iter().find(|row| row.algorithm.number() == *number)?.algorithm);
            }
        }
        Some(wishes)
    }
}

impl FromStr for Wishes {
    type Err = UnknownWish;

    fn from_str(text: &str) -> Result<Self, UnknownWish> {
        let mut wishes = Self::default();
        for wish in text.split(',') {
            let unknown = |expected: String| UnknownWish { found: wish.to_owned(), expected };
            let names = || OPERATIONS.map(|(name, ..)| name).join(", ");
            let (operation, name) = wish
                .split_once(':')
                .ok_or_else(|| unknown(format!("an operation ({}), a colon and an algorithm", names())))?;
            let place = OPERATIONS.iter().position(|(other, ..)| *other == operation.trim());
            let place = place.ok_or_else(|| unknown(format!("one of {}", names())))?;
            let (_, _, rows) = OPERATIONS[place];
            let algorithm = rows.iter().map(|row| row.algorithm).find(|row| row.name() == name.trim());
            let others = || rows.iter().map(|row| row.algorithm.name()).collect::<Vec<_>>().join(", ");
            wishes.0[place] = Some(algorithm.ok_or_else(|| unknown(format!("one of {}", others())))?);
        }
        Ok(wishes)
    }
}

impl fmt::Display for Wishes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wishes = OPERATIONS.iter().zip(self.0).filter_map(|((name, ..), wish)| Some((name, wish?)));
        for (index, (name, algorithm)) in wishes.enumerate() {
            write!(f, "{}{name}:{algorithm}", if index > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_and_told() {
        let wishes: Wishes = "all-reduce:ring, gather:linear".parse().unwrap();
        assert_eq!(wishes.of(Operation::ALL_REDUCE), Some(Algorithm::Ring));
        assert_eq!(wishes.of(Operation::GATHER), Some(Algorithm::Linear));
        assert_eq!(wishes.of(Operation::SCATTER), None);
        assert_eq!(wishes.of(Operation::SPLIT), None);
        let topk: Wishes = "top-k-all-reduce:direct".parse().unwrap();
        assert_eq!(topk.of(Operation::TOPK_ALL_REDUCE), Some(Algorithm::Direct));
        assert_eq!(wishes.to_string(), "all-reduce:ring,gather:linear");
        assert_eq!(Wishes::decode(&wishes.encode()), Some(wishes));
        assert_eq!(Wishes::decode(&[Algorithm::Ring.number(); OPERATIONS.len()]), None);
        for (text, expected) in [
            ("", "a colon"),
            ("all-reduce", "a colon"),
            ("allreduce:ring", "one of broadcast, reduce, all-reduce"),
            ("all-reduce:bruck", "one of doubling, halving, direct, ring"),
            ("barrier:ring", "one of dissemination, hosts"),
            ("top-k-all-reduce:ring", "one of bruck, direct"),
            ("all-reduce:ring,", "a colon"),
        ] {
            let message = text.parse::<Wishes>().unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
