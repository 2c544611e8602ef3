//! The bar of a row: the limit that it must meet.

use std::fmt;

use serde::{Serialize, Serializer};

/// The limit that a row must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// The median ratio of the times is at most this.
    Ratio(f64),
    /// The median difference is at most this many nanoseconds.
    Extra(f64),
    /// The median of Brevity's times is at most this many microseconds.
    Time(f64),
    /// Ours is never slower: the median ratio is at most 1.03, or its interval reaches 1.
    NotSlower,
    /// The median of theirs over ours, a prediction over what was measured, is between these.
    Predicted(f64, f64),
}

/// What [`Bar::NotSlower`] allows as measuring error.
const NOT_SLOWER: f64 = 1.03;

impl Bar {
    /// Whether a median time, a median ratio with the lower end of its interval, and a median difference meet
    /// the bar.
    #[must_use]
    pub fn is_met(self, ours_us: f64, (ratio, ratio_low): (f64, f64), extra_ns: f64) -> bool {
        match self {
            Self::Time(most) => ours_us <= most,
            Self::Ratio(most) => ratio <= most,
            Self::Extra(most) => extra_ns <= most,
            Self::NotSlower => ratio <= NOT_SLOWER || ratio_low <= 1.0,
            Self::Predicted(low, high) => (low..=high).contains(&(1.0 / ratio)),
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Two places are too few for a hundredth.
            Self::Ratio(most) if *most < 0.1 => write!(f, "{most:.4}x"),
            Self::Ratio(most) => write!(f, "{most:.2}x"),
            Self::Extra(most) => write!(f, "+{most:.0} ns"),
            Self::Time(most) => write!(f, "{} ms", most / 1e3),
            Self::NotSlower => write!(f, "{NOT_SLOWER}x or 1 in it"),
            Self::Predicted(low, high) => write!(f, "{low} to {high} predicted"),
        }
    }
}

impl Serialize for Bar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::pairs::{Comparison, Subject, Turn};

    fn comparison(pairs: &[(f64, f64)]) -> Comparison {
        let subject = Subject { what: "latency".into(), wire: "tcp", world_size: 2, bytes: 8 };
        Comparison::new(subject, "a", "b", pairs.iter().map(Turn::of).collect(), 0).unwrap()
    }

    #[test]
    fn ratios_are_medians_of_turns_not_of_sides() {
        let found = comparison(&[(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)]);
        assert_eq!((found.ours_us, found.theirs_us, found.ratio), (4.0, 4.0, 2.0));
        assert_eq!((found.ratio_low, found.ratio_high), (1.0, 3.0));
        assert_eq!(found.extra_ns, 1000.0);
    }

    #[test]
    fn bars_are_kept_or_not() {
        let keeps = |bar: Bar, pairs: &[(f64, f64)]| comparison(pairs).judged(bar).met.unwrap();
        let found = [(1.04, 1.0); 5];
        assert!(keeps(Bar::Ratio(1.05), &found) && !keeps(Bar::Ratio(1.03), &found));
        assert!(keeps(Bar::Time(1.04), &found) && !keeps(Bar::Time(1.03), &found));
        assert_eq!(
            [Bar::Time(2500.0), Bar::Ratio(1.0 / 80.0)].map(|bar| bar.to_string()),
            ["2.5 ms", "0.0125x"]
        );
        assert!(keeps(Bar::Extra(41.0), &found) && !keeps(Bar::Extra(39.0), &found));
        assert!(!keeps(Bar::NotSlower, &found));
        assert!(keeps(Bar::NotSlower, &[(1.02, 1.0); 5]));
        assert!(keeps(Bar::Predicted(0.7, 1.4), &found) && !keeps(Bar::Predicted(0.97, 1.4), &found));
        assert!(!keeps(Bar::Predicted(0.7, 0.9), &found));
        let reaches_one = [(1.2, 1.0), (1.1, 1.0), (1.1, 1.0), (1.0, 1.0), (1.2, 1.0)];
        assert!(keeps(Bar::NotSlower, &reaches_one));
    }
}
