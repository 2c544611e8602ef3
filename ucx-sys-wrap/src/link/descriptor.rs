//! Descriptors: two cache lines each. The stamp in the first word is written last.
//!
//! | word | Eager | EagerShort, EagerInRing | First | Rts | Fragment | Cts, Fin, Nack, Data |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | stamp | stamp; extra: bytes | stamp; extra: lines of the first fragment | stamp | stamp | stamp |
//! | 1 | tag | tag | tag | tag | bytes | number of the RTS |
//! | 2, 3 | signature | payload | signature | signature | | |
//! | 4 | mark | payload | mark | mark | | |
//! | 5 | three lengths of 16 bits | payload | length of part 1 | length of part 1 | | |
//! | 6, 7 | payload | payload | lengths of parts 2, 3 | lengths of parts 2, 3 | | |
//! | 8..16 | payload | payload | | [`Rts`] | | |
//!
//! The first fragment of a First is in the ring already. The stamp has 32 bits of the descriptor's position
//! plus one, 8 bits of [`Kind`], 8 bits of the number of parts, and 16 bits called *extra*.
//!
//! The payload of an Eager or EagerShort message that does not fit its descriptor lies in the fast box.

use std::ops::Range;

use super::payload::PartCursor;
use crate::limits::MAX_MESSAGE_BYTES;
use crate::{Arrival, Envelope, Mark, Rank, Signature, Tag};

pub(super) const DESCRIPTORS: u64 = 64;
pub(super) const DESCRIPTOR_BYTES: usize = 128;

/// Where the payload of an Eager and of an EagerShort message begins in its descriptor, and how much fits
/// there.
pub(super) const INLINE_AT: usize = 48;
pub(super) const INLINE_BYTES: usize = DESCRIPTOR_BYTES - INLINE_AT;
pub(super) const SHORT_INLINE_AT: usize = 16;
pub(super) const SHORT_INLINE_BYTES: usize = DESCRIPTOR_BYTES - SHORT_INLINE_AT;

/// The longest EagerInRing message.
pub(super) const MAX_IN_RING_BYTES: usize = 32 << 10;

/// The fast box, and the longest message that it takes. Descriptors and fast box together fit a first-level
/// cache.
pub(super) const FAST_BOX_BYTES: usize = 16 << 10;
pub(super) const MAX_FAST_BOX_BYTES: usize = 2 << 10;

/// A cache line as words.
pub(super) type Line = [u64; 8];

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole message with its header.
    Eager = 1,
    /// The header of a message that comes through the ring.
    First = 2,
    /// The next bytes in the ring belong to the first message that is not complete.
    Fragment = 3,
    /// A message may be read, or asked for.
    Rts = 4,
    /// Asks for the message of an RTS through the ring.
    Cts = 5,
    /// The message was read from the sender's memory.
    Fin = 6,
    /// After a CTS: fragments of the message follow.
    Data = 7,
    /// The receiver does not want the message.
    Nack = 8,
    /// A whole message of one part that repeats signature and mark of the last Eager, First or Rts (zeros
    /// before any).
    EagerShort = 9,
    /// Likewise, with its payload in the ring.
    EagerInRing = 10,
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) mark: Mark,
    pub(super) parts: usize,
    /// Bytes of each part, zero for parts that do not exist.
    pub(super) lengths: [usize; 3],
}

/// An RTS: the header of a message, and where the message lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rts {
    pub(super) header: Header,
    pub(super) number: u32,
    /// The guard word that holds `serial` while the memory may be read; [`NO_GUARD`](Self::NO_GUARD) if it
    /// may not.
    pub(super) guard: usize,
    pub(super) serial: u64,
    /// Whether it takes credit until its receive is posted, so that the receiver may keep its bytes.
    pub(super) takes_credit: bool,
    pub(super) addresses: [usize; 3],
}

impl Rts {
    pub(super) const NO_GUARD: usize = super::GUARDS;
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Eager,
            2 => Self::First,
            3 => Self::Fragment,
            4 => Self::Rts,
            5 => Self::Cts,
            6 => Self::Fin,
            7 => Self::Data,
            8 => Self::Nack,
            9 => Self::EagerShort,
            10 => Self::EagerInRing,
            _ => return None,
        })
    }
}

/// The first byte of a descriptor in its area.
#[inline]
pub(super) fn offset_of(position: u64) -> usize {
    (position % DESCRIPTORS) as usize * DESCRIPTOR_BYTES
}

/// Whether a descriptor with `stamp` is the one at `position`.
#[inline]
pub(super) fn is_stamped(stamp: u64, position: u64) -> bool {
    stamp as u32 == position.wrapping_add(1) as u32
}

