//! Guesses of a bound that the `k`-th magnitude reaches.

use super::part::Part;
use crate::bits::magnitude;

/// What a selection tells the next one of the same tensors: where it ended. It changes how long that one
/// takes, never what it selects.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hint {
    /// The smallest magnitude selected; 0 when nothing is known.
    threshold: f32,
    /// What the next one is expected to be.
    expected: f32,
    /// How far under that it may lie, as a share of it.
    margin: f32,
    /// What it holds for.
    elements: usize,
    k: usize,
}

/// How far under the expected threshold the next one is looked for, as a share of it: as long as nothing is
/// known of how it moves.
const FIRST: f32 = 0.05;
/// The same at least. A wide margin costs candidates, one that is too narrow another pass.
const LEAST: f32 = 0.01;
/// The same at most.
const MOST: f32 = 0.2;

/// Margin times `k` from which a sample costs less than the candidates that the margin lets through: a share
/// of `k` several times the margin.
const WORTH_A_SAMPLE: f32 = 10_000.0;

impl Hint {
    /// Knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of the bits of the smallest magnitude selected, if `k` were. The threshold is expected to
    /// move on as it has moved: while a residual fills up it rises from step to step.
    pub(super) fn set(&mut self, threshold: Option<u32>, elements: usize, k: usize) {
        let threshold = f32::from_bits(threshold.unwrap_or(0));
        let error = (threshold - self.expected).abs() / threshold;
        let rise = (threshold - self.threshold).clamp(-0.5 * threshold, 0.5 * threshold);
        let next = threshold + rise;
        let follows = self.is_for(elements, k) && error.is_finite() && next.is_finite();
        let (expected, margin) = if follows {
            // Wide at once after a surprise, narrow again slowly.
            (next, (4.0 * error).max(0.75 * self.margin).clamp(LEAST, MOST))
        } else {
            (threshold, FIRST)
        };
        *self = Self { threshold, expected, margin, elements, k };
    }

    /// A bound for the next selection, if it is a like one, and no sample would give a better one.
    pub(super) fn bound(&self, elements: usize, k: usize) -> Option<u32> {
        let knows = self.is_for(elements, k) && self.margin * k as f32 <= WORTH_A_SAMPLE;
        knows.then(|| magnitude(self.expected * (1.0 - self.margin)).max(1))
    }

    /// The smallest magnitude selected; 0 when fewer than `k` were.
    pub(crate) fn threshold(&self) -> f32 {
        self.threshold
    }

    fn is_for(&self, elements: usize, k: usize) -> bool {
        self.threshold > 0.0 && (self.elements, self.k) == (elements, k)
    }
}

/// Up to here every value that is not zero is a candidate.
const SMALL: usize = 4096;

/// Values drawn at most: few enough to cost little beside the pass, for each is a cache line of its own.
const DRAWN: usize = 32_768;

/// Values of the sample that are asked for before the first of them is read.
const AHEAD: usize = 64;

/// A bound that `k` of the `total` values in `parts` and four deviations more reach, by a sample of single
/// values.
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

/// Draws the magnitudes of so many values, one from each of even strata, at a place that is jittered so that
/// periodic data do not line up with the strata.
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
