//! Every kernel against one element after another.

use std::fmt::Debug;

use bytemuck::{bytes_of, cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::*;
use crate::description::mix;

const LENGTHS: [usize; 7] = [0, 1, 63, 64, 65, 1000, 70_001];

/// Arbitrary bits, of which every other element is one of few.
fn values<T: Element>(length: usize, seed: u64, few: &[T]) -> Vec<T> {
    (0..length as u64)
        .map(|i| {
            let bits = mix(mix(i + 1) ^ mix(seed));
            if bits & 1 == 0 {
                few[(bits >> 1) as usize % few.len()]
            } else {
                bytemuck::pod_read_unaligned(&bits.to_le_bytes()[8 - size_of::<T>()..])
            }
        })
        .collect()
}

/// A type whose partial results are `Wide`.
trait Checked: Element + Debug {
    type Wide: Element;
    const FEW: &'static [Self];

    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// The operation on two elements.
    fn apply(op: ReduceOp, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn divide(value: Self::Wide, ranks: u32) -> Self::Wide;
}

/// Whether the bits are equal. The payload of a NaN in a sum is not specified.
fn is_same<T: Element>(a: T, b: T) -> bool {
    // Only NaN differ from themselves.
    #[expect(clippy::eq_op)]
    let are_nan = a != a && b != b;
    are_nan || bytes_of(&a) == bytes_of(&b)
}

fn assert_same<T: Element>(found: &[T], expected: impl Iterator<Item = T>, what: &str) {
    let expected: Vec<T> = expected.collect();
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(is_same(*found, expected), "{what}, element {i}: {found:?}, expected {expected:?}");
    }
}

fn check<T: Checked>() {
    for &op in ReduceOp::ALL.iter().filter(|op| op.is_defined_for(T::TYPE)) {
        let reducer = Reducer::of(T::TYPE, op).unwrap();
        for length in LENGTHS {
            let what = format!("{op} of {length} {}", T::TYPE);
            let [x, y, z] = [1, 2, 3].map(|seed| values(length, seed, T::FEW));
            let wide = |values: &[T]| values.iter().map(|x| x.widen()).collect::<Vec<_>>();
            let (a, b) = (wide(&x), wide(&y));
            let mut into = vec![bytemuck::Zeroable::zeroed(); length];
            reducer.start(cast_slice_mut(&mut into), cast_slice(&x));
            assert_same(&into, a.iter().copied(), &format!("start, {what}"));

            let apply = |a: &T::Wide, b: &T::Wide| T::apply(op, *a, *b);
            let both: Vec<T::Wide> = a.iter().zip(&b).map(|(a, b)| apply(a, b)).collect();
            let mut out = vec![bytemuck::Zeroable::zeroed(); length];
            let apart = (cast_slice(&a), cast_slice(&b));
            reducer.combine_from(cast_slice_mut(&mut out), apart.0, apart.1).unwrap();
            assert_same(&out, both.iter().copied(), &format!("combine_from, {what}"));
            reducer.combine(cast_slice_mut(&mut into), cast_slice(&b)).unwrap();
            assert_same(&into, both.iter().copied(), &format!("combine, {what}"));
            reducer.take(cast_slice_mut(&mut into), cast_slice(&z)).unwrap();
            let all: Vec<T::Wide> = both.iter().zip(wide(&z)).map(|(a, b)| apply(a, &b)).collect();
            assert_same(&into, all.iter().copied(), &format!("take, {what}"));

            let is_average = op == ReduceOp::Average;
            let divided = || all.iter().map(|&a| if is_average { T::divide(a, 3) } else { a });
            let mut in_place = into.clone();
            reducer.end_in_place(cast_slice_mut(&mut in_place), 3);
            assert_same(&in_place, divided(), &format!("end_in_place, {what}"));
            let mut end = vec![T::zeroed(); length];
            reducer.end(cast_slice_mut(&mut end), cast_slice_mut(&mut into), 3);
            assert_same(&end, divided().map(T::narrow), &format!("end, {what}"));
        }
    }
}

macro_rules! floats {
    ($($type:ident),*) => {$(
        impl Checked for $type {
            type Wide = Self;
            const FEW: &'static [Self] = &[
                0.0, -0.0, 1.0, 3.5, <$type>::MAX, <$type>::MIN_POSITIVE / 8.0, <$type>::INFINITY,
                <$type>::NEG_INFINITY, <$type>::NAN, -1e-3, 1e8, -1e8,
            ];

            fn widen(self) -> Self {
                self
            }

            fn narrow(wide: Self) -> Self {
                wide
            }

            fn apply(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Average => a + b,
                    ReduceOp::Product => a * b,
                    _ if a.is_nan() || b.is_nan() => Self::NAN,
                    ReduceOp::Max => if a.total_cmp(&b).is_gt() { a } else { b },
                    ReduceOp::Min => if a.total_cmp(&b).is_lt() { a } else { b },
                    _ => unreachable!(),
                }
            }

            fn divide(value: Self, ranks: u32) -> Self {
                value / ranks as $type
            }
        }
    )*};
}
floats!(f32, f64);

