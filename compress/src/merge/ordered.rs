//! Sums of any number of sparse vectors in the fixed order.
//!
//! With `P` vectors `x`, `m` the largest power of two up to `P`, and `g = P - m`:
//!
//! - `y(i) = x(i) + x(i + m)` for `i < g`, else `y(i) = x(i)`; `0 <= i < m`;
//! - `S(i, 1) = y(i)` and `S(i, 2 v) = S(i, v) + S(i + v, v)`, for `i` a multiple of `2 v`;
//! - the result is `S(0, m)`.
//!
//! Dense vectors are summed in this order too, by all of Brevity's collectives. An absent entry is a zero
//! there, which changes nothing in a sum except the sign of a zero; and sparse sums have no zeros.

use super::add;
use crate::error::check_length;
use crate::{Error, SparseVec, SparseView};

/// Work space of [`sum_in_order`], for reuse: at most 16 bytes for each entry of all vectors.
#[derive(Debug, Clone, Default)]
pub struct OrderedScratch {
    /// For `S(i, v)`, from the largest `v` on, its two operands.
    operands: Vec<[SparseVec; 2]>,
    /// The sum of a piece.
    piece: SparseVec,
}

/// About so many entries are summed before the next: what is merged from level to level stays in a cache of
/// 512 KiB.
const PIECE: usize = 1 << 14;

