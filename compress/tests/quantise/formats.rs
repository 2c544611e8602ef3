//! The values of each format, and the refusal of other bytes.

use brevity_compress::Error;
use brevity_compress::quantise::{
    ColumnSign, DeferredFeedback, Encoded, Format, Magnitude, MinMax, Quantiser, Sign, TwoBit,
};
use proptest::prelude::*;

use super::shapes::shaped;
use super::{decoded, quantisers, values_at};

/// Lengths at and beside the ends of groups, blocks and buckets.
const LENGTHS: [usize; 16] = [0, 1, 2, 7, 8, 9, 63, 65, 511, 512, 513, 1023, 1024, 1025, 1537, 5000];

fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let all: Vec<f64> = values.map(|v| f64::from(v.abs())).collect();
    if all.is_empty() { 0.0 } else { (all.iter().sum::<f64>() / all.len() as f64) as f32 }
}

fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= 1e-6 * e.abs(), "{what}, n {}, {i}: {f}, expected {e}", found.len());
    }
}

#[test]
fn deterministic_formats_are_what_they_are_defined_to_be() {
    for n in LENGTHS {
        let values = values_at(n, n as u64);
        let signed = |magnitude: f32| values.iter().map(|v| magnitude.copysign(*v)).collect::<Vec<_>>();
        let all = mean(values.iter().copied());
        assert_near(&decoded(&mut Sign::new(Magnitude::Mean), &values), &signed(all), "mean");
        let min = values.iter().fold(f32::INFINITY, |min, v| min.min(v.abs()));
        assert_near(&decoded(&mut Sign::new(Magnitude::Min), &values), &signed(min), "min");

        let column = |c: usize, columns: usize| values.iter().skip(c).step_by(columns).copied();
        let by_column: Vec<f32> =
            values.iter().enumerate().map(|(i, v)| mean(column(i % 7, 7)).copysign(*v)).collect();
        assert_near(&decoded(&mut ColumnSign::means(7), &values), &by_column, "column means");
        let pair =
            |i: usize, v: f32| mean(column(i % 3, 3).filter(|other| (*other < 0.0) == (v < 0.0))).copysign(v);
        let pairs: Vec<f32> = values.iter().enumerate().map(|(i, &v)| pair(i, v)).collect();
        assert_near(&decoded(&mut ColumnSign::pairs(3), &values), &pairs, "two means a column");
    }
}

#[test]
fn two_bits_part_small_from_large() {
    for (n, magnitude) in LENGTHS.into_iter().flat_map(|n| [(n, Magnitude::Mean), (n, Magnitude::Min)]) {
        let values = values_at(n, 5);
        let mut quantiser = TwoBit::new(magnitude);
        decoded(&mut quantiser, &values);
        let threshold = quantiser.threshold().unwrap_or(0.0);
        let level = |large: bool| {
            let of = values.iter().copied().filter(|v| (v.abs() > threshold) == large);
            match magnitude {
                Magnitude::Mean => mean(of),
                Magnitude::Min => of.fold(f32::INFINITY, |min, v| min.min(v.abs())),
            }
        };
        let expected: Vec<f32> = values.iter().map(|v| level(v.abs() > threshold).copysign(*v)).collect();
        assert_near(&decoded(&mut quantiser, &values), &expected, "two bits");
    }
}

/// The mean of small values keeps its bits beside large ones.
#[test]
fn two_bit_means_are_not_differences() {
    for (large, count, at) in [(1e8, 96, 0), (3e30, 96, 95), (1e12, 5000, 4096), (-1e20, 5000, 4999)] {
        let mut values = vec![1.0; count];
        values[at] = large;
        assert_eq!(decoded(&mut TwoBit::default(), &values), values, "{large} at {at} of {count}");
        let (mut feedback, zeros) =
            (DeferredFeedback::new(count, TwoBit::default()).unwrap(), vec![0.0; count]);
        feedback.compress(&values).unwrap();
        assert_eq!(feedback.residual(), zeros, "{large} at {at} of {count}");
    }
}

#[test]
fn two_bit_threshold_settles_where_the_normal_law_has_it() {
    // Max (1960): four levels of a standard normal: threshold 0.9816, mean squared error 0.1175.
    let values = values_at(400_000, 8);
    let mut quantiser = TwoBit::new(Magnitude::Mean);
    (0..30).for_each(|_| drop(decoded(&mut quantiser, &values)));
    let threshold = quantiser.threshold().unwrap();
    assert!((threshold - 0.9816).abs() < 0.01, "{threshold}");
    let said = decoded(&mut quantiser, &values);
    let error = said.iter().zip(&values).map(|(d, v)| f64::from(d - v).powi(2)).sum::<f64>() / 400_000.0;
    assert!((error - 0.1175).abs() < 0.002, "{error}");
}

