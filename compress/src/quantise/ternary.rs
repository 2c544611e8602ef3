//! TernGrad (Wen et al., 2017): -1, 0 or 1 times the largest magnitude.

use super::{Format, Quantiser, largest, pack_values, state_of_keys};
use crate::Error;
use crate::bits::check_finite;
use crate::generator::Generator;
use crate::simd::pack::packed_bytes;
use crate::simd::{Level, codes};

/// Quantises to `s * sign(v)` with probability `|v| / s`, else 0, where `s` is the largest magnitude: `4 + n
/// / 4` bytes.
///
/// Unbiased up to 2^-24 of `s`; the variance of a value is `|v| (s - |v|)`. Clipping at `c` standard
/// deviations lowers `s` and biases the clipped values. Cost: three passes, one more with clipping.
#[derive(Debug, Clone)]
pub struct Ternary {
    clip: Clip,
    keys: Generator,
}

/// To what values are clipped.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Clip {
    No,
    /// So many standard deviations.
    Deviations(f32),
    /// Half of the largest magnitude.
    Half,
}

impl Ternary {
    /// Without clipping. Give ranks different seeds, so that their errors average out.
    pub fn new(seed: u64) -> Self {
        Self { clip: Clip::No, keys: Generator::new(seed) }
    }

    /// Clips values to `deviations` standard deviations (2.5 in the paper). The deviation is that from zero,
    /// the root of the mean square. For gradients with mean 0 it is the paper's, and nearly equal values are
    /// not clipped to nothing. No clipping unless `deviations` is positive.
    pub fn clipped(seed: u64, deviations: f32) -> Self {
        let is_clipped = deviations > 0.0 && deviations.is_finite();
        Self { clip: if is_clipped { Clip::Deviations(deviations) } else { Clip::No }, ..Self::new(seed) }
    }

    /// Clips values to half of the largest magnitude, for error feedback: no error exceeds that half, so
    /// residuals can't grow. Not in the paper, which has no feedback.
    pub fn halved(seed: u64) -> Self {
        Self { clip: Clip::Half, ..Self::new(seed) }
    }

    pub(super) fn set_keys(&mut self, keys: Generator) {
        self.keys = keys;
    }
}

impl Quantiser for Ternary {
    fn format(&self) -> Format {
        Format::Ternary
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        4 + packed_bytes(count, 2)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_finite(values)?;
        let largest = largest(values);
        // Values above the scale become the scale with certainty, so clipping needs no copy.
        let scale = match self.clip {
            Clip::No => largest,
            Clip::Deviations(deviations) => {
                let bound = f64::from(deviations) * root_mean_square(values);
                if bound < f64::from(largest) { bound as f32 } else { largest }
            }
            Clip::Half => 0.5 * largest,
        };
        bytes.resize(self.encoded_bytes(values.len()), 0);
        bytes[..4].copy_from_slice(&scale.to_le_bytes());
        let (level, key) = (Level::best(), self.keys.next_key());
        pack_values(2, values, &mut bytes[4..], |first, values, out| {
            if scale > 0.0 {
                codes::ternary_codes(level, values, scale, key, first as u32, out);
            } else {
                out.fill(0);
            }
        });
        Ok(())
    }

    fn contracts(&self, count: usize, _: bool) -> bool {
        match self.clip {
            // The same as for one level of QSGD by the largest magnitude.
            Clip::No => count <= 8,
            Clip::Deviations(_) => false,
            Clip::Half => true,
        }
    }
}

state_of_keys!(Ternary, b"tern");

fn root_mean_square(values: &[f32]) -> f64 {
    (codes::sum_of_squares(Level::best(), values) / values.len().max(1) as f64).sqrt()
}
