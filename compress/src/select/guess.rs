//! Guesses a bound that the `k`-th magnitude reaches.

use super::part::Part;
use crate::bits::magnitude;

/// What a selection passes to the next one of the same tensors: where it ended. It affects only the time,
/// never the result.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hint {
    /// The smallest magnitude selected; 0 if unknown.
    threshold: f32,
    /// The expected threshold of the next selection.
    expected: f32,
    /// How far below the expected threshold the next may be, as a share of it.
    margin: f32,
    /// The number of elements that the hint is for.
    elements: usize,
    k: usize,
}

/// The initial margin below the expected threshold, as a share of it, used until the movement of the
/// threshold is known.
const FIRST: f32 = 0.05;
/// The smallest margin. A wide margin costs candidates; one that is too narrow costs another pass.
const LEAST: f32 = 0.01;
/// The largest margin.
const MOST: f32 = 0.2;

/// From this product of margin and `k` on, a sample costs less than the candidates that the margin lets
/// through, which are a share of `k` several times the margin.
const WORTH_A_SAMPLE: f32 = 10_000.0;

impl Hint {
    /// A hint without knowledge.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the bits of the smallest magnitude selected, if `k` values were selected. Expects the
    /// threshold to move as it moved before: it rises from step to step while a residual fills up.
    pub(super) fn set(&mut self, threshold: Option<u32>, elements: usize, k: usize) {
        let threshold = f32::from_bits(threshold.unwrap_or(0));
        let error = (threshold - self.expected).abs() / threshold;
        let rise = (threshold - self.threshold).clamp(-0.5 * threshold, 0.5 * threshold);
        let next = threshold + rise;
        let follows = self.is_for(elements, k) && error.is_finite() && next.is_finite();
        let (expected, margin) = if follows {
            // Widens at once after a surprise, and narrows slowly.
            (next, (4.0 * error).max(0.75 * self.margin).clamp(LEAST, MOST))
        } else {
            (threshold, FIRST)
        };
        *self = Self { threshold, expected, margin, elements, k };
    }

    /// A bound for the next selection, if that is similar and a sample would not give a better bound.
    pub(super) fn bound(&self, elements: usize, k: usize) -> Option<u32> {
        let knows = self.is_for(elements, k) && self.margin * k as f32 <= WORTH_A_SAMPLE;
        knows.then(|| magnitude(self.expected * (1.0 - self.margin)).max(1))
    }

    /// The smallest magnitude selected; 0 if fewer than `k` were selected.
    pub(crate) fn threshold(&self) -> f32 {
        self.threshold
    }

    fn is_for(&self, elements: usize, k: usize) -> bool {
        self.threshold > 0.0 && (self.elements, self.k) == (elements, k)
    }
}

/// Up to this many values, every value that is not zero is a candidate.
const SMALL: usize = 4096;

/// The largest sample. Each value is a cache line of its own, so it must be few compared to the pass.
const DRAWN: usize = 32_768;

/// How many sample values are prefetched ahead.
const AHEAD: usize = 64;

/// A bound, from a sample of single values, that `k` of the `total` values in `parts` reach, with a margin of
/// four deviations.
pub(super) fn sampled_bound(parts: &[Part<'_>], total: usize, k: usize, sample: &mut Vec<u32>) -> u32 {
    if total <= SMALL || k == 0 {
        return 1;
    }
    let drawn = DRAWN.min(total / 4);
    let expected = k as f64 * drawn as f64 / total as f64;
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    if rank >= drawn {
        return 1;
    }
    draw(parts, total, drawn, sample);
    let place = drawn - rank;
    (*sample.select_nth_unstable(place).1).max(1)
}

/// Draws the magnitudes of `drawn` values, one from each of even strata. The place in the stratum is jittered
/// so that periodic data do not align with the strata.
fn draw(parts: &[Part<'_>], total: usize, drawn: usize, sample: &mut Vec<u32>) {
    sample.clear();
    let stratum = total / drawn;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut tensor, mut start) = (0, 0);
    let mut places = [(0, 0); AHEAD];
    for first in (0..drawn).step_by(AHEAD) {
        let places = &mut places[..AHEAD.min(drawn - first)];
        for (i, place) in (first..).zip(&mut *places) {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let position = i * stratum + (((state >> 32) * stratum as u64) >> 32) as usize;
            while position - start >= parts[tensor].len() {
                start += parts[tensor].len();
                tensor += 1;
            }
            parts[tensor].prefetch(position - start);
            *place = (tensor, position - start);
        }
        sample.extend(places.iter().map(|&(tensor, position)| magnitude(parts[tensor].value(position))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_that_jump_are_sampled_where_many_entries_are_kept() {
        for (k, sampled) in [(1000, false), (250_000, true)] {
            let mut hint = Hint::new();
            (0..10).for_each(|_| hint.set(Some(1.0_f32.to_bits()), 1 << 24, k));
            let bound = hint.bound(1 << 24, k).map(f32::from_bits);
            assert!(bound.is_some_and(|bound| (0.9..1.0).contains(&bound)), "{k}: {bound:?}");
            [1.3_f32, 1.0, 1.3].iter().for_each(|jumped| hint.set(Some(jumped.to_bits()), 1 << 24, k));
            assert_eq!(hint.bound(1 << 24, k).is_none(), sampled, "{k}");
        }
    }
}
