//! Sparse vectors as messages: indices in few bits, values in the format of any quantiser.
//!
//! | [`IndexCodec`] | bytes for `k` indices below `n` | for |
//! | --- | --- | --- |
//! | [`Raw`](IndexCodec::Raw) | `4 k` | a handful of entries |
//! | [`Packed`](IndexCodec::Packed) | 1.14 to 1.19 times the entropy where places are random | speed: some tenths of a nanosecond an index |
//! | [`Rice`](IndexCodec::Rice) | 1.01 to 1.05 times the entropy where places are random | links so slow that nanoseconds an index don't count |
//! | [`Bitmap`](IndexCodec::Bitmap) | `n / 8` | one entry in six or more |
//!
//! One pass over the indices gives the size by every codec, so the encoder picks the smallest without
//! encoding twice. `docs/compression.md` describes the message byte by byte. [`decode`] trusts no input: it
//! returns a sparse vector with rising indices and finite values, or an error; a [`Decoder`] lends it block
//! by block, for instance to a merge. Ranks that must have the same bits decode inside
//! [`in_standard_float_mode`].
//!
//! ```
//! use brevity_compress::codec::{Choice, Encoder, Plain, decode};
//! use brevity_compress::SparseVec;
//!
//! let sent = SparseVec::from_parts(1_000_000, vec![3, 70, 999_999], vec![0.5, -2.0, 1.0])?;
//! let (mut message, mut received) = (Vec::new(), SparseVec::new(0));
//! Encoder::new().encode(sent.view(), Choice::Fast, &mut Plain, &mut message)?;
//! decode(&message, 1_000_000, 10, &mut received)?;
//! assert_eq!(received, sent);
//! # Ok::<(), brevity_compress::Error>(())
//! ```

mod bitmap;
mod decoder;
mod header;
mod packed;
mod plain;
mod rice;

pub use decoder::Decoder;
pub use header::{HEADER_BYTES, IndexCodec};
pub use plain::Plain;

use header::{Header, malformed};

use crate::quantise::{Encoded, Format, Quantiser, Values};
use crate::{Error, SparseVec, SparseView, in_standard_float_mode};

/// Which codecs an encoder chooses from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The smallest of raw, packed and bitmap.
    #[default]
    Fast,
    /// The smallest of all, usually Rice, at a cost of some nanoseconds an index.
    Smallest,
    /// This codec.
    Only(IndexCodec),
}

/// Writes messages. Reuses its memory from message to message.
#[derive(Debug, Clone, Default)]
pub struct Encoder {
    widths: Vec<u8>,
    values: Vec<u8>,
}

impl Encoder {
    /// An encoder that has not allocated memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces `message` by the message of `entries`, with the values encoded by `quantiser`. The choice of
    /// the codec depends on the entries alone. Cost: two passes over the indices (three with Rice), the
    /// quantiser's passes over the values, and a copy of its bytes.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for the first value that is NaN or infinite; `message` is empty then.
    pub fn encode(
        &mut self,
        entries: SparseView<'_>,
        choice: Choice,
        quantiser: &mut (impl Quantiser + ?Sized),
        message: &mut Vec<u8>,
    ) -> Result<(), Error> {
        message.clear();
        quantiser.encode_sparse(entries, &mut self.values)?;
        let plan = self.plan(entries, choice);
        let header = Header {
            codec: plan.codec,
            format: quantiser.format(),
            rice: plan.rice,
            dim: entries.dim() as u64,
            count: entries.len() as u64,
            index_bytes: plan.bytes as u64,
            value_bytes: self.values.len() as u64,
        };
        message.reserve(HEADER_BYTES + plan.bytes + self.values.len());
        message.extend_from_slice(&header.to_bytes());
        message.resize(HEADER_BYTES + plan.bytes, 0);
        let (indices, bytes) = (entries.indices(), &mut message[HEADER_BYTES..]);
        match plan.codec {
            IndexCodec::Raw => {
                bytes.as_chunks_mut().0.iter_mut().zip(indices).for_each(|(b, i)| *b = i.to_le_bytes())
            }
            IndexCodec::Packed => packed::encode(indices, &self.widths, bytes),
            IndexCodec::Rice => rice::encode(indices, plan.rice, bytes),
            IndexCodec::Bitmap => bitmap::encode(indices, bytes),
        }
        message.extend_from_slice(&self.values);
        Ok(())
    }

