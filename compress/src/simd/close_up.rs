//! Turns a merged list into a sum: adds up entries with equal indices and drops zeros.

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::Level;
use crate::bits::magnitude;

/// The progress: everything before `at` has been read, and the remaining entries are before `end`.
#[derive(Debug, Default)]
struct Closed {
    at: usize,
    end: usize,
    /// Whether the entry at `at` has been added to the previous one.
    is_second: bool,
    /// The largest magnitude of the remaining entries.
    most: u32,
}

/// Adds each entry to the previous one if both have the same index, and drops zeros. Moves the remaining
/// entries to the front, in order. Returns their number and the largest of their magnitudes.
///
/// The lists have equal lengths, the indices rise, and no index occurs three times.
pub(crate) fn close_up(level: Level, indices: &mut [u32], values: &mut [f32]) -> (usize, u32) {
    let mut closed = Closed::default();
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::vector_by_vector(&mut closed, indices, values) },
        _ => (),
    }
    closed.one_by_one(indices, values);
    (closed.end, closed.most)
}

impl Closed {
    /// Continues to the end.
    fn one_by_one(&mut self, indices: &mut [u32], values: &mut [f32]) {
        let len = indices.len().min(values.len());
        while self.at < len {
            let index = indices[self.at];
            let has_next = indices[..len].get(self.at + 1) == Some(&index);
            let sum = values[self.at] + if has_next { values[self.at + 1] } else { 0.0 };
            // Always written, but counted only if it is not zero and not counted already: no branch to
            // mispredict.
            (indices[self.end], values[self.end]) = (index, sum);
            let stays = !self.is_second & (sum != 0.0);
            self.end += usize::from(stays);
            self.most = self.most.max(if stays { magnitude(sum) } else { 0 });
            self.is_second = has_next;
            self.at += 1;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::Closed;

    const LANES: usize = 16;

    /// Continues as long as a whole vector and one more entry are left.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) fn vector_by_vector(closed: &mut Closed, indices: &mut [u32], values: &mut [f32]) {
        let len = indices.len().min(values.len());
        let (indices, values) = (indices.as_mut_ptr(), values.as_mut_ptr());
        let mut most = _mm512_setzero_si512();
        assert!(closed.end <= closed.at, "what is left lies before what is read");
        while closed.at + LANES < len {
            let (at, end) = (closed.at, closed.end);
            // SAFETY: a vector from `at` on and one from `at + 1` on are within both lists: that is the
            // loop's condition.
            let (places, next_places, own, next) = unsafe {
                (
                    _mm512_loadu_epi32(indices.add(at).cast()),
                    _mm512_loadu_epi32(indices.add(at + 1).cast()),
                    _mm512_loadu_ps(values.add(at)),
                    _mm512_loadu_ps(values.add(at + 1)),
                )
            };
            let pairs = _mm512_cmpeq_epi32_mask(places, next_places);
            let sums = _mm512_mask_add_ps(own, pairs, own, next);
            let seconds = pairs << 1 | u16::from(closed.is_second);
            let stay = _mm512_mask_cmp_ps_mask::<_CMP_NEQ_UQ>(!seconds, sums, _mm512_setzero_ps());
            // SAFETY: whole vectors, at or before the place from which they were read, so nothing unread is
            // overwritten.
            unsafe {
                _mm512_storeu_epi32(indices.add(end).cast(), _mm512_maskz_compress_epi32(stay, places));
                _mm512_storeu_ps(values.add(end), _mm512_maskz_compress_ps(stay, sums));
            }
            let magnitudes = _mm512_and_si512(_mm512_castps_si512(sums), _mm512_set1_epi32(i32::MAX));
            most = _mm512_mask_max_epi32(most, stay, most, magnitudes);
            closed.is_second = pairs >> (LANES - 1) != 0;
            closed.end += stay.count_ones() as usize;
            closed.at += LANES;
        }
        closed.most = closed.most.max(_mm512_reduce_max_epi32(most) as u32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_level_adds_up_pairs_and_drops_zeros(
            entries in prop::collection::vec(
                (
                    any::<bool>(),
                    prop::sample::select(vec![0.0_f32, -0.0, 1.0, -1.0, 3.5, -f32::MAX, f32::MAX]),
                ),
                0..300,
            ),
        ) {
            // An entry may have the index of the previous one, unless that is already a second one.
            let (mut indices, mut index, mut is_second) = (Vec::new(), 0_u32, true);
            for (wants_pair, _) in &entries {
                is_second = *wants_pair && !is_second;
                index += if is_second { 0 } else { 2 };
                indices.push(index);
            }
            let values: Vec<f32> = entries.iter().map(|entry| entry.1).collect();
            let mut expected: Vec<(u32, f32)> = Vec::new();
            for (&index, &value) in indices.iter().zip(&values) {
                match expected.last_mut() {
                    Some(last) if last.0 == index => last.1 += value,
                    _ => expected.push((index, value)),
                }
            }
            expected.retain(|entry| entry.1 != 0.0);
            let most = expected.iter().map(|entry| magnitude(entry.1)).max().unwrap_or(0);
            for level in Level::available() {
                let (mut indices, mut values) = (indices.clone(), values.clone());
                let (len, found) = close_up(level, &mut indices, &mut values);
                let sums: Vec<(u32, f32)> =
                    indices[..len].iter().copied().zip(values[..len].iter().copied()).collect();
                prop_assert_eq!(&sums, &expected, "{}", level.name());
                prop_assert_eq!(found, most, "{}", level.name());
            }
        }
    }
}
