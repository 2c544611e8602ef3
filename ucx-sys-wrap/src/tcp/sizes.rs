//! The size of frame headers, and of the parts of a message in a form that is cheap to copy.

use std::ops::Deref;

use crate::{Lengths, MAX_PARTS};

/// Bytes of the header of every frame.
pub(super) const HEADER_BYTES: usize = 64;

/// The most payload of a frame of a put or get, in bytes: messages go in between.
pub(super) const PIECE_BYTES: usize = 512 << 10;

/// Bytes of each part, at most [`MAX_PARTS`] of them; missing parts count as empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    count: usize,
    bytes: [usize; MAX_PARTS],
}

impl Sizes {
    /// The size of a message of one part.
    #[inline]
    pub(super) fn one(bytes: usize) -> Self {
        let mut sizes = Self { count: 1, ..Self::default() };
        sizes.bytes[0] = bytes;
        sizes
    }

    /// Adds a part. Ignores one above [`MAX_PARTS`], which callers rule out.
    #[inline]
    pub(super) fn push(&mut self, bytes: usize) {
        if let Some(place) = self.bytes.get_mut(self.count) {
            *place = bytes;
            self.count += 1;
        }
    }

    /// Bytes of all parts.
    #[inline]
    pub(super) fn total(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// The bytes of each part, zero for missing parts.
    #[inline]
    pub(super) fn padded(&self) -> &[usize; MAX_PARTS] {
        &self.bytes
    }
}

impl Deref for Sizes {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.bytes[..self.count]
    }
}

impl FromIterator<usize> for Sizes {
    #[inline]
    fn from_iter<I: IntoIterator<Item = usize>>(parts: I) -> Self {
        let mut sizes = Self::default();
        parts.into_iter().for_each(|bytes| sizes.push(bytes));
        sizes
    }
}

impl From<Sizes> for Lengths {
    fn from(sizes: Sizes) -> Self {
        // `Sizes` has at most as many parts as `Lengths`.
        Lengths::try_from(&*sizes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_and_added_up() {
        let sizes: Sizes = [3, 0, 4].into_iter().collect();
        assert_eq!((&sizes[..], sizes.total(), sizes.len()), (&[3, 0, 4][..], 7, 3));
        let short: Sizes = [5].into_iter().collect();
        assert_eq!((&short[..], short.padded()), (&[5][..], &[5, 0, 0]));
        assert_ne!(short, [5, 0].into_iter().collect(), "an empty part is a part");
        assert_eq!(Lengths::from(sizes)[..], [3, 0, 4]);
    }
}