#[inline]
pub(super) fn stamp(position: u64, kind: Kind, parts: usize, extra: u16) -> u64 {
    u64::from(position.wrapping_add(1) as u32)
        | (kind as u64) << 32
        | (parts as u64) << 40
        | u64::from(extra) << 48
}

/// The kind and the extra bits of a stamp.
#[inline]
pub(super) fn decode_stamp(stamp: u64) -> Result<(Kind, u16), String> {
    match Kind::decode((stamp >> 32) as u8) {
        Some(kind) => Ok((kind, (stamp >> 48) as u16)),
        None => Err(format!("a descriptor of kind {}, expected 1 to 10", (stamp >> 32) as u8)),
    }
}

impl Header {
    #[inline]
    pub(super) fn new(envelope: Envelope, parts: impl Iterator<Item = usize>) -> Self {
        let mut lengths = [0; 3];
        let mut count = 0;
        for (length, bytes) in lengths.iter_mut().zip(parts) {
            *length = bytes;
            count += 1;
        }
        Self { tag: envelope.tag, signature: envelope.signature, mark: envelope.mark, parts: count, lengths }
    }

    /// Bytes of payload. [`decode`](Self::decode) has checked that the sum does not overflow.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.lengths[0] + self.lengths[1] + self.lengths[2]
    }

    #[inline]
    pub(super) fn lengths(&self) -> &[usize] {
        self.lengths.get(..self.parts).unwrap_or(&self.lengths)
    }

    pub(super) fn arrival(&self) -> Arrival {
        Arrival { mark: self.mark, lengths: self.lengths().iter().copied().collect() }
    }

    /// Words 1 to 5 of an Eager message.
    #[inline]
    pub(super) fn eager_words(&self) -> [u64; 5] {
        let [a, b, c] = self.lengths.map(|length| length as u64 & 0xffff);
        let [left, right] = self.signature.words();
        [self.tag.0, left, right, self.mark.0, a | b << 16 | c << 32]
    }

    /// Words 1 to 7 of a First or an Rts.
    pub(super) fn wide_words(&self) -> [u64; 7] {
        let [a, b, c] = self.lengths.map(|length| length as u64);
        let [left, right] = self.signature.words();
        [self.tag.0, left, right, self.mark.0, a, b, c]
    }

    /// Decodes the first line of a descriptor of this kind that `peer` has written.
    #[inline]
    pub(super) fn decode(line: &Line, kind: Kind, peer: Rank) -> Result<Self, String> {
        let parts = usize::from((line[0] >> 40) as u8);
        let [.., a, b, c] = *line;
        let (lengths, most) = match kind {
            Kind::Eager => ([a & 0xffff, a >> 16 & 0xffff, a >> 32 & 0xffff], MAX_FAST_BOX_BYTES as u64),
            _ => ([a, b, c], MAX_MESSAGE_BYTES),
        };
        let tag = Tag(line[1]);
        if tag.source() != peer {
            return Err(format!("a message with the tag of rank {}", tag.source()));
        }
        if parts > 3 || lengths.iter().skip(parts).any(|length| *length != 0) {
            return Err(format!("a message of {parts} parts, expected at most 3"));
        }
        let sum = lengths.iter().try_fold(0u64, |sum, length| sum.checked_add(*length));
        if sum.is_none_or(|sum| sum > most) {
            return Err(format!("a message of {lengths:?} bytes, expected at most {most}"));
        }
        let signature = Signature::from_words([line[2], line[3]]);
        Ok(Self {
            tag,
            signature,
            mark: Mark(line[4]),
            parts,
            lengths: lengths.map(|length| length as usize),
        })
    }
}

impl Rts {
    /// The addresses and lengths of bytes `range` of the message, part by part.
    pub(super) fn spans(&self, range: Range<usize>) -> [(usize, usize); 3] {
        let mut cursor = PartCursor::new(range);
        std::array::from_fn(|part| {
            let bytes = cursor.next(self.header.lengths[part]);
            // A false address, even if it wraps, is an address in the peer's memory.
            (self.addresses[part].wrapping_add(bytes.start), bytes.len())
        })
    }

    /// The second cache line.
    pub(super) fn line(&self) -> Line {
        let [a, b, c] = self.addresses.map(|address| address as u64);
        [u64::from(self.number), self.guard as u64, self.serial, self.takes_credit.into(), a, b, c, 0]
    }

