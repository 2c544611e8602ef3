//! Splits a list into what a mesh keeps and what it drops.

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::{Level, Mesh};

/// All bits of an `f32` except the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Places after the last entry of a list that [`part`] may overwrite.
pub(crate) const SPARE: usize = 16;

/// Indices and bits of values, for writing.
pub(crate) struct List<'a> {
    pub(crate) indices: &'a mut [u32],
    pub(crate) bits: &'a mut [u32],
}

/// Writes the entries that `mesh` keeps to `kept` and all others to `dropped`, in order.
///
/// # Panics
/// Unless each list has room for its entries and [`SPARE`] more.
pub(crate) fn part(
    level: Level,
    indices: &[u32],
    bits: &[u32],
    mesh: Mesh,
    kept: List<'_>,
    dropped: List<'_>,
) {
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::part(indices, bits, mesh, kept, dropped) },
        _ => part_one_by_one(indices, bits, mesh, kept, dropped),
    }
}

fn part_one_by_one(indices: &[u32], bits: &[u32], mut mesh: Mesh, kept: List<'_>, dropped: List<'_>) {
    let (mut stay, mut go) = (0, 0);
    for (&index, &value) in indices.iter().zip(bits) {
        let stays = mesh.keeps(value);
        // Every entry is written to both lists and counted in one: no branch to mispredict.
        (kept.indices[stay], kept.bits[stay]) = (index, value);
        (dropped.indices[go], dropped.bits[go]) = (index, value);
        stay += usize::from(stays);
        go += usize::from(!stays);
    }
}

/// Copies the magnitudes from `low` to `high` (both included) among the bits of values to the beginning of
/// `band`. Returns their number, and the number of magnitudes above `high`.
///
/// # Panics
/// Unless `band` has room for all of `bits` and [`SPARE`] more.
pub(crate) fn copy_band(level: Level, bits: &[u32], low: u32, high: u32, band: &mut [u32]) -> (usize, usize) {
    assert!(band.len() >= bits.len() + SPARE, "the band has room");
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::copy_band(bits, low, high, band) },
        _ => copy_band_one_by_one(bits, low, high, band),
    }
}

