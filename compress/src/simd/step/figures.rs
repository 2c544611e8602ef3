//! The figures from which a message's scales are computed.

use super::{BLOCK, Code, LANES, Row};

/// The figures for a message's scales. Those of magnitudes up to the threshold are first, those above it
/// second; with one bit all are first. Public in a private module, because the signature of a hidden method
/// contains it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Summed apart: as the difference of two sums, a small one would lose its bits to a large one.
    pub(crate) sums: [f64; 2],
    pub(crate) large: usize,
    /// The smallest magnitude above 0 of all values, and of those above the threshold; infinite if there are
    /// none, or if means are wanted.
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

    /// Adds the magnitudes of a block, given as values and as `rows` of sums: of those up to the threshold,
    /// and of those above it. If a value is not finite, one of the rows is not either: adds nothing then and
    /// returns false.
    #[inline(always)]
    pub(super) fn add_magnitudes<C: Code>(
        &mut self,
        values: &[f32; BLOCK],
        rows: &[Row; 2],
        code: &C,
    ) -> bool {
        let used = if C::LARGE { 2 } else { 1 };
        let rows = &rows[..used];
        let bits = |v: &f32| (v.to_bits() & 0x7fff_ffff) as i32;
        let largest = |row: &Row| row.iter().fold(0, |largest: i32, v| largest.max(bits(v)));
        if rows.iter().all(|row| largest(row) < 0x7f80_0000) {
            for (sums, row) in self.sums.iter_mut().zip(rows) {
                sums.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v));
            }
            return true;
        }
        // Or the values are finite, but so large that the sum of eight is not.
        let finite = values.iter().all(|v| v.is_finite());
        if finite {
            for (v, lane) in values.iter().map(|v| v.abs()).zip((0..LANES).cycle()) {
                self.sums[usize::from(v > code.threshold())][lane] += f64::from(v);
            }
        }
        finite
    }
}
