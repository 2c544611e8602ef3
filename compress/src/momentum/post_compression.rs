//! Momentum after aggregation.

use super::{check_momentum, largest_finite};
use crate::Error;
use crate::bits::check_finite;
use crate::error::check_length;
use crate::simd::{Level, momentum::descend};
use crate::state::{Reader, State, Writer};

/// Momentum of the averaged update, the same on every rank: `mom = m mom + update; x -= rate (update + mom)`
/// (Vogels et al., NeurIPS 2019, algorithm 2). Holds one dense vector.
///
/// ```
/// use brevity_compress::momentum::PostCompression;
///
/// let (mut momentum, mut x) = (PostCompression::new(2, 0.5)?, [8.0, 0.0]);
/// momentum.apply(&[2.0, 0.0], 0.5, &mut x)?;
/// momentum.apply(&[0.0, 4.0], 0.5, &mut x)?;
/// assert_eq!(x, [5.5, -4.0]);
/// assert_eq!(momentum.momentum(), [1.0, 4.0]);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PostCompression {
    factor: f32,
    mom: Vec<f32>,
    /// An upper bound of the magnitudes in `mom`.
    ceiling: f64,
}

impl PostCompression {
    /// For `n` parameters; `factor` is `m`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless `0 <= factor < 1`.
    pub fn new(n: usize, factor: f32) -> Result<Self, Error> {
        check_momentum(factor, false)?;
        Ok(Self { factor, mom: vec![0.0; n], ceiling: 0.0 })
    }

    /// `mom`.
    pub fn momentum(&self) -> &[f32] {
        &self.mom
    }

    /// Updates the parameters `x` with the averaged `update`. Does not check the results in `x`: they follow
    /// IEEE 754.
    ///
    /// Cost: two reads of `update`, a read and write of `x` and of the momentum.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], and [`Error::NonFinite`] for the first element of `update`, or of the new
    /// momentum, that is not finite; nothing has changed then.
    pub fn apply(&mut self, update: &[f32], rate: f32, x: &mut [f32]) -> Result<(), Error> {
        check_length(self.mom.len(), update.len())?;
        check_length(self.mom.len(), x.len())?;
        self.check(update)?;
        descend(Level::best(), &mut self.mom, x, update, self.factor, rate);
        Ok(())
    }

    /// Replaces the momentum, for example by a saved one.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn load(&mut self, momentum: &[f32]) -> Result<(), Error> {
        check_length(self.mom.len(), momentum.len())?;
        check_finite(momentum)?;
        self.mom.copy_from_slice(momentum);
        self.ceiling = largest_finite(&self.mom)?;
        Ok(())
    }

    /// Checks that the momentum stays finite, and raises the ceiling accordingly.
    fn check(&mut self, update: &[f32]) -> Result<(), Error> {
        let (m, largest, most) = (f64::from(self.factor), largest_finite(update)?, f64::from(f32::MAX));
        let raised = |ceiling: f64| {
            (m * ceiling + largest) * (1.0 + 4.0 * f64::from(f32::EPSILON)) + f64::from(f32::MIN_POSITIVE)
        };
        if raised(self.ceiling) > most {
            self.ceiling = largest_finite(&self.mom)?;
            let next = self.mom.iter().zip(update).map(|(mom, update)| self.factor * mom + update);
            if let Some((index, value)) = next.enumerate().find(|(_, next)| !next.is_finite()) {
                return Err(Error::NonFinite { index, value });
            }
        }
        self.ceiling = raised(self.ceiling).min(most);
        Ok(())
    }
}

impl State for PostCompression {
    fn kind(&self) -> [u8; 4] {
        *b"pmom"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.mom.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.f32s(&self.mom);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.f32s(&mut self.mom)?;
        self.ceiling = largest_finite(&self.mom)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_that_overflows_changes_nothing() {
        let (mut momentum, mut x) = (PostCompression::new(3, 0.9).unwrap(), [1.0; 3]);
        momentum.load(&[0.0, 3e38, -3e38]).unwrap();
        for update in [[0.0, 3e38, 0.0], [f32::NAN, 0.0, 0.0], [0.0, 0.0, f32::NEG_INFINITY]] {
            let found = momentum.apply(&update, 1.0, &mut x);
            let place = update.iter().position(|&u| u != 0.0);
            assert!(
                matches!(found, Err(Error::NonFinite { index, .. }) if Some(index) == place),
                "{found:?}"
            );
            assert_eq!((x, momentum.momentum()), ([1.0; 3], &[0.0, 3e38, -3e38][..]));
        }
        momentum.apply(&[0.0, -3e38, 3e38], 0.0, &mut x).unwrap();
        assert!(momentum.momentum().iter().all(|m| m.is_finite()));
        assert!(momentum.apply(&[1.0], 1.0, &mut x).is_err());
        assert!(momentum.apply(&[1.0; 3], 1.0, &mut [0.0]).is_err());
        assert!(PostCompression::new(3, 1.0).is_err());
    }
}
