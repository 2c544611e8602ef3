//! Cells: two lines, with a stamp in the first word, which is written last.
//!
//! | word of the first line | message | short, middling | long | offer | piece | others |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 0 | stamp: 32 bits of the cell's number plus one, 8 bits of kind, 8 of the number of parts, 16 extra | extra: bytes | extra: lines of its first piece, already in the ring | as message | as message | as message |
//! | 1 | tag | tag | tag | tag | bytes | number of the offer |
//! | 2, 3 | signature | payload | signature | signature | | |
//! | 4 | mark | payload | mark | mark | | |
//! | 5 | three lengths of 16 bits | payload | length | length | | |
//! | 6, 7 | payload | payload | lengths | lengths | | |
//!
//! The second line is payload too; that of an offer has its number, the word that says whether its memory may
//! be read (or 64), the serial number that it then holds, one if it is paid for, and three addresses.
//!
//! A message of up to 2 KiB lies in its cell if it fits what the table calls payload there, else in the pocket.
//! A message is *short* when it has one part, and signature and mark of the last message, long or offer before
//! it (zeros before the first). It is *middling* when, likewise, it is too long for its cell and for the pocket,
//! or finds the pocket full: all its bytes, up to 32 KiB, lie in the ring already.

use std::ops::Range;

use crate::limits::MAX_MESSAGE_BYTES;
use crate::{Arrival, Envelope, Mark, Rank, Signature, Tag};

pub(super) const CELLS: u64 = 64;
pub(super) const CELL_BYTES: usize = 128;

/// Where the payload of a message and of a short one begins in its cell, and how much fits there.
pub(super) const MESSAGE_AT: usize = 48;
pub(super) const MESSAGE_BYTES: usize = CELL_BYTES - MESSAGE_AT;
pub(super) const SHORT_AT: usize = 16;
pub(super) const SHORT_BYTES: usize = CELL_BYTES - SHORT_AT;

/// The longest message that lies in the ring as a whole.
pub(super) const MIDDLING_BYTES: usize = 32 << 10;

/// The pocket, and the longest message that lies there. Cells and pocket together fit the first cache of a
/// processor.
pub(super) const POCKET_BYTES: usize = 16 << 10;
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
    /// A message like a short one, whose payload lies in the ring as a whole.
    Middling = 10,
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
    /// Whether it counts as sent without asking until a receive is there, so that its bytes may be kept.
    pub(super) is_paid: bool,
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
            10 => Self::Middling,
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
        None => Err(format!("a cell of kind {}, expected 1 to 10", (stamp >> 32) as u8)),
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

    /// What the first line of a message says behind the stamp.
    #[inline]
    pub(super) fn message_words(&self) -> [u64; 5] {
        let [a, b, c] = self.lengths.map(|length| length as u64 & 0xffff);
        let [left, right] = self.signature.words();
        [self.tag.0, left, right, self.mark.0, a | b << 16 | c << 32]
    }

    /// What the first line of a long message or an offer says behind the stamp.
    pub(super) fn long_words(&self) -> [u64; 7] {
        let [a, b, c] = self.lengths.map(|length| length as u64);
        let [left, right] = self.signature.words();
        [self.tag.0, left, right, self.mark.0, a, b, c]
    }

    /// What the first line of a cell of this kind says, which `peer` has written.
    #[inline]
    pub(super) fn decode(line: &Line, kind: Kind, peer: Rank) -> Result<Self, String> {
        let parts = usize::from((line[0] >> 40) as u8);
        let [.., a, b, c] = *line;
        let (lengths, most) = match kind {
            Kind::Message => ([a & 0xffff, a >> 16 & 0xffff, a >> 32 & 0xffff], POCKETED_BYTES as u64),
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
        [u64::from(self.number), self.word as u64, self.serial, self.is_paid.into(), a, b, c, 0]
    }

    /// What the second line of an offer says.
    pub(super) fn decode(line: &Line) -> Result<Self, String> {
        let [number, word, serial, paid, a, b, c, _] = *line;
        let number =
            u32::try_from(number).map_err(|_| format!("offer {number}, expected at most {}", u32::MAX))?;
        if word > Self::NO_WORD as u64 {
            return Err(format!("an offer with word {word}, expected at most {}", Self::NO_WORD));
        }
        let addresses = [a, b, c].map(|address| address as usize);
        Ok(Self { number, word: word as usize, serial, is_paid: paid != 0, addresses })
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
            let [tag, left, right, mark, packed] = head.message_words();
            let message = [tag, left, right, mark, packed, 7, 7];
            for (kind, words) in [(Kind::Message, message), (Kind::Long, head.long_words()), (Kind::Offer, head.long_words())] {
                let mut line = [stamp(9, kind, head.parts, 5); 8];
                line[1..].copy_from_slice(&words);
                prop_assert!(is_stamped(line[0], 9) && !is_stamped(line[0], 9 + CELLS));
                prop_assert_eq!(read_stamp(line[0]), Ok((kind, 5)));
                prop_assert_eq!(Head::decode(&line, kind, Rank(3)), Ok(head));
                prop_assert!(Head::decode(&line, kind, Rank(2)).is_err());
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
            for kind in [Kind::Message, Kind::Long, Kind::Offer] {
                if let Ok(head) = Head::decode(&line, kind, Rank(1)) {
                    let most = if kind == Kind::Message { POCKETED_BYTES } else { MAX_MESSAGE_BYTES as usize };
                    prop_assert!(head.bytes() <= most && head.parts <= 3);
                }
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
        let place =
            Place { number: 7, word: 63, serial: 1 << 40, is_paid: true, addresses: [1, 2, usize::MAX] };
        for place in [place, Place { is_paid: false, ..place }] {
            assert_eq!(Place::decode(&place.line()), Ok(place));
        }
    }

    #[test]
    fn kinds_come_back() {
        for byte in 0..=255 {
            assert_eq!(Kind::decode(byte).map_or(0, |kind| kind as u8), if byte <= 10 { byte } else { 0 });
        }
    }
}
