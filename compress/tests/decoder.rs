//! Messages that are read block by block, and sums of vectors that come so, against whole ones.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::codec::{Choice, Decoder, Encoder, IndexCodec, decode_as};
use brevity_compress::generator::Generator;
use brevity_compress::merge::{MergeScratch, PiecewiseSum, add, split_largest, top_k_sum};
use brevity_compress::quantise::{ColumnSign, Format, Norm, Qsgd, Quantiser, Ternary, Values};
use brevity_compress::{Error, SparseVec, SparseView};

const CHOICES: [Choice; 5] = [
    Choice::Fast,
    Choice::Only(IndexCodec::Raw),
    Choice::Only(IndexCodec::Packed),
    Choice::Only(IndexCodec::Rice),
    Choice::Only(IndexCodec::Bitmap),
];

/// Around the ends of blocks of indices, of values, and of what is lent at once.
const COUNTS: [usize; 14] = [0, 1, 127, 128, 129, 511, 512, 513, 1024, 2047, 2048, 2049, 4097, 7000];

/// So many entries at random places, up to three of four apart.
fn entries(count: usize, generator: &mut Generator) -> SparseVec {
    let dim = 4 * count + 9;
    let mut next = 0;
    let indices = (0..count).map(|_| {
        let index = next + generator.below(3) as u32;
        next = index + 1;
        index
    });
    let indices: Vec<u32> = indices.collect();
    let values = indices.iter().map(|_| generator.below(9) as f32 - 4.0 + 1e-3 * generator.normal());
    SparseVec::from_parts(dim, indices.clone(), values.collect()).unwrap()
}

fn quantisers() -> Vec<Box<dyn Quantiser>> {
    let mut all: Vec<Box<dyn Quantiser>> = vec![
        Box::new(ColumnSign::means(7)),
        Box::new(ColumnSign::pairs(5)),
        Box::new(Ternary::new(1)),
        Box::new(Qsgd::new(4, 1024, Norm::Largest, 1)),
    ];
    all.extend(Values::ALL.map(|values| values.quantiser() as Box<dyn Quantiser>));
    all
}

fn message(entries: &SparseVec, choice: Choice, quantiser: &mut dyn Quantiser) -> Vec<u8> {
    let mut message = Vec::new();
    Encoder::new().encode(entries.view(), choice, quantiser, &mut message).unwrap();
    message
}

fn append(all: &mut SparseVec, part: SparseView<'_>) {
    // Validated again: `append` checks the order in debug builds only.
    SparseView::new(part.dim(), part.indices(), part.values()).unwrap();
    assert!(all.indices().last().is_none_or(|last| part.indices().first().is_none_or(|first| last < first)));
    all.append(part);
}

/// All entries of a message, in blocks, or up to random ends.
fn in_parts(
    bytes: &[u8],
    dim: usize,
    limit: usize,
    format: Format,
    generator: &mut Generator,
) -> Result<SparseVec, Error> {
    let mut memory = SparseVec::from_parts(3, vec![1], vec![f32::NAN]).unwrap();
    let mut decoder = Decoder::new(bytes, dim, limit, format, &mut memory)?;
    let (mut all, count) = (SparseVec::new(dim), decoder.remaining());
    assert!(count <= limit);
    let (way, mut end) = (generator.below(3), 0);
    while decoder.remaining() > 0 {
        if way == 0 || (way == 1 && generator.below(2) == 0) {
            let block = decoder.next_block()?.unwrap();
            assert!(!block.is_empty());
            append(&mut all, block);
        } else {
            end = (end + generator.below(2 + dim as u64 / 4) as usize).min(dim);
            let part = decoder.until(end)?;
            assert!(part.indices().iter().all(|&index| (index as usize) < end));
            append(&mut all, part);
        }
        assert_eq!(all.len() + decoder.remaining(), count);
    }
    assert!(decoder.until(dim)?.is_empty() && decoder.next_block()?.is_none());
    Ok(all)
}

