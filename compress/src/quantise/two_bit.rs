//! Two bits: the sign times a small or a large magnitude (Aji and Heafield, 2017, section 5.4).
//!
//! A threshold separates small from large magnitudes. Each message sets the next threshold to the middle of
//! its two means, which is Lloyd's iteration for the best four levels. The first threshold is the mean
//! magnitude of a sample.

use super::deferred::encode_in_one_pass;
use super::sign::finite_or;
use super::{Format, Magnitude, OnePass, Quantiser};
use crate::Error;
use crate::simd::Level;
use crate::simd::pack::packed_bytes;
use crate::simd::step::{Figures, Step, step_two_bit};
use crate::state::{Fault, Reader, State, Writer};

/// Values in the sample for the first threshold.
const SAMPLE: usize = 4096;

/// Quantises to two bits and two magnitudes: `8 + n / 4` bytes. Keeps the threshold from message to message.
#[derive(Debug, Clone, Copy, Default)]
pub struct TwoBit {
    magnitude: Magnitude,
    threshold: Option<f32>,
}

impl TwoBit {
    /// Uses this magnitude for the small and for the large values.
    pub fn new(magnitude: Magnitude) -> Self {
        Self { magnitude, threshold: None }
    }

    /// The magnitude above which values are large in the next message; `None` before the first message.
    pub fn threshold(&self) -> Option<f32> {
        self.threshold
    }
}

impl Quantiser for TwoBit {
    fn format(&self) -> Format {
        Format::TwoBit
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        8 + packed_bytes(count, 2)
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        encode_in_one_pass(self, values, bytes)
    }

    fn contracts(&self, count: usize, may_be_zero: bool) -> bool {
        // A zero becomes plus or minus the smallest magnitude of the others.
        self.magnitude == Magnitude::Mean || !may_be_zero || count <= 1
    }
}

impl OnePass for TwoBit {
    fn head_bytes(&self) -> usize {
        8
    }

    fn threshold_of(&self, r: &[f32], g: &[f32]) -> f32 {
        if let Some(threshold) = self.threshold {
            return threshold;
        }
        let stride = r.len().div_ceil(SAMPLE).max(1);
        let sum = |i: usize| r[i] + g.get(i).copied().unwrap_or(0.0);
        let magnitudes = (0..r.len()).step_by(stride).map(|i| f64::from(sum(i).abs()));
        let mean = (magnitudes.sum::<f64>() / r.len().div_ceil(stride) as f64) as f32;
        finite_or(mean, 0.0)
    }

    fn write_scales(&mut self, figures: &Figures, count: usize, bytes: &mut [u8]) {
        let [small, large] = figures.sums;
        let mean = |sum: f64, count: usize| if count > 0 { (sum / count as f64) as f32 } else { 0.0 };
        let small = mean(small, count - figures.large);
        let large = if figures.large > 0 { mean(large, figures.large) } else { small };
        let levels = match self.magnitude {
            Magnitude::Mean => [small, large],
            Magnitude::Min => {
                // If no value is small, the smallest magnitude is a large one, and `small` stands for no
                // value.
                let small = finite_or(figures.smallest[0], 0.0);
                [small, finite_or(figures.smallest[1], small)]
            }
        };
        self.threshold = Some(0.5 * small + 0.5 * large);
        bytes[..4].copy_from_slice(&levels[0].to_le_bytes());
        bytes[4..8].copy_from_slice(&levels[1].to_le_bytes());
    }

    fn step(&self, step: Step<'_>, head: &[u8], threshold: f32) -> Result<Figures, usize> {
        let levels = head.as_chunks().0;
        let levels = std::array::from_fn(|i| levels.get(i).map_or(0.0, |&bytes| f32::from_le_bytes(bytes)));
        let means = self.magnitude == Magnitude::Mean;
        step_two_bit(Level::best(), step, levels, threshold, means)
    }
}

/// Saves the threshold of the next message.
impl State for TwoBit {
    fn kind(&self) -> [u8; 4] {
        *b"2bit"
    }

    fn shape(&self) -> Vec<u64> {
        Vec::new()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.u64(self.threshold.is_some().into());
        contents.f32s(&[self.threshold.unwrap_or(0.0)]);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        let (is_there, mut threshold) = (contents.u64()?, [0.0]);
        contents.f32s(&mut threshold)?;
        self.threshold = match is_there {
            0 => None,
            1 => Some(threshold[0]),
            _ => return Err(Fault::Contents { what: "a threshold is there or not" }.into()),
        };
        Ok(())
    }
}
