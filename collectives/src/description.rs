//! Descriptions of calls, by which ranks detect that they make different calls.

use std::fmt;

use ucx_sys_wrap::{Rank, Signature};

use crate::data::{DataType, ReduceOp, UserReduction};
use crate::sparse::{self, Wire};

/// Bits of a signature's last word that hold the count; the rest holds the root.
const COUNT_BITS: u32 = 44;
const NO_ROOT: u64 = u64::MAX >> COUNT_BITS;

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(pub(crate) u8);

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        impl Operation {
            $($(#[$doc])* pub const $name: Self = Self($number);)*

            fn text(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }
        }
    };
}

operations! {
    /// No rank leaves before all ranks have entered.
    BARRIER = 1, "barrier";
    /// One rank's data, to all ranks.
    BROADCAST = 2, "broadcast";
    /// The elementwise reduction of all ranks' data, to all ranks.
    ALL_REDUCE = 3, "all-reduce";
    /// All ranks' data, to all ranks.
    ALL_GATHER = 4, "all-gather";
    /// All ranks' sparse vectors, to all ranks.
    SPARSE_ALL_GATHER = 5, "sparse all-gather";
    /// The sum of all ranks' sparse vectors, to all ranks.
    TOPK_ALL_REDUCE = 6, "top-k all-reduce";
    /// The largest entries of the sum of all ranks' sparse vectors, to all ranks.
    GTOPK_ALL_REDUCE = 7, "gtop-k all-reduce";
    /// The mean of all ranks' matrices, as low-rank factors.
    LOW_RANK_ALL_REDUCE = 8, "low-rank all-reduce";
    /// A point-to-point message.
    MESSAGE = 9, "message";
    /// One step of a gradient exchange.
    EXCHANGE = 10, "gradient exchange";
    /// One rank's data in shared buffers, to all ranks. It uses messages only, so it differs from a
    /// broadcast.
    SHARED_BROADCAST = 11, "shared broadcast";
    /// New groups of the ranks of a group.
    SPLIT = 12, "split";
    /// A parameter server is made.
    SERVER = 13, "parameter server";
    /// The elementwise reduction of all ranks' data, to one rank.
    REDUCE = 14, "reduce";
    /// The elementwise reduction of all ranks' data, a block to each rank.
    REDUCE_SCATTER = 15, "reduce-scatter";
    /// All ranks' data, to one rank.
    GATHER = 16, "gather";
    /// One rank's data, a block to each rank.
    SCATTER = 17, "scatter";
    /// A block from each rank to each rank.
    ALL_TO_ALL = 18, "all-to-all";
    /// The sum of all ranks' sparse vectors, a range to each rank.
    SPARSE_REDUCE_SCATTER = 19, "sparse reduce-scatter";
    /// The sum of all ranks' vectors, with quantised values on the wire, to all ranks.
    QUANTISED_ALL_REDUCE = 20, "quantised all-reduce";
    /// The majority of all ranks' signs, to all ranks.
    VOTE_ALL_REDUCE = 21, "vote";
    /// About as many of the largest entries of the sum of all ranks' sparse vectors, to all ranks.
    OK_TOPK_ALL_REDUCE = 24, "ok-topk all-reduce";
    /// The sum of all ranks' vectors, of which blocks that are zero do not travel, to all ranks.
    BLOCK_ALL_REDUCE = 22, "block-sparse all-reduce";
    /// The sum of all ranks' vectors at random places, to all ranks.
    RANDOM_K_ALL_REDUCE = 23, "random-k all-reduce";
    /// The sum of all ranks' vectors, dense inside the hosts and sparse between them, to all ranks.
    HIERARCHICAL_ALL_REDUCE = 25, "hierarchical all-reduce";
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "operation {}", self.0),
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The name of an [element type](DataType) by its number.
pub(crate) fn element_name(number: u8) -> Option<&'static str> {
    DataType::from_number(number).map(DataType::name)
}

/// The name of a [reduction](ReduceOp) by its number.
pub(crate) fn reduction_name(number: u8) -> Option<&'static str> {
    match number {
        UserReduction::NUMBER => Some("the program's reduction"),
        number => ReduceOp::from_number(number).map(ReduceOp::name),
    }
}

