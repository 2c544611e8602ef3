//! What is told of many measured figures.

/// The mean; 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The median, the mean of the middle two where there are two; 0 of nothing.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// A median and the interval that holds the true one, whatever the distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The chance that the interval holds the true median: at least 0.9, less for fewer than 5 values.
    pub coverage: f64,
}

impl Interval {
    /// The narrowest interval between two of the values, as many from below as from above, that holds the true median
    /// with a chance of at least 0.9; from the smallest to the largest value where none does. None of nothing.
    ///
    /// By order statistics: each independent value lies below the true median with a chance of one half.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let outside = (0..sorted.len().div_ceil(2)).take_while(|&cut| coverage(sorted.len(), cut) >= 0.9).last();
        let cut = outside.unwrap_or(0);
        let (&low, &high) = (sorted.get(cut)?, sorted.get(sorted.len() - 1 - cut)?);
        Some(Self { median: median(&sorted), low, high, coverage: coverage(sorted.len(), cut) })
    }
}

/// The chance that the true median lies between the value at `cut` and its mirror image, of `count` sorted values.
fn coverage(count: usize, cut: usize) -> f64 {
    // P(at most `cut` of `count` fair coins show heads), term by term.
    let mut term = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for heads in 0..=cut {
        tail += term;
        term *= (count - heads) as f64 / (heads + 1) as f64;
    }
    1.0 - 2.0 * tail
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn medians_of_few() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn intervals_by_hand() {
        // 1 - 2/2^5; 1 - 2/2^7; 1 - 2 (1 + 8)/2^8; 1 - 2 (1 + 9)/2^9; 1 - 2 (1 + 11 + 55)/2^11.
        for (count, cut, chance) in [
            (5, 0, 1.0 - 2.0 / 32.0),
            (7, 0, 1.0 - 2.0 / 128.0),
            (8, 1, 1.0 - 18.0 / 256.0),
            (9, 1, 1.0 - 20.0 / 512.0),
            (11, 2, 1.0 - 134.0 / 2048.0),
        ] {
            let values: Vec<f64> = (0..count).rev().map(f64::from).collect();
            let interval = Interval::of(&values).unwrap();
            assert_eq!((interval.low, interval.high), (f64::from(cut), f64::from(count - 1 - cut)), "{count}");
            assert!((interval.coverage - chance).abs() < 1e-12, "{count}: {interval:?}");
        }
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[2.0]).map(|interval| (interval.low, interval.high)), Some((2.0, 2.0)));
    }

    proptest! {
        #[test]
        fn intervals_hold_their_median(values in prop::collection::vec(0.1f64..10.0, 1..60)) {
            let interval = Interval::of(&values).unwrap();
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
            prop_assert!(values.len() < 5 || interval.coverage >= 0.9);
        }
    }
}
