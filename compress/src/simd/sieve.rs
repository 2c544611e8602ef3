//! Passes over the candidates of a selection: their largest, their distribution, and which of them stay.

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::{Level, per_level};

/// All bits of an `f32` except the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// The largest number of candidates for one call of [`sieve`].
pub(crate) const SIEVED: usize = 256;

/// The candidates that a [`sieve`] dropped: indices and bits.
#[derive(Debug)]
pub(crate) struct Dropped {
    pub(crate) indices: [u32; SIEVED + LANES],
    pub(crate) bits: [u32; SIEVED + LANES],
    pub(crate) count: usize,
}

const LANES: usize = 16;

impl Dropped {
    pub(crate) fn new() -> Self {
        Self { indices: [0; SIEVED + LANES], bits: [0; SIEVED + LANES], count: 0 }
    }
}

/// The rule of a [`sieve`]: keeps magnitudes above `threshold`, and the first `ties` magnitudes equal to it.
/// `ties` is counted down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mesh {
    pub(crate) threshold: u32,
    pub(crate) ties: usize,
}

impl Mesh {
    /// Whether a value with these bits stays. Counts ties down.
    #[inline(always)]
    pub(super) fn keeps(&mut self, bits: u32) -> bool {
        let magnitude = bits & MAGNITUDE;
        let tie = (magnitude == self.threshold) & (self.ties > 0);
        self.ties -= usize::from(tie);
        (magnitude > self.threshold) | tie
    }

    /// Like [`keeps`](Self::keeps) for the values in `lanes`; returns the lanes that stay.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
    #[inline]
    pub(super) fn kept_lanes(&mut self, lanes: u16, bits: std::arch::x86_64::__m512i) -> u16 {
        use std::arch::x86_64::*;
        let (threshold, magnitude) =
            (_mm512_set1_epi32(self.threshold as i32), _mm512_set1_epi32(MAGNITUDE as i32));
        let magnitudes = _mm512_and_si512(bits, magnitude);
        let larger = _mm512_mask_cmpgt_epu32_mask(lanes, magnitudes, threshold);
        let all_ties = _mm512_mask_cmpeq_epu32_mask(lanes, magnitudes, threshold);
        let mut ties = all_ties;
        while ties != 0 && self.ties > 0 {
            ties &= ties - 1;
            self.ties -= 1;
        }
        larger | (all_ties & !ties)
    }
}

per_level! {
    /// The largest magnitude among the bits of values; 0 for none.
    pub(crate) fn largest_of_bits(bits: &[u32]) -> u32 {
        bits.iter().fold(0, |largest, bits| largest.max(bits & MAGNITUDE))
    }
}

per_level! {
    /// Appends the magnitudes from `low` up to but excluding `low + width` to `band`. Fastest for few
    /// matches.
    pub(crate) fn append_band(bits: &[u32], low: u32, width: u32, band: &mut Vec<u32>) {
        let inside = |bits: u32| (bits & MAGNITUDE).wrapping_sub(low) < width;
        for block in bits.chunks(64) {
            if block.iter().fold(false, |any, &bits| any | inside(bits)) {
                band.extend(block.iter().filter(|&&bits| inside(bits)).map(|bits| bits & MAGNITUDE));
            }
        }
    }
}

/// Moves the candidates from place `from` to `to` that stay to place `kept`, in order, and writes the others
/// to `dropped`. Returns the place after the last that stays. Takes at most [`SIEVED`] candidates; `kept <=
/// from`.
pub(crate) fn sieve(
    level: Level,
    (bits, indices): (&mut [u32], &mut [u32]),
    (from, to): (usize, usize),
    kept: usize,
    mesh: &mut Mesh,
    dropped: &mut Dropped,
) -> usize {
    dropped.count = 0;
    let to = to.min(from + SIEVED).min(bits.len()).min(indices.len());
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 if kept <= from => unsafe {
            avx512::sieve(bits, indices, (from, to), kept, mesh, dropped)
        },
        _ => sieve_one_by_one(bits, indices, (from, to), kept, mesh, dropped),
    }
}

