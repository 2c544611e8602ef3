//! One step of 1-bit and 2-bit quantisation with error feedback, in one pass over memory.
//!
//! The scale of a message is known only after all values have been read, and the error only with the scale.
//! So the next step's pass subtracts the error of a message from the residual. It reads the message's bits
//! again: `r = (r - d) + g`, where `d` is the decoded last message; then it computes the bits of `r` and the
//! figures for the next scale.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod figures;

use block::{block, magnitudes_of, sum_rest, write};
pub use figures::Figures;
use figures::Partial;

#[cfg(target_arch = "x86_64")]
use super::Kind;
use super::codes::{sign_code, sign_value, two_bit_code, two_bit_value};
use super::pack::{BLOCK, packed_bytes};
use super::{Level, per_level};

/// Values in a row: four cache lines.
const LANES: usize = 64;

/// The prefetch distance for values: one and a half blocks. A whole number of blocks would use the same sets
/// of the nearest cache as the current block.
const AHEAD_BYTES: usize = 3072;
/// The prefetch distance for codes.
const CODES_AHEAD_BYTES: usize = 1024;

type Row = [f32; LANES];

/// A code of one or two bits.
trait Code {
    /// Whether the code has magnitudes above a threshold.
    const LARGE: bool;
    fn code(&self, value: f32) -> u8;
    fn value(&self, code: u8) -> f32;
    fn threshold(&self) -> f32;
}

/// The sign times `scale`.
#[derive(Clone, Copy)]
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

/// The sign times the first level, or times the second level for values above the threshold.
#[derive(Clone, Copy)]
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

/// The values that a step quantises.
pub(crate) enum Values<'a> {
    /// `r`, after subtracting the last message and adding `g`; lengths are equal.
    Sum { r: &'a mut [f32], g: &'a [f32] },
    /// These values without a residual.
    Alone(&'a [f32]),
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Sum { r, .. } => r.len(),
            Self::Alone(values) => values.len(),
        }
    }
}

/// One step: values, and packed codes for as many. `last` is empty for the first step and without a residual.
/// Public for the same reason as [`Figures`].
pub struct Step<'a> {
    pub(crate) values: Values<'a>,
    pub(crate) last: &'a [u8],
    pub(crate) next: &'a mut [u8],
}

/// A block of a step. Without a last message its codes are zeros, and the code's values are 0.
struct Block<'a> {
    r: &'a mut [f32; BLOCK],
    g: &'a [f32; BLOCK],
    last: &'a [u8],
    next: &'a mut [u8],
}

/// A step with one bit a value, after a message of magnitude `scale`. If a value is not finite, fails with
/// the number of values that were processed, in whole blocks.
pub(crate) fn step_one_bit(level: Level, step: Step<'_>, scale: f32, means: bool) -> Result<Figures, usize> {
    let code = OneBit { scale: if step.last.is_empty() { 0.0 } else { scale } };
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::run::<1, _>(step, &code, means) },
        _ => one_bit_in_one_body(level, step, code, means),
    }
}

/// Like [`step_one_bit`], with two bits a value, the last message's two magnitudes, and the threshold for the
/// next message.
pub(crate) fn step_two_bit(
    level: Level,
    step: Step<'_>,
    levels: [f32; 2],
    threshold: f32,
    means: bool,
) -> Result<Figures, usize> {
    let code = TwoBit { levels: if step.last.is_empty() { [0.0; 2] } else { levels }, threshold };
    match level.kind() {
        // SAFETY: a level of this kind exists only where the CPU was found to have these features.
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => unsafe { avx512::run::<2, _>(step, &code, means) },
        _ => two_bit_in_one_body(level, step, code, means),
    }
}

per_level! {
    fn one_bit_in_one_body(step: Step<'_>, code: OneBit, means: bool) -> Result<Figures, usize> {
        if means {
            run::<1, true, _>(step, &code, |of, partial| block::<1, true, _>(of, &code, partial))
        } else {
            run::<1, false, _>(step, &code, |of, partial| block::<1, false, _>(of, &code, partial))
        }
    }
}

