//! The compressors that error feedback and momentum wrap.

use std::ops::Range;

use super::{Gradient, Residual};
use crate::quantise::{Encoded, Quantiser, check_contracts};
use crate::simd::{Level, dense};
use crate::{Error, bits, error::check_length};

/// Turns a dense vector into a smaller message, and back.
///
/// A decoded message is finite and approximates the vector that it was made from. The caller keeps the
/// difference, as [`ErrorFeedback`](super::ErrorFeedback) does. Its norm must be less than that of the
/// vector, on average over random choices: otherwise residuals may grow without bound.
pub trait Compressor {
    /// What is sent.
    type Message;

    /// Compresses `dense` into `message`, which is overwritten.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a NaN or an infinity in `dense`, and errors of the compressor itself.
    fn compress(&mut self, dense: &[f32], message: &mut Self::Message) -> Result<(), Error>;

    /// `dense += factor * decoded message`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a `dense` of another length, which is unchanged then.
    /// [`Error::NonFinite`] for a sum that is not finite; implementations must then leave `dense` finite and
    /// unchanged up to rounding. [`add_in_parts`] does so.
    fn add_decoded(&self, message: &Self::Message, factor: f32, dense: &mut [f32]) -> Result<(), Error>;

    /// `r += g`, compresses the sum into `message`, and leaves in `r` what the message misses. Some
    /// compressors do this in one pass.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]: nothing has changed then. [`Error::NonFinite`] for a sum that is not
    /// finite: `residual` is unchanged up to rounding, and `message` must not be sent. After an error of the
    /// compressor itself, or of [`add_decoded`](Self::add_decoded), the gradient stays in the residual.
    fn feed(
        &mut self,
        residual: &mut Residual,
        gradient: Gradient<'_>,
        message: &mut Self::Message,
    ) -> Result<(), Error> {
        residual.add(gradient)?;
        self.compress(residual.values(), message)?;
        residual.change(|values| self.add_decoded(message, -1.0, values))
    }
}

/// Elements of a part: few enough that a copy stays in the cache.
const PART: usize = 8192;

/// Adds the output of `add` to `dense`, part by part. If a sum is not finite, takes everything out again.
///
/// `add(sign, range, part)` must add its decoded values in `range`, times `sign` (1 or -1), to `part`, which
/// holds these elements. Parts begin at multiples of 8192. Cost: one pass.
///
/// # Errors
/// [`Error::NonFinite`] for the first sum that is not finite: `dense` is unchanged up to rounding.
pub fn add_in_parts(
    dense: &mut [f32],
    mut add: impl FnMut(f32, Range<usize>, &mut [f32]),
) -> Result<(), Error> {
    let (level, mut before) = (Level::best(), [0.0; PART]);
    for first in (0..dense.len()).step_by(PART) {
        let range = first..dense.len().min(first + PART);
        let part = &mut dense[range.clone()];
        let before = &mut before[..part.len()];
        before.copy_from_slice(part);
        add(1.0, range, part);
        if dense::largest_magnitude(level, part) < bits::INFINITE {
            continue;
        }
        let (place, value) =
            part.iter().copied().enumerate().find(|(_, sum)| !sum.is_finite()).unwrap_or((0, f32::NAN));
        part.copy_from_slice(before);
        for (number, part) in dense[..first].chunks_mut(PART).enumerate() {
            add(-1.0, number * PART..number * PART + part.len(), part);
            // The sum was rounded, so the difference may exceed the largest number by half a unit.
            part.iter_mut().for_each(|value| *value = value.clamp(f32::MIN, f32::MAX));
        }
        return Err(Error::NonFinite { index: first + place, value });
    }
    Ok(())
}

/// A quantiser as a compressor. Its message is the bytes of its [format](Quantiser::format).
///
/// For error feedback by the own rule, the types of [`quantise`](crate::quantise) need fewer passes.
#[derive(Debug, Clone)]
pub struct Quantised<Q> {
    quantiser: Q,
    n: usize,
}

impl<Q: Quantiser> Quantised<Q> {
    /// For vectors of `n` values.
    ///
    /// # Errors
    /// [`Error::Diverges`] unless the quantiser [contracts](Quantiser::contracts).
    pub fn new(n: usize, quantiser: Q) -> Result<Self, Error> {
        check_contracts(&quantiser, n)?;
        Ok(Self { quantiser, n })
    }

    /// The quantiser.
    pub fn quantiser(&self) -> &Q {
        &self.quantiser
    }

    /// The quantiser, for loading its saved state.
    pub fn quantiser_mut(&mut self) -> &mut Q {
        &mut self.quantiser
    }
}

impl<Q: Quantiser> Compressor for Quantised<Q> {
    type Message = Vec<u8>;

    fn compress(&mut self, dense: &[f32], message: &mut Vec<u8>) -> Result<(), Error> {
        check_length(self.n, dense.len())?;
        check_contracts(&self.quantiser, self.n)?;
        self.quantiser.encode(dense, message)
    }

    fn add_decoded(&self, message: &Vec<u8>, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        let encoded = Encoded::new(self.quantiser.format(), dense.len(), message)?;
        add_in_parts(dense, |sign, range, part| encoded.add_part(sign * factor, range.start, part))
    }
}

impl Residual {
    /// `r += g` in one pass.
    ///
    /// # Errors
    /// The same as for [`accumulate`](crate::dense::accumulate).
    pub(super) fn add(&mut self, gradient: Gradient<'_>) -> Result<(), Error> {
        check_length(self.len(), gradient.len())?;
        self.change(|values| match gradient {
            Gradient::F32(g) => crate::dense::accumulate(values, g),
            Gradient::F64(g) => crate::dense::accumulate(values, g),
            Gradient::F16(g) => crate::dense::accumulate(values, g),
            Gradient::Bf16(g) => crate::dense::accumulate(values, g),
        })
    }
}
