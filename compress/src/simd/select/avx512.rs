//! The passes of a selection with AVX-512 instructions.

use std::arch::x86_64::*;

use super::{BLOCK, INFINITE, Pass};
use crate::simd::pages;

const LANES: usize = 16;

/// The constants of a pass.
struct Bound {
    bound: __m512i,
    infinite: __m512i,
    magnitude: __m512i,
}

/// The AVX-512 version of the function in the parent module.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn add_and_take(
    r: &mut [f32],
    g: &[f32],
    first: u32,
    bound: u32,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    let (len, room) = (r.len().min(g.len()), bits.len().min(indices.len()));
    let bound = Bound::new(bound);
    let (mut done, mut found) = (0, 0);
    if len >= MANY && !pages::are_fetched_ahead() {
        Pass { done, found } = add_side_by_side(r, g, first, &bound, bits, indices);
    }
    while len - done >= BLOCK && room - found >= BLOCK {
        let first = first + done as u32;
        // SAFETY: `r` and `g` hold a block from `done` on, and there is room for one: these are the loop's
        // conditions.
        found += unsafe {
            let (r, g) = (r.as_mut_ptr().add(done), g.as_ptr().add(done));
            add_block(r, g, first, &bound, bits.as_mut_ptr().add(found), indices.as_mut_ptr().add(found))
        };
        done += BLOCK;
    }
    while done < len && room - found >= BLOCK {
        let lanes = lanes(len - done);
        // SAFETY: only lanes below `len` are read and written.
        let (old, g) = unsafe {
            (
                _mm512_maskz_loadu_ps(lanes, r.as_ptr().add(done)),
                _mm512_maskz_loadu_ps(lanes, g.as_ptr().add(done)),
            )
        };
        let sum = _mm512_add_ps(old, g);
        let mask = bound.reached(sum) & lanes;
        // SAFETY: a block of room is there, and only lanes below `len` are written.
        unsafe {
            append(
                sum,
                mask,
                first + done as u32,
                bits.as_mut_ptr().add(found),
                indices.as_mut_ptr().add(found),
            );
            _mm512_mask_storeu_ps(r.as_mut_ptr().add(done), lanes, bound.without_candidates(old, sum, mask));
        }
        found += mask.count_ones() as usize;
        done += (len - done).min(LANES);
    }
    Pass { done, found }
}

/// Values of a page.
const STRETCH: usize = 1024;

/// Pages that are processed in turns, so that memory fetches them in parallel: see `side_by_side`.
const STRETCHES: usize = 4;

/// From this many values on, they are not in the nearest caches any more.
const MANY: usize = 1 << 16;

/// Candidates of one stretch.
struct Aside {
    bits: [u32; STRETCH],
    indices: [u32; STRETCH],
    count: usize,
}

impl Aside {
    const EMPTY: Self = Self { bits: [0; STRETCH], indices: [0; STRETCH], count: 0 };

    /// Moves all candidates to the beginning of two lists, which are at least as long as a stretch.
    #[inline(always)]
    fn empty_into(&mut self, bits: &mut [u32], indices: &mut [u32]) -> usize {
        // A whole vector at once: candidates are usually few, and counting them would cost more.
        let count = std::mem::take(&mut self.count);
        if count <= LANES {
            bits[..LANES].copy_from_slice(&self.bits[..LANES]);
            indices[..LANES].copy_from_slice(&self.indices[..LANES]);
        } else {
            bits[..count].copy_from_slice(&self.bits[..count]);
            indices[..count].copy_from_slice(&self.indices[..count]);
        }
        count
    }
}

/// Like [`add_and_take`], until fewer than [`STRETCHES`] stretches are left, or less room than they may need.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
fn add_side_by_side(
    r: &mut [f32],
    g: &[f32],
    first: u32,
    bound: &Bound,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    const TURN: usize = STRETCHES * STRETCH;
    let room = bits.len().min(indices.len());
    let mut asides = [const { Aside::EMPTY }; STRETCHES];
    let mut pass = Pass { done: 0, found: 0 };
    for (r, g) in r.as_chunks_mut::<TURN>().0.iter_mut().zip(g.as_chunks::<TURN>().0) {
        if room - pass.found < TURN {
            break;
        }
        for at in (0..STRETCH).step_by(BLOCK) {
            for (stretch, aside) in asides.iter_mut().enumerate() {
                let at = stretch * STRETCH + at;
                let first = first + (pass.done + at) as u32;
                // SAFETY: the turn holds a block from `at` on. The stretch had no more candidates than values
                // before it, so there is room for a block.
                aside.count += unsafe {
                    let to = (
                        aside.bits.as_mut_ptr().add(aside.count),
                        aside.indices.as_mut_ptr().add(aside.count),
                    );
                    add_block(r.as_mut_ptr().add(at), g.as_ptr().add(at), first, bound, to.0, to.1)
                };
            }
        }
        for aside in &mut asides {
            pass.found += aside.empty_into(&mut bits[pass.found..], &mut indices[pass.found..]);
        }
        pass.done += TURN;
    }
    pass
}

