//! Conversions of 16-bit floating-point numbers to `f32` and back, a block at a time.

use super::TURN;

/// Conversions at one level. A value is the token of that level: tokens for instructions beyond the
/// architecture's baseline exist only if the CPU has them. All methods must be `#[inline(always)]`: a
/// function that is not inlined is compiled for the baseline.
pub(crate) trait Convert: Copy {
    fn widen(self, bits: &[u16; TURN], values: &mut [f32; TURN]);
    fn narrow(self, values: &[f32; TURN], bits: &mut [u16; TURN]);

    /// Like [`widen`](Self::widen), but may leave a NaN signaling.
    #[inline(always)]
    fn widen_operand(self, bits: &[u16; TURN], values: &mut [f32; TURN]) {
        self.widen(bits, values);
    }

    /// `a += b`, rounded once.
    #[inline(always)]
    fn add(self, a: &mut [u16; TURN], b: &[u16; TURN]) {
        let (mut sums, mut wide) = ([0.0; TURN], [0.0; TURN]);
        self.widen(a, &mut sums);
        self.widen(b, &mut wide);
        sums.iter_mut().zip(&wide).for_each(|(sum, b)| *sum += b);
        self.narrow(&sums, a);
    }
}

/// binary16 with integer operations and one of `f32`.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Convert for Portable {
    #[inline(always)]
    fn widen(self, bits: &[u16; TURN], values: &mut [f32; TURN]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            let sign = u32::from(bits & 0x8000) << 16;
            let magnitude = u32::from(bits & 0x7fff) << 13;
            // The bias of the exponent is 127 instead of 15. The product is exact, also for subnormal
            // numbers.
            let scaled = (f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23)).to_bits();
            let infinite = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
            let quiet = if magnitude > 0x0f80_0000 { 0x0040_0000 } else { 0 };
            *value = f32::from_bits(sign | scaled | infinite | quiet);
        }
    }

    #[inline(always)]
    fn narrow(self, values: &[f32; TURN], bits: &mut [u16; TURN]) {
        for (bits, value) in bits.iter_mut().zip(values) {
            let sign = (value.to_bits() >> 16) & 0x8000;
            let magnitude = value.to_bits() & 0x7fff_ffff;
            let even = (magnitude >> 13) & 1;
            let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + even) >> 13;
            // An ulp of 0.5 is the smallest subnormal number, so the sum rounds.
            let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
            let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
            let large = if magnitude > 0x7f80_0000 { 0x7e00 | ((magnitude >> 13) & 0x1ff) } else { 0x7c00 };
            *bits = (sign | if magnitude < 0x477f_f000 { finite } else { large }) as u16;
        }
    }
}

/// bfloat16 with integer operations.
#[derive(Clone, Copy)]
pub(crate) struct UpperHalf;

impl UpperHalf {
    /// The rounded number in the upper half; the lower half is unspecified.
    #[inline(always)]
    fn round(value: f32) -> u32 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        if value.is_nan() { bits | 0x0040_0000 } else { rounded }
    }
}

impl Convert for UpperHalf {
    #[inline(always)]
    fn widen(self, bits: &[u16; TURN], values: &mut [f32; TURN]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            let wide = u32::from(bits) << 16;
            // As in the other format, NaNs become quiet.
            let quiet = if f32::from_bits(wide).is_nan() { 0x0040_0000 } else { 0 };
            *value = f32::from_bits(wide | quiet);
        }
    }

    #[inline(always)]
    fn widen_operand(self, bits: &[u16; TURN], values: &mut [f32; TURN]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }

    #[inline(always)]
    fn narrow(self, values: &[f32; TURN], bits: &mut [u16; TURN]) {
        bits.iter_mut().zip(values).for_each(|(bits, &value)| *bits = (Self::round(value) >> 16) as u16);
    }

    /// Pairs stay together in 32 bits: the upper number needs no shift, and nothing crosses lanes.
    #[inline(always)]
    fn add(self, a: &mut [u16; TURN], b: &[u16; TURN]) {
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

/// binary16 with the instructions of `$feature`, which convert `$lanes` numbers at once.
#[cfg(target_arch = "x86_64")]
macro_rules! by_instructions {
    (
        $token:ident, $feature:literal, $lanes:literal,
        $narrow:ident, $wide:ident, $widen:ident, $round:ident
    ) => {
        #[doc = concat!("binary16 with the instructions of ", $feature, ".")]
        #[derive(Clone, Copy)]
        pub(crate) struct $token(());

        impl $token {
            /// The token.
            ///
            /// # Safety
            #[doc = concat!("The CPU has ", $feature, ".")]
            pub(super) unsafe fn new() -> Self {
                Self(())
            }
        }

        impl Convert for $token {
            #[inline(always)]
            fn widen(self, bits: &[u16; TURN], values: &mut [f32; TURN]) {
                use std::arch::x86_64::{$narrow, $wide, $widen};
                for (bits, values) in
                    bits.as_chunks::<$lanes>().0.iter().zip(values.as_chunks_mut::<$lanes>().0)
                {
                    // SAFETY: both types have as many bytes, of which every value is valid.
                    let bits: $narrow = unsafe { std::mem::transmute(*bits) };
                    // SAFETY: the token exists only where the CPU has the instruction.
                    let wide = unsafe { $widen(bits) };
                    // SAFETY: both types have as many bytes, of which every value is valid.
                    *values = unsafe { std::mem::transmute::<$wide, [f32; $lanes]>(wide) };
                }
            }

            #[inline(always)]
            fn narrow(self, values: &[f32; TURN], bits: &mut [u16; TURN]) {
                use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, $narrow, $round, $wide};
                for (bits, values) in
                    bits.as_chunks_mut::<$lanes>().0.iter_mut().zip(values.as_chunks::<$lanes>().0)
                {
                    // SAFETY: both types have as many bytes, of which every value is valid.
                    let values: $wide = unsafe { std::mem::transmute(*values) };
                    // SAFETY: the token exists only where the CPU has the instruction.
                    let narrow = unsafe { $round::<_MM_FROUND_TO_NEAREST_INT>(values) };
                    // SAFETY: both types have as many bytes, of which every value is valid.
                    *bits = unsafe { std::mem::transmute::<$narrow, [u16; $lanes]>(narrow) };
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
by_instructions!(F16c, "F16C", 8, __m128i, __m256, _mm256_cvtph_ps, _mm256_cvtps_ph);
#[cfg(target_arch = "x86_64")]
by_instructions!(F16Avx512, "AVX-512 F", 16, __m256i, __m512, _mm512_cvtph_ps, _mm512_cvtps_ph);
