//! Tests of headers.

use proptest::prelude::*;

use super::header::*;
use crate::buffer::testing::lent_to_send;
use crate::limits::MAX_MESSAGE_BYTES;
use crate::{Lengths, MAX_PARTS, Mark, Rank, Signature, Tag};

const TAG: Tag = Tag::new(Rank(3), 1, 2, 3);

fn header(mark: u64, is_fragmented: bool, lengths: &[usize]) -> Header {
    Header {
        tag: TAG,
        signature: Signature(*b"0123456789abcdef"),
        mark: Mark(mark),
        lengths: lengths.iter().copied().collect(),
        is_fragmented,
        is_counted: true,
        is_padded: false,
        is_signed: true,
        consumed: 0x77,
        serial: 0x0b0a,
    }
}

fn encoded(header: &Header) -> Vec<u8> {
    let buffers: Vec<Vec<u8>> = header.lengths.iter().map(|length| vec![5; *length]).collect();
    let mut room = [0xee; MAX_HEADER_BYTES];
    let length = header.encode(&lent_to_send(&buffers), &mut room);
    room[..length].to_vec()
}

/// The error of `decode` for the bytes of a fragmented message after `change`.
fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = encoded(&header(7, true, &[2, 5000]));
    change(&mut bytes);
    Header::decode(&bytes, 5000).expect_err("a header that is wrong").to_string()
}

#[test]
fn the_bytes_are_these() {
    let bytes = encoded(&header(0, false, &[5]));
    assert_eq!(bytes[..8], TAG.0.to_le_bytes());
    assert_eq!(bytes[8..12], [1 | 16 | 64, 0x77, 0x0a, 0x0b]);
    assert_eq!(bytes[12..], *b"0123456789abcdef");
    let bytes = encoded(&header(0x0102, true, &[2, 0x1_0000]));
    assert_eq!(bytes[8], 2 | 4 | 8 | 16 | 64);
    assert_eq!(bytes[28..36], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[36..52], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[52..], [5, 5]);
    let unsigned = Header { is_signed: false, ..header(0, false, &[5]) };
    assert_eq!(encoded(&unsigned), [&TAG.0.to_le_bytes()[..], &[1 | 16, 0x77, 0x0a, 0x0b]].concat());
}

#[test]
fn a_plain_header_is_a_header() {
    for is_counted in [false, true] {
        let plain = Plain { tag: TAG, is_counted, consumed: 0x77, serial: 0x0b0a };
        let bytes = &plain.encode();
        assert_eq!(Plain::decode(bytes), Some(plain));
        let header = Header {
            is_signed: false,
            is_counted,
            signature: Signature::default(),
            ..header(0, false, &[5])
        };
        assert_eq!(Header::decode(bytes, 5).unwrap().0, header);
        assert_eq!(encoded(&header), bytes);
        for wrong in [&bytes[1..], &[bytes.as_slice(), &[0]].concat(), &[]] {
            assert_eq!(Plain::decode(wrong), None);
        }
        for bit in (0..8).filter(|bit| *bit != 4) {
            let mut bytes = bytes.to_vec();
            bytes[8] ^= 1 << bit;
            assert_eq!(Plain::decode(&bytes), None);
        }
    }
}

#[test]
fn fragmented_messages_carry_one_part_and_name_the_others() {
    for (lengths, payload_part, fragments) in [
        (&[16, 5000, 6000][..], Some(1), vec![2]),
        (&[5000, 16, 6000], Some(0), vec![2]),
        (&[5000, 129, 6000], Some(0), vec![1, 2]),
        (&[16, 128, 0], None, vec![]),
    ] {
        let header = header(0, true, lengths);
        assert_eq!(
            (header.payload_part(), header.fragments().collect::<Vec<_>>()),
            (payload_part, fragments),
            "{lengths:?}"
        );
    }
}

