//! Quantisers: what is sent and what stays is what came in; hostile bytes are refused; randomness has no bias.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::generator::Generator;
use brevity_compress::quantise::{
    BucketFeedback, Bucketed, ColumnSign, DeferredFeedback, Encoded, Feedback, Format, HalfPrecision, Magnitude,
    MinMax, Norm, OnePass, Qsgd, Quantiser, Sign, Ternary, TwoBit, Votes, encode_entries,
};
use brevity_compress::{Error, SparseVec};
use proptest::prelude::*;
use shapes::shaped;

/// One of each kind.
fn quantisers(seed: u64) -> Vec<Box<dyn Quantiser>> {
    vec![
        Box::new(HalfPrecision::f16()),
        Box::new(HalfPrecision::bf16()),
        Box::new(Sign::new(Magnitude::Mean)),
        Box::new(Sign::new(Magnitude::Min)),
        Box::new(ColumnSign::means(7)),
        Box::new(ColumnSign::pairs(3)),
        Box::new(TwoBit::new(Magnitude::Mean)),
        Box::new(TwoBit::new(Magnitude::Min)),
        Box::new(Ternary::new(seed)),
        Box::new(Ternary::clipped(seed, 2.5)),
        Box::new(Qsgd::new(1, 1024, Norm::Euclidean, seed)),
        Box::new(Qsgd::new(7, 512, Norm::Largest, seed)),
        Box::new(Qsgd::new(100, 512, Norm::Euclidean, seed)),
        Box::new(MinMax::default()),
    ]
}

fn decoded(quantiser: &mut (impl Quantiser + ?Sized), values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![9; 3];
    quantiser.encode(values, &mut bytes).unwrap();
    assert_eq!(bytes.len(), quantiser.encoded_bytes(values.len()), "{:?}", quantiser.format());
    let mut out = vec![f32::NAN; values.len()];
    Encoded::new(quantiser.format(), values.len(), &bytes).unwrap().decode_into(&mut out).unwrap();
    assert!(out.iter().all(|v| v.is_finite()), "{:?}", quantiser.format());
    out
}

fn values_at(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Generator::new(seed).fill_normal(&mut values);
    values
}

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
        let by_column: Vec<f32> = values.iter().enumerate().map(|(i, v)| mean(column(i % 7, 7)).copysign(*v)).collect();
        assert_near(&decoded(&mut ColumnSign::means(7), &values), &by_column, "column means");
        let pair = |i: usize, v: f32| mean(column(i % 3, 3).filter(|other| (*other < 0.0) == (v < 0.0))).copysign(v);
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

/// Error feedback of any kind.
trait Kept {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error>;
    fn stays(&mut self) -> Vec<f32>;
}

impl Kept for (Feedback<Box<dyn Quantiser>>, Format, Vec<u8>) {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        self.0.compress(gradient, &mut self.2)?;
        Encoded::new(self.1, gradient.len(), &self.2)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        self.0.residual().to_vec()
    }
}

impl<Q: Bucketed> Kept for (BucketFeedback<Q>, Format, Vec<u8>) {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        self.0.compress(gradient, &mut self.2)?;
        Encoded::new(self.1, gradient.len(), &self.2)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        self.0.residual().to_vec()
    }
}

impl<Q: OnePass + Clone> Kept for DeferredFeedback<Q> {
    fn step(&mut self, gradient: &[f32], said: &mut [f32]) -> Result<(), Error> {
        let format = self.quantiser().format();
        Encoded::new(format, gradient.len(), self.compress(gradient)?)?.decode_into(said)
    }

    fn stays(&mut self) -> Vec<f32> {
        // A copy is asked, so that the next step meets a message that is still in the residual.
        self.clone().residual().to_vec()
    }
}

fn feedbacks(n: usize, seed: u64) -> Vec<Box<dyn Kept>> {
    let mut all: Vec<Box<dyn Kept>> = Vec::new();
    for quantiser in quantisers(seed) {
        let format = quantiser.format();
        all.push(Box::new((Feedback::new(n, quantiser), format, Vec::new())));
    }
    let qsgd = Qsgd::new(7, 1024, Norm::Euclidean, seed);
    all.push(Box::new((BucketFeedback::new(n, HalfPrecision::f16()), Format::F16, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, HalfPrecision::bf16()), Format::Bf16, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, MinMax::default()), Format::MinMax, Vec::new())));
    all.push(Box::new((BucketFeedback::new(n, qsgd), Format::Qsgd, Vec::new())));
    for magnitude in [Magnitude::Mean, Magnitude::Min] {
        all.push(Box::new(DeferredFeedback::new(n, Sign::new(magnitude))));
        all.push(Box::new(DeferredFeedback::new(n, TwoBit::new(magnitude))));
    }
    all
}

