//! Gradients of any element type.

use std::ops::Range;

/// A borrowed gradient. Sums and residuals are `f32`; elements of other types are converted on the way, rounded to nearest.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Gradient<'a> {
    /// 32-bit floating point.
    F32(&'a [f32]),
    /// 64-bit floating point. Elements beyond the range of `f32` count as infinite.
    F64(&'a [f64]),
}

impl Gradient<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(g) => g.len(),
            Self::F64(g) => g.len(),
        }
    }

    /// Whether there are no elements at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub(crate) fn at(&self, index: usize) -> f32 {
        match self {
            Self::F32(g) => g[index],
            Self::F64(g) => g[index] as f32,
        }
    }

    /// The elements of a range.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(g) => Self::F32(&g[range]),
            Self::F64(g) => Self::F64(&g[range]),
        }
    }

    /// Writes the elements to `into`, which is as long.
    pub(crate) fn convert(self, into: &mut [f32]) {
        match self {
            Self::F32(g) => into.copy_from_slice(g),
            Self::F64(g) => into.iter_mut().zip(g).for_each(|(to, &from)| *to = from as f32),
        }
    }
}

impl<'a> From<&'a [f32]> for Gradient<'a> {
    fn from(gradient: &'a [f32]) -> Self {
        Self::F32(gradient)
    }
}

impl<'a, const N: usize> From<&'a [f32; N]> for Gradient<'a> {
    fn from(gradient: &'a [f32; N]) -> Self {
        Self::F32(gradient)
    }
}

impl<'a> From<&'a [f64]> for Gradient<'a> {
    fn from(gradient: &'a [f64]) -> Self {
        Self::F64(gradient)
    }
}