/// The bits of a sparse vector's length in [`Description::count`]: lengths are at most 2^32, because an index
/// has 32 bits. The limit of the entries has the bits above.
const SPARSE_LENGTH_BITS: u32 = 33;
const SPARSE_LENGTHS: u64 = (1 << SPARSE_LENGTH_BITS) - 1;

/// What all ranks of a call must agree on. The number of entries that a sparse vector has is not part of it,
/// but the limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The operation.
    pub operation: Operation,
    /// The element type's number, or 0.
    pub element: u8,
    /// The number of the reduction, or of a sparse collective's [wire](crate::sparse::Wire), with that of a
    /// gTop-k's put-back rule, or of how places are [drawn](crate::sparse::Draw); or 0.
    pub reduction: u8,
    /// The root, if there is one, as a rank of the group.
    pub root: Option<Rank>,
    /// The number of elements of a dense vector, the length and limit of a [sparse](Self::sparse) one, or the
    /// digest of a [plan](Self::of_plan).
    pub count: u64,
    /// A digest of everything else: the objects of the call and their numbers, rules, densities, names.
    pub detail: u64,
}

impl Description {
    /// An operation on `count` elements of type `T`.
    #[must_use]
    pub const fn new(operation: Operation, element: u8, count: usize) -> Self {
        Self { operation, element, reduction: 0, root: None, count: count as u64, detail: 0 }
    }

    /// An operation on sparse vectors of length `dim` with at most `limit` entries of this element type.
    /// Limits from `dim` on are equal; so are those from 2^31 - 1 on.
    #[must_use]
    pub fn sparse(operation: Operation, element: u8, dim: usize, limit: usize) -> Self {
        let length = (dim as u64).min(SPARSE_LENGTHS);
        let limit = (limit.min(dim) as u64).min(u64::MAX >> SPARSE_LENGTH_BITS);
        Self { count: length | limit << SPARSE_LENGTH_BITS, ..Self::new(operation, element, 0) }
    }

    /// Whether `count` is of a [sparse](Self::sparse) operation, which has no root.
    const fn is_sparse(&self) -> bool {
        matches!(
            self.operation,
            Operation::SPARSE_ALL_GATHER
                | Operation::TOPK_ALL_REDUCE
                | Operation::GTOPK_ALL_REDUCE
                | Operation::SPARSE_REDUCE_SCATTER
                | Operation::OK_TOPK_ALL_REDUCE
                | Operation::RANDOM_K_ALL_REDUCE
                | Operation::HIERARCHICAL_ALL_REDUCE
        )
    }

    /// The same operation with a digest of `detail` mixed in: anything else that must be equal on all ranks.
    #[must_use]
    pub const fn with_detail(self, detail: u64) -> Self {
        Self { detail: mix(self.detail ^ detail), ..self }
    }

    /// An operation of several steps that `bytes` describe.
    #[must_use]
    pub fn of_plan(operation: Operation, bytes: &[u8]) -> Self {
        Self { count: fnv_1a(bytes), ..Self::new(operation, 0, 0) }
    }

    /// The description alone, without the calls before it.
    #[must_use]
    pub fn encode(&self) -> Signature {
        self.sign(0, 0)
    }

    /// The 16 bytes that travel with every message: the description without its detail, the epoch of the
    /// context, and the digest of all its calls up to this one.
    ///
    /// | byte | content |
    /// | --- | --- |
    /// | 0, 1, 2 | operation, element, reduction |
    /// | 3 | epoch |
    /// | 4..8 | digest |
    /// | 8..16 | the low 44 bits of the count; above them the root, or 20 ones (sparse: the count) |
    #[inline]
    pub(crate) fn sign(&self, epoch: u8, digest: u32) -> Signature {
        let Self { operation, element, reduction, .. } = *self;
        let first = u64::from(u32::from_le_bytes([operation.0, element, reduction, epoch]));
        let root = self.root.map_or(NO_ROOT, |root| u64::from(root.0));
        let with_root = root << COUNT_BITS | self.count & (u64::MAX >> (64 - COUNT_BITS));
        let word = if self.is_sparse() { self.count } else { with_root };
        Signature((u128::from(first | u64::from(digest) << 32) | u128::from(word) << 64).to_le_bytes())
    }

