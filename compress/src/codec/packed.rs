//! Gaps in blocks of 128, each with as many bits as its widest gap needs: the widths, one byte a block, then
//! the blocks.
//!
//! The gap of an index is the number of places between it and the index before; the first index counts from
//! 0. Any gaps therefore give rising indices, and only the last index of a block is compared with the dense
//! length. If the gaps of a block are too narrow to pass 2^32, wrapping arithmetic gives the right end of the
//! block. Wider gaps are summed one by one.
//!
//! A block is packed as by the crate `bitpacking`: SIMD-BP128 (Lemire and Boytsov 2015), four lanes of 32
//! gaps. The rest, less than a block, is packed in plain order: gap `i` is in bits `width * i ..` of the
//! bytes read as one little-endian number.

use bitpacking::{BitPacker, BitPacker4x};

use super::header::malformed;
use crate::Error;
use crate::simd::{GAPS as BLOCK, Level, NARROW, measure_gaps, unpack_rising};

/// Replaces `widths` by the bits of the widest gap of each block.
pub(super) fn measure(indices: &[u32], widths: &mut Vec<u8>) {
    widths.clear();
    measure_gaps(Level::best(), indices, widths);
}

/// Bytes of the widths and the blocks.
pub(super) fn bytes(widths: &[u8], count: usize) -> usize {
    let lengths = (0..count).step_by(BLOCK).map(|first| BLOCK.min(count - first));
    widths.len() + lengths.zip(widths).map(|(length, &width)| block_bytes(length, width)).sum::<usize>()
}

/// The bytes of `count` indices on average, if they are at random among `places` elements of a longer vector,
/// whose first has the number `start`.
pub(super) fn usual_bytes(start: usize, places: usize, count: usize) -> f64 {
    let (blocks, rest) = (count / BLOCK, count % BLOCK);
    let absent = 1.0 - count as f64 / places.max(count).max(1) as f64;
    let bits = |gaps: usize| gaps as f64 * usual_width(absent, gaps);
    // The first gap counts from 0.
    let first = BLOCK.min(count);
    let of_start = f64::from(usize::BITS - start.leading_zeros()) * first as f64;
    let rise = (of_start - bits(first)).max(0.0);
    count.div_ceil(BLOCK) as f64 + (blocks as f64 * bits(BLOCK) + bits(rest) + rise) / 8.0
}

/// The bits of the widest of so many gaps on average, where a place is without an entry by the chance
/// `absent`: a gap has `m` places or more with the chance `absent^m`.
fn usual_width(absent: f64, gaps: usize) -> f64 {
    let (mut width, mut is_wide) = (0.0, absent);
    for _ in 0..u32::BITS {
        width += 1.0 - power(1.0 - is_wide, gaps);
        is_wide *= is_wide;
    }
    width
}

/// By multiplications alone, which have the same bits everywhere.
fn power(base: f64, exponent: usize) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        result *= if rest % 2 == 1 { square } else { 1.0 };
        square *= square;
        rest /= 2;
    }
    result
}

/// `widths` are those of the indices; `bytes` has the length that [`bytes`] returns.
pub(super) fn encode(indices: &[u32], widths: &[u8], bytes: &mut [u8]) {
    let packer = BitPacker4x::new();
    let (head, mut rest) = bytes.split_at_mut(widths.len());
    head.copy_from_slice(widths);
    let mut before = None;
    for (block, &width) in indices.chunks(BLOCK).zip(widths) {
        let (own, others) = rest.split_at_mut(block_bytes(block.len(), width));
        if block.len() == BLOCK {
            packer.compress_strictly_sorted(before, block, own, width);
        } else {
            pack_rest(gaps(before, block), width, own);
        }
        (before, rest) = (block.last().copied(), others);
    }
}

/// Replaces `indices` by `count` decoded ones, without zeroing them first. The widths bound the count: 128
/// indices a byte.
pub(super) fn decode(packed: &[u8], count: usize, dim: usize, indices: &mut Vec<u32>) -> Result<(), Error> {
    let mut blocks = Blocks::new(packed, count, dim)?;
    indices.resize(count, 0);
    blocks.decode(indices)
}

