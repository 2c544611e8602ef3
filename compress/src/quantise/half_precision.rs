//! 16 bits: the nearest number of a half-precision format.

use half::{bf16, f16};

use super::{BLOCK, Bucketed, Format, Quantiser, encode_buckets};
use crate::Error;
use crate::dense::{Element, from_f32_saturating, to_f32};

/// Quantises to 2 bytes a value, rounded to nearest. A value too large for the format becomes its largest
/// number; error feedback sends the rest later. With f16 that never ends if gradients stay above 65504:
/// prefer bf16 for such. Cost: one pass.
#[derive(Debug, Clone, Copy)]
pub struct HalfPrecision {
    brain: bool,
}

impl HalfPrecision {
    /// IEEE 754 binary16: 11 significant bits, to 65504.
    pub fn f16() -> Self {
        Self { brain: false }
    }

    /// bfloat16: 8 significant bits, the range of `f32`.
    pub fn bf16() -> Self {
        Self { brain: true }
    }
}

impl Quantiser for HalfPrecision {
    fn format(&self) -> Format {
        if self.brain { Format::Bf16 } else { Format::F16 }
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        2 * count
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        encode_buckets(self, values, bytes)
    }

    fn contracts(&self, _: usize, _: bool) -> bool {
        true
    }
}

impl Bucketed for HalfPrecision {
    fn bucket(&self) -> usize {
        BLOCK
    }

    fn head_bytes(&self) -> usize {
        0
    }

    fn begin(&mut self, _: &mut [u8]) {}

    fn bucket_bytes(&self, count: usize) -> usize {
        2 * count
    }

    fn encode_bucket(&self, _: usize, values: &[f32], bytes: &mut [u8]) {
        if self.brain {
            write(values, bytes, bf16::to_le_bytes);
        } else {
            write(values, bytes, f16::to_le_bytes);
        }
    }

    fn decode_bucket(&self, bytes: &[u8], values: &mut [f32]) {
        if self.brain {
            read(bytes, values, bf16::from_le_bytes);
        } else {
            read(bytes, values, f16::from_le_bytes);
        }
    }
}

fn write<E: Element>(values: &[f32], bytes: &mut [u8], to_bytes: fn(E) -> [u8; 2]) {
    let mut space = [E::default(); BLOCK];
    let rounded = &mut space[..values.len()];
    // Lengths agree, and the values are finite.
    let _ = from_f32_saturating(values, rounded);
    bytes.as_chunks_mut().0.iter_mut().zip(&*rounded).for_each(|(bytes, &value)| *bytes = to_bytes(value));
}

/// Decodes at most a block of finite numbers.
pub(super) fn read<E: Element>(bytes: &[u8], values: &mut [f32], from_bytes: fn([u8; 2]) -> E) {
    let mut space = [E::default(); BLOCK];
    let numbers = &mut space[..values.len()];
    numbers.iter_mut().zip(bytes.as_chunks().0).for_each(|(number, &bytes)| *number = from_bytes(bytes));
    // Lengths agree, and the numbers are finite.
    let _ = to_f32(numbers, values);
}
