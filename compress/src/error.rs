//! The errors of this crate.

use crate::state::Fault;

/// A caller's misuse, or data that must not be added to anything.
///
/// Every function documents the state after an error. Unless it says otherwise, inputs are unchanged and
/// output vectors are empty.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input, or a sum of inputs, is NaN or infinite.
    #[error(
        "found {value} at index {index}, expected a finite number: check the input for NaN, or scale it down"
    )]
    NonFinite {
        /// The first such position in the slice or dense vector.
        index: usize,
        /// The value found there, or the value that a sum would have.
        value: f32,
    },
    /// Two lengths that must agree do not.
    #[error("found {found} elements, expected {expected}: pass slices of the agreed length")]
    LengthMismatch {
        /// Elements that the call needs.
        expected: usize,
        /// Elements that it got.
        found: usize,
    },
    /// A sparse index points past the end of the dense vector.
    #[error(
        "index {index} at position {position} is out of range, expected less than {dim}: do all ranks agree \
         on the length?"
    )]
    IndexOutOfRange {
        /// Position among the sparse entries.
        position: usize,
        /// The index found there.
        index: u32,
        /// Length of the dense vector.
        dim: usize,
    },
    /// Sparse indices do not rise strictly.
    #[error(
        "index at position {position} does not rise above the one before it: sort the entries and add up \
         duplicates"
    )]
    UnsortedIndices {
        /// Position of the first index that is not larger than its predecessor.
        position: usize,
    },
    /// A matrix or factor does not have the agreed number of elements.
    #[error("{what} has {found} elements, expected {rows} x {cols}: pass it row-major and whole")]
    ShapeMismatch {
        /// Which argument.
        what: &'static str,
        /// Rows that it must have.
        rows: usize,
        /// Columns that it must have.
        cols: usize,
        /// Elements found.
        found: usize,
    },
    /// Bytes that are not a message of the agreed format.
    #[error(
        "found {found} {what}, expected {expected}: do all ranks run the same version with the same settings?"
    )]
    Malformed {
        /// What was counted.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// A quantiser whose error would grow without bound if it were fed back: see
    /// [`Quantiser::contracts`](crate::quantise::Quantiser::contracts).
    #[error("error feedback around {format:?} diverges for {count} values: {remedy}")]
    Diverges {
        /// The format of the quantiser.
        format: crate::quantise::Format,
        /// The values of the vector.
        count: usize,
        /// What to use instead.
        remedy: &'static str,
    },
    /// A setting out of range.
    #[error("{what} {value} is out of range, expected {expected}")]
    OutOfRange {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The valid range, and what to use instead.
        expected: &'static str,
    },
    /// A reduction that is not defined for the elements' type.
    #[error("{op} of {element} is not defined: bitwise reductions need integers")]
    UndefinedReduction {
        /// The reduction.
        op: crate::reduce::Op,
        /// The name of the elements' type.
        element: &'static str,
    },
    /// A density outside of 0 (exclusive) to 1 (inclusive).
    #[error(
        "density {0} is out of range, expected more than 0 and at most 1: 0.001 keeps one entry in a thousand"
    )]
    InvalidDensity(f64),
    /// A format of values that there is not.
    #[error(
        "there is no format of values {0:?}: name one of f32, f16, bf16, eight-bit, one-bit-mean, \
         one-bit-min, two-bit-mean, two-bit-min, one-bit-columns, one-bit-columns-C with C columns, ternary, \
         qsgd-S with 2 to 127 levels S"
    )]
    UnknownValues(String),
    /// A threshold that no value or every value reaches.
    #[error(
        "threshold {0} is out of range, expected more than 0 and finite: pass the magnitude that is to be \
         sent"
    )]
    InvalidThreshold(f32),
    /// A vector too long for 32-bit indices.
    #[error("length {len} is too long, expected at most 4294967296: split the vector")]
    TooLong {
        /// The length.
        len: usize,
    },
    /// More orthonormal columns than each has elements.
    #[error("rank {rank} is too large, expected at most {rows}, the number of rows: lower the rank")]
    RankTooLarge {
        /// Columns asked for.
        rank: usize,
        /// Elements of each.
        rows: usize,
    },
    /// A matrix whose element count overflows the address space.
    #[error("a {rows} x {cols} matrix is too large to address: split it")]
    MatrixTooLarge {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The system has no memory for what is to be made or saved.
    #[error("no memory for {bytes} bytes: use less, or give the process more")]
    Memory {
        /// The bytes that were asked for.
        bytes: usize,
    },
    /// A saved state that can't be loaded.
    #[error(transparent)]
    State(#[from] Fault),
}

/// Fails unless `found == expected`.
pub(crate) fn check_length(expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::LengthMismatch { expected, found }) }
}

/// Fails when 32-bit indices can't address `len` elements.
pub(crate) fn check_addressable(len: usize) -> Result<(), Error> {
    if len as u64 > 1 << 32 { Err(Error::TooLong { len }) } else { Ok(()) }
}
