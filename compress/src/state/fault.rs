//! Why a saved state is refused.

use std::io;

/// What is wrong with the bytes of a saved state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It does not begin like a saved state.
    #[error("this is no saved state: it does not begin with \"BRVS\"")]
    NoState,
    /// It ends early.
    #[error("saved state ends after {found} of {expected} bytes: was it written to the end?")]
    Truncated {
        /// Bytes found of a part.
        found: usize,
        /// Bytes that the part should have.
        expected: usize,
    },
    /// A checksum is wrong.
    #[error("the {part} of the saved state is damaged: its checksum is wrong")]
    Damaged {
        /// Which part.
        part: &'static str,
    },
    /// It was written by another version.
    #[error("saved state has version {found}, expected {expected}: was it saved by a newer release?")]
    Version {
        /// The version found.
        found: u8,
        /// The version that this release reads.
        expected: u8,
    },
    /// It is the state of another kind of object.
    #[error("saved state is of kind \"{found}\", expected \"{expected}\": is it the right file?")]
    Kind {
        /// The letters found.
        found: String,
        /// The letters of the object to be loaded.
        expected: String,
    },
    /// It belongs to an object with other lengths.
    #[error(
        "saved state has shape {found:?}, expected {expected:?}: was it saved with another model or other \
         settings?"
    )]
    Shape {
        /// The shape found.
        found: Vec<u64>,
        /// The shape of the object to be loaded.
        expected: Vec<u64>,
    },
    /// The number of bytes of contents does not fit the shape.
    #[error(
        "saved state has {found} bytes of contents, expected {expected}: was it saved by another release?"
    )]
    Length {
        /// Bytes found.
        found: u64,
        /// Bytes that an object of this shape has.
        expected: u64,
    },
    /// A part of it belongs to another object.
    #[error(
        "saved state holds {found}, expected {expected}: was it saved with another model or other settings?"
    )]
    Part {
        /// What the part was saved from.
        found: String,
        /// What the part should be loaded into.
        expected: String,
    },
    /// It was saved after another number of steps than what it is added to.
    #[error(
        "saved state is after {found} steps, expected {expected}: take states that all ranks saved after the \
         same step"
    )]
    Steps {
        /// The steps before it was saved.
        found: u64,
        /// The steps of the object that takes it over.
        expected: u64,
    },
    /// Contents that no object can have, although the checksum is right.
    #[error("saved state is impossible: {what}")]
    Contents {
        /// What is impossible.
        what: &'static str,
    },
    /// Bytes follow the state where none should.
    #[error("{bytes} bytes follow the saved state: is it the right file?")]
    Trailing {
        /// Their number.
        bytes: usize,
    },
    /// The file or stream can't be read or written.
    #[error("saved state can't be read or written: {0}")]
    Io(io::ErrorKind),
}

impl Fault {
    pub(super) fn kind(found: &[u8], expected: [u8; 4]) -> Self {
        Self::Kind { found: found.escape_ascii().to_string(), expected: expected.escape_ascii().to_string() }
    }
}
