//! First steps in which matrices travel whole, with the vectors.

use brevity::collectives::Error as Collective;
use brevity_tests::{on_host, on_local};

use super::*;

const DENSE: u32 = 3;

fn model_of(policy: Policy) -> Model {
    vec![
        ("first", vec![24, 30], policy),
        ("bias", vec![30], policy),
        ("second", vec![30, 16, 2], policy),
        ("empty", vec![0, 4], policy),
    ]
}

fn low_rank() -> Policy {
    Policy::low_rank(2).min_compression(1.0)
}

fn model() -> Model {
    model_of(low_rank().dense_steps(DENSE.into()))
}

fn plain(group: &Group, model: &Model) -> GradientExchange {
    build(group, model, |builder| builder)
}

/// Whole numbers, whose sums are exact.
fn whole(model: &Model, rank: u32, step: u32) -> Vec<Vec<f32>> {
    let of = |(tensor, (_, shape, _)): (u32, &(&str, Vec<usize>, Policy))| {
        oracle::vector(rank + 50 * tensor + 1000 * step, shape.iter().product())
    };
    (0..).zip(model).map(of).collect()
}

fn zeros(model: &Model) -> Vec<Vec<f32>> {
    model.iter().map(|(_, shape, _)| vec![0.0; shape.iter().product()]).collect()
}

/// First as dense tensors, then as an exchange that begins with the first step of factors.
#[test]
fn matrices_travel_whole_in_the_first_steps() {
    let body = |group: &Group| {
        let mut dense = plain(group, &model_of(Policy::dense()));
        let (mut exchange, mut later) = (plain(group, &model()), plain(group, &model_of(low_rank())));
        for number in 0..2 * DENSE {
            let mut found = whole(&model(), group.rank(), number);
            let mut expected = found.clone();
            if number % 2 == 0 {
                exchange.average(&mut found).unwrap();
            } else {
                let mut step = exchange.begin().unwrap();
                step.ready(2, &found[2]).unwrap();
                step.finish(&mut found).unwrap();
            }
            let as_if = if number < DENSE { &mut dense } else { &mut later };
            as_if.average(&mut expected).unwrap();
            assert_eq!(bits(&found), bits(&expected), "step {number}");
            let left = if number < DENSE { zeros(&model()) } else { residuals(&later) };
            assert_eq!(residuals(&exchange), left, "step {number}");
        }
    };
    for world_size in [1, 2, 3, 5] {
        on_local(world_size, body);
        on_host(world_size, Settings::default(), body);
    }
}

/// Matrices and vectors are one all-reduce.
#[test]
fn a_dense_step_sends_the_messages_of_dense_tensors() {
    for world_size in [2, 3, 4] {
        let sent = |policy| averages(world_size, &model_of(policy), 2).into_iter().map(|(_, sent)| sent);
        assert!(sent(low_rank().dense_steps(2)).eq(sent(Policy::dense())), "P = {world_size}");
    }
}

/// Matrices with other dense steps have a bucket of their own; vectors share any.
#[test]
fn each_matrix_has_its_own_dense_steps() {
    on_local(3, |group| {
        let model = vec![
            ("long", vec![24, 30], low_rank().dense_steps(2)),
            ("short", vec![24, 30], low_rank().dense_steps(1)),
            ("none", vec![24, 30], low_rank()),
            ("bias", vec![30], low_rank().dense_steps(9)),
        ];
        let mut exchange = plain(group, &model);
        for number in 0..4 {
            exchange.average(&mut whole(&model, group.rank(), number)).unwrap();
            let left = residuals(&exchange);
            let is_empty = left.iter().map(|left| left.iter().all(|value| *value == 0.0));
            let expected = [number < 2, number < 1, false, true];
            assert_eq!(is_empty.collect::<Vec<_>>(), expected, "step {number}");
        }
    });
}

/// Averages have their momentum in dense steps too.
#[test]
fn momentum_after_aggregation_goes_on() {
    on_local(2, |group| {
        let (model, plain_model) =
            (model_of(low_rank().dense_steps(2).post_momentum(0.5)), model_of(Policy::dense()));
        let (mut exchange, mut dense) = (plain(group, &model), plain(group, &plain_model));
        let mut momentum = zeros(&model);
        for number in 0..2 {
            let mut found = whole(&model, group.rank(), number);
            let mut averages = found.clone();
            exchange.average(&mut found).unwrap();
            dense.average(&mut averages).unwrap();
            for ((found, average), momentum) in found.iter().zip(&averages).zip(&mut momentum) {
                for ((found, average), m) in found.iter().zip(average).zip(momentum) {
                    *m = 0.5 * *m + average;
                    assert_eq!(*found, average + *m);
                }
            }
        }
    });
}

