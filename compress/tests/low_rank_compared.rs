//! The compressors that PowerSGD is compared with: unbiased rank r, best rank r, Spectral Atomo.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::spectral::{Components, best_low_rank, probabilities, spectral_atomo};
use brevity_compress::low_rank::{UnbiasedLowRank, Workspace, product};
use nalgebra::DMatrix;
use proptest::prelude::*;

fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    Generator::new(seed).fill_normal(&mut values);
    values
}

fn singular_values(m: &[f32], rows: usize, cols: usize) -> Vec<f64> {
    let m = DMatrix::from_row_iterator(rows, cols, m.iter().map(|&v| f64::from(v)));
    m.singular_values().iter().copied().collect()
}

fn reconstructed(components: &Components, n: usize) -> Vec<f32> {
    let mut sum = vec![0.0; n];
    components.add_to(&mut sum, &mut Workspace::default()).unwrap();
    sum
}

fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

const DRAWS: usize = 20_000;

/// For many draws of an unbiased estimate of `m`: the squared distance of their mean from `m`, and their mean
/// squared distance from it.
fn statistics(m: &[f32], mut draw: impl FnMut(&mut [f32])) -> (f64, f64) {
    let (mut sum, mut squares, mut estimate) = (vec![0.0_f64; m.len()], 0.0, vec![0.0; m.len()]);
    for _ in 0..DRAWS {
        draw(&mut estimate);
        squares += squared_distance(&estimate, m);
        sum.iter_mut().zip(&estimate).for_each(|(sum, v)| *sum += f64::from(*v));
    }
    let gap = |(sum, v): (&f64, &f32)| (sum / DRAWS as f64 - f64::from(*v)).powi(2);
    (sum.iter().zip(m).map(gap).sum(), squares / DRAWS as f64)
}

/// Checks the mean and the variance of independent draws. The squared distance of the mean of `DRAWS` has the
/// mean `variance / DRAWS`; nine times that is three times the usual distance. A draw's squared error is
/// between 0 and `largest`, so its deviation is at most half of that, and four deviations of the mean of
/// `DRAWS` are `2 * largest / sqrt(DRAWS)`.
fn check(what: &str, (bias, squares): (f64, f64), variance: f64, largest: f64) {
    let limit = 9.0 * variance / DRAWS as f64;
    assert!(bias < limit, "{what}: the mean is off by {bias} squared, expected less than {limit}");
    let tolerance = 2.0 * largest / (DRAWS as f64).sqrt() + 1e-5 * variance;
    assert!(
        (squares - variance).abs() < tolerance,
        "{what}: variance {squares}, expected {variance} +- {tolerance}"
    );
}

#[test]
fn unbiased_rank_r_has_the_mean_and_variance_of_theory() {
    for (rows, cols, rank) in [(6, 8, 2), (9, 5, 1), (3, 20, 3)] {
        let m = normal(rows * cols, 7);
        let norm = squared_distance(&m, &vec![0.0; m.len()]);
        let mut compressor = UnbiasedLowRank::new(rows, cols, rank, 11).unwrap();
        let (mut p, mut workspace) = (vec![0.0; compressor.p_len()], Workspace::default());
        let found = statistics(&m, |estimate| {
            compressor.draw(&mut workspace);
            compressor.compress(&m, &mut p, &mut workspace).unwrap();
            compressor.reconstruct(&p, estimate, &mut workspace).unwrap();
        });
        // M is multiplied by `stretch` times a projection: its error is M times something of norm at most
        // `stretch - 1`.
        let stretch = cols as f64 / rank as f64;
        let largest = (stretch - 1.0).max(1.0).powi(2) * norm;
        check(&format!("{rows} x {cols}, rank {rank}"), found, (stretch - 1.0) * norm, largest);
    }
}

