//! One bit for each element of the dense vector, starting at the least significant bit of the first byte.

use super::header::malformed;
use crate::Error;

/// Bytes that `dim` bits take.
pub(super) fn bytes(dim: usize) -> usize {
    dim.div_ceil(8)
}

/// `bytes` is zeroed and has the length that [`bytes`] returns.
pub(super) fn encode(indices: &[u32], bytes: &mut [u8]) {
    indices.iter().for_each(|&index| bytes[index as usize / 8] |= 1 << (index % 8));
}

/// Appends the indices of the set bits, of which there must be `count`.
pub(super) fn decode(bits: &[u8], count: usize, dim: usize, indices: &mut Vec<u32>) -> Result<(), Error> {
    if bits.len() != bytes(dim) {
        return Err(malformed("bytes of bitmap", bytes(dim), bits.len()));
    }
    let over = bits.last().map_or(0, |&last| if dim.is_multiple_of(8) { 0 } else { last >> (dim % 8) });
    if over != 0 {
        return Err(malformed("in the bits after the bitmap", 0, over.into()));
    }
    let (words, rest) = bits.as_chunks::<8>();
    let found = words.iter().map(|&word| u64::from_le_bytes(word).count_ones() as usize).sum::<usize>()
        + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    if found != count {
        return Err(malformed("bits set", count, found));
    }
    indices.reserve(count);
    let words = words.iter().map(|&word| u64::from_le_bytes(word));
    let last = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    for (number, mut word) in words.chain([last]).enumerate() {
        while word != 0 {
            indices.push((64 * number) as u32 + word.trailing_zeros());
            word &= word - 1;
        }
    }
    Ok(())
}
