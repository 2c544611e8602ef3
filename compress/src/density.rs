//! The share of entries that is kept.

use crate::{Error, in_standard_float_mode};

/// A share of entries: more than 0, at most 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Density(f64);

impl Density {
    /// Wraps a share; 0.001 keeps one entry in a thousand.
    ///
    /// # Errors
    /// [`Error::InvalidDensity`] unless `0 < share <= 1`.
    pub fn new(share: f64) -> Result<Self, Error> {
        if share > 0.0 && share <= 1.0 { Ok(Self(share)) } else { Err(Error::InvalidDensity(share)) }
    }

    /// Clamps a share that is in range up to rounding.
    pub(crate) fn within(share: f64) -> Self {
        Self(share.clamp(f64::from_bits(1), 1.0))
    }

    /// The share.
    pub fn share(self) -> f64 {
        self.0
    }

    /// How many of `n` entries are kept: `share * n` rounded up, and at least one if `n` is not 0.
    /// Independent of the thread's floating-point mode.
    pub fn entries(self, n: usize) -> usize {
        // The product is rounded, so `share * n` may come out just above an integer `k` and round up to `k +
        // 1`. The clamp keeps the result in range.
        let product = in_standard_float_mode(|| (self.0 * n as f64).ceil() as usize);
        product.clamp(usize::from(n > 0), n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_ceiling_within_one_and_all() {
        let density = |share| Density::new(share).unwrap();
        assert_eq!(density(0.001).entries(0), 0);
        assert_eq!(density(0.001).entries(1), 1);
        assert_eq!(density(0.001).entries(1000), 1);
        assert_eq!(density(0.001).entries(1001), 2);
        assert_eq!(density(1.0).entries(7), 7);
        assert_eq!(density(0.5).entries(7), 4);
        assert_eq!(density(f64::MIN_POSITIVE).entries(9), 1);
    }

    #[test]
    fn refuses_what_is_no_share() {
        for share in [0.0, -0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(matches!(Density::new(share), Err(Error::InvalidDensity(_))), "{share}");
        }
    }
}
