//! One bit: the sign times one magnitude for all values.
//!
//! With the mean, `|v|_1 / n`, it is the "sign + norm" of Vogels et al. (2019) and the global average of Aji
//! and Heafield (2017). With the smallest magnitude, it is the "min" of the latter and the threshold of Strom
//! (2015), which is for the values of a selection.

use super::deferred::encode_in_one_pass;
use super::{Format, OnePass, Quantiser};
use crate::Error;
use crate::simd::Level;
use crate::simd::pack::packed_bytes;
use crate::simd::step::{Figures, Step, step_one_bit};

/// The magnitude that represents several values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Magnitude {
    /// Their mean.
    #[default]
    Mean,
    /// The smallest that is not 0.
    Min,
}

/// Quantises to a sign bit and one magnitude: `4 + n / 8` bytes. Zero has a sign, too, and becomes plus or
/// minus the magnitude.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sign {
    magnitude: Magnitude,
}

impl Sign {
    /// Uses this magnitude.
    pub fn new(magnitude: Magnitude) -> Self {
        Self { magnitude }
    }
}

impl Quantiser for Sign {
    fn format(&self) -> Format {
        Format::Sign
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        4 + packed_bytes(count, 1)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        encode_in_one_pass(self, values, bytes)
    }

    fn contracts(&self, count: usize, may_be_zero: bool) -> bool {
        // A zero becomes plus or minus the smallest magnitude of the others.
        self.magnitude == Magnitude::Mean || !may_be_zero || count <= 1
    }
}

impl OnePass for Sign {
    fn head_bytes(&self) -> usize {
        4
    }

    fn threshold_of(&self, _: &[f32], _: &[f32]) -> f32 {
        0.0
    }

    fn write_scales(&mut self, figures: &Figures, count: usize, bytes: &mut [u8]) {
        let scale = match self.magnitude {
            Magnitude::Mean => (figures.sums[0] / count.max(1) as f64) as f32,
            Magnitude::Min => finite_or(figures.smallest[0], 0.0),
        };
        bytes[..4].copy_from_slice(&scale.to_le_bytes());
    }

    fn step(&self, step: Step<'_>, head: &[u8], _: f32) -> Result<Figures, usize> {
        let scale = head.first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
        step_one_bit(Level::best(), step, scale, self.magnitude == Magnitude::Mean)
    }
}

/// `value`, or `otherwise` if it is infinite.
pub(super) fn finite_or(value: f32, otherwise: f32) -> f32 {
    if value.is_finite() { value } else { otherwise }
}
