//! Momentum for compressed gradients.
//!
//! If momentum were applied to the received updates, an entry that is rarely sent would lose the momentum of
//! the steps in which it was not sent. There are three remedies:
//!
//! | type | `g` gradient, `m` momentum | source |
//! | --- | --- | --- |
//! | [`MomentumCorrection`] | `u = m u + g; v += u`; sends entries of `v`, and sets `u` and `v` to zero there | DGC: Lin et al., ICLR 2018 |
//! | [`SparsificationAware`] | `u = m u + rate g`; sends entries of `u`, and divides the others by `m` | DGS: Yan et al., ICPP 2020 |
//! | [`PostCompression`] | `mom = m mom + update; x -= rate (update + mom)`, applied to the average of all ranks | PowerSGD: Vogels et al., NeurIPS 2019, algorithm 2 |
//!
//! The first takes a [`Compressor`](crate::feedback::Compressor) whose message is a selection, the second any
//! compressor. Both take the place of error feedback: do not use them inside of it. State is `f32` for every
//! type of gradients.

mod clip;
mod correction;
mod post_compression;
mod sparsification_aware;

pub use clip::{Clip, squared_norm};
pub use correction::MomentumCorrection;
pub use post_compression::PostCompression;
pub use sparsification_aware::SparsificationAware;

use crate::bits::INFINITE;
use crate::error::check_length;
use crate::feedback::Gradient;
use crate::simd::{Level, dense};
use crate::{Error, SparseView};

/// Elements that are checked before they are written; they stay in the first-level cache in between.
const BLOCK: usize = 1024;

