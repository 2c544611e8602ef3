//! The header of a message: 12 bytes, and more when needed. Little-endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | tag; its source is the sender |
//! | 8 | bits 0 and 1: number of parts; 2: a mark follows; 3: fragmented; 4: counted (`flow.rs`); 5: padded; 6: signed |
//! | 9 | report of what the sender has consumed (`flow.rs`) |
//! | 10..12 | serial number of the message from this sender to this receiver, wrapping |
//! | then, with bit 6 | signature of the call, 16 bytes; without, it is that of the message with the number before, at first 0 |
//! | then, with bit 2 | mark, 8 bytes |
//! | then, for 2 or 3 parts | bytes of each part, 8 bytes each |
//! | then, with bit 3 | the parts of at most 128 bytes, in order |
//!
//! The payload of a message that is not fragmented is all its parts in order; a single part is as long as the
//! payload. The payload of a fragmented message is its first part above 128 bytes; every later part above 128
//! bytes is a fragment, a UCX message of its own with a [`FragmentHeader`]. A padded message is empty; one
//! meaningless byte is its payload, because UCX can't do a rendezvous of nothing.
//!
//! UCX has room for 28 bytes of header and payload in the first cache line of a message, so every byte of the
//! header counts. A [`Plain`] header is written and read in one go.

use crate::buffer::ReadLease;
use crate::limits::{MAX_MESSAGE_BYTES, check_length};
use crate::transport::SendParts;
use crate::{Arrival, Envelope, Error, Lengths, MAX_PARTS, Mark, Rank, Result, Signature, Tag};

pub(super) const FIXED_BYTES: usize = 12;

const SIGNATURE_BYTES: usize = size_of::<Signature>();

/// Parts of fragmented messages up to this length travel in the header.
pub(super) const INLINE_BYTES: usize = 128;

pub(super) const MAX_HEADER_BYTES: usize = FIXED_BYTES + SIGNATURE_BYTES + 8 + MAX_PARTS * (8 + INLINE_BYTES);

const PARTS: u8 = 3;
const MARKED: u8 = 4;
const FRAGMENTED: u8 = 8;
const COUNTED: u8 = 16;
const PADDED: u8 = 32;
const SIGNED: u8 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) mark: Mark,
    pub(super) lengths: Lengths,
    pub(super) is_fragmented: bool,
    /// Whether it counts against its sender's credit.
    pub(super) is_counted: bool,
    pub(super) is_padded: bool,
    /// Whether the header contains the signature.
    pub(super) is_signed: bool,
    pub(super) consumed: u8,
    pub(super) serial: u16,
}

/// The header of a fragment: a part that is a UCX message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentHeader {
    pub(super) from: Rank,
    pub(super) serial: u32,
    pub(super) part: u8,
    pub(super) is_counted: bool,
}

pub(super) const FRAGMENT_BYTES: usize = 10;

impl Header {
    /// The header of a message of `parts`, which is fragmented if several exceed `packed_bytes` together.
    ///
    /// # Errors
    /// As [`check_length`].
    #[inline]
    pub(super) fn new(envelope: &Envelope, parts: &SendParts, packed_bytes: usize) -> Result<Self> {
        check_length(envelope.tag.source(), parts)?;
        let lengths: Lengths = parts.iter().map(ReadLease::len).collect();
        let is_fragmented = parts.len() > 1 && lengths.iter().sum::<usize>() > packed_bytes;
        let Envelope { tag, signature, mark } = *envelope;
        Ok(Self {
            tag,
            signature,
            mark,
            lengths,
            is_fragmented,
            is_counted: false,
            is_padded: false,
            is_signed: true,
            consumed: 0,
            serial: 0,
        })
    }

