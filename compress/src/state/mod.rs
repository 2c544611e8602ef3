//! Saved state: what a compressor needs after a restart, as bytes that are checked before use.
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 4 | `BRVS` |
//! | 4 | 1 | version, now 1 |
//! | 5 | 1 | `d`, how many numbers the shape has |
//! | 6 | 2 | 0 |
//! | 8 | 4 | kind: four letters |
//! | 12 | `8 d` | shape |
//! | 12 + `8 d` | 8 | `c`, bytes of contents |
//! | 20 + `8 d` | 4 | CRC-32 (IEEE) of all before |
//! | 24 + `8 d` | `c` | contents |
//! | 24 + `8 d + c` | 4 | CRC-32 of the contents |
//!
//! All numbers are little-endian. There are two checksums, so that a damaged length is never used: every flip
//! of a single bit is found. They do not protect against forgery.
//!
//! ```
//! use brevity_compress::{feedback::Residual, state};
//!
//! let mut before = Residual::new(3);
//! before.accumulate(&[1.0, 2.0, 3.0])?;
//! let bytes = state::to_bytes(&before);
//! let mut after = Residual::new(3);
//! state::from_bytes(&mut after, &bytes)?;
//! assert_eq!(after.values(), [1.0, 2.0, 3.0]);
//! let mut other = Residual::new(4);
//! let refused = state::from_bytes(&mut other, &bytes).unwrap_err().to_string();
//! assert!(refused.starts_with("saved state has shape [3], expected [4]: was it saved with another model"));
//! # Ok::<(), brevity_compress::Error>(())
//! ```

mod contents;
mod fault;

pub use contents::{Reader, Writer};
pub use fault::Fault;

use std::io::{self, Read, Write};

use crate::Error;

const MAGIC: [u8; 4] = *b"BRVS";
const VERSION: u8 = 1;
/// Bytes before the shape.
const START: usize = 12;
/// Bytes beside the shape and the contents.
const FRAME: usize = START + 16;

/// An object that can be saved, and loaded into an object made with the same settings.
pub trait State {
    /// Four letters that identify these contents. They change when the meaning of the contents changes.
    fn kind(&self) -> [u8; 4];

    /// Lengths, rows, ranks: everything that the saved object and the loading one must agree on, at most 255
    /// numbers.
    fn shape(&self) -> Vec<u64>;

    /// Writes the contents. Their number of bytes depends on kind and shape alone.
    fn write_contents(&self, contents: &mut Writer);

    /// Replaces this object's contents by what [`write_contents`](Self::write_contents) wrote for an object
    /// of the same shape.
    ///
    /// # Errors
    /// The errors of [`Reader`], [`Fault::Part`] for a part that was saved from another object, and
    /// [`Fault::Contents`] for contents that no object can have. The object may have changed in part.
    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error>;
}

/// The state as bytes.
///
/// # Panics
/// If the shape has more than 255 numbers, and if the system has no memory for the bytes.
pub fn to_bytes(state: &(impl State + ?Sized)) -> Vec<u8> {
    try_to_bytes(state).unwrap_or_else(|error| panic!("{error}"))
}

/// The number of bytes of the state, which depends on kind and shape alone.
pub fn saved_bytes(state: &(impl State + ?Sized)) -> usize {
    FRAME + 8 * state.shape().len() + contents_bytes(state)
}

fn try_to_bytes(state: &(impl State + ?Sized)) -> Result<Vec<u8>, Error> {
    let shape = state.shape();
    let dimensions = u8::try_from(shape.len());
    assert!(dimensions.is_ok(), "a shape has at most 255 numbers, found {}", shape.len());
    let bytes = contents_bytes(state);
    let mut out = Writer::with_capacity(FRAME + 8 * shape.len() + bytes)?;
    out.bytes(&MAGIC);
    out.bytes(&[VERSION, dimensions.unwrap_or(0), 0, 0]);
    out.bytes(&state.kind());
    shape.iter().for_each(|&length| out.u64(length));
    out.u64(bytes as u64);
    out.checksum_from(0);
    let first = out.len();
    state.write_contents(&mut out);
    out.checksum_from(first);
    out.into_bytes()
}

