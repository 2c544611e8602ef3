//! What goes before the payload of a message: 64 bytes.
//!
//! Little-endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | kind: 1 packed, the payload follows in the same UCX message; 2 spread, each part is a UCX message of its own |
//! | 1 | number of parts, 0 to 3 |
//! | 2..4 | zero |
//! | 4..8 | serial number of the message at its sender, wrapping; names it when it is withdrawn |
//! | 8..16 | tag; its source is the sender |
//! | 16..32 | signature of the call |
//! | 32..40 | mark |
//! | 40..64 | bytes of each part, 8 bytes each; zero for parts that are not there |

use crate::transport::{RecvParts, SendParts};
use crate::{Arrival, Envelope, Error, Lengths, MAX_PARTS, Mark, Rank, Result, Signature, Tag};

pub(super) const HEADER_BYTES: usize = 64;
const WORDS: usize = HEADER_BYTES / 8;

/// The most payload that one message may have, in bytes (1 TiB): a longer announcement is no message.
pub(super) const MAX_MESSAGE_BYTES: u64 = 1 << 40;

const PACKED: u8 = 1;
const SPREAD: u8 = 2;

/// What a message says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Whether the payload follows in the same UCX message.
    pub(super) is_packed: bool,
    pub(super) serial: u32,
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) mark: Mark,
    pub(super) lengths: Lengths,
}

impl Header {
    /// The header of a message of `parts`; packed if all of them have at most `packed_bytes` bytes together.
    ///
    /// # Errors
    /// [`Error::TooLong`] above [`MAX_MESSAGE_BYTES`].
    #[inline]
    pub(super) fn new(own: Rank, envelope: &Envelope, parts: &SendParts, packed_bytes: usize) -> Result<Self> {
        let mut lengths = Lengths::new();
        let mut room = MAX_MESSAGE_BYTES;
        for (part, lease) in parts.iter().enumerate() {
            let sent = lease.len() as u64;
            let capacity = usize::try_from(room).unwrap_or(usize::MAX);
            room = room.checked_sub(sent).ok_or(Error::TooLong { rank: own, part, sent, capacity })?;
            lengths.push(lease.len());
        }
        let is_packed = MAX_MESSAGE_BYTES - room <= packed_bytes as u64;
        Ok(Self {
            is_packed,
            serial: 0,
            tag: envelope.tag,
            signature: envelope.signature,
            mark: envelope.mark,
            lengths,
        })
    }

    /// Bytes of all parts; those of a decoded header fit.
    #[inline]
    pub(super) fn payload_bytes(&self) -> usize {
        self.lengths.iter().sum()
    }

    #[inline]
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = u64::from(if self.is_packed { PACKED } else { SPREAD });
        let length = |part: usize| self.lengths.get(part).map_or(0, |length| *length as u64);
        let first = kind | (self.lengths.len() as u64) << 8 | u64::from(self.serial) << 32;
        let [left, right] = bytemuck::cast::<[u8; 16], [u64; 2]>(self.signature.0);
        let [tag, mark] = [self.tag.0, self.mark.0].map(u64::to_le);
        // The signature's bytes keep their order.
        let words = [first.to_le(), tag, left, right, mark, length(0).to_le(), length(1).to_le(), length(2).to_le()];
        bytemuck::cast(words)
    }

    /// Reads the header of a UCX message of `peer` that was matched by `tag`; gives the payload packed behind it.
    ///
    /// # Errors
    /// [`Error::Protocol`] for anything that [`encode`](Self::encode) does not make, and for a payload of another
    /// length than announced.
    #[inline]
    pub(super) fn decode(message: &[u8], peer: Rank, tag: Tag) -> Result<(Self, &[u8])> {
        let refuse = |what: String| Err(Error::Protocol { rank: peer, what });
        let Some((bytes, payload)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return refuse(format!("a message of {} bytes, expected a header of {HEADER_BYTES}", message.len()));
        };
        let words = bytemuck::pod_read_unaligned::<[u64; WORDS]>(bytes);
        let [first, found, _, _, mark, lengths @ ..] = words.map(u64::from_le);
        let (kind, part_count) = (first as u8, usize::from((first >> 8) as u8));
        if kind != PACKED && kind != SPREAD {
            return refuse(format!("a message of kind {kind}, expected {PACKED} or {SPREAD}"));
        }
        if part_count > MAX_PARTS {
            return refuse(format!("a message of {part_count} parts, expected at most {MAX_PARTS}"));
        }
        if found != tag.0 {
            return refuse(format!("a header of {:?} under {tag:?}", Tag(found)));
        }
        if first & 0xffff_0000 != 0 || lengths[part_count..].iter().any(|length| *length != 0) {
            return refuse("a header with bits set that have no meaning".into());
        }
        let lengths = decode_lengths(&lengths[..part_count], peer)?;
        let signature = Signature(bytemuck::cast([words[2], words[3]]));
        let (serial, mark) = ((first >> 32) as u32, Mark(mark));
        let header = Self { is_packed: kind == PACKED, serial, tag, signature, mark, lengths };
        let announced = if header.is_packed { header.payload_bytes() } else { 0 };
        if payload.len() != announced {
            return refuse(format!("{} bytes of packed payload, announced {announced}", payload.len()));
        }
        Ok((header, payload))
    }

    /// Whether the message may be received into `places` by a receive that expects `expected`.
    #[inline]
    pub(super) fn check(&self, peer: Rank, expected: Signature, places: &RecvParts) -> Result<()> {
        if self.signature != expected {
            return Err(Error::Mismatch { rank: peer, expected, found: self.signature });
        }
        for part in 0..self.lengths.len().max(places.len()) {
            let (sent, capacity) = (self.lengths.get(part), places.get(part).map(|place| place.len()));
            let fits = matches!((sent, capacity), (Some(sent), Some(capacity)) if *sent <= capacity);
            if !fits {
                let (sent, capacity) = (sent.copied().unwrap_or(0) as u64, capacity.unwrap_or(0));
                return Err(Error::TooLong { rank: peer, part, sent, capacity });
            }
        }
        Ok(())
    }

    /// What the receiver is told.
    #[inline]
    pub(super) fn arrival(&self) -> Arrival {
        Arrival { mark: self.mark, lengths: self.lengths.clone() }
    }
}