    #[inline]
    pub(super) fn total_bytes(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// The part that is the payload, if a single part is.
    #[inline]
    pub(super) fn payload_part(&self) -> Option<usize> {
        let at_least = if self.is_fragmented { INLINE_BYTES + 1 } else { 1 };
        self.lengths.iter().position(|length| *length >= at_least)
    }

    #[inline]
    pub(super) fn payload_bytes(&self) -> usize {
        match self.is_fragmented {
            true => self.payload_part().map_or(0, |part| self.lengths[part]),
            false => self.total_bytes(),
        }
    }

    /// Bytes that come with the header: the payload, and the inline parts.
    #[inline]
    pub(super) fn bytes_at_once(&self) -> usize {
        self.payload_bytes() + if self.is_fragmented { self.inline_bytes() } else { 0 }
    }

    /// Bytes on the wire: headers and payload of the message and its fragments.
    #[inline]
    pub(super) fn wire_bytes(&self) -> u64 {
        let mark = if self.mark == Mark::NONE { 0 } else { 8 };
        let signature = if self.is_signed { SIGNATURE_BYTES } else { 0 };
        let lengths = if self.lengths.len() > 1 { 8 * self.lengths.len() } else { 0 };
        (FIXED_BYTES
            + signature
            + mark
            + lengths
            + FRAGMENT_BYTES * self.fragments().count()
            + self.total_bytes()) as u64
    }

    #[inline]
    pub(super) fn arrival(&self) -> Arrival {
        Arrival { mark: self.mark, lengths: self.lengths.clone() }
    }

    /// The parts that are fragments.
    pub(super) fn fragments(&self) -> impl Iterator<Item = usize> + '_ {
        let first = if self.is_fragmented {
            self.payload_part().map_or(MAX_PARTS, |part| part + 1)
        } else {
            MAX_PARTS
        };
        (first..self.lengths.len()).filter(|part| self.lengths[*part] > INLINE_BYTES)
    }

