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
    clip: Option<f32>,
    keys: Generator,
}

impl Ternary {
    /// Without clipping. Give ranks different seeds, so that their errors average out.
    pub fn new(seed: u64) -> Self {
        Self { clip: None, keys: Generator::new(seed) }
    }

    /// Clips values to `deviations` standard deviations (2.5 in the paper). The deviation is that from zero,
    /// the root of the mean square. For gradients with mean 0 it is the paper's, and nearly equal values are
    /// not clipped to nothing. No clipping unless `deviations` is positive.
    pub fn clipped(seed: u64, deviations: f32) -> Self {
        Self { clip: (deviations > 0.0 && deviations.is_finite()).then_some(deviations), ..Self::new(seed) }
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
        let mut scale = largest(values);
        if let Some(deviations) = self.clip {
            let bound = f64::from(deviations) * root_mean_square(values);
            // Values above the scale become the scale with certainty, so clipping needs no copy.
            scale = if bound < f64::from(scale) { bound as f32 } else { scale };
        }
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
        // The same as for one level of QSGD by the largest magnitude.
        self.clip.is_none() && count <= 8
    }
}

state_of_keys!(Ternary, b"tern");

fn root_mean_square(values: &[f32]) -> f64 {
    (codes::sum_of_squares(Level::best(), values) / values.len().max(1) as f64).sqrt()
}
