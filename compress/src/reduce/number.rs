//! The number types of reductions, and their kernels.

use std::fmt::Debug;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::Op;
use crate::simd::Level;
use crate::simd::half::{Bf16, F16, Format, combine_wide, narrow, widen};
use crate::simd::reduce::{
    And, Max, Min, Operation, Or, Product, Sum, Xor, combine, combine_from, divide, divide_f64,
};

/// A reduction: `into[i] = into[i] op from[i]`, up to the shorter length.
pub type Kernel<N, F = N> = fn(into: &mut [N], from: &[F]);

/// A reduction out of place: `out[i] = a[i] op b[i]`, up to the shortest length.
pub type KernelFrom<N> = fn(out: &mut [N], a: &[N], b: &[N]);

/// A type of elements that are reduced as they are: `f32`, `f64`, and integers of 8 to 64 bits.
pub trait Number: Pod + Debug + PartialEq + Send + Sync + private::Sealed {
    /// The type's name.
    const NAME: &'static str;

    /// The reduction in place, for the instruction set of this CPU. `None` for a bitwise reduction of
    /// floating-point numbers.
    fn kernel(op: Op) -> Option<Kernel<Self>>;

    /// The reduction out of place, for the same operations as [`kernel`](Self::kernel).
    fn kernel_from(op: Op) -> Option<KernelFrom<Self>>;
}

/// A number type of which averages are made: `f32` and `f64`.
pub trait Float: Number {
    /// See [`divide`](super::divide).
    fn divide(values: &mut [Self], count: u32);
}

/// A 16-bit number type, which is reduced as `f32`: [`f16`](struct@f16) and [`bf16`].
pub trait Half: Pod + Debug + PartialEq + Send + Sync + private::Sealed {
    /// The type's name.
    const NAME: &'static str;

    /// The reduction of `f32` with numbers of this type. `None` for a bitwise reduction.
    fn wide_kernel(op: Op) -> Option<Kernel<f32, Self>>;

    /// Like [`widen`](super::widen), up to the shorter length.
    fn widen(from: &[Self], into: &mut [f32]);

    /// Like [`narrow`](super::narrow), up to the shorter length.
    fn narrow(from: &[f32], into: &mut [Self]);
}

mod private {
    pub trait Sealed {}
}

/// A reduction of `N` by the kernel for `T`, which has the same bits or is a byte. The casts can't fail: a
/// `T` is as large as an `N` and equally aligned, or smaller.
fn in_place<N: Pod, T: Pod, O: Operation<T> + Default>(into: &mut [N], from: &[N]) {
    combine::<T, O>(Level::best(), O::default(), cast_slice_mut(into), cast_slice(from));
}

/// Like [`in_place`].
fn out_of_place<N: Pod, T: Pod, O: Operation<T> + Default>(out: &mut [N], a: &[N], b: &[N]) {
    combine_from::<T, O>(Level::best(), O::default(), cast_slice_mut(out), cast_slice(a), cast_slice(b));
}

fn widened<H: Pod, F: Format, O: Operation<f32> + Default>(into: &mut [f32], from: &[H]) {
    combine_wide::<F, O>(Level::best(), O::default(), into, cast_slice(from));
}

/// The instance of `$run` for each operation on floating-point numbers.
macro_rules! of_floats {
    ($op:expr, $run:ident<$type:ty, $as:ty>) => {
        match $op {
            Op::Sum => Some($run::<$type, $as, Sum>),
            Op::Product => Some($run::<$type, $as, Product>),
            Op::Max => Some($run::<$type, $as, Max>),
            Op::Min => Some($run::<$type, $as, Min>),
            Op::And | Op::Or | Op::Xor => None,
        }
    };
}

/// The instance of `$run` for each operation on integers. `$bits` is the unsigned type of the same size.
macro_rules! of_integers {
    ($op:expr, $run:ident<$type:ty, $bits:ty>) => {
        Some(match $op {
            Op::Sum => $run::<$type, $bits, Sum>,
            Op::Product => $run::<$type, $bits, Product>,
            Op::Max => $run::<$type, $type, Max>,
            Op::Min => $run::<$type, $type, Min>,
            Op::And => $run::<$type, u8, And>,
            Op::Or => $run::<$type, u8, Or>,
            Op::Xor => $run::<$type, u8, Xor>,
        })
    };
}

macro_rules! float {
    ($type:ident, $divide:ident) => {
        impl private::Sealed for $type {}

        impl Number for $type {
            const NAME: &'static str = stringify!($type);

            fn kernel(op: Op) -> Option<Kernel<Self>> {
                of_floats!(op, in_place<Self, Self>)
            }

            fn kernel_from(op: Op) -> Option<KernelFrom<Self>> {
                of_floats!(op, out_of_place<Self, Self>)
            }
        }

        impl Float for $type {
            fn divide(values: &mut [Self], count: u32) {
                $divide(Level::best(), values, count as $type);
            }
        }
    };
}
float!(f32, divide);
float!(f64, divide_f64);

macro_rules! integers {
    ($($type:ident as $bits:ident),*) => {$(
        impl private::Sealed for $type {}

        impl Number for $type {
            const NAME: &'static str = stringify!($type);

            fn kernel(op: Op) -> Option<Kernel<Self>> {
                of_integers!(op, in_place<Self, $bits>)
            }

            fn kernel_from(op: Op) -> Option<KernelFrom<Self>> {
                of_integers!(op, out_of_place<Self, $bits>)
            }
        }
    )*};
}
integers!(i8 as u8, i16 as u16, i32 as u32, i64 as u64, u8 as u8, u16 as u16, u32 as u32, u64 as u64);

macro_rules! half {
    ($type:ident, $format:ty) => {
        impl private::Sealed for $type {}

        impl Half for $type {
            const NAME: &'static str = stringify!($type);

            fn wide_kernel(op: Op) -> Option<Kernel<f32, Self>> {
                of_floats!(op, widened<Self, $format>)
            }

            fn widen(from: &[Self], into: &mut [f32]) {
                widen::<$format>(Level::best(), from.reinterpret_cast(), into);
            }

            fn narrow(from: &[f32], into: &mut [Self]) {
                narrow::<$format>(Level::best(), from, into.reinterpret_cast_mut());
            }
        }
    };
}
half!(f16, F16);
half!(bf16, Bf16);
