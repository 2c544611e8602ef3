//! Reductions of two dense vectors, element by element.
//!
//! An operation is a value of a type that implements [`Operation`] for the elements' type. The loops are
//! generic over it and are compiled for each level.

use super::per_level;
use super::side_by_side::{Each, side_by_side};

/// From this length on, vectors are taken in stretches with prefetching. Shorter ones, which are mostly in a
/// cache, are reduced faster by a plain loop.
pub(super) const LONG_BYTES: usize = 4 << 20;

/// An operation on two elements. Its method must be `#[inline(always)]`: a function that is not inlined is
/// compiled for the baseline.
pub(crate) trait Operation<T>: Copy {
    fn apply(self, a: T, b: T) -> T;
}

/// `a + b`; integers wrap around.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum;

/// `a b`; integers wrap around.
#[derive(Clone, Copy, Default)]
pub(crate) struct Product;

/// The larger element. Of floating-point numbers, NaN if either is, and 0 is larger than -0.
#[derive(Clone, Copy, Default)]
pub(crate) struct Max;

/// The smaller element. Of floating-point numbers, NaN if either is, and -0 is smaller than 0.
#[derive(Clone, Copy, Default)]
pub(crate) struct Min;

/// Bits that both elements have.
#[derive(Clone, Copy, Default)]
pub(crate) struct And;

/// Bits that either element has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Or;

/// Bits that one element has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Xor;

macro_rules! operations {
    ($($operation:ident of $($type:ty),*: |$a:ident, $b:ident| $result:expr;)*) => {$($(
        impl Operation<$type> for $operation {
            #[inline(always)]
            fn apply(self, $a: $type, $b: $type) -> $type {
                $result
            }
        }
    )*)*};
}

operations! {
    Sum of f32, f64: |a, b| a + b;
    Product of f32, f64: |a, b| a * b;
    // Two's complement: the bits of sums and products of signed numbers are the same.
    Sum of u8, u16, u32, u64: |a, b| a.wrapping_add(b);
    Product of u8, u16, u32, u64: |a, b| a.wrapping_mul(b);
    Max of u8, u16, u32, u64, i8, i16, i32, i64: |a, b| if a > b { a } else { b };
    Min of u8, u16, u32, u64, i8, i16, i32, i64: |a, b| if a < b { a } else { b };
    And of u8: |a, b| a & b;
    Or of u8: |a, b| a | b;
    Xor of u8: |a, b| a ^ b;
}

macro_rules! float_extremes {
    ($($type:ident),*) => {$(
        impl Operation<$type> for Max {
            #[inline(always)]
            fn apply(self, a: $type, b: $type) -> $type {
                // Each selection is one instruction. They differ only if both numbers are zeros or one is
                // NaN; the common bits of 0 and -0 are those of 0.
                let (one, other) = (if a > b { a } else { b }, if b > a { b } else { a });
                let larger = <$type>::from_bits(one.to_bits() & other.to_bits());
                if a.is_nan() | b.is_nan() { <$type>::NAN } else { larger }
            }
        }

        impl Operation<$type> for Min {
            #[inline(always)]
            fn apply(self, a: $type, b: $type) -> $type {
                // As above; the bits of 0 or -0 are those of -0.
                let (one, other) = (if a < b { a } else { b }, if b < a { b } else { a });
                let smaller = <$type>::from_bits(one.to_bits() | other.to_bits());
                if a.is_nan() | b.is_nan() { <$type>::NAN } else { smaller }
            }
        }
    )*};
}
float_extremes!(f32, f64);

/// An operation on every element of a row.
#[derive(Clone, Copy)]
struct Rows<O>(O);

impl<T: Copy, O: Operation<T>, const N: usize> Each<T, N> for Rows<O> {
    #[inline(always)]
    fn each(self, a: &mut [T; N], b: &[T; N]) {
        each(self.0, a, b);
    }
}

#[inline(always)]
fn each<T: Copy, O: Operation<T>>(operation: O, into: &mut [T], from: &[T]) {
    for (into, &from) in into.iter_mut().zip(from) {
        *into = operation.apply(*into, from);
    }
}

