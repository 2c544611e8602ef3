//! The input of a selection: tensors, or stretches of them.

use crate::Error;
use crate::feedback::Gradient;
use crate::simd::{Level, Pass, add_and_take, copy_out, prefetch_at};

/// A stretch of a tensor.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// The tensor's position in the list of tensors.
    pub(super) tensor: usize,
    /// Index of the first element in the tensor.
    first: usize,
    values: Values<'a>,
}

#[derive(Debug)]
enum Values<'a> {
    /// Values that are not changed.
    Fixed(&'a [f32]),
    /// Selected values are taken out. The gradient is present until the first pass has added it.
    Residual { r: &'a mut [f32], gradient: Option<Gradient<'a>> },
}

impl<'a> Part<'a> {
    /// A whole tensor from which copies are selected.
    pub(super) fn fixed(tensor: usize, values: &'a [f32]) -> Self {
        Self { tensor, first: 0, values: Values::Fixed(values) }
    }

    /// A whole residual. As many elements of `gradient` are added before the selected ones are taken out.
    pub(super) fn residual(tensor: usize, r: &'a mut [f32], gradient: Gradient<'a>) -> Self {
        Self { tensor, first: 0, values: Values::Residual { r, gradient: Some(gradient) } }
    }

    pub(super) fn len(&self) -> usize {
        match &self.values {
            Values::Fixed(values) => values.len(),
            Values::Residual { r, .. } => r.len(),
        }
    }

    /// The same part, borrowed.
    pub(super) fn stretch(&mut self) -> Part<'_> {
        let values = match &mut self.values {
            Values::Fixed(values) => Values::Fixed(values),
            Values::Residual { r, gradient } => Values::Residual { r, gradient: *gradient },
        };
        Part { tensor: self.tensor, first: self.first, values }
    }

    /// Splits into the elements before `middle` and the others.
    pub(super) fn split_at(self, middle: usize) -> (Self, Self) {
        let (tensor, first) = (self.tensor, self.first);
        let (before, after) = match self.values {
            Values::Fixed(values) => (Values::Fixed(&values[..middle]), Values::Fixed(&values[middle..])),
            Values::Residual { r, gradient } => {
                let len = r.len();
                let (before, after) = r.split_at_mut(middle);
                let part = |range| gradient.map(|gradient| gradient.slice(range));
                (
                    Values::Residual { r: before, gradient: part(0..middle) },
                    Values::Residual { r: after, gradient: part(middle..len) },
                )
            }
        };
        (Self { tensor, first, values: before }, Self { tensor, first: first + middle, values: after })
    }

    /// Passes over the elements from `from` on, like [`add_and_take`], until the end or until less than a
    /// block of room is left. Indices count from the beginning of the tensor.
    pub(super) fn collect(
        &mut self,
        level: Level,
        from: usize,
        bound: u32,
        bits: &mut [u32],
        indices: &mut [u32],
    ) -> Pass {
        let first = (self.first + from) as u32;
        match &mut self.values {
            Values::Fixed(values) => copy_out(level, &values[from..], first, bound, bits, indices),
            Values::Residual { r, gradient: Some(Gradient::F32(g)) } => {
                add_and_take(level, &mut r[from..], &g[from..], first, bound, bits, indices)
            }
            Values::Residual { r, gradient: Some(gradient) } => {
                let gradient = gradient.slice(from..r.len());
                add_converted(level, &mut r[from..], gradient, first, bound, bits, indices)
            }
            Values::Residual { r, gradient: None } => {
                let pass = copy_out(level, &r[from..], first, bound, bits, indices);
                for (&index, &bits) in indices.iter().zip(&*bits).take(pass.found) {
                    if f32::from_bits(bits).is_finite() {
                        r[index as usize - self.first] = 0.0;
                    }
                }
                pass
            }
        }
    }

    /// Records that the first pass has added the gradient.
    pub(super) fn set_added(&mut self) {
        if let Values::Residual { gradient, .. } = &mut self.values {
            *gradient = None;
        }
    }

    /// The element's value, with the gradient added.
    pub(super) fn value(&self, position: usize) -> f32 {
        match &self.values {
            Values::Fixed(values) => values[position],
            Values::Residual { r, gradient } => {
                r[position] + gradient.map_or(0.0, |gradient| gradient.at(position))
            }
        }
    }

    /// Prefetches what [`value`](Self::value) reads.
    pub(super) fn prefetch(&self, position: usize) {
        match &self.values {
            Values::Fixed(values) => prefetch_at(values, position),
            Values::Residual { r, gradient } => {
                prefetch_at(r, position);
                gradient.iter().for_each(|gradient| gradient.prefetch(position));
            }
        }
    }

    /// Whether the gradient's element at an index of the tensor is finite; true without a gradient.
    pub(super) fn gradient_is_finite(&self, index: u32) -> bool {
        match &self.values {
            Values::Residual { gradient: Some(gradient), .. } => {
                gradient.at(index as usize - self.first).is_finite()
            }
            _ => true,
        }
    }

    /// Returns values that a pass has taken out, by their indices in the tensor.
    pub(super) fn put_back(&mut self, indices: &[u32], bits: &[u32]) {
        if let Values::Residual { r, .. } = &mut self.values {
            for (&index, &bits) in indices.iter().zip(bits) {
                r[index as usize - self.first] = f32::from_bits(bits);
            }
        }
    }

    /// Whether the tensor must stay finite, so that values that are not finite are left out.
    pub(super) fn is_residual(&self) -> bool {
        matches!(self.values, Values::Residual { .. })
    }

    /// Fails if the gradient's length differs from the residual's, or if 32-bit indices can't address all
    /// elements.
    pub(super) fn check(&self) -> Result<(), Error> {
        crate::error::check_addressable(self.len())?;
        match &self.values {
            Values::Residual { r, gradient: Some(gradient) } => {
                crate::error::check_length(r.len(), gradient.len())
            }
            _ => Ok(()),
        }
    }
}

/// Gradient elements converted at a time; they stay in the first-level cache.
const CONVERTED: usize = 1024;

/// Like [`add_and_take`], for a gradient of another type.
fn add_converted(
    level: Level,
    r: &mut [f32],
    gradient: Gradient<'_>,
    first: u32,
    bound: u32,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    let mut converted = [0.0; CONVERTED];
    let mut pass = Pass { done: 0, found: 0 };
    for r in r.chunks_mut(CONVERTED) {
        let g = &mut converted[..r.len()];
        gradient.slice(pass.done..pass.done + r.len()).convert(level, g);
        let first = first + pass.done as u32;
        let block =
            add_and_take(level, r, g, first, bound, &mut bits[pass.found..], &mut indices[pass.found..]);
        pass.done += block.done;
        pass.found += block.found;
        if block.done < r.len() {
            break;
        }
    }
    pass
}