/// What was sent plus what stays is the sum of the gradients, within three roundings a step of the largest sum on the way.
fn check_conservation(kept: &mut dyn Kept, gradients: &[Vec<f32>], number: usize) {
    let n = gradients[0].len();
    let (mut sent, mut came, mut scale) = (vec![0.0_f64; n], vec![0.0_f64; n], vec![0.0_f64; n]);
    let mut said = vec![0.0; n];
    for gradient in gradients {
        let before = kept.stays();
        kept.step(gradient, &mut said).unwrap();
        for i in 0..n {
            sent[i] += f64::from(said[i]);
            came[i] += f64::from(gradient[i]);
            scale[i] += f64::from(before[i].abs()) + f64::from(gradient[i].abs()) + f64::from(said[i].abs());
        }
    }
    for (i, stays) in kept.stays().into_iter().enumerate() {
        let off = (sent[i] + f64::from(stays) - came[i]).abs();
        assert!(off <= 3.0 * f64::from(f32::EPSILON) * scale[i], "feedback {number}, n {n}, {i}: off by {off}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn mass_is_conserved(values in shaped(0..=1300), steps in 1_usize..5, seed: u64) {
        let tame: Vec<f32> = values.iter().map(|v| v.clamp(-1e30, 1e30)).collect();
        let gradients: Vec<Vec<f32>> = (0..steps).map(|s| tame.iter().map(|v| v * (1.0 - 0.4 * s as f32)).collect()).collect();
        for (number, mut kept) in feedbacks(values.len(), seed).into_iter().enumerate() {
            check_conservation(&mut *kept, &gradients, number);
        }
    }

    /// The deferred pass gives the bits of three passes.
    #[test]
    fn deferral_changes_no_bit(values in shaped(0..=1300), steps in 1_usize..5, min: bool) {
        let magnitude = if min { Magnitude::Min } else { Magnitude::Mean };
        let n = values.len();
        let (mut plain_bytes, mut two_bytes) = (Vec::new(), Vec::new());
        let (mut plain, mut one_pass) = (Feedback::new(n, Sign::new(magnitude)), DeferredFeedback::new(n, Sign::new(magnitude)));
        let (mut two, mut two_pass) = (Feedback::new(n, TwoBit::new(magnitude)), DeferredFeedback::new(n, TwoBit::new(magnitude)));
        for step in 0..steps {
            let gradient: Vec<f32> = values.iter().map(|v| v.clamp(-1e30, 1e30) * (0.5 - step as f32)).collect();
            plain.compress(&gradient, &mut plain_bytes).unwrap();
            prop_assert!(one_pass.compress(&gradient).unwrap() == plain_bytes, "1 bit, step {}", step);
            two.compress(&gradient, &mut two_bytes).unwrap();
            let found = two_pass.compress(&gradient).unwrap();
            prop_assert!(found == two_bytes, "2 bits, step {}", step);
        }
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(one_pass.residual()), bits(plain.residual()));
        prop_assert_eq!(bits(two_pass.residual()), bits(two.residual()));
    }

    #[test]
    fn entries_keep_their_rounding(values in shaped(0..=700), seed: u64) {
        let dim = 3 * values.len() + 1;
        let tame: Vec<f32> = values.iter().map(|v| v.clamp(-1e30, 1e30)).collect();
        let indices: Vec<u32> = (0..values.len() as u32).map(|i| 3 * i + 1).collect();
        for mut quantiser in quantisers(seed) {
            let mut entries = SparseVec::from_parts(dim, indices.clone(), tame.clone()).unwrap();
            let mut residual = vec![0.0; dim];
            let mut bytes = Vec::new();
            encode_entries(&mut *quantiser, &mut entries, &mut residual, &mut Vec::new(), &mut bytes).unwrap();
            let mut received = vec![0.0; dim];
            let message = Encoded::new(quantiser.format(), entries.len(), &bytes).unwrap();
            message.add_entries_to(1.0, entries.view(), &mut received).unwrap();
            for (i, (&index, &value)) in indices.iter().zip(&tame).enumerate() {
                let index = index as usize;
                prop_assert_eq!(received[index], entries.values()[i]);
                let off = (f64::from(received[index]) + f64::from(residual[index]) - f64::from(value)).abs();
                let bound = f64::from(f32::EPSILON) * (f64::from(value.abs()) + f64::from(received[index].abs()));
                prop_assert!(off <= bound, "{:?} {}: off by {}", quantiser.format(), i, off);
            }
        }
    }

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

    /// Bytes that were good, some of them changed, or too few.
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

#[test]
fn integers_are_conserved_exactly() {
    // All magnitudes equal a power of two: means are exact, and so is every difference.
    let gradient: Vec<f32> = (0..1500).map(|i| if i % 3 == 0 { -4.0 } else { 4.0 }).collect();
    let mut said = vec![0.0; gradient.len()];
    for (number, mut kept) in feedbacks(gradient.len(), 2).into_iter().enumerate() {
        let mut sent = vec![0.0_f32; gradient.len()];
        for _ in 0..4 {
            kept.step(&gradient, &mut said).unwrap();
            sent.iter_mut().zip(&said).for_each(|(sent, said)| *sent += said);
        }
        // Levels of norms that are no power of two round.
        let exact = kept.stays().iter().zip(&sent).zip(&gradient).all(|((stays, sent), g)| stays + sent == 4.0 * g);
        assert!(exact || [10, 12, 13, 16, 17].contains(&number), "feedback {number}");
    }
}

#[test]
fn refused_gradients_leave_the_residual_as_it_was() {
    for (number, mut kept) in feedbacks(1600, 4).into_iter().enumerate() {
        let mut said = vec![0.0; 1600];
        (1..4).for_each(|seed| kept.step(&values_at(1600, seed), &mut said).unwrap());
        let before = kept.stays();
        let mut bad = values_at(1600, 9);
        bad[1300] = f32::INFINITY;
        let found = kept.step(&bad, &mut said);
        assert!(matches!(found, Err(Error::NonFinite { index: 1300, .. })), "feedback {number}: {found:?}");
        for (i, (after, before)) in kept.stays().iter().zip(&before).enumerate() {
            assert!((after - before).abs() <= 4e-6, "feedback {number}, {i}: {before}, afterwards {after}");
        }
        kept.step(&values_at(1600, 10), &mut said).unwrap();
    }
}

#[test]
fn undelivered_messages_are_put_back() {
    let gradient = values_at(1030, 6);
    let mut lost = DeferredFeedback::new(1030, TwoBit::default());
    lost.compress(&gradient).unwrap();
    lost.put_back();
    assert_eq!(lost.residual(), gradient);
    assert!(lost.message().is_none());
    let mut bytes = Vec::new();
    let mut bucketed = BucketFeedback::new(1030, HalfPrecision::bf16());
    bucketed.compress(&gradient, &mut bytes).unwrap();
    bucketed.put_back(&bytes).unwrap();
    assert_eq!(bucketed.residual(), gradient);
}

/// `T` encodings of the same values: the mean of each decoded value, and of the whole squared error.
fn statistics(quantiser: &mut impl Quantiser, values: &[f32], trials: u32) -> (Vec<f64>, f64) {
    let (mut sums, mut squared) = (vec![0.0; values.len()], 0.0);
    for _ in 0..trials {
        for ((sum, value), said) in sums.iter_mut().zip(values).zip(decoded(quantiser, values)) {
            *sum += f64::from(said);
            squared += (f64::from(said) - f64::from(*value)).powi(2);
        }
    }
    let trials = f64::from(trials);
    (sums.into_iter().map(|sum| sum / trials).collect(), squared / trials)
}

#[test]
fn qsgd_is_unbiased_and_its_variance_bounded() {
    let values = values_at(512, 11);
    let norm = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let largest = f64::from(values.iter().fold(0.0_f32, |m, v| m.max(v.abs())));
    for levels in [1_u8, 4, 7, 64, 127] {
        let s = f64::from(levels);
        let (d, trials) = (512.0_f64, 4000);
        let (means, error) = statistics(&mut Qsgd::new(levels, 512, Norm::Euclidean, 21), &values, trials);
        check_means(&means, &values, |v| level_variance(v, norm / s), trials, levels);
        assert!(error <= (d / (s * s)).min(d.sqrt() / s) * norm * norm, "levels {levels}: {error}");
        let (means, error) = statistics(&mut Qsgd::new(levels, 512, Norm::Largest, 22), &values, trials);
        check_means(&means, &values, |v| level_variance(v, largest / s), trials, levels);
        assert!(error <= d / (4.0 * s * s) * largest * largest * 1.001, "levels {levels}, largest: {error}");
    }
}

#[test]
fn terngrad_is_unbiased_and_its_variance_known() {
    let values = values_at(700, 12);
    let scale = f64::from(values.iter().fold(0.0_f32, |m, v| m.max(v.abs())));
    let trials = 4000;
    let (means, error) = statistics(&mut Ternary::new(23), &values, trials);
    check_means(&means, &values, |v| level_variance(v, scale), trials, 0);
    let expected: f64 = values.iter().map(|v| level_variance(f64::from(v.abs()), scale)).sum();
    // One trial's squared error deviates by less than its mean; 4000 trials by less than 2 %.
    assert!((error / expected - 1.0).abs() < 0.05, "{error}, expected {expected}");
    // Clipping at 2.5 deviations of a standard normal.
    let said = decoded(&mut Ternary::clipped(24, 2.5), &values_at(100_000, 13));
    let magnitude = said.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    assert!((magnitude - 2.5).abs() < 0.03, "{magnitude}");
}

/// Variance of a magnitude rounded up or down to a multiple of `step`, with the probability of its distance.
fn level_variance(magnitude: f64, step: f64) -> f64 {
    let fraction = (magnitude / step).fract();
    fraction * (1.0 - fraction) * step * step
}

/// Means of `trials` are within 6 standard errors, which one of a billion passes; and their mean square is what it should be.
fn check_means(means: &[f64], values: &[f32], variance: impl Fn(f64) -> f64, trials: u32, levels: u8) {
    let mut squares = 0.0;
    let mut counted = 0;
    for (i, (mean, &value)) in means.iter().zip(values).enumerate() {
        let error = (variance(f64::from(value.abs())) / f64::from(trials)).sqrt();
        // Rare events are not normal: fewer than 20 are expected where the fraction is below 0.005.
        let slack = 1e-5 * f64::from(value.abs());
        let off = (mean - f64::from(value)).abs();
        assert!(
            off <= 6.0 * error + slack + 20.0 * error / f64::from(trials).sqrt(),
            "levels {levels}, {i}: {mean}, {value}"
        );
        if error > 0.0 {
            squares += (off / error).powi(2);
            counted += 1;
        }
    }
    // Of 500 squares of standard normal numbers the mean deviates by 0.063; rare events add to that.
    let ratio = squares / f64::from(counted);
    assert!((0.6..1.4).contains(&ratio), "levels {levels}: mean square {ratio} of {counted}");
}

proptest! {
    #[test]
    fn votes_are_counted(n in 0_usize..1100, ranks in 1_u32..20, seed: u64) {
        let mut generator = Generator::new(seed);
        let (mut votes, mut counts) = (Votes::new(n), vec![0_i32; n]);
        for _ in 0..ranks {
            let mut values = vec![0.0; n];
            generator.fill_normal(&mut values);
            counts.iter_mut().zip(&values).for_each(|(count, v)| *count += if *v < 0.0 { -1 } else { 1 });
            let mut bytes = Vec::new();
            Sign::default().encode(&values, &mut bytes).unwrap();
            votes.add(Encoded::new(Format::Sign, n, &bytes).unwrap()).unwrap();
        }
        let mut majority = vec![9.0; n];
        votes.majority(&mut majority).unwrap();
        let expected: Vec<f32> = counts.iter().map(|count| count.signum() as f32).collect();
        prop_assert_eq!(majority, expected);
        votes.clear();
        votes.majority(&mut counts.iter().map(|_| 0.0).collect::<Vec<f32>>()).unwrap();
        prop_assert_eq!(votes.ranks(), 0);
    }
}

#[test]
fn formats_have_their_numbers() {
    for (number, format) in (0_u8..).zip(Format::ALL) {
        assert_eq!((format.id(), Format::from_id(number)), (number, Some(format)));
    }
    assert_eq!(Format::from_id(10), None);
    // Pinned: a change here separates ranks that run different builds.
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
        4010417030, 3066149556, 142329425, 2793128551, 4028516012, 2223472655, 1187523468, 3684065395, 3749731800,
        3749731800, 2898480309, 779928744, 3971914164, 1657715188,
    ];
    assert_eq!(sums, expected);
}