#[test]
fn parts_of_a_message_are_the_whole() {
    let mut generator = Generator::new(5);
    for (count, choice) in COUNTS.into_iter().flat_map(|count| CHOICES.map(|choice| (count, choice))) {
        let given = entries(count, &mut generator);
        let dim = given.dim();
        for mut quantiser in quantisers() {
            let (bytes, format) = (message(&given, choice, &mut *quantiser), quantiser.format());
            let mut whole = SparseVec::new(0);
            decode_as(&bytes, dim, count, format, &mut whole).unwrap();
            let found = in_parts(&bytes, dim, count, format, &mut generator).unwrap();
            assert_eq!(found, whole, "{format:?}, {choice:?}, {count} entries");
        }
    }
}

#[test]
fn the_ends_of_the_index_space_are_reached() {
    let mut generator = Generator::new(6);
    let dim = 1 << 32;
    for count in [1, 600, 3000] {
        let indices = (0..count).map(|i| if i % 2 == 0 { i } else { u32::MAX - (count - 1 - i) });
        let mut indices: Vec<u32> = indices.collect();
        indices.sort_unstable();
        let values = vec![1.5; indices.len()];
        let given = SparseVec::from_parts(dim, indices, values).unwrap();
        for choice in &CHOICES[..3] {
            let bytes = message(&given, *choice, &mut *Values::F32.quantiser());
            let found = in_parts(&bytes, dim, 3000, Format::F32, &mut generator);
            assert_eq!(found.as_ref(), Ok(&given), "{choice:?}");
        }
    }
}

/// What is refused as a whole is refused in parts, and what is not has the same entries.
#[test]
fn hostile_bytes_are_refused_as_by_the_decoder_of_the_whole() {
    let mut generator = Generator::new(7);
    let given = entries(600, &mut generator);
    let dim = given.dim();
    let mut compare = |bytes: &[u8], limit: usize, format: Format| {
        let mut whole = SparseVec::new(0);
        let expected = decode_as(bytes, dim, limit, format, &mut whole).map(|()| whole);
        let found = in_parts(bytes, dim, limit, format, &mut generator);
        // Of several faults each may find another one first.
        assert_eq!(found.clone().ok(), expected.clone().ok(), "{found:?} {expected:?}");
    };
    for values in [Values::F32, Values::Bf16, Values::EightBit] {
        for choice in CHOICES {
            let (bytes, format) = (message(&given, choice, &mut *values.quantiser()), values.format());
            compare(&bytes, 599, format);
            for length in (0..bytes.len()).step_by(11).chain(bytes.len() - 3..bytes.len()) {
                compare(&bytes[..length], 600, format);
            }
            // All bits of the header and of what follows, and some others.
            for bit in (0..8 * 80).chain((8 * 80..8 * bytes.len()).step_by(13)) {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                compare(&flipped, 600, format);
            }
        }
    }
}

/// The bits of a sum.
fn bits(sum: &SparseVec) -> (Vec<u32>, Vec<u32>) {
    (sum.indices().to_vec(), sum.values().iter().map(|value| value.to_bits()).collect())
}

/// The sum of a vector and a message, read in blocks.
fn decoded_sum(a: &SparseVec, bytes: &[u8], format: Format, out: &mut SparseVec) -> Result<(), Error> {
    let mut memory = SparseVec::new(0);
    let mut decoder = Decoder::new(bytes, a.dim(), usize::MAX, format, &mut memory).unwrap();
    let mut sum = PiecewiseSum::new(a.view(), out);
    while let Some(block) = decoder.next_block().unwrap() {
        sum.add(block).unwrap();
    }
    sum.finish()
}

