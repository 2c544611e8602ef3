//! A block of a step in plain loops, and the values at the end that do not fill a block.

use super::figures::Partial;
use super::{AHEAD_BYTES, BLOCK, Block, CODES_AHEAD_BYTES, Code, LANES, Row};
use crate::simd::pack::{Codes, pack, unpack};
use crate::simd::{prefetch, prefetch_line};

/// Prefetches codes that will be read and written.
#[inline(always)]
pub(super) fn prefetch_codes(last: &[u8], next: &[u8]) {
    for codes in [last, next] {
        for line in (0..codes.len()).step_by(64) {
            prefetch_line(codes.as_ptr().wrapping_add(line + CODES_AHEAD_BYTES));
        }
    }
}

/// `r = (r - d) + g`, its codes, and its figures. Returns false, with `r` unchanged, if a result is not
/// finite.
#[inline(always)]
pub(super) fn block<const WIDTH: usize, const MEANS: bool, C: Code>(
    Block { r, g, last, next }: Block<'_>,
    code: &C,
    partial: &mut Partial,
) -> bool {
    prefetch_codes(last, next);
    let (mut sums, mut magnitudes) = ([0.0; BLOCK], [[0.0; LANES]; 2]);
    sum_block::<WIDTH, C>((r, g), last, code, &mut sums, &mut magnitudes);
    if !partial.add_magnitudes(&sums, &magnitudes, code) {
        return false;
    }
    *r = sums;
    write::<WIDTH, MEANS, C>(&sums, BLOCK, code, next, partial);
    true
}

/// `sums = (r - d) + g`, and the magnitudes of the sums, added up in rows by [`add_to_rows`].
#[inline(always)]
fn sum_block<const WIDTH: usize, C: Code>(
    (r, g): (&[f32; BLOCK], &[f32; BLOCK]),
    last: &[u8],
    code: &C,
    sums: &mut [f32; BLOCK],
    magnitudes: &mut [Row; 2],
) {
    let mut codes: Codes = [0; BLOCK];
    unpack::<WIDTH>(last, &mut codes);
    let rows = r.as_chunks::<LANES>().0.iter().zip(g.as_chunks::<LANES>().0);
    let others = sums.as_chunks_mut::<LANES>().0.iter_mut().zip(codes.as_chunks::<LANES>().0);
    for ((r, g), (sums, codes)) in rows.zip(others) {
        prefetch(r, AHEAD_BYTES);
        prefetch(g, AHEAD_BYTES);
        for lane in 0..LANES {
            let sum = (r[lane] - code.value(codes[lane])) + g[lane];
            sums[lane] = sum;
        }
        add_to_rows(magnitudes, sums, code);
    }
}

/// Like [`sum_block`], for fewer values; the rest of the block becomes zero.
#[inline(always)]
pub(super) fn sum_rest<const WIDTH: usize, C: Code>(
    r: &[f32],
    g: &[f32],
    last: &[u8],
    code: &C,
    sums: &mut [f32; BLOCK],
) {
    let mut space: Codes = [0; BLOCK];
    let codes = &mut space[..r.len()];
    if !last.is_empty() {
        unpack::<WIDTH>(last, codes);
    }
    sums.fill(0.0);
    for (i, sum) in sums[..r.len()].iter_mut().enumerate() {
        *sum = (r[i] - code.value(codes[i])) + g[i];
    }
}

/// Adds magnitudes to the first row, and with [`Code::LARGE`] those above the threshold to the second
/// instead.
#[inline(always)]
fn add_to_rows<C: Code>(rows: &mut [Row; 2], values: &Row, code: &C) {
    let [small, large] = rows;
    for ((small, large), value) in small.iter_mut().zip(large).zip(values) {
        let magnitude = value.abs();
        let above = C::LARGE && magnitude > code.threshold();
        *small += if above { 0.0 } else { magnitude };
        if C::LARGE {
            *large += if above { magnitude } else { 0.0 };
        }
    }
}

/// Magnitudes added up in rows by [`add_to_rows`].
#[inline(always)]
pub(super) fn magnitudes_of<C: Code>(values: &[f32; BLOCK], code: &C) -> [Row; 2] {
    let mut magnitudes = [[0.0; LANES]; 2];
    values.as_chunks::<LANES>().0.iter().for_each(|row| add_to_rows(&mut magnitudes, row, code));
    magnitudes
}

/// Writes the codes of a block of `length` values and zeros, and adds to the other figures. Zeros change no
/// figure.
#[inline(always)]
pub(super) fn write<const WIDTH: usize, const MEANS: bool, C: Code>(
    values: &[f32; BLOCK],
    length: usize,
    code: &C,
    bytes: &mut [u8],
    partial: &mut Partial,
) {
    let mut codes: Codes = [0; BLOCK];
    for (row, codes) in values.as_chunks::<LANES>().0.iter().zip(codes.as_chunks_mut::<LANES>().0) {
        for lane in 0..LANES {
            codes[lane] = code.code(row[lane]);
        }
        if !MEANS {
            least(&mut partial.smallest[0], row, 0.0);
            if C::LARGE {
                least(&mut partial.smallest[1], row, code.threshold());
            }
        }
    }
    pack::<WIDTH>(&codes[..length], bytes);
    if C::LARGE {
        partial.large += bytes.iter().map(|byte| (byte & 0x55).count_ones()).sum::<u32>() as usize;
    }
}

/// Lowers `smallest` to the magnitudes above `bound`.
#[inline(always)]
fn least(smallest: &mut Row, row: &Row, bound: f32) {
    for (smallest, value) in smallest.iter_mut().zip(row) {
        let candidate = if value.abs() > bound { value.abs() } else { f32::INFINITY };
        *smallest = if candidate < *smallest { candidate } else { *smallest };
    }
}
