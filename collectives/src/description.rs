//! Descriptions of calls, by which ranks detect that they make different calls.

use std::fmt;

use ucx_sys_wrap::{Rank, Signature};

const NO_ROOT: u32 = u32::MAX;

/// A collective operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(u8);

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

/// The name of an element type by its [number](crate::Element::NUMBER).
pub(crate) fn element_name(number: u8) -> Option<&'static str> {
    ["f32", "f64", "i32", "i64", "u32", "u64", "u8"].get(usize::from(number).checked_sub(1)?).copied()
}

/// The name of a [reduction](crate::Reduction) by its number.
pub(crate) fn reduction_name(number: u8) -> Option<&'static str> {
    ["sum", "average", "max", "min"].get(usize::from(number).checked_sub(1)?).copied()
}

/// The name of a [rule](crate::sparse::PutBack) by its number.
fn rule_name(number: u8) -> Option<&'static str> {
    ["conserving", "published", "merger keeps"].get(usize::from(number).checked_sub(1)?).copied()
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
    /// The number of the reduction, or of a gTop-k's put-back rule; or 0.
    pub reduction: u8,
    /// The root, if there is one.
    pub root: Option<Rank>,
    /// The number of elements of a dense vector, the length and limit of a [sparse](Self::sparse) one, or the
    /// digest of a [plan](Self::of_plan).
    pub count: u64,
    /// 0 for a call of its own and for messages, whose tags name the call. For a collective over shared
    /// memory inside the body of a call: one more than that call's number modulo 255.
    pub inside: u8,
}

impl Description {
    /// An operation on `count` elements of type `T`.
    #[must_use]
    pub const fn new(operation: Operation, element: u8, count: usize) -> Self {
        Self { operation, element, reduction: 0, root: None, count: count as u64, inside: 0 }
    }

    /// An operation on sparse vectors of length `dim` with at most `limit` entries of this element type.
    /// Limits from `dim` on are equal; so are those from 2^31 - 1 on.
    #[must_use]
    pub fn sparse(operation: Operation, element: u8, dim: usize, limit: usize) -> Self {
        let length = (dim as u64).min(SPARSE_LENGTHS);
        let limit = (limit.min(dim) as u64).min(u64::MAX >> SPARSE_LENGTH_BITS);
        Self { count: length | limit << SPARSE_LENGTH_BITS, ..Self::new(operation, element, 0) }
    }

    /// Whether `count` is of a [sparse](Self::sparse) operation.
    fn is_sparse(&self) -> bool {
        [Operation::SPARSE_ALL_GATHER, Operation::TOPK_ALL_REDUCE, Operation::GTOPK_ALL_REDUCE]
            .contains(&self.operation)
    }

    /// The same operation inside the body of call number `sequence`.
    pub(crate) const fn inside(self, sequence: u32) -> Self {
        Self { inside: (sequence % 255) as u8 + 1, ..self }
    }

    /// An operation of several steps that `bytes` describe.
    #[must_use]
    pub fn of_plan(operation: Operation, bytes: &[u8]) -> Self {
        // The hash FNV-1a: different plans are unlikely to collide.
        let digest = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { count: digest, ..Self::new(operation, 0, 0) }
    }

    /// The 16 bytes that travel with every message.
    #[must_use]
    pub fn encode(&self) -> Signature {
        let mut bytes = [0; 16];
        bytes[0] = self.operation.0;
        bytes[1] = self.element;
        bytes[2] = self.reduction;
        bytes[3] = self.inside;
        bytes[4..8].copy_from_slice(&self.root.map_or(NO_ROOT, |root| root.0).to_le_bytes());
        bytes[8..].copy_from_slice(&self.count.to_le_bytes());
        Signature(bytes)
    }

    /// The description of a peer's call. Any bytes are valid.
    #[must_use]
    pub fn decode(Signature(bytes): Signature) -> Self {
        let [operation, element, reduction, inside, root0, root1, root2, root3, count @ ..] = bytes;
        let root = u32::from_le_bytes([root0, root1, root2, root3]);
        Self {
            operation: Operation(operation),
            element,
            reduction,
            root: (root != NO_ROOT).then_some(Rank(root)),
            count: u64::from_le_bytes(count),
            inside,
        }
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only exchanges are described by plans, which have no elements.
        if self.element == 0
            && [Operation::EXCHANGE, Operation::LOW_RANK_ALL_REDUCE].contains(&self.operation)
        {
            return write!(f, "{} by plan {:016x}", self.operation, self.count);
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
        let name = if self.operation == Operation::GTOPK_ALL_REDUCE { rule_name } else { reduction_name };
        if let Some(name) = name(self.reduction) {
            write!(f, " ({name})")?;
        }
        if let Some(root) = self.root {
            write!(f, " from root {root}")?;
        }
        if let Some(number) = self.inside.checked_sub(1) {
            write!(f, " inside call {number} (modulo 255)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Element, Reduction};

    #[test]
    fn descriptions_survive_the_wire() {
        let description = Description {
            reduction: Reduction::Sum.number(),
            root: Some(Rank(3)),
            ..Description::new(Operation::ALL_REDUCE, f32::NUMBER, 1 << 40)
        };
        assert_eq!(Description::decode(description.encode()), description);
        let part = description.inside(600);
        assert_eq!(Description::decode(part.encode()), part);
        assert!(part.to_string().ends_with(" inside call 90 (modulo 255)"), "{part}");
        assert_eq!(description.to_string(), "all-reduce of 1099511627776 f32 (sum) from root 3");
    }

    #[test]
    fn limits_and_rules_of_sparse_calls_are_described() {
        let describe = |limit, rule| crate::sparse::describe_gtopk(1 << 32, limit, rule);
        let (conserving, published) = (crate::sparse::PutBack::Conserving, crate::sparse::PutBack::Published);
        let own = describe(10, conserving);
        assert!(own != describe(11, conserving) && own != describe(10, published));
        assert_eq!(
            Description::decode(own.encode()).to_string(),
            "gtop-k all-reduce of 4294967296 f32, at most 10 entries a rank (conserving)"
        );
        let topk = crate::sparse::describe_topk;
        assert!(topk(5, 5) == topk(5, 9) && topk(5, 4) != topk(5, 5));
        assert_ne!(topk(usize::MAX, 1), topk(usize::MAX, usize::MAX));
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
            (element_name(0), element_name(8), reduction_name(0), reduction_name(5)),
            (None, None, None, None)
        );
        let strange = Description::decode(Signature([255; 16]));
        assert_eq!(
            strange.to_string(),
            format!("operation 255 of {} elements inside call 254 (modulo 255)", u64::MAX)
        );
    }
}