/// Decodes indices some blocks at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks<'a> {
    /// Of the blocks that are left.
    widths: &'a [u8],
    rest: &'a [u8],
    /// The smallest that the next index may be.
    next: u64,
    dim: usize,
}

impl<'a> Blocks<'a> {
    /// Of `count` indices. Checks widths and length.
    pub(super) fn new(packed: &'a [u8], count: usize, dim: usize) -> Result<Self, Error> {
        let blocks = count.div_ceil(BLOCK);
        let Some((widths, rest)) = packed.split_at_checked(blocks) else {
            return Err(malformed("widths of blocks", blocks, packed.len()));
        };
        if let Some(&width) = widths.iter().find(|&&width| width > 32) {
            return Err(malformed("bits a gap, at most", 32, width.into()));
        }
        let expected = bytes(widths, count);
        if packed.len() != expected {
            return Err(malformed("bytes of packed indices", expected, packed.len()));
        }
        Ok(Self { widths, rest, next: 0, dim })
    }

    /// Decodes the next indices: whole blocks, or all that are left.
    pub(super) fn decode(&mut self, indices: &mut [u32]) -> Result<(), Error> {
        let level = Level::best();
        let (widths, later) = self.widths.split_at(indices.len().div_ceil(BLOCK));
        for (block, &width) in indices.chunks_mut(BLOCK).zip(widths) {
            let (own, others) = self.rest.split_at(block_bytes(block.len(), width));
            let next = self.next;
            self.next = match <&mut [u32; BLOCK]>::try_from(&mut *block) {
                Ok(block) if usize::from(width) <= NARROW => {
                    unpack_rising(level, next as u32, width.into(), self.rest, block);
                    // The gaps of the block sum to less than 2^32.
                    next + u64::from(block[BLOCK - 1].wrapping_sub(next as u32)) + 1
                }
                _ => {
                    unpack_gaps(width, own, block);
                    sum(next, block)
                }
            };
            self.rest = others;
            if self.next > self.dim as u64 {
                return Err(malformed("elements up to an index, at most", self.dim, self.next as usize));
            }
        }
        self.widths = later;
        Ok(())
    }
}

fn block_bytes(count: usize, width: u8) -> usize {
    (count * usize::from(width)).div_ceil(8)
}

fn gaps(before: Option<u32>, block: &[u32]) -> impl Iterator<Item = u32> {
    let next = before.map_or(0, |before| before.wrapping_add(1));
    let nexts = std::iter::once(next).chain(block.iter().map(|index| index.wrapping_add(1)));
    block.iter().zip(nexts).map(|(index, next)| index.wrapping_sub(next))
}

/// Unpacks the gaps of a block.
fn unpack_gaps(width: u8, bytes: &[u8], block: &mut [u32]) {
    if block.len() == BLOCK {
        BitPacker4x::new().decompress(bytes, block, width);
        return;
    }
    let (mut waiting, mut held, mut bytes) = (0_u64, 0, bytes.iter());
    for gap in block {
        while held < width {
            waiting |= u64::from(bytes.next().copied().unwrap_or(0)) << held;
            held += 8;
        }
        *gap = (waiting & ((1 << width) - 1)) as u32;
        (waiting, held) = (waiting >> width, held - width);
    }
}

/// Turns gaps into indices from `next` on and returns where they end, modulo 2^32.
fn sum(mut next: u64, gaps: &mut [u32]) -> u64 {
    for gap in gaps {
        let index = next + u64::from(*gap);
        *gap = index as u32;
        next = index + 1;
    }
    next
}

/// Packs less than a block.
fn pack_rest(gaps: impl Iterator<Item = u32>, width: u8, bytes: &mut [u8]) {
    let (mut waiting, mut held, mut bytes) = (0_u64, 0, bytes.iter_mut());
    for gap in gaps {
        waiting |= u64::from(gap) << held;
        held += width;
        while held >= 8 {
            bytes.next().into_iter().for_each(|byte| *byte = waiting as u8);
            (waiting, held) = (waiting >> 8, held - 8);
        }
    }
    bytes.for_each(|byte| *byte = waiting as u8);
}