fn sieve_one_by_one(
    bits: &mut [u32],
    indices: &mut [u32],
    (from, to): (usize, usize),
    mut kept: usize,
    mesh: &mut Mesh,
    dropped: &mut Dropped,
) -> usize {
    // Every candidate is written to both places and counted in one: no branch to mispredict.
    for i in from..to {
        let (index, value) = (indices[i], bits[i]);
        let stays = mesh.keeps(value);
        (indices[kept], bits[kept]) = (index, value);
        (dropped.indices[dropped.count], dropped.bits[dropped.count]) = (index, value);
        kept += usize::from(stays);
        dropped.count += usize::from(!stays);
    }
    kept
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{Dropped, LANES, Mesh, SIEVED};

    /// The AVX-512 version of the function above. `from <= to <= from + SIEVED`, `to` is within both slices,
    /// and `kept <= from`: all asserted.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn sieve(
        bits: &mut [u32],
        indices: &mut [u32],
        (from, to): (usize, usize),
        mut kept: usize,
        mesh: &mut Mesh,
        dropped: &mut Dropped,
    ) -> usize {
        assert!(kept <= from && from <= to && to - from <= SIEVED && to <= bits.len().min(indices.len()));
        let (bits, indices) = (bits.as_mut_ptr(), indices.as_mut_ptr());
        let mut at = from;
        while at < to {
            let count = (to - at).min(LANES);
            let lanes = if count == LANES { u16::MAX } else { (1 << count) - 1 };
            // SAFETY: only lanes below `to` are read.
            let (values, places) = unsafe {
                (
                    _mm512_maskz_loadu_epi32(lanes, bits.add(at).cast()),
                    _mm512_maskz_loadu_epi32(lanes, indices.add(at).cast()),
                )
            };
            let stay = mesh.kept_lanes(lanes, values);
            let go = lanes & !stay;
            // SAFETY: compressed into at most `count` places from `kept <= at` on, which have been read, and
            // into the free part of `dropped`: it has at most `at - from` entries, and a vector more fits
            // after `SIEVED`.
            unsafe {
                let (first, behind) = (low_lanes(stay.count_ones()), dropped.count);
                _mm512_mask_storeu_epi32(
                    bits.add(kept).cast(),
                    first,
                    _mm512_maskz_compress_epi32(stay, values),
                );
                _mm512_mask_storeu_epi32(
                    indices.add(kept).cast(),
                    first,
                    _mm512_maskz_compress_epi32(stay, places),
                );
                _mm512_storeu_si512(
                    dropped.bits.as_mut_ptr().add(behind).cast(),
                    _mm512_maskz_compress_epi32(go, values),
                );
                _mm512_storeu_si512(
                    dropped.indices.as_mut_ptr().add(behind).cast(),
                    _mm512_maskz_compress_epi32(go, places),
                );
            }
            kept += stay.count_ones() as usize;
            dropped.count += go.count_ones() as usize;
            at += count;
        }
        kept
    }

    fn low_lanes(count: u32) -> u16 {
        ((1_u32 << count) - 1) as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_level_sieves_alike(
            magnitudes in prop::collection::vec((0_u32..6, any::<bool>()), 0..SIEVED),
            threshold in 0_u32..7, ties in 0_usize..40, gap in 0_usize..5,
        ) {
            let bits: Vec<u32> = magnitudes.iter().map(|&(m, minus)| m | u32::from(minus) << 31).collect();
            let mut left = ties;
            let stays: Vec<bool> = magnitudes.iter().map(|&(m, _)| {
                let tie = m == threshold && left > 0;
                left -= usize::from(tie);
                m > threshold || tie
            }).collect();
            let part = |staying: bool| -> Vec<(u32, u32)> {
                (0..)
                    .zip(&bits)
                    .zip(&stays)
                    .filter(|(_, s)| **s == staying)
                    .map(|((i, &b), _)| (i, b))
                    .collect()
            };
            for level in Level::available() {
                // A gap before them, into which the kept ones are moved.
                let mut list: Vec<u32> = vec![9; gap];
                list.extend(&bits);
                let mut indices: Vec<u32> = vec![9; gap];
                indices.extend(0..bits.len() as u32);
                let (mut mesh, mut dropped) = (Mesh { threshold, ties }, Dropped::new());
                let kept = sieve(
                    level,
                    (&mut list, &mut indices),
                    (gap, gap + bits.len()),
                    0,
                    &mut mesh,
                    &mut dropped,
                );
                let found: Vec<(u32, u32)> =
                    indices.iter().copied().zip(list.iter().copied()).take(kept).collect();
                prop_assert_eq!(found, part(true), "{}", level.name());
                let gone = dropped.indices.iter().copied().zip(dropped.bits.iter().copied());
                prop_assert_eq!(
                    gone.take(dropped.count).collect::<Vec<_>>(),
                    part(false),
                    "{}",
                    level.name()
                );
                prop_assert_eq!(mesh.ties, left, "{}", level.name());
            }
        }

        #[test]
        fn every_level_finds_the_largest_and_the_band(
            bits in prop::collection::vec(any::<u32>(), 0..300),
            low in 0_u32..1 << 31, width in 1_u32..1 << 30,
        ) {
            let magnitudes: Vec<u32> = bits.iter().map(|bits| bits & MAGNITUDE).collect();
            let inside: Vec<u32> =
                magnitudes.iter().copied().filter(|&m| m >= low && m - low < width).collect();
            for level in Level::available() {
                prop_assert_eq!(largest_of_bits(level, &bits), magnitudes.iter().copied().max().unwrap_or(0));
                let mut band = vec![];
                append_band(level, &bits, low, width, &mut band);
                prop_assert_eq!(&band, &inside, "{}", level.name());
            }
        }
    }
}