    /// Measures the indices and chooses a codec.
    fn plan(&mut self, entries: SparseView<'_>, choice: Choice) -> Plan {
        let (indices, rice) = (entries.indices(), rice::parameter(entries.indices()));
        packed::measure(indices, &mut self.widths);
        let plan = |codec| {
            let bytes = match codec {
                IndexCodec::Raw => 4 * indices.len(),
                IndexCodec::Packed => packed::bytes(&self.widths, indices.len()),
                IndexCodec::Rice => rice::bytes(indices, rice),
                IndexCodec::Bitmap => bitmap::bytes(entries.dim()),
            };
            Plan { codec, rice: if codec == IndexCodec::Rice { rice } else { 0 }, bytes }
        };
        let codecs = match &choice {
            Choice::Fast => &[IndexCodec::Packed, IndexCodec::Raw, IndexCodec::Bitmap][..],
            Choice::Smallest => &[IndexCodec::Packed, IndexCodec::Raw, IndexCodec::Bitmap, IndexCodec::Rice],
            Choice::Only(codec) => std::slice::from_ref(codec),
        };
        // Of equal sizes, takes the first codec, which decodes fastest.
        let plans = codecs.iter().map(|&codec| plan(codec));
        plans.min_by_key(|plan| plan.bytes).unwrap_or_else(|| plan(IndexCodec::Raw))
    }
}

/// The chosen codec and its parameters.
struct Plan {
    codec: IndexCodec,
    rice: u8,
    bytes: usize,
}

/// Replaces `out` by the sparse vector of a message from any source. Accepts at most `limit` entries and only
/// the agreed `dim`, and allocates only for entries that the message is long enough to hold. Does not
/// allocate once `out` has had as many entries.
///
/// # Errors
/// [`Error::Malformed`] for bytes that no encoder writes, [`Error::IndexOutOfRange`] or
/// [`Error::UnsortedIndices`] for invalid indices, [`Error::NonFinite`] for values that are not finite,
/// [`Error::TooLong`] for `dim` above 2^32. `out` has no entries then.
pub fn decode(message: &[u8], dim: usize, limit: usize, out: &mut SparseVec) -> Result<(), Error> {
    decode_any(message, dim, limit, None, |format, count, bytes| Encoded::new(format, count, bytes), out)
}

/// Like [`decode`], for a message whose values must have the agreed `format`.
///
/// # Errors
/// As for [`decode`]; [`Error::Malformed`] for another format.
pub fn decode_as(
    message: &[u8],
    dim: usize,
    limit: usize,
    format: Format,
    out: &mut SparseVec,
) -> Result<(), Error> {
    decode_any(
        message,
        dim,
        limit,
        Some(format),
        |format, count, bytes| Encoded::new(format, count, bytes),
        out,
    )
}

/// Like [`decode`], for a message whose values must be as agreed, also in their numbers of columns or levels.
///
/// # Errors
/// As for [`decode`]; [`Error::Malformed`] for other values.
pub fn decode_values(
    message: &[u8],
    dim: usize,
    limit: usize,
    values: Values,
    out: &mut SparseVec,
) -> Result<(), Error> {
    decode_any(message, dim, limit, Some(values.format()), |_, count, bytes| values.read(count, bytes), out)
}

