//! 8 bits: 256 points between the smallest and the largest value of a bucket.

use super::qsgd::whole_blocks;
use super::{BLOCK, Bucketed, Format, Quantiser, encode_buckets, pack_values, unpack_block};
use crate::Error;
use crate::simd::pack::packed_bytes;
use crate::simd::{Level, codes};

/// Quantises to the nearest of 256 equidistant points: a byte a value, and 8 a bucket. The error is at most
/// half a distance plus the rounding of `f32`. Cost: one pass.
#[derive(Debug, Clone, Copy)]
pub struct MinMax {
    bucket: u32,
}

impl MinMax {
    /// The bucket length is rounded up to a multiple of 512.
    pub fn new(bucket: u32) -> Self {
        Self { bucket: whole_blocks(bucket) }
    }
}

impl Default for MinMax {
    fn default() -> Self {
        Self::new(BLOCK as u32)
    }
}

impl Quantiser for MinMax {
    fn format(&self) -> Format {
        Format::MinMax
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        4 + 8 * count.div_ceil(self.bucket()) + count
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        encode_buckets(self, values, bytes)
    }

    fn contracts(&self, count: usize, _: bool) -> bool {
        // An error is at most half a step. The extremes are 255 steps apart, so their squares add up to at
        // least 255^2 / 2 steps squared.
        count.min(self.bucket()) <= 2 * 255 * 255
    }
}

impl Bucketed for MinMax {
    fn bucket(&self) -> usize {
        self.bucket as usize
    }

    fn head_bytes(&self) -> usize {
        4
    }

    fn begin(&mut self, head: &mut [u8]) {
        head.copy_from_slice(&self.bucket.to_le_bytes());
    }

    fn bucket_bytes(&self, count: usize) -> usize {
        8 + packed_bytes(count, 8)
    }

    fn encode_bucket(&self, _: usize, values: &[f32], bytes: &mut [u8]) {
        let level = Level::best();
        let (smallest, largest) = codes::extremes(level, values);
        let mut step = largest / 255.0 - smallest / 255.0;
        if !codes::min_max_point(smallest, step, 255).is_finite() {
            // The step was rounded up, and the last point would overflow: use a slightly smaller step.
            step *= 1.0 - f32::EPSILON;
        }
        let (head, packed) = bytes.split_at_mut(8);
        head[..4].copy_from_slice(&smallest.to_le_bytes());
        head[4..].copy_from_slice(&step.to_le_bytes());
        pack_values(8, values, packed, |_, values, out| {
            if step > 0.0 { codes::min_max_codes(level, values, smallest, step, out) } else { out.fill(0) }
        });
    }

    fn decode_bucket(&self, bytes: &[u8], values: &mut [f32]) {
        let (head, packed) = bytes.split_at(8);
        let number = |at: usize| f32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (smallest, step) = (number(0), number(4));
        let mut codes = [0; BLOCK];
        for (number, values) in values.chunks_mut(BLOCK).enumerate() {
            let codes = &mut codes[..values.len()];
            unpack_block(8, packed, number, codes);
            codes::min_max_values(Level::best(), codes, smallest, step, values);
        }
    }
}
