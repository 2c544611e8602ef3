//! 16-bit floating-point numbers: conversions to `f32` and back, and sums.
//!
//! Conversions round to nearest, ties to even; subnormal numbers count; what is too large becomes infinite; a NaN stays
//! one, made quiet, with the leading bits of its payload. That is what the F16C instructions do, and the portable code
//! gives the same bits. (Those of AVX-512 BF16 flush subnormal numbers, so bfloat16 is converted with integers.)

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::Level;
use super::side_by_side::{Each, side_by_side};

/// Numbers that are converted at a time: two cache lines of them. The compiler unrolls and takes apart shorter loops.
const TURN: usize = 64;

/// A 16-bit format, and who converts it at each level.
pub(crate) trait Format {
    type Portable: Convert;
    type Avx2: Convert;
    type Avx512: Convert;
}

/// Conversions at one level. Implementations for instructions beyond the architecture's common ones are used by kernels
/// that are compiled for these instructions, and by nothing else.
pub(crate) trait Convert {
    fn widen(bits: &[u16; TURN], values: &mut [f32; TURN]);
    fn narrow(values: &[f32; TURN], bits: &mut [u16; TURN]);

    /// `a += b`, rounded once.
    #[inline(always)]
    fn add(a: &mut [u16; TURN], b: &[u16; TURN]) {
        let (mut sums, mut wide) = ([0.0; TURN], [0.0; TURN]);
        Self::widen(a, &mut sums);
        Self::widen(b, &mut wide);
        sums.iter_mut().zip(&wide).for_each(|(sum, b)| *sum += b);
        Self::narrow(&sums, a);
    }
}

/// IEEE 754 binary16.
pub(crate) struct F16;

impl Format for F16 {
    type Portable = Portable;
    #[cfg(target_arch = "x86_64")]
    type Avx2 = F16c;
    #[cfg(target_arch = "x86_64")]
    type Avx512 = F16Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    type Avx2 = Portable;
    #[cfg(not(target_arch = "x86_64"))]
    type Avx512 = Portable;
}

/// bfloat16: the upper half of an `f32`.
pub(crate) struct Bf16;

impl Format for Bf16 {
    type Portable = UpperHalf;
    type Avx2 = UpperHalf;
    type Avx512 = UpperHalf;
}

/// binary16 with integer operations and one of `f32`.
pub(crate) struct Portable;

impl Convert for Portable {
    #[inline(always)]
    fn widen(bits: &[u16; TURN], values: &mut [f32; TURN]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            let sign = u32::from(bits & 0x8000) << 16;
            let magnitude = u32::from(bits & 0x7fff) << 13;
            // The exponent's bias is 127 instead of 15; a product counts subnormal numbers as well. It is exact.
            let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
            let infinite = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
            let quiet = if magnitude > 0x0f80_0000 { 0x0040_0000 } else { 0 };
            *value = f32::from_bits(sign | scaled | infinite | quiet);
        }
    }

    #[inline(always)]
    fn narrow(values: &[f32; TURN], bits: &mut [u16; TURN]) {
        for (bits, value) in bits.iter_mut().zip(values) {
            let sign = (value.to_bits() >> 16) & 0x8000;
            let magnitude = value.to_bits() & 0x7fff_ffff;
            let even = (magnitude >> 13) & 1;
            let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + even) >> 13;
            // An ulp of 0.5 is the smallest subnormal number: the sum rounds.
            let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
            let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
            let large = if magnitude > 0x7f80_0000 { 0x7e00 | ((magnitude >> 13) & 0x1ff) } else { 0x7c00 };
            *bits = (sign | if magnitude < 0x477f_f000 { finite } else { large }) as u16;
        }
    }
}

/// bfloat16 with integer operations.
pub(crate) struct UpperHalf;

impl UpperHalf {
    /// The bits of the rounded number in the upper half, and others in the lower half.
    #[inline(always)]
    fn round(value: f32) -> u32 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        if value.is_nan() { bits | 0x0040_0000 } else { rounded }
    }
}

impl Convert for UpperHalf {
    #[inline(always)]
    fn widen(bits: &[u16; TURN], values: &mut [f32; TURN]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            let wide = u32::from(bits) << 16;
            // As in the other format, NaNs come out quiet.
            let quiet = if f32::from_bits(wide).is_nan() { 0x0040_0000 } else { 0 };
            *value = f32::from_bits(wide | quiet);
        }
    }

    #[inline(always)]
    fn narrow(values: &[f32; TURN], bits: &mut [u16; TURN]) {
        bits.iter_mut().zip(values).for_each(|(bits, &value)| *bits = (Self::round(value) >> 16) as u16);
    }

    /// Pairs stay together in 32 bits, where the upper one needs no shift and nothing crosses lanes.
    #[inline(always)]
    fn add(a: &mut [u16; TURN], b: &[u16; TURN]) {
        const PAIRS: usize = TURN / 2;
        let (mut pairs, addends): ([u32; PAIRS], [u32; PAIRS]) = (bytemuck::cast(*a), bytemuck::cast(*b));
        for (a, &b) in pairs.iter_mut().zip(&addends) {
            let upper = f32::from_bits(*a & 0xffff_0000) + f32::from_bits(b & 0xffff_0000);
            let lower = f32::from_bits(*a << 16) + f32::from_bits(b << 16);
            *a = (Self::round(upper) & 0xffff_0000) | (Self::round(lower) >> 16);
        }
        *a = bytemuck::cast(pairs);
    }
}