    /// Writes the header of `parts`; returns its length.
    #[inline]
    pub(super) fn encode(&self, parts: &SendParts, room: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        let mut flags = self.lengths.len() as u8;
        room[..8].copy_from_slice(&self.tag.0.to_le_bytes());
        room[9] = self.consumed;
        room[10..12].copy_from_slice(&self.serial.to_le_bytes());
        let mut end = FIXED_BYTES;
        let mut put = |bytes: &[u8]| {
            room[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        if self.is_signed {
            flags |= SIGNED;
            put(&self.signature.0);
        }
        if self.mark != Mark::NONE {
            flags |= MARKED;
            put(&self.mark.0.to_le_bytes());
        }
        if self.lengths.len() > 1 {
            self.lengths.iter().for_each(|length| put(&(*length as u64).to_le_bytes()));
        }
        if self.is_fragmented {
            flags |= FRAGMENTED;
            // A copy: a UCX message of its own costs more than these bytes do.
            parts.iter().filter(|part| part.len() <= INLINE_BYTES).for_each(|part| put(part.bytes()));
        }
        room[8] = flags | if self.is_counted { COUNTED } else { 0 } | if self.is_padded { PADDED } else { 0 };
        end
    }

    /// Reads the header of a message with a payload of `payload_bytes`; returns its inline parts, too. An
    /// absent signature stays zero.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`encode`](Self::encode) does not make. The rank is the sender
    /// that the bytes name, which need not exist.
    #[inline]
    pub(super) fn decode(bytes: &[u8], payload_bytes: usize) -> Result<(Self, &[u8])> {
        let Some((fixed, mut rest)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
            let what = format!("a header of {} bytes, expected at least {FIXED_BYTES}", bytes.len());
            return Err(Error::Protocol { rank: Rank(u32::MAX), what });
        };
        let (tag, [flags, consumed, low, high]) = split(fixed);
        let refuse = |what: String| Err(Error::Protocol { rank: tag.source(), what });
        let part_count = usize::from(flags & PARTS);
        let is_padded = flags & PADDED != 0;
        let is_odd = flags & FRAGMENTED != 0 && part_count < 2 || is_padded && payload_bytes != 1;
        if flags & !(PARTS | MARKED | FRAGMENTED | COUNTED | PADDED | SIGNED) != 0
            || !tag.is_of(tag.source())
            || is_odd
        {
            return refuse("a header with bits set that have no meaning".into());
        }
        let cut =
            || Error::Protocol { rank: tag.source(), what: format!("a header cut to {} bytes", bytes.len()) };
        let (mut signature, mut mark) = (Signature::default(), Mark::NONE);
        let is_signed = flags & SIGNED != 0;
        if is_signed {
            let (found, behind) = rest.split_first_chunk().ok_or_else(cut)?;
            (signature, rest) = (Signature(*found), behind);
        }
        if flags & MARKED != 0 {
            mark = Mark(take_u64(&mut rest).ok_or_else(cut)?);
        }
        let mut lengths = Lengths::new();
        if part_count == 1 {
            lengths.push(if is_padded { 0 } else { payload_bytes });
        }
        let mut room = MAX_MESSAGE_BYTES;
        for _ in 0..if part_count > 1 { part_count } else { 0 } {
            let length = take_u64(&mut rest).ok_or_else(cut)?;
            match (room.checked_sub(length), usize::try_from(length)) {
                (Some(left), Ok(length)) => {
                    room = left;
                    lengths.push(length);
                }
                _ => return refuse(format!("a part of {length} bytes, expected at most {room}")),
            }
        }
        let (is_fragmented, is_counted) = (flags & FRAGMENTED != 0, flags & COUNTED != 0);
        let serial = u16::from_le_bytes([low, high]);
        let header = Self {
            tag,
            signature,
            mark,
            lengths,
            is_fragmented,
            is_counted,
            is_padded,
            is_signed,
            consumed,
            serial,
        };
        let inline: usize = if is_fragmented { header.inline_bytes() } else { 0 };
        if rest.len() != inline {
            return refuse(format!("{} bytes behind a header, expected {inline}", rest.len()));
        }
        Ok((header, rest))
    }

    pub(super) fn inline_bytes(&self) -> usize {
        self.lengths.iter().filter(|length| **length <= INLINE_BYTES).sum()
    }
}

#[inline]
fn split(fixed: &[u8; FIXED_BYTES]) -> (Tag, [u8; 4]) {
    let [first, second, last] = bytemuck::pod_read_unaligned::<[u32; 3]>(fixed);
    (Tag(u64::from_le_bytes(bytemuck::cast([first, second]))), bytemuck::cast(last))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

/// The header of a message of one part, without mark or padding, with the signature of the message before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) tag: Tag,
    pub(super) is_counted: bool,
    pub(super) consumed: u8,
    pub(super) serial: u16,
}

impl Plain {
    const FLAGS: u8 = 1;

    #[inline]
    pub(super) fn encode(self) -> [u8; FIXED_BYTES] {
        let ([low, high], flags) =
            (self.serial.to_le_bytes(), Self::FLAGS | if self.is_counted { COUNTED } else { 0 });
        let [first, second] = bytemuck::cast::<_, [u32; 2]>(self.tag.0.to_le_bytes());
        bytemuck::cast([first, second, bytemuck::cast([flags, self.consumed, low, high])])
    }

    /// `None` for any other header.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, [flags, consumed, low, high]) = split(bytes.try_into().ok()?);
        let (is_counted, serial) = (flags & COUNTED != 0, u16::from_le_bytes([low, high]));
        (flags & !COUNTED == Self::FLAGS).then_some(Self { tag, is_counted, consumed, serial })
    }
}

impl FragmentHeader {
    pub(super) fn encode(&self) -> [u8; FRAGMENT_BYTES] {
        let ([a, b, c, d], [e, f, g, h]) = (self.from.0.to_le_bytes(), self.serial.to_le_bytes());
        [a, b, c, d, e, f, g, h, self.part, self.is_counted.into()]
    }

    /// `None` for what [`encode`](Self::encode) does not make.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, part, is_counted] = *bytes.first_chunk::<FRAGMENT_BYTES>()?;
        let is_right = bytes.len() == FRAGMENT_BYTES && usize::from(part) < MAX_PARTS && is_counted < 2;
        let (from, serial) = (Rank(u32::from_le_bytes([a, b, c, d])), u32::from_le_bytes([e, f, g, h]));
        is_right.then_some(Self { from, serial, part, is_counted: is_counted == 1 })
    }
}
