//! Gradients of any element type, as a step reads and writes them. What is kept of them, and what travels, is
//! `f32`.

use std::borrow::Cow;
use std::ops::ControlFlow;

use brevity_compress::dense::{Element, from_f32_saturating, to_f32};
use brevity_compress::feedback::Gradient;
use half::{bf16, f16};

/// Elements converted at a time; they stay in the first-level cache.
const BLOCK: usize = 1024;

/// An element type of gradients: `f32`, `f64`, [`f16`](struct@f16), [`bf16`].
///
/// Whatever the type, residuals are `f32`, and so is what travels, unless a policy says otherwise. A gradient
/// is converted when it is added: one beyond the range of `f32` is not finite. An average is rounded once, to
/// the nearest number of the type, the largest finite one at most; what that takes away is not kept. Ranks
/// that pass different types get different roundings of the same averages.
pub trait GradientElement: Element + private::Slices {}

mod private {
    use super::{Gradient, GradientMut};

    pub trait Slices: Sized {
        fn read(slice: &[Self]) -> Gradient<'_>;
        fn write(slice: &mut [Self]) -> GradientMut<'_>;
    }
}

/// A gradient that its average replaces.
pub enum GradientMut<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

macro_rules! gradient_element {
    ($type:ty, $variant:ident) => {
        impl GradientElement for $type {}

        impl private::Slices for $type {
            fn read(slice: &[Self]) -> Gradient<'_> {
                Gradient::$variant(slice)
            }

            fn write(slice: &mut [Self]) -> GradientMut<'_> {
                GradientMut::$variant(slice)
            }
        }
    };
}

gradient_element!(f32, F32);
gradient_element!(f64, F64);
gradient_element!(f16, F16);
gradient_element!(bf16, Bf16);

/// Evaluates an expression for the slice of a [`Gradient`] or a [`GradientMut`].
macro_rules! for_slice {
    ($kind:ident, $gradient:expr, $slice:ident => $result:expr) => {
        match $gradient {
            $kind::F32($slice) => $result,
            $kind::F64($slice) => $result,
            $kind::F16($slice) => $result,
            $kind::Bf16($slice) => $result,
        }
    };
}
pub(super) use for_slice;

/// The gradients of all tensors, to be written.
pub(super) fn all_of<E: GradientElement, G: AsMut<[E]>>(gradients: &mut [G]) -> Vec<GradientMut<'_>> {
    gradients.iter_mut().map(|gradient| E::write(gradient.as_mut())).collect()
}

impl GradientMut<'_> {
    pub(super) fn len(&self) -> usize {
        for_slice!(Self, self, slice => slice.len())
    }

    /// The gradient itself, until it is written.
    pub(super) fn read(&self) -> Gradient<'_> {
        for_slice!(Self, self, slice => private::Slices::read(slice))
    }

    /// Makes it zero.
    pub(super) fn clear(&mut self) {
        for_slice!(Self, self, slice => slice.fill(Default::default()));
    }

    /// Writes finite averages, made from as many sums.
    pub(super) fn write(&mut self, sums: &[f32], average: impl Fn(f32) -> f32) {
        if let Self::F32(slice) = self {
            slice.iter_mut().zip(sums).for_each(|(value, &sum)| *value = average(sum));
            return;
        }
        let mut block = [0.0; BLOCK];
        for (place, sums) in sums.chunks(BLOCK).enumerate() {
            let block = &mut block[..sums.len()];
            block.iter_mut().zip(sums).for_each(|(value, &sum)| *value = average(sum));
            for_slice!(Self, self, slice => round(block, &mut slice[place * BLOCK..][..sums.len()]));
        }
    }

    /// Writes finite averages at some indices, and zeros elsewhere.
    pub(super) fn write_entries(&mut self, averages: impl Iterator<Item = (u32, f32)>) {
        self.clear();
        for (index, average) in averages {
            let at = index as usize;
            if let Self::F32(slice) = self {
                slice[at] = average;
            } else {
                for_slice!(Self, self, slice => round(&[average], &mut slice[at..=at]));
            }
        }
    }

    /// Replaces averages by what `change` makes of them. Of another type than `f32`, what they were rounded
    /// to is changed, and rounded again.
    pub(super) fn update(&mut self, change: impl FnOnce(&mut [f32])) {
        if let Self::F32(slice) = self {
            return change(slice);
        }
        let mut wide = widened(self.read()).into_owned();
        change(&mut wide);
        for_slice!(Self, self, slice => round(&wide, slice));
    }

    /// Writes the finite averages that `fill` puts into a vector.
    pub(super) fn write_by(&mut self, fill: impl FnOnce(&mut [f32])) {
        if let Self::F32(slice) = self {
            return fill(slice);
        }
        let mut wide = vec![0.0; self.len()];
        fill(&mut wide);
        for_slice!(Self, self, slice => round(&wide, slice));
    }
}

fn round<E: Element>(from: &[f32], to: &mut [E]) {
    let rounded = from_f32_saturating(from, to);
    debug_assert!(rounded.is_ok(), "averages are finite: {rounded:?}");
}

