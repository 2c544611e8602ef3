//! A block of a step with AVX-512 instructions: decoded values come from a table in a register, and codes are
//! computed from sums in registers.

use std::arch::x86_64::*;

use super::block::prefetch_codes;
use super::figures::{Figures, Partial};
use super::{AHEAD_BYTES, BLOCK, Block, Code, LANES, Row, Step};
use crate::simd::prefetch;

/// Values in a register.
const WIDE: usize = 16;

/// Registers in a row.
const PARTS: usize = LANES / WIDE;

/// Runs a step, block by block; `means` has the same meaning as for the callers.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
pub(super) fn run<const WIDTH: usize, C: Code>(
    step: Step<'_>,
    code: &C,
    means: bool,
) -> Result<Figures, usize> {
    // Looked up by four bits, of which only the lowest belong to the code.
    let said: [f32; WIDE] = std::array::from_fn(|bits| code.value(bits as u8 & ((1 << WIDTH) - 1)));
    // SAFETY: sixteen floats may be read.
    let said = unsafe { _mm512_loadu_ps(said.as_ptr()) };
    let mut before = [0.0; BLOCK];
    if means {
        let block = |of: Block<'_>, partial: &mut Partial| {
            block::<WIDTH, true, C>(of, said, code, &mut before, partial)
        };
        super::run::<WIDTH, true, C>(step, code, block)
    } else {
        let block = |of: Block<'_>, partial: &mut Partial| {
            block::<WIDTH, false, C>(of, said, code, &mut before, partial)
        };
        super::run::<WIDTH, false, C>(step, code, block)
    }
}

/// The AVX-512 version of `block` in the parent module. `before` is work space.
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
#[inline]
fn block<const WIDTH: usize, const MEANS: bool, C: Code>(
    Block { r, g, last, next }: Block<'_>,
    said: __m512,
    code: &C,
    before: &mut [f32; BLOCK],
    partial: &mut Partial,
) -> bool {
    prefetch_codes(last, next);
    let threshold = _mm512_set1_ps(code.threshold());
    // The parts of a row in turns, so that memory is read in order.
    let (mut small, mut large) = ([_mm512_setzero_ps(); PARTS], [_mm512_setzero_ps(); PARTS]);
    let mut smallest = [parts(&partial.smallest[0]), parts(&partial.smallest[1])];
    for group in 0..WIDTH {
        let (last, next) = (&last[LANES * group..], &mut next[LANES * group..]);
        let (mut said_codes, mut codes) = ([_mm512_setzero_si512(); PARTS], [_mm512_setzero_si512(); PARTS]);
        for (part, codes) in said_codes.iter_mut().enumerate() {
            *codes = widen(&last[WIDE * part..]);
        }
        for row in 0..8 / WIDTH {
            for part in 0..PARTS {
                let place = (8 / WIDTH * group + row) * PARTS + part;
                let (r, g) = (&mut r.as_chunks_mut::<WIDE>().0[place], &g.as_chunks::<WIDE>().0[place]);
                prefetch(r, AHEAD_BYTES);
                prefetch(g, AHEAD_BYTES);
                let old = load(r);
                store(old, &mut before.as_chunks_mut::<WIDE>().0[place]);
                let said = _mm512_permutexvar_ps(said_codes[part], said);
                let sum = _mm512_add_ps(_mm512_sub_ps(old, said), load(g));
                store(sum, r);
                said_codes[part] = down::<WIDTH>(said_codes[part]);
                let magnitude = _mm512_abs_ps(sum);
                // The sign goes to the highest bit of the lowest byte; the codes of later rows shift it down.
                let sign = _mm512_srli_epi32::<24>(_mm512_castps_si512(sum));
                let sign = _mm512_and_si512(sign, _mm512_set1_epi32(0x80));
                codes[part] = _mm512_or_si512(down::<WIDTH>(codes[part]), sign);
                if !MEANS {
                    let there = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitude, _mm512_setzero_ps());
                    let least = &mut smallest[0][part];
                    *least = _mm512_mask_min_ps(*least, there, *least, magnitude);
                }
                if C::LARGE {
                    let is_large = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitude, threshold);
                    small[part] = _mm512_mask_add_ps(small[part], !is_large, small[part], magnitude);
                    large[part] = _mm512_mask_add_ps(large[part], is_large, large[part], magnitude);
                    codes[part] =
                        _mm512_mask_or_epi32(codes[part], is_large, codes[part], _mm512_set1_epi32(0x40));
                    if !MEANS {
                        let least = &mut smallest[1][part];
                        *least = _mm512_mask_min_ps(*least, is_large, *least, magnitude);
                    }
                } else {
                    small[part] = _mm512_add_ps(small[part], magnitude);
                }
            }
        }
        for (part, codes) in codes.into_iter().enumerate() {
            let codes = narrow(codes);
            next[WIDE * part..][..WIDE].copy_from_slice(&codes);
            if C::LARGE {
                partial.large += (u128::from_le_bytes(codes) & (u128::MAX / 3)).count_ones() as usize;
            }
        }
    }
    let magnitudes = [row_of(small), row_of(large)];
    if !MEANS {
        partial.smallest = [row_of(smallest[0]), row_of(smallest[1])];
    }
    if !partial.add_magnitudes(r, &magnitudes, code) {
        *r = *before;
        return false;
    }
    true
}

/// A row in registers.
#[target_feature(enable = "avx512f")]
#[inline]
fn parts(row: &Row) -> [__m512; PARTS] {
    let mut parts = [_mm512_setzero_ps(); PARTS];
    for (part, values) in parts.iter_mut().zip(row.as_chunks().0) {
        *part = load(values);
    }
    parts
}

/// The row that [`parts`] loads.
#[target_feature(enable = "avx512f")]
#[inline]
fn row_of(parts: [__m512; PARTS]) -> Row {
    let mut row = [0.0; LANES];
    for (part, values) in parts.into_iter().zip(row.as_chunks_mut().0) {
        store(part, values);
    }
    row
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(from: &[f32; WIDE]) -> __m512 {
    // SAFETY: sixteen floats may be read.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(values: __m512, to: &mut [f32; WIDE]) {
    // SAFETY: sixteen floats may be written.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) }
}

/// Sixteen bytes as numbers of 32 bits.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn widen(bytes: &[u8]) -> __m512i {
    let bytes = &bytes[..WIDE];
    // SAFETY: sixteen bytes may be read.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// The lowest bytes of sixteen numbers.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
fn narrow(numbers: __m512i) -> [u8; WIDE] {
    let mut bytes = [0; WIDE];
    // SAFETY: sixteen bytes may be written.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(numbers)) };
    bytes
}

/// Moves the next code of each number to its lowest bits.
#[target_feature(enable = "avx512f")]
#[inline]
fn down<const WIDTH: usize>(codes: __m512i) -> __m512i {
    match WIDTH {
        1 => _mm512_srli_epi32::<1>(codes),
        _ => _mm512_srli_epi32::<2>(codes),
    }
}