    /// The description in a peer's signature, without its detail. Any bytes are valid.
    #[must_use]
    pub fn decode(Signature(bytes): Signature) -> Self {
        let [operation, element, reduction, ..] = bytes;
        let word = (u128::from_le_bytes(bytes) >> 64) as u64;
        let root = word >> COUNT_BITS;
        let plain =
            Self { operation: Operation(operation), element, reduction, root: None, count: word, detail: 0 };
        if plain.is_sparse() {
            return plain;
        }
        Self {
            root: (root != NO_ROOT).then_some(Rank(root as u32)),
            count: word & (u64::MAX >> (64 - COUNT_BITS)),
            ..plain
        }
    }

    /// What a [`digest`] takes of it: each part times an odd number, or turned to other bits.
    #[inline]
    pub(crate) const fn hash(&self) -> u64 {
        let Self { operation, element, reduction, root, count, detail } = *self;
        let root = match root {
            Some(root) => root.0 as u64 + 1,
            None => 0,
        };
        let kind = operation.0 as u64 | (element as u64) << 8 | (reduction as u64) << 16;
        (kind << 33 ^ root).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ count.wrapping_mul(0xd6e8_feb8_6659_fd93)
            ^ detail.rotate_left(32)
    }
}

/// The digest of calls that ends with a call of this hash, after the digest `before`.
#[inline]
pub(crate) const fn digest(before: u32, hash: u64) -> u32 {
    (mix(before as u64 ^ hash) >> 32) as u32
}

