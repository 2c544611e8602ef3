//! Selection from vectors that stay unchanged.

use super::part::Part;
use super::search::{TopKScratch, search};
use crate::error::check_length;
use crate::{Error, SparseVec};

/// Selects the `k` entries of `values` that come first in the total order into `out`, by rising index.
///
/// `out` is overwritten, including its dense length. It gets fewer than `k` entries if fewer values are not
/// zero. Cost: O(n) expected, about one read of `values`.
///
/// # Errors
/// [`Error::NonFinite`] for the first NaN or infinity anywhere in `values`, [`Error::TooLong`] for more than
/// 2^32 values. `out` is empty then.
pub fn top_k(values: &[f32], k: usize, out: &mut SparseVec, scratch: &mut TopKScratch) -> Result<(), Error> {
    out.reset(values.len());
    select(&mut [Part::fixed(0, values)], k, std::slice::from_mut(out), scratch)
}

/// Like [`top_k`], with one threshold for a list of tensors: selects the `k` entries that come first of all;
/// equal magnitudes are ordered by tensor, then by index. `outs` has one vector for each tensor, which gets
/// the entries selected there.
///
/// # Errors
/// The same as for [`top_k`], for the first tensor concerned; [`Error::LengthMismatch`] if the numbers of
/// `outs` and tensors differ. All `outs` are empty then.
pub fn top_k_of_all(
    tensors: &[&[f32]],
    k: usize,
    outs: &mut [SparseVec],
    scratch: &mut TopKScratch,
) -> Result<(), Error> {
    outs.iter_mut().for_each(SparseVec::clear);
    check_length(tensors.len(), outs.len())?;
    outs.iter_mut().zip(tensors).for_each(|(out, tensor)| out.reset(tensor.len()));
    let mut parts: Vec<_> =
        tensors.iter().enumerate().map(|(tensor, values)| Part::fixed(tensor, values)).collect();
    select(&mut parts, k, outs, scratch)
}

fn select(
    parts: &mut [Part<'_>],
    k: usize,
    outs: &mut [SparseVec],
    scratch: &mut TopKScratch,
) -> Result<(), Error> {
    parts.iter().try_for_each(Part::check)?;
    match search(parts, k, None, outs, scratch).left_out {
        Some(first) => Err(Error::NonFinite { index: first.index, value: first.value }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(values: &[f32], k: usize) -> Vec<(u32, f32)> {
        let mut out = SparseVec::new(0);
        top_k(values, k, &mut out, &mut TopKScratch::new()).unwrap();
        assert_eq!(out.dim(), values.len());
        out.iter().collect()
    }

    #[test]
    fn ties_go_to_the_smaller_index() {
        assert_eq!(select(&[1.0, -2.0, 2.0, -1.0, 1.0], 3), [(0, 1.0), (1, -2.0), (2, 2.0)]);
        assert_eq!(select(&[0.0, -0.0, 1e-45, 0.0], 4), [(2, 1e-45)]);
        assert_eq!(select(&[], 3), []);
        assert_eq!(select(&[1.0], 0), []);
    }

    #[test]
    fn first_non_finite_value_is_reported() {
        for n in [3, 5000, 100_000] {
            for k in [0, 1, n / 100, n] {
                let mut values = vec![0.5_f32; n];
                values[n - 1] = f32::NAN;
                values[n / 2] = f32::NEG_INFINITY;
                let mut out = SparseVec::with_capacity(9, 1);
                out.push(1, 1.0);
                let found = top_k(&values, k, &mut out, &mut TopKScratch::new());
                let expected = Error::NonFinite { index: n / 2, value: f32::NEG_INFINITY };
                assert_eq!((found, out.is_empty()), (Err(expected), true), "n {n}, k {k}");
            }
        }
    }

    #[test]
    fn reused_scratch_does_not_grow() {
        let values: Vec<f32> = (0..100_000_u64).map(|i| ((i * 7919) % 100_003) as f32).collect();
        let (mut out, mut scratch) = (SparseVec::new(0), TopKScratch::new());
        top_k(&values, 1000, &mut out, &mut scratch).unwrap();
        let before = scratch.capacity();
        top_k(&values, 1000, &mut out, &mut scratch).unwrap();
        assert_eq!(scratch.capacity(), before);
    }
}
