//! The majority vote of sign messages (Bernstein et al., 2018 and 2019).
//!
//! Votes are counted in binary, with one bit plane a digit: adding a message ripples carries over whole
//! words, in the packed order of the bits. Signum's momentum is up to the caller, before the signs are taken.

use super::{BLOCK, Encoded, Format, unpack_block};
use crate::Error;
use crate::error::check_length;
use crate::simd::pack::packed_bytes;

/// Counts the negative signs of each value in the messages of several ranks.
#[derive(Debug, Clone)]
pub struct Votes {
    count: usize,
    ranks: u32,
    /// Plane `d` has digit `d` of all counts.
    planes: Vec<Vec<u8>>,
    carry: Vec<u8>,
}

impl Votes {
    /// For `count` values, without votes.
    pub fn new(count: usize) -> Self {
        Self { count, ranks: 0, planes: Vec::new(), carry: vec![0; packed_bytes(count, 1)] }
    }

    /// Forgets all votes.
    pub fn clear(&mut self) {
        self.ranks = 0;
        self.planes.iter_mut().for_each(|plane| plane.fill(0));
    }

    /// Messages counted.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Counts the signs of a message and ignores its magnitude. Cost: a pass over the bits of each digit that
    /// can change.
    ///
    /// # Errors
    /// [`Error::Malformed`] unless the format is [`Format::Sign`], [`Error::LengthMismatch`]; nothing is
    /// counted then.
    pub fn add(&mut self, message: Encoded<'_>) -> Result<(), Error> {
        check_length(self.count, message.count())?;
        let Some(bits) = message.sign_bits() else {
            let (expected, found) = (usize::from(Format::Sign.id()), usize::from(message.format().id()));
            return Err(Error::Malformed { what: "as the format of a vote", expected, found });
        };
        self.ranks += 1;
        let digits = (u32::BITS - self.ranks.leading_zeros()) as usize;
        while self.planes.len() < digits {
            self.planes.push(vec![0; self.carry.len()]);
        }
        self.carry.copy_from_slice(bits);
        for plane in &mut self.planes[..digits] {
            for (digit, carry) in plane.iter_mut().zip(&mut self.carry) {
                (*digit, *carry) = (*digit ^ *carry, *digit & *carry);
            }
        }
        Ok(())
    }

    /// Writes 1 where most ranks have a positive sign, -1 where most have a negative one, and 0 for a tie.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; `signs` is unchanged then.
    pub fn majority(&self, signs: &mut [f32]) -> Result<(), Error> {
        check_length(self.count, signs.len())?;
        let mut bits = [0; BLOCK];
        for (number, signs) in signs.chunks_mut(BLOCK).enumerate() {
            let mut negative = [0_u32; BLOCK];
            for (digit, plane) in self.planes.iter().enumerate() {
                let bits = &mut bits[..signs.len()];
                unpack_block(1, plane, number, bits);
                negative.iter_mut().zip(&*bits).for_each(|(count, &bit)| *count += u32::from(bit) << digit);
            }
            for (sign, &negative) in signs.iter_mut().zip(&negative) {
                let positive = self.ranks - negative;
                *sign = f32::from(i8::from(positive > negative) - i8::from(positive < negative));
            }
        }
        Ok(())
    }
}
