//! Counts above many thresholds in one pass: each value is compared with all of them.

use super::per_level;
use crate::bits::magnitude;

per_level! {
    /// How many of `values` have a magnitude, as bits, of at least each rung. At most `u32::MAX` values.
    pub(crate) fn count_reaching(values: &[f32], rungs: &[u32; 32]) -> [u32; 32] {
        // Comparisons are signed and strict, because SSE2 and AVX2 have only these.
        let below = rungs.map(|rung| rung.min(1 << 31).wrapping_sub(1) as i32);
        let mut counts = [0; 32];
        for &value in values {
            let magnitude = magnitude(value) as i32;
            for (count, below) in counts.iter_mut().zip(below) {
                *count += u32::from(magnitude > below);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bits::INFINITE;
    use crate::simd::Level;

    /// Magnitudes near each other, and all others.
    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            6 => -4.0_f32..4.0,
            2 => any::<u32>().prop_map(f32::from_bits),
            1 => prop::sample::select(vec![0.0, -0.0, f32::INFINITY, f32::NAN, f32::MAX, -1e-45]),
        ]
    }

    fn rung() -> impl Strategy<Value = u32> {
        prop_oneof![
            6 => (0.0_f32..5.0).prop_map(f32::to_bits),
            2 => any::<u32>(),
            1 => prop::sample::select(vec![0, 1, INFINITE, (1 << 31) - 1, 1 << 31, u32::MAX]),
        ]
    }

    proptest! {
        #[test]
        fn every_level_counts_what_reaches_each_rung(
            values in prop::collection::vec(value(), 0..300),
            rungs in prop::array::uniform32(rung()),
        ) {
            // Some values lie on a rung.
            let on_rungs = rungs.iter().take(values.len() / 8).map(|&rung| f32::from_bits(rung));
            let values: Vec<f32> = values.iter().copied().chain(on_rungs).collect();
            let reach = |rung| values.iter().filter(|value| value.abs().to_bits() >= rung).count() as u32;
            let expected = rungs.map(reach);
            for level in Level::available() {
                prop_assert_eq!(count_reaching(level, &values, &rungs), expected, "{}", level.name());
            }
        }
    }
}
