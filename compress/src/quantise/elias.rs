//! QSGD messages in Elias's omega code (Alistarh et al., 2017, section 3.2; Elias 1975): short if most levels
//! are 0.
//!
//! [`encode`] rewrites the bytes of [`Format::Qsgd`] without loss, and [`decode`] restores them. The format,
//! little-endian: the 8 bytes before the buckets; the norms of all buckets, 4 bytes each; then bits, from the
//! most significant of a byte on. For each level that is not 0 the bits are: the distance of its place to the
//! previous such place (for the first, its place plus one); a bit, 1 if the level is negative; its magnitude,
//! unless there is only one level. At the end comes the distance of the number of values to the last place.
//! The remaining bits are 0.
//!
//! The omega code of a number is its binary digits, preceded recursively by the code of the number of digits
//! less one, down to 1, and followed by a 0: 1 is `0`, 2 is `10 0`, 16 is `10 100 10000 0`.
//!
//! With normal values and buckets of 512, a value takes 0.42 bits instead of 2 with one level, and 1.56
//! instead of 4 with seven. The code works bit by bit and is many times slower than QSGD itself: it is for
//! links so slow that nanoseconds a value do not matter.

use super::encoded::{QSGD_HEAD_BYTES as HEAD, qsgd_head};
use super::format::qsgd_width;
use super::{BLOCK, Encoded, Format, unpack_block};
use crate::Error;
use crate::error::check_addressable;
use crate::simd::Level;
use crate::simd::pack::{pack_width, packed_bytes};

/// Replaces `bytes` by the Elias code of `message`, which has `count` values of [`Format::Qsgd`].
///
/// # Errors
/// The same as for [`Encoded::new`], [`Error::Malformed`] for a code that is no level, [`Error::TooLong`] for
/// more than 2^32 values. `bytes` must not be sent then.
pub fn encode(message: &[u8], count: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
    check_addressable(count)?;
    Encoded::new(Format::Qsgd, count, message)?;
    let shape = Shape::read(message, count)?;
    bytes.clear();
    bytes.extend_from_slice(&message[..HEAD]);
    (0..shape.bucket_count())
        .for_each(|number| bytes.extend_from_slice(&message[shape.bucket_start(number)..][..4]));
    let mut bits = BitWriter { bytes, pending: 0, count: 0 };
    // One before the first place, because gaps are at least 1.
    let mut last = -1_i64;
    let mut codes = [0; BLOCK];
    for number in 0..count.div_ceil(BLOCK) {
        let codes = &mut codes[..BLOCK.min(count - number * BLOCK)];
        unpack_block(shape.width, &message[shape.block_range(number)], 0, codes);
        for (place, &code) in codes.iter().enumerate().filter(|(_, code)| **code != shape.levels) {
            let level = i16::from(code) - i16::from(shape.levels);
            let magnitude = level.unsigned_abs();
            if magnitude > u16::from(shape.levels) {
                return Err(malformed(
                    "as magnitude of a level, at most",
                    shape.levels.into(),
                    magnitude.into(),
                ));
            }
            let place = (number * BLOCK + place) as i64;
            bits.omega((place - last) as u64);
            bits.put(u64::from(level < 0), 1);
            if shape.levels > 1 {
                bits.omega(magnitude.into());
            }
            last = place;
        }
    }
    bits.omega((count as i64 - last) as u64);
    bits.finish();
    Ok(())
}

/// Replaces `message` by the `count` values of [`Format::Qsgd`] whose Elias code is `bytes`. `bytes` may come
/// from any source: no more memory is allocated than `count` values need.
///
/// # Errors
/// [`Error::Malformed`] for bytes that [`encode`] does not write, [`Error::NonFinite`] for a norm that is not
/// finite, [`Error::TooLong`] for more than 2^32 values. `message` is empty then.
pub fn decode(bytes: &[u8], count: usize, message: &mut Vec<u8>) -> Result<(), Error> {
    message.clear();
    decode_into(bytes, count, message).inspect_err(|_| message.clear())
}

fn decode_into(bytes: &[u8], count: usize, message: &mut Vec<u8>) -> Result<(), Error> {
    check_addressable(count)?;
    let shape = Shape::read(bytes, count)?;
    let (norms, bits) = shape.norms(bytes)?;
    message.resize(shape.message_bytes(), 0);
    message[..HEAD].copy_from_slice(&bytes[..HEAD]);
    for (number, norm) in norms.iter().enumerate() {
        message[shape.bucket_start(number)..][..4].copy_from_slice(norm);
    }
    let mut bits = BitReader { bytes: bits, bit: 0 };
    let mut place = bits.omega()? - 1;
    let mut codes = [0; BLOCK];
    for number in 0..count.div_ceil(BLOCK) {
        let (first, end) = (number * BLOCK, count.min((number + 1) * BLOCK));
        let codes = &mut codes[..end - first];
        codes.fill(shape.levels);
        while place < end as u64 {
            codes[place as usize - first] = bits.code(shape.levels)?;
            place += bits.omega()?;
        }
        pack_width(Level::best(), shape.width, codes, &mut message[shape.block_range(number)]);
    }
    if place != count as u64 {
        return Err(malformed(
            "values up to the end of Elias codes",
            count,
            usize::try_from(place).unwrap_or(usize::MAX),
        ));
    }
    bits.check_end()?;
    Encoded::new(Format::Qsgd, count, message).map(drop)
}