impl OrderedScratch {
    /// An empty work space.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The sum of all `views`, index by index, in the fixed order of their places. It has the bits of the sum of
/// the dense vectors in that order, without the zeros. Without any view, `out` keeps its dense length.
///
/// With `P` views, each entry is merged `log2(P)` times, rounded up, in pieces of the index space. Cost:
/// O(entries * log P).
///
/// # Errors
/// [`Error::LengthMismatch`] if the dense lengths differ, [`Error::NonFinite`] if a sum is not finite, with
/// one such index and what the sum has become when it is found. `out` is empty then.
pub fn sum_in_order(
    views: &[SparseView<'_>],
    out: &mut SparseVec,
    scratch: &mut OrderedScratch,
) -> Result<(), Error> {
    out.reset(views.first().map_or(out.dim(), SparseView::dim));
    for view in views {
        check_length(out.dim(), view.dim())?;
    }
    let Some(levels) = views.len().checked_ilog2() else { return Ok(()) };
    scratch.operands.resize_with((levels as usize).max(scratch.operands.len()), Default::default);
    let OrderedScratch { operands, piece } = scratch;
    let entries = views.iter().map(SparseView::len).sum();
    let summed = match views {
        // Nothing is added to it: the merge checks its values and drops its zeros.
        [single] => add(*single, single.within(0..0), out),
        _ if views.len() == 2 || entries <= PIECE => sum(views, 0, 1 << levels, out, operands).map(drop),
        _ => pieces(views, entries).try_for_each(|part| {
            let sum = sum(&part, 0, 1 << levels, piece, operands)?;
            out.append(sum);
            Ok(())
        }),
    };
    summed.inspect_err(|_| out.clear())
}

/// The views in pieces of the index space, each of about [`PIECE`] of the `entries` of all views, if these
/// are spread like those of the longest one.
fn pieces<'a>(views: &'a [SparseView<'a>], entries: usize) -> impl Iterator<Item = Vec<SparseView<'a>>> {
    let longest = views.iter().max_by_key(|view| view.len()).map_or(&[][..], |view| view.indices());
    let step = (longest.len() * PIECE / entries.max(1)).max(1);
    let dim = views.first().map_or(0, SparseView::dim);
    let starts = || (step..longest.len()).step_by(step).map(|place| longest[place] as usize);
    let ends = starts().chain([dim]);
    [0].into_iter()
        .chain(starts())
        .zip(ends)
        .map(|(start, end)| views.iter().map(|view| view.within(start..end)).collect())
}

/// `S(first, leaves)`, in `out` unless it is one of the views.
fn sum<'a>(
    views: &[SparseView<'a>],
    first: usize,
    leaves: usize,
    out: &'a mut SparseVec,
    operands: &mut [[SparseVec; 2]],
) -> Result<SparseView<'a>, Error> {
    if let Some(([left, right], below)) = operands.split_first_mut().filter(|_| leaves > 1) {
        let half = leaves / 2;
        let left = sum(views, first, half, left, below)?;
        let right = sum(views, first + half, half, right, below)?;
        add(left, right, out)?;
        return Ok(out.view());
    }
    let members = 1 << views.len().ilog2();
    let Some(guest) = views.get(first + members) else { return Ok(views[first]) };
    add(views[first], *guest, out)?;
    Ok(out.view())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(dim: usize, entries: &[(u32, f32)]) -> SparseVec {
        let (indices, values) = entries.iter().copied().unzip();
        SparseVec::from_parts(dim, indices, values).unwrap()
    }

    fn summed_in(dim: usize, vectors: &[SparseVec]) -> SparseVec {
        let views: Vec<_> = vectors.iter().map(SparseVec::view).collect();
        let mut out = SparseVec::new(dim);
        sum_in_order(&views, &mut out, &mut OrderedScratch::new()).unwrap();
        assert!(out.indices().is_sorted_by(|a, b| a < b));
        out
    }

    /// The sum of these vectors, in memory that has been used.
    fn summed(vectors: &[SparseVec]) -> Result<SparseVec, Error> {
        let views: Vec<_> = vectors.iter().map(SparseVec::view).collect();
        let used = sparse(5, &[(1, 7.0), (4, 8.0)]);
        let (mut out, mut scratch) = (used.clone(), OrderedScratch::new());
        sum_in_order(&[used.view(); 9], &mut out, &mut scratch).unwrap();
        assert_eq!(out, sparse(5, &[(1, 63.0), (4, 72.0)]));
        let result = sum_in_order(&views, &mut out, &mut scratch);
        if let Err(error) = result {
            assert!(out.is_empty(), "entries after {error}");
            return Err(error);
        }
        Ok(out)
    }

    #[test]
    fn guests_come_first_and_then_neighbours() {
        // 1e8 absorbs a 1, and two of them.
        let one = |value| sparse(3, &[(1, value)]);
        let big = 1e8;
        let of =
            |values: &[f32]| summed(&values.iter().map(|&value| one(value)).collect::<Vec<_>>()).unwrap();
        assert_eq!(of(&[big, 1.0, -big]), one(1.0));
        assert_eq!(of(&[big, -big, 1.0]), SparseVec::new(3));
        assert_eq!(of(&[big, -big, 1.0, 1.0]), one(2.0));
        assert_eq!(of(&[big, 1.0, -big, 1.0]), SparseVec::new(3));
        assert_eq!(of(&[1.0, big, 1.0, 2.0, 1.0, -big, 1.0]), one(6.0));
    }

    #[test]
    fn a_single_vector_is_checked_and_loses_its_zeros() {
        let single = sparse(9, &[(0, 0.0), (3, -2.0), (5, -0.0), (8, 1e-45)]);
        assert_eq!(summed(&[single]), Ok(sparse(9, &[(3, -2.0), (8, 1e-45)])));
        let infinite = sparse(9, &[(3, 1.0), (5, f32::NEG_INFINITY)]);
        assert_eq!(summed(&[infinite]), Err(Error::NonFinite { index: 5, value: f32::NEG_INFINITY }));
    }

    #[test]
    fn without_vectors_or_entries_there_is_none() {
        assert_eq!(summed(&[]), Ok(SparseVec::new(5)));
        for dim in [0, 1, 1 << 32] {
            for count in 1..=33 {
                assert_eq!(summed(&vec![SparseVec::new(dim); count]), Ok(SparseVec::new(dim)));
            }
        }
    }

    #[test]
    fn the_last_index_is_reached() {
        let dim = 1 << 32;
        let a = sparse(dim, &[(0, 1.0), (u32::MAX - 5000, 3.0), (u32::MAX, 2.0)]);
        let expected = sparse(dim, &[(0, 3.0), (u32::MAX - 5000, 9.0), (u32::MAX, 6.0)]);
        assert_eq!(summed(&vec![a; 3]), Ok(expected));
    }

    #[test]
    fn overflow_is_reported_and_leaves_nothing() {
        let a = sparse(9, &[(2, 1.0), (3, f32::MAX)]);
        let overflow = Err(Error::NonFinite { index: 3, value: f32::INFINITY });
        for count in 2..=33 {
            assert_eq!(summed(&vec![a.clone(); count]), overflow, "{count} vectors");
        }
        // A partial sum that has overflowed stays so.
        let minus = sparse(9, &[(3, -f32::MAX)]);
        let four = [&a, &a, &minus, &minus].map(SparseVec::clone);
        assert!(matches!(summed(&four), Err(Error::NonFinite { index: 3, .. })));
        let four = [&a, &minus, &a, &minus].map(SparseVec::clone);
        assert_eq!(summed(&four), Ok(sparse(9, &[(2, 2.0)])));
    }

    /// Many entries, in many pieces, with equal indices and without; also if those of one view lie elsewhere.
    #[test]
    fn pieces_have_the_sums_of_the_whole() {
        let dim = 1 << 20;
        let vector = |view: u32, from: u32| {
            let indices = (0..20_000_u32).map(|place| from + place * 7 + place % (view + 1) % 7);
            let entries: Vec<_> =
                indices.map(|index| (index, f32::from((index % 97) as u8) - 48.0)).collect();
            sparse(dim, &entries)
        };
        for count in [3, 5, 8] {
            let vectors: Vec<_> =
                (0..count).map(|view| vector(view, if view == 1 { 500_000 } else { 3 * view })).collect();
            let mut expected = vec![0.0; dim];
            vectors.iter().for_each(|vector| vector.add_to(&mut expected));
            let found = summed_in(dim, &vectors);
            assert_eq!(found.to_dense(), expected);
            assert!(found.values().iter().all(|value| *value != 0.0));
        }
    }

    #[test]
    fn lengths_must_be_equal() {
        for place in 1..5 {
            let mut vectors = vec![sparse(9, &[(2, 1.0)]); 5];
            vectors[place] = sparse(8, &[(2, 1.0)]);
            assert_eq!(summed(&vectors), Err(Error::LengthMismatch { expected: 9, found: 8 }));
        }
    }
}