#[inline]
fn decode_lengths(announced: &[u64], peer: Rank) -> Result<Lengths> {
    let mut room = MAX_MESSAGE_BYTES;
    let mut lengths = Lengths::new();
    for length in announced {
        match (room.checked_sub(*length), usize::try_from(*length)) {
            (Some(rest), Ok(length)) => {
                room = rest;
                lengths.push(length);
            }
            _ => {
                let what = format!("a part of {length} bytes, expected at most {room}");
                return Err(Error::Protocol { rank: peer, what });
            }
        }
    }
    Ok(lengths)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAG: Tag = Tag::new(Rank(3), 1, 2, 3);

    fn header(is_packed: bool, lengths: &[usize]) -> Header {
        Header {
            is_packed,
            serial: 0x0a0b_0c0d,
            tag: TAG,
            signature: Signature(*b"0123456789abcdef"),
            mark: Mark(0x0102_0304_0506_0708),
            lengths: lengths.iter().copied().collect(),
        }
    }

    /// What `decode` says about the bytes of a spread message of one part after `change`.
    fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut bytes = header(false, &[5]).encode().to_vec();
        change(&mut bytes);
        Header::decode(&bytes, Rank(3), TAG).expect_err("a header that is wrong").to_string()
    }

    #[test]
    fn the_bytes_are_these() {
        let bytes = header(false, &[5, 0x1_0000]).encode();
        assert_eq!(bytes[..8], [2, 2, 0, 0, 0x0d, 0x0c, 0x0b, 0x0a]);
        assert_eq!(bytes[8..16], TAG.0.to_le_bytes());
        assert_eq!(bytes[16..32], *b"0123456789abcdef");
        assert_eq!(bytes[32..40], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[40..48], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..56], [0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[56..], [0; 8]);
        assert_eq!(header(true, &[]).encode()[..2], [1, 0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refusal(|bytes| bytes[0] = 77).contains("kind 77"));
        assert!(refusal(|bytes| bytes[1] = 4).contains("4 parts"));
        assert!(refusal(|bytes| bytes[15] ^= 0x80).contains("a header of"));
        assert!(refusal(|bytes| bytes[40..48].fill(0xff)).contains("a part of 18446744073709551615 bytes"));
        assert!(refusal(|bytes| bytes[3] = 1).contains("no meaning"));
        assert!(refusal(|bytes| bytes[48] = 1).contains("no meaning"));
        assert!(refusal(|bytes| bytes.truncate(63)).contains("a message of 63 bytes"));
        assert!(refusal(|bytes| bytes.push(0)).contains("1 bytes of packed payload, announced 0"));
        assert!(refusal(|bytes| bytes[0] = 1).contains("0 bytes of packed payload, announced 5"));
    }

    #[test]
    fn lengths_that_overflow_together_are_refused() {
        let full = MAX_MESSAGE_BYTES as usize;
        for (lengths, is_right) in [(&[full][..], true), (&[full, 1], false), (&[1, usize::MAX, usize::MAX], false)] {
            let decoded = Header::decode(&header(false, lengths).encode(), Rank(3), TAG).is_ok();
            assert_eq!(decoded, is_right, "{lengths:?}");
        }
    }

    proptest! {
        #[test]
        fn messages_come_back(
            fields in any::<(u16, u32, u32, u64, [u8; 16], bool, u32)>(),
            source in 0u32..1 << 20,
            lengths in proptest::collection::vec(0usize..100, 0..=MAX_PARTS),
        ) {
            let (group, sequence, round, mark, signature, is_packed, serial) = fields;
            let tag = Tag::new(Rank(source), group, sequence, round);
            let lengths = lengths.iter().copied().collect();
            let sent = Header { is_packed, serial, tag, signature: Signature(signature), mark: Mark(mark), lengths };
            let payload = vec![7; if is_packed { sent.payload_bytes() } else { 0 }];
            let message = [&sent.encode()[..], &payload].concat();
            let (found, rest) = Header::decode(&message, Rank(source), tag).unwrap();
            prop_assert_eq!((found, rest), (sent, &payload[..]));
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            mut message in proptest::collection::vec(any::<u8>(), 0..80),
            kind in 0u8..4,
            parts in 0u8..5,
            sparse in any::<bool>(),
        ) {
            if message.len() >= HEADER_BYTES {
                (message[0], message[1]) = (kind, parts);
                message[8..16].copy_from_slice(&TAG.0.to_le_bytes());
                if sparse {
                    message[2..4].fill(0);
                    message[40..64].fill(0);
                    message[40] = (message.len() - HEADER_BYTES) as u8;
                }
            }
            if let Ok((header, payload)) = Header::decode(&message, Rank(3), TAG) {
                prop_assert_eq!([&header.encode()[..], payload].concat(), message);
            }
        }
    }
}
