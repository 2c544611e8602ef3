//! Sparse vectors: strictly rising indices and their values.

use std::ops::Range;

use crate::bits::check_finite;
use crate::error::{check_addressable, check_length};
use crate::{Error, in_standard_float_mode};

/// An owned sparse vector of dense length `dim`.
///
/// Indices rise strictly and are below `dim`; `indices` and `values` have the same length. Explicit zeros are
/// allowed. [`clear`](Self::clear) and [`reset`](Self::reset) keep the capacity, so a vector that is reused
/// stops allocating.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SparseVec {
    dim: usize,
    indices: Vec<u32>,
    values: Vec<f32>,
}

/// A borrowed sparse vector, with the same guarantees as [`SparseVec`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseView<'a> {
    dim: usize,
    indices: &'a [u32],
    values: &'a [f32],
}

impl SparseVec {
    /// A vector of `dim` zeros, without entries. Every function that adds entries refuses a `dim` above 2^32.
    pub fn new(dim: usize) -> Self {
        Self::with_capacity(dim, 0)
    }

    /// A vector of `dim` zeros with room for `entries`.
    pub fn with_capacity(dim: usize, entries: usize) -> Self {
        Self { dim, indices: Vec::with_capacity(entries), values: Vec::with_capacity(entries) }
    }

    /// Takes the entries after checking them. Cost: O(entries).
    ///
    /// # Errors
    /// The same as for [`SparseView::new`].
    pub fn from_parts(dim: usize, indices: Vec<u32>, values: Vec<f32>) -> Result<Self, Error> {
        check_parts(dim, &indices, &values)?;
        Ok(Self { dim, indices, values })
    }

    /// Borrows the entries.
    pub fn view(&self) -> SparseView<'_> {
        SparseView { dim: self.dim, indices: &self.indices, values: &self.values }
    }

    /// Length of the dense vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The indices, strictly rising.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// The values, in the order of the indices.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The values, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Index and value of each entry, by rising index.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, f32)> + '_ {
        self.view().iter()
    }

    /// Returns indices and values.
    pub fn into_parts(self) -> (Vec<u32>, Vec<f32>) {
        (self.indices, self.values)
    }

    /// Removes all entries; keeps `dim` and the capacity.
    pub fn clear(&mut self) {
        self.indices.clear();
        self.values.clear();
    }

    /// Removes all entries and sets `dim`; keeps the capacity.
    pub fn reset(&mut self, dim: usize) {
        self.clear();
        self.dim = dim;
    }

    /// Makes room for `entries` in total.
    pub fn reserve(&mut self, entries: usize) {
        self.indices.reserve(entries.saturating_sub(self.indices.len()));
        self.values.reserve(entries.saturating_sub(self.values.len()));
    }

    /// Appends an entry. `index` must be below `dim` and above every index present. Debug builds panic
    /// otherwise; in other builds the vector's sums are wrong or its use panics.
    pub fn push(&mut self, index: u32, value: f32) {
        debug_assert!((index as usize) < self.dim, "index {index} not below {}", self.dim);
        debug_assert!(self.indices.last().is_none_or(|&last| last < index), "index {index} does not rise");
        self.indices.push(index);
        self.values.push(value);
    }

    /// Appends the entries of `more`, whose first index must be above the last one here and whose last one
    /// below `dim`. Debug builds panic otherwise.
    pub fn append(&mut self, more: SparseView<'_>) {
        self.extend_from_bits(more.indices, bytemuck::cast_slice(more.values));
    }

    /// Appends entries, with values given by their bits. The conditions of [`push`](Self::push) hold for
    /// each.
    pub(crate) fn extend_from_bits(&mut self, indices: &[u32], bits: &[u32]) {
        debug_assert!(indices.is_sorted_by(|a, b| a < b), "indices do not rise");
        debug_assert!(
            indices.is_empty() || indices.first() > self.indices.last(),
            "the first index does not rise"
        );
        debug_assert!(
            indices.last().is_none_or(|&last| (last as usize) < self.dim),
            "an index is not below the length"
        );
        self.indices.extend_from_slice(indices);
        self.values.extend(bits.iter().map(|&bits| f32::from_bits(bits)));
    }

    /// Sets dense length and number of entries, and lends both lists. They contain old entries or zeros until
    /// the caller overwrites them, with indices that rise and are below `dim`.
    pub(crate) fn overwrite(&mut self, dim: usize, entries: usize) -> (&mut [u32], &mut [f32]) {
        self.dim = dim;
        self.indices.resize(entries, 0);
        self.values.resize(entries, 0.0);
        (&mut self.indices, &mut self.values)
    }

    /// Keeps only the first `entries`.
    pub(crate) fn truncate(&mut self, entries: usize) {
        self.indices.truncate(entries);
        self.values.truncate(entries);
    }

    /// Sets the length and lets `write` replace the entries; leaves none if it fails. The conditions of
    /// [`push`](Self::push) hold for each entry, and `write` must leave as many values as indices.
    pub(crate) fn fill(
        &mut self,
        dim: usize,
        write: impl FnOnce(&mut Vec<u32>, &mut Vec<f32>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.dim = dim;
        let written = write(&mut self.indices, &mut self.values);
        if written.is_err() {
            self.clear();
        }
        debug_assert_eq!(check_parts(dim, &self.indices, &self.values), Ok(()));
        written
    }

    /// Removes the first `entries`.
    pub(crate) fn remove_first(&mut self, entries: usize) {
        self.indices.drain(..entries);
        self.values.drain(..entries);
    }

    /// Removes the entries whose value is 0. Subnormal numbers stay, also where the thread's mode takes them
    /// for zeros.
    pub fn drop_zeros(&mut self) {
        // Bits would not do: the compiler makes a comparison with 0 of a test of them.
        in_standard_float_mode(|| {
            let mut kept = 0;
            for place in 0..self.values.len() {
                if self.values[place] != 0.0 {
                    (self.indices[kept], self.values[kept]) = (self.indices[place], self.values[place]);
                    kept += 1;
                }
            }
            self.truncate(kept);
        });
    }

    /// Multiplies every value.
    pub fn scale(&mut self, factor: f32) {
        self.values.iter_mut().for_each(|value| *value *= factor);
    }

    /// Replaces the entries and `dim` by those of `source`, without allocating if the capacity suffices.
    pub fn copy_from(&mut self, source: SparseView<'_>) {
        self.reset(source.dim);
        self.indices.extend_from_slice(source.indices);
        self.values.extend_from_slice(source.values);
    }

    /// Like [`SparseView::add_to`].
    ///
    /// # Panics
    /// The same as for [`SparseView::add_to`].
    pub fn add_to(&self, dense: &mut [f32]) {
        self.view().add_to(dense);
    }

    /// Like [`SparseView::to_dense`].
    pub fn to_dense(&self) -> Vec<f32> {
        self.view().to_dense()
    }
}

