//! Sixteen floats at a time, for kernels whose sums must stay in registers.
//!
//! A kernel is a value of [`Kernel`], whose `run` is compiled once for each level with that level's
//! [`Lanes`]. The proof that the CPU has the instructions is a token ([`Simd`]) that only [`dispatch`] makes,
//! so kernels are safe code. All of their functions must be `#[inline(always)]`: a function that is not
//! inlined is compiled for the baseline.

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::Level;

/// Floats in a block.
pub(crate) const LANES: usize = 16;

/// Sixteen floats, aligned to a cache line.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [f32; LANES]);

impl Block {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    pub(crate) fn is_finite(&self) -> bool {
        self.0.iter().fold(true, |finite, value| finite & value.is_finite())
    }

    /// The sum of the floats, by halves.
    #[inline(always)]
    pub(crate) fn pairwise_sum(&self) -> f32 {
        let mut sums = self.0;
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
            half /= 2;
        }
        sums[0]
    }
}

/// The token of an instruction set, with its operations on sixteen floats. Products are rounded before they
/// are added, so all tokens give the same bits.
pub(crate) trait Simd: Copy {
    /// Sixteen floats in registers.
    type Lanes: Copy;
    /// How many registers of sixteen floats a kernel may use for sums.
    const SUMS: usize;

    fn splat(self, value: f32) -> Self::Lanes;
    fn load(self, from: &[f32; LANES]) -> Self::Lanes;
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);
    /// Stores a whole cache line without reading it first, past the caches if the CPU can. Before other
    /// threads may read it, this one calls [`fence`](Self::fence).
    fn store_past_caches(self, lanes: Self::Lanes, to: &mut Block);
    /// Orders all that was stored past the caches before later stores.
    fn fence(self);
    fn add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    fn multiply(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
}

/// Work that is compiled for each level.
pub(crate) trait Kernel {
    /// The result.
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel at a level.
pub(crate) fn dispatch<K: Kernel>(level: Level, kernel: K) -> K::Output {
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { x86::avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => unsafe { x86::avx2(kernel) },
        _ => kernel.run(Baseline(())),
    }
}

/// The baseline of the architecture, which includes NEON on Arm.
#[derive(Clone, Copy)]
pub(crate) struct Baseline(());

impl Simd for Baseline {
    type Lanes = [f32; LANES];
    const SUMS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; LANES] {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> [f32; LANES] {
        *from
    }

    #[inline(always)]
    fn store(self, lanes: [f32; LANES], to: &mut [f32; LANES]) {
        *to = lanes;
    }

    #[inline(always)]
    fn store_past_caches(self, lanes: [f32; LANES], to: &mut Block) {
        to.0 = lanes;
    }

    #[inline(always)]
    fn fence(self) {}

    #[inline(always)]
    fn add(self, mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] += b[lane];
        }
        a
    }

    #[inline(always)]
    fn multiply(self, mut a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        for lane in 0..LANES {
            a[lane] *= b[lane];
        }
        a
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, Kernel, LANES, Simd};

    #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }

    #[target_feature(
        enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
    )]
    pub(super) fn avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    /// Exists only in functions with the features of AVX2.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    /// Exists only in functions with the features of AVX-512.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    impl Simd for Avx2 {
        type Lanes = [__m256; 2];
        const SUMS: usize = 4;

        #[inline(always)]
        fn splat(self, value: f32) -> [__m256; 2] {
            // SAFETY: the token exists only where the CPU has AVX2.
            unsafe { [_mm256_set1_ps(value); 2] }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> [__m256; 2] {
            let from = from.as_ptr();
            // SAFETY: the token exists only where the CPU has AVX2; sixteen floats may be read.
            unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
        }

        #[inline(always)]
        fn store(self, lanes: [__m256; 2], to: &mut [f32; LANES]) {
            let to = to.as_mut_ptr();
            // SAFETY: the token exists only where the CPU has AVX2; sixteen floats may be written.
            unsafe {
                _mm256_storeu_ps(to, lanes[0]);
                _mm256_storeu_ps(to.add(8), lanes[1]);
            }
        }

        #[inline(always)]
        fn store_past_caches(self, lanes: [__m256; 2], to: &mut Block) {
            let to = to.0.as_mut_ptr();
            // SAFETY: the token exists only where the CPU has AVX2; sixteen floats may be written, at an
            // address that is a multiple of 64.
            unsafe {
                _mm256_stream_ps(to, lanes[0]);
                _mm256_stream_ps(to.add(8), lanes[1]);
            }
        }

        #[inline(always)]
        fn fence(self) {
            // SAFETY: every x86-64 CPU has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the token exists only where the CPU has AVX2.
            unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        }

        #[inline(always)]
        fn multiply(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            // SAFETY: the token exists only where the CPU has AVX2.
            unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        }
    }

    impl Simd for Avx512 {
        type Lanes = __m512;
        const SUMS: usize = 16;

        #[inline(always)]
        fn splat(self, value: f32) -> __m512 {
            // SAFETY: the token exists only where the CPU has AVX-512 F.
            unsafe { _mm512_set1_ps(value) }
        }

        #[inline(always)]
        fn load(self, from: &[f32; LANES]) -> __m512 {
            // SAFETY: the token exists only where the CPU has AVX-512 F; sixteen floats may be read.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }

        #[inline(always)]
        fn store(self, lanes: __m512, to: &mut [f32; LANES]) {
            // SAFETY: the token exists only where the CPU has AVX-512 F; sixteen floats may be written.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), lanes) }
        }

        #[inline(always)]
        fn store_past_caches(self, lanes: __m512, to: &mut Block) {
            // SAFETY: the token exists only where the CPU has AVX-512 F; sixteen floats may be written, at an
            // address that is a multiple of 64.
            unsafe { _mm512_stream_ps(to.0.as_mut_ptr(), lanes) }
        }

        #[inline(always)]
        fn fence(self) {
            // SAFETY: every x86-64 CPU has it.
            unsafe { _mm_sfence() }
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token exists only where the CPU has AVX-512 F.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        fn multiply(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: the token exists only where the CPU has AVX-512 F.
            unsafe { _mm512_mul_ps(a, b) }
        }
    }
}