/// A long vector, in rows of `N` elements.
#[inline(always)]
fn by_rows<T: Copy, O: Operation<T>, const N: usize>(operation: O, into: &mut [T], from: &[T]) {
    let (rows, rest) = into.as_chunks_mut::<N>();
    let (from_rows, from_rest) = from.as_chunks::<N>();
    side_by_side(Rows(operation), rows, from_rows);
    each(operation, rest, from_rest);
}

per_level! {
    /// `into[i] = into[i] op from[i]`, up to the shorter length.
    pub(crate) fn combine<T: Copy, O: Operation<T>>(operation: O, into: &mut [T], from: &[T]) {
        let length = into.len().min(from.len());
        let (into, from) = (&mut into[..length], &from[..length]);
        if size_of_val(from) < LONG_BYTES {
            return each(operation, into, from);
        }
        // Four cache lines.
        match size_of::<T>() {
            1 => by_rows::<T, O, 256>(operation, into, from),
            2 => by_rows::<T, O, 128>(operation, into, from),
            4 => by_rows::<T, O, 64>(operation, into, from),
            _ => by_rows::<T, O, 32>(operation, into, from),
        }
    }
}

per_level! {
    /// `out[i] = a[i] op b[i]`, up to the shortest length.
    pub(crate) fn combine_from<T: Copy, O: Operation<T>>(operation: O, out: &mut [T], a: &[T], b: &[T]) {
        for (out, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
            *out = operation.apply(a, b);
        }
    }
}

per_level! {
    /// `values /= divisor`.
    pub(crate) fn divide(values: &mut [f32], divisor: f32) {
        values.iter_mut().for_each(|value| *value /= divisor);
    }
}

