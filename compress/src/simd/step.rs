//! One step of 1-bit and 2-bit quantisation with error feedback, in one pass over memory.
//!
//! The scale of a message is known when all values have been seen, and the error when the scale is known. So the error of a
//! message is taken out of the residual by the pass of the next step, which reads its bits again: `r = (r - d) + g`, where
//! `d` is what the last message says, then the bits of `r`, and the figures of which the scale will be made.

use super::codes::{sign_code, sign_value, two_bit_code, two_bit_value};
use super::pack::{BLOCK, Codes, pack, packed_bytes, unpack};
use super::per_level;

/// Values in a row: four cache lines of them.
const LANES: usize = 64;
/// How far ahead of its use a step asks for memory.
const AHEAD_BYTES: usize = 2048;

type Row = [f32; LANES];

/// What the scales of a message are made of: sums, counts and smallest magnitudes of all values (first) and, with two
/// bits, of those above the threshold (second). Public in a private module: it is in the signatures of a hidden method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub(crate) sums: [f64; 2],
    pub(crate) large: usize,
    /// Of magnitudes above 0; infinite for none, or where means are asked for.
    pub(crate) smallest: [f32; 2],
}

/// A code of one or two bits.
trait Code {
    /// Whether there are magnitudes above a threshold.
    const LARGE: bool;
    fn code(&self, value: f32) -> u8;
    fn value(&self, code: u8) -> f32;
    fn threshold(&self) -> f32;
}

struct OneBit {
    scale: f32,
}

impl Code for OneBit {
    const LARGE: bool = false;

    #[inline(always)]
    fn code(&self, value: f32) -> u8 {
        sign_code(value)
    }

    #[inline(always)]
    fn value(&self, code: u8) -> f32 {
        sign_value(code, self.scale)
    }

    #[inline(always)]
    fn threshold(&self) -> f32 {
        f32::INFINITY
    }
}

struct TwoBit {
    levels: [f32; 2],
    threshold: f32,
}

impl Code for TwoBit {
    const LARGE: bool = true;

    #[inline(always)]
    fn code(&self, value: f32) -> u8 {
        two_bit_code(value, self.threshold)
    }

    #[inline(always)]
    fn value(&self, code: u8) -> f32 {
        two_bit_value(code, self.levels)
    }

    #[inline(always)]
    fn threshold(&self) -> f32 {
        self.threshold
    }
}

/// Vectors of one step: `r` and `g` of equal length, and packed codes for as many values; `last` may be empty.
/// Public as [`Figures`] is.
pub struct Step<'a> {
    pub(crate) r: &'a mut [f32],
    pub(crate) g: &'a [f32],
    pub(crate) last: &'a [u8],
    pub(crate) next: &'a mut [u8],
}

per_level! {
    /// A step with one bit a value, after a message of magnitude `scale`. Fails with the number of values that were done,
    /// whole blocks, when a value of the next is not finite.
    pub(crate) fn step_one_bit(step: Step<'_>, scale: f32, means: bool) -> Result<Figures, usize> {
        let code = OneBit { scale };
        if means { run::<1, true, _>(step, &code) } else { run::<1, false, _>(step, &code) }
    }
}

per_level! {
    /// As [`step_one_bit`], with two bits a value, the last message's two magnitudes and the threshold between the next.
    pub(crate) fn step_two_bit(step: Step<'_>, levels: [f32; 2], threshold: f32, means: bool) -> Result<Figures, usize> {
        let code = TwoBit { levels, threshold };
        if means { run::<2, true, _>(step, &code) } else { run::<2, false, _>(step, &code) }
    }
}

per_level! {
    /// Codes of finite values, and their figures, as a step writes them that begins with `r = 0`.
    pub(crate) fn encode_one_bit(values: &[f32], means: bool, bytes: &mut [u8]) -> Figures {
        let code = OneBit { scale: 0.0 };
        if means { encode::<1, true, _>(values, &code, bytes) } else { encode::<1, false, _>(values, &code, bytes) }
    }
}

per_level! {
    /// As [`encode_one_bit`], with two bits a value.
    pub(crate) fn encode_two_bit(values: &[f32], threshold: f32, means: bool, bytes: &mut [u8]) -> Figures {
        let code = TwoBit { levels: [0.0; 2], threshold };
        if means { encode::<2, true, _>(values, &code, bytes) } else { encode::<2, false, _>(values, &code, bytes) }
    }
}

