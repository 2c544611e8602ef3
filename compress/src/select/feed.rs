//! Gradient dropping: selection from a residual in the pass that adds a gradient to it.

use super::candidates::LeftOut;
use super::guess::Hint;
use super::part::Part;
use super::search::{TopKScratch, search};
use crate::error::check_length;
use crate::feedback::Gradient;
use crate::{Error, SparseVec};

/// `r += g`; moves the `k` entries of `r` that come first in the total order (see [`top_k`](super::top_k)) to
/// `out`, by rising index, and leaves zeros in their place (Aji and Heafield, EMNLP 2017).
///
/// `hint` comes from the last call for this residual, and is updated. If a sum is not finite, `r` keeps its
/// old value there and the sum is not selected; the return value counts such sums. If the residual was
/// finite, everything in `r` and `out` is finite afterwards. Cost: one read of `g`, one read and write of
/// `r`, and a small share more.
///
/// # Errors
/// [`Error::LengthMismatch`] if `g` is not as long as `r`, [`Error::TooLong`] for more than 2^32 elements.
/// `r` is unchanged and `out` empty then.
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::select::{Hint, TopKScratch, feed_top_k};
///
/// let mut r = [1.0, 0.5, -1.0, 0.0];
/// let (mut out, mut hint, mut scratch) = (SparseVec::new(0), Hint::new(), TopKScratch::new());
/// let g = [1.0, 2.0, 0.5, f32::NAN];
/// let left_out = feed_top_k(&mut r, g[..].into(), 1, &mut hint, &mut out, &mut scratch)?;
/// assert_eq!((out.indices(), out.values()), (&[1][..], &[2.5][..]));
/// assert_eq!(r, [2.0, 0.0, -0.5, 0.0]);
/// assert_eq!(left_out.map(|found| (found.count, found.index)), Some((1, 3)));
/// # Ok::<(), brevity_compress::Error>(())
/// ```
pub fn feed_top_k(
    r: &mut [f32],
    gradient: Gradient<'_>,
    k: usize,
    hint: &mut Hint,
    out: &mut SparseVec,
    scratch: &mut TopKScratch,
) -> Result<Option<LeftOut>, Error> {
    out.reset(r.len());
    feed(&mut [Part::residual(0, r, gradient)], k, hint, std::slice::from_mut(out), scratch)
}

/// Like [`feed_top_k`], with one threshold for a list of tensors: moves the `k` entries that come first of
/// all; equal magnitudes are ordered by tensor, then by index. `outs` has one vector for each tensor.
///
/// # Errors
/// The same as for [`feed_top_k`], and [`Error::LengthMismatch`] if the lists differ in length. Nothing has
/// changed then, except that `outs` are empty.
pub fn feed_top_k_of_all<'a>(
    residuals: impl ExactSizeIterator<Item = &'a mut [f32]>,
    gradients: &[Gradient<'a>],
    k: usize,
    hint: &mut Hint,
    outs: &mut [SparseVec],
    scratch: &mut TopKScratch,
) -> Result<Option<LeftOut>, Error> {
    outs.iter_mut().for_each(SparseVec::clear);
    check_length(residuals.len(), gradients.len())?;
    check_length(residuals.len(), outs.len())?;
    let pairs = residuals.zip(gradients).enumerate();
    let mut parts: Vec<_> =
        pairs.map(|(tensor, (r, &gradient))| Part::residual(tensor, r, gradient)).collect();
    outs.iter_mut().zip(&parts).for_each(|(out, part)| out.reset(part.len()));
    feed(&mut parts, k, hint, outs, scratch)
}

fn feed(
    parts: &mut [Part<'_>],
    k: usize,
    hint: &mut Hint,
    outs: &mut [SparseVec],
    scratch: &mut TopKScratch,
) -> Result<Option<LeftOut>, Error> {
    parts.iter().try_for_each(Part::check)?;
    let elements = parts.iter().map(Part::len).sum();
    let found = search(parts, k, hint.bound(elements, k), outs, scratch);
    hint.set(found.threshold, elements, k);
    Ok(found.left_out)
}
