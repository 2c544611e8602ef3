//! Messages are decoded as they were encoded, and hostile bytes give an error or a valid sparse vector.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::codec::{
    Choice, Encoder, HEADER_BYTES, IndexCodec, Plain, decode, decode_as, decode_values, most_bytes,
    usual_bytes,
};
use brevity_compress::generator::Generator;
use brevity_compress::quantise::{
    ColumnSign, Encoded, Format, HalfPrecision, Magnitude, MinMax, Norm, Qsgd, Quantiser, Sign, Ternary,
    TwoBit, Values,
};
use brevity_compress::{Error, SparseVec};
use proptest::prelude::*;

const CHOICES: [Choice; 6] = [
    Choice::Fast,
    Choice::Smallest,
    Choice::Only(IndexCodec::Raw),
    Choice::Only(IndexCodec::Packed),
    Choice::Only(IndexCodec::Rice),
    Choice::Only(IndexCodec::Bitmap),
];

fn sparse(dim: usize, indices: Vec<u32>) -> SparseVec {
    let values = indices.iter().map(|&index| 0.5 + index as f32).collect();
    SparseVec::from_parts(dim, indices, values).unwrap()
}

fn message(entries: &SparseVec, choice: Choice, quantiser: &mut dyn Quantiser) -> Vec<u8> {
    let mut message = vec![7; 3];
    Encoder::new().encode(entries.view(), choice, quantiser, &mut message).unwrap();
    message
}

/// Encodes and decodes with every codec that fits the length.
fn check(entries: &SparseVec) {
    for choice in CHOICES {
        if choice == Choice::Only(IndexCodec::Bitmap) && entries.dim() > 1 << 24 {
            continue;
        }
        let bytes = message(entries, choice, &mut Plain);
        let mut found = SparseVec::new(1);
        decode(&bytes, entries.dim(), entries.len(), &mut found)
            .unwrap_or_else(|error| panic!("{choice:?}: {error}"));
        assert!(found == *entries, "{choice:?}, dim {}, {} entries", entries.dim(), entries.len());
    }
}

/// Rising indices: gaps of up to `2^bits` places, in runs of several widths.
fn indices() -> impl Strategy<Value = (usize, Vec<u32>)> {
    let runs = prop::collection::vec((0_u32..30, 0_usize..300), 0..4);
    (runs, any::<u64>(), 0_u64..3).prop_map(|(runs, seed, more)| {
        let (mut generator, mut indices, mut next) = (Generator::new(seed), Vec::new(), 0_u64);
        for (bits, count) in runs {
            for _ in 0..count {
                let index = next + generator.below(1 << bits);
                if index < 1 << 32 {
                    indices.push(index as u32);
                    next = index + 1;
                }
            }
        }
        (((next + more).min(1 << 32)) as usize, indices)
    })
}

