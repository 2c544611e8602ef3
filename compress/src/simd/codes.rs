//! Converts values to codes of at most 8 bits and codes to values, and computes the figures of a code's
//! scale.
//!
//! Slices of one call have equal lengths; those of `u8` have at most [`BLOCK`](super::pack::BLOCK) elements.
//! Sums use 64 partial sums of `f64`, which are then added in order.

use super::per_level;
use crate::generator::dither;

/// The number of partial results of sums and extremes.
const LANES: usize = 64;

/// A sign bit, 1 for negative.
#[inline(always)]
pub(super) fn sign_code(value: f32) -> u8 {
    (value.to_bits() >> 31) as u8
}

#[inline(always)]
pub(super) fn sign_value(code: u8, scale: f32) -> f32 {
    f32::from_bits(scale.to_bits() ^ u32::from(code) << 31)
}

/// The sign bit, and below it whether the magnitude is above `threshold`.
#[inline(always)]
pub(super) fn two_bit_code(value: f32, threshold: f32) -> u8 {
    sign_code(value) << 1 | u8::from(value.abs() > threshold)
}

#[inline(always)]
pub(super) fn two_bit_value(code: u8, [small, large]: [f32; 2]) -> f32 {
    let magnitude = if code & 1 == 0 { small } else { large };
    f32::from_bits(magnitude.to_bits() ^ u32::from(code >> 1) << 31)
}

/// `smallest + code * step`, computed in halves, because the distance from the smallest to the largest value
/// may overflow an `f32`.
#[inline(always)]
pub(crate) fn min_max_point(smallest: f32, step: f32, code: u8) -> f32 {
    2.0 * (0.5 * smallest + f32::from(code) * (0.5 * step))
}

per_level! {
    pub(crate) fn sign_codes(values: &[f32], codes: &mut [u8]) {
        codes.iter_mut().zip(values).for_each(|(code, &value)| *code = sign_code(value));
    }
}

per_level! {
    /// 1 for what is not zero.
    pub(crate) fn non_zero_codes(values: &[f32], codes: &mut [u8]) {
        codes.iter_mut().zip(values).for_each(|(code, &value)| *code = u8::from(value != 0.0));
    }
}

per_level! {
    /// Whether a value is zero. Reads all, which is faster than a branch for each.
    pub(crate) fn has_zero(values: &[f32]) -> bool {
        values.iter().fold(false, |found, &value| found | (value == 0.0))
    }
}

per_level! {
    pub(crate) fn sign_values(codes: &[u8], scale: f32, values: &mut [f32]) {
        values.iter_mut().zip(codes).for_each(|(value, &code)| *value = sign_value(code, scale));
    }
}

per_level! {
    pub(crate) fn two_bit_values(codes: &[u8], levels: [f32; 2], values: &mut [f32]) {
        values.iter_mut().zip(codes).for_each(|(value, &code)| *value = two_bit_value(code, levels));
    }
}

per_level! {
    /// TernGrad: 1 with probability `|v| / scale`, at most 1, otherwise 0; bit 1 is the sign of a 1. `scale`
    /// is positive, and `first` is the position of the first value in its vector.
    pub(crate) fn ternary_codes(values: &[f32], scale: f32, key: [u32; 2], first: u32, codes: &mut [u8]) {
        let mut place = first;
        for (code, &value) in codes.iter_mut().zip(values) {
            let one = dither(key, place) * scale < value.abs();
            *code = u8::from(one) | u8::from(one & (value < 0.0)) << 1;
            place = place.wrapping_add(1);
        }
    }
}

per_level! {
    pub(crate) fn ternary_values(codes: &[u8], scale: f32, values: &mut [f32]) {
        for (value, &code) in values.iter_mut().zip(codes) {
            let magnitude = if code & 1 == 0 { 0.0 } else { scale };
            *value = if code & 2 == 0 { magnitude } else { -magnitude };
        }
    }
}

/// Two factors with the product `numerator / denominator`, which itself may overflow an `f32`. Neither
/// argument is 0.
#[inline(always)]
fn quotient(numerator: f32, denominator: f32) -> [f32; 2] {
    let large = if denominator < 1e-30 { 18_446_744_073_709_551_616.0 } else { 1.0 };
    [large, numerator / (denominator * large)]
}

/// The distance between two levels of QSGD.
#[inline(always)]
pub(crate) fn qsgd_step(norm: f32, levels: u8) -> f32 {
    let step = norm / f32::from(levels);
    // If it was rounded up, the highest level might overflow.
    if (step * f32::from(levels)).is_finite() { step } else { step * (1.0 - f32::EPSILON) }
}

/// The value rounded down, clamped to 0 to `most`.
#[inline(always)]
fn whole(value: f32, most: f32) -> i32 {
    // Compiles to one instruction; gives `most` for a NaN.
    let value = if value < most { value } else { most };
    let value = if value > 0.0 { value } else { 0.0 };
    // SAFETY: the value is from 0 to `most`, which is at most 255, for every input.
    unsafe { value.to_int_unchecked() }
}

