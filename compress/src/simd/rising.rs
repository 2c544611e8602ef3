//! Rising indices: measures the widths of their gaps, and unpacks and sums blocks of 128 packed gaps in one
//! pass.
//!
//! Gap `4 row + lane` of a block is in bits `width * row ..` of lane `lane`; the lanes are interleaved words
//! of 32 bits (see `codec::packed`). Four rows of at most 24 bits are within four words of each lane, so one
//! vector of sixteen words holds them. Two permutations and two shifts by known amounts bring them to their
//! places.

use bitpacking::{BitPacker, BitPacker4x};

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::{Level, per_level};

/// Gaps in a block.
pub(crate) const GAPS: usize = BitPacker4x::BLOCK_LEN;

/// The widest gaps that [`unpack_rising`] takes; the sum of a block of them is below 2^32.
pub(crate) const NARROW: usize = 24;

per_level! {
    /// Appends the bits of the widest gap of each block of [`GAPS`] indices; the last block may be shorter.
    pub(crate) fn measure_gaps(indices: &[u32], widths: &mut Vec<u8>) {
        let mut next = 0;
        for block in indices.chunks(GAPS) {
            let (first, behind) = (block[0].wrapping_sub(next), &block[1..]);
            let bits = block
                .iter()
                .zip(behind)
                .fold(first, |bits, (index, after)| bits | after.wrapping_sub(index.wrapping_add(1)));
            widths.push((u32::BITS - bits.leading_zeros()) as u8);
            next = block[block.len() - 1].wrapping_add(1);
        }
    }
}

