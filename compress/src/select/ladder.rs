//! Counts above a ladder of thresholds.
//!
//! Ranks that each hold a part of a vector add up their counts, and choose from them a threshold that keeps
//! about `k` entries of the whole. Ok-Topk (Li and Hoefler, "Near-optimal sparse allreduce for distributed
//! deep learning", PPoPP 2022) reuses a threshold for some steps; the rungs around it show how far it is off.

use crate::simd::{Level, count_reaching};

/// Rungs of a ladder.
pub const RUNGS: usize = 32;

/// Rungs from one power of two to the next.
const STEPS: usize = 8;

/// The powers of two on the ladder.
const OCTAVES: [f32; RUNGS / STEPS] = [0.25, 0.5, 1.0, 2.0];

/// `2^(i / 8)`, rounded to `f32`.
#[allow(clippy::excessive_precision, reason = "as many digits as the rounding needs")]
const POWERS: [f32; STEPS] = [
    1.0,
    1.090_507_7,
    1.189_207_1,
    1.296_839_6,
    std::f32::consts::SQRT_2,
    1.542_210_8,
    1.681_792_9,
    1.834_008_1,
];

/// The bits of `threshold * 2^((j - 16) / 8)` for each `j`: from a quarter of the threshold to 3.67 times as
/// much. Rises, except among subnormal numbers and where a product overflows to infinity, which no finite
/// value reaches. Ranks that must have the same rungs call this inside
/// [`in_standard_float_mode`](crate::in_standard_float_mode).
///
/// `threshold` holds the bits of a magnitude.
pub fn ladder_rungs(threshold: u32) -> [u32; RUNGS] {
    let threshold = f32::from_bits(threshold);
    std::array::from_fn(|j| (threshold * (OCTAVES[j / STEPS] * POWERS[j % STEPS])).to_bits())
}

/// How many of `values` reach each rung: their magnitude, as bits, is at least the rung. Infinities and NaN
/// reach every rung up to the bits of infinity; no value reaches rungs of 2^31 and above. Counts of more than
/// `u32::MAX` are `u32::MAX`.
///
/// Cost: O(values), one read.
pub fn ladder_counts(values: &[f32], rungs: &[u32; RUNGS]) -> [u32; RUNGS] {
    let level = Level::best();
    let mut counts = [0_u32; RUNGS];
    for values in values.chunks(COUNTED) {
        let these = count_reaching(level, values, rungs);
        counts.iter_mut().zip(these).for_each(|(count, these)| *count = count.saturating_add(these));
    }
    counts
}

/// Values between two checks of the counts.
const COUNTED: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::INFINITE;

    #[test]
    fn rungs_are_eighths_of_powers_of_two() {
        for threshold in [1.0_f32, 0.7, 1e-30, 3e30] {
            let rungs = ladder_rungs(threshold.to_bits());
            for (j, rung) in rungs.into_iter().enumerate() {
                let exact = f64::from(threshold) * ((j as f64 - 16.0) / 8.0).exp2();
                let error = (f64::from(f32::from_bits(rung)) / exact - 1.0).abs();
                assert!(error < 1.3e-7, "rung {j} of {threshold}: off by {error}");
            }
            assert!(rungs.is_sorted_by(|one, next| one < next));
            assert_eq!(rungs[16], threshold.to_bits());
        }
    }

    #[test]
    fn rungs_end_at_zero_and_infinity() {
        let high = ladder_rungs(f32::MAX.to_bits());
        assert!(high.is_sorted() && high[17..] == [INFINITE; 15]);
        let low = ladder_rungs(1);
        assert!(low.is_sorted());
        assert_eq!((low[0], low[16], low[31]), (0, 1, 4));
        assert_eq!(ladder_rungs(0), [0; RUNGS]);
    }

    #[test]
    fn counts_are_of_magnitudes_from_the_rung_on() {
        let ladder = ladder_rungs(1.0_f32.to_bits());
        let values = [0.25, -0.25, 1.0, -1.0, 1.05, -2.0, 9.0, 0.1, 0.0];
        let found = ladder_counts(&values, &ladder);
        assert_eq!((found[0], found[1], found[16], found[17], found[24], found[25]), (7, 5, 5, 2, 2, 1));
        assert_eq!(ladder_counts(&[], &ladder), [0; RUNGS]);
        assert_eq!(ladder_counts(&values, &ladder_rungs(0)), [9; RUNGS]);
    }

    #[test]
    fn long_lists_are_counted_in_pieces() {
        let values = vec![2.0; COUNTED + 3];
        let mut rungs = [2.0_f32.to_bits(); RUNGS];
        rungs[5] += 1;
        let mut expected = [COUNTED as u32 + 3; RUNGS];
        expected[5] = 0;
        assert_eq!(ladder_counts(&values, &rungs), expected);
    }
}