#[test]
fn a_sum_that_is_decoded_has_the_bits_of_the_whole() {
    let mut generator = Generator::new(8);
    // Has been used.
    let mut out = entries(40, &mut generator);
    for (of_a, of_b) in COUNTS.into_iter().flat_map(|a| COUNTS.map(|b| (a, b))) {
        let dim = 4 * 7000 + 9;
        let [a, b] = [of_a, of_b].map(|count| {
            let (indices, values) = entries(count, &mut generator).into_parts();
            SparseVec::from_parts(dim, indices, values).unwrap()
        });
        for values in Values::ALL {
            let bytes = message(&b, Choice::Fast, &mut *values.quantiser());
            let (mut said, mut expected) = (SparseVec::new(0), SparseVec::new(0));
            decode_as(&bytes, dim, of_b, values.format(), &mut said).unwrap();
            add(a.view(), said.view(), &mut expected).unwrap();
            decoded_sum(&a, &bytes, values.format(), &mut out).unwrap();
            assert_eq!(bits(&out), bits(&expected), "{values}, {of_a} and {of_b} entries");
            assert_eq!(out.dim(), dim);
            let (mut kept, mut dropped) = (SparseVec::new(0), SparseVec::new(0));
            let (mut as_kept, mut as_dropped) = (kept.clone(), dropped.clone());
            let (k, mut scratch) = (of_a.max(1), MergeScratch::new());
            split_largest(out.view(), k, &mut kept, &mut dropped, &mut scratch);
            top_k_sum(a.view(), said.view(), k, &mut as_kept, &mut as_dropped, &mut scratch).unwrap();
            assert_eq!((kept, dropped), (as_kept, as_dropped));
        }
    }
}

#[test]
fn overflow_is_told_at_the_end_and_leaves_nothing() {
    let count = 5000_u32;
    for bad in [0, 2047, 2048, count - 1] {
        let value = |index: u32| if index == bad || index == count - 1 { f32::MAX } else { 1.0 };
        let values: Vec<f32> = (0..count).map(value).collect();
        let a = SparseVec::from_parts(count as usize, (0..count).collect(), values).unwrap();
        let bytes = message(&a, Choice::Fast, &mut *Values::F32.quantiser());
        let mut out = a.clone();
        let refused = decoded_sum(&a, &bytes, Format::F32, &mut out);
        assert_eq!(refused, Err(Error::NonFinite { index: bad as usize, value: f32::INFINITY }));
        assert!(out.is_empty());
    }
    // Also of entries that are in one operand alone.
    let a = SparseVec::from_parts(9, vec![3, 8], vec![1.0, f32::NAN]).unwrap();
    let mut out = SparseVec::new(0);
    assert!(matches!(PiecewiseSum::new(a.view(), &mut out).finish(), Err(Error::NonFinite { index: 8, .. })));
}

#[test]
fn a_piece_that_does_not_follow_is_not_added() {
    let a = SparseVec::from_parts(9, vec![1, 5, 8], vec![1.0, 2.0, 3.0]).unwrap();
    let mut out = SparseVec::new(0);
    let mut sum = PiecewiseSum::new(a.view(), &mut out);
    let piece =
        |indices: &[u32]| SparseVec::from_parts(9, indices.to_vec(), vec![1.0; indices.len()]).unwrap();
    sum.add(piece(&[2, 5]).view()).unwrap();
    sum.add(piece(&[]).view()).unwrap();
    for late in [&[5][..], &[0, 8], &[2, 7]] {
        assert_eq!(sum.add(piece(late).view()), Err(Error::UnsortedIndices { position: 0 }));
    }
    let other = SparseVec::new(8);
    assert_eq!(sum.add(other.view()), Err(Error::LengthMismatch { expected: 9, found: 8 }));
    sum.add(piece(&[6]).view()).unwrap();
    sum.finish().unwrap();
    assert_eq!(out.iter().collect::<Vec<_>>(), [(1, 1.0), (2, 1.0), (5, 3.0), (6, 1.0), (8, 3.0)]);
}