/// binary16 with the instructions of F16C.
#[cfg(target_arch = "x86_64")]
pub(crate) struct F16c;

#[cfg(target_arch = "x86_64")]
impl Convert for F16c {
    #[inline(always)]
    fn widen(bits: &[u16; TURN], values: &mut [f32; TURN]) {
        use std::arch::x86_64::{__m128i, __m256, _mm256_cvtph_ps};
        for (bits, values) in bits.as_chunks::<8>().0.iter().zip(values.as_chunks_mut::<8>().0) {
            // SAFETY: both types are 16 bytes of which every value is valid.
            let bits: __m128i = unsafe { std::mem::transmute(*bits) };
            // SAFETY: the trait's rule: the kernels that use this are compiled for F16C and run where it is.
            let wide = unsafe { _mm256_cvtph_ps(bits) };
            // SAFETY: both types are 32 bytes of which every value is valid.
            *values = unsafe { std::mem::transmute::<__m256, [f32; 8]>(wide) };
        }
    }

    #[inline(always)]
    fn narrow(values: &[f32; TURN], bits: &mut [u16; TURN]) {
        use std::arch::x86_64::{__m128i, __m256, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtps_ph};
        for (bits, values) in bits.as_chunks_mut::<8>().0.iter_mut().zip(values.as_chunks::<8>().0) {
            // SAFETY: both types are 32 bytes of which every value is valid.
            let values: __m256 = unsafe { std::mem::transmute(*values) };
            // SAFETY: the trait's rule: the kernels that use this are compiled for F16C and run where it is.
            let narrow = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values) };
            // SAFETY: both types are 16 bytes of which every value is valid.
            *bits = unsafe { std::mem::transmute::<__m128i, [u16; 8]>(narrow) };
        }
    }
}

/// binary16 with the instructions of AVX-512 F.
#[cfg(target_arch = "x86_64")]
pub(crate) struct F16Avx512;

#[cfg(target_arch = "x86_64")]
impl Convert for F16Avx512 {
    #[inline(always)]
    fn widen(bits: &[u16; TURN], values: &mut [f32; TURN]) {
        use std::arch::x86_64::{__m256i, __m512, _mm512_cvtph_ps};
        for (bits, values) in bits.as_chunks::<16>().0.iter().zip(values.as_chunks_mut::<16>().0) {
            // SAFETY: both types are 32 bytes of which every value is valid.
            let bits: __m256i = unsafe { std::mem::transmute(*bits) };
            // SAFETY: the trait's rule: the kernels that use this are compiled for AVX-512 F and run where it is.
            let wide = unsafe { _mm512_cvtph_ps(bits) };
            // SAFETY: both types are 64 bytes of which every value is valid.
            *values = unsafe { std::mem::transmute::<__m512, [f32; 16]>(wide) };
        }
    }

    #[inline(always)]
    fn narrow(values: &[f32; TURN], bits: &mut [u16; TURN]) {
        use std::arch::x86_64::{__m256i, __m512, _MM_FROUND_TO_NEAREST_INT, _mm512_cvtps_ph};
        for (bits, values) in bits.as_chunks_mut::<16>().0.iter_mut().zip(values.as_chunks::<16>().0) {
            // SAFETY: both types are 64 bytes of which every value is valid.
            let values: __m512 = unsafe { std::mem::transmute(*values) };
            // SAFETY: the trait's rule: the kernels that use this are compiled for AVX-512 F and run where it is.
            let narrow = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values) };
            // SAFETY: both types are 32 bytes of which every value is valid.
            *bits = unsafe { std::mem::transmute::<__m256i, [u16; 16]>(narrow) };
        }
    }
}