    pub(super) fn decode(header: Header, line: &Line) -> Result<Self, String> {
        let [number, guard, serial, credit, a, b, c, _] = *line;
        let number =
            u32::try_from(number).map_err(|_| format!("RTS {number}, expected at most {}", u32::MAX))?;
        if guard > Self::NO_GUARD as u64 {
            return Err(format!("an RTS with guard word {guard}, expected at most {}", Self::NO_GUARD));
        }
        let addresses = [a, b, c].map(|address| address as usize);
        Ok(Self { header, number, guard: guard as usize, serial, takes_credit: credit != 0, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(lengths: &[usize]) -> Header {
        let tag = Tag::new(Rank(0), 0, 0, 0);
        Header::new(
            Envelope { tag, signature: Signature::default(), mark: Mark::NONE },
            lengths.iter().copied(),
        )
    }

    fn rts(lengths: &[usize]) -> Rts {
        Rts {
            header: header(lengths),
            number: 7,
            guard: 63,
            serial: 1 << 40,
            takes_credit: true,
            addresses: [1, 2, usize::MAX],
        }
    }

    proptest! {
        #[test]
        fn a_header_decodes_to_itself(
            round: u32,
            mark: u64,
            signature: [u8; 16],
            lengths in proptest::collection::vec(0usize..170, 0..4),
        ) {
            let tag = Tag::new(Rank(3), 1, 2, round);
            let envelope = Envelope { tag, signature: Signature(signature), mark: Mark(mark) };
            let header = Header::new(envelope, lengths.iter().copied());
            prop_assert_eq!(header.lengths(), &lengths[..]);
            let [tag, left, right, mark, packed] = header.eager_words();
            let message = [tag, left, right, mark, packed, 7, 7];
            let wide = header.wide_words();
            for (kind, words) in [(Kind::Eager, message), (Kind::First, wide), (Kind::Rts, wide)] {
                let mut line = [stamp(9, kind, header.parts, 5); 8];
                line[1..].copy_from_slice(&words);
                prop_assert!(is_stamped(line[0], 9) && !is_stamped(line[0], 9 + DESCRIPTORS));
                prop_assert_eq!(decode_stamp(line[0]), Ok((kind, 5)));
                prop_assert_eq!(Header::decode(&line, kind, Rank(3)), Ok(header));
                prop_assert!(Header::decode(&line, kind, Rank(2)).is_err());
            }
        }

        #[test]
        fn no_words_panic_and_lengths_are_bounded(line: Line, parts in 0u64..5, small: bool) {
            let mut line = line;
            line[0] = parts << 40;
            line[1] = Tag::new(Rank(1), 0, 0, 0).0;
            if small {
                line[5..].iter_mut().for_each(|word| *word >>= 24);
            }
            for kind in [Kind::Eager, Kind::First, Kind::Rts] {
                if let Ok(header) = Header::decode(&line, kind, Rank(1)) {
                    let most =
                        if kind == Kind::Eager { MAX_FAST_BOX_BYTES } else { MAX_MESSAGE_BYTES as usize };
                    prop_assert!(header.bytes() <= most && header.parts <= 3);
                }
            }
            let _ = (Rts::decode(header(&[]), &line), decode_stamp(line[3]));
        }
    }

    #[test]
    fn spans_are_the_bytes_of_their_range() {
        for lengths in [[0; 3], [5, 0, 0], [3, 0, 4], [0, 2, 9], [1, 6, 2]] {
            let rts = Rts { addresses: [100, 200, usize::MAX - 1], ..rts(&lengths) };
            let all: Vec<usize> = (0..3)
                .flat_map(|part| (0..lengths[part]).map(move |byte| rts.addresses[part].wrapping_add(byte)))
                .collect();
            for start in 0..=all.len() {
                for end in start..=all.len() {
                    let spans = rts.spans(start..end);
                    let bytes = spans
                        .iter()
                        .flat_map(|(address, count)| (0..*count).map(|byte| address.wrapping_add(byte)));
                    assert_eq!(bytes.collect::<Vec<_>>(), all[start..end], "{start}..{end} of {lengths:?}");
                }
            }
        }
    }

    #[test]
    fn an_rts_decodes_to_itself() {
        let rts = rts(&[5, 6, 7]);
        for rts in [rts, Rts { takes_credit: false, ..rts }] {
            assert_eq!(Rts::decode(rts.header, &rts.line()), Ok(rts));
        }
    }

    #[test]
    fn a_kind_decodes_to_itself() {
        for byte in 0..=255 {
            assert_eq!(Kind::decode(byte).map_or(0, |kind| kind as u8), if byte <= 10 { byte } else { 0 });
        }
    }
}
