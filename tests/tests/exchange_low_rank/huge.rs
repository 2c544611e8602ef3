//! Finite gradients whose approximation, or what it leaves of them, is not finite.

use brevity::GradientElement;
use brevity_tests::on_local;
use half::bf16;

use super::*;

const SHAPE: [usize; 2] = [5, 3];

/// Two orthonormal columns. The projection of a constant vector to their span has an element that is 1.6
/// times as large.
const COLUMNS: [[f32; 2]; 5] =
    [[0.6, 0.6], [0.5406, -0.1666], [-0.1666, 0.5406], [0.5406, -0.1666], [-0.1666, 0.5406]];

/// The first column of a matrix whose projection is beyond the largest number.
const HUGE: f32 = 0.65 * f32::MAX;

/// The matrix of these columns behind a constant one.
fn matrix(first: f32) -> Vec<f32> {
    COLUMNS.iter().flat_map(|[a, b]| [first, *a, *b]).collect()
}

/// What a rank sees of a step in which the last rank's matrix is huge: the error, and whether gradients,
/// residuals, what is saved and the next step are as they should be.
fn left_out<E: GradientElement>(group: &Group, policy: Policy, from: fn(f32) -> E) -> (String, [bool; 4]) {
    let typed = |first| -> Vec<Vec<E>> { vec![matrix(first).into_iter().map(from).collect()] };
    let model = vec![("weight", SHAPE.to_vec(), policy)];
    let mut exchange = build(group, &model, |builder| builder);
    // `Q` becomes zero for the first column, so `P` spans the others whatever is in it.
    exchange.average(&mut typed(0.0)).unwrap();
    let is_last = group.rank() + 1 == group.world_size();
    let (handed_in, before) = (typed(if is_last { HUGE } else { 0.0 }), residuals(&exchange));
    let mut gradients = handed_in.clone();
    let error = exchange.average(&mut gradients).unwrap_err().to_string();
    let after = residuals(&exchange);
    let rounding = HUGE * f32::EPSILON;
    let is_restored = before[0].iter().zip(&after[0]).all(|(a, b)| (a - b).abs() <= rounding);
    let mut fresh = build(group, &model, |builder| builder);
    let is_loaded = fresh.load(&mut &saved(&exchange)[..]).is_ok();
    let goes_on = exchange.average(&mut typed(1.0)).is_ok();
    (error, [gradients == handed_in, is_restored, is_loaded, goes_on])
}

#[test]
fn a_product_of_factors_that_overflows_leaves_the_step_out() {
    let policy = Policy::low_rank(2).min_compression(0.5);
    for world_size in [1, 2, 3] {
        let ranks = on_local(world_size, move |group| {
            [
                left_out(group, policy, |value| value),
                left_out(group, policy, f64::from),
                left_out(group, policy, bf16::from_f32),
            ]
        });
        for (error, is_as_before) in ranks.iter().flatten() {
            assert_eq!(*error, ranks[0][0].0);
            assert!(error.contains("\"weight\"") && error.contains("not finite"), "{error}");
            assert_eq!(*is_as_before, [true; 4], "of {world_size} ranks");
        }
    }
}

/// Whatever a policy makes of huge gradients: finite averages, or the same error everywhere.
#[test]
fn huge_gradients_have_one_outcome() {
    for method in [Policy::low_rank, Policy::unbiased_low_rank, Policy::best_low_rank, Policy::atomo] {
        for share in [1e-9, 0.1, 0.3, 0.45, 0.5, 0.65, 1.0] {
            let ranks = on_local(2, move |group| {
                let policy = method(2).min_compression(0.5);
                let mut exchange = build(group, &vec![("weight", SHAPE.to_vec(), policy)], |builder| builder);
                exchange.average(&mut [matrix(0.0)]).unwrap();
                let mut gradients = [matrix(if group.rank() == 0 { share * f32::MAX } else { 0.0 })];
                let outcome = exchange.average(&mut gradients).map_err(|error| error.to_string());
                let all = gradients.iter().chain(&residuals(&exchange)).flatten().copied().collect();
                (outcome, all, exchange.average(&mut [matrix(1.0)]).is_ok())
            });
            for (outcome, all, goes_on) in &ranks {
                let all: &Vec<f32> = all;
                assert_eq!(*outcome, ranks[0].0, "{share}");
                assert!(*goes_on && all.iter().all(|value| value.is_finite()), "{share}: {all:?}");
                assert!(outcome.is_ok() || share > 0.05, "{share}: {outcome:?}");
            }
        }
    }
}