/// Unpacks the block of gaps of `width` bits at the beginning of `packed` and sums them: the first index is
/// `next` plus the first gap, every other index is the previous one plus 1 plus its gap. All modulo 2^32.
///
/// # Panics
/// If `width` is more than [`NARROW`], or `packed` is shorter than the block.
pub(crate) fn unpack_rising(level: Level, next: u32, width: usize, packed: &[u8], indices: &mut [u32; GAPS]) {
    assert!(width <= NARROW && packed.len() >= 16 * width, "a block of narrow gaps");
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::unpack_rising(next, width, packed, indices) },
        _ => {
            let before = next.checked_sub(1);
            BitPacker4x::new().decompress_strictly_sorted(
                before,
                &packed[..16 * width],
                indices,
                width as u8,
            );
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{GAPS, NARROW};

    const LANES: usize = 16;
    /// Vectors of gaps in a block.
    const TURNS: usize = GAPS / LANES;

    /// The places of the sixteen gaps of four rows in the sixteen words from the first that holds any of
    /// them.
    #[derive(Clone, Copy)]
    #[repr(C, align(64))]
    struct Turn {
        /// The word in which each gap begins. It continues in the word four places later.
        words: [i32; LANES],
        /// The bit of the word at which it begins.
        bits: [i32; LANES],
    }

    /// The turns of a block for each width.
    static PLACES: [[Turn; TURNS]; NARROW + 1] = places();

    const fn places() -> [[Turn; TURNS]; NARROW + 1] {
        let mut places = [[Turn { words: [0; LANES], bits: [0; LANES] }; TURNS]; NARROW + 1];
        let mut place = 0;
        while place < (NARROW + 1) * TURNS * LANES {
            let (width, turn, lane) = (place / (TURNS * LANES), place / LANES % TURNS, place % LANES);
            let bit = 4 * width * turn % 32 + lane / 4 * width;
            places[width][turn].words[lane] = (bit / 32 * 4 + lane % 4) as i32;
            places[width][turn].bits[lane] = (bit % 32) as i32;
            place += 1;
        }
        places
    }

    /// Bytes after a block that are read with it.
    const BEHIND: usize = 64;

    /// The AVX-512 version of the function above, which has checked `width` and the length of `packed`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) fn unpack_rising(next: u32, width: usize, packed: &[u8], indices: &mut [u32; GAPS]) {
        let bytes = 16 * width;
        if let Some(packed) = packed.get(..bytes + BEHIND) {
            return unpack(next, width, packed, indices);
        }
        let mut padded = [0; 16 * NARROW + BEHIND];
        padded[..bytes].copy_from_slice(&packed[..bytes]);
        unpack(next, width, &padded, indices);
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    fn unpack(next: u32, width: usize, packed: &[u8], indices: &mut [u32; GAPS]) {
        assert!(packed.len() >= 16 * width + BEHIND, "what is read with a block is there");
        let mask = _mm512_set1_epi32((1 << width) - 1);
        let (four, word) = (_mm512_set1_epi32(4), _mm512_set1_epi32(32));
        let (last, lanes) = (_mm512_set1_epi32(15), _mm512_set1_epi32(LANES as i32));
        let steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        // The last gap of the row before, and of the one before that.
        let one_up = _mm512_set_epi32(11, 11, 11, 11, 7, 7, 7, 7, 3, 3, 3, 3, 0, 0, 0, 0);
        let two_up = _mm512_set_epi32(7, 7, 7, 7, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0);
        // The index of each lane if the gaps of this turn were 0.
        let mut first = _mm512_add_epi32(_mm512_set1_epi32(next as i32), steps);
        for (turn, (place, out)) in PLACES[width].iter().zip(indices.as_chunks_mut::<LANES>().0).enumerate() {
            // SAFETY: a block has `width` rows of 16 bytes, the turn begins in row `width * turn / 8` of
            // them, and `BEHIND` bytes can be read after the block.
            let words = unsafe { _mm512_loadu_si512(packed.as_ptr().add(width * turn / 8 * 16).cast()) };
            // SAFETY: the arrays are as long as a vector.
            let (begins, bits) = unsafe {
                (
                    _mm512_loadu_si512(place.words.as_ptr().cast()),
                    _mm512_loadu_si512(place.bits.as_ptr().cast()),
                )
            };
            let low = _mm512_srlv_epi32(_mm512_permutexvar_epi32(begins, words), bits);
            let goes_on = _mm512_permutexvar_epi32(_mm512_add_epi32(begins, four), words);
            // A shift by 32 gives 0.
            let high = _mm512_sllv_epi32(goes_on, _mm512_sub_epi32(word, bits));
            let mut sums = _mm512_and_si512(_mm512_or_si512(low, high), mask);
            sums = _mm512_add_epi32(sums, _mm512_bslli_epi128::<4>(sums));
            sums = _mm512_add_epi32(sums, _mm512_bslli_epi128::<8>(sums));
            sums = _mm512_add_epi32(sums, _mm512_maskz_permutexvar_epi32(0xfff0, one_up, sums));
            sums = _mm512_add_epi32(sums, _mm512_maskz_permutexvar_epi32(0xff00, two_up, sums));
            // SAFETY: sixteen places can be written.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_add_epi32(first, sums)) };
            let passed = _mm512_add_epi32(_mm512_permutexvar_epi32(last, sums), lanes);
            first = _mm512_add_epi32(first, passed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_level_measures_alike(
            gaps in prop::collection::vec(0_u32..1 << 20, 0..700), shift in 0_u32..20,
        ) {
            let mut next = 0;
            let indices: Vec<u32> = gaps.iter().map(|gap| { next += (gap >> shift) + 1; next - 1 }).collect();
            let widest = |block: &[u32]| {
                block.iter().map(|gap| 32 - (gap >> shift).leading_zeros() as u8).max().unwrap_or(0)
            };
            let expected: Vec<u8> = gaps.chunks(GAPS).map(widest).collect();
            for level in Level::available() {
                let mut widths = vec![];
                measure_gaps(level, &indices, &mut widths);
                prop_assert_eq!(&widths, &expected, "{}", level.name());
            }
        }

        /// Covers any bits in the block and any bytes after it.
        #[test]
        fn every_level_unpacks_alike(
            width in 0..=NARROW,
            next in prop_oneof![Just(0), any::<u32>()],
            bytes in prop::collection::vec(any::<u8>(), 16 * NARROW + 100),
            behind in 0_usize..100,
        ) {
            let packed = &bytes[..16 * width + behind];
            let mut expected = [0; GAPS];
            let mut index = next.wrapping_sub(1);
            for (i, expected) in expected.iter_mut().enumerate() {
                let bit = |bit: usize| {
                    let in_lane = i / 4 * width + bit;
                    packed[in_lane / 32 * 16 + i % 4 * 4 + in_lane % 32 / 8] >> (in_lane % 8) & 1
                };
                let gap = (0..width).fold(0, |gap, at| gap | u32::from(bit(at)) << at);
                index = index.wrapping_add(gap).wrapping_add(1);
                *expected = index;
            }
            for level in Level::available() {
                let mut indices = [7; GAPS];
                unpack_rising(level, next, width, packed, &mut indices);
                prop_assert_eq!(indices, expected, "{}, {} bits", level.name(), width);
            }
        }
    }
}
