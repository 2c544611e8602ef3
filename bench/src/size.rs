//! Sizes as users write them: `4`, `64K`, `4M`, and ranges of them.

use std::fmt;
use std::str::FromStr;

/// The largest size that is measured.
const LARGEST: usize = 16 << 30;

const UNITS: [(char, u32); 3] = [('K', 10), ('M', 20), ('G', 30)];

/// A number with an optional suffix K, M or G, each 1024 times the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// The powers of two from the first to the last size, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    /// No size is smaller.
    pub min: usize,
    /// No size is larger.
    pub max: usize,
}

impl SizeRange {
    /// The sizes to measure, rising; at least one.
    pub fn sizes(self) -> impl Iterator<Item = usize> {
        let first = self.min.next_power_of_two();
        std::iter::successors(Some(first), |size| size.checked_mul(2))
            .take_while(move |&size| size <= self.max)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "{text:?} is no size: write a number from 1 to 16G, with K, M or G for 1024, 1024^2, 1024^3"
            )
        };
        let unit = |last: char| UNITS.iter().find(|(name, _)| last.eq_ignore_ascii_case(name));
        let (digits, shift) = match text.chars().last().and_then(unit) {
            Some(&(_, shift)) => (&text[..text.len() - 1], shift),
            None => (text, 0),
        };
        // A size has no sign, though the integer parser accepts one.
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse());
        }
        let count: usize = digits.parse().map_err(|_| refuse())?;
        let size = count.checked_mul(1 << shift).filter(|size| (1..=LARGEST).contains(size));
        size.map(Self).ok_or_else(refuse)
    }
}

impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        let (Size(min), Size(max)) = (min.parse()?, max.parse()?);
        if min > max {
            return Err(format!("{text:?} is no range: MIN is larger than MAX"));
        }
        let range = Self { min, max };
        if range.sizes().next().is_none() {
            return Err(format!("{text:?} holds no power of two, and those are the sizes measured"));
        }
        Ok(range)
    }
}

/// In the format that [`FromStr`] reads, in the largest unit that divides it.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().rev().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match unit {
            Some((name, shift)) => write!(f, "{}{name}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        let cases = [
            ("1", 1),
            ("007", 7),
            ("64K", 65_536),
            ("64k", 65_536),
            ("4M", 4_194_304),
            ("16G", 17_179_869_184),
        ];
        for (text, size) in cases {
            assert_eq!(text.parse(), Ok(Size(size)), "{text}");
        }
        for text in [
            "",
            "K",
            "0",
            "0K",
            "-1",
            "+1",
            "1.5M",
            "1 K",
            "1KB",
            "4T",
            "17G",
            "99999999999999999999",
            "µ",
            "1µ",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_are_their_powers_of_two() {
        let sizes = |text: &str| text.parse::<SizeRange>().map(|range| range.sizes().collect::<Vec<_>>());
        assert_eq!(sizes("1:8"), Ok(vec![1, 2, 4, 8]));
        assert_eq!(sizes("3:20"), Ok(vec![4, 8, 16]));
        assert_eq!(sizes("64K"), Ok(vec![65_536]));
        for text in ["5:7", "8:4", ":", "1:", ":8", "1:2:4", "a:b"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(size in 1usize..=LARGEST) {
            prop_assert_eq!(Size(size).to_string().parse(), Ok(Size(size)));
            prop_assert_eq!(size.to_string().parse(), Ok(Size(size)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = (text.parse::<Size>(), text.parse::<SizeRange>());
        }

        #[test]
        fn ranges_hold_every_power_of_two_between(min in 1usize..=LARGEST, max in 1usize..=LARGEST) {
            let expected: Vec<_> =
                (0..=34).map(|bit| 1usize << bit).filter(|size| (min..=max).contains(size)).collect();
            match format!("{min}:{max}").parse::<SizeRange>() {
                Ok(range) => prop_assert_eq!(range.sizes().collect::<Vec<_>>(), expected),
                Err(_) => prop_assert!(expected.is_empty()),
            }
        }
    }
}
