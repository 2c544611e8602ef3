//! Sums of sparse vectors.
//!
//! Every sum is checked: a sum that is not finite is an error, never an entry. Entries that cancel to exactly
//! zero are dropped. The order of additions depends on the order of the arguments alone. Ranks that must have
//! the same bits merge inside [`in_standard_float_mode`](crate::in_standard_float_mode).

mod cut;
mod ordered;
mod pieces;

pub use ordered::{OrderedScratch, sum_in_order};
pub use pieces::PiecewiseSum;

use cut::{HalvingScratch, find_half};

use crate::bits::INFINITE;
use crate::error::check_length;
use crate::simd::{self, Level, List, Look, SPARE};
use crate::{Error, SparseVec, SparseView};

/// Work space of [`top_k_sum`], for reuse.
#[derive(Debug, Clone, Default)]
pub struct MergeScratch {
    sums: SparseVec,
    cut: HalvingScratch,
}

impl MergeScratch {
    /// An empty work space.
    pub fn new() -> Self {
        Self::default()
    }
}

/// `out = a + b` over the union of the indices. Cost: O(entries).
///
/// # Errors
/// [`Error::LengthMismatch`] if the dense lengths differ, [`Error::NonFinite`] for the first index whose sum
/// is not finite. `out` is empty then.
pub fn add(a: SparseView<'_>, b: SparseView<'_>, out: &mut SparseVec) -> Result<(), Error> {
    if let Err(error) = check_length(a.dim(), b.dim()) {
        out.reset(a.dim());
        return Err(error);
    }
    // Not cleared before, because every entry is overwritten.
    let (indices, values) = out.overwrite(a.dim(), a.len() + b.len());
    let look = simd::merge(Level::best(), a, b, indices, values);
    let closed = close_up(look, indices, values);
    out.truncate(*closed.as_ref().unwrap_or(&0));
    closed.map(drop)
}

/// Merges entries with equal indices, of which there are at most two, and drops zeros, if the merge has left
/// any. Returns the number of entries that remain, at the front, unless a sum is not finite.
fn close_up(look: Look, indices: &mut [u32], values: &mut [f32]) -> Result<usize, Error> {
    let (mut end, mut most) = (indices.len(), look.most);
    if look.twice || look.least == 0 {
        (end, most) = simd::close_up(Level::best(), indices, values);
    }
    let sums = &values[..end];
    debug_assert!(sums.iter().all(|&sum| sum != 0.0), "a zero was left");
    if most < INFINITE {
        return Ok(end);
    }
    let found = indices.iter().zip(sums).find(|(_, value)| !value.is_finite());
    found.map_or(Ok(end), |(&index, &value)| Err(Error::NonFinite { index: index as usize, value }))
}

/// The operator of gTop-k: splits `a + b` into its first `k` entries in the total order (`|v|` descending,
/// then index ascending), `kept`, and all others, `dropped`. Both are sorted by index.
///
/// `kept + dropped == a + b` bit for bit. Cost: O(entries) expected, about four passes: a merge with checks,
/// a pass that finds the cut, and one that splits; one more if an index is in both inputs.
///
/// # Errors
/// The same as for [`add`]; `kept` and `dropped` are empty then.
pub fn top_k_sum(
    a: SparseView<'_>,
    b: SparseView<'_>,
    k: usize,
    kept: &mut SparseVec,
    dropped: &mut SparseVec,
    scratch: &mut MergeScratch,
) -> Result<(), Error> {
    let MergeScratch { sums, cut } = scratch;
    if let Err(error) = add(a, b, sums) {
        kept.reset(a.dim());
        dropped.reset(a.dim());
        return Err(error);
    }
    split(sums.view(), k, kept, dropped, cut);
    Ok(())
}

/// The second half of [`top_k_sum`]: splits a sum into its first `k` entries in the total order, `kept`, and
/// all others, `dropped`. Its values are finite and not zero, as the other functions of this module leave
/// them. Cost: O(entries) expected, two passes.
pub fn split_largest(
    sum: SparseView<'_>,
    k: usize,
    kept: &mut SparseVec,
    dropped: &mut SparseVec,
    scratch: &mut MergeScratch,
) {
    split(sum, k, kept, dropped, &mut scratch.cut);
}

