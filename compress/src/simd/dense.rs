//! Sums, products and conversions of dense vectors of `f32` and `f64`.

use std::ops::AddAssign;

use super::side_by_side::{Each, side_by_side};
use super::{per_level, prefetch};

/// Elements in a block of [`add_finite`].
const BLOCK: usize = 512;
/// The prefetch distance of [`add_finite`].
const AHEAD_BYTES: usize = 2048;

per_level! {
    /// `a += b`, element by element, up to the shorter length.
    pub(crate) fn add_assign(a: &mut [f32], b: &[f32]) {
        add::<f32, 64>(a, b);
    }
}

per_level! {
    /// Like [`add_assign`], as a plain loop compiled without prefetching.
    pub(crate) fn add_assign_plain(a: &mut [f32], b: &[f32]) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    }
}

per_level! {
    /// Like [`add_assign`].
    pub(crate) fn add_assign_f64(a: &mut [f64], b: &[f64]) {
        add::<f64, 32>(a, b);
    }
}

/// `a += b`, in rows of `N` elements.
#[inline(always)]
fn add<T: Copy + AddAssign, const N: usize>(a: &mut [T], b: &[T]) {
    let length = a.len().min(b.len());
    let (rows, rest) = a[..length].as_chunks_mut::<N>();
    let (b_rows, b_rest) = b[..length].as_chunks::<N>();
    side_by_side(Add, rows, b_rows);
    rest.iter_mut().zip(b_rest).for_each(|(a, &b)| *a += b);
}

#[derive(Clone, Copy)]
struct Add;

impl<T: Copy + AddAssign, const N: usize> Each<T, N> for Add {
    #[inline(always)]
    fn each(self, a: &mut [T; N], b: &[T; N]) {
        a.iter_mut().zip(b).for_each(|(a, &b)| *a += b);
    }
}

per_level! {
    /// `values *= factor`.
    pub(crate) fn scale(values: &mut [f32], factor: f32) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

per_level! {
    /// Like [`scale`].
    pub(crate) fn scale_f64(values: &mut [f64], factor: f64) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

per_level! {
    /// `to = from`, up to the shorter length.
    pub(crate) fn widen_f32(from: &[f32], to: &mut [f64]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = f64::from(from));
    }
}

per_level! {
    /// `to = from`, rounded, up to the shorter length.
    pub(crate) fn narrow_f64(from: &[f64], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32);
    }
}

per_level! {
    /// The bits of the largest magnitude; 0 for an empty slice. Non-finite magnitudes compare larger than all
    /// others.
    pub(crate) fn largest_magnitude(values: &[f32]) -> u32 {
        // Signed comparison gives the same order for magnitudes, and SSE2 has it.
        values.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32)) as u32
    }
}

per_level! {
    /// `a += b`, up to the first block with a sum that is not finite; that block stays unchanged. Returns the
    /// number of elements added: all, or whole blocks. Lengths are equal.
    pub(crate) fn add_finite(a: &mut [f32], b: &[f32]) -> usize {
        let (blocks, rest) = a.as_chunks_mut::<BLOCK>();
        let (b_blocks, b_rest) = b.as_chunks::<BLOCK>();
        let mut sums = [0.0; BLOCK];
        for (at, (a, b)) in blocks.iter_mut().zip(b_blocks).enumerate() {
            for (row, sums) in sums.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let (a, b) = (&a.as_chunks::<64>().0[row], &b.as_chunks::<64>().0[row]);
                prefetch(a, AHEAD_BYTES);
                prefetch(b, AHEAD_BYTES);
                sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum = a + b);
            }
            if !finite(&sums) {
                return at * BLOCK;
            }
            *a = sums;
        }
        let sums = &mut sums[..rest.len()];
        sums.iter_mut().zip(rest.iter().zip(b_rest)).for_each(|(sum, (a, b))| *sum = a + b);
        if !finite(sums) {
            return blocks.len() * BLOCK;
        }
        rest.copy_from_slice(sums);
        blocks.len() * BLOCK + rest.len()
    }
}

