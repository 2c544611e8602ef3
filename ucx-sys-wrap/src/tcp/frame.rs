//! The frames of a connection: a header of 64 bytes and, in messages and data, payload behind it.
//!
//! The header, little-endian:
//!
//! | bytes | field | message, RTS | others |
//! | --- | --- | --- | --- |
//! | 0 | kind | 1 message, 6 RTS | 2 bye, 3 notice, 5 credit, 7 CTS, 8 NACK, 9 data |
//! | 1 | number of parts | 0 to 3 | 0 |
//! | 2..4 | reserved | 0 | 0 |
//! | 4..8 | number | message: 0; RTS: its number | notice: the context, and its epoch above 16 bits; CTS, NACK, data: the RTS's number |
//! | 8..16 | tag; its source is the sender | the message's | source only |
//! | 16..32 | signature of the call | the message's | 0 |
//! | 32..40 | mark | the message's | credit: bytes received so far, see [`cost`](crate::limits::cost); data: bytes that follow; notice: why the context is closed, a kind of 1 to 4 above a rank of 32 bits, or where the sender waits, 5, the call's number of 24 bits and its digest; else 0 |
//! | 40..64 | bytes of each part, 8 bytes each | 0 for parts that are not there | 0 |
//!
//! A message is followed by its parts, one after another without padding; data by the next bytes of the parts
//! of the message that the RTS has announced. Bye is the last frame of a connection.

mod decoding;

use super::sizes::Sizes;
use crate::one_sided::frame::RemoteFrame;
use crate::transport::Notice;
use crate::{Mark, Rank, Signature, Tag};

pub(super) use super::sizes::HEADER_BYTES;
pub(super) use decoding::{decode, decode_small};

/// The most payload of one data frame, in bytes: other messages go in between.
pub const SEGMENT_BYTES: usize = 1 << 20;

const MESSAGE: u8 = 1;
const BYE: u8 = 2;
const NOTICE: u8 = 3;
const CREDIT: u8 = 5;
const RTS: u8 = 6;
const CTS: u8 = 7;
const NACK: u8 = 8;
const DATA: u8 = 9;
// 10 to 13: `remote/frame.rs`.

/// One frame, without the payload behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message, whose payload follows.
    Message(Header),
    /// The close frame: the sender has left in good order.
    Bye,
    /// The sender has closed a context.
    Notice(Notice),
    /// The [`cost`](crate::limits::cost) of all eager messages that the sender has received.
    Credit(u64),
    /// Ready to send: announces a message, which is sent after a CTS.
    Rts(u32, Header),
    /// Clear to send: a receive waits for the message of this RTS.
    Cts(u32),
    /// The message of this RTS counts as received and must not be sent.
    Nack(u32),
    /// The next bytes of the message of an RTS, which follow.
    Data(u32, u64),
    /// Of a put or get.
    Remote(RemoteFrame),
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) signature: Signature,
    pub(super) mark: Mark,
    pub(super) lengths: Sizes,
}

/// Encodes `frame` as sent by `source`, without payload.
pub(super) fn encode(frame: &Frame, source: Rank) -> [u8; HEADER_BYTES] {
    let (kind, number, mark) = match frame {
        Frame::Message(header) => return header.encode(),
        Frame::Remote(frame) => return frame.encode(source),
        Frame::Rts(number, header) => {
            let mut bytes = header.encode();
            bytes[0] = RTS;
            bytes[4..8].copy_from_slice(&number.to_le_bytes());
            return bytes;
        }
        Frame::Bye => (BYE, 0, 0),
        Frame::Notice(Notice { context, epoch, said }) => {
            (NOTICE, u32::from(*context) | u32::from(*epoch) << 16, said.encode())
        }
        Frame::Credit(total) => (CREDIT, 0, *total),
        Frame::Cts(number) => (CTS, *number, 0),
        Frame::Nack(number) => (NACK, *number, 0),
        Frame::Data(number, bytes) => (DATA, *number, *bytes),
    };
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..16].copy_from_slice(&Tag::new(source, 0, 0, 0).0.to_le_bytes());
    bytes[32..40].copy_from_slice(&mark.to_le_bytes());
    bytes
}

