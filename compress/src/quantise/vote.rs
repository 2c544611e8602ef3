//! The majority vote of signs (Bernstein et al., 2018 and 2019).
//!
//! A message has the signs of a vector's values: 8 bytes, the first of which is 1 if some values are zero and
//! otherwise 0, the others 0; the packed sign bits, 1 for negative; and if there are zeros, as many bits
//! again, 1 for what is not zero. A zero votes for nothing.
//!
//! Votes are counted in binary, with one bit plane a digit: adding a message ripples carries over whole
//! words, in the packed order of the bits. Signum's momentum is up to the caller, before the signs are taken.

use super::{BLOCK, later, pack_values, unpack_block};
use crate::Error;
use crate::bits::check_finite;
use crate::error::check_length;
use crate::simd::pack::packed_bytes;
use crate::simd::{Level, codes};

/// Bytes before the bits.
const HEAD_BYTES: usize = 8;

/// Replaces `bytes` by the signs of `values`, of which zeros have none: `8 + n / 8` bytes, or `8 + n / 4` if
/// there are zeros. Cost: one pass, another one if there are zeros.
///
/// # Errors
/// [`Error::NonFinite`] for the first NaN or infinity; `bytes` must not be sent then.
pub fn encode_signs(values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
    let (level, plane) = (Level::best(), packed_bytes(values.len(), 1));
    bytes.clear();
    bytes.resize(HEAD_BYTES + plane, 0);
    let (mut error, mut zeros) = (None, false);
    pack_values(1, values, &mut bytes[HEAD_BYTES..], |first, values, out| {
        if error.is_none() {
            error = check_finite(values).map_err(|error| later(error, first)).err();
        }
        zeros |= codes::has_zero(level, values);
        codes::sign_codes(level, values, out);
    });
    if let Some(error) = error {
        return Err(error);
    }
    if zeros {
        bytes[0] = 1;
        bytes.resize(HEAD_BYTES + 2 * plane, 0);
        pack_values(1, values, &mut bytes[HEAD_BYTES + plane..], |_, values, out| {
            codes::non_zero_codes(level, values, out);
        });
    }
    Ok(())
}

/// The signs of a vector's values: checked bytes of [`encode_signs`].
#[derive(Debug, Clone, Copy)]
pub struct Signs<'a> {
    count: usize,
    negative: &'a [u8],
    /// Empty if no value is zero.
    there: &'a [u8],
}

impl<'a> Signs<'a> {
    /// Checks `bytes`, from any source, as the signs of `count` values. Cost: O(1).
    ///
    /// # Errors
    /// [`Error::Malformed`] for another length or head.
    pub fn new(count: usize, bytes: &'a [u8]) -> Result<Self, Error> {
        let plane = packed_bytes(count, 1);
        let malformed = |what, expected, found| Error::Malformed { what, expected, found };
        let Some((head, bits)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            return Err(malformed("bytes of signs", HEAD_BYTES, bytes.len()));
        };
        let planes = match u64::from_le_bytes(*head) {
            0 => 1,
            1 => 2,
            head => return Err(malformed("as the head of signs, at most", 1, head as usize)),
        };
        let expected = plane.saturating_mul(planes);
        if bits.len() != expected {
            return Err(malformed("bytes of signs", HEAD_BYTES.saturating_add(expected), bytes.len()));
        }
        let (negative, there) = bits.split_at(plane);
        Ok(Self { count, negative, there })
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Writes 1, -1 or 0 for each value.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `signs` is unchanged then.
    pub fn decode_into(&self, signs: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, signs.len())?;
        let (mut negative, mut there) = ([0; BLOCK], [1; BLOCK]);
        for (number, signs) in signs.chunks_mut(BLOCK).enumerate() {
            let count = signs.len();
            unpack_block(1, self.negative, number, &mut negative[..count]);
            if !self.there.is_empty() {
                unpack_block(1, self.there, number, &mut there[..count]);
            }
            for ((sign, &negative), &there) in signs.iter_mut().zip(&negative).zip(&there) {
                *sign = f32::from(there as i8 * (1 - 2 * negative as i8));
            }
        }
        Ok(())
    }
}

