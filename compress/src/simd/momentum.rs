//! Momentum: several vectors in one pass.

use super::per_level;

per_level! {
    /// `u = m u + c g; v += u`, up to the shortest length.
    pub(crate) fn correct(u: &mut [f32], v: &mut [f32], g: &[f32], m: f32, c: f32) {
        for ((u, v), g) in u.iter_mut().zip(v).zip(g) {
            *u = m * *u + c * g;
            *v += *u;
        }
    }
}

per_level! {
    /// `u = m u + c g; v += m u + c g`, up to the shortest length.
    pub(crate) fn correct_nesterov(u: &mut [f32], v: &mut [f32], g: &[f32], m: f32, c: f32) {
        for ((u, v), g) in u.iter_mut().zip(v).zip(g) {
            let g = c * g;
            *u = m * *u + g;
            *v += m * *u + g;
        }
    }
}

per_level! {
    /// `mom = m mom + update; x -= rate (update + mom)`, up to the shortest length.
    pub(crate) fn descend(mom: &mut [f32], x: &mut [f32], update: &[f32], m: f32, rate: f32) {
        for ((mom, x), update) in mom.iter_mut().zip(x).zip(update) {
            *mom = m * *mom + update;
            *x -= rate * (update + *mom);
        }
    }
}

per_level! {
    /// The bits of the largest magnitude of `r + factor g`, up to the shorter length.
    pub(crate) fn largest_scaled_sum(r: &[f32], factor: f32, g: &[f32]) -> u32 {
        let magnitudes = r.iter().zip(g).map(|(r, g)| ((r + factor * g).to_bits() & 0x7fff_ffff) as i32);
        magnitudes.fold(0, i32::max) as u32
    }
}

const LANES: usize = 32;

per_level! {
    /// The sum of squares, in a fixed order. Finite if all values are.
    pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
        let (blocks, rest) = values.as_chunks::<LANES>();
        let mut sums = [0.0_f64; LANES];
        for block in blocks {
            for (sum, &value) in sums.iter_mut().zip(block) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        for (sum, &value) in sums.iter_mut().zip(rest) {
            *sum += f64::from(value) * f64::from(value);
        }
        sums.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    /// The bits, with all NaNs mapped to one.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
    }

    proptest! {
        #[test]
        fn every_level_moves_alike(
            values in prop::collection::vec(any::<(f32, f32, f32)>(), 0..150),
            small in any::<bool>(),
            m in 0.0_f32..1.0,
            c in -2.0_f32..2.0,
        ) {
            // Arbitrary bits overflow soon; small values do not.
            let small = |v: f32| if small && v.is_finite() { v.abs().log2().clamp(-9.0, 9.0) } else { v };
            let u: Vec<f32> = values.iter().map(|v| small(v.0)).collect();
            let v: Vec<f32> = values.iter().map(|v| small(v.1)).collect();
            let g: Vec<f32> = values.iter().map(|v| small(v.2)).collect();
            let next: Vec<f32> = u.iter().zip(&g).map(|(u, g)| m * u + c * g).collect();
            let plain: Vec<f32> = v.iter().zip(&next).map(|(v, u)| v + u).collect();
            let nesterov: Vec<f32> = (0..v.len()).map(|i| v[i] + (m * next[i] + c * g[i])).collect();
            let mom: Vec<f32> = u.iter().zip(&g).map(|(u, g)| m * u + g).collect();
            let x: Vec<f32> = (0..v.len()).map(|i| v[i] - c * (g[i] + mom[i])).collect();
            let largest = (0..v.len()).map(|i| (v[i] + c * g[i]).abs().to_bits()).max().unwrap_or(0);
            let squares = sum_of_squares(Level::available().next().unwrap(), &g);
            for level in Level::available() {
                let (mut left, mut right) = (u.clone(), v.clone());
                correct(level, &mut left, &mut right, &g, m, c);
                prop_assert_eq!((bits(&left), bits(&right)), (bits(&next), bits(&plain)), "{}", level.name());
                let (mut left, mut right) = (u.clone(), v.clone());
                correct_nesterov(level, &mut left, &mut right, &g, m, c);
                prop_assert_eq!(
                    (bits(&left), bits(&right)),
                    (bits(&next), bits(&nesterov)),
                    "{}",
                    level.name()
                );
                let (mut left, mut right) = (u.clone(), v.clone());
                descend(level, &mut left, &mut right, &g, m, c);
                prop_assert_eq!((bits(&left), bits(&right)), (bits(&mom), bits(&x)), "{}", level.name());
                let found = largest_scaled_sum(level, &v, c, &g);
                // Which NaN a sum gives is not specified.
                prop_assert!(
                    found == largest || found > 0x7f80_0000 && largest > 0x7f80_0000,
                    "{}",
                    level.name()
                );
                let found = sum_of_squares(level, &g);
                prop_assert!(found == squares || found.is_nan() && squares.is_nan(), "{}", level.name());
            }
            let naive: f64 = g.iter().map(|&g| f64::from(g).powi(2)).sum();
            prop_assert!(squares == naive || (squares - naive).abs() <= 1e-12 * naive || naive.is_nan());
        }
    }
}