/// The hash FNV-1a: different texts and plans are unlikely to collide.
pub(crate) fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Mixes the bits of a word: one round of SplitMix64.
pub(crate) const fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 27
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only exchanges are described by plans, which have no elements.
        if self.element == 0
            && [Operation::EXCHANGE, Operation::LOW_RANK_ALL_REDUCE].contains(&self.operation)
        {
            return write!(f, "{} by plan {:016x}", self.operation, self.count);
        }
        if self.element == 0 && self.count == 0 {
            return write!(f, "{}", self.operation);
        }
        let count = if self.is_sparse() { self.count & SPARSE_LENGTHS } else { self.count };
        write!(f, "{} of {count}", self.operation)?;
        match element_name(self.element) {
            Some(name) => write!(f, " {name}")?,
            None => f.write_str(" elements")?,
        }
        if self.is_sparse() {
            write!(f, ", at most {} entries a rank", self.count >> SPARSE_LENGTH_BITS)?;
        }
        let (first, second) = match self.operation {
            Operation::GTOPK_ALL_REDUCE => sparse::names_of_gtopk(self.reduction),
            Operation::HIERARCHICAL_ALL_REDUCE => sparse::names_of_hierarchical(self.reduction),
            Operation::RANDOM_K_ALL_REDUCE => (sparse::name_of_places(self.reduction), None),
            Operation::QUANTISED_ALL_REDUCE => {
                (Wire::name(self.reduction).map(|name| name.trim_start_matches("packed, ")), None)
            }
            _ if self.is_sparse() => (Wire::name(self.reduction), None),
            _ => (reduction_name(self.reduction), None),
        };
        match (first, second) {
            (Some(first), Some(second)) => write!(f, " ({first}; {second})")?,
            (Some(name), None) | (None, Some(name)) => write!(f, " ({name})")?,
            (None, None) => {}
        }
        if let Some(root) = self.root {
            write!(f, " from root {root}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Values;

    use super::*;
    use crate::data::Element;

    #[test]
    fn descriptions_survive_the_wire() {
        let description = Description {
            reduction: ReduceOp::Sum.number(),
            root: Some(Rank(3)),
            ..Description::new(Operation::ALL_REDUCE, f32::TYPE.number(), 1 << 40)
        };
        assert_eq!(Description::decode(description.encode()), description);
        let signed = description.with_detail(5).sign(7, 9);
        assert_eq!((Description::decode(signed), signed.epoch()), (description, 7));
        assert_ne!(signed, description.sign(7, 10));
        assert_eq!(description.to_string(), "all-reduce of 1099511627776 f32 (sum) from root 3");
    }

    #[test]
    fn limits_and_rules_of_sparse_calls_are_described() {
        let describe = |limit, rule| crate::sparse::describe_gtopk(1 << 32, limit, rule, Wire::Pairs);
        let (conserving, published) = (crate::sparse::PutBack::Conserving, crate::sparse::PutBack::Published);
        let own = describe(10, conserving);
        assert!(own != describe(11, conserving) && own != describe(10, published));
        assert_eq!(
            Description::decode(own.encode()).to_string(),
            "gtop-k all-reduce of 4294967296 f32, at most 10 entries a rank (conserving)"
        );
        let coded = crate::sparse::describe_gtopk(1 << 32, 10, published, Wire::Coded(Values::F16));
        assert_eq!(
            Description::decode(coded.encode()).to_string(),
            "gtop-k all-reduce of 4294967296 f32, at most 10 entries a rank (published; packed, f16 values)"
        );
        let by = crate::sparse::LeaderSum::Gtopk(conserving);
        let levels = crate::sparse::describe_hierarchical(1000, 10, by, Wire::Pairs);
        assert_eq!(
            Description::decode(levels.encode()).to_string(),
            "hierarchical all-reduce of 1000 f32, at most 10 entries a rank (gtop-k, conserving)"
        );
        let topk = |dim, limit| crate::sparse::describe_topk(dim, limit, Wire::Pairs);
        assert!(topk(5, 5) == topk(5, 9) && topk(5, 4) != topk(5, 5));
        assert_ne!(topk(usize::MAX, 1), topk(usize::MAX, usize::MAX));
    }

    #[test]
    fn wires_of_sparse_calls_are_described() {
        let wires = Values::ALL.map(Wire::Coded);
        let gather = |wire| crate::sparse::describe_all_gather(1000, 10, wire);
        let plain = Description::sparse(Operation::SPARSE_ALL_GATHER, f32::TYPE.number(), 1000, 10);
        assert_eq!(gather(Wire::Pairs), plain, "as in earlier versions");
        let hashes = wires.iter().chain([&Wire::Pairs]).map(|&wire| gather(wire).hash());
        assert_eq!(hashes.collect::<std::collections::BTreeSet<_>>().len(), 1 + wires.len());
        assert_eq!(
            Description::decode(gather(Wire::Coded(Values::Bf16)).encode()).to_string(),
            "sparse all-gather of 1000 f32, at most 10 entries a rank (packed, bf16 values)"
        );
    }

    #[test]
    fn plans_differ() {
        let plan = |bytes: &[u8]| Description::of_plan(Operation::EXCHANGE, bytes);
        assert!(plan(&[1, 2]) == plan(&[1, 2]) && plan(&[1, 2]) != plan(&[2, 1]) && plan(&[]) != plan(&[0]));
        assert_eq!(
            plan(b"a").to_string(),
            "gradient exchange by plan af63dc4c8601ec8c",
            "as the authors' own table"
        );
        let low_rank = Description::of_plan(Operation::LOW_RANK_ALL_REDUCE, b"a");
        assert_eq!(low_rank.to_string(), "low-rank all-reduce by plan af63dc4c8601ec8c");
    }

    #[test]
    fn strange_bytes_are_described() {
        assert_eq!(
            (element_name(0), element_name(15), reduction_name(0), reduction_name(10)),
            (None, None, None, None)
        );
        let strange = Description::decode(Signature([255; 16]));
        assert_eq!(strange.to_string(), format!("operation 255 of {} elements", u64::MAX >> 20));
    }

    #[test]
    fn every_field_changes_the_digest() {
        let plain = Description::new(Operation::ALL_REDUCE, 1, 8);
        let others = [
            Description { operation: Operation::BROADCAST, ..plain },
            Description { element: 2, ..plain },
            Description { reduction: 1, ..plain },
            Description { root: Some(Rank(0)), ..plain },
            Description { root: Some(Rank(1)), ..plain },
            Description { count: 9, ..plain },
            plain.with_detail(1),
            plain.with_detail(2),
        ];
        let digests: std::collections::BTreeSet<u32> = others
            .iter()
            .chain([&plain])
            .flat_map(|description| [digest(0, description.hash()), digest(1, description.hash())])
            .collect();
        assert_eq!(digests.len(), 2 * (others.len() + 1));
    }
}