proptest! {
    #[test]
    fn messages_come_back((dim, indices) in indices()) {
        check(&sparse(dim, indices));
    }

    #[test]
    fn any_bytes_are_an_error_or_a_sparse_vector(
        (dim, indices) in indices(),
        choice in prop::sample::select(&CHOICES[..5]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let dim = dim.max(1);
        let mut bytes = message(&sparse(dim, indices), choice, &mut Plain);
        let length = bytes.len();
        changes.iter().for_each(|(place, byte)| bytes[place.index(length)] = *byte);
        check_hostile(&bytes, dim, 2000);
    }
}

/// Decodes; without an error, the result is a sparse vector of finite values.
fn check_hostile(bytes: &[u8], dim: usize, limit: usize) {
    let mut out = sparse(3, vec![1]);
    match decode(bytes, dim, limit, &mut out) {
        Ok(()) => {
            let (dim_found, (indices, values)) = (out.dim(), out.into_parts());
            assert!(dim_found == dim && indices.len() <= limit, "dim {dim_found}, {} entries", indices.len());
            assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
            assert!(SparseVec::from_parts(dim, indices.clone(), values).is_ok(), "{indices:?}");
        }
        Err(_) => assert!(out.is_empty()),
    }
}

#[test]
fn none_one_all_and_the_ends_of_the_index_space_come_back() {
    check(&sparse(0, vec![]));
    check(&sparse(1 << 32, vec![]));
    check(&sparse(1 << 32, vec![u32::MAX]));
    check(&sparse(1 << 32, vec![0, u32::MAX]));
    check(&sparse(1, vec![0]));
    for count in [127, 128, 129, 256, 1000] {
        check(&sparse(count, (0..count as u32).collect()));
        check(&sparse(1 << 32, (0..count as u32).map(|i| u32::MAX - (count as u32 - 1 - i)).collect()));
        // Gaps of more than 24 bits everywhere, and a single one.
        let step = u32::MAX / count as u32;
        check(&sparse(1 << 32, (0..count as u32).map(|i| i * step + (i & 1) * (step - 1)).collect()));
        check(&sparse(1 << 32, (0..count as u32).map(|i| if i < 64 { i } else { (1 << 31) + i }).collect()));
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_an_error_or_a_sparse_vector() {
    let mut quantisers: [Box<dyn Quantiser>; 7] = [
        Box::new(Plain),
        Box::new(HalfPrecision::f16()),
        Box::new(HalfPrecision::bf16()),
        Box::new(Sign::new(Magnitude::Mean)),
        Values::OneBitColumns(7).quantiser(),
        Values::Ternary.quantiser(),
        Values::Qsgd(7).quantiser(),
    ];
    let entries = sparse(300, (0..130).map(|i| i * 2 + i % 2).collect());
    for quantiser in &mut quantisers {
        for choice in CHOICES {
            let bytes = message(&entries, choice, quantiser);
            for length in 0..bytes.len() {
                let cut = decode(&bytes[..length], 300, 300, &mut SparseVec::new(0));
                assert!(matches!(cut, Err(Error::Malformed { .. })), "{choice:?}, {length} bytes: {cut:?}");
            }
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                check_hostile(&flipped, 300, 300);
                check_hostile(&flipped, 300, 130);
            }
        }
    }
}

/// Heads of values that another sender could have written, or none.
#[test]
fn values_are_held_to_what_was_agreed() {
    let entries = sparse(300, (0..130).map(|i| i * 2 + i % 2).collect());
    let refused = |values: Values, message: &[u8]| {
        let found = decode_values(message, 300, 300, values, &mut SparseVec::new(0));
        assert!(matches!(found, Err(Error::Malformed { .. })), "{values}: {found:?}");
    };
    for (values, others) in [
        (Values::OneBitColumns(7), [0, 6, 8, u32::MAX]),
        (Values::Qsgd(7), [0, 1, 128, u32::MAX]),
        (Values::Qsgd(127), [0, 126, 128, u32::MAX]),
    ] {
        let good = message(&entries, Choice::Fast, &mut *values.quantiser());
        decode_values(&good, 300, 300, values, &mut SparseVec::new(0)).unwrap();
        let head = good.len() - values.most_bytes(entries.len());
        let at = if values == Values::OneBitColumns(7) { head } else { head + 4 };
        for other in others {
            let mut bad = good.clone();
            bad[at..at + 4].copy_from_slice(&other.to_le_bytes());
            refused(values, &bad);
        }
        refused(if values == Values::Qsgd(7) { Values::Qsgd(6) } else { Values::Ternary }, &good);
    }
}

#[test]
fn a_message_is_held_to_what_was_agreed() {
    let bytes = message(&sparse(300, vec![3, 9]), Choice::Fast, &mut Plain);
    let refused = |bytes: &[u8], dim, limit| decode(bytes, dim, limit, &mut SparseVec::new(0)).unwrap_err();
    assert_eq!(refused(&bytes, 299, 2), Error::Malformed { what: "elements", expected: 299, found: 300 });
    assert_eq!(refused(&bytes, 300, 1), Error::Malformed { what: "entries, at most", expected: 1, found: 2 });
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(refused(&longer, 300, 2), Error::Malformed { .. }));
    let mut infinite = bytes.clone();
    let last = bytes.len() - 4;
    infinite[last..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(refused(&infinite, 300, 2), Error::NonFinite { index: 1, .. }));
    // As many entries as possible, in a message of a few bytes.
    let mut greedy = bytes[..HEADER_BYTES].to_vec();
    greedy[8..16].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    greedy[16..24].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    greedy[24..40].fill(0);
    for codec in 0..4 {
        greedy[2] = codec;
        assert!(matches!(refused(&greedy, 1 << 32, usize::MAX), Error::Malformed { .. }), "codec {codec}");
    }
}

#[test]
fn what_is_not_finite_is_not_sent() {
    let entries = SparseVec::from_parts(9, vec![2, 7], vec![1.0, f32::NAN]).unwrap();
    let mut message = vec![1];
    let refused = Encoder::new().encode(entries.view(), Choice::Fast, &mut Plain, &mut message);
    assert!(matches!(refused, Err(Error::NonFinite { index: 7, .. })), "{refused:?}");
    assert!(message.is_empty());
}

#[test]
fn values_are_those_of_the_quantiser() {
    let entries = sparse(5000, (0..700).map(|i| 7 * i).collect());
    let mut quantisers: [Box<dyn Quantiser>; 3] =
        [Box::new(HalfPrecision::bf16()), Box::new(Sign::new(Magnitude::Mean)), Box::new(MinMax::new(512))];
    for quantiser in &mut quantisers {
        let mut bytes = Vec::new();
        quantiser.encode(entries.values(), &mut bytes).unwrap();
        let mut expected = vec![0.0; 700];
        Encoded::new(quantiser.format(), 700, &bytes).unwrap().decode_into(&mut expected).unwrap();
        let mut found = SparseVec::new(0);
        decode(&message(&entries, Choice::Fast, quantiser), 5000, 700, &mut found).unwrap();
        assert_eq!(
            (found.indices(), found.values()),
            (entries.indices(), &expected[..]),
            "{:?}",
            quantiser.format()
        );
    }
    assert_ne!(quantisers[0].format(), Format::F32);
}

#[test]
fn the_smallest_is_chosen() {
    let codec = |entries: &SparseVec, choice| message(entries, choice, &mut Plain)[2];
    let mut generator = Generator::new(1);
    let mut random =
        |density: f64| sparse(100_000, (0..100_000).filter(|_| generator.uniform() < density).collect());
    let (thin, thick) = (random(0.01), random(0.4));
    assert_eq!(codec(&thin, Choice::Fast), IndexCodec::Packed as u8);
    assert_eq!(codec(&thin, Choice::Smallest), IndexCodec::Rice as u8);
    assert_eq!(codec(&thick, Choice::Fast), IndexCodec::Bitmap as u8);
    for entries in [thin, thick] {
        let length = |choice| message(&entries, choice, &mut Plain).len();
        let smallest = CHOICES.map(length).into_iter().min();
        assert_eq!(Some(length(Choice::Smallest)), smallest);
    }
}

/// A message is refused where another format was agreed, whichever two they are.
#[test]
fn another_format_than_the_agreed_is_refused() {
    let entries = sparse(300, vec![3, 9, 200]);
    let mut quantisers: [Box<dyn Quantiser>; 10] = [
        Box::new(Plain),
        Box::new(HalfPrecision::f16()),
        Box::new(HalfPrecision::bf16()),
        Box::new(Sign::new(Magnitude::Mean)),
        Box::new(ColumnSign::means(4)),
        Box::new(ColumnSign::pairs(4)),
        Box::new(TwoBit::new(Magnitude::Mean)),
        Box::new(Ternary::new(1)),
        Box::new(Qsgd::new(4, 512, Norm::Largest, 1)),
        Box::new(MinMax::new(512)),
    ];
    for (quantiser, sent) in quantisers.iter_mut().zip(Format::ALL) {
        let bytes = message(&entries, Choice::Fast, quantiser);
        for agreed in Format::ALL {
            let mut out = SparseVec::new(0);
            let outcome = decode_as(&bytes, 300, 3, agreed, &mut out);
            let (expected, found) = (agreed.id().into(), sent.id().into());
            match outcome {
                Ok(()) => assert!(agreed == sent && out.len() == 3),
                Err(error) => {
                    assert_eq!(error, Error::Malformed { what: "as value format", expected, found });
                    assert!(agreed != sent && out.is_empty());
                }
            }
        }
    }
}

#[test]
fn no_message_is_longer_than_said() {
    let mut generator = Generator::new(7);
    let (mut encoder, mut message) = (Encoder::new(), Vec::new());
    for round in 0..10_000_u32 {
        let dim = generator.below(600) as usize;
        // Densities from 0 to 1, both included.
        let density = f64::from(round % 101) / 100.0;
        let entries = sparse(dim, (0..dim as u32).filter(|_| generator.uniform() < density).collect());
        let limit = entries.len() + generator.below(4) as usize * 50;
        for values in Values::ALL {
            encoder.encode(entries.view(), Choice::Fast, &mut *values.quantiser(), &mut message).unwrap();
            let most = most_bytes(dim, limit, values);
            assert!(
                message.len() <= most,
                "{values}, {} of {dim}: {} > {most}",
                entries.len(),
                message.len()
            );
            decode_as(&message, dim, limit, values.format(), &mut SparseVec::new(0)).unwrap();
            decode_values(&message, dim, limit, values, &mut SparseVec::new(0)).unwrap();
        }
    }
    let full = sparse(160, (0..160).collect());
    encoder.encode(full.view(), Choice::Only(IndexCodec::Bitmap), &mut Plain, &mut message).unwrap();
    assert_eq!(message.len(), most_bytes(160, usize::MAX, Values::F32), "the bound is met");
}

/// The mean of messages whose entries are at random places, of a whole vector and of a part of one.
#[test]
fn messages_are_as_long_as_is_usual() {
    const MESSAGES: usize = 16;
    let mut generator = Generator::new(11);
    let (mut encoder, mut message) = (Encoder::new(), Vec::new());
    for (places, count) in [
        (1_000_000, 1),
        (1_000_000, 100),
        (1_000_000, 1000),
        (1_000_000, 1064),
        (1_000_000, 10_000),
        (100_000, 10_000),
        (10_000, 3000),
        (2000, 2000),
    ] {
        for (start, dim) in [(0, places), (7_000_000, 9_000_000)] {
            let mut bytes = 0;
            for _ in 0..MESSAGES {
                let mut indices = std::collections::BTreeSet::new();
                while indices.len() < count {
                    indices.insert((start + generator.below(places as u64) as usize) as u32);
                }
                let entries = sparse(dim, indices.into_iter().collect());
                encoder.encode(entries.view(), Choice::Fast, &mut Plain, &mut message).unwrap();
                bytes += message.len();
            }
            let usual = usual_bytes(dim, (start, places), count, Values::F32);
            let ratio = usual as f64 * MESSAGES as f64 / bytes as f64;
            let most = most_bytes(dim, count, Values::F32);
            assert!((0.98..=1.02).contains(&ratio), "{count} of {places} from {start}: {ratio}");
            assert!(usual <= most, "{count} of {places} from {start}: {usual} > {most}");
        }
    }
    for values in Values::ALL {
        assert_eq!(usual_bytes(0, (0, 0), 0, values), most_bytes(0, 0, values));
        // Gaps of 0 take the byte of their width alone, a bitmap two.
        assert_eq!(usual_bytes(9, (0, 9), usize::MAX, values), most_bytes(9, 9, values) - 1);
    }
}