fn malformed(what: &'static str, expected: usize, found: usize) -> Error {
    Error::Malformed { what, expected, found }
}

/// The layout of a QSGD message.
struct Shape {
    count: usize,
    bucket: usize,
    levels: u8,
    width: usize,
}

impl Shape {
    /// Reads the head, which is the same in both kinds of bytes.
    fn read(bytes: &[u8], count: usize) -> Result<Self, Error> {
        if bytes.len() < HEAD {
            return Err(malformed("bytes before Elias codes, at least", HEAD, bytes.len()));
        }
        let (bucket, levels, _) = qsgd_head(bytes)?;
        Ok(Self { count, bucket, levels, width: qsgd_width(levels) })
    }

    fn bucket_count(&self) -> usize {
        self.count.div_ceil(self.bucket)
    }

    /// The offset of a bucket in a message. The bucket begins with its norm.
    fn bucket_start(&self, number: usize) -> usize {
        HEAD + number * (4 + packed_bytes(self.bucket, self.width))
    }

    fn message_bytes(&self) -> usize {
        HEAD + 4 * self.bucket_count() + packed_bytes(self.count, self.width)
    }

    /// The range of a block's codes in a message.
    fn block_range(&self, number: usize) -> std::ops::Range<usize> {
        let first = number * BLOCK;
        let start =
            self.bucket_start(first / self.bucket) + 4 + packed_bytes(first % self.bucket, self.width);
        start..start + packed_bytes(BLOCK.min(self.count - first), self.width)
    }

    /// Splits Elias codes into the norms and the bits.
    fn norms<'a>(&self, bytes: &'a [u8]) -> Result<(&'a [[u8; 4]], &'a [u8]), Error> {
        let (expected, rest) = (4 * self.bucket_count(), &bytes[HEAD..]);
        let (norms, bits) = rest.split_at_checked(expected).ok_or(malformed(
            "bytes of norms, at least",
            expected,
            rest.len(),
        ))?;
        Ok((norms.as_chunks().0, bits))
    }
}

/// Writes bits from the most significant one of each byte on.
struct BitWriter<'a> {
    bytes: &'a mut Vec<u8>,
    /// The last bits, less than a byte.
    pending: u64,
    count: u32,
}

impl BitWriter<'_> {
    /// Appends the lowest `count` bits, at most 56.
    fn put(&mut self, bits: u64, count: u32) {
        self.pending = self.pending << count | bits;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.pending >> self.count) as u8);
        }
        self.pending &= (1 << self.count) - 1;
    }

    /// Appends the code of a number of 1 to 2^33: at most 46 bits.
    fn omega(&mut self, number: u64) {
        let (mut code, mut length, mut rest) = (0, 1, number);
        while rest > 1 {
            code |= rest << length;
            let digits = u64::BITS - rest.leading_zeros();
            length += digits;
            rest = u64::from(digits) - 1;
        }
        self.put(code, length);
    }

    fn finish(mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }
}

/// The bits that have not been read.
struct BitReader<'a> {
    bytes: &'a [u8],
    bit: usize,
}

impl BitReader<'_> {
    /// The next bits, at most 33.
    fn take(&mut self, count: u32) -> Result<u64, Error> {
        let rest = self.bytes.get(self.bit / 8..).unwrap_or(&[]);
        let window = rest.first_chunk().copied().unwrap_or_else(|| {
            let mut bytes = [0; 8];
            bytes.iter_mut().zip(rest).for_each(|(byte, &from)| *byte = from);
            bytes
        });
        let bits = u64::from_be_bytes(window) << (self.bit % 8) >> (u64::BITS - count);
        self.bit += count as usize;
        if self.bit > 8 * self.bytes.len() {
            return Err(malformed("bits of Elias codes, at least", self.bit, 8 * self.bytes.len()));
        }
        Ok(bits)
    }

    /// A number from 1 to slightly above 2^33.
    fn omega(&mut self) -> Result<u64, Error> {
        let mut number = 1;
        while self.take(1)? == 1 {
            if number > 33 {
                return Err(malformed("digits of an Elias code, at most", 34, number as usize + 1));
            }
            number = 1 << number | self.take(number as u32)?;
        }
        Ok(number)
    }

    /// The code of a level that is not 0.
    fn code(&mut self, levels: u8) -> Result<u8, Error> {
        let is_negative = self.take(1)? == 1;
        let magnitude = if levels > 1 { self.omega()? } else { 1 };
        if magnitude > u64::from(levels) {
            return Err(malformed("as magnitude of a level, at most", levels.into(), magnitude as usize));
        }
        let magnitude = magnitude as u8;
        Ok(if is_negative { levels - magnitude } else { levels + magnitude })
    }

    /// Checks that the encoding is canonical: no byte more than needed, and zeros in the unused bits of the
    /// last one.
    fn check_end(&self) -> Result<(), Error> {
        let used = self.bit.div_ceil(8);
        if self.bytes.len() != used {
            return Err(malformed("bytes of Elias codes", used, self.bytes.len()));
        }
        let over = match (self.bit % 8, self.bytes.last()) {
            (1.., Some(&last)) => last & (0xff >> (self.bit % 8)),
            _ => 0,
        };
        if over == 0 {
            Ok(())
        } else {
            Err(malformed("in the bits after the last Elias code", 0, over.into()))
        }
    }
}
