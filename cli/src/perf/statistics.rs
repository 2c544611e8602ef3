//! What is told of many measured times.

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
    /// The time that 99 of 100 iterations kept to.
    pub p99: f64,
    /// The mean of the rank whose mean is largest.
    pub slowest_rank: f64,
}

impl Summary {
    /// Sums up the times of each rank; ranks without times do not count. None without any time.
    pub fn new(ranks: &[Vec<f64>]) -> Option<Self> {
        let mut all = ranks.concat();
        all.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (all.first()?, all.last()?);
        let slowest_rank = ranks.iter().filter(|times| !times.is_empty()).map(|times| mean(times)).fold(0.0, f64::max);
        Some(Self { avg: mean(&all), min, max, p50: percentile(&all, 50), p99: percentile(&all, 99), slowest_rank })
    }
}

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The smallest value that at least `percent` of 100 values are at most as large as (the nearest rank).
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(mean(&[]), 0.0);
    }

    proptest! {
        #[test]
        fn percentiles_split_as_they_say(mut times in prop::collection::vec(0.0f64..1e6, 1..300), percent in 1usize..=100) {
            times.sort_unstable_by(f64::total_cmp);
            let found = percentile(&times, percent);
            let at_most = times.iter().filter(|&&time| time <= found).count();
            let below = times.iter().filter(|&&time| time < found).count();
            prop_assert!(at_most * 100 >= percent * times.len());
            prop_assert!(below * 100 < percent * times.len());
        }

        #[test]
        fn figures_are_in_order(ranks in prop::collection::vec(prop::collection::vec(0.0f64..1e6, 1..50), 1..5)) {
            let summary = Summary::new(&ranks).unwrap();
            let rounding = 1e-9 * summary.max;
            prop_assert!(summary.min <= summary.p50 && summary.p50 <= summary.p99 && summary.p99 <= summary.max);
            prop_assert!(summary.min <= summary.avg + rounding && summary.avg <= summary.slowest_rank + rounding);
            prop_assert!(summary.slowest_rank <= summary.max + rounding);
        }
    }
}
