//! 16-bit floating-point numbers: conversions to `f32` and back, and sums.
//!
//! Conversions round to nearest, ties to even. Subnormal numbers are converted exactly or rounded, not
//! flushed. A value that is too large becomes infinite. A NaN stays a NaN: it becomes quiet and keeps the
//! leading bits of its payload. The F16C instructions do the same, and the portable code gives the same bits.
//! (The instructions of AVX-512 BF16 flush subnormal numbers, so bfloat16 is converted with integers.)

mod convert;

use convert::{Convert, Portable, UpperHalf};
#[cfg(target_arch = "x86_64")]
use convert::{F16Avx512, F16c};

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::Level;
use super::side_by_side::{Each, side_by_side};

/// Numbers that are converted at a time: two cache lines. The compiler would unroll and split shorter loops.
const TURN: usize = 64;

/// A 16-bit format, and its converter at each level.
pub(crate) trait Format {
    /// The converter for every CPU.
    fn portable() -> impl Convert;

    /// # Safety
    /// The CPU must have the instructions of [`Kind::Avx2`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2() -> impl Convert;

    /// # Safety
    /// The CPU must have the instructions of [`Kind::Avx512`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn avx512() -> impl Convert;
}

/// IEEE 754 binary16.
pub(crate) struct F16;