#[inline(always)]
fn run<const WIDTH: usize, const MEANS: bool, C: Code>(step: Step<'_>, code: &C) -> Result<Figures, usize> {
    let Step { r, g, last, next } = step;
    let mut partial = Partial::new();
    let (blocks, rest) = r.as_chunks_mut::<BLOCK>();
    let (g_blocks, g_rest) = g.as_chunks::<BLOCK>();
    let bytes = packed_bytes(BLOCK, WIDTH);
    let whole = blocks.len() * bytes;
    let (next, next_rest) = next.split_at_mut(whole);
    let (last, last_rest) = last.split_at(whole.min(last.len()));
    let mut sums = [0.0; BLOCK];
    for (at, (r, g)) in blocks.iter_mut().zip(g_blocks).enumerate() {
        let last = if last.is_empty() { last } else { &last[at * bytes..][..bytes] };
        let mut magnitudes = [0.0; LANES];
        sum_block::<WIDTH, C>(r, g, last, code, &mut sums, &mut magnitudes);
        if !partial.add_magnitudes(&sums, &magnitudes) {
            return Err(at * BLOCK);
        }
        *r = sums;
        partial.write::<WIDTH, MEANS, C>(&sums, BLOCK, code, &mut next[at * bytes..][..bytes]);
    }
    sum_rest::<WIDTH, C>(rest, g_rest, last_rest, code, &mut sums);
    if !partial.add_magnitudes(&sums, &magnitudes_of(&sums)) {
        return Err(blocks.len() * BLOCK);
    }
    rest.copy_from_slice(&sums[..rest.len()]);
    partial.write::<WIDTH, MEANS, C>(&sums, rest.len(), code, next_rest);
    Ok(partial.total())
}

#[inline(always)]
fn encode<const WIDTH: usize, const MEANS: bool, C: Code>(values: &[f32], code: &C, bytes: &mut [u8]) -> Figures {
    let mut partial = Partial::new();
    for (values, bytes) in values.chunks(BLOCK).zip(bytes.chunks_mut(packed_bytes(BLOCK, WIDTH))) {
        let mut block = [0.0; BLOCK];
        block[..values.len()].copy_from_slice(values);
        // The values are finite: the answer is yes.
        partial.add_magnitudes(&block, &magnitudes_of(&block));
        partial.write::<WIDTH, MEANS, C>(&block, values.len(), code, bytes);
    }
    partial.total()
}

/// `sums = (r - d) + g`, and the magnitudes of that, added up in rows.
#[inline(always)]
fn sum_block<const WIDTH: usize, C: Code>(
    r: &[f32; BLOCK],
    g: &[f32; BLOCK],
    last: &[u8],
    code: &C,
    sums: &mut [f32; BLOCK],
    magnitudes: &mut Row,
) {
    let mut codes: Codes = [0; BLOCK];
    if !last.is_empty() {
        unpack::<WIDTH>(last, &mut codes);
    }
    let rows = r.as_chunks::<LANES>().0.iter().zip(g.as_chunks::<LANES>().0);
    let others = sums.as_chunks_mut::<LANES>().0.iter_mut().zip(codes.as_chunks::<LANES>().0);
    for ((r, g), (sums, codes)) in rows.zip(others) {
        super::prefetch(r, AHEAD_BYTES);
        super::prefetch(g, AHEAD_BYTES);
        for lane in 0..LANES {
            let said = if last.is_empty() { 0.0 } else { code.value(codes[lane]) };
            let sum = (r[lane] - said) + g[lane];
            sums[lane] = sum;
            magnitudes[lane] += sum.abs();
        }
    }
}

/// As [`sum_block`], for fewer values; what is beyond them becomes zero.
#[inline(always)]
fn sum_rest<const WIDTH: usize, C: Code>(r: &[f32], g: &[f32], last: &[u8], code: &C, sums: &mut [f32; BLOCK]) {
    let mut space: Codes = [0; BLOCK];
    let codes = &mut space[..r.len()];
    if !last.is_empty() {
        unpack::<WIDTH>(last, codes);
    }
    sums.fill(0.0);
    for (i, sum) in sums[..r.len()].iter_mut().enumerate() {
        let said = if last.is_empty() { 0.0 } else { code.value(codes[i]) };
        *sum = (r[i] - said) + g[i];
    }
}

/// Magnitudes added up in rows.
#[inline(always)]
fn magnitudes_of(values: &[f32; BLOCK]) -> Row {
    let mut magnitudes = [0.0; LANES];
    for row in values.as_chunks::<LANES>().0 {
        magnitudes.iter_mut().zip(row).for_each(|(sum, value)| *sum += value.abs());
    }
    magnitudes
}

/// Figures in the making: `f32` within a block, `f64` from block to block.
struct Partial {
    sums: [[f64; LANES]; 2],
    large: usize,
    smallest: [Row; 2],
}

impl Partial {
    #[inline(always)]
    fn new() -> Self {
        Self { sums: [[0.0; LANES]; 2], large: 0, smallest: [[f32::INFINITY; LANES]; 2] }
    }

    #[inline(always)]
    fn total(&self) -> Figures {
        Figures {
            sums: self.sums.map(|lanes| lanes.iter().sum()),
            large: self.large,
            smallest: self.smallest.map(|lanes| lanes.into_iter().fold(f32::INFINITY, f32::min)),
        }
    }