#[test]
fn ranks_draw_the_same_factor_and_each_step_another() {
    let mut ranks = [(); 2].map(|()| UnbiasedLowRank::new(10, 12, 3, 5).unwrap());
    let (mut before, mut workspace) = (Vec::new(), Workspace::default());
    for _ in 0..5 {
        ranks.iter_mut().for_each(|rank| rank.draw(&mut workspace));
        assert!(ranks[0].u().iter().zip(ranks[1].u()).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_ne!(ranks[0].u(), before);
        before = ranks[0].u().to_vec();
        let u = DMatrix::from_row_slice(12, 3, ranks[0].u());
        let departure = (u.transpose() * &u - DMatrix::identity(3, 3) * 4.0).abs().max();
        assert!(departure < 1e-5, "{departure}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Eckart and Young: the rest has the singular values that were not taken.
    #[test]
    fn best_rank_r_leaves_the_smallest_singular_values(
        rows in 1_usize..20,
        cols in 1_usize..20,
        rank in 0_usize..25,
        seed: u64,
    ) {
        let m = normal(rows * cols, seed);
        let components = best_low_rank(&m, rows, cols, rank).unwrap();
        prop_assert_eq!(components.count(), rank.min(rows).min(cols));
        let left = squared_distance(&reconstructed(&components, m.len()), &m).sqrt();
        let values = singular_values(&m, rows, cols);
        let best = values.iter().skip(rank).map(|v| v * v).sum::<f64>().sqrt();
        prop_assert!((left - best).abs() < 1e-5 * values[0], "left {}, best {}", left, best);
    }

    /// Of all probabilities with that sum these give the least variance: proportional to the singular values
    /// below one, and no smaller value is certain while a larger one is not.
    #[test]
    fn probabilities_are_those_of_least_variance(
        values in prop::collection::vec(0.0_f64..10.0, 0..20),
        count in 0_usize..25,
    ) {
        let mut values = values;
        values.sort_by(|a, b| b.total_cmp(a));
        let found = probabilities(&values, count);
        let positive = values.iter().filter(|&&v| v > 0.0).count();
        prop_assert!((found.iter().sum::<f64>() - count.min(positive) as f64).abs() < 1e-9, "{:?}", found);
        prop_assert!(found.iter().all(|p| (0.0..=1.0).contains(p)), "{:?}", found);
        prop_assert!(found.is_sorted_by(|a, b| a >= b), "{:?}", found);
        let ratios: Vec<f64> =
            found.iter().zip(&values).filter(|(p, _)| **p < 1.0).map(|(p, v)| p / v).collect();
        prop_assert!(
            count == 0 || ratios.windows(2).all(|w| (w[0] - w[1]).abs() <= 1e-9 * w[0]),
            "{:?}",
            ratios
        );
    }
}

#[test]
fn spectral_atomo_has_the_mean_and_variance_of_theory() {
    for (rows, cols, rank) in [(8, 5, 2), (4, 9, 1), (6, 6, 4)] {
        let m = normal(rows * cols, 3);
        let values = singular_values(&m, rows, cols);
        let kept = probabilities(&values, rank);
        let of_each = values.iter().zip(&kept).map(|(value, p)| (value * value, 1.0 / p - 1.0));
        let variance = of_each.clone().map(|(square, factor)| square * factor).sum();
        let largest = of_each.map(|(square, factor)| square * factor.max(1.0).powi(2)).sum();
        let (mut generator, mut workspace) = (Generator::new(5), Workspace::default());
        let found = statistics(&m, |estimate| {
            let components = spectral_atomo(&m, rows, cols, rank, &mut generator).unwrap();
            assert_eq!(components.count(), rank);
            estimate.fill(0.0);
            components.add_to(estimate, &mut workspace).unwrap();
        });
        check(&format!("{rows} x {cols}, rank {rank}"), found, variance, largest);
    }
}

#[test]
fn degenerate_matrices_give_neither_nan_nor_panic() {
    let (mut generator, mut workspace) = (Generator::new(1), Workspace::default());
    for (rows, cols) in [(0, 0), (0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (3, 4)] {
        for rank in [0, 1, 3, 100] {
            for fill in [0.0, 1.0, 1e-42, 1e30] {
                let m = vec![fill; rows * cols];
                for components in [
                    best_low_rank(&m, rows, cols, rank).unwrap(),
                    spectral_atomo(&m, rows, cols, rank, &mut generator).unwrap(),
                ] {
                    assert!(components.p().iter().chain(components.q()).all(|v| v.is_finite()));
                    // All rows are equal: the rank is one, and one component represents it.
                    let off = reconstructed(&components, m.len())
                        .iter()
                        .any(|v| (v - fill).abs() > fill * 1e-5 + 2e-44);
                    assert!(rank == 0 || !off, "{rows} x {cols}, rank {rank}, {fill}: {components:?}");
                }
                let mut unbiased = UnbiasedLowRank::new(rows, cols, rank, 2).unwrap();
                let (mut p, mut out) = (vec![f32::NAN; unbiased.p_len()], vec![f32::NAN; m.len()]);
                unbiased.draw(&mut workspace);
                unbiased.compress(&m, &mut p, &mut workspace).unwrap();
                unbiased.reconstruct(&p, &mut out, &mut workspace).unwrap();
                assert!(out.iter().all(|v| v.is_finite()), "{rows} x {cols}, rank {rank}, {fill}: {out:?}");
            }
        }
    }
    assert!(matches!(best_low_rank(&[f32::NAN; 4], 2, 2, 1), Err(Error::NonFinite { index: 0, .. })));
    assert!(matches!(best_low_rank(&[1.0; 4], 2, 3, 1), Err(Error::ShapeMismatch { found: 4, .. })));
}

#[test]
fn the_factor_of_a_step_does_not_depend_on_what_was_drawn_before() {
    let mut workspace = Workspace::default();
    let drawn = |before: &[u64], step: u64, workspace: &mut Workspace| {
        let mut state = UnbiasedLowRank::new(6, 9, 2, 5).unwrap();
        before.iter().for_each(|&step| state.draw_for(step, workspace));
        state.draw_for(step, workspace);
        state.u().to_vec()
    };
    let third = drawn(&[], 3, &mut workspace);
    assert_eq!(third, drawn(&[3, 0, 8], 3, &mut workspace));
    assert_ne!(third, drawn(&[], 4, &mut workspace));
    let mut counted = UnbiasedLowRank::new(6, 9, 2, 5).unwrap();
    counted.draw(&mut workspace);
    assert_eq!(counted.u(), drawn(&[], 0, &mut workspace));
    assert_eq!((counted.dimensions(), counted.seed()), ([6, 9, 2], 5));
}

/// Blocks of rows, as they are decoded one by one, have the bits of the whole.
#[test]
fn rows_of_a_product_have_the_bits_of_the_whole() {
    let mut workspace = Workspace::default();
    for (rows, cols, rank) in [(1, 1, 1), (7, 33, 2), (40, 5, 3), (9, 300, 9)] {
        let (p, q) = (normal(rows * rank, 1), normal(cols * rank, 2));
        let mut whole = vec![0.0; rows * cols];
        product(&p, &q, rank, &mut whole, &mut workspace).unwrap();
        for (row, found) in whole.chunks(cols).enumerate() {
            for (col, found) in found.iter().enumerate() {
                let terms = (0..rank).map(|r| f64::from(p[row * rank + r]) * f64::from(q[col * rank + r]));
                assert!((f64::from(*found) - terms.sum::<f64>()).abs() < 1e-5 * rank as f64);
            }
        }
        for height in [1, 3, 4] {
            let mut found = vec![f32::NAN; rows * cols];
            for (p, out) in p.chunks(height * rank).zip(found.chunks_mut(height * cols)) {
                product(p, &q, rank, out, &mut workspace).unwrap();
            }
            assert_eq!(found, whole, "{rows} x {cols}, rank {rank}, {height} rows");
        }
    }
    for (p, q, rank, out) in [(3, 4, 2, 4), (4, 5, 2, 4), (4, 4, 2, 5), (2, 2, 0, 1)] {
        let refused = product(&vec![1.0; p], &vec![1.0; q], rank, &mut vec![0.0; out], &mut workspace);
        assert!(matches!(refused, Err(Error::ShapeMismatch { .. })), "{p}, {q}, {rank}, {out}");
    }
}