impl Format for F16 {
    fn portable() -> impl Convert {
        Portable
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2() -> impl Convert {
        // SAFETY: the caller guarantees the instructions of AVX2, which include F16C.
        unsafe { F16c::new() }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx512() -> impl Convert {
        // SAFETY: the caller guarantees the instructions of AVX-512, which include AVX-512 F.
        unsafe { F16Avx512::new() }
    }
}

/// bfloat16: the upper half of an `f32`.
pub(crate) struct Bf16;

impl Format for Bf16 {
    fn portable() -> impl Convert {
        UpperHalf
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2() -> impl Convert {
        UpperHalf
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn avx512() -> impl Convert {
        UpperHalf
    }
}

/// Like [`per_level`](super::per_level), for a body that is generic over the conversions of a format. The
/// kernel's type parameters are the format, and those given.
macro_rules! per_level_half {
    (
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident<$convert:ident $(, $parameter:ident: $bound:path)*>(
            $($argument:ident: $type:ty),* $(,)?
        ) $body:block
    ) => {
        $(#[$attribute])*
        $vis fn $name<F: Format $(, $parameter: $bound)*>(level: Level, $($argument: $type),*) {
            #[inline(always)]
            fn body<$($parameter: $bound),*>(convert: impl Convert, $($argument: $type),*) {
                let $convert = convert;
                $body
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<F: Format $(, $parameter: $bound)*>($($argument: $type),*) {
                // SAFETY: this function is only called where the CPU has its features.
                body(unsafe { F::avx2() }, $($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            fn avx512<F: Format $(, $parameter: $bound)*>($($argument: $type),*) {
                // SAFETY: this function is only called where the CPU has its features.
                body(unsafe { F::avx512() }, $($argument),*)
            }

            match level.kind() {
                // SAFETY: a level of this kind exists only where the CPU was found to have these features.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => unsafe { avx512::<F $(, $parameter)*>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => unsafe { avx2::<F $(, $parameter)*>($($argument),*) },
                _ => body(F::portable(), $($argument),*),
            }
        }
    };
}

mod wide;

pub(crate) use wide::combine_wide;

per_level_half! {
    /// `to = from`, up to the shorter length.
    pub(crate) fn widen<by>(from: &[u16], to: &mut [f32]) {
        let length = from.len().min(to.len());
        let (from, from_rest) = from[..length].as_chunks();
        let (to, to_rest) = to[..length].as_chunks_mut();
        from.iter().zip(to).for_each(|(from, to)| by.widen(from, to));
        let mut last = [0.0; TURN];
        by.widen(&padded(from_rest), &mut last);
        to_rest.copy_from_slice(&last[..to_rest.len()]);
    }
}

per_level_half! {
    /// `to = from`, rounded, up to the shorter length.
    pub(crate) fn narrow<by>(from: &[f32], to: &mut [u16]) {
        let length = from.len().min(to.len());
        let (from, from_rest) = from[..length].as_chunks();
        let (to, to_rest) = to[..length].as_chunks_mut();
        from.iter().zip(to).for_each(|(from, to)| by.narrow(from, to));
        let mut last = [0; TURN];
        by.narrow(&padded(from_rest), &mut last);
        to_rest.copy_from_slice(&last[..to_rest.len()]);
    }
}

/// `a += b`.
#[derive(Clone, Copy)]
struct Add<C>(C);

impl<C: Convert> Each<u16, TURN> for Add<C> {
    #[inline(always)]
    fn each(self, a: &mut [u16; TURN], b: &[u16; TURN]) {
        self.0.add(a, b);
    }
}

per_level_half! {
    /// `a += b`, each sum computed in `f32` and rounded once, up to the shorter length.
    pub(crate) fn add_assign<by>(a: &mut [u16], b: &[u16]) {
        let length = a.len().min(b.len());
        let (a, a_rest) = a[..length].as_chunks_mut();
        let (b, b_rest) = b[..length].as_chunks();
        side_by_side(Add(by), a, b);
        let mut sums = padded(a_rest);
        by.add(&mut sums, &padded(b_rest));
        a_rest.copy_from_slice(&sums[..a_rest.len()]);
    }
}

per_level_half! {
    /// `values *= factor`, each product computed in `f32` and rounded once.
    pub(crate) fn scale<by>(values: &mut [u16], factor: f32) {
        let scale = |block: &mut [u16; TURN]| {
            let mut wide = [0.0; TURN];
            by.widen(block, &mut wide);
            wide.iter_mut().for_each(|value| *value *= factor);
            by.narrow(&wide, block);
        };
        let (blocks, rest) = values.as_chunks_mut();
        blocks.iter_mut().for_each(scale);
        let mut last = padded(rest);
        scale(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `values`, fewer than [`TURN`], padded with zeros.
#[inline(always)]
fn padded<T: Copy + Default>(values: &[T]) -> [T; TURN] {
    let mut block = [T::default(); TURN];
    block[..values.len()].copy_from_slice(values);
    block
}

#[cfg(test)]
mod tests {
    use ::half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    fn widened<F: Format>(level: Level, bits: &[u16]) -> Vec<u32> {
        let mut wide = vec![0.0; bits.len()];
        widen::<F>(level, bits, &mut wide);
        wide.into_iter().map(f32::to_bits).collect()
    }

    fn narrowed<F: Format>(level: Level, values: &[f32]) -> Vec<u16> {
        let mut bits = vec![0; values.len()];
        narrow::<F>(level, values, &mut bits);
        bits
    }

    /// Every number of a format, the midpoint to the next number, and the values just beside the midpoint.
    fn neighbours(widen: impl Fn(u16) -> f32) -> Vec<f32> {
        let beside = |bits: u32| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)].map(f32::from_bits);
        let around = |bits: u16| {
            let (here, next) = (widen(bits).to_bits(), widen(bits.wrapping_add(1)).to_bits());
            [here, here.midpoint(next)].map(beside)
        };
        (0..=u16::MAX).flat_map(around).flatten().collect()
    }

    #[test]
    fn every_number_becomes_what_it_is() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let f16s: Vec<u32> = all.iter().map(|&bits| f16::from_bits(bits).to_f32_const().to_bits()).collect();
        let bf16s: Vec<u32> =
            all.iter().map(|&bits| bf16::from_bits(bits).to_f32_const().to_bits()).collect();
        for level in Level::available() {
            assert!(widened::<F16>(level, &all) == f16s, "{}", level.name());
            assert!(widened::<Bf16>(level, &all) == bf16s, "{}", level.name());
        }
    }

    #[test]
    fn values_round_to_nearest_even_and_nan_stays() {
        let mut values = neighbours(|bits| f16::from_bits(bits).to_f32_const());
        values.extend(neighbours(|bits| bf16::from_bits(bits).to_f32_const()));
        values.extend((0..u32::MAX - 9973).step_by(9973).map(f32::from_bits));
        let f16s: Vec<u16> = values.iter().map(|&value| f16::from_f32_const(value).to_bits()).collect();
        let bf16s: Vec<u16> = values.iter().map(|&value| bf16::from_f32_const(value).to_bits()).collect();
        for level in Level::available() {
            for (name, found, expected) in [
                ("f16", narrowed::<F16>(level, &values), &f16s),
                ("bf16", narrowed::<Bf16>(level, &values), &bf16s),
            ] {
                let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
                let told = wrong.map(|at| (values[at].to_bits(), found[at], expected[at]));
                assert_eq!(told, None, "{name}, {}: value, found, expected", level.name());
            }
        }
    }

    fn check_sums<F: Format>(pairs: &[(u16, u16)], to_f32: fn(u16) -> f32, to_bits: fn(f32) -> u16) {
        let (a, b): (Vec<u16>, Vec<u16>) = pairs.iter().copied().unzip();
        let canonical = |bits: u16| if to_f32(bits).is_nan() { u16::MAX } else { bits };
        let sum = |(&a, &b): (&u16, &u16)| canonical(to_bits(to_f32(a) + to_f32(b)));
        let expected: Vec<u16> = a.iter().zip(&b).map(sum).collect();
        let scaled: Vec<u16> = a.iter().map(|&a| canonical(to_bits(to_f32(a) * 0.3))).collect();
        for level in Level::available() {
            let mut sums = a.clone();
            add_assign::<F>(level, &mut sums, &b);
            assert_eq!(sums.into_iter().map(canonical).collect::<Vec<_>>(), expected, "{}", level.name());
            let mut products = a.clone();
            scale::<F>(level, &mut products, 0.3);
            assert_eq!(products.into_iter().map(canonical).collect::<Vec<_>>(), scaled, "{}", level.name());
        }
    }

    /// Covers lengths for which several stretches of memory are processed in parallel.
    #[test]
    fn long_vectors_are_added_as_short_ones() {
        let bits = |n: usize, factor: usize| (0..n).map(move |i| ((i * factor) >> 3) as u16);
        for n in [199_679, 199_680, 199_681, 500_001] {
            let pairs: Vec<(u16, u16)> = bits(n, 7919).zip(bits(n, 104_729)).collect();
            check_sums::<F16>(
                &pairs,
                |a| f16::from_bits(a).to_f32_const(),
                |a| f16::from_f32_const(a).to_bits(),
            );
            check_sums::<Bf16>(
                &pairs,
                |a| bf16::from_bits(a).to_f32_const(),
                |a| bf16::from_f32_const(a).to_bits(),
            );
        }
    }

    proptest! {
        #[test]
        fn sums_are_rounded_once(pairs in prop::collection::vec(any::<(u16, u16)>(), 0..300)) {
            check_sums::<F16>(
                &pairs,
                |a| f16::from_bits(a).to_f32_const(),
                |a| f16::from_f32_const(a).to_bits(),
            );
            check_sums::<Bf16>(
                &pairs,
                |a| bf16::from_bits(a).to_f32_const(),
                |a| bf16::from_f32_const(a).to_bits(),
            );
        }
    }
}