/// Loads a state from bytes that contain it and nothing else.
///
/// # Errors
/// [`Error::State`] for bytes that are cut off, damaged, followed by others, or saved from an object of
/// another kind or shape; `state` is unchanged then. After [`Fault::Part`], [`Fault::Contents`] or
/// [`Error::NonFinite`], which damage can't cause, `state` may be loaded in part: drop it.
pub fn from_bytes(state: &mut (impl State + ?Sized), mut bytes: &[u8]) -> Result<(), Error> {
    let contents = contents_from(state, &mut bytes)?;
    if !bytes.is_empty() {
        return Err(Fault::Trailing { bytes: bytes.len() }.into());
    }
    state.read_contents(&mut Reader::new(&contents))
}

/// Writes a state to a file or stream. Several states may follow each other.
///
/// # Errors
/// [`Error::State`] with [`Fault::Io`]; [`Error::Memory`].
pub fn save(state: &(impl State + ?Sized), to: &mut impl Write) -> Result<(), Error> {
    Ok(to.write_all(&try_to_bytes(state)?).map_err(|error| Fault::Io(error.kind()))?)
}

/// Loads a state from a file or stream, and reads no byte beyond it. Allocates memory as bytes arrive.
///
/// # Errors
/// The same as for [`from_bytes`], and [`Fault::Io`]; bytes after the state are not read.
pub fn load(state: &mut (impl State + ?Sized), from: &mut impl Read) -> Result<(), Error> {
    let contents = contents_from(state, from)?;
    state.read_contents(&mut Reader::new(&contents))
}

/// The bytes that an object of this shape writes.
fn contents_bytes(state: &(impl State + ?Sized)) -> usize {
    let mut counted = Writer::counting();
    state.write_contents(&mut counted);
    counted.len()
}

/// The checked contents, of the length that `state` expects.
fn contents_from(state: &(impl State + ?Sized), from: &mut impl Read) -> Result<Vec<u8>, Fault> {
    let (shape, mut head) = (state.shape(), Vec::new());
    read(from, START, &mut head)?;
    if head[..4] != MAGIC {
        return Err(Fault::NoState);
    }
    let dimensions = usize::from(head[5]);
    read(from, 8 * dimensions + 12, &mut head)?;
    // The checksum is checked before the fields that it protects, so that damage is reported as damage.
    check_sum(&head, "head")?;
    if head[4] != VERSION || head[6..8] != [0, 0] {
        return Err(Fault::Version { found: head[4], expected: VERSION });
    }
    if head[8..START] != state.kind() {
        return Err(Fault::kind(&head[8..START], state.kind()));
    }
    let mut numbers: Vec<u64> =
        head[START..head.len() - 4].as_chunks().0.iter().map(|&b| u64::from_le_bytes(b)).collect();
    let found = numbers.pop().unwrap_or(0);
    if numbers != shape {
        return Err(Fault::Shape { found: numbers, expected: shape });
    }
    let expected = contents_bytes(state);
    if found != expected as u64 {
        return Err(Fault::Length { found, expected: expected as u64 });
    }
    let mut contents = Vec::new();
    read(from, expected + 4, &mut contents)?;
    check_sum(&contents, "contents")?;
    contents.truncate(expected);
    Ok(contents)
}

/// Appends `count` bytes.
fn read(from: &mut impl Read, count: usize, bytes: &mut Vec<u8>) -> Result<(), Fault> {
    match from.take(count as u64).read_to_end(bytes) {
        Ok(found) if found == count => Ok(()),
        Ok(found) => Err(Fault::Truncated { found, expected: count }),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Fault::Truncated { found: 0, expected: count })
        }
        Err(error) => Err(Fault::Io(error.kind())),
    }
}

/// Fails unless the last four bytes are the checksum of those before.
fn check_sum(bytes: &[u8], part: &'static str) -> Result<(), Fault> {
    let (sum_of, sum) = bytes.split_at(bytes.len().saturating_sub(4));
    if crc32fast::hash(sum_of).to_le_bytes() == sum { Ok(()) } else { Err(Fault::Damaged { part }) }
}