#[test]
fn min_max_is_within_half_a_step() {
    for n in LENGTHS {
        let values = values_at(n, 3);
        let said = decoded(&mut MinMax::default(), &values);
        for (bucket, said) in values.chunks(512).zip(said.chunks(512)) {
            let (least, most) = bucket.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            let bound = (most - least) / 255.0 * 0.5 + 4.0 * f32::EPSILON * least.abs().max(most.abs());
            assert!(bucket.iter().zip(said).all(|(v, d)| (v - d).abs() <= bound), "n {n}");
        }
    }
    let extreme = [f32::MAX, f32::MIN, 0.0, 1e38];
    let said = decoded(&mut MinMax::default(), &extreme);
    assert!(said.iter().zip(extreme).all(|(d, v)| (f64::from(*d) - f64::from(v)).abs() < 1.4e36), "{said:?}");
}

#[test]
fn non_finite_input_is_reported_by_all() {
    for (n, at) in [(1, 0), (600, 599), (2000, 1024)] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = values_at(n, 1);
            values[at] = bad;
            for mut quantiser in quantisers(1) {
                let found = quantiser.encode(&values, &mut Vec::new());
                let reported = matches!(found, Err(Error::NonFinite { index, .. }) if index == at);
                assert!(reported, "{:?}: {found:?}", quantiser.format());
            }
        }
    }
}

#[test]
fn formats_have_their_numbers() {
    for (number, format) in (0_u8..).zip(Format::ALL) {
        assert_eq!((format.id(), Format::from_id(number)), (number, Some(format)));
    }
    assert_eq!(Format::from_id(10), None);
    // Fixed values: a change of these would make ranks of different builds diverge.
    let values: Vec<f32> = (0..600).map(|i| ((i * 7919) % 1201) as f32 - 600.0).collect();
    let sums: Vec<u32> = quantisers(5)
        .iter_mut()
        .map(|quantiser| {
            let mut bytes = Vec::new();
            quantiser.encode(&values, &mut bytes).unwrap();
            bytes.iter().fold(0_u32, |sum, &byte| sum.rotate_left(5).wrapping_add(u32::from(byte)))
        })
        .collect();
    let expected = [
        4010417030, 3066149556, 142329425, 2793128551, 4028516012, 2223472655, 1187523468, 3684065395,
        3749731800, 3749731800, 2898480309, 779928744, 3971914164, 1657715188,
    ];
    assert_eq!(sums, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn hostile_bytes_are_refused_or_finite(
        id in 0_u8..12,
        count in prop_oneof![0_usize..40, 500_usize..1100, Just(usize::MAX), Just(1 << 60)],
        bytes in prop::collection::vec(any::<u8>(), 0..1200),
    ) {
        if let Some(format) = Format::from_id(id) && let Ok(message) = Encoded::new(format, count, &bytes) {
            let mut out = vec![0.0; count];
            message.decode_into(&mut out).unwrap();
            prop_assert!(out.iter().all(|v| v.is_finite()), "{:?}: {:?}", format, out);
        }
    }

    /// Valid bytes, some of them changed, or too few.
    #[test]
    fn damaged_bytes_are_refused_or_finite(
        values in shaped(0..=1100),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        head in prop::collection::vec(any::<u8>(), 0..12),
        cut in 0_usize..3,
        seed: u64,
    ) {
        for mut quantiser in quantisers(seed) {
            let mut bytes = Vec::new();
            quantiser.encode(&values, &mut bytes).unwrap();
            bytes.truncate(bytes.len().saturating_sub(cut));
            bytes.iter_mut().zip(&head).for_each(|(byte, head)| *byte = *head);
            if !bytes.is_empty() {
                damage.iter().for_each(|(at, byte)| *at.get_mut(&mut bytes) = *byte);
            }
            let mut out = vec![0.0; values.len()];
            if let Ok(message) = Encoded::new(quantiser.format(), values.len(), &bytes) {
                message.decode_into(&mut out).unwrap();
                prop_assert!(out.iter().all(|v| v.is_finite()), "{:?}: {:?}", quantiser.format(), out);
            }
        }
    }
}