/// A gradient in `f32`; a copy if it has another type.
pub(super) fn widened(gradient: Gradient<'_>) -> Cow<'_, [f32]> {
    if let Gradient::F32(slice) = gradient {
        return Cow::Borrowed(slice);
    }
    let mut wide = vec![0.0; gradient.len()];
    // What is not finite stays so.
    let _ = for_slice!(Gradient, gradient, slice => to_f32(slice, &mut wide));
    Cow::Owned(wide)
}

/// Calls `with` for the elements in blocks, with the index of each first one, until it breaks.
pub(super) fn for_blocks(
    gradient: Gradient<'_>,
    mut with: impl FnMut(usize, &[f32]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if let Gradient::F32(slice) = gradient {
        let mut blocks = slice.chunks(BLOCK).enumerate();
        return blocks.try_for_each(|(block, values)| with(block * BLOCK, values));
    }
    let mut wide = [0.0; BLOCK];
    for first in (0..gradient.len()).step_by(BLOCK) {
        let last = gradient.len().min(first + BLOCK);
        let block = &mut wide[..last - first];
        // What is not finite stays so.
        let _ = for_slice!(Gradient, gradient, slice => to_f32(&slice[first..last], block));
        with(first, block)?;
    }
    ControlFlow::Continue(())
}

/// Adds `gradient` to `sum` and returns true. If any sum would not be finite, leaves `sum` unchanged and
/// returns false.
pub(super) fn add_finite(sum: &mut [f32], gradient: Gradient<'_>) -> bool {
    let checked = for_blocks(gradient, |first, block| {
        let mut sums = sum[first..].iter().zip(block);
        let finite = sums.all(|(sum, value)| (sum + value).is_finite());
        if finite { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if checked.is_continue() {
        let _ = for_blocks(gradient, |first, block| {
            sum[first..].iter_mut().zip(block).for_each(|(sum, value)| *sum += value);
            ControlFlow::Continue(())
        });
    }
    checked.is_continue()
}

/// Takes a `gradient` that was added out of `sum` again. The sum was rounded, so the difference may exceed
/// the largest number by half a unit.
pub(super) fn take_out(sum: &mut [f32], gradient: Gradient<'_>) {
    let _ = for_blocks(gradient, |first, block| {
        let sums = sum[first..].iter_mut().zip(block);
        sums.for_each(|(sum, value)| *sum = (*sum - value).clamp(f32::MIN, f32::MAX));
        ControlFlow::Continue(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_is_not_finite_is_not_stored() {
        let mut sum = [1.0, f32::MAX];
        assert!(!add_finite(&mut sum, Gradient::F32(&[1.0, f32::MAX])));
        assert!(!add_finite(&mut sum, Gradient::F64(&[1.0, 1e39])));
        assert!(!add_finite(&mut sum, Gradient::Bf16(&[bf16::ONE, bf16::NAN])));
        assert_eq!(sum, [1.0, f32::MAX]);
        assert!(add_finite(&mut sum, Gradient::F16(&[f16::ONE, f16::ZERO])));
        assert_eq!(sum, [2.0, f32::MAX]);
    }

    /// In all types, and across blocks.
    #[test]
    fn what_is_added_is_taken_out() {
        let values: Vec<f32> = (0..2500).map(|index| (index % 200) as f32 - 99.0).collect();
        let wide: Vec<f64> = values.iter().map(|&value| value.into()).collect();
        let half: Vec<f16> = values.iter().map(|&value| f16::from_f32(value)).collect();
        let brain: Vec<bf16> = values.iter().map(|&value| bf16::from_f32(value)).collect();
        for gradient in
            [Gradient::F32(&values), Gradient::F64(&wide), Gradient::F16(&half), Gradient::Bf16(&brain)]
        {
            let mut sum = vec![1.0; values.len()];
            assert!(add_finite(&mut sum, gradient));
            assert!(sum.iter().zip(&values).all(|(sum, value)| *sum == value + 1.0));
            take_out(&mut sum, gradient);
            assert_eq!(sum, vec![1.0; values.len()]);
        }
    }

    #[test]
    fn averages_are_rounded_once_and_never_infinite() {
        let averages = [1.0 + 2.0_f32.powi(-11), 1e-3, 70_000.0, -3e38];
        let mut half = [f16::ONE; 4];
        GradientMut::F16(&mut half).write(&averages, |sum| sum);
        let expected = [1.0, 1e-3, 65504.0, -65504.0].map(f16::from_f32);
        assert_eq!(half, expected);
        GradientMut::F16(&mut half).write_entries([(2, 1e-3)].into_iter());
        assert_eq!(half, [f16::ZERO, f16::ZERO, expected[1], f16::ZERO]);
        let mut wide = [9.0; 2000];
        GradientMut::F64(&mut wide).write(&[3.0; 2000], |sum| sum / 2.0);
        assert_eq!(wide, [1.5; 2000]);
        let mut brain = [bf16::ONE; 3];
        GradientMut::Bf16(&mut brain).write_by(|out| out.copy_from_slice(&[0.5, 257.0, f32::MAX]));
        assert_eq!(brain, [0.5, 256.0, f32::from(bf16::MAX)].map(bf16::from_f32));
    }
}
