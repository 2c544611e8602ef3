//! Statistics of measured figures.

/// The mean; 0 for an empty slice.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The median, with the mean of the middle two for an even number; 0 for an empty slice.
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

/// The times of all ranks and iterations in one line, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The mean over ranks and iterations.
    pub avg: f64,
    /// The fastest iteration of any rank.
    pub min: f64,
    /// The slowest iteration of any rank.
    pub max: f64,
    /// The median of all iterations of all ranks.
    pub p50: f64,
    /// The time that 99 of 100 iterations do not exceed.
    pub p99: f64,
    /// The mean of the rank whose mean is largest.
    pub slowest_rank: f64,
}

impl Summary {
    /// Summarises the times of each rank; ranks without times do not count. `None` without any time.
    #[must_use]
    pub fn new(ranks: &[Vec<f64>]) -> Option<Self> {
        let mut all = ranks.concat();
        all.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (all.first()?, all.last()?);
        let slowest_rank =
            ranks.iter().filter(|times| !times.is_empty()).map(|times| mean(times)).fold(0.0, f64::max);
        Some(Self {
            avg: mean(&all),
            min,
            max,
            p50: percentile(&all, 50),
            p99: percentile(&all, 99),
            slowest_rank,
        })
    }
}

/// A median, and an interval that contains the true one for any distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The chance that the interval contains the true median: at least 0.9; less for fewer than 5 values.
    pub coverage: f64,
}

impl Interval {
    /// The narrowest interval between two of the values, symmetric in rank, that contains the true median
    /// with a chance of at least 0.9; if there is none, from the smallest to the largest value. `None`
    /// without values.
    ///
    /// By order statistics: each independent value is below the true median with a chance of one half.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let outside =
            (0..sorted.len().div_ceil(2)).take_while(|&cut| coverage(sorted.len(), cut) >= 0.9).last();
        let cut = outside.unwrap_or(0);
        let (&low, &high) = (sorted.get(cut)?, sorted.get(sorted.len() - 1 - cut)?);
        Some(Self { median: median(&sorted), low, high, coverage: coverage(sorted.len(), cut) })
    }
}

/// The chance that the true median is between the value at `cut` and its mirror image, of `count` sorted
/// values.
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

/// The smallest value that at least `percent` of 100 values do not exceed (nearest rank).
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
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
            assert_eq!(
                (interval.low, interval.high),
                (f64::from(cut), f64::from(count - 1 - cut)),
                "{count}"
            );
            assert!((interval.coverage - chance).abs() < 1e-12, "{count}: {interval:?}");
        }
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&[2.0]).map(|interval| (interval.low, interval.high)), Some((2.0, 2.0)));
    }

    #[test]
    fn one_to_a_hundred() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let expected = Summary { avg: 50.5, min: 1.0, max: 100.0, p50: 50.0, p99: 99.0, slowest_rank: 50.5 };
        assert_eq!(Summary::new(&[times]), Some(expected));
    }

    #[test]
    fn ranks_are_told_apart_only_for_the_slowest() {
        let expected = Summary { avg: 3.0, min: 1.0, max: 6.0, p50: 2.0, p99: 6.0, slowest_rank: 6.0 };
        assert_eq!(Summary::new(&[vec![1.0, 2.0], vec![], vec![6.0]]), Some(expected));
    }

    #[test]
    fn nothing_measured_is_nothing_told() {
        assert_eq!(Summary::new(&[vec![], vec![]]), None);
    }

    proptest! {
        #[test]
        fn percentiles_split_as_they_say(
            mut times in prop::collection::vec(0.0f64..1e6, 1..300),
            percent in 1usize..=100,
        ) {
            times.sort_unstable_by(f64::total_cmp);
            let found = percentile(&times, percent);
            let at_most = times.iter().filter(|&&time| time <= found).count();
            let below = times.iter().filter(|&&time| time < found).count();
            prop_assert!(at_most * 100 >= percent * times.len());
            prop_assert!(below * 100 < percent * times.len());
        }

        #[test]
        fn figures_are_in_order(
            ranks in prop::collection::vec(prop::collection::vec(0.0f64..1e6, 1..50), 1..5),
        ) {
            let summary = Summary::new(&ranks).unwrap();
            let rounding = 1e-9 * summary.max;
            prop_assert!(
                summary.min <= summary.p50 && summary.p50 <= summary.p99 && summary.p99 <= summary.max
            );
            prop_assert!(
                summary.min <= summary.avg + rounding && summary.avg <= summary.slowest_rank + rounding
            );
            prop_assert!(summary.slowest_rank <= summary.max + rounding);
        }

        #[test]
        fn intervals_hold_their_median(values in prop::collection::vec(0.1f64..10.0, 1..60)) {
            let interval = Interval::of(&values).unwrap();
            prop_assert!(interval.low <= interval.median && interval.median <= interval.high);
            prop_assert!(values.len() < 5 || interval.coverage >= 0.9);
        }
    }
}
