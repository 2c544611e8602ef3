//! The header before indices and values.

use crate::Error;
use crate::quantise::Format;

/// Bytes before the indices.
pub const HEADER_BYTES: usize = 40;

/// The first byte of every message, and the second: the version of the format.
const MAGIC: [u8; 2] = [0xb7, 1];

/// The largest Rice parameter: a gap has 32 bits.
pub(super) const MOST_RICE: u8 = 31;

/// How indices are written. The numbers are part of the wire format and don't change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum IndexCodec {
    /// 4 bytes each.
    Raw = 0,
    /// Gaps, in blocks of 128 with as many bits as the widest needs.
    Packed = 1,
    /// Gaps, Golomb-Rice (Rice and Plaunt 1971).
    Rice = 2,
    /// One bit for each element of the dense vector.
    Bitmap = 3,
}

impl IndexCodec {
    /// All codecs, by number.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Packed, Self::Rice, Self::Bitmap];
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) codec: IndexCodec,
    pub(super) format: Format,
    pub(super) rice: u8,
    pub(super) dim: u64,
    pub(super) count: u64,
    pub(super) index_bytes: u64,
    pub(super) value_bytes: u64,
}

pub(super) fn malformed(what: &'static str, expected: usize, found: usize) -> Error {
    Error::Malformed { what, expected, found }
}

/// A number from a message that may be too large for this machine's `usize`; the result is only compared and
/// shown.
fn shown(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = self.codec as u8;
        bytes[3] = self.format.id();
        bytes[4] = self.rice;
        let numbers = [self.dim, self.count, self.index_bytes, self.value_bytes];
        bytes[8..]
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(numbers)
            .for_each(|(bytes, number)| *bytes = number.to_le_bytes());
        bytes
    }

    /// Splits a message into its header and the rest.
    pub(super) fn read(message: &[u8]) -> Result<(Self, &[u8]), Error> {
        let Some((bytes, rest)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(malformed("bytes of header", HEADER_BYTES, message.len()));
        };
        if bytes[0] != MAGIC[0] {
            return Err(malformed("as first byte", MAGIC[0].into(), bytes[0].into()));
        }
        if bytes[1] != MAGIC[1] {
            return Err(malformed("as version", MAGIC[1].into(), bytes[1].into()));
        }
        let codec = IndexCodec::ALL.get(usize::from(bytes[2])).copied();
        let codec = codec.ok_or(malformed(
            "as index codec, of which there are",
            IndexCodec::ALL.len(),
            bytes[2].into(),
        ))?;
        let format = Format::from_id(bytes[3]);
        let format = format.ok_or(malformed(
            "as value format, of which there are",
            Format::ALL.len(),
            bytes[3].into(),
        ))?;
        let most_rice = if codec == IndexCodec::Rice { MOST_RICE } else { 0 };
        if bytes[4] > most_rice {
            return Err(malformed("as Rice parameter, at most", most_rice.into(), bytes[4].into()));
        }
        if bytes[5..8] != [0; 3] {
            return Err(malformed(
                "in bytes 5 to 7",
                0,
                bytes[5..8].iter().map(|&byte| usize::from(byte)).sum(),
            ));
        }
        let mut numbers = bytes[8..].as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes));
        let mut number = || numbers.next().unwrap_or(0);
        let (dim, count, index_bytes, value_bytes) = (number(), number(), number(), number());
        Ok((Self { codec, format, rice: bytes[4], dim, count, index_bytes, value_bytes }, rest))
    }

    /// Fails unless the header describes a message of `rest` bytes with the agreed `dim` and `format`, if one
    /// is agreed, and at most `limit` entries.
    pub(super) fn check(
        &self,
        dim: usize,
        limit: usize,
        format: Option<Format>,
        rest: usize,
    ) -> Result<(), Error> {
        if let Some(agreed) = format
            && self.format != agreed
        {
            return Err(malformed("as value format", agreed.id().into(), self.format.id().into()));
        }
        if self.dim != dim as u64 {
            return Err(malformed("elements", dim, shown(self.dim)));
        }
        let most = limit.min(dim);
        if self.count > most as u64 {
            return Err(malformed("entries, at most", most, shown(self.count)));
        }
        match self.index_bytes.checked_add(self.value_bytes) {
            Some(bytes) if bytes == rest as u64 => Ok(()),
            other => Err(malformed("bytes after the header", other.map_or(usize::MAX, shown), rest)),
        }
    }
}