impl Header {
    /// Bytes of payload; the sum does not overflow in a decoded header.
    #[inline]
    pub(super) fn payload_bytes(&self) -> usize {
        self.lengths.total()
    }

    /// Encodes the message without its payload.
    #[inline]
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = u64::from(MESSAGE) | (self.lengths.len() as u64) << 8;
        bytes[..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.signature.0);
        bytes[32..40].copy_from_slice(&self.mark.0.to_le_bytes());
        for (field, length) in bytes[40..].chunks_exact_mut(8).zip(self.lengths.padded()) {
            field.copy_from_slice(&(*length as u64).to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::decoding::word;
    use super::*;
    use crate::limits::MAX_MESSAGE_BYTES;
    use crate::{Failure, MAX_PARTS};

    fn message(lengths: &[usize]) -> Frame {
        Frame::Message(Header {
            tag: Tag::new(Rank(3), 1, 2, 3),
            signature: Signature(*b"0123456789abcdef"),
            mark: Mark(0x0102_0304_0506_0708),
            lengths: lengths.iter().copied().collect(),
        })
    }

    /// What `decode` says about the bytes of a message of one part after `change`.
    fn refusal(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> String {
        let mut bytes = encode(&message(&[5]), Rank(3));
        change(&mut bytes);
        decode(&bytes, Rank(3), 4).expect_err("a frame that is wrong").to_string()
    }

    #[test]
    fn the_bytes_of_a_message_are_these() {
        let bytes = encode(&message(&[5, 0x1_0000]), Rank(3));
        assert_eq!(bytes[..8], [1, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], Tag::new(Rank(3), 1, 2, 3).0.to_le_bytes());
        assert_eq!(bytes[16..32], *b"0123456789abcdef");
        assert_eq!(bytes[32..40], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[40..48], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..56], [0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[56..], [0; 8]);
    }

    #[test]
    fn the_bytes_of_a_notice_are_these() {
        let notice = notice(0x0301, Failure::Aborted(Rank(0x0102)));
        let bytes = encode(&notice, Rank(3));
        assert_eq!(bytes[..8], [3, 0, 0, 0, 1, 3, 7, 0]);
        assert_eq!(bytes[32..40], [2, 1, 0, 0, 2, 0, 0, 0]);
        assert_eq!(decode(&bytes, Rank(3), 0x103).unwrap(), notice);
    }

    fn notice(context: u16, cause: Failure) -> Frame {
        Frame::Notice(Notice::closed(context, 7, cause))
    }

    #[test]
    fn frames_without_payload_come_back() {
        let Frame::Message(header) = message(&[7, 1 << 39]) else { unreachable!() };
        for frame in [
            Frame::Bye,
            notice(0, Failure::PeerLost(Rank(1))),
            notice(1023, Failure::TimedOut(Rank(2))),
            notice(5, Failure::Differs(Rank(3))),
            Frame::Credit(u64::MAX - 1),
            Frame::Rts(u32::MAX, header),
            Frame::Cts(5),
            Frame::Nack(6),
            Frame::Data(7, 1 << 20),
        ] {
            assert_eq!(decode(&encode(&frame, Rank(3)), Rank(3), 4).unwrap(), frame);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(refusal(|bytes| bytes[0] = 77).contains("a frame of kind 77"));
        assert!(refusal(|bytes| bytes[0] = 0).contains("a frame of kind 0"));
        assert!(refusal(|bytes| bytes[1] = 4).contains("4 parts"));
        assert!(refusal(|bytes| bytes[15] ^= 0x80).contains("the tag of rank"));
        assert!(refusal(|bytes| bytes[40..48].fill(0xff)).contains("a part of 18446744073709551615 bytes"));
        assert!(refusal(|bytes| bytes[3] = 1).contains("no meaning"));
        assert!(refusal(|bytes| bytes[7] = 1).contains("no meaning"));
        assert!(refusal(|bytes| bytes[48] = 1).contains("no meaning"));
    }

    #[test]
    fn lengths_that_overflow_together_are_refused() {
        let full = MAX_MESSAGE_BYTES as usize;
        assert_eq!(decode(&encode(&message(&[full]), Rank(3)), Rank(3), 4).unwrap(), message(&[full]));
        for lengths in
            [&[full, 1][..], &[full + 1], &[1, full], &[usize::MAX, usize::MAX], &[1, 1, usize::MAX]]
        {
            assert!(decode(&encode(&message(lengths), Rank(3)), Rank(3), 4).is_err(), "{lengths:?}");
        }
    }

    #[test]
    fn notices_that_no_rank_sends_are_refused() {
        for frame in [notice(0, Failure::PeerLost(Rank(4))), notice(1024, Failure::Aborted(Rank(1)))] {
            let refused = decode(&encode(&frame, Rank(3)), Rank(3), 4).unwrap_err().to_string();
            assert!(refused.contains("a notice"), "{refused}");
        }
        let mut bytes = encode(&notice(0, Failure::Aborted(Rank(1))), Rank(3));
        bytes[36] = 9;
        assert!(decode(&bytes, Rank(3), 4).is_err(), "a cause that there is not");
        bytes[36] = 2;
        bytes[7] = 1;
        assert!(decode(&bytes, Rank(3), 4).is_err(), "an epoch of more than 8 bits");
    }

    proptest! {
        #[test]
        fn the_short_form_accepts_only_what_is_a_message(
            mut bytes in any::<[u8; HEADER_BYTES]>(),
            lengths in proptest::collection::vec(0u64..200, 0..=4),
            noise in proptest::option::of(0usize..HEADER_BYTES),
        ) {
            bytes[..8].fill(0);
            bytes[40..].fill(0);
            (bytes[0], bytes[1]) = (MESSAGE, lengths.len() as u8);
            for (field, length) in bytes[40..].chunks_exact_mut(8).zip(&lengths) {
                field.copy_from_slice(&length.to_le_bytes());
            }
            if let Some(at) = noise {
                bytes[at] ^= 0x41;
            }
            let peer = Tag(word(&bytes, 8)).source();
            let judged = decode(&bytes, peer, 8).ok().and_then(|frame| match frame {
                Frame::Message(header) if header.lengths.iter().all(|length| *length <= 100) => Some(header),
                _ => None,
            });
            prop_assert_eq!(decode_small(&bytes, peer, 100), judged);
            prop_assert_eq!(decode_small(&bytes, Rank(peer.0 ^ 1), 100), None);
        }

        #[test]
        fn messages_come_back(
            fields in any::<(u16, u32, u32, u64, [u8; 16])>(),
            source in 0u32..1 << 20,
            lengths in proptest::collection::vec(0usize..1 << 38, 0..=MAX_PARTS),
        ) {
            let (group, sequence, round, mark, signature) = fields;
            let frame = Frame::Message(Header {
                tag: Tag::new(Rank(source), group, sequence, round),
                signature: Signature(signature),
                mark: Mark(mark),
                lengths: lengths.iter().copied().collect(),
            });
            prop_assert_eq!(decode(&encode(&frame, Rank(source)), Rank(source), 1 << 20).unwrap(), frame);
        }

        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            mut bytes in any::<[u8; HEADER_BYTES]>(),
            kind in 0u8..11,
            parts in 0u8..5,
            sparse in any::<bool>(),
        ) {
            (bytes[0], bytes[1]) = (kind, parts);
            if sparse {
                bytes[2..8].fill(0);
                for part in 0..3 {
                    bytes[40 + 8 * part + 4..48 + 8 * part].fill(0);
                }
            }
            let peer = Tag(u64::from_le_bytes(bytes[8..16].try_into().unwrap())).source();
            if let Ok(frame) = decode(&bytes, peer, 8) {
                prop_assert_eq!(encode(&frame, peer), bytes);
            }
        }
    }
}