/// As [`per_level`](super::per_level), for a body that is generic over the conversions of a format.
macro_rules! per_level_half {
    ($(#[$attribute:meta])* $vis:vis fn $name:ident<$convert:ident>($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$attribute])*
        $vis fn $name<F: Format>(level: Level, $($argument: $type),*) {
            #[inline(always)]
            fn body<$convert: Convert>($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            fn avx2<C: Convert>($($argument: $type),*) {
                body::<C>($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
            fn avx512<C: Convert>($($argument: $type),*) {
                body::<C>($($argument),*)
            }

            match level.kind() {
                // SAFETY: a level of this kind exists only where the CPU was found to have these features.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => unsafe { avx512::<F::Avx512>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => unsafe { avx2::<F::Avx2>($($argument),*) },
                _ => body::<F::Portable>($($argument),*),
            }
        }
    };
}

per_level_half! {
    /// `to = from`, as far as the shorter of the two reaches.
    pub(crate) fn widen<C>(from: &[u16], to: &mut [f32]) {
        let length = from.len().min(to.len());
        let (from, from_rest) = from[..length].as_chunks();
        let (to, to_rest) = to[..length].as_chunks_mut();
        from.iter().zip(to).for_each(|(from, to)| C::widen(from, to));
        let mut last = [0.0; TURN];
        C::widen(&padded(from_rest), &mut last);
        to_rest.copy_from_slice(&last[..to_rest.len()]);
    }
}

per_level_half! {
    /// `to = from`, rounded, as far as the shorter of the two reaches.
    pub(crate) fn narrow<C>(from: &[f32], to: &mut [u16]) {
        let length = from.len().min(to.len());
        let (from, from_rest) = from[..length].as_chunks();
        let (to, to_rest) = to[..length].as_chunks_mut();
        from.iter().zip(to).for_each(|(from, to)| C::narrow(from, to));
        let mut last = [0; TURN];
        C::narrow(&padded(from_rest), &mut last);
        to_rest.copy_from_slice(&last[..to_rest.len()]);
    }
}

struct Add<C>(PhantomData<C>);

impl<C: Convert> Each<u16, TURN> for Add<C> {
    #[inline(always)]
    fn each(a: &mut [u16; TURN], b: &[u16; TURN]) {
        C::add(a, b);
    }
}

per_level_half! {
    /// `a += b`, each sum taken in `f32` and rounded once, as far as the shorter of the two reaches.
    pub(crate) fn add_assign<C>(a: &mut [u16], b: &[u16]) {
        let length = a.len().min(b.len());
        let (a, a_rest) = a[..length].as_chunks_mut();
        let (b, b_rest) = b[..length].as_chunks();
        side_by_side::<Add<C>, u16, TURN>(a, b);
        let mut sums = padded(a_rest);
        C::add(&mut sums, &padded(b_rest));
        a_rest.copy_from_slice(&sums[..a_rest.len()]);
    }
}

per_level_half! {
    /// `values *= factor`, each product taken in `f32` and rounded once.
    pub(crate) fn scale<C>(values: &mut [u16], factor: f32) {
        let scale = |block: &mut [u16; TURN]| {
            let mut wide = [0.0; TURN];
            C::widen(block, &mut wide);
            wide.iter_mut().for_each(|value| *value *= factor);
            C::narrow(&wide, block);
        };
        let (blocks, rest) = values.as_chunks_mut();
        blocks.iter_mut().for_each(scale);
        let mut last = padded(rest);
        scale(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// `values`, fewer than a turn, and zeros.
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

    /// Every number of a format, what lies between it and the next, and what lies just beside that.
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
        let bf16s: Vec<u32> = all.iter().map(|&bits| bf16::from_bits(bits).to_f32_const().to_bits()).collect();
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
            for (name, found, expected) in
                [("f16", narrowed::<F16>(level, &values), &f16s), ("bf16", narrowed::<Bf16>(level, &values), &bf16s)]
            {
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

    /// As far as several stretches of memory are worked on side by side, and beyond.
    #[test]
    fn long_vectors_are_added_as_short_ones() {
        let bits = |n: usize, factor: usize| (0..n).map(move |i| ((i * factor) >> 3) as u16);
        for n in [199_679, 199_680, 199_681, 500_001] {
            let pairs: Vec<(u16, u16)> = bits(n, 7919).zip(bits(n, 104_729)).collect();
            check_sums::<F16>(&pairs, |a| f16::from_bits(a).to_f32_const(), |a| f16::from_f32_const(a).to_bits());
            check_sums::<Bf16>(&pairs, |a| bf16::from_bits(a).to_f32_const(), |a| bf16::from_f32_const(a).to_bits());
        }
    }

    proptest! {
        #[test]
        fn sums_are_rounded_once(pairs in prop::collection::vec(any::<(u16, u16)>(), 0..300)) {
            check_sums::<F16>(&pairs, |a| f16::from_bits(a).to_f32_const(), |a| f16::from_f32_const(a).to_bits());
            check_sums::<Bf16>(&pairs, |a| bf16::from_bits(a).to_f32_const(), |a| bf16::from_f32_const(a).to_bits());
        }
    }
}
