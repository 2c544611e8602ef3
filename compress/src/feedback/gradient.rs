//! Gradients of any element type.

use std::ops::Range;

use half::{bf16, f16};

use crate::dense::Element;
use crate::simd::{Level, prefetch_at};

/// A borrowed gradient. Sums and residuals are `f32`; other element types are converted during the pass,
/// `f64` rounded to nearest. A value beyond the range of `f32` counts as infinite.
#[derive(Debug, Clone, Copy)]
pub enum Gradient<'a> {
    /// Elements of `f32`.
    F32(&'a [f32]),
    /// Elements of `f64`.
    F64(&'a [f64]),
    /// Elements of [`f16`](struct@f16).
    F16(&'a [f16]),
    /// Elements of [`bf16`].
    Bf16(&'a [bf16]),
}

/// Evaluates an expression for the slice in a gradient.
macro_rules! for_slice {
    ($gradient:expr, $slice:ident => $result:expr) => {
        match $gradient {
            Gradient::F32($slice) => $result,
            Gradient::F64($slice) => $result,
            Gradient::F16($slice) => $result,
            Gradient::Bf16($slice) => $result,
        }
    };
}

impl Gradient<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        for_slice!(self, g => g.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub(crate) fn at(&self, index: usize) -> f32 {
        match self {
            Self::F32(g) => g[index],
            Self::F64(g) => g[index] as f32,
            Self::F16(g) => g[index].to_f32(),
            Self::Bf16(g) => g[index].to_f32(),
        }
    }

    /// The elements of a range.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(g) => Self::F32(&g[range]),
            Self::F64(g) => Self::F64(&g[range]),
            Self::F16(g) => Self::F16(&g[range]),
            Self::Bf16(g) => Self::Bf16(&g[range]),
        }
    }

    /// Writes the elements to `into`, up to the shorter length.
    pub(crate) fn convert(self, level: Level, into: &mut [f32]) {
        for_slice!(self, g => convert(level, g, into));
    }

    /// Prefetches the element at `index`.
    pub(crate) fn prefetch(&self, index: usize) {
        for_slice!(self, g => prefetch_at(g, index));
    }
}

fn convert<E: Element>(level: Level, from: &[E], into: &mut [f32]) {
    E::to_f32(level, from, into);
}

impl<'a> From<&'a [f32]> for Gradient<'a> {
    fn from(gradient: &'a [f32]) -> Self {
        Self::F32(gradient)
    }
}

impl<'a> From<&'a [f64]> for Gradient<'a> {
    fn from(gradient: &'a [f64]) -> Self {
        Self::F64(gradient)
    }
}

impl<'a> From<&'a [f16]> for Gradient<'a> {
    fn from(gradient: &'a [f16]) -> Self {
        Self::F16(gradient)
    }
}

impl<'a> From<&'a [bf16]> for Gradient<'a> {
    fn from(gradient: &'a [bf16]) -> Self {
        Self::Bf16(gradient)
    }
}
