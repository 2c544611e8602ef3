//! Selection by a given threshold.

use super::passing::{Passing, collect_passing};
use crate::{Error, SparseVec};

/// Selects the values whose magnitude reaches `tau`, and sends each as `tau` with the value's sign (Strom,
/// Interspeech 2015). The distance of the value to that stays and is sent in later steps.
///
/// Sent for each: an index and a sign, 31 and 1 bit in the paper's format: 4 bytes. `out` has the signed
/// `tau` as value. The number of entries is not bounded: none to all may reach `tau`. Cost: one read of
/// `values`.
///
/// # Errors
/// [`Error::InvalidThreshold`] unless `tau` is finite and more than 0; [`Error::NonFinite`] for the first
/// value that is not finite, [`Error::TooLong`]. `out` is empty then.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::select::fixed_threshold;
///
/// let mut residual = [0.5, -3.0, 1.0];
/// let mut sent = SparseVec::new(3);
/// fixed_threshold(&residual, 1.0, &mut sent)?;
/// sent.view().add_scaled_to(-1.0, &mut residual);
/// assert_eq!((sent.indices(), sent.values()), (&[1, 2][..], &[-1.0, 1.0][..]));
/// assert_eq!(residual, [0.5, -2.0, 0.0]);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
pub fn fixed_threshold(values: &[f32], tau: f32, out: &mut SparseVec) -> Result<(), Error> {
    out.reset(values.len());
    if !(tau > 0.0 && tau.is_finite()) {
        return Err(Error::InvalidThreshold(tau));
    }
    collect_passing(values, tau.to_bits(), usize::MAX, out)?;
    out.values_mut().iter_mut().for_each(|value| *value = tau.copysign(*value));
    Ok(())
}

/// Selects the values whose magnitude reaches `tau`, unchanged, unless more than `limit` do: then the return
/// value is `false`, and `out` is no selection.
///
/// Ok-Topk (Li and Hoefler, PPoPP 2022) selects so for some steps by the threshold of an earlier one. Cost:
/// one read of `values`, up to the entry that is one too many.
///
/// # Errors
/// The same as for [`fixed_threshold`], for a value that is not finite if the pass reaches it.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::select::over_threshold;
///
/// let mut out = SparseVec::new(0);
/// assert!(over_threshold(&[0.5, -3.0, 1.0], 1.0, 2, &mut out)?);
/// assert_eq!((out.indices(), out.values()), (&[1, 2][..], &[-3.0, 1.0][..]));
/// assert!(!over_threshold(&[0.5, -3.0, 1.0], 0.5, 2, &mut out)?);
/// # Ok::<(), brevity_compress::Error>(())
/// ```
pub fn over_threshold(values: &[f32], tau: f32, limit: usize, out: &mut SparseVec) -> Result<bool, Error> {
    out.reset(values.len());
    if !(tau > 0.0 && tau.is_finite()) {
        return Err(Error::InvalidThreshold(tau));
    }
    Ok(collect_passing(values, tau.to_bits(), limit, out)? == Passing::All)
}
