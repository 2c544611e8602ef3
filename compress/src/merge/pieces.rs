//! A sum whose second operand comes in pieces.

use super::close_up;
use crate::error::check_length;
use crate::simd::{self, Level};
use crate::{Error, SparseVec, SparseView};

/// The sum of a sparse vector and of another one that comes in pieces by rising index: as it is decoded, or
/// as it arrives. It has the bits of [`add`](super::add).
///
/// ```
/// use brevity_compress::SparseVec;
/// use brevity_compress::merge::PiecewiseSum;
///
/// let a = SparseVec::from_parts(9, vec![1, 5], vec![1.0, 2.0])?;
/// let b = SparseVec::from_parts(9, vec![1, 2, 8], vec![-1.0, 7.0, 3.0])?;
/// let mut out = SparseVec::new(0);
/// let mut sum = PiecewiseSum::new(a.view(), &mut out);
/// sum.add(b.view().within(0..4))?;
/// sum.add(b.view().within(4..9))?;
/// sum.finish()?;
/// assert_eq!((out.indices(), out.values()), (&[2, 5, 8][..], &[7.0, 2.0, 3.0][..]));
/// # Ok::<(), brevity_compress::Error>(())
/// ```
#[derive(Debug)]
pub struct PiecewiseSum<'a> {
    /// The entries of the first operand that are not in the sum yet.
    rest: SparseView<'a>,
    /// The sum at its front; behind are entries that nobody reads.
    out: &'a mut SparseVec,
    /// The entries of the sum so far.
    len: usize,
    /// The last index of the pieces so far.
    last: Option<u32>,
    /// Why there is no sum.
    failed: Option<Error>,
}

impl<'a> PiecewiseSum<'a> {
    /// Begins with the first operand. The sum replaces the entries of `out` when it is
    /// [finished](Self::finish); until then they are unspecified.
    pub fn new(first: SparseView<'a>, out: &'a mut SparseVec) -> Self {
        let used = out.len();
        out.overwrite(first.dim(), used);
        Self { rest: first, out, len: 0, last: None, failed: None }
    }

    /// Adds a piece of the second operand, whose indices are above those of all pieces before. Cost:
    /// O(entries) of it and of the first operand up to its last index.
    ///
    /// A sum that is not finite is told at the [end](Self::finish). Then later pieces are checked alone.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if the dense lengths differ, [`Error::UnsortedIndices`] unless the piece
    /// follows those before. It is not added then.
    pub fn add(&mut self, piece: SparseView<'_>) -> Result<(), Error> {
        check_length(self.rest.dim(), piece.dim())?;
        let (Some(&first), Some(&last)) = (piece.indices().first(), piece.indices().last()) else {
            return Ok(());
        };
        if self.last.is_some_and(|before| first <= before) {
            return Err(Error::UnsortedIndices { position: 0 });
        }
        self.last = Some(last);
        let count = self.rest.indices().partition_point(|&index| index <= last);
        let (own, rest) = (self.rest.slice(0..count), self.rest.slice(count..self.rest.len()));
        self.rest = rest;
        self.merge(own, piece);
        Ok(())
    }

    /// Ends the sum.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for the first index whose sum is not finite. `out` is empty then.
    pub fn finish(mut self) -> Result<(), Error> {
        let rest = self.rest;
        self.rest = rest.slice(rest.len()..rest.len());
        self.merge(rest, self.rest);
        match self.failed {
            None => self.out.truncate(self.len),
            Some(_) => self.out.clear(),
        }
        self.failed.map_or(Ok(()), Err)
    }

    /// Appends the sum of entries that are all above those of the sum so far.
    fn merge(&mut self, a: SparseView<'_>, b: SparseView<'_>) {
        if self.failed.is_some() {
            return;
        }
        let (start, end) = (self.len, self.len + a.len() + b.len());
        // With room for what is known to follow.
        let room = self.out.len().max(end + self.rest.len());
        let (indices, values) = self.out.overwrite(a.dim(), room);
        let (indices, values) = (&mut indices[start..end], &mut values[start..end]);
        let look = simd::merge(Level::best(), a, b, indices, values);
        match close_up(look, indices, values) {
            Ok(entries) => self.len += entries,
            Err(error) => self.failed = Some(error),
        }
    }
}
