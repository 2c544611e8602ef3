//! Cells: nine lines with a stamp in the first word, which is written last.
//!
//! | word of the first line | message | short | long | offer | piece | others |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | stamp: 32 bits of the cell's number plus one, 8 bits of kind, 8 of the number of parts, 16 extra | extra: bytes | extra: lines of its first piece, already in the ring | as message | as message | as message |
//! | 1 | tag | tag | tag | tag | bytes | number of the offer |
//! | 2, 3 | signature | the first 48 bytes | signature | signature | | |
//! | 4 | mark | | mark | mark | | |
//! | 5 | three lengths of 16 bits | | length | length | | |
//! | 6, 7 | the first 16 bytes | | lengths | lengths | | |
//!
//! Behind it, a message has the rest of its payload; an offer has its number, the word that says whether its
//! memory may be read (or 64), the serial number that it then holds, zero, and three addresses.
//!
//! A message is short when it has one part, and signature and mark of the last message, long or offer before
//! it (zeros before the first): so up to 48 bytes lie in the line of the stamp. If it does not fit its cell,
//! it is *middling* up to 32 KiB: the cell says its tag, and its bytes in the extra bits, and all of them lie
//! in the ring already, or in the pocket. Of an offer that is short all lies there: tag, length, number,
//! word, serial number and address.

use std::ops::Range;

use crate::limits::MAX_MESSAGE_BYTES;
use crate::{Arrival, Envelope, Mark, Rank, Signature, Tag};

pub(super) const CELLS: u64 = 64;
pub(super) const CELL_BYTES: usize = 576;

/// Payload in the first line, and in a cell.
pub(super) const FIRST_BYTES: usize = 16;
pub(super) const INLINE_BYTES: usize = FIRST_BYTES + CELL_BYTES - 64;

/// Where the payload of a short message begins in its cell.
pub(super) const SHORT_AT: usize = 16;
const _: () = assert!(SHORT_AT + INLINE_BYTES <= CELL_BYTES);

/// The longest message that lies in the ring as a whole.
pub(super) const MIDDLING_BYTES: usize = 32 << 10;

/// The pocket, and the longest message that lies there.
pub(super) const POCKET_BYTES: usize = 8 << 10;
pub(super) const POCKETED_BYTES: usize = 2 << 10;

/// A line, as words.
pub(super) type Line = [u64; 8];

/// What a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Message = 1,
    Long = 2,
    Piece = 3,
    Offer = 4,
    Grant = 5,
    /// The message was read from its sender's memory.
    Read = 6,
    Data = 7,
    /// The message is not wanted.
    Refusal = 8,
    /// A message of one part that says of itself only what differs from the one before.
    Short = 9,
    /// Likewise an offer.
    ShortOffer = 10,
    /// A message like a short one, whose payload lies in the ring as a whole.
    Middling = 11,
    /// A message like a short one, whose payload lies in the pocket.
    Pocketed = 14,
}

/// What a message says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) mark: Mark,
    pub(super) parts: usize,
    /// Bytes of each part, zero for those that are not there.
    pub(super) lengths: [usize; 3],
}

/// Where an offered message lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: u32,
    /// The word that says whether the memory may be read; [`NO_WORD`](Self::NO_WORD) if it may not.
    pub(super) word: usize,
    pub(super) serial: u64,
    pub(super) addresses: [usize; 3],
}

impl Place {
    pub(super) const NO_WORD: usize = super::OPEN_MESSAGES;
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Message,
            2 => Self::Long,
            3 => Self::Piece,
            4 => Self::Offer,
            5 => Self::Grant,
            6 => Self::Read,
            7 => Self::Data,
            8 => Self::Refusal,
            9 => Self::Short,
            10 => Self::ShortOffer,
            11 => Self::Middling,
            14 => Self::Pocketed,
            _ => return None,
        })
    }
}

/// The first byte of a cell in its area.
#[inline]
pub(super) fn offset_of(position: u64) -> usize {
    (position % CELLS) as usize * CELL_BYTES
}

/// Whether the cell that begins with `stamp` is the one at `position`.
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

