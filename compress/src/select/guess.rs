//! Guesses of a bound that the `k`-th magnitude reaches.

use super::part::Part;
use crate::bits::magnitude;

/// What a selection tells the next one of the same tensors: where it ended. It changes how long that one takes, never what it
/// selects.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Hint {
    /// The smallest magnitude selected; 0 when nothing is known.
    threshold: f32,
    /// How far under it the next one may lie, as a share of it.
    margin: f32,
    /// What it holds for.
    elements: usize,
    k: usize,
}

/// How far under the last step's threshold the next one is looked for, as a share of it: as long as nothing is known of how it
/// moves, and at least and at most. A wide margin costs candidates, one that is too narrow another pass.
const FIRST: f32 = 0.05;
const LEAST: f32 = 0.01;
const MOST: f32 = 0.2;

impl Hint {
    /// Knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of the bits of the smallest magnitude selected, if `k` were.
    pub(super) fn set(&mut self, threshold: Option<u32>, elements: usize, k: usize) {
        let threshold = f32::from_bits(threshold.unwrap_or(0));
        let change = (threshold - self.threshold).abs() / threshold;
        let comparable = self.is_for(elements, k) && change.is_finite();
        let margin = if comparable { (4.0 * change).clamp(LEAST, MOST) } else { FIRST };
        *self = Self { threshold, margin, elements, k };
    }

    /// A bound for the next selection, if it is a like one.
    pub(super) fn bound(&self, elements: usize, k: usize) -> Option<u32> {
        self.is_for(elements, k).then(|| magnitude(self.threshold * (1.0 - self.margin)).max(1))
    }

    fn is_for(&self, elements: usize, k: usize) -> bool {
        self.threshold > 0.0 && (self.elements, self.k) == (elements, k)
    }
}

/// Up to here every value that is not zero is a candidate.
const SMALL: usize = 4096;

/// A bound that `k` of the `total` values in `parts` and four deviations more reach, by a sample of single values.
pub(super) fn sampled_bound(parts: &[Part<'_>], total: usize, k: usize, sample: &mut Vec<u32>) -> u32 {
    if total <= SMALL || k == 0 {
        return 1;
    }
    let drawn = ((64.0 * total as f64 / k as f64) as usize).clamp(4096, 32_768).min(total / 4);
    let expected = k as f64 * drawn as f64 / total as f64;
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    if rank >= drawn {
        return 1;
    }
    sample.clear();
    let stratum = total / drawn;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut part, mut start) = (0, 0);
    for first in (0..drawn).map(|i| i * stratum) {
        // One place a stratum, jittered so that periodic data do not line up with the strata.
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let place = first + (state >> 33) as usize % stratum;
        while place - start >= parts[part].len() {
            start += parts[part].len();
            part += 1;
        }
        sample.push(magnitude(parts[part].value(place - start)));
    }
    let place = drawn - rank;
    (*sample.select_nth_unstable(place).1).max(1)
}
