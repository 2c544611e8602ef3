//! Magnitudes compared as integers.
//!
//! The bits of `|v|`, read as an integer, have the same order as `|v|` for finite values. Every infinity and
//! NaN is above every finite value. So one integer comparison serves both selection and the check for
//! non-finite values.

use crate::Error;
use crate::simd::{Level, dense};

/// The bits of positive infinity: the smallest magnitude that is not finite.
pub(crate) const INFINITE: u32 = 0x7f80_0000;

/// The bits of `|value|`.
pub(crate) fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The largest magnitude of finite values.
///
/// # Errors
/// [`Error::NonFinite`] with the position of the first NaN or infinity.
pub(crate) fn largest_finite(values: &[f32]) -> Result<f32, Error> {
    let largest = dense::largest_magnitude(Level::best(), values);
    if largest < INFINITE {
        return Ok(f32::from_bits(largest));
    }
    match values.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(Error::NonFinite { index, value: values[index] }),
        None => Ok(f32::MAX),
    }
}

/// Fails at the first NaN or infinity.
pub(crate) fn check_finite(values: &[f32]) -> Result<(), Error> {
    largest_finite(values).map(|_| ())
}
