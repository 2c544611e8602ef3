//! Codes of 1, 2, 4 or 8 bits in bytes.
//!
//! A block of [`BLOCK`] codes fills whole groups of 64 bytes: code `64 * row + byte` of a group is in bits
//! `WIDTH * row ..` of byte `byte`. So one shift moves 64 codes, and no bit crosses a lane. The rest of a
//! vector, less than a block, is packed in plain order: code `i` is in bits `WIDTH * i ..` of the bytes read
//! as one little-endian number.

/// Codes in a block.
pub(crate) const BLOCK: usize = 512;

/// The codes of a block, one a byte.
pub(crate) type Codes = [u8; BLOCK];

const LANES: usize = 64;

/// Packs at most a block of codes; `bytes` has the length that [`packed_bytes`] returns.
#[inline(always)]
pub(crate) fn pack<const WIDTH: usize>(codes: &[u8], bytes: &mut [u8]) {
    if codes.len() < BLOCK {
        bytes.fill(0);
        for (i, code) in codes.iter().enumerate() {
            bytes[i * WIDTH / 8] |= code << (i * WIDTH % 8);
        }
        return;
    }
    let groups = bytes.as_chunks_mut::<LANES>().0.iter_mut();
    for (bytes, rows) in groups.zip(codes.chunks_exact(LANES * 8 / WIDTH)) {
        *bytes = [0; LANES];
        for (row, codes) in rows.as_chunks::<LANES>().0.iter().enumerate() {
            bytes.iter_mut().zip(codes).for_each(|(byte, code)| *byte |= code << (WIDTH * row));
        }
    }
}

/// Unpacks as many codes as `codes` has room for, at most a block.
#[inline(always)]
pub(crate) fn unpack<const WIDTH: usize>(bytes: &[u8], codes: &mut [u8]) {
    let mask = u8::MAX >> (8 - WIDTH);
    if codes.len() < BLOCK {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = bytes[i * WIDTH / 8] >> (i * WIDTH % 8) & mask;
        }
        return;
    }
    let groups = bytes.as_chunks::<LANES>().0.iter();
    for (bytes, rows) in groups.zip(codes.chunks_exact_mut(LANES * 8 / WIDTH)) {
        for (row, codes) in rows.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> (WIDTH * row) & mask);
        }
    }
}

/// Bytes that `count` codes of `width` bits take.
pub(crate) const fn packed_bytes(count: usize, width: usize) -> usize {
    count / 8 * width + (count % 8 * width).div_ceil(8)
}

super::per_level! {
    /// [`pack`] for a width known at run time: 1, 2 or 4, otherwise 8.
    pub(crate) fn pack_width(width: usize, codes: &[u8], bytes: &mut [u8]) {
        match width {
            1 => pack::<1>(codes, bytes),
            2 => pack::<2>(codes, bytes),
            4 => pack::<4>(codes, bytes),
            _ => pack::<8>(codes, bytes),
        }
    }
}

super::per_level! {
    /// [`unpack`] for a width known at run time: 1, 2 or 4, otherwise 8.
    pub(crate) fn unpack_width(width: usize, bytes: &[u8], codes: &mut [u8]) {
        match width {
            1 => unpack::<1>(bytes, codes),
            2 => unpack::<2>(bytes, codes),
            4 => unpack::<4>(bytes, codes),
            _ => unpack::<8>(bytes, codes),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    proptest! {
        #[test]
        fn codes_come_back_and_every_level_packs_alike(
            codes in prop_oneof![
                prop::collection::vec(any::<u8>(), BLOCK),
                prop::collection::vec(any::<u8>(), 0..BLOCK),
            ],
            width in prop::sample::select(vec![1_usize, 2, 4, 8]),
        ) {
            let codes: Vec<u8> = codes.iter().map(|code| code & (u8::MAX >> (8 - width))).collect();
            let mut expected = vec![0; packed_bytes(codes.len(), width)];
            for (i, &code) in codes.iter().enumerate() {
                // Group, byte and row in a whole block; plain order otherwise.
                let (group, within) = (i / (512 / width), i % (512 / width));
                let whole = (64 * group + within % 64, within / 64 * width);
                let (byte, bit) = if codes.len() == BLOCK { whole } else { (i * width / 8, i * width % 8) };
                expected[byte] |= code << bit;
            }
            for level in Level::available() {
                let mut bytes = vec![0xff; expected.len()];
                pack_width(level, width, &codes, &mut bytes);
                prop_assert_eq!(&bytes, &expected, "{}", level.name());
                let mut back = vec![0; codes.len()];
                unpack_width(level, width, &bytes, &mut back);
                prop_assert_eq!(&back, &codes, "{}", level.name());
            }
        }
    }
}
