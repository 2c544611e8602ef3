//! Element types and their reductions.

use std::ops::Add;

use brevity_compress::dense as compress;
use bytemuck::Pod;

use crate::error::{Error, Result};

/// How the elements of all ranks are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; integers wrap around.
    Sum,
    /// The sum, divided once by the number of ranks; floating-point types only.
    Average,
    /// The largest element; NaN if any is NaN.
    Max,
    /// The smallest element; NaN if any is NaN.
    Min,
}

impl ReduceOp {
    /// Checks that vectors of `T` can be reduced this way.
    ///
    /// # Errors
    /// [`Error::Reduction`] for an average of integers.
    pub fn check<T: Element>(self) -> Result<()> {
        match self {
            Self::Average if !T::IS_FLOAT => Err(Error::Reduction { reduction: "average", element: T::NAME }),
            _ => Ok(()),
        }
    }

    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Average => 2,
            Self::Max => 3,
            Self::Min => 4,
        }
    }
}

/// A type that collectives work on. Results have the same bits on every rank, in any order of two operands,
/// except for the payload of a sum of two NaN.
pub trait Element: Pod + Send + Sync + PartialEq + std::fmt::Debug + private::Sealed {
    /// The type's number on the wire.
    const NUMBER: u8;
    /// The type's name.
    const NAME: &'static str;
    /// Whether an average is defined.
    const IS_FLOAT: bool;

    /// `into[i] = into[i] (+, max, min) from[i]`; [`ReduceOp::Average`] adds. The lengths are equal. Like
    /// [`divide`](Self::divide), it uses the thread's floating-point mode, so collectives call both inside
    /// [`in_standard_float_mode`](brevity_compress::in_standard_float_mode).
    fn combine(reduction: ReduceOp, into: &mut [Self], from: &[Self]);

    /// Divides every element by `count`; does nothing for integers.
    fn divide(values: &mut [Self], count: u32);
}

mod private {
    pub trait Sealed {}
}

fn zip_with<T: Copy>(into: &mut [T], from: &[T], combine: impl Fn(T, T) -> T) {
    debug_assert_eq!(into.len(), from.len());
    for (into, &from) in into.iter_mut().zip(from) {
        *into = combine(*into, from);
    }
}

/// From this length on, the SIMD kernel of this CPU adds vectors, with prefetching. Shorter vectors, which
/// are mostly in the nearest cache, are added faster by a plain loop.
const LONG_BYTES: usize = 64 << 10;

/// `into += from`, in order; the lengths are equal.
fn add<T: compress::Element + Add<Output = T>>(into: &mut [T], from: &[T]) {
    if size_of_val(into) < LONG_BYTES || compress::add_assign(into, from).is_err() {
        zip_with(into, from, |a, b| a + b);
    }
}

macro_rules! float_element {
    ($type:ty, $number:literal) => {
        impl private::Sealed for $type {}

        impl Element for $type {
            const NUMBER: u8 = $number;
            const NAME: &'static str = stringify!($type);
            const IS_FLOAT: bool = true;

            fn combine(reduction: ReduceOp, into: &mut [Self], from: &[Self]) {
                match reduction {
                    ReduceOp::Sum | ReduceOp::Average => add(into, from),
                    ReduceOp::Max => zip_with(into, from, |a, b| pick(a, b, a.total_cmp(&b).is_ge())),
                    ReduceOp::Min => zip_with(into, from, |a, b| pick(a, b, a.total_cmp(&b).is_le())),
                }

                /// One of the two; NaN if either is.
                fn pick(a: $type, b: $type, first: bool) -> $type {
                    if a.is_nan() || b.is_nan() {
                        <$type>::NAN
                    } else if first {
                        a
                    } else {
                        b
                    }
                }
            }

            fn divide(values: &mut [Self], count: u32) {
                let count = count as $type;
                for value in values {
                    *value /= count;
                }
            }
        }
    };
}

macro_rules! integer_element {
    ($type:ty, $number:literal) => {
        impl private::Sealed for $type {}

        impl Element for $type {
            const NUMBER: u8 = $number;
            const NAME: &'static str = stringify!($type);
            const IS_FLOAT: bool = false;

            fn combine(reduction: ReduceOp, into: &mut [Self], from: &[Self]) {
                match reduction {
                    ReduceOp::Sum | ReduceOp::Average => zip_with(into, from, <$type>::wrapping_add),
                    ReduceOp::Max => zip_with(into, from, Ord::max),
                    ReduceOp::Min => zip_with(into, from, Ord::min),
                }
            }

            fn divide(_: &mut [Self], _: u32) {}
        }
    };
}

float_element!(f32, 1);
float_element!(f64, 2);
integer_element!(i32, 3);
integer_element!(i64, 4);
integer_element!(u32, 5);
integer_element!(u64, 6);
integer_element!(u8, 7);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{element_name, reduction_name};

    #[test]
    fn max_and_min_do_not_depend_on_the_order_of_operands() {
        let values = [0.0f32, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN];
        for reduction in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum] {
            for a in values {
                for b in values {
                    let (mut ab, mut ba) = ([a], [b]);
                    f32::combine(reduction, &mut ab, &[b]);
                    f32::combine(reduction, &mut ba, &[a]);
                    let same_bits = ab[0].to_bits() == ba[0].to_bits();
                    // The payload of a sum of two NaN depends on the order. Maxima and minima do not.
                    let any_nan = reduction == ReduceOp::Sum && ab[0].is_nan() && ba[0].is_nan();
                    assert!(same_bits || any_nan, "{reduction:?} {a} {b}");
                }
            }
        }
    }

    /// Long vectors, which the kernels add, and short ones.
    #[test]
    fn sums_of_every_length_are_exact() {
        for length in [0, 1, 63, 64, 127, 128, 129, 1000, 70_001] {
            let ours: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let theirs: Vec<f32> = (0..length).map(|i| 3.0 - 2.0 * i as f32).collect();
            let mut sums = ours.clone();
            f32::combine(ReduceOp::Sum, &mut sums, &theirs);
            assert!(sums.iter().enumerate().all(|(i, sum)| *sum == 3.0 - i as f32), "{length} f32");
            let mut sums: Vec<f64> = ours.iter().map(|v| f64::from(*v)).collect();
            let theirs: Vec<f64> = theirs.iter().map(|v| f64::from(*v)).collect();
            f64::combine(ReduceOp::Average, &mut sums, &theirs);
            assert!(sums.iter().enumerate().all(|(i, sum)| *sum == 3.0 - i as f64), "{length} f64");
        }
    }

    #[test]
    fn a_nan_is_never_lost() {
        for reduction in [ReduceOp::Max, ReduceOp::Min] {
            let mut into = [f64::NAN, 1.0];
            f64::combine(reduction, &mut into, &[1.0, -f64::NAN]);
            assert!(into.iter().all(|value| value.is_nan()));
        }
    }

    #[test]
    fn numbers_and_names_agree() {
        fn check<T: Element>() {
            assert_eq!(element_name(T::NUMBER), Some(T::NAME));
        }
        check::<f32>();
        check::<f64>();
        check::<i32>();
        check::<i64>();
        check::<u32>();
        check::<u64>();
        check::<u8>();
        let reductions = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max, ReduceOp::Min];
        let names = reductions.map(|reduction| reduction_name(reduction.number()).unwrap());
        assert_eq!(names, ["sum", "average", "max", "min"]);
    }
}