/// Passes a gradient as `f32` to `use_block`, block by block with the index of each block's first element.
/// Stops at the first error.
fn for_blocks<E>(
    gradient: Gradient<'_>,
    mut use_block: impl FnMut(usize, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    if let Gradient::F32(g) = gradient {
        return g.chunks(BLOCK).enumerate().try_for_each(|(number, block)| use_block(number * BLOCK, block));
    }
    let (level, mut wide) = (Level::best(), [0.0; BLOCK]);
    for first in (0..gradient.len()).step_by(BLOCK) {
        let block = &mut wide[..BLOCK.min(gradient.len() - first)];
        gradient.slice(first..first + block.len()).convert(level, block);
        use_block(first, block)?;
    }
    Ok(())
}

/// The largest magnitude.
///
/// # Errors
/// [`Error::NonFinite`] for the first NaN or infinity.
fn largest_finite(values: &[f32]) -> Result<f64, Error> {
    let largest = dense::largest_magnitude(Level::best(), values);
    if largest >= INFINITE {
        crate::bits::check_finite(values)?;
    }
    Ok(f64::from(f32::from_bits(largest)))
}

/// Fails for the first entry that, with the value at its place, comes to a `sum` that is not finite.
fn check_sums(entries: SparseView<'_>, values: &[f32], sum: impl Fn(f32, f32) -> f32) -> Result<(), Error> {
    check_length(entries.dim(), values.len())?;
    let sums = entries.iter().map(|(index, value)| (index as usize, sum(values[index as usize], value)));
    let bad = sums.into_iter().find(|(_, sum)| !sum.is_finite());
    bad.map_or(Ok(()), |(index, value)| Err(Error::NonFinite { index, value }))
}

/// Fails unless `0 <= momentum < 1`; if `positive`, 0 fails too.
fn check_momentum(momentum: f32, positive: bool) -> Result<(), Error> {
    if (0.0..1.0).contains(&momentum) && (momentum > 0.0 || !positive) {
        return Ok(());
    }
    let expected = if positive {
        "more than 0 and less than 1: without momentum, use error feedback"
    } else {
        "at least 0 and less than 1"
    };
    Err(Error::OutOfRange { what: "momentum", value: f64::from(momentum), expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SparseVec;
    use crate::feedback::{Compressor, TopK};

    const GRADIENTS: [[f32; 5]; 3] =
        [[4.0, -1.0, 2.0, 0.5, 8.0], [1.0, 3.0, -6.0, 0.25, 1.0], [-2.0, 5.0, 1.0, 7.0, 0.0]];

    /// All numbers are exact in binary.
    #[test]
    fn a_step_that_is_withdrawn_was_not_made() {
        for (momentum, nesterov) in [(0.5, false), (0.5, true), (0.0, false)] {
            let mut correction = MomentumCorrection::new(5, TopK::new(2), momentum).unwrap();
            if nesterov {
                correction = correction.with_nesterov();
            }
            let mut message = SparseVec::new(5);
            for pair in GRADIENTS.windows(2) {
                correction.compress(&pair[0][..], &mut message).unwrap();
                let before = [correction.velocity().to_vec(), correction.accumulated().to_vec()];
                correction.compress(&pair[1][..], &mut message).unwrap();
                correction.put_back(message.view()).unwrap();
                correction.withdraw(&pair[1][..]).unwrap();
                assert_eq!(correction.accumulated(), before[1], "{momentum} {nesterov}");
                if momentum > 0.0 {
                    assert_eq!(correction.velocity(), before[0], "{momentum} {nesterov}");
                }
            }
            let mut aware = SparsificationAware::new(5, TopK::new(2), 0.5).unwrap();
            for pair in GRADIENTS.windows(2) {
                aware.compress(&pair[0][..], 1.0, &mut message).unwrap();
                let before = aware.state().to_vec();
                aware.compress(&pair[1][..], 1.0, &mut message).unwrap();
                aware.put_back(&message).unwrap();
                aware.withdraw(&pair[1][..], 1.0).unwrap();
                assert_eq!(aware.state(), before);
            }
        }
    }

    #[test]
    fn a_step_in_two_halves_has_the_bits_of_a_whole_one() {
        for nesterov in [false, true] {
            let new = || {
                let correction = MomentumCorrection::new(5, TopK::new(2), 0.9).unwrap();
                let correction = correction.with_clip(Clip::new(6.0, 1).unwrap());
                if nesterov { correction.with_nesterov() } else { correction }
            };
            let (mut whole, mut halves) = (new(), new());
            let aware = || SparsificationAware::new(5, TopK::new(2), 0.7).unwrap();
            let (mut whole_aware, mut halves_aware) = (aware(), aware());
            let (mut expected, mut found) = (SparseVec::new(5), SparseVec::new(5));
            for gradient in GRADIENTS {
                whole.compress(&gradient[..], &mut expected).unwrap();
                halves.accumulate(&gradient[..]).unwrap();
                TopK::new(2).compress(halves.accumulated(), &mut found).unwrap();
                halves.take(&found).unwrap();
                assert_eq!(found, expected);
                assert_eq!(halves.velocity(), whole.velocity());
                assert_eq!(halves.accumulated(), whole.accumulated());
                whole_aware.compress(&gradient[..], 1.0, &mut expected).unwrap();
                halves_aware.accumulate(&gradient).unwrap();
                TopK::new(2).compress(halves_aware.state(), &mut found).unwrap();
                halves_aware.take(&found).unwrap();
                assert_eq!(found, expected);
                assert_eq!(halves_aware.state(), whole_aware.state());
            }
            // What was taken can be put back.
            whole.put_back(expected.view()).unwrap();
            halves.put_back(expected.view()).unwrap();
            assert_eq!(halves.velocity(), whole.velocity());
        }
    }

    /// Dense steps are those of momentum SGD. All numbers are exact in binary.
    #[test]
    fn all_that_is_delivered_leaves_the_velocity() {
        let mut correction = MomentumCorrection::new(5, TopK::new(2), 0.5).unwrap();
        let mut aware = SparsificationAware::new(5, TopK::new(2), 0.5).unwrap();
        let mut velocity = [0.0; 5];
        for gradient in GRADIENTS {
            velocity.iter_mut().zip(gradient).for_each(|(u, g)| *u = 0.5 * *u + g);
            correction.accumulate(&gradient[..]).unwrap();
            assert_eq!(correction.accumulated(), velocity);
            correction.deliver();
            assert_eq!((correction.accumulated(), correction.velocity()), (&[0.0; 5][..], &velocity[..]));
            aware.accumulate(&gradient).unwrap();
            assert_eq!(aware.state(), velocity);
            aware.deliver();
            assert_eq!(aware.state(), velocity.map(|u| 0.5 * u));
        }
        let mut limit = MomentumCorrection::new(1, TopK::new(1), 0.0).unwrap();
        limit.accumulate(&[f32::MAX][..]).unwrap();
        assert!(matches!(limit.accumulate(&[f32::MAX][..]), Err(Error::NonFinite { .. })));
        limit.deliver();
        limit.accumulate(&[f32::MAX][..]).unwrap();
    }

    #[test]
    fn what_may_be_put_back_is_known_before() {
        let entries = |value: f32| SparseVec::from_parts(2, vec![1], vec![value]).unwrap();
        let mut correction = MomentumCorrection::new(2, TopK::new(1), 0.5).unwrap();
        correction.load(&[0.0; 2], &[0.0, f32::MAX]).unwrap();
        let mut aware = SparsificationAware::new(2, TopK::new(1), 0.5).unwrap();
        aware.load(&[0.0, f32::MAX]).unwrap();
        for value in [1.0, -f32::MAX, f32::MAX, f32::MAX / 2.0] {
            let entries = entries(value);
            let is_right = correction.check_put_back(entries.view()).is_ok();
            assert_eq!(correction.clone().add_error(entries.view()).is_ok(), is_right, "{value}");
            let is_right = aware.check_put_back(entries.view()).is_ok();
            let put_back = aware.clone().put_back(&entries);
            assert_eq!(put_back.is_ok(), is_right, "{value}: {put_back:?}");
        }
        assert!(correction.check_put_back(entries(f32::MAX).view()).is_err());
        assert!(aware.check_put_back(entries(f32::MAX).view()).is_err());
        assert!(matches!(
            correction.check_put_back(SparseVec::new(3).view()),
            Err(Error::LengthMismatch { .. })
        ));
    }
}
