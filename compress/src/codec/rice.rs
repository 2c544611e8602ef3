//! Golomb-Rice codes of gaps (Rice and Plaunt 1971). The code of a gap is `gap >> parameter` zeros and a one,
//! then the lowest `parameter` bits, from the least significant bit of the first byte on. The bits after the
//! last gap are 0.

use super::header::{MOST_RICE, malformed};
use crate::Error;

/// The best parameter for geometrically distributed gaps with this mean. The last index gives the mean.
///
/// `1 + floor(log2(ln(phi - 1) / ln(mean / (mean + 1))))` (Kiely 2004), with the second logarithm
/// approximated by `-1 / (mean + 1/2)`.
pub(super) fn parameter(indices: &[u32]) -> u8 {
    let Some(&last) = indices.last() else { return 0 };
    let count = indices.len() as u64;
    let sum = u64::from(last) + 1 - count;
    // ln(phi - 1) is -0.4812.
    let scaled = u128::from(2 * sum + count) * 4812 / (u128::from(count) * 20_000);
    (u128::BITS - scaled.leading_zeros()).min(MOST_RICE.into()) as u8
}

/// Bytes of the codes.
pub(super) fn bytes(indices: &[u32], parameter: u8) -> usize {
    let first = indices.first().map_or(0, |&first| u64::from(first >> parameter));
    let others = indices.windows(2).map(|pair| u64::from((pair[1] - pair[0] - 1) >> parameter));
    let bits = first + others.sum::<u64>() + indices.len() as u64 * (1 + u64::from(parameter));
    bits.div_ceil(8) as usize
}

/// `bytes` is zeroed and has the length that [`bytes`] returns.
pub(super) fn encode(indices: &[u32], parameter: u8, bytes: &mut [u8]) {
    let (mut next, mut bit) = (0, 0_usize);
    for &index in indices {
        let gap = u64::from(index) - next;
        next = u64::from(index) + 1;
        bit += (gap >> parameter) as usize;
        // A one and at most 31 bits, anywhere in a byte: at most 39 bits.
        let code = (1 | (gap & ((1 << parameter) - 1)) << 1) << (bit % 8);
        let place = &mut bytes[bit / 8..];
        if let Some(first) = place.first_chunk_mut::<8>() {
            *first = (u64::from_le_bytes(*first) | code).to_le_bytes();
        } else {
            place.iter_mut().zip(code.to_le_bytes()).for_each(|(byte, code)| *byte |= code);
        }
        bit += 1 + usize::from(parameter);
    }
}

/// Appends `count` indices. Each takes at least one bit.
pub(super) fn decode(
    bytes: &[u8],
    count: usize,
    parameter: u8,
    dim: usize,
    indices: &mut Vec<u32>,
) -> Result<(), Error> {
    let least = bytes_of_least(count, parameter);
    if bytes.len() < least {
        return Err(malformed("bytes of Rice codes, at least", least, bytes.len()));
    }
    indices.reserve(count);
    let mut bits = Bits { bytes, bit: 0 };
    let mut next = 0_u64;
    for position in 0..count {
        let quotient = bits.zeros().ok_or(malformed("Rice codes", count, position))?;
        let rest = bits.take(parameter).ok_or(malformed("Rice codes", count, position))?;
        // Neither the shift nor the sum overflows: a quotient is below 2^35 because dim is at most 2^32.
        if quotient > dim as u64 {
            return Err(malformed("elements up to an index, at most", dim, quotient as usize));
        }
        let index = next + (quotient << parameter | rest);
        next = index + 1;
        if next > dim as u64 {
            return Err(malformed("elements up to an index, at most", dim, next as usize));
        }
        indices.push(index as u32);
    }
    // The encoding is canonical: no byte more than needed, and zeros in the unused bits of the last one.
    let used = bits.bit.div_ceil(8);
    if bytes.len() != used {
        return Err(malformed("bytes of Rice codes", used, bytes.len()));
    }
    let over =
        bytes.last().map_or(0, |&last| if bits.bit.is_multiple_of(8) { 0 } else { last >> (bits.bit % 8) });
    if over == 0 { Ok(()) } else { Err(malformed("in the bits after the last Rice code", 0, over.into())) }
}

fn bytes_of_least(count: usize, parameter: u8) -> usize {
    count.saturating_mul(1 + usize::from(parameter)).div_ceil(8)
}

/// The bits that have not been read.
struct Bits<'a> {
    bytes: &'a [u8],
    bit: usize,
}

impl Bits<'_> {
    /// At least the next 57 bits, followed by zeros after the end.
    fn window(&self) -> u64 {
        let rest = self.bytes.get(self.bit / 8..).unwrap_or(&[]);
        let bytes = rest.first_chunk().copied().unwrap_or_else(|| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(rest).for_each(|(byte, &from)| *byte = from);
            bytes
        });
        u64::from_le_bytes(bytes) >> (self.bit % 8)
    }

    /// Skips zeros and the one that ends them; returns the number of zeros.
    fn zeros(&mut self) -> Option<u64> {
        let first = self.bit;
        loop {
            let window = self.window();
            if window != 0 {
                self.bit += window.trailing_zeros() as usize;
                let zeros = self.bit - first;
                self.bit += 1;
                return Some(zeros as u64);
            }
            self.bit += 57 - 1;
            if self.bit >= 8 * self.bytes.len() {
                return None;
            }
        }
    }

    /// The next `count` bits, at most 31.
    fn take(&mut self, count: u8) -> Option<u64> {
        let bits = self.window() & ((1 << count) - 1);
        self.bit += usize::from(count);
        (self.bit <= 8 * self.bytes.len()).then_some(bits)
    }
}