fn split(
    sum: SparseView<'_>,
    k: usize,
    kept: &mut SparseVec,
    dropped: &mut SparseVec,
    cut: &mut HalvingScratch,
) {
    let (level, bits) = (Level::best(), bytemuck::cast_slice(sum.values()));
    let mesh = find_half(level, bits, k, cut);
    let stay = k.min(sum.len());
    let go = sum.len() - stay;
    simd::part(level, sum.indices(), bits, mesh, list(kept, sum.dim(), stay), list(dropped, sum.dim(), go));
    kept.truncate(stay);
    dropped.truncate(go);
}

/// Room for `entries`, and for what a kernel writes behind them.
fn list(sparse: &mut SparseVec, dim: usize, entries: usize) -> List<'_> {
    let (indices, values) = sparse.overwrite(dim, entries + SPARE);
    List { indices, bits: bytemuck::cast_slice_mut(values) }
}

/// Splits the entries of `a` into those whose index is in `keys` and the others.
///
/// `keys` must rise strictly. Debug builds assert it; otherwise an entry may end up on the wrong side, but
/// none is lost. Cost: O(entries + keys).
pub fn split_by(a: SparseView<'_>, keys: &[u32], among: &mut SparseVec, others: &mut SparseVec) {
    debug_assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "keys do not rise strictly");
    among.reset(a.dim());
    others.reset(a.dim());
    let mut next = 0;
    for (index, value) in a.iter() {
        while keys.get(next).is_some_and(|&key| key < index) {
            next += 1;
        }
        let side = if keys.get(next) == Some(&index) { &mut *among } else { &mut *others };
        side.push(index, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(dim: usize, entries: &[(u32, f32)]) -> SparseVec {
        let (indices, values) = entries.iter().copied().unzip();
        SparseVec::from_parts(dim, indices, values).unwrap()
    }

    #[test]
    fn adds_the_union_and_drops_what_cancels() {
        let a = sparse(9, &[(0, 1.0), (3, 2.0), (5, -1.0)]);
        let b = sparse(9, &[(3, -2.0), (4, 7.0), (5, -1.0), (8, 1.0)]);
        let mut out = SparseVec::new(0);
        add(a.view(), b.view(), &mut out).unwrap();
        assert_eq!(out, sparse(9, &[(0, 1.0), (4, 7.0), (5, -2.0), (8, 1.0)]));
        assert_eq!(
            add(a.view(), sparse(8, &[]).view(), &mut out),
            Err(Error::LengthMismatch { expected: 9, found: 8 })
        );
    }

    #[test]
    fn gtop_k_operator_splits_the_sum() {
        let a = sparse(9, &[(0, 1.0), (3, 2.0)]);
        let b = sparse(9, &[(1, -1.0), (3, 2.0), (7, 1.0)]);
        let (mut kept, mut dropped) = (SparseVec::new(0), SparseVec::new(0));
        let mut scratch = MergeScratch::new();
        top_k_sum(a.view(), b.view(), 2, &mut kept, &mut dropped, &mut scratch).unwrap();
        assert_eq!(kept, sparse(9, &[(0, 1.0), (3, 4.0)]));
        assert_eq!(dropped, sparse(9, &[(1, -1.0), (7, 1.0)]));
        top_k_sum(a.view(), b.view(), 0, &mut kept, &mut dropped, &mut scratch).unwrap();
        assert_eq!((kept.len(), dropped.len()), (0, 4));
    }

    #[test]
    fn overflow_is_reported_and_leaves_nothing() {
        let a = sparse(9, &[(2, 1.0), (3, f32::MAX)]);
        let expected = Err(Error::NonFinite { index: 3, value: f32::INFINITY });
        let mut out = SparseVec::new(9);
        assert_eq!(add(a.view(), a.view(), &mut out), expected);
        assert!(out.is_empty());
    }

    #[test]
    fn splits_by_membership() {
        let a = sparse(9, &[(0, 1.0), (3, 2.0), (5, 3.0), (8, 4.0)]);
        let (mut among, mut others) = (SparseVec::new(0), SparseVec::new(0));
        split_by(a.view(), &[1, 3, 4, 8], &mut among, &mut others);
        assert_eq!(among, sparse(9, &[(3, 2.0), (8, 4.0)]));
        assert_eq!(others, sparse(9, &[(0, 1.0), (5, 3.0)]));
    }
}
