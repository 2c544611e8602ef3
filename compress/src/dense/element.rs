//! The number types of gradients.

use std::fmt::Debug;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::simd::half::{Bf16, F16};
use crate::simd::{Level, dense, half as halves};

/// An element type of gradients: `f32`, `f64`, [`f16`](struct@f16), [`bf16`]. Residuals and all other state
/// are `f32`.
pub trait Element: Copy + Debug + Default + PartialEq + Send + Sync + 'static + private::Kernels {
    /// The type's name.
    const NAME: &'static str;
    /// The largest finite value that is also an `f32`.
    const LARGEST: f32;
}

pub(super) mod private {
    use crate::simd::Level;

    /// The kernels of one type. Each stops at the end of its shorter slice.
    pub trait Kernels: Sized {
        /// The smallest `f32` above [`LARGEST`](super::Element::LARGEST) that converts to infinity.
        const OVERFLOW: f32;

        fn add_assign(level: Level, a: &mut [Self], b: &[Self]);
        fn scale(level: Level, values: &mut [Self], factor: f32);
        fn to_f32(level: Level, from: &[Self], to: &mut [f32]);
        fn from_f32(level: Level, from: &[f32], to: &mut [Self]);
        /// The slice itself if its elements are `f32`.
        fn as_f32(_: &[Self]) -> Option<&[f32]> {
            None
        }
    }
}

impl Element for f32 {
    const NAME: &'static str = "f32";
    const LARGEST: f32 = f32::MAX;
}

impl private::Kernels for f32 {
    const OVERFLOW: f32 = f32::INFINITY;

    fn add_assign(level: Level, a: &mut [Self], b: &[Self]) {
        dense::add_assign(level, a, b);
    }

    fn scale(level: Level, values: &mut [Self], factor: f32) {
        dense::scale(level, values, factor);
    }

    fn to_f32(_: Level, from: &[Self], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn from_f32(_: Level, from: &[f32], to: &mut [Self]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }

    fn as_f32(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }
}

impl Element for f64 {
    const NAME: &'static str = "f64";
    const LARGEST: f32 = f32::MAX;
}

impl private::Kernels for f64 {
    const OVERFLOW: f32 = f32::INFINITY;

    fn add_assign(level: Level, a: &mut [Self], b: &[Self]) {
        dense::add_assign_f64(level, a, b);
    }

    fn scale(level: Level, values: &mut [Self], factor: f32) {
        dense::scale_f64(level, values, f64::from(factor));
    }

    fn to_f32(level: Level, from: &[Self], to: &mut [f32]) {
        dense::narrow_f64(level, from, to);
    }

    fn from_f32(level: Level, from: &[f32], to: &mut [Self]) {
        dense::widen_f32(level, from, to);
    }
}

macro_rules! half_element {
    ($type:ty, $format:ty, $name:literal, $largest:expr, $overflow:expr) => {
        impl Element for $type {
            const NAME: &'static str = $name;
            const LARGEST: f32 = $largest;
        }

        impl private::Kernels for $type {
            const OVERFLOW: f32 = $overflow;

            fn add_assign(level: Level, a: &mut [Self], b: &[Self]) {
                halves::add_assign::<$format>(level, a.reinterpret_cast_mut(), b.reinterpret_cast());
            }

            fn scale(level: Level, values: &mut [Self], factor: f32) {
                halves::scale::<$format>(level, values.reinterpret_cast_mut(), factor);
            }

            fn to_f32(level: Level, from: &[Self], to: &mut [f32]) {
                halves::widen::<$format>(level, from.reinterpret_cast(), to);
            }

            fn from_f32(level: Level, from: &[f32], to: &mut [Self]) {
                halves::narrow::<$format>(level, from, to.reinterpret_cast_mut());
            }
        }
    };
}

// Halfway to the first number of the next exponent, which is even, so it rounds up.
half_element!(f16, F16, "f16", 65504.0, 65520.0);
half_element!(bf16, Bf16, "bf16", f32::from_bits(0x7f7f_0000), f32::from_bits(0x7f7f_8000));
