//! Encoded values: their checks, and decoding.

use std::ops::Range;

use half::{bf16, f16};

use super::format::qsgd_width;
use super::half_precision::read;
use super::{BLOCK, Format, unpack_block};
use crate::error::check_length;
use crate::simd::{Level, codes, pack::packed_bytes};
use crate::{Error, SparseView};

/// Encoded values that have been checked: decoding can't fail and gives finite numbers.
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    count: usize,
    format: Format,
    body: Body<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Body<'a> {
    F32(&'a [u8]),
    F16(&'a [u8]),
    Bf16(&'a [u8]),
    Sign { scale: f32, bits: &'a [u8] },
    Columns { means: &'a [[u8; 4]], pairs: bool, bits: &'a [u8] },
    TwoBit { levels: [f32; 2], codes: &'a [u8] },
    Ternary { scale: f32, codes: &'a [u8] },
    Qsgd { levels: u8, buckets: Buckets<'a> },
    MinMax { buckets: Buckets<'a> },
}

/// Buckets of equal length, except the last. Each has a head of some bytes before its codes.
#[derive(Debug, Clone, Copy)]
struct Buckets<'a> {
    bucket: usize,
    head: usize,
    width: usize,
    bytes: &'a [u8],
}

impl<'a> Encoded<'a> {
    /// Checks `bytes`, from any source, as `count` values of `format`. Cost: O(1), or O(buckets or columns);
    /// for floating-point formats all values are read.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a wrong length or an impossible parameter, [`Error::NonFinite`] for a scale
    /// or a value that is NaN or infinite, or a scale that would make a value so (with the index of the first
    /// value concerned, 0 for all).
    pub fn new(format: Format, count: usize, bytes: &'a [u8]) -> Result<Self, Error> {
        let body = match format {
            Format::F32 => Body::F32(plain(bytes, count, 4, |b| {
                f32::from_bits(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            })?),
            Format::F16 => {
                Body::F16(plain(bytes, count, 2, |b| f16::from_le_bytes([b[0], b[1]]).to_f32_const())?)
            }
            Format::Bf16 => {
                Body::Bf16(plain(bytes, count, 2, |b| bf16::from_le_bytes([b[0], b[1]]).to_f32_const())?)
            }
            Format::Sign => {
                let ([scale], bits) = scales(bytes)?;
                Body::Sign { scale, bits: exact(bits, packed_bytes(count, 1))? }
            }
            Format::SignColumns => columns(bytes, count, false)?,
            Format::SignPairs => columns(bytes, count, true)?,
            Format::TwoBit => {
                let (levels, codes) = scales(bytes)?;
                Body::TwoBit { levels, codes: exact(codes, packed_bytes(count, 2))? }
            }
            Format::Ternary => {
                let ([scale], codes) = scales(bytes)?;
                Body::Ternary { scale, codes: exact(codes, packed_bytes(count, 2))? }
            }
            Format::Qsgd => qsgd(bytes, count)?,
            Format::MinMax => min_max(bytes, count)?,
        };
        Ok(Self { count, format, body })
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The number of columns; 0 for formats without.
    pub(super) fn columns(&self) -> usize {
        if let Body::Columns { means, .. } = self.body { means.len() } else { 0 }
    }

    /// The number of levels of QSGD; 0 for others.
    pub(super) fn levels(&self) -> usize {
        if let Body::Qsgd { levels, .. } = self.body { levels.into() } else { 0 }
    }

    /// Writes the values.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `values` is unchanged then.
    pub fn decode_into(&self, values: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, values.len())?;
        values.chunks_mut(BLOCK).enumerate().for_each(|(number, values)| self.decode_block(number, values));
        Ok(())
    }

    /// `dense += factor * values`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `dense` is unchanged then.
    pub fn add_to(&self, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, dense.len())?;
        self.add_range(factor, 0..self.count, dense);
        Ok(())
    }

    /// `dense += values`, for values that were subtracted before. The differences were rounded, so a sum may
    /// exceed the largest number by half a unit; it is clamped then.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `dense` is unchanged then.
    pub(super) fn put_back_to(&self, dense: &mut [f32]) -> Result<(), Error> {
        self.add_to(1.0, dense)?;
        dense.iter_mut().for_each(|value| *value = value.clamp(f32::MIN, f32::MAX));
        Ok(())
    }

    /// [`add_to`](Self::add_to) for a range that starts at a block.
    pub(super) fn add_range(&self, factor: f32, range: Range<usize>, dense: &mut [f32]) {
        self.add_part(factor, range.start, &mut dense[range.clone()]);
    }

    /// [`add_to`](Self::add_to) for the elements of a part that starts at `first`, the start of a block.
    pub(crate) fn add_part(&self, factor: f32, first: usize, part: &mut [f32]) {
        let mut values = [0.0; BLOCK];
        for (number, part) in part.chunks_mut(BLOCK).enumerate() {
            let values = &mut values[..part.len()];
            self.decode_block(first / BLOCK + number, values);
            codes::add_scaled(Level::best(), part, factor, values);
        }
    }

    /// Writes the values of a sparse vector with these indices. The indices matter only for formats with
    /// columns.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `values` is unchanged then.
    pub fn decode_sparse(&self, indices: &[u32], values: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, indices.len())?;
        check_length(self.count, values.len())?;
        self.decode_part(0, indices, values);
        Ok(())
    }

    /// [`decode_sparse`](Self::decode_sparse) for entries from number `first` on, the start of a block, up to
    /// the end of one or the last.
    pub(crate) fn decode_part(&self, first: usize, indices: &[u32], values: &mut [f32]) {
        let blocks = (first / BLOCK..).zip(values.chunks_mut(BLOCK));
        let Body::Columns { means, pairs, bits } = self.body else {
            blocks.for_each(|(number, values)| self.decode_block(number, values));
            return;
        };
        let columns = means.len() / if pairs { 2 } else { 1 };
        let mut codes = [0; BLOCK];
        for ((number, values), indices) in blocks.zip(indices.chunks(BLOCK)) {
            let codes = &mut codes[..values.len()];
            unpack_block(1, bits, number, codes);
            for ((value, &index), &code) in values.iter_mut().zip(indices).zip(&*codes) {
                *value = column_value(means, pairs, index as usize % columns, code);
            }
        }
    }

    /// Like [`decode_sparse`](Self::decode_sparse), then `dense[index] += factor * value`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `dense` is unchanged then.
    pub fn add_entries_to(
        &self,
        factor: f32,
        entries: SparseView<'_>,
        dense: &mut [f32],
    ) -> Result<(), Error> {
        check_length(entries.dim(), dense.len())?;
        let mut values = vec![0.0; self.count];
        self.decode_sparse(entries.indices(), &mut values)?;
        let entries = entries.indices().iter().zip(values);
        entries.for_each(|(&index, value)| dense[index as usize] += factor * value);
        Ok(())
    }

    /// Decodes block `number`; `values` has the block's length.
    pub(super) fn decode_block(&self, number: usize, values: &mut [f32]) {
        let level = Level::best();
        let first = number * BLOCK;
        let mut space = [0; BLOCK];
        let codes = &mut space[..values.len()];
        match self.body {
            Body::F32(bytes) => {
                let bytes = bytes[4 * first..].as_chunks().0;
                values.iter_mut().zip(bytes).for_each(|(value, &bytes)| *value = f32::from_le_bytes(bytes));
            }
            Body::F16(bytes) => read(&bytes[2 * first..], values, f16::from_le_bytes),
            Body::Bf16(bytes) => read(&bytes[2 * first..], values, bf16::from_le_bytes),
            Body::Sign { scale, bits } => {
                unpack_block(1, bits, number, codes);
                codes::sign_values(level, codes, scale, values);
            }
            Body::Columns { means, pairs, bits } => {
                unpack_block(1, bits, number, codes);
                let columns = means.len() / if pairs { 2 } else { 1 };
                for ((i, value), &code) in values.iter_mut().enumerate().zip(&*codes) {
                    *value = column_value(means, pairs, (first + i) % columns, code);
                }
            }
            Body::TwoBit { levels, codes: packed } => {
                unpack_block(2, packed, number, codes);
                codes::two_bit_values(level, codes, levels, values);
            }
            Body::Ternary { scale, codes: packed } => {
                unpack_block(2, packed, number, codes);
                codes::ternary_values(level, codes, scale, values);
            }
            Body::Qsgd { levels, buckets } => {
                let ([norm], packed, within) = buckets.of(first);
                unpack_block(buckets.width, packed, within, codes);
                codes::qsgd_values(level, codes, norm, levels, values);
            }
            Body::MinMax { buckets } => {
                let ([smallest, step], packed, within) = buckets.of(first);
                unpack_block(8, packed, within, codes);
                codes::min_max_values(level, codes, smallest, step, values);
            }
        }
    }
}

impl<'a> Buckets<'a> {
    /// The head and the codes of the bucket of value `first`, and which block of the bucket starts there.
    fn of<const N: usize>(&self, first: usize) -> ([f32; N], &'a [u8], usize) {
        let (number, within) = (first / self.bucket, first % self.bucket);
        let bytes = &self.bytes[number * (self.head + packed_bytes(self.bucket, self.width))..];
        let (head, packed) = bytes.split_at(self.head);
        (std::array::from_fn(|i| read_f32(&head[4 * i..])), packed, within / BLOCK)
    }

    /// Checks the total length.
    fn check(self, count: usize) -> Result<Self, Error> {
        let length = count.div_ceil(self.bucket).checked_mul(self.head);
        let length = length.and_then(|heads| heads.checked_add(packed_bytes(count, self.width)));
        exact(self.bytes, length.unwrap_or(usize::MAX))?;
        Ok(self)
    }
}

fn column_value(means: &[[u8; 4]], pairs: bool, column: usize, code: u8) -> f32 {
    let place = if pairs { 2 * column + usize::from(code) } else { column };
    let mean = f32::from_le_bytes(means[place]);
    if code == 0 { mean } else { -mean }
}

fn read_f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn exact(bytes: &[u8], expected: usize) -> Result<&[u8], Error> {
    if bytes.len() == expected {
        Ok(bytes)
    } else {
        Err(Error::Malformed { what: "bytes of encoded values", expected, found: bytes.len() })
    }
}

fn head(bytes: &[u8], expected: usize) -> Result<(&[u8], &[u8]), Error> {
    let short = Error::Malformed { what: "bytes of encoded values", expected, found: bytes.len() };
    bytes.split_at_checked(expected).ok_or(short)
}

/// Floating-point numbers of `size` bytes, all finite.
fn plain(bytes: &[u8], count: usize, size: usize, read: impl Fn(&[u8]) -> f32) -> Result<&[u8], Error> {
    exact(bytes, count.saturating_mul(size))?;
    let mut values = bytes.chunks_exact(size).map(read).enumerate();
    match values.find(|(_, value)| !value.is_finite()) {
        Some((index, value)) => Err(Error::NonFinite { index, value }),
        None => Ok(bytes),
    }
}

fn check_scale(value: f32, index: usize) -> Result<f32, Error> {
    if value.is_finite() { Ok(value) } else { Err(Error::NonFinite { index, value }) }
}

/// Splits off the scales.
fn scales<const N: usize>(bytes: &[u8]) -> Result<([f32; N], &[u8]), Error> {
    let (head, rest) = head(bytes, 4 * N)?;
    let mut scales = [0.0; N];
    for (scale, bytes) in scales.iter_mut().zip(head.chunks_exact(4)) {
        *scale = check_scale(read_f32(bytes), 0)?;
    }
    Ok((scales, rest))
}

fn read_u32(bytes: &[u8]) -> usize {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

fn columns(bytes: &[u8], count: usize, pairs: bool) -> Result<Body<'_>, Error> {
    let (start, rest) = head(bytes, 4)?;
    let columns = read_u32(start);
    if columns == 0 {
        return Err(Error::Malformed { what: "columns", expected: 1, found: 0 });
    }
    let (means, bits) = head(rest, columns.saturating_mul(if pairs { 8 } else { 4 }))?;
    let means = means.as_chunks().0;
    for (place, &mean) in means.iter().enumerate() {
        check_scale(f32::from_le_bytes(mean), if pairs { place / 2 } else { place })?;
    }
    Ok(Body::Columns { means, pairs, bits: exact(bits, packed_bytes(count, 1))? })
}

fn check_bucket(bucket: usize) -> Result<usize, Error> {
    if bucket > 0 && bucket.is_multiple_of(BLOCK) {
        Ok(bucket)
    } else {
        Err(Error::Malformed {
            what: "values in a bucket, in blocks of 512,",
            expected: BLOCK,
            found: bucket,
        })
    }
}

/// Bytes of a QSGD message before its buckets.
pub(super) const QSGD_HEAD_BYTES: usize = 8;

/// The bucket length and the number of levels of a QSGD message, and the bytes after them.
pub(super) fn qsgd_head(bytes: &[u8]) -> Result<(usize, u8, &[u8]), Error> {
    let (start, rest) = head(bytes, QSGD_HEAD_BYTES)?;
    let (bucket, levels) = (check_bucket(read_u32(start))?, read_u32(&start[4..]));
    if levels == 0 || levels > 127 {
        return Err(Error::Malformed { what: "levels", expected: 127, found: levels });
    }
    Ok((bucket, levels as u8, rest))
}

fn qsgd(bytes: &[u8], count: usize) -> Result<Body<'_>, Error> {
    let (bucket, levels, rest) = qsgd_head(bytes)?;
    let buckets = Buckets { bucket, head: 4, width: qsgd_width(levels), bytes: rest }.check(count)?;
    // A valid code is at most twice the levels; the width has room for larger ones.
    let most = (1_i32 << buckets.width) - 1 - i32::from(levels);
    for first in (0..count).step_by(bucket) {
        let ([norm], ..) = buckets.of(first);
        check_scale(norm, first)?;
        check_scale(most.max(i32::from(levels)) as f32 * codes::qsgd_step(norm, levels), first).or_else(
            |error| {
                // Only codes that no encoder writes would be too large, so look for one.
                let within = codes_within(&buckets, first, count, levels);
                if within { Ok(norm) } else { Err(error) }
            },
        )?;
    }
    Ok(Body::Qsgd { levels, buckets })
}

/// Whether all codes of a bucket are at most twice the levels.
fn codes_within(buckets: &Buckets<'_>, first: usize, count: usize, levels: u8) -> bool {
    let length = buckets.bucket.min(count - first);
    let mut space = [0; BLOCK];
    (0..length).step_by(BLOCK).all(|block| {
        let ([_], packed, within) = buckets.of::<1>(first + block);
        let codes = &mut space[..BLOCK.min(length - block)];
        unpack_block(buckets.width, packed, within, codes);
        codes.iter().all(|&code| code <= 2 * levels)
    })
}

fn min_max(bytes: &[u8], count: usize) -> Result<Body<'_>, Error> {
    let (start, rest) = head(bytes, 4)?;
    let bucket = check_bucket(read_u32(start))?;
    let buckets = Buckets { bucket, head: 8, width: 8, bytes: rest }.check(count)?;
    for first in (0..count).step_by(bucket) {
        let ([smallest, step], ..) = buckets.of(first);
        check_scale(smallest, first)?;
        check_scale(codes::min_max_point(smallest, step, 255), first)?;
    }
    Ok(Body::MinMax { buckets })
}
