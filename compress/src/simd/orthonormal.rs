//! The column operations of Gram-Schmidt, computed in `f64`.

use super::per_level;

/// Partial sums of a dot product.
const SUMS: usize = 16;

per_level! {
    /// The dot product of two columns of equal length: sixteen partial sums, added pairwise.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
        let mut sums = [0.0_f64; SUMS];
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<SUMS>(), b.as_chunks::<SUMS>());
        for (a, b) in a.iter().zip(b) {
            for i in 0..SUMS {
                sums[i] += f64::from(a[i]) * f64::from(b[i]);
            }
        }
        for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
            *sum += f64::from(*a) * f64::from(*b);
        }
        let mut half = SUMS / 2;
        while half > 0 {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
            half /= 2;
        }
        sums[0]
    }
}

per_level! {
    /// `column -= share * earlier`.
    pub(crate) fn subtract(column: &mut [f32], share: f64, earlier: &[f32]) {
        let both = column.iter_mut().zip(earlier);
        both.for_each(|(v, earlier)| *v = (f64::from(*v) - share * f64::from(*earlier)) as f32);
    }
}

per_level! {
    /// `column *= factor`.
    pub(crate) fn scale(column: &mut [f32], factor: f64) {
        column.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    proptest! {
        #[test]
        fn every_level_gives_the_same_bits(
            pairs in prop::collection::vec((-1e30_f32..1e30, -1e3_f32..1e3), 0..100),
            factor in -10.0_f64..10.0,
        ) {
            let (a, b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            let run = |level| {
                let (mut less, mut scaled) = (a.clone(), a.clone());
                subtract(level, &mut less, factor, &b);
                scale(level, &mut scaled, factor);
                let bits: Vec<u32> = less.iter().chain(&scaled).map(|v| v.to_bits()).collect();
                (dot(level, &a, &b).to_bits(), bits)
            };
            let results: Vec<_> = Level::available().map(run).collect();
            prop_assert!(results.iter().all(|result| *result == results[0]), "{:?}", results);
        }
    }
}
