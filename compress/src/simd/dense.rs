//! Sums of dense vectors.

use super::per_level;

per_level! {
    /// `a += b`, element by element, as far as the shorter of the two reaches.
    pub(crate) fn add_assign(a: &mut [f32], b: &[f32]) {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    proptest! {
        #[test]
        fn every_level_adds_alike(pairs in prop::collection::vec(any::<(f32, f32)>(), 0..200)) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| canonical(a + b)).collect();
            for level in Level::available() {
                let mut sum = a.clone();
                add_assign(level, &mut sum, &b);
                let found: Vec<u32> = sum.into_iter().map(canonical).collect();
                prop_assert_eq!(&found, &expected, "{}", level.name());
            }
        }
    }

    /// The bits, but of any NaN those of one.
    fn canonical(value: f32) -> u32 {
        if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
    }
}