impl<'a> SparseView<'a> {
    /// Checks and borrows entries, for instance from another rank. Cost: O(entries). Does not check values:
    /// the functions that sum them report those that are not finite, and so does
    /// [`check_finite`](Self::check_finite).
    ///
    /// # Errors
    /// [`Error::TooLong`] if `dim` is above 2^32, [`Error::LengthMismatch`] if there are not as many values
    /// as indices, [`Error::UnsortedIndices`] or [`Error::IndexOutOfRange`] for the first invalid index.
    pub fn new(dim: usize, indices: &'a [u32], values: &'a [f32]) -> Result<Self, Error> {
        check_parts(dim, indices, values)?;
        Ok(Self { dim, indices, values })
    }

    /// Length of the dense vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The indices, strictly rising.
    pub fn indices(&self) -> &'a [u32] {
        self.indices
    }

    /// The values, in the order of the indices.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// Index and value of each entry, by rising index.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, f32)> + use<'a> {
        self.indices.iter().copied().zip(self.values.iter().copied())
    }

    /// Fails at the first value that is not finite. Cost: one read of the values.
    ///
    /// # Errors
    /// [`Error::NonFinite`] with the index of its entry.
    pub fn check_finite(&self) -> Result<(), Error> {
        check_finite(self.values).map_err(|error| match error {
            Error::NonFinite { index, value } => {
                Error::NonFinite { index: self.indices[index] as usize, value }
            }
            error => error,
        })
    }

    /// An owned copy.
    pub fn to_owned(&self) -> SparseVec {
        SparseVec { dim: self.dim, indices: self.indices.to_vec(), values: self.values.to_vec() }
    }

    /// The entries whose index is in `range`, in place: a vector of the same dense length. Cost: O(log
    /// entries).
    pub fn within(&self, range: Range<usize>) -> SparseView<'a> {
        let start = self.indices.partition_point(|&index| (index as usize) < range.start);
        let end = start + self.indices[start..].partition_point(|&index| (index as usize) < range.end);
        SparseView { dim: self.dim, indices: &self.indices[start..end], values: &self.values[start..end] }
    }

    /// The entries at these places of the lists: a vector of the same dense length.
    ///
    /// # Panics
    /// Unless there are as many entries.
    pub fn slice(&self, places: Range<usize>) -> SparseView<'a> {
        SparseView { dim: self.dim, indices: &self.indices[places.clone()], values: &self.values[places] }
    }

    /// `dense += factor * entries`. Sums are not checked for overflow.
    ///
    /// # Panics
    /// Unless `dense` has `dim` elements.
    pub fn add_scaled_to(&self, factor: f32, dense: &mut [f32]) {
        assert_eq!(self.dim, dense.len(), "a sparse vector is added to a dense one of its own length");
        self.iter().for_each(|(index, value)| dense[index as usize] += factor * value);
    }

    /// Adds every entry to its place in `dense`. Sums are not checked for overflow.
    ///
    /// # Panics
    /// Unless `dense` has `dim` elements.
    pub fn add_to(&self, dense: &mut [f32]) {
        assert_eq!(self.dim, dense.len(), "a sparse vector is added to a dense one of its own length");
        self.iter().for_each(|(index, value)| dense[index as usize] += value);
    }

    /// The dense vector.
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.dim];
        self.iter().for_each(|(index, value)| dense[index as usize] = value);
        dense
    }
}

