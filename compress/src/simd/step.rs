//! One step of 1-bit and 2-bit quantisation with error feedback, in one pass over memory.
//!
//! The scale of a message is known when all values have been seen, and the error when the scale is known. So the error of a
//! message is taken out of the residual by the pass of the next step, which reads its bits again: `r = (r - d) + g`, where
//! `d` is what the last message says, then the bits of `r`, and the figures of which the scale will be made.

use super::codes::{sign_code, sign_value, two_bit_code, two_bit_value};
use super::pack::{BLOCK, Codes, pack, packed_bytes, unpack};
use super::per_level;

const LANES: usize = 64;

/// What the scales of a message are made of: sums, counts and smallest magnitudes of all values (first) and, with two
/// bits, of those above the threshold (second). Public in a private module: it is in the signatures of a hidden method.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub(crate) sums: [f64; 2],
    pub(crate) large: usize,
    /// Of magnitudes above 0; infinite for none.
    pub(crate) smallest: [f32; 2],
}

/// Partial figures.
struct Partial {
    sums: [[f64; LANES]; 2],
    large: usize,
    smallest: [[f32; LANES]; 2],
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
}

/// Which figures are asked for.
trait Ask {
    const MEANS: bool;
}
struct Means;
struct Minima;
impl Ask for Means {
    const MEANS: bool = true;
}
impl Ask for Minima {
    const MEANS: bool = false;
}

/// A code of `WIDTH` bits.
trait Code {
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
        if means { run::<1, _, Means>(step, &code) } else { run::<1, _, Minima>(step, &code) }
    }
}

per_level! {
    /// As [`step_one_bit`], with two bits a value, the last message's two magnitudes and the threshold between the next.
    pub(crate) fn step_two_bit(step: Step<'_>, levels: [f32; 2], threshold: f32, means: bool) -> Result<Figures, usize> {
        let code = TwoBit { levels, threshold };
        if means { run::<2, _, Means>(step, &code) } else { run::<2, _, Minima>(step, &code) }
    }
}

#[inline(always)]
fn run<const WIDTH: usize, C: Code, A: Ask>(step: Step<'_>, code: &C) -> Result<Figures, usize> {
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
        if !sum_block::<WIDTH, C>(r, g, last, code, &mut sums) {
            return Err(at * BLOCK);
        }
        *r = sums;
        note::<C, A>(&sums, code, &mut partial);
        encode::<WIDTH, C>(&sums, BLOCK, code, &mut next[at * bytes..][..bytes]);
    }
    let (mut r_last, mut g_last) = ([0.0; BLOCK], [0.0; BLOCK]);
    r_last[..rest.len()].copy_from_slice(rest);
    g_last[..rest.len()].copy_from_slice(g_rest);
    if !sum_rest::<WIDTH, C>(&r_last, &g_last, rest.len(), last_rest, code, &mut sums) {
        return Err(blocks.len() * BLOCK);
    }
    note::<C, A>(&sums, code, &mut partial);
    encode::<WIDTH, C>(&sums, rest.len(), code, next_rest);
    rest.copy_from_slice(&sums[..rest.len()]);
    Ok(partial.total())
}

/// `sums = (r - d) + g`, and whether all of it is finite.
#[inline(always)]
fn sum_block<const WIDTH: usize, C: Code>(
    r: &[f32; BLOCK],
    g: &[f32; BLOCK],
    last: &[u8],
    code: &C,
    sums: &mut [f32; BLOCK],
) -> bool {
    if last.is_empty() {
        sums.iter_mut().zip(r.iter().zip(g)).for_each(|(sum, (r, g))| *sum = r + g);
    } else {
        let mut codes: Codes = [0; BLOCK];
        unpack::<WIDTH>(last, &mut codes);
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = (r[i] - code.value(codes[i])) + g[i];
        }
    }
    finite(sums)
}

/// As [`sum_block`], for fewer values; what is beyond them becomes zero.
#[inline(always)]
fn sum_rest<const WIDTH: usize, C: Code>(
    r: &[f32; BLOCK],
    g: &[f32; BLOCK],
    length: usize,
    last: &[u8],
    code: &C,
    sums: &mut [f32; BLOCK],
) -> bool {
    let mut codes: Codes = [0; BLOCK];
    if !last.is_empty() {
        unpack::<WIDTH>(last, &mut codes[..length]);
    }
    sums.fill(0.0);
    for i in 0..length {
        let said = if last.is_empty() { 0.0 } else { code.value(codes[i]) };
        sums[i] = (r[i] - said) + g[i];
    }
    finite(sums)
}

#[inline(always)]
fn finite(values: &[f32; BLOCK]) -> bool {
    let largest = values.iter().fold(0, |largest: i32, v| largest.max((v.to_bits() & 0x7fff_ffff) as i32));
    largest < 0x7f80_0000
}

/// Adds to the figures; zeros change none.
#[inline(always)]
fn note<C: Code, A: Ask>(values: &[f32; BLOCK], code: &C, partial: &mut Partial) {
    let threshold = code.threshold();
    let [all, above] = &mut partial.sums;
    let [smallest, smallest_above] = &mut partial.smallest;
    for row in values.as_chunks::<LANES>().0 {
        if A::MEANS || C::LARGE {
            all.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(value.abs()));
        }
        if C::LARGE {
            for (sum, value) in above.iter_mut().zip(row) {
                *sum += f64::from(if value.abs() > threshold { value.abs() } else { 0.0 });
            }
            partial.large += row.iter().map(|value| u32::from(value.abs() > threshold)).sum::<u32>() as usize;
        }
        if !A::MEANS {
            least(smallest, row, 0.0);
            if C::LARGE {
                least(smallest_above, row, threshold);
            }
        }
    }
}

/// Lowers `smallest` to the magnitudes above `bound`.
#[inline(always)]
fn least(smallest: &mut [f32; LANES], row: &[f32; LANES], bound: f32) {
    for (smallest, value) in smallest.iter_mut().zip(row) {
        let candidate = if value.abs() > bound { value.abs() } else { f32::INFINITY };
        *smallest = if candidate < *smallest { candidate } else { *smallest };
    }
}

#[inline(always)]
fn encode<const WIDTH: usize, C: Code>(values: &[f32; BLOCK], length: usize, code: &C, next: &mut [u8]) {
    let mut codes: Codes = [0; BLOCK];
    codes.iter_mut().zip(values).for_each(|(c, &value)| *c = code.code(value));
    pack::<WIDTH>(&codes[..length], next);
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