per_level! {
    /// QSGD: `levels + sign(v) * (|v| / norm * levels, rounded up with the probability of its fraction)`;
    /// `norm` is not 0.
    pub(crate) fn qsgd_codes(
        values: &[f32],
        norm: f32,
        levels: u8,
        key: [u32; 2],
        first: u32,
        codes: &mut [u8],
    ) {
        let [large, rest] = quotient(f32::from(levels), norm);
        let mut place = first;
        for (code, &value) in codes.iter_mut().zip(values) {
            let level = whole(value.abs() * large * rest + dither(key, place), f32::from(levels));
            *code = (i32::from(levels) + if value < 0.0 { -level } else { level }) as u8;
            place = place.wrapping_add(1);
        }
    }
}

per_level! {
    pub(crate) fn qsgd_values(codes: &[u8], norm: f32, levels: u8, values: &mut [f32]) {
        let step = qsgd_step(norm, levels);
        for (value, &code) in values.iter_mut().zip(codes) {
            *value = (i32::from(code) - i32::from(levels)) as f32 * step;
        }
    }
}

per_level! {
    /// `(v - smallest) / step`, rounded to nearest; `step` is not 0. Half values are subtracted, which can't
    /// overflow.
    pub(crate) fn min_max_codes(values: &[f32], smallest: f32, step: f32, codes: &mut [u8]) {
        let [large, rest] = quotient(2.0, step);
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = whole((0.5 * value - 0.5 * smallest) * large * rest + 0.5, 255.0) as u8;
        }
    }
}

per_level! {
    pub(crate) fn min_max_values(codes: &[u8], smallest: f32, step: f32, values: &mut [f32]) {
        values.iter_mut().zip(codes).for_each(|(value, &code)| *value = min_max_point(smallest, step, code));
    }
}

per_level! {
    /// Sum of `v^2`.
    pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
        let mut sums = [0.0; LANES];
        for row in values.chunks(LANES) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        sums.iter().sum()
    }
}

per_level! {
    /// The smallest and the largest value; infinity and minus infinity for an empty slice.
    pub(crate) fn extremes(values: &[f32]) -> (f32, f32) {
        let (mut smallest, mut largest) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        for row in values.chunks(LANES) {
            for ((smallest, largest), &value) in smallest.iter_mut().zip(&mut largest).zip(row) {
                *smallest = if value < *smallest { value } else { *smallest };
                *largest = if value > *largest { value } else { *largest };
            }
        }
        (
            smallest.into_iter().fold(f32::INFINITY, f32::min),
            largest.into_iter().fold(f32::NEG_INFINITY, f32::max),
        )
    }
}

per_level! {
    /// `into += factor * values`.
    pub(crate) fn add_scaled(into: &mut [f32], factor: f32, values: &[f32]) {
        into.iter_mut().zip(values).for_each(|(into, value)| *into += factor * value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;
    use crate::simd::pack::BLOCK;

    /// All kernel results for some values, as bits.
    fn results(level: Level, values: &[f32], bound: f32, key: [u32; 2]) -> Vec<u64> {
        let mut bits: Vec<u64> = vec![sum_of_squares(level, values).to_bits()];
        let (smallest, largest) = extremes(level, values);
        bits.extend([smallest, largest].map(|v| u64::from(v.to_bits())));
        for values in values.chunks(BLOCK) {
            let (mut codes, mut decoded) = (vec![0; values.len()], vec![0.0; values.len()]);
            let mut note = |codes: &[u8], decoded: &mut [f32]| {
                bits.extend(codes.iter().map(|&code| u64::from(code)));
                bits.extend(decoded.iter().map(|v| u64::from(v.to_bits())));
            };
            sign_codes(level, values, &mut codes);
            sign_values(level, &codes, bound, &mut decoded);
            note(&codes, &mut decoded);
            codes.iter_mut().for_each(|code| *code = *code << 1 | 1);
            two_bit_values(level, &codes, [0.25, bound], &mut decoded);
            note(&codes, &mut decoded);
            ternary_codes(level, values, bound, key, 7, &mut codes);
            ternary_values(level, &codes, bound, &mut decoded);
            note(&codes, &mut decoded);
            for levels in [1, 7, 127] {
                qsgd_codes(level, values, bound, levels, key, 7, &mut codes);
                qsgd_values(level, &codes, bound, levels, &mut decoded);
                note(&codes, &mut decoded);
            }
            min_max_codes(level, values, -bound, bound / 100.0, &mut codes);
            min_max_values(level, &codes, -bound, bound / 100.0, &mut decoded);
            note(&codes, &mut decoded);
            add_scaled(level, &mut decoded, bound, values);
            note(&codes, &mut decoded);
        }
        bits
    }

    proptest! {
        #[test]
        fn every_level_gives_the_same_bits(
            values in prop::collection::vec(prop_oneof![4 => -2.0_f32..2.0, 1 => -1e30_f32..1e30], 0..700),
            bound in prop_oneof![3 => 0.01_f32..3.0, 1 => 1e-20_f32..1e20],
            key: [u32; 2],
        ) {
            let expected = results(Level::available().next().unwrap(), &values, bound, key);
            for level in Level::available() {
                let found = results(level, &values, bound, key);
                let wrong = found.iter().zip(&expected).position(|(f, e)| f != e);
                prop_assert_eq!(wrong, None, "{}", level.name());
            }
        }
    }
}
