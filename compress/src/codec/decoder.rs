//! Reads a message block by block.

use super::{IndexCodec, Parts, packed, raw_parts};
use crate::error::check_addressable;
use crate::quantise::{Encoded, Format, Values};
use crate::sparse::check_indices;
use crate::{Error, SparseVec, SparseView};

/// Entries that are decoded at once: a whole number of the blocks of every codec and every value format.
const UNIT: usize = 512;

/// Entries of a block: 16 KiB, which stay in the first-level cache.
const BLOCK: usize = 4 * UNIT;

/// Reads a message block by block, so that what reads its entries, for instance a merge, needs no vector of
/// all of them.
///
/// Nothing in the message is trusted. What [`new`](Self::new) does not check, the methods find before they
/// lend the entries concerned: entries that are lent have rising indices and finite values. After an error
/// there are no more.
///
/// ```
/// use brevity_compress::codec::{Choice, Decoder, Encoder, Plain};
/// use brevity_compress::quantise::Format;
/// use brevity_compress::SparseVec;
///
/// let sent = SparseVec::from_parts(9, vec![3, 7], vec![0.5, -2.0])?;
/// let (mut message, mut memory) = (Vec::new(), SparseVec::new(0));
/// Encoder::new().encode(sent.view(), Choice::Fast, &mut Plain, &mut message)?;
/// let mut decoder = Decoder::new(&message, 9, 10, Format::F32, &mut memory)?;
/// let mut sum = 0.0;
/// while let Some(block) = decoder.next_block()? {
///     sum += block.values().iter().sum::<f32>();
/// }
/// assert_eq!(sum, -1.5);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug)]
pub struct Decoder<'a> {
    indices: Indices<'a>,
    values: Encoded<'a>,
    /// Entries that are not decoded yet.
    left: usize,
    /// Decoded entries.
    memory: &'a mut SparseVec,
    /// How many of them have been lent.
    lent: usize,
}

/// The indices that are left.
#[derive(Debug)]
enum Indices<'a> {
    Packed(packed::Blocks<'a>),
    Raw {
        rest: &'a [[u8; 4]],
        /// The index before.
        last: Option<u32>,
    },
    /// All have been decoded.
    None,
}

impl Indices<'_> {
    /// Decodes the next ones, which are there. `done` are those before.
    fn decode(&mut self, indices: &mut [u32], done: usize, dim: usize) -> Result<(), Error> {
        match self {
            Self::Packed(blocks) => blocks.decode(indices),
            Self::Raw { rest, last } => {
                let (own, others) = rest.split_at(indices.len());
                indices.iter_mut().zip(own).for_each(|(index, &bytes)| *index = u32::from_le_bytes(bytes));
                if last.is_some() && indices.first().is_some_and(|first| Some(*first) <= *last) {
                    return Err(Error::UnsortedIndices { position: done });
                }
                check_indices(dim, indices).map_err(|error| behind(error, done))?;
                (*rest, *last) = (others, indices.last().copied());
                Ok(())
            }
            Self::None => Ok(()),
        }
    }
}

/// The error, where so many indices come before.
fn behind(error: Error, done: usize) -> Error {
    match error {
        Error::UnsortedIndices { position } => Error::UnsortedIndices { position: done + position },
        Error::IndexOutOfRange { position, index, dim } => {
            Error::IndexOutOfRange { position: done + position, index, dim }
        }
        other => other,
    }
}

impl<'a> Decoder<'a> {
    /// Begins to read a message from any source, which must have at most `limit` entries, the agreed `dim`
    /// and values of the agreed `format`. Blocks are decoded into `memory`, whose entries are replaced.
    /// Checks header and values; indices that are raw or packed are decoded with their blocks, and others
    /// here.
    ///
    /// # Errors
    /// As for [`decode_as`](super::decode_as); `memory` has no entries then.
    pub fn new(
        message: &'a [u8],
        dim: usize,
        limit: usize,
        format: Format,
        memory: &'a mut SparseVec,
    ) -> Result<Self, Error> {
        let read = |format, count, bytes| Encoded::new(format, count, bytes);
        Self::open((message, dim, limit), format, read, memory)
    }

