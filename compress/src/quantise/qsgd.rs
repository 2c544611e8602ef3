//! QSGD (Alistarh et al., 2017): one of a few levels of a bucket's norm, rounded at random.

use super::format::qsgd_width;
use super::{
    BLOCK, Bucketed, Format, Quantiser, encode_buckets, largest, pack_values, state_of_keys, unpack_block,
};
use crate::Error;
use crate::generator::Generator;
use crate::simd::pack::packed_bytes;
use crate::simd::{Level, codes};

/// The norm that a bucket's values are divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Norm {
    /// The Euclidean norm: the bounds of the paper hold.
    #[default]
    Euclidean,
    /// The largest magnitude: less variance with few levels, but more non-zero values.
    Largest,
}

/// Quantises to `norm * sign(v) * level / s` with a level of 0 to `s`, in 2 bits (`s` = 1), 4 bits (`s` up to
/// 7) or 8 bits (`s` up to 127), and 4 bytes a bucket. The paper's Elias code, which pays if most levels are
/// 0, is in [`elias`](super::elias).
///
/// Unbiased, up to roundings of 2^-17 of a level. For `d` values with norm `N`, the mean squared error is at
/// most `min(d / s^2, sqrt(d) / s) N^2` with the Euclidean norm (the paper's Lemma 3.1). With the other norm
/// it is at most `d / (4 s^2)` times the largest value squared. Cost: one pass.
#[derive(Debug, Clone)]
pub struct Qsgd {
    levels: u8,
    bucket: u32,
    norm: Norm,
    keys: Generator,
    key: [u32; 2],
}

impl Qsgd {
    /// `levels` are clamped to 1 to 127, and the bucket length is rounded up to a multiple of 512. Give ranks
    /// different seeds, so that their errors average out.
    pub fn new(levels: u8, bucket: u32, norm: Norm, seed: u64) -> Self {
        let bucket = whole_blocks(bucket);
        Self { levels: levels.clamp(1, 127), bucket, norm, keys: Generator::new(seed), key: [0; 2] }
    }

    fn width(&self) -> usize {
        qsgd_width(self.levels)
    }

    pub(super) fn set_keys(&mut self, keys: Generator) {
        self.keys = keys;
    }
}

/// The bucket length in use: a multiple of 512, at least 512.
pub(super) fn whole_blocks(bucket: u32) -> u32 {
    let block = BLOCK as u32;
    (bucket.max(1).div_ceil(block)).min(u32::MAX / block) * block
}

impl Quantiser for Qsgd {
    fn format(&self) -> Format {
        Format::Qsgd
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        8 + 4 * count.div_ceil(self.bucket()) + packed_bytes(count, self.width())
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        encode_buckets(self, values, bytes)
    }

    fn contracts(&self, count: usize, _: bool) -> bool {
        // In units of a level, a magnitude `u` below 1 has the variance `u - u^2`, others have at most 1/4.
        let (values, levels) = (count.min(self.bucket()), usize::from(self.levels));
        match self.norm {
            // The squares add up to `s^2`. The worst case is equal values.
            Norm::Euclidean => values < 4 * levels * levels,
            // No error is larger than a level, the largest value over `s`. With one level: the largest value
            // adds 1 to the squares and has no variance, and `u - u^2` exceeds `u^2` by 1/8 at most, at 1/4.
            Norm::Largest => levels > 1 || values <= 8,
        }
    }
}

impl Bucketed for Qsgd {
    fn bucket(&self) -> usize {
        self.bucket as usize
    }

    fn head_bytes(&self) -> usize {
        8
    }

    fn begin(&mut self, head: &mut [u8]) {
        head[..4].copy_from_slice(&self.bucket.to_le_bytes());
        head[4..].copy_from_slice(&u32::from(self.levels).to_le_bytes());
        self.key = self.keys.next_key();
    }

    fn bucket_bytes(&self, count: usize) -> usize {
        4 + packed_bytes(count, self.width())
    }

    fn encode_bucket(&self, first: usize, values: &[f32], bytes: &mut [u8]) {
        let level = Level::best();
        let norm = match self.norm {
            // If the norm overflows, the largest f32 serves: no value exceeds it.
            Norm::Euclidean => (codes::sum_of_squares(level, values).sqrt() as f32).min(f32::MAX),
            Norm::Largest => largest(values),
        };
        let (head, packed) = bytes.split_at_mut(4);
        head.copy_from_slice(&norm.to_le_bytes());
        pack_values(self.width(), values, packed, |within, values, out| {
            if norm > 0.0 {
                codes::qsgd_codes(level, values, norm, self.levels, self.key, (first + within) as u32, out);
            } else {
                out.fill(self.levels);
            }
        });
    }

    fn decode_bucket(&self, bytes: &[u8], values: &mut [f32]) {
        let (head, packed) = bytes.split_at(4);
        let norm = f32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut codes = [0; BLOCK];
        for (number, values) in values.chunks_mut(BLOCK).enumerate() {
            let codes = &mut codes[..values.len()];
            unpack_block(self.width(), packed, number, codes);
            codes::qsgd_values(Level::best(), codes, norm, self.levels, values);
        }
    }
}

state_of_keys!(Qsgd, b"qsgd");
