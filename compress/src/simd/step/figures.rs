//! The figures from which a message's scales are computed.

use super::{BLOCK, LANES, Row};

/// The figures for a message's scales: sums, counts and smallest magnitudes of all values (first) and, with
/// two bits, of those above the threshold (second). Public in a private module, because the signature of a
/// hidden method contains it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub(crate) sums: [f64; 2],
    pub(crate) large: usize,
    /// The smallest magnitudes above 0; infinite if there are none, or if means are wanted.
    pub(crate) smallest: [f32; 2],
}

/// Figures in progress: `f32` within a block, `f64` from block to block.
pub(super) struct Partial {
    sums: [[f64; LANES]; 2],
    pub(super) large: usize,
    pub(super) smallest: [Row; 2],
}

impl Partial {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { sums: [[0.0; LANES]; 2], large: 0, smallest: [[f32::INFINITY; LANES]; 2] }
    }

    #[inline(always)]
    pub(super) fn total(&self) -> Figures {
        Figures {
            sums: self.sums.map(|lanes| lanes.iter().sum()),
            large: self.large,
            smallest: self.smallest.map(|lanes| lanes.into_iter().fold(f32::INFINITY, f32::min)),
        }
    }

    /// Adds the magnitudes of a block, given as values and as sums by row. If a value is not finite, the row
    /// of sums is not either: adds nothing then and returns false.
    #[inline(always)]
    pub(super) fn add_magnitudes(&mut self, values: &[f32; BLOCK], magnitudes: &Row) -> bool {
        let largest =
            magnitudes.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32));
        if largest < 0x7f80_0000 {
            self.sums[0].iter_mut().zip(magnitudes).for_each(|(sum, &v)| *sum += f64::from(v));
            return true;
        }
        // Or the values are finite, but so large that the sum of eight is not.
        let finite = values.iter().all(|v| v.is_finite());
        if finite {
            values
                .iter()
                .zip((0..LANES).cycle())
                .for_each(|(v, lane)| self.sums[0][lane] += f64::from(v.abs()));
        }
        finite
    }

    /// Adds magnitudes above the threshold, given as values and as sums by row.
    #[inline(always)]
    pub(super) fn add_above(&mut self, values: &[f32; BLOCK], above: &Row, threshold: f32) {
        let largest = above.iter().fold(0, |largest: i32, v| largest.max(v.to_bits() as i32));
        if largest < 0x7f80_0000 {
            self.sums[1].iter_mut().zip(above).for_each(|(sum, &v)| *sum += f64::from(v));
        } else {
            let above = |v: &f32| f64::from(if v.abs() > threshold { v.abs() } else { 0.0 });
            values.iter().zip((0..LANES).cycle()).for_each(|(v, lane)| self.sums[1][lane] += above(v));
        }
    }
}