/// The kind and the extra bits.
#[inline]
pub(super) fn read_stamp(stamp: u64) -> Result<(Kind, u16), String> {
    match Kind::decode((stamp >> 32) as u8) {
        Some(kind) => Ok((kind, (stamp >> 48) as u16)),
        None => Err(format!("a cell of kind {}, expected 1 to 14", (stamp >> 32) as u8)),
    }
}

impl Head {
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

    /// Bytes of payload; a decoded head's fit.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.lengths[0] + self.lengths[1] + self.lengths[2]
    }

    /// Bytes of each part.
    #[inline]
    pub(super) fn lengths(&self) -> &[usize] {
        self.lengths.get(..self.parts).unwrap_or(&self.lengths)
    }

    pub(super) fn arrival(&self) -> Arrival {
        Arrival { mark: self.mark, lengths: self.lengths().iter().copied().collect() }
    }

    /// The first line of a message whose payload begins with `first`.
    #[inline]
    pub(super) fn inline_line(&self, first: [u8; FIRST_BYTES]) -> Line {
        let [a, b, c] = self.lengths.map(|length| length as u64 & 0xffff);
        let whole = u128::from_le_bytes(first);
        let (low, high) = (whole as u64, (whole >> 64) as u64);
        let [left, right] = self.signature.words();
        [0, self.tag.0, left, right, self.mark.0, a | b << 16 | c << 32, low, high]
    }

    /// The first line of a long message or an offer.
    pub(super) fn long_line(&self) -> Line {
        let [a, b, c] = self.lengths.map(|length| length as u64);
        let [left, right] = self.signature.words();
        [0, self.tag.0, left, right, self.mark.0, a, b, c]
    }

    /// The only line of a short offer, whose memory lies at `place`.
    pub(super) fn short_offer_line(&self, place: &Place) -> Line {
        let [number, word, serial, _, address, ..] = place.line();
        [0, self.tag.0, self.lengths[0] as u64, number, word, serial, address, 0]
    }

    /// What the line of a short offer says, which `peer` has written after a message of this signature and
    /// mark.
    pub(super) fn decode_short_offer(
        line: &Line,
        (signature, mark): (Signature, Mark),
        peer: Rank,
    ) -> Result<(Self, Place), String> {
        let [_, tag, length, number, word, serial, address, _] = *line;
        let [left, right] = signature.words();
        let long = [1 << 40, tag, left, right, mark.0, length, 0, 0];
        let place = [number, word, serial, 0, address, 0, 0, 0];
        Ok((Self::decode(&long, Kind::Offer, peer)?, Place::decode(&place)?))
    }

    /// What the first line of a cell of this kind says, which `peer` has written.
    #[inline]
    pub(super) fn decode(line: &Line, kind: Kind, peer: Rank) -> Result<Self, String> {
        let parts = usize::from((line[0] >> 40) as u8);
        let [.., a, b, c] = *line;
        let (lengths, most) = match kind {
            Kind::Message => ([a & 0xffff, a >> 16 & 0xffff, a >> 32 & 0xffff], INLINE_BYTES as u64),
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

impl Place {
    /// Where bytes `range` of the message of `head` lie, as addresses and lengths, part by part.
    pub(super) fn spans(&self, head: &Head, range: Range<usize>) -> [(usize, usize); 3] {
        let (mut skip, mut left) = (range.start, range.len());
        std::array::from_fn(|part| {
            let from = skip.min(head.lengths[part]);
            let count = (head.lengths[part] - from).min(left);
            skip -= from;
            left -= count;
            // Whatever a false address comes to, it is one of the neighbour's.
            (self.addresses[part].wrapping_add(from), count)
        })
    }

    /// The second line of an offer.
    pub(super) fn line(&self) -> Line {
        let [a, b, c] = self.addresses.map(|address| address as u64);
        [u64::from(self.number), self.word as u64, self.serial, 0, a, b, c, 0]
    }

    /// What the second line of an offer says.
    pub(super) fn decode(line: &Line) -> Result<Self, String> {
        let [number, word, serial, _, a, b, c, _] = *line;
        let number =
            u32::try_from(number).map_err(|_| format!("offer {number}, expected at most {}", u32::MAX))?;
        if word > Self::NO_WORD as u64 {
            return Err(format!("an offer with word {word}, expected at most {}", Self::NO_WORD));
        }
        Ok(Self { number, word: word as usize, serial, addresses: [a, b, c].map(|address| address as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn heads_come_back(round: u32, mark: u64, signature: [u8; 16], lengths in proptest::collection::vec(0usize..170, 0..4)) {
            let envelope = Envelope { tag: Tag::new(Rank(3), 1, 2, round), signature: Signature(signature), mark: Mark(mark) };
            let head = Head::new(envelope, lengths.iter().copied());
            prop_assert_eq!(head.lengths(), &lengths[..]);
            for (kind, mut line) in [(Kind::Message, head.inline_line([7; 16])), (Kind::Long, head.long_line()), (Kind::Offer, head.long_line())] {
                line[0] = stamp(9, kind, head.parts, 5);
                prop_assert!(is_stamped(line[0], 9) && !is_stamped(line[0], 9 + CELLS));
                prop_assert_eq!(read_stamp(line[0]), Ok((kind, 5)));
                prop_assert_eq!(Head::decode(&line, kind, Rank(3)), Ok(head));
                prop_assert!(Head::decode(&line, kind, Rank(2)).is_err());
            }
            let place = Place { number: round, word: 5, serial: mark, addresses: [usize::MAX, 0, 0] };
            let line = head.short_offer_line(&place);
            let last = (head.signature, head.mark);
            if head.parts == 1 {
                prop_assert_eq!(Head::decode_short_offer(&line, last, Rank(3)), Ok((head, place)));
            }
            prop_assert!(Head::decode_short_offer(&line, last, Rank(2)).is_err());
        }

        #[test]
        fn no_words_panic_and_lengths_are_bounded(line: Line, parts in 0u64..5, small: bool) {
            let mut line = line;
            line[0] = parts << 40;
            line[1] = Tag::new(Rank(1), 0, 0, 0).0;
            if small {
                line[5..].iter_mut().for_each(|word| *word >>= 24);
            }
            for kind in [Kind::Message, Kind::Long, Kind::Offer] {
                if let Ok(head) = Head::decode(&line, kind, Rank(1)) {
                    let most = if kind == Kind::Message { INLINE_BYTES } else { MAX_MESSAGE_BYTES as usize };
                    prop_assert!(head.bytes() <= most && head.parts <= 3);
                }
            }
            if let Ok((head, place)) = Head::decode_short_offer(&line, Default::default(), Rank(1)) {
                prop_assert!(head.bytes() <= MAX_MESSAGE_BYTES as usize && head.parts == 1 && place.word <= Place::NO_WORD);
            }
            let _ = (Place::decode(&line), read_stamp(line[3]));
        }
    }

    #[test]
    fn spans_are_the_bytes_of_their_range() {
        for lengths in [[0; 3], [5, 0, 0], [3, 0, 4], [0, 2, 9], [1, 6, 2]] {
            let envelope = Envelope {
                tag: Tag::new(Rank(0), 0, 0, 0),
                signature: Signature::default(),
                mark: Mark::NONE,
            };
            let head = Head::new(envelope, lengths.into_iter());
            let place = Place { addresses: [100, 200, usize::MAX - 1], ..Place::default() };
            let all: Vec<usize> = (0..3)
                .flat_map(|part| (0..lengths[part]).map(move |byte| place.addresses[part].wrapping_add(byte)))
                .collect();
            for start in 0..=all.len() {
                for end in start..=all.len() {
                    let spans = place.spans(&head, start..end);
                    let bytes = spans
                        .iter()
                        .flat_map(|(address, count)| (0..*count).map(|byte| address.wrapping_add(byte)));
                    assert_eq!(bytes.collect::<Vec<_>>(), all[start..end], "{start}..{end} of {lengths:?}");
                }
            }
        }
    }

    #[test]
    fn places_come_back() {
        let place = Place { number: 7, word: 63, serial: 1 << 40, addresses: [1, 2, usize::MAX] };
        assert_eq!(Place::decode(&place.line()), Ok(place));
        assert_eq!(Kind::decode(0), None);
        assert_eq!(Kind::decode(10), Some(Kind::ShortOffer));
        assert_eq!(Kind::decode(11), Some(Kind::Middling));
        assert_eq!(Kind::decode(14), Some(Kind::Pocketed));
        assert_eq!(Kind::decode(15), None);
    }
}
