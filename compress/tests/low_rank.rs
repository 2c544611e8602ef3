//! PowerSGD's phases against dense products and singular values.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use brevity_compress::Error;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{LowRank, Workspace, orthonormalise, worth_it};
use nalgebra::DMatrix;
use proptest::prelude::*;

fn normal_matrix(rows: usize, cols: usize, seed: u64) -> Vec<f32> {
    let mut m = vec![0.0; rows * cols];
    Generator::new(seed).fill_normal(&mut m);
    m
}

fn dense(rows: usize, cols: usize, values: &[f32]) -> DMatrix<f64> {
    DMatrix::from_row_iterator(rows, cols, values.iter().map(|&v| f64::from(v)))
}

/// One step with one rank; leaves the error in `m`, and returns the update.
fn step(state: &mut LowRank, m: &mut [f32]) -> Vec<f32> {
    let (mut p, mut q) = (vec![0.0; state.p_len()], vec![0.0; state.q_len()]);
    let (mut update, mut workspace) = (vec![f32::NAN; m.len()], Workspace::default());
    state.left_factor(m, &mut p, &mut workspace).unwrap();
    state.orthonormalise(&mut p, &mut workspace).unwrap();
    state.right_factor(m, &p, &mut q, &mut workspace).unwrap();
    state.reconstruct(&p, &q, &mut update, &mut workspace).unwrap();
    state.subtract_reconstruction(&p, &q, m, &mut workspace).unwrap();
    state.set_q(&q).unwrap();
    update
}

/// The largest departure of `P^T P` from the identity.
fn departure(p: &[f32], rows: usize, rank: usize) -> f64 {
    let p = dense(rows, rank, p);
    (p.transpose() * p - DMatrix::identity(rank, rank)).abs().max()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Widths on both sides of the edges of tiles and panels, ranks on both sides of eight columns and of
    /// sixteen.
    #[test]
    fn products_are_the_dense_ones(
        rows in 0_usize..40,
        cols in prop_oneof![0_usize..40, 505_usize..530, 4090_usize..4110],
        rank in 0_usize..20,
        seed: u64,
    ) {
        let state = LowRank::new(rows, cols, rank, seed).unwrap();
        let rank = state.rank();
        prop_assert_eq!(rank, [rows, cols, rank].into_iter().min().unwrap());
        let m = normal_matrix(rows, cols, seed ^ 1);
        let given_p = normal_matrix(rows, rank, seed ^ 2);
        let (mut p, mut q, mut out) =
            (vec![f32::NAN; rows * rank], vec![f32::NAN; cols * rank], vec![f32::NAN; m.len()]);
        let mut workspace = Workspace::default();
        state.left_factor(&m, &mut p, &mut workspace).unwrap();
        state.right_factor(&m, &given_p, &mut q, &mut workspace).unwrap();
        state.reconstruct(&given_p, state.q(), &mut out, &mut workspace).unwrap();
        let mut error = m.clone();
        state.subtract_reconstruction(&given_p, state.q(), &mut error, &mut workspace).unwrap();

        let (dense_m, dense_p, dense_q) =
            (dense(rows, cols, &m), dense(rows, rank, &given_p), dense(cols, rank, state.q()));
        let product = &dense_p * dense_q.transpose();
        for (found, expected) in [
            (dense(rows, rank, &p), &dense_m * &dense_q),
            (dense(cols, rank, &q), dense_m.transpose() * &dense_p),
            (dense(rows, cols, &out), product.clone()),
            (dense(rows, cols, &error), dense_m - product),
        ] {
            let worst = (found - expected).iter().fold(0.0_f64, |worst, d| worst.max(d.abs()));
            prop_assert!(worst < 1e-3, "{}", worst);
        }
    }

    /// Dependent, zero and tiny columns among independent ones.
    #[test]
    fn columns_become_orthonormal(
        rows in 1_usize..200,
        wanted in 1_usize..12,
        seed: u64,
        kinds in prop::collection::vec(0..5, 12),
    ) {
        let rank = wanted.min(rows);
        let mut p = normal_matrix(rows, rank, seed);
        for row in p.chunks_exact_mut(rank) {
            for c in 0..rank {
                match kinds[c] {
                    0 => row[c] = 0.0,
                    1 => row[c] = -3.0 * row[c / 2],
                    2 => row[c] *= 1e-44,
                    3 => row[c] = row[0] + row[c] * 1e-4,
                    _ => row[c] *= 1e35, // times 3 four times over is still finite
                }
            }
        }
        let mut twin = p.clone();
        let mut generators = [Generator::new(seed), Generator::new(seed)];
        orthonormalise(&mut p, rows, rank, &mut generators[0], &mut Workspace::default()).unwrap();
        prop_assert!(departure(&p, rows, rank) < 1e-5, "{}", departure(&p, rows, rank));
        orthonormalise(&mut twin, rows, rank, &mut generators[1], &mut Workspace::default()).unwrap();
        prop_assert!(p.iter().zip(&twin).all(|(a, b)| a.to_bits() == b.to_bits()));
        prop_assert_eq!(&generators[0], &generators[1]);
    }
}