fn copy_band_one_by_one(bits: &[u32], low: u32, high: u32, band: &mut [u32]) -> (usize, usize) {
    let (mut count, mut above) = (0, 0);
    for bits in bits {
        let magnitude = bits & MAGNITUDE;
        band[count] = magnitude;
        count += usize::from((magnitude >= low) & (magnitude <= high));
        above += usize::from(magnitude > high);
    }
    (count, above)
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{List, MAGNITUDE, Mesh, SPARE};

    const LANES: usize = 16;

    /// The AVX-512 version of the function above.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn part(indices: &[u32], bits: &[u32], mut mesh: Mesh, kept: List<'_>, dropped: List<'_>) {
        let len = indices.len().min(bits.len());
        let kept_room = kept.indices.len().min(kept.bits.len());
        let dropped_room = dropped.indices.len().min(dropped.bits.len());
        let (mut at, mut stay_end, mut go_end) = (0, 0, 0);
        while at < len {
            assert!(kept_room - stay_end >= SPARE && dropped_room - go_end >= SPARE, "lists have room");
            let lanes = if len - at >= LANES { u16::MAX } else { (1 << (len - at)) - 1 };
            // SAFETY: only lanes below `len` are read.
            let (values, places) = unsafe {
                (
                    _mm512_maskz_loadu_epi32(lanes, bits.as_ptr().add(at).cast()),
                    _mm512_maskz_loadu_epi32(lanes, indices.as_ptr().add(at).cast()),
                )
            };
            let stay = mesh.kept_lanes(lanes, values);
            let go = lanes & !stay;
            // SAFETY: whole vectors of sixteen places; both lists have that much room after their ends, as
            // asserted.
            unsafe {
                store(kept.indices.as_mut_ptr().add(stay_end), stay, places);
                store(kept.bits.as_mut_ptr().add(stay_end), stay, values);
                store(dropped.indices.as_mut_ptr().add(go_end), go, places);
                store(dropped.bits.as_mut_ptr().add(go_end), go, values);
            }
            stay_end += stay.count_ones() as usize;
            go_end += go.count_ones() as usize;
            at += LANES;
        }
    }

    /// The AVX-512 version of the function above. `band` has sixteen places more than `bits`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn copy_band(bits: &[u32], low: u32, high: u32, band: &mut [u32]) -> (usize, usize) {
        assert!(band.len() >= bits.len() + LANES, "the band has room");
        let (low, high) = (_mm512_set1_epi32(low as i32), _mm512_set1_epi32(high as i32));
        let magnitude = _mm512_set1_epi32(MAGNITUDE as i32);
        let (mut count, mut above) = (0, 0);
        for vector in bits.chunks(LANES) {
            let lanes = if vector.len() == LANES { u16::MAX } else { (1 << vector.len()) - 1 };
            // SAFETY: only the lanes of the chunk are read.
            let values = unsafe { _mm512_maskz_loadu_epi32(lanes, vector.as_ptr().cast()) };
            let magnitudes = _mm512_and_si512(values, magnitude);
            let larger = _mm512_mask_cmpgt_epu32_mask(lanes, magnitudes, high);
            let inside = _mm512_mask_cmpge_epu32_mask(lanes & !larger, magnitudes, low);
            // SAFETY: `count` is at most what has been read, and `band` has a vector more than `bits`.
            unsafe { store(band.as_mut_ptr().add(count), inside, magnitudes) };
            count += inside.count_ones() as usize;
            above += larger.count_ones() as usize;
        }
        (count, above)
    }

    /// Writes the lanes of `mask`, compacted, and zeros after them.
    ///
    /// # Safety
    /// Sixteen places can be written at `to`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    #[inline]
    unsafe fn store(to: *mut u32, mask: u16, lanes: __m512i) {
        // SAFETY: the caller guarantees the room. Whole vectors are stored, because masked stores are slow on
        // some CPUs.
        unsafe { _mm512_storeu_si512(to.cast(), _mm512_maskz_compress_epi32(mask, lanes)) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_level_parts_alike(
            magnitudes in prop::collection::vec((0_u32..6, any::<bool>()), 0..200),
            threshold in 0_u32..7,
            ties in 0_usize..40,
        ) {
            let bits: Vec<u32> = magnitudes.iter().map(|&(m, minus)| m | u32::from(minus) << 31).collect();
            let indices: Vec<u32> = (0..bits.len() as u32).map(|i| 3 * i + 1).collect();
            let (mut left, mut stay, mut go) = (ties, vec![], vec![]);
            for (&index, &bits) in indices.iter().zip(&bits) {
                let tie = bits & MAGNITUDE == threshold && left > 0;
                left -= usize::from(tie);
                if bits & MAGNITUDE > threshold || tie {
                    stay.push((index, bits))
                } else {
                    go.push((index, bits))
                }
            }
            for level in Level::available() {
                let room = |count: usize| (vec![9_u32; count + SPARE], vec![9_u32; count + SPARE]);
                let (mut kept, mut dropped) = (room(stay.len()), room(go.len()));
                part(
                    level, &indices, &bits, Mesh { threshold, ties },
                    List { indices: &mut kept.0, bits: &mut kept.1 },
                    List { indices: &mut dropped.0, bits: &mut dropped.1 },
                );
                let entries = |room: &(Vec<u32>, Vec<u32>), count: usize| -> Vec<(u32, u32)> {
                    room.0.iter().copied().zip(room.1.iter().copied()).take(count).collect()
                };
                prop_assert_eq!(&entries(&kept, stay.len()), &stay, "{}", level.name());
                prop_assert_eq!(&entries(&dropped, go.len()), &go, "{}", level.name());
            }
        }

        #[test]
        fn every_level_copies_the_same_band(
            bits in prop::collection::vec(any::<u32>(), 0..300),
            low in 0..1_u32 << 31, high in 0..1_u32 << 31,
        ) {
            let magnitudes = || bits.iter().map(|bits| bits & MAGNITUDE);
            let inside: Vec<u32> = magnitudes().filter(|m| (low..=high).contains(m)).collect();
            let above = magnitudes().filter(|&m| m > high).count();
            for level in Level::available() {
                let mut band = vec![0; bits.len() + SPARE];
                prop_assert_eq!(
                    copy_band(level, &bits, low, high, &mut band),
                    (inside.len(), above),
                    "{}",
                    level.name()
                );
                prop_assert_eq!(&band[..inside.len()], &inside[..], "{}", level.name());
            }
        }
    }
}