/// `r += g` for a block, and moves its candidates out. Returns their number.
///
/// # Safety
/// `r` and `g` hold a block, and as many places can be written at `bits` and at `indices`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
#[inline]
unsafe fn add_block(
    r: *mut f32,
    g: *const f32,
    first: u32,
    bound: &Bound,
    bits: *mut u32,
    indices: *mut u32,
) -> usize {
    let mut old = [_mm512_setzero_ps(); 4];
    let mut sums = [_mm512_setzero_ps(); 4];
    let mut masks = [0_u16; 4];
    for i in 0..4 {
        // SAFETY: four vectors are a block, which the caller promises.
        (old[i], sums[i]) = unsafe { (_mm512_loadu_ps(r.add(i * LANES)), _mm512_loadu_ps(g.add(i * LANES))) };
        sums[i] = _mm512_add_ps(old[i], sums[i]);
        masks[i] = bound.reached(sums[i]);
    }
    let mut found = 0;
    if masks[0] | masks[1] | masks[2] | masks[3] != 0 {
        for i in 0..4 {
            // SAFETY: each vector writes at most its own lanes of the room that the caller guarantees.
            unsafe {
                append(sums[i], masks[i], first + (i * LANES) as u32, bits.add(found), indices.add(found))
            };
            found += masks[i].count_ones() as usize;
            sums[i] = bound.without_candidates(old[i], sums[i], masks[i]);
        }
    }
    for (i, &sum) in sums.iter().enumerate() {
        // SAFETY: as for the loads.
        unsafe { _mm512_storeu_ps(r.add(i * LANES), sum) };
    }
    found
}

/// The AVX-512 version of the function in the parent module.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn copy_out(
    values: &[f32],
    first: u32,
    bound: u32,
    bits: &mut [u32],
    indices: &mut [u32],
) -> Pass {
    let (len, room) = (values.len(), bits.len().min(indices.len()));
    let bound = Bound::new(bound);
    let (mut done, mut found) = (0, 0);
    while len - done >= BLOCK && room - found >= BLOCK {
        let mut block = [_mm512_setzero_ps(); 4];
        let mut masks = [0_u16; 4];
        for i in 0..4 {
            // SAFETY: `values` holds a block from `done` on: that is the loop's first condition.
            block[i] = unsafe { _mm512_loadu_ps(values.as_ptr().add(done + i * LANES)) };
            masks[i] = bound.reached(block[i]);
        }
        if masks[0] | masks[1] | masks[2] | masks[3] != 0 {
            for i in 0..4 {
                if masks[i] != 0 {
                    let first = first + (done + i * LANES) as u32;
                    // SAFETY: there was room for a block, and each vector writes at most its own lanes of it.
                    unsafe {
                        append(
                            block[i],
                            masks[i],
                            first,
                            bits.as_mut_ptr().add(found),
                            indices.as_mut_ptr().add(found),
                        )
                    };
                    found += masks[i].count_ones() as usize;
                }
            }
        }
        done += BLOCK;
    }
    while done < len && room - found >= BLOCK {
        let lanes = lanes(len - done);
        // SAFETY: only lanes below `len` are read.
        let values = unsafe { _mm512_maskz_loadu_ps(lanes, values.as_ptr().add(done)) };
        let mask = bound.reached(values) & lanes;
        // SAFETY: there is room for a block.
        unsafe {
            append(
                values,
                mask,
                first + done as u32,
                bits.as_mut_ptr().add(found),
                indices.as_mut_ptr().add(found),
            );
        }
        found += mask.count_ones() as usize;
        done += (len - done).min(LANES);
    }
    Pass { done, found }
}

impl Bound {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn new(bound: u32) -> Self {
        Self {
            bound: _mm512_set1_epi32(bound as i32),
            infinite: _mm512_set1_epi32(INFINITE as i32),
            magnitude: _mm512_set1_epi32(i32::MAX),
        }
    }

    /// The lanes whose magnitude is at least the bound.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn reached(&self, values: __m512) -> u16 {
        _mm512_cmpge_epi32_mask(_mm512_and_si512(_mm512_castps_si512(values), self.magnitude), self.bound)
    }

    /// `sums`, with zeros in the candidates' lanes, and `old` where a sum is not finite.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn without_candidates(&self, old: __m512, sums: __m512, candidates: u16) -> __m512 {
        let magnitudes = _mm512_and_si512(_mm512_castps_si512(sums), self.magnitude);
        let finite = _mm512_mask_cmplt_epi32_mask(candidates, magnitudes, self.infinite);
        let kept = _mm512_mask_mov_ps(sums, candidates, old);
        _mm512_mask_mov_ps(kept, finite, _mm512_setzero_ps())
    }
}

/// The first `count` lanes.
fn lanes(count: usize) -> u16 {
    if count >= LANES { u16::MAX } else { (1 << count) - 1 }
}

/// Writes the values of the lanes in `mask` and their indices, compacted.
///
/// # Safety
/// Sixteen places can be written at `bits` and at `indices`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn append(values: __m512, mask: u16, first: u32, bits: *mut u32, indices: *mut u32) {
    let steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let places = _mm512_add_epi32(_mm512_set1_epi32(first as i32), steps);
    // SAFETY: the caller guarantees the room. Whole vectors are stored, because masked stores are slow on
    // some CPUs.
    unsafe {
        _mm512_storeu_si512(bits.cast(), _mm512_maskz_compress_epi32(mask, _mm512_castps_si512(values)));
        _mm512_storeu_si512(indices.cast(), _mm512_maskz_compress_epi32(mask, places));
    }
}