#[inline(always)]
fn finite(values: &[f32]) -> bool {
    let largest = values.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32));
    largest < 0x7f80_0000
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::{Level, pages};

    proptest! {
        #[test]
        fn every_level_adds_alike(pairs in prop::collection::vec(any::<(f32, f32)>(), 0..200)) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| canonical(a + b)).collect();
            let largest = expected.iter().map(|bits| bits & 0x7fff_ffff).max().unwrap_or(0);
            for level in Level::available() {
                let mut sum = a.clone();
                add_assign(level, &mut sum, &b);
                let found: Vec<u32> = sum.iter().copied().map(canonical).collect();
                prop_assert_eq!(&found, &expected, "{}", level.name());
                // Which NaN a sum gives is not specified.
                let same = |found: u32| found == largest || found > 0x7f80_0000 && largest > 0x7f80_0000;
                prop_assert!(same(largest_magnitude(level, &sum)), "{}", level.name());
            }
        }

        #[test]
        fn every_level_adds_up_to_the_same_block(
            mut a in prop::collection::vec(-2.0_f32..2.0, 0..1700),
            bad in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let b: Vec<f32> = a.iter().map(|v| 1.0 - v).collect();
            let at = bad.filter(|_| !a.is_empty()).map(|bad| bad.index(a.len()));
            at.into_iter().for_each(|at| a[at] = f32::NEG_INFINITY);
            let done = at.map_or(a.len(), |at| at / BLOCK * BLOCK);
            let expected: Vec<f32> =
                (0..a.len()).map(|i| if i < done { a[i] + b[i] } else { a[i] }).collect();
            for level in Level::available() {
                let mut sums = a.clone();
                prop_assert_eq!(add_finite(level, &mut sums, &b), done, "{}", level.name());
                prop_assert_eq!(&sums, &expected, "{}", level.name());
            }
        }

        #[test]
        fn every_level_converts_and_scales_alike(
            values in prop::collection::vec(any::<f64>(), 0..100),
            factor: f32,
        ) {
            let wide: Vec<u64> = values.iter().map(|v| canonical_f64(v * f64::from(factor))).collect();
            let narrow: Vec<u32> = values.iter().map(|&v| canonical(v as f32)).collect();
            let product: Vec<u32> = values.iter().map(|&v| canonical(v as f32 * factor)).collect();
            for level in Level::available() {
                let mut f32s = vec![0.0; values.len()];
                narrow_f64(level, &values, &mut f32s);
                prop_assert_eq!(
                    f32s.iter().copied().map(canonical).collect::<Vec<_>>(),
                    &*narrow,
                    "{}",
                    level.name()
                );
                let mut back = vec![0.0; values.len()];
                widen_f32(level, &f32s, &mut back);
                let exact =
                    back.iter().zip(&f32s).all(|(b, &f)| *b == f64::from(f) || b.is_nan() && f.is_nan());
                prop_assert!(exact, "{}", level.name());
                scale(level, &mut f32s, factor);
                prop_assert_eq!(
                    f32s.into_iter().map(canonical).collect::<Vec<_>>(),
                    &*product,
                    "{}",
                    level.name()
                );
                let mut f64s = values.clone();
                scale_f64(level, &mut f64s, f64::from(factor));
                prop_assert_eq!(
                    f64s.into_iter().map(canonical_f64).collect::<Vec<_>>(),
                    &*wide,
                    "{}",
                    level.name()
                );
                let (mut sums, doubled) = (values.clone(), values.iter().map(|v| canonical_f64(v + v)));
                add_assign_f64(level, &mut sums, &values);
                prop_assert!(sums.into_iter().map(canonical_f64).eq(doubled), "{}", level.name());
            }
        }
    }

    /// Covers lengths for which several stretches of memory are processed in parallel.
    #[test]
    fn every_level_adds_every_element_of_long_vectors_once() {
        pages::tests::on_both(add_long_vectors);
    }

    fn add_long_vectors() {
        for n in [99_839, 99_840, 99_841, 300_001] {
            let (a, b): (Vec<f32>, Vec<f32>) = (0..n).map(|i| (i as f32, 1.0 - 3.0 * i as f32)).unzip();
            let sums: Vec<f32> = (0..n).map(|i| 1.0 - 2.0 * i as f32).collect();
            let wide = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            for level in Level::available() {
                let (mut found, mut found_f64) = (a.clone(), wide(&a));
                add_assign(level, &mut found, &b);
                assert!(found == sums, "{}, {n} f32", level.name());
                add_assign_f64(level, &mut found_f64, &wide(&b));
                assert!(found_f64 == wide(&sums), "{}, {n} f64", level.name());
            }
        }
    }

    /// The bits, with all NaNs mapped to one.
    fn canonical(value: f32) -> u32 {
        if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
    }

    fn canonical_f64(value: f64) -> u64 {
        if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
    }
}