per_level! {
    /// Like [`divide`].
    pub(crate) fn divide_f64(values: &mut [f64], divisor: f64) {
        values.iter_mut().for_each(|value| *value /= divisor);
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Pod;

    use super::*;
    use crate::generator::Generator;
    use crate::simd::Level;
    use crate::simd::half::{self, Bf16, F16, Format};

    /// Bytes of vectors: around the sizes of rows, and a length for which loops prefetch.
    const SIZES: [usize; 7] = [0, 8, 248, 256, 264, 5000, LONG_BYTES + 72];

    /// Arbitrary bits, of which every other element is one of few, for pairs of equal numbers, zeros and NaN.
    fn values<T: Pod>(bytes: usize, seed: u64, few: &[T]) -> Vec<T> {
        let mut random = Generator::new(seed);
        let mut value = |i: usize| {
            let bits = random.next_u64();
            if i.is_multiple_of(2) && !few.is_empty() {
                few[(bits % few.len() as u64) as usize]
            } else {
                bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<T>()])
            }
        };
        (0..bytes / size_of::<T>()).map(&mut value).collect()
    }

    /// Every level against the operation on one pair after another. `canonical` maps values to one of which
    /// the bits are not specified.
    fn check<T: Pod, O: Operation<T>>(operation: O, few: &[T], canonical: fn(T) -> T) {
        let name = std::any::type_name::<(T, O)>();
        for bytes in SIZES {
            let (a, b) = (values(bytes, 1, few), values(bytes, 2, few));
            let bits = |values: &[T]| {
                let values: Vec<T> = values.iter().map(|&value| canonical(value)).collect();
                bytemuck::cast_slice::<T, u8>(&values).to_vec()
            };
            let expected: Vec<T> = a.iter().zip(&b).map(|(&a, &b)| operation.apply(a, b)).collect();
            let expected = bits(&expected);
            for level in Level::available() {
                let (mut into, mut out) = (a.clone(), vec![T::zeroed(); a.len()]);
                combine(level, operation, &mut into, &b);
                assert!(bits(&into) == expected, "{name}, {}, {bytes} bytes", level.name());
                combine_from(level, operation, &mut out, &a, &b);
                assert!(bits(&out) == expected, "{name} apart, {}, {bytes} bytes", level.name());
            }
        }
    }

    macro_rules! check_integers {
        ($($type:ident as $bits:ident),*) => {$(
            let few = [0, 1, $type::MIN, $type::MAX];
            check::<$type, _>(Max, &few, |v| v);
            check::<$type, _>(Min, &few, |v| v);
            check::<$bits, _>(Sum, &few.map(|v| v as $bits), |v| v);
            check::<$bits, _>(Product, &few.map(|v| v as $bits), |v| v);
        )*};
    }

    #[test]
    fn every_level_reduces_integers_alike() {
        check_integers!(
            i8 as u8, i16 as u16, i32 as u32, i64 as u64, u8 as u8, u16 as u16, u32 as u32, u64 as u64
        );
        check(And, &[], |v| v);
        check(Or, &[], |v| v);
        check(Xor, &[], |v| v);
    }

    macro_rules! few {
        ($type:ident) => {
            [0.0, -0.0, $type::from_bits(1), -$type::from_bits(3), $type::INFINITY, -$type::INFINITY]
                .into_iter()
                .chain([$type::NAN, -$type::NAN, $type::from_bits($type::INFINITY.to_bits() + 1), 1.0])
                .collect::<Vec<$type>>()
        };
    }

    fn canonical(value: f32) -> f32 {
        if value.is_nan() { f32::NAN } else { value }
    }

    fn canonical_f64(value: f64) -> f64 {
        if value.is_nan() { f64::NAN } else { value }
    }

    #[test]
    fn every_level_reduces_floats_alike() {
        let (few, few_f64) = (few!(f32), few!(f64));
        check(Sum, &few, canonical);
        check(Product, &few, canonical);
        check(Sum, &few_f64, canonical_f64);
        check(Product, &few_f64, canonical_f64);
        check::<f32, _>(Max, &few, |v| v);
        check::<f32, _>(Min, &few, |v| v);
        check::<f64, _>(Max, &few_f64, |v| v);
        check::<f64, _>(Min, &few_f64, |v| v);
    }

    /// `combine_wide` at every level against the conversion, and the operation on one pair after another.
    fn check_wide<F: Format, O: Operation<f32>>(operation: O, widen: fn(u16) -> f32) {
        for bytes in SIZES {
            let into = values(bytes, 3, &few!(f32));
            let from = values::<u16>(bytes / 2, 4, &[0, 0x8000, 0x7c00, 0x7c01, 0x7f80, 0xff81, 0x0001]);
            let results = into.iter().zip(&from).map(|(&a, &b)| operation.apply(a, widen(b)));
            let expected: Vec<u32> = results.map(|v| canonical(v).to_bits()).collect();
            for level in Level::available() {
                let mut found = into.clone();
                half::combine_wide::<F, O>(level, operation, &mut found, &from);
                let found: Vec<u32> = found.into_iter().map(|v| canonical(v).to_bits()).collect();
                let name = std::any::type_name::<(F, O)>();
                assert!(found == expected, "{name}, {}, {bytes} bytes", level.name());
            }
        }
    }

    #[test]
    fn every_level_reduces_halves_alike() {
        let f16 = |bits| ::half::f16::from_bits(bits).to_f32_const();
        let bf16 = |bits| ::half::bf16::from_bits(bits).to_f32_const();
        check_wide::<F16, _>(Sum, f16);
        check_wide::<F16, _>(Product, f16);
        check_wide::<F16, _>(Max, f16);
        check_wide::<F16, _>(Min, f16);
        check_wide::<Bf16, _>(Sum, bf16);
        check_wide::<Bf16, _>(Product, bf16);
        check_wide::<Bf16, _>(Max, bf16);
        check_wide::<Bf16, _>(Min, bf16);
    }

    #[test]
    fn every_level_divides_alike() {
        for count in [1_u32, 3, 64, 1 << 31] {
            let divisor = f64::from(count);
            let (f32s, f64s) = (values(1000, 5, &few!(f32)), values(1000, 6, &few!(f64)));
            let expected: Vec<u32> = f32s.iter().map(|v| canonical(v / divisor as f32).to_bits()).collect();
            let expected_f64: Vec<u64> = f64s.iter().map(|v| canonical_f64(v / divisor).to_bits()).collect();
            for level in Level::available() {
                let (mut found, mut found_f64) = (f32s.clone(), f64s.clone());
                divide(level, &mut found, divisor as f32);
                divide_f64(level, &mut found_f64, divisor);
                let found: Vec<u32> = found.into_iter().map(|v| canonical(v).to_bits()).collect();
                let found_f64: Vec<u64> = found_f64.into_iter().map(|v| canonical_f64(v).to_bits()).collect();
                assert!(found == expected && found_f64 == expected_f64, "{}", level.name());
            }
        }
    }
}