#[test]
fn orthonormalising_keeps_the_span() {
    let (rows, rank) = (50, 4);
    let before = normal_matrix(rows, rank, 5);
    let mut p = before.clone();
    orthonormalise(&mut p, rows, rank, &mut Generator::new(0), &mut Workspace::default()).unwrap();
    let (before, p) = (dense(rows, rank, &before), dense(rows, rank, &p));
    let outside = &before - &p * (p.transpose() * &before);
    assert!(outside.norm() < 1e-5 * before.norm(), "{}", outside.norm());
}

#[test]
fn constant_input_converges_to_the_best_approximation() {
    let (rows, cols) = (40, 600);
    // Singular values fall by a third each, so that power iteration converges within the steps given.
    let mut m = DMatrix::zeros(rows, cols);
    for i in 0..12 {
        let (u, v) = (normal_matrix(rows, 1, 2 * i), normal_matrix(cols, 1, 2 * i + 1));
        m += dense(rows, 1, &u) * dense(1, cols, &v) * (2.0_f64 / 3.0).powi(i as i32);
    }
    let values: Vec<f32> = m.transpose().iter().map(|&v| v as f32).collect();
    let singular = m.singular_values();
    for rank in [1, 2, 4, 9] {
        let best = singular.iter().skip(rank).map(|s| s * s).sum::<f64>().sqrt();
        let mut state = LowRank::new(rows, cols, rank, 11).unwrap();
        let mut errors = Vec::new();
        for _ in 0..60 {
            let mut left = values.clone();
            step(&mut state, &mut left);
            errors.push(dense(rows, cols, &left).norm());
        }
        let last = errors[errors.len() - 1];
        assert!(last < best * 1.001 && last > best * 0.999, "rank {rank}: {last}, best {best}");
        assert!(errors[0] > last, "rank {rank}: the first step was already the best: {errors:?}");
    }
}

#[test]
fn degenerate_matrices_give_neither_nan_nor_panic() {
    for (rows, cols) in [(0, 0), (0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (3, 4)] {
        for rank in [0, 1, 3, 100] {
            for fill in [0.0, 1.0, 1e-42, 1e30] {
                let mut state = LowRank::new(rows, cols, rank, 3).unwrap();
                for _ in 0..3 {
                    let mut m = vec![fill; rows * cols];
                    let update = step(&mut state, &mut m);
                    assert!(m.iter().chain(&update).chain(state.q()).all(|v| v.is_finite()));
                    if rank > 0 {
                        // All rows are equal, so the rank is one and nothing is left.
                        assert!(m.iter().all(|v| v.abs() <= fill * 1e-5 + 2e-44), "{rows} x {cols}: {m:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn zero_gradient_does_not_end_learning() {
    let mut state = LowRank::new(6, 5, 2, 1).unwrap();
    step(&mut state, &mut [0.0; 30]);
    assert!(state.q().iter().all(|&v| v == 0.0));
    let m = normal_matrix(6, 5, 9);
    let before = dense(6, 5, &m).norm();
    let mut left = m;
    step(&mut state, &mut left);
    assert!(dense(6, 5, &left).norm() < 0.95 * before);
}

#[test]
fn errors_name_the_first_bad_element() {
    let state = LowRank::new(3, 4, 2, 1).unwrap();
    let mut m = vec![1.0; 12];
    m[7] = f32::NEG_INFINITY;
    let expected = Err(Error::NonFinite { index: 7, value: f32::NEG_INFINITY });
    let mut workspace = Workspace::default();
    assert_eq!(state.left_factor(&m, &mut [0.0; 6], &mut workspace), expected);
    assert_eq!(state.right_factor(&m, &[1.0; 6], &mut [0.0; 8], &mut workspace), expected);
    assert!(matches!(
        state.left_factor(&m[1..], &mut [0.0; 6], &mut workspace),
        Err(Error::ShapeMismatch { what: "M", rows: 3, cols: 4, found: 11 })
    ));
    let too_large = orthonormalise(&mut [1.0; 6], 2, 3, &mut Generator::new(0), &mut Workspace::default());
    assert_eq!(too_large, Err(Error::RankTooLarge { rank: 3, rows: 2 }));
    assert!(LowRank::new(usize::MAX, 2, 1, 0).is_err());
}

#[test]
fn compression_pays_for_large_matrices_only() {
    assert!(worth_it(512, 512, 4, 2.0));
    assert!(worth_it(512, 512, 127, 2.0));
    assert!(!worth_it(512, 512, 128, 2.0));
    assert!(!worth_it(1, 512, 4, 2.0));
    assert!(!worth_it(0, 0, 4, 2.0));
}