fn check_parts(dim: usize, indices: &[u32], values: &[f32]) -> Result<(), Error> {
    check_addressable(dim)?;
    check_length(indices.len(), values.len())?;
    check_indices(dim, indices)
}

/// Fails at the first index that does not rise or is not below `dim`.
pub(crate) fn check_indices(dim: usize, indices: &[u32]) -> Result<(), Error> {
    if let Some(before) = indices.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(Error::UnsortedIndices { position: before + 1 });
    }
    // Indices rise, so the first one out of range is found by bisection.
    let position = indices.partition_point(|&index| (index as usize) < dim);
    match indices.get(position) {
        Some(&index) => Err(Error::IndexOutOfRange { position, index, dim }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_what_it_takes_over() {
        let build = |dim, indices: &[u32], values: &[f32]| SparseView::new(dim, indices, values).map(|_| ());
        assert_eq!(build(3, &[0, 2], &[1.0, 2.0]), Ok(()));
        assert_eq!(build(0, &[], &[]), Ok(()));
        assert_eq!(build(1 << 32, &[u32::MAX], &[1.0]), Ok(()));
        assert_eq!(build((1 << 32) + 1, &[], &[]), Err(Error::TooLong { len: (1 << 32) + 1 }));
        assert_eq!(build(3, &[0], &[]), Err(Error::LengthMismatch { expected: 1, found: 0 }));
        assert_eq!(build(3, &[1, 1], &[1.0; 2]), Err(Error::UnsortedIndices { position: 1 }));
        assert_eq!(build(3, &[0, 2, 1], &[1.0; 3]), Err(Error::UnsortedIndices { position: 2 }));
        assert_eq!(
            build(3, &[0, 3, 4], &[1.0; 3]),
            Err(Error::IndexOutOfRange { position: 1, index: 3, dim: 3 })
        );
        assert_eq!(
            SparseVec::from_parts(0, vec![0], vec![1.0]),
            Err(Error::IndexOutOfRange { position: 0, index: 0, dim: 0 })
        );
    }

    #[test]
    fn adds_and_scales() {
        let mut sparse = SparseVec::with_capacity(4, 2);
        sparse.push(1, 2.0);
        sparse.push(3, -1.0);
        sparse.scale(0.5);
        let mut dense = vec![1.0; 4];
        sparse.add_to(&mut dense);
        assert_eq!(dense, [1.0, 2.0, 1.0, 0.5]);
        assert_eq!(sparse.to_dense(), [0.0, 1.0, 0.0, -0.5]);
        sparse.reset(2);
        assert_eq!((sparse.dim(), sparse.len(), sparse.is_empty()), (2, 0, true));
    }

    #[test]
    fn lends_the_entries_of_a_range_of_indices() {
        let sparse =
            SparseVec::from_parts(1 << 32, vec![1, 4, 6, u32::MAX], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
        let within = |range| sparse.view().within(range).indices().to_vec();
        assert_eq!(within(0..1 << 32), [1, 4, 6, u32::MAX]);
        assert_eq!(within(2..6), [4]);
        assert_eq!(within(4..7), [4, 6]);
        assert_eq!(within(1 << 31..(1 << 32) - 1), []);
        #[allow(clippy::reversed_empty_ranges, reason = "it is what a caller may pass")]
        let reversed = 6..2;
        assert_eq!(within(reversed), []);
        assert_eq!(sparse.view().within(6..7).values(), [3.0]);
        assert_eq!(sparse.view().within(6..7).dim(), 1 << 32);
        let mut dense = vec![1.0; 9];
        SparseVec::from_parts(9, vec![1, 8], vec![4.0, -2.0]).unwrap().view().add_scaled_to(0.5, &mut dense);
        assert_eq!(dense, [1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    }

    #[test]
    fn names_the_index_of_a_value_that_is_not_finite() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let sparse = SparseVec::from_parts(9, vec![1, 4, 8], vec![f32::MAX, bad, f32::NAN]).unwrap();
            let found = sparse.view().check_finite();
            assert!(matches!(found, Err(Error::NonFinite { index: 4, value }) if !value.is_finite()));
            assert_eq!(sparse.view().within(0..4).check_finite(), Ok(()));
        }
    }

    #[test]
    #[should_panic(expected = "does not rise")]
    #[cfg(debug_assertions)]
    fn push_asserts_the_order() {
        let mut sparse = SparseVec::new(4);
        sparse.push(1, 1.0);
        sparse.push(1, 1.0);
    }
}
