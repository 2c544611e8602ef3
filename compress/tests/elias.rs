//! QSGD in Elias codes: nothing is lost, few bits if most levels are 0, and hostile bytes are refused.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::quantise::{Encoded, Format, Norm, Qsgd, Quantiser, elias};
use proptest::prelude::*;

mod shapes;

fn qsgd(values: &[f32], levels: u8, bucket: u32, norm: Norm) -> Vec<u8> {
    let mut bytes = Vec::new();
    Qsgd::new(levels, bucket, norm, 1).encode(values, &mut bytes).unwrap();
    bytes
}

fn encoded(message: &[u8], count: usize) -> Vec<u8> {
    let mut bytes = vec![9; 3];
    elias::encode(message, count, &mut bytes).unwrap();
    bytes
}

proptest! {
    #[test]
    fn nothing_is_lost(
        values in shapes::shaped(0..=3000),
        levels in 1_u8..=127,
        bucket in 1_u32..2000,
        is_largest: bool,
    ) {
        let norm = if is_largest { Norm::Largest } else { Norm::Euclidean };
        let message = qsgd(&values, levels, bucket, norm);
        let bytes = encoded(&message, values.len());
        let mut decoded = vec![9; 3];
        elias::decode(&bytes, values.len(), &mut decoded).unwrap();
        prop_assert_eq!(&decoded, &message);
        // Every truncation is noticed, and every extra byte.
        let cut = bytes.len() / 2;
        prop_assert!(elias::decode(&bytes[..cut], values.len(), &mut decoded).is_err());
        prop_assert!(decoded.is_empty());
        prop_assert!(elias::decode(&[&bytes[..], &[0]].concat(), values.len(), &mut decoded).is_err());
    }

    /// Damaged or arbitrary bytes: what is accepted is what an encoder would have written.
    #[test]
    fn any_bytes_are_refused_or_canonical(
        count in 0_usize..1200,
        levels in prop::sample::select(vec![1_u8, 2, 7, 127]),
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        keep: prop::sample::Index,
    ) {
        let values: Vec<f32> = shapes::shape(0, count, 3);
        let mut bytes = encoded(&qsgd(&values, levels, 512, Norm::Euclidean), count);
        flips.iter().for_each(|flip| {
            let bit = flip.index(8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
        });
        let mut other = bytes[..keep.index(bytes.len() + 1)].to_vec();
        other.extend(tail);
        for bytes in [bytes, other] {
            let mut message = Vec::new();
            match elias::decode(&bytes, count, &mut message) {
                Err(_) => prop_assert!(message.is_empty()),
                Ok(()) => {
                    let mut values = vec![0.0; count];
                    Encoded::new(Format::Qsgd, count, &message).unwrap().decode_into(&mut values).unwrap();
                    prop_assert!(values.iter().all(|value| value.is_finite()));
                    prop_assert_eq!(&encoded(&message, count), &bytes);
                }
            }
        }
    }
}

/// Head, one norm, and the bits, written by hand.
fn by_hand(levels: u32, bits: &str) -> Vec<u8> {
    let mut bytes = [512_u32.to_le_bytes(), levels.to_le_bytes(), 2.0_f32.to_le_bytes()].concat();
    let bits: Vec<u8> = bits.bytes().filter(|bit| *bit != b' ').map(|bit| bit - b'0').collect();
    bytes.extend(
        bits.chunks(8).map(|byte| byte.iter().enumerate().fold(0, |all, (i, bit)| all | bit << (7 - i))),
    );
    bytes
}

#[test]
fn bits_are_those_of_the_description() {
    // Levels 0, 3, 0, -1 of 3; then 16 zeros. Gaps are 2, 2 and 17.
    let bytes = by_hand(3, "100 0 110  100 1 0  10 100 10001 0");
    let mut message = Vec::new();
    elias::decode(&bytes, 20, &mut message).unwrap();
    let mut values = [9.0; 20];
    Encoded::new(Format::Qsgd, 20, &message).unwrap().decode_into(&mut values).unwrap();
    let mut expected = [0.0; 20];
    (expected[1], expected[3]) = (2.0, -2.0 / 3.0);
    assert_eq!(values, expected);
    assert_eq!(encoded(&message, 20), bytes);
}

#[test]
fn what_no_encoder_writes_is_refused() {
    let refused = |bytes: &[u8], count: usize, part: &str| {
        let error = elias::decode(bytes, count, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(&[0; 7], 20, "bytes before Elias codes");
    refused(&by_hand(0, "0"), 20, "levels");
    refused(&by_hand(128, "0"), 20, "levels");
    let mut odd = by_hand(3, "0");
    odd[0] = 1;
    refused(&odd, 20, "values in a bucket");
    refused(&by_hand(3, "0")[..11], 20, "bytes of norms");
    // A level of 4, where there are 3; a place after the end; bits that end early.
    refused(&by_hand(3, "100 0 10 100 0"), 20, "magnitude of a level");
    refused(&by_hand(3, "10 100 11111 0"), 20, "values up to the end");
    refused(&by_hand(3, "100 0 110"), 20, "bits of Elias codes");
    refused(&by_hand(3, ""), 20, "bits of Elias codes");
    refused(&by_hand(3, "10 100 10101 0 00000 00000000"), 20, "bytes of Elias codes");
    refused(&by_hand(3, "10 100 10101 0 1"), 20, "after the last Elias code");
    // Digits that would go on forever.
    refused(&by_hand(3, &"1".repeat(400)), 20, "digits of an Elias code");
    let mut endless = by_hand(3, "10 100 10101 0");
    endless[8..12].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let error = elias::decode(&endless, 20, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::NonFinite { .. }), "{error}");
    elias::decode(&by_hand(3, "10 100 10101 0"), 20, &mut Vec::new()).unwrap();
    // A code that is no level: 3 of two bits, with one level.
    let mut message = qsgd(&[0.0; 20], 1, 512, Norm::Euclidean);
    *message.last_mut().unwrap() = 0xff;
    assert!(matches!(elias::encode(&message, 20, &mut Vec::new()), Err(Error::Malformed { found: 2, .. })));
}

/// For a length without the norms of its buckets, no memory is allocated.
#[test]
fn room_is_made_only_for_what_can_be_there() {
    let mut message = Vec::new();
    assert!(elias::decode(&by_hand(1, "0"), 1 << 32, &mut message).is_err());
    assert_eq!(message.capacity(), 0);
}

#[test]
fn it_pays_where_most_levels_are_zero() {
    let mut values = vec![0.0; 1 << 16];
    Generator::new(5).fill_normal(&mut values);
    let bits = |levels| {
        8.0 * encoded(&qsgd(&values, levels, 512, Norm::Euclidean), values.len()).len() as f64 / 65536.0
    };
    let [one, seven] = [1, 7].map(bits);
    println!("bits a value: {one} with one level, {seven} with seven");
    assert!(one < 0.5, "{one}");
    assert!(seven < 1.7, "{seven}");
}