#[test]
fn errors_name_what_is_wrong() {
    assert!(refusal(|bytes| bytes.truncate(11)).contains("a header of 11 bytes"));
    assert!(refusal(|bytes| bytes[8] |= 128).contains("no meaning"));
    assert!(refusal(|bytes| bytes[8] |= 32).contains("no meaning"));
    assert!(refusal(|bytes| bytes[0] |= 2).contains("no meaning"));
    assert!(refusal(|bytes| bytes[8] = 8 | 1).contains("no meaning"));
    assert!(refusal(|bytes| bytes.truncate(27)).contains("a header cut to 27 bytes"));
    assert!(refusal(|bytes| bytes.truncate(35)).contains("a header cut to 35 bytes"));
    assert!(refusal(|bytes| bytes.truncate(50)).contains("a header cut to 50 bytes"));
    assert!(refusal(|bytes| bytes.truncate(53)).contains("1 bytes behind a header, expected 2"));
    assert!(refusal(|bytes| bytes.push(0)).contains("3 bytes behind a header, expected 2"));
    assert!(refusal(|bytes| bytes[36..44].fill(0xff)).contains("a part of 18446744073709551615 bytes"));
}

#[test]
fn lengths_that_overflow_together_are_refused() {
    let full = MAX_MESSAGE_BYTES;
    for (lengths, is_right) in [([full, 0], true), ([full, 1], false), ([u64::MAX, u64::MAX], false)] {
        let mut bytes = encoded(&header(0, false, &[1, 1]));
        bytes[28..36].copy_from_slice(&lengths[0].to_le_bytes());
        bytes[36..44].copy_from_slice(&lengths[1].to_le_bytes());
        assert_eq!(Header::decode(&bytes, 0).is_ok(), is_right, "{lengths:?}");
    }
}

#[test]
fn fragment_headers_round_trip() {
    let fragment = FragmentHeader { from: Rank(0x01_0203), serial: 0x0405_0607, part: 2, is_counted: true };
    assert_eq!(fragment.encode(), [3, 2, 1, 0, 7, 6, 5, 4, 2, 1]);
    assert_eq!(FragmentHeader::decode(&fragment.encode()), Some(fragment));
    for (at, value) in [(8, 3), (9, 2)] {
        let mut bytes = fragment.encode();
        bytes[at] = value;
        assert_eq!(FragmentHeader::decode(&bytes), None);
    }
    assert_eq!(FragmentHeader::decode(&fragment.encode()[1..]), None);
    assert_eq!(FragmentHeader::decode(&[0; 11]), None);
}

proptest! {
    #[test]
    fn headers_round_trip(
        fields in any::<(u16, u32, u32, Option<[u8; 16]>, bool, u16, u8)>(),
        mark in prop_oneof![Just(0), any::<u64>()],
        source in 0u32..1 << 20,
        lengths in proptest::collection::vec(0usize..300, 0..=MAX_PARTS),
        is_fragmented in any::<bool>(),
    ) {
        let (group, sequence, round, signature, is_counted, serial, consumed) = fields;
        let tag = Tag::new(Rank(source), group, sequence, round);
        let is_fragmented = is_fragmented && lengths.len() > 1;
        let lengths: Lengths = lengths.iter().copied().collect();
        let (is_signed, signature, mark) =
            (signature.is_some(), Signature(signature.unwrap_or_default()), Mark(mark));
        let is_padded = serial % 2 == 0 && lengths.iter().all(|length: &usize| *length == 0);
        let sent = Header {
            tag, signature, mark, lengths, is_fragmented, is_counted, is_padded, is_signed, consumed, serial,
        };
        let bytes = encoded(&sent);
        let payload = sent.payload_bytes() + usize::from(is_padded);
        let (found, inline) = Header::decode(&bytes, payload).unwrap();
        prop_assert_eq!(inline.len(), if is_fragmented { sent.inline_bytes() } else { 0 });
        prop_assert_eq!(found, sent);
    }

    #[test]
    fn any_bytes_decode_or_are_refused(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..400),
        flags in 0u8..128,
        lengths in proptest::collection::vec(0u64..300, 3),
        payload in 0usize..1000,
    ) {
        if bytes.len() > 60 {
            bytes[8] = flags;
            bytes[0] &= !3;
            for (at, length) in (28..).step_by(8).zip(lengths) {
                bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            }
        }
        if let Ok((header, inline)) = Header::decode(&bytes, payload) {
            prop_assert!(inline.len() <= bytes.len() && header.lengths.len() <= MAX_PARTS);
            prop_assert!(header.fragments().all(|part| part < header.lengths.len()));
        }
    }
}