macro_rules! halves {
    ($($type:ident),*) => {$(
        impl Checked for $type {
            type Wide = f32;
            const FEW: &'static [Self] = &[
                <$type>::ZERO, <$type>::NEG_ZERO, <$type>::ONE, <$type>::MAX, <$type>::MIN, <$type>::INFINITY,
                <$type>::NEG_INFINITY, <$type>::NAN, <$type>::EPSILON, <$type>::MIN_POSITIVE_SUBNORMAL,
                <$type>::MAX_SUBNORMAL,
            ];

            fn widen(self) -> f32 {
                self.to_f32()
            }

            fn narrow(wide: f32) -> Self {
                Self::from_f32(wide)
            }

            fn apply(op: ReduceOp, a: f32, b: f32) -> f32 {
                <f32 as Checked>::apply(op, a, b)
            }

            fn divide(value: f32, ranks: u32) -> f32 {
                value / ranks as f32
            }
        }
    )*};
}
halves!(f16, bf16);

macro_rules! integers {
    ($($type:ident),*) => {$(
        impl Checked for $type {
            type Wide = Self;
            const FEW: &'static [Self] = &[0, 1, <$type>::MAX, <$type>::MIN, <$type>::MAX - 1];

            fn widen(self) -> Self {
                self
            }

            fn narrow(wide: Self) -> Self {
                wide
            }

            fn apply(op: ReduceOp, a: Self, b: Self) -> Self {
                let (x, y) = (i128::from(a), i128::from(b));
                // The low bits of exact results.
                match op {
                    ReduceOp::Sum => (x + y) as Self,
                    ReduceOp::Product => x.wrapping_mul(y) as Self,
                    ReduceOp::Max => x.max(y) as Self,
                    ReduceOp::Min => x.min(y) as Self,
                    ReduceOp::And => (x & y) as Self,
                    ReduceOp::Or => (x | y) as Self,
                    ReduceOp::Xor => (x ^ y) as Self,
                    ReduceOp::Average => unreachable!(),
                }
            }

            fn divide(_: Self, _: u32) -> Self {
                unreachable!()
            }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

#[test]
fn floats_are_reduced() {
    check::<f32>();
    check::<f64>();
}

/// Exact in `f32`, and rounded once.
#[test]
fn halves_are_reduced() {
    check::<f16>();
    check::<bf16>();
}

#[test]
fn integers_are_reduced() {
    check::<i8>();
    check::<i16>();
    check::<i32>();
    check::<i64>();
    check::<u8>();
    check::<u16>();
    check::<u32>();
    check::<u64>();
}

/// Any byte but 0 is true, and results are 0 or 1.
#[test]
fn truths_are_reduced() {
    let apply = |op, a: u8, b: u8| match op {
        ReduceOp::And => u8::from(a != 0 && b != 0),
        ReduceOp::Or => u8::from(a != 0 || b != 0),
        _ => u8::from((a != 0) != (b != 0)),
    };
    for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
        let reducer = Reducer::of(DataType::Bool, op).unwrap();
        for length in LENGTHS {
            let [a, b] = [1, 2].map(|seed| values::<u8>(length, seed, &[0, 1, 2, 255]));
            let expected: Vec<u8> = a.iter().zip(&b).map(|(a, b)| apply(op, *a, *b)).collect();
            let (mut combined, mut taken, mut out) = (a.clone(), a.clone(), vec![7; length]);
            reducer.combine(&mut combined, &b).unwrap();
            reducer.take(&mut taken, &b).unwrap();
            reducer.combine_from(&mut out, &a, &b).unwrap();
            reducer.end_in_place(&mut out, 2);
            assert!(combined == expected && taken == expected && out == expected, "{op} of {length}");
        }
    }
}

/// An empty slice of bytes may have an odd address.
#[test]
fn empty_slices_have_any_address() {
    let reducer = Reducer::of(DataType::Bf16, ReduceOp::Average).unwrap();
    reducer.combine(&mut [], &[]).unwrap();
    reducer.take(&mut [], &[]).unwrap();
    reducer.combine_from(&mut [], &[], &[]).unwrap();
    reducer.start(&mut [], &[]);
    reducer.end(&mut [], &mut [], 2);
}
