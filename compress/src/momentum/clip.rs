//! Clipping of gradients by their norm.

use super::for_blocks;
use crate::Error;
use crate::feedback::Gradient;
use crate::simd::{Level, momentum::sum_of_squares};

/// Local clipping: each of `P` ranks scales its gradient down to the norm `limit / sqrt(P)` before it adds it
/// to anything, so that the sum of `P` independent gradients has a norm of about `limit` at most (Lin et al.,
/// ICLR 2018, 3.2).
///
/// ```
/// use brevity_compress::momentum::{Clip, squared_norm};
///
/// let clip = Clip::new(10.0, 4)?;
/// assert_eq!(clip.factor(squared_norm(&[6.0_f32, 8.0][..])?), 0.5);
/// assert_eq!(clip.factor(squared_norm(&[3.0_f32, 4.0][..])?), 1.0);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// The limit of one rank's gradient.
    limit: f64,
}

impl Clip {
    /// Clips so that the gradients of `world_size` ranks together have a norm of at most `limit`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `limit` is finite and positive, and for a `world_size` of 0.
    pub fn new(limit: f64, world_size: usize) -> Result<Self, Error> {
        if !(limit > 0.0 && limit.is_finite()) {
            return Err(Error::OutOfRange {
                what: "clipping norm",
                value: limit,
                expected: "a finite number above 0",
            });
        }
        if world_size == 0 {
            return Err(Error::OutOfRange { what: "world size", value: 0.0, expected: "at least 1" });
        }
        Ok(Self { limit: limit / (world_size as f64).sqrt() })
    }

    /// The largest norm of a rank's gradient.
    pub fn local_limit(&self) -> f64 {
        self.limit
    }

    /// The factor for a gradient with this squared norm, at most 1. To clip several tensors together, pass
    /// the sum of their squared norms.
    pub fn factor(&self, squared_norm: f64) -> f32 {
        let norm = squared_norm.sqrt();
        if norm > self.limit { (self.limit / norm) as f32 } else { 1.0 }
    }
}

/// The sum of squares of a gradient's elements as `f32`, computed in `f64` in a fixed order. Cost: one read.
///
/// # Errors
/// [`Error::NonFinite`] for the first element that is not finite.
pub fn squared_norm<'a>(gradient: impl Into<Gradient<'a>>) -> Result<f64, Error> {
    let (level, mut squares) = (Level::best(), 0.0_f64);
    for_blocks(gradient.into(), |first, block| {
        // Squares of finite `f32` do not overflow `f64`, so a sum that is not finite comes from an element
        // that is not.
        let sum = sum_of_squares(level, block);
        if !sum.is_finite() {
            let (place, &value) =
                block.iter().enumerate().find(|(_, value)| !value.is_finite()).unwrap_or((0, &f32::NAN));
            return Err(Error::NonFinite { index: first + place, value });
        }
        squares += sum;
        Ok(())
    })?;
    Ok(squares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn gradients_keep_to_the_limit_over_the_root_of_the_ranks() {
        for world_size in [1, 2, 3, 8, 16] {
            let clip = Clip::new(3.0, world_size).unwrap();
            let limit = 3.0 / (world_size as f64).sqrt();
            for scale in [0.0, 0.01, 1.0, 1e3, 1e30] {
                let gradient: Vec<f32> = (0..5000_u16).map(|i| f32::from(i % 7) * scale).collect();
                let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
                let factor = f64::from(clip.factor(squared_norm(&gradient[..]).unwrap()));
                let found = norm * factor;
                assert!(found <= limit * (1.0 + 1e-6), "P {world_size}, scale {scale}: {found}");
                let expected = norm.min(limit);
                assert!(
                    (found - expected).abs() <= 1e-6 * expected,
                    "P {world_size}, scale {scale}: {found}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_found_and_what_is_large_is_not_mistaken_for_it() {
        let mut gradient = vec![f32::MAX; 3000];
        let expected = f64::from(f32::MAX).powi(2) * 3000.0;
        assert!((squared_norm(&gradient[..]).unwrap() / expected - 1.0).abs() < 1e-12);
        (gradient[2500], gradient[2999]) = (f32::NEG_INFINITY, f32::NAN);
        let found = squared_norm(&gradient[..]);
        assert_eq!(found, Err(Error::NonFinite { index: 2500, value: f32::NEG_INFINITY }));
        let halves: Vec<f16> = (0..2049).map(|i| f16::from_f32(f32::from(i as u16 % 5))).collect();
        let expected: f64 = halves.iter().map(|g| g.to_f64().powi(2)).sum();
        assert_eq!(squared_norm(&halves[..]), Ok(expected));
        assert_eq!(squared_norm(&[1e200_f64][..]), Err(Error::NonFinite { index: 0, value: f32::INFINITY }));
    }

    #[test]
    fn impossible_limits_are_refused() {
        for limit in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Clip::new(limit, 1), Err(Error::OutOfRange { .. })), "{limit}");
        }
        assert!(Clip::new(1.0, 0).is_err());
    }
}
