//! Random rounding has no bias, and the expected variance.

use brevity_compress::quantise::{Norm, Qsgd, Quantiser, Ternary};

use super::{decoded, values_at};

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

/// Values that are equal, or nearly, are not outliers.
#[test]
fn clipping_delivers_what_does_not_vary() {
    for n in [1, 2, 700] {
        let (mut quantiser, values) = (Ternary::clipped(1, 2.5), vec![-3.0; n]);
        for _ in 0..100 {
            assert_eq!(decoded(&mut quantiser, &values), values);
        }
    }
    let mut values = [3.0; 700];
    values[0] = 3.01;
    let said = decoded(&mut Ternary::clipped(2, 2.5), &values);
    let mean = said.iter().sum::<f32>() / 700.0;
    assert!((mean - 3.0).abs() < 0.1, "{mean}");
}

/// Variance of a magnitude rounded up or down to a multiple of `step`, with the probability of its distance.
fn level_variance(magnitude: f64, step: f64) -> f64 {
    let fraction = (magnitude / step).fract();
    fraction * (1.0 - fraction) * step * step
}

/// Means of `trials` are within 6 standard errors, which one in a billion exceeds; and their mean square is
/// as expected.
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