    /// Adds the magnitudes of a block, given as they are and added up in rows; false, and nothing added, if a value is not
    /// finite: then the row of sums is not either.
    #[inline(always)]
    fn add_magnitudes(&mut self, values: &[f32; BLOCK], magnitudes: &Row) -> bool {
        let largest = magnitudes.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32));
        if largest < 0x7f80_0000 {
            self.sums[0].iter_mut().zip(magnitudes).for_each(|(sum, &v)| *sum += f64::from(v));
            return true;
        }
        // Or finite values are so large that eight of them are not.
        let finite = values.iter().all(|v| v.is_finite());
        if finite {
            values.iter().zip((0..LANES).cycle()).for_each(|(v, lane)| self.sums[0][lane] += f64::from(v.abs()));
        }
        finite
    }

    /// Writes the codes of a block, of `length` values and zeros, and adds to the other figures. Zeros change none.
    #[inline(always)]
    fn write<const WIDTH: usize, const MEANS: bool, C: Code>(
        &mut self,
        values: &[f32; BLOCK],
        length: usize,
        code: &C,
        bytes: &mut [u8],
    ) {
        let mut codes: Codes = [0; BLOCK];
        let mut above = [0.0; LANES];
        for (row, codes) in values.as_chunks::<LANES>().0.iter().zip(codes.as_chunks_mut::<LANES>().0) {
            for lane in 0..LANES {
                codes[lane] = code.code(row[lane]);
                if C::LARGE {
                    above[lane] += if row[lane].abs() > code.threshold() { row[lane].abs() } else { 0.0 };
                }
            }
            if !MEANS {
                least(&mut self.smallest[0], row, 0.0);
                if C::LARGE {
                    least(&mut self.smallest[1], row, code.threshold());
                }
            }
        }
        pack::<WIDTH>(&codes[..length], bytes);
        if C::LARGE {
            self.large += bytes.iter().map(|byte| (byte & 0x55).count_ones()).sum::<u32>() as usize;
            self.add_above(values, &above, code.threshold());
        }
    }

    /// Adds magnitudes above the threshold, given as they are and added up in rows.
    #[inline(always)]
    fn add_above(&mut self, values: &[f32; BLOCK], above: &Row, threshold: f32) {
        let largest = above.iter().fold(0, |largest: i32, v| largest.max(v.to_bits() as i32));
        if largest < 0x7f80_0000 {
            self.sums[1].iter_mut().zip(above).for_each(|(sum, &v)| *sum += f64::from(v));
        } else {
            let above = |v: &f32| f64::from(if v.abs() > threshold { v.abs() } else { 0.0 });
            values.iter().zip((0..LANES).cycle()).for_each(|(v, lane)| self.sums[1][lane] += above(v));
        }
    }
}

/// Lowers `smallest` to the magnitudes above `bound`.
#[inline(always)]
fn least(smallest: &mut Row, row: &Row, bound: f32) {
    for (smallest, value) in smallest.iter_mut().zip(row) {
        let candidate = if value.abs() > bound { value.abs() } else { f32::INFINITY };
        *smallest = if candidate < *smallest { candidate } else { *smallest };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    /// Some steps at one level: all figures, residuals and messages, as bits.
    fn results(level: Level, g: &[f32], two: bool, means: bool, steps: usize) -> Vec<u64> {
        let width = if two { 2 } else { 1 };
        let (mut r, mut last, mut bits) = (vec![0.0; g.len()], Vec::new(), Vec::new());
        for number in 0..steps {
            let mut next = vec![0; packed_bytes(g.len(), width)];
            let step = Step { r: &mut r, g, last: &last, next: &mut next };
            let levels = [0.5, 1.5].map(|v| v / (1 + number) as f32);
            let result =
                if two { step_two_bit(level, step, levels, 0.9, means) } else { step_one_bit(level, step, 0.7, means) };
            match result {
                Ok(figures) => {
                    bits.extend(figures.sums.map(f64::to_bits));
                    bits.extend(figures.smallest.map(|v| u64::from(v.to_bits())));
                    bits.push(figures.large as u64);
                    bits.extend(next.iter().map(|&byte| u64::from(byte)));
                }
                Err(done) => bits.push(done as u64),
            }
            bits.extend(r.iter().map(|v| u64::from(v.to_bits())));
            last = next;
        }
        bits
    }

    proptest! {
        #[test]
        fn every_level_gives_the_same_bits(
            mut g in prop::collection::vec(prop_oneof![9 => -2.0_f32..2.0, 1 => -1e30_f32..1e30], 0..1200),
            bad in prop::option::of(any::<prop::sample::Index>()),
            two: bool,
            means: bool,
            steps in 1_usize..4,
        ) {
            if let Some(bad) = bad && !g.is_empty() && steps == 3 {
                *bad.get_mut(&mut g) = f32::INFINITY;
            }
            let expected = results(Level::available().next().unwrap(), &g, two, means, steps);
            for level in Level::available() {
                prop_assert!(results(level, &g, two, means, steps) == expected, "{}", level.name());
            }
        }
    }
}