/// The largest message of at most `limit` entries below `dim` that [`Encoder::encode`] writes with
/// [`Choice::Fast`], in bytes.
pub fn most_bytes(dim: usize, limit: usize, values: Values) -> usize {
    let entries = limit.min(dim);
    let index_bytes = entries.saturating_mul(4).min(bitmap::bytes(dim));
    HEADER_BYTES.saturating_add(index_bytes).saturating_add(values.most_bytes(entries))
}

/// The bytes of a message of `entries` that [`Encoder::encode`] writes with [`Choice::Fast`], on average over
/// vectors of length `dim` that have them at random among the `places` elements from `start` on; for
/// estimates. The same on all machines.
pub fn usual_bytes(dim: usize, (start, places): (usize, usize), entries: usize, values: Values) -> usize {
    let entries = entries.min(places);
    let packed = in_standard_float_mode(|| packed::usual_bytes(start, places, entries).ceil()) as usize;
    let index_bytes = packed.min(entries.saturating_mul(4)).min(bitmap::bytes(dim));
    HEADER_BYTES.saturating_add(index_bytes).saturating_add(values.most_bytes(entries))
}

/// Decodes values of the agreed format, or of any, which `read` checks.
fn decode_any(
    message: &[u8],
    dim: usize,
    limit: usize,
    format: Option<Format>,
    read: impl for<'a> FnOnce(Format, usize, &'a [u8]) -> Result<Encoded<'a>, Error>,
    out: &mut SparseVec,
) -> Result<(), Error> {
    crate::error::check_addressable(dim)?;
    out.fill(dim, |indices, values| {
        let parts = Parts::of(message, dim, limit, format, read)?;
        parts.decode(dim, indices, values)
    })
}

/// The parts of a message whose header and values have been checked.
struct Parts<'a> {
    header: Header,
    indices: &'a [u8],
    values: Encoded<'a>,
}

impl<'a> Parts<'a> {
    /// Those of a message of the agreed format, or of any, whose values `read` checks.
    fn of(
        message: &'a [u8],
        dim: usize,
        limit: usize,
        format: Option<Format>,
        read: impl FnOnce(Format, usize, &'a [u8]) -> Result<Encoded<'a>, Error>,
    ) -> Result<Self, Error> {
        let (header, rest) = Header::read(message)?;
        header.check(dim, limit, format, rest.len())?;
        let (indices, values) = rest.split_at(header.index_bytes as usize);
        let values = read(header.format, header.count as usize, values)?;
        Ok(Self { header, indices, values })
    }

    /// Replaces indices and values by those of the message.
    fn decode(&self, dim: usize, indices: &mut Vec<u32>, values: &mut Vec<f32>) -> Result<(), Error> {
        let (header, bytes, count) = (&self.header, self.indices, self.values.count());
        if header.codec != IndexCodec::Packed {
            indices.clear();
        }
        match header.codec {
            IndexCodec::Raw => raw(bytes, count, dim, indices)?,
            IndexCodec::Packed => packed::decode(bytes, count, dim, indices)?,
            IndexCodec::Rice => rice::decode(bytes, count, header.rice, dim, indices)?,
            IndexCodec::Bitmap => bitmap::decode(bytes, count, dim, indices)?,
        }
        values.resize(count, 0.0);
        self.values.decode_sparse(indices, values)
    }
}

/// Decodes indices of 4 bytes each.
fn raw(bytes: &[u8], count: usize, dim: usize, indices: &mut Vec<u32>) -> Result<(), Error> {
    indices.extend(raw_parts(bytes, count)?.iter().map(|&bytes| u32::from_le_bytes(bytes)));
    crate::sparse::check_indices(dim, indices)
}

/// The bytes of `count` indices of 4 bytes each.
fn raw_parts(bytes: &[u8], count: usize) -> Result<&[[u8; 4]], Error> {
    match bytes.as_chunks() {
        (parts, []) if parts.len() == count => Ok(parts),
        _ => Err(malformed("bytes of raw indices", count.saturating_mul(4), bytes.len())),
    }
}