/// Counts the signs of each value in the messages of several ranks.
#[derive(Debug, Clone)]
pub struct Votes {
    count: usize,
    ranks: u32,
    negative: Planes,
    /// Counts values that are not zero. A message without zeros counts for all, in `without`.
    there: Planes,
    /// Messages without zeros.
    without: u32,
}

/// Numbers in binary: plane `d` has digit `d` of all.
#[derive(Debug, Clone)]
struct Planes {
    added: u32,
    digits: Vec<Vec<u8>>,
    carry: Vec<u8>,
}

impl Votes {
    /// For `count` values, without votes.
    pub fn new(count: usize) -> Self {
        let planes = || Planes { added: 0, digits: Vec::new(), carry: vec![0; packed_bytes(count, 1)] };
        Self { count, ranks: 0, negative: planes(), there: planes(), without: 0 }
    }

    /// Forgets all votes.
    pub fn clear(&mut self) {
        (self.ranks, self.without) = (0, 0);
        self.negative.clear();
        self.there.clear();
    }

    /// Messages counted.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Counts the signs of a message. Cost: a pass over the bits of each digit that can change, twice if the
    /// message has zeros.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; nothing is counted then.
    pub fn add(&mut self, message: Signs<'_>) -> Result<(), Error> {
        check_length(self.count, message.count)?;
        self.ranks += 1;
        if message.there.is_empty() {
            self.without += 1;
            self.negative.add(|carry| carry.copy_from_slice(message.negative));
        } else {
            self.there.add(|carry| carry.copy_from_slice(message.there));
            // The sign of a zero, which its sender need not have cleared, does not count.
            let signs = message.negative.iter().zip(message.there);
            self.negative.add(|carry| {
                carry.iter_mut().zip(signs).for_each(|(carry, (negative, there))| *carry = negative & there);
            });
        }
        Ok(())
    }

    /// Writes 1 where more ranks have a positive sign than a negative one, -1 where fewer have, and 0 for a
    /// tie and where all have zero.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `signs` is unchanged then.
    pub fn majority(&self, signs: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, signs.len())?;
        for (number, signs) in signs.chunks_mut(BLOCK).enumerate() {
            let (mut negative, mut there) = ([0; BLOCK], [self.without; BLOCK]);
            self.negative.add_block_to(number, &mut negative[..signs.len()]);
            self.there.add_block_to(number, &mut there[..signs.len()]);
            for ((sign, &negative), &there) in signs.iter_mut().zip(&negative).zip(&there) {
                let positive = there - negative;
                *sign = f32::from(i8::from(positive > negative) - i8::from(positive < negative));
            }
        }
        Ok(())
    }
}

impl Planes {
    fn clear(&mut self) {
        self.added = 0;
        self.digits.iter_mut().for_each(|plane| plane.fill(0));
    }

    /// Adds the bits that `write` writes.
    fn add(&mut self, write: impl FnOnce(&mut [u8])) {
        self.added += 1;
        let digits = (u32::BITS - self.added.leading_zeros()) as usize;
        while self.digits.len() < digits {
            self.digits.push(vec![0; self.carry.len()]);
        }
        write(&mut self.carry);
        for plane in &mut self.digits[..digits] {
            for (digit, carry) in plane.iter_mut().zip(&mut self.carry) {
                (*digit, *carry) = (*digit ^ *carry, *digit & *carry);
            }
        }
    }

    /// Adds the numbers of block `number` to `sums`, which has the block's length.
    fn add_block_to(&self, number: usize, sums: &mut [u32]) {
        let mut bits = [0; BLOCK];
        for (digit, plane) in self.digits.iter().enumerate() {
            let bits = &mut bits[..sums.len()];
            unpack_block(1, plane, number, bits);
            sums.iter_mut().zip(&*bits).for_each(|(sum, &bit)| *sum += u32::from(bit) << digit);
        }
    }
}