/// A restart goes on with the same bits, and one that has other dense steps loses nothing.
#[test]
fn a_restart_knows_how_many_are_left() {
    on_local(3, |group| {
        for before in 1..=DENSE + 1 {
            let mut exchange = plain(group, &model());
            (0..before)
                .for_each(|number| exchange.average(&mut whole(&model(), group.rank(), number)).unwrap());
            let mut restarted = plain(group, &model());
            restarted.load(&mut &saved(&exchange)[..]).unwrap();
            for number in before..2 * DENSE {
                let mut found = whole(&model(), group.rank(), number);
                let mut expected = found.clone();
                restarted.average(&mut found).unwrap();
                exchange.average(&mut expected).unwrap();
                assert_eq!(bits(&found), bits(&expected), "{before} steps before");
            }
            assert_eq!(residuals(&restarted), residuals(&exchange));
            // Nothing is left of what waits after a step that delivers everything.
            let mut other = plain(group, &model_of(low_rank().dense_steps(100)));
            other.load(&mut &saved(&exchange)[..]).unwrap();
            let waiting = residuals(&other);
            assert_eq!(waiting, residuals(&exchange));
            let mut delivered = zeros(&model());
            other.average(&mut delivered).unwrap();
            assert_eq!(residuals(&other), zeros(&model()));
            assert!(delivered.iter().flatten().any(|value| *value != 0.0));
        }
    });
}

#[test]
fn a_dense_step_that_fails_is_kept() {
    on_local(3, |group| {
        let mut exchange = plain(group, &model());
        exchange.average(&mut whole(&model(), group.rank(), 0)).unwrap();
        // Another rank may have closed the group already.
        let _ = group.barrier();
        group.abort();
        let mut given = whole(&model(), group.rank(), 1);
        let error = exchange.average(&mut given).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::Aborted { .. })), "{error}");
        assert_eq!(given, whole(&model(), group.rank(), 1));
        assert_eq!(residuals(&exchange), given);
        exchange.rejoin(&Group::solo());
        let mut delivered = zeros(&model());
        exchange.average(&mut delivered).unwrap();
        assert_eq!((&delivered, residuals(&exchange)), (&given, zeros(&model())));
    });
}

#[test]
fn a_value_or_a_sum_that_is_not_finite_leaves_the_step_out() {
    on_local(3, |group| {
        let mut exchange = plain(group, &model());
        let mut given = whole(&model(), group.rank(), 0);
        given[2][7] = if group.rank() == 1 { f32::NAN } else { 1.0 };
        let error = exchange.average(&mut given).unwrap_err();
        let Error::NonFinite { rank: 1, tensor } = &error else { panic!("{error}") };
        assert_eq!(tensor, "second");
        assert_eq!(residuals(&exchange), zeros(&model()));
        for (place, name) in [(0, "first"), (1, "bias"), (2, "second")] {
            let mut given = whole(&model(), group.rank(), 0);
            given[place][7] = f32::MAX;
            let error = exchange.average(&mut given).unwrap_err();
            let Error::Overflow { tensor } = &error else { panic!("{error}") };
            assert_eq!((&**tensor, exchange.steps()), (name, 0));
            assert!(residuals(&exchange).concat().iter().all(|value| value.abs() < 1.0), "{name}");
        }
        exchange.average(&mut whole(&model(), group.rank(), 0)).unwrap();
    });
}

#[test]
fn ranks_with_other_dense_steps_are_told() {
    let errors = on_local(3, |group| {
        let steps = if group.rank() == 1 { 2 } else { 3 };
        let mut exchange = plain(group, &model_of(low_rank().dense_steps(steps)));
        exchange.average(&mut whole(&model(), group.rank(), 0)).unwrap_err()
    });
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    let names = |text: &String| text.contains("dense for 2 steps") && text.contains("dense for 3 steps");
    assert!(texts.iter().any(names), "{texts:?}");
}

/// Also back to dense steps, in the middle of a warm start.
#[test]
fn steps_that_are_set_begin_and_end_dense_steps() {
    let mut exchange = plain(&Group::solo(), &model());
    exchange.set_steps(u64::from(DENSE)).unwrap();
    exchange.average(&mut whole(&model(), 0, 0)).unwrap();
    let left = residuals(&exchange);
    assert!(left[0].iter().any(|value| *value != 0.0) && left[1].iter().all(|value| *value == 0.0));
    exchange.set_steps(0).unwrap();
    let mut delivered = zeros(&model());
    exchange.average(&mut delivered).unwrap();
    assert_eq!((delivered, residuals(&exchange)), (left, zeros(&model())));
}