    /// Likewise, of values as agreed, also in their numbers of columns or levels.
    ///
    /// # Errors
    /// As for [`decode_values`](super::decode_values); `memory` has no entries then.
    pub fn of_values(
        message: &'a [u8],
        dim: usize,
        limit: usize,
        values: Values,
        memory: &'a mut SparseVec,
    ) -> Result<Self, Error> {
        let read = |_, count, bytes| values.read(count, bytes);
        Self::open((message, dim, limit), values.format(), read, memory)
    }

    fn open(
        (message, dim, limit): (&'a [u8], usize, usize),
        format: Format,
        read: impl FnOnce(Format, usize, &'a [u8]) -> Result<Encoded<'a>, Error>,
        memory: &'a mut SparseVec,
    ) -> Result<Self, Error> {
        memory.reset(dim);
        check_addressable(dim)?;
        let parts = Parts::of(message, dim, limit, Some(format), read)?;
        let count = parts.values.count();
        let (indices, left) = match parts.header.codec {
            IndexCodec::Packed => (Indices::Packed(packed::Blocks::new(parts.indices, count, dim)?), count),
            IndexCodec::Raw => (Indices::Raw { rest: raw_parts(parts.indices, count)?, last: None }, count),
            IndexCodec::Rice | IndexCodec::Bitmap => {
                memory.fill(dim, |indices, values| parts.decode(dim, indices, values))?;
                (Indices::None, 0)
            }
        };
        Ok(Self { indices, values: parts.values, left, memory, lent: 0 })
    }

    /// How many entries have not been lent.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.left + self.memory.len() - self.lent
    }

    /// Lends the next entries, about two thousand; `None` if there are none. Does not allocate once `memory`
    /// has had as many.
    ///
    /// # Errors
    /// [`Error::Malformed`], [`Error::IndexOutOfRange`] or [`Error::UnsortedIndices`] for invalid indices.
    pub fn next_block(&mut self) -> Result<Option<SparseView<'_>>, Error> {
        if self.lent == self.memory.len() {
            self.decode_behind(0, BLOCK)?;
            self.lent = 0;
        }
        let from = std::mem::replace(&mut self.lent, self.memory.len());
        Ok(Some(self.memory.view().slice(from..self.lent)).filter(|block| !block.is_empty()))
    }

    /// Lends all entries below the index `end` that have not been lent.
    ///
    /// # Errors
    /// As for [`next_block`](Self::next_block).
    pub fn until(&mut self, end: usize) -> Result<SparseView<'_>, Error> {
        self.memory.remove_first(std::mem::take(&mut self.lent));
        while self.left > 0 && self.memory.indices().last().is_none_or(|&last| (last as usize) < end) {
            self.decode_behind(self.memory.len(), UNIT)?;
        }
        self.lent = self.memory.indices().partition_point(|&index| (index as usize) < end);
        Ok(self.memory.view().slice(0..self.lent))
    }

    /// Decodes up to `count` more entries, and replaces those in the memory that are behind the first `kept`.
    fn decode_behind(&mut self, kept: usize, count: usize) -> Result<(), Error> {
        let (done, count) = (self.values.count() - self.left, count.min(self.left));
        let dim = self.memory.dim();
        let (indices, values) = self.memory.overwrite(dim, kept + count);
        let (indices, values) = (&mut indices[kept..], &mut values[kept..]);
        if let Err(error) = self.indices.decode(indices, done, dim) {
            self.memory.clear();
            (self.left, self.lent) = (0, 0);
            return Err(error);
        }
        self.values.decode_part(done, indices, values);
        self.left -= count;
        Ok(())
    }
}