per_level! {
    fn two_bit_in_one_body(step: Step<'_>, code: TwoBit, means: bool) -> Result<Figures, usize> {
        if means {
            run::<2, true, _>(step, &code, |of, partial| block::<2, true, _>(of, &code, partial))
        } else {
            run::<2, false, _>(step, &code, |of, partial| block::<2, false, _>(of, &code, partial))
        }
    }
}

/// Processes the blocks in order, then the rest. `block` does what [`block()`] documents.
#[inline(always)]
fn run<const WIDTH: usize, const MEANS: bool, C: Code>(
    Step { values, last, next }: Step<'_>,
    code: &C,
    mut block: impl FnMut(Block<'_>, &mut Partial) -> bool,
) -> Result<Figures, usize> {
    const NOTHING: [u8; 2 * LANES] = [0; 2 * LANES];
    let bytes = packed_bytes(BLOCK, WIDTH);
    let (done, rest) = (values.len() / BLOCK, values.len() % BLOCK);
    let (next, next_rest) = next.split_at_mut(done * bytes);
    let nexts = next.chunks_exact_mut(bytes);
    let (mut partial, mut sums) = (Partial::new(), [0.0; BLOCK]);
    match values {
        Values::Sum { r, g } => {
            let ((r, r_rest), (g, g_rest)) = (r.as_chunks_mut(), g.as_chunks());
            for (at, ((r, g), next)) in r.iter_mut().zip(g).zip(nexts).enumerate() {
                let last = if last.is_empty() { &NOTHING[..bytes] } else { &last[at * bytes..][..bytes] };
                if !block(Block { r, g, last, next }, &mut partial) {
                    return Err(at * BLOCK);
                }
            }
            sum_rest::<WIDTH, C>(
                r_rest,
                g_rest,
                last.get(done * bytes..).unwrap_or_default(),
                code,
                &mut sums,
            );
            if !partial.add_magnitudes(&sums, &magnitudes_of(&sums, code), code) {
                return Err(done * BLOCK);
            }
            r_rest.copy_from_slice(&sums[..rest]);
        }
        Values::Alone(values) => {
            let (values, values_rest) = values.as_chunks();
            for (at, (g, next)) in values.iter().zip(nexts).enumerate() {
                // Not 0, to which -0 can't be added.
                let mut r = [-0.0; BLOCK];
                if !block(Block { r: &mut r, g, last: &NOTHING[..bytes], next }, &mut partial) {
                    return Err(at * BLOCK);
                }
            }
            sums[..rest].copy_from_slice(values_rest);
            if !partial.add_magnitudes(&sums, &magnitudes_of(&sums, code), code) {
                return Err(done * BLOCK);
            }
        }
    }
    write::<WIDTH, MEANS, C>(&sums, rest, code, next_rest, &mut partial);
    Ok(partial.total())
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
            let step = Step { values: Values::Sum { r: &mut r, g }, last: &last, next: &mut next };
            let levels = [0.5, 1.5].map(|v| v / (1 + number) as f32);
            let result = if two {
                step_two_bit(level, step, levels, 0.9, means)
            } else {
                step_one_bit(level, step, 0.7, means)
            };
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

    /// The results for values alone: figures and message, as bits.
    fn encoded(level: Level, values: &[f32], two: bool, means: bool) -> Vec<u64> {
        let mut next = vec![0; packed_bytes(values.len(), if two { 2 } else { 1 })];
        let step = Step { values: Values::Alone(values), last: &[], next: &mut next };
        let result = if two {
            step_two_bit(level, step, [0.0; 2], 0.9, means)
        } else {
            step_one_bit(level, step, 0.0, means)
        };
        let mut bits = match result {
            Ok(figures) => figures.sums.map(f64::to_bits).to_vec(),
            Err(done) => vec![done as u64],
        };
        if let Ok(figures) = result {
            bits.extend(figures.smallest.map(|v| u64::from(v.to_bits())));
            bits.push(figures.large as u64);
            bits.extend(next.iter().map(|&byte| u64::from(byte)));
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
            let results = |level| (results(level, &g, two, means, steps), encoded(level, &g, two, means));
            let expected = results(Level::available().next().unwrap());
            for level in Level::available() {
                prop_assert!(results(level) == expected, "{}", level.name());
            }
        }
    }
}
