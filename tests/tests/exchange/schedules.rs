//! Densities that change with the steps.

use brevity::Threshold;
use brevity::compress::Density;
use brevity::compress::schedule::Schedule;

use super::*;

/// Steps of a period.
const PERIOD: u64 = 2;

fn warm_up() -> Schedule {
    Schedule::exponential(Density::new(0.01).unwrap(), 3)
}

fn builder(group: &Group) -> ExchangeBuilder {
    GradientExchange::builder(group)
        .tensor("first", SHAPE, Policy::gtopk(0.01))
        .tensor("second", SHAPE, Policy::topk(0.02))
        .tensor("bias", [7], Policy::dense())
}

fn scheduled(group: &Group) -> GradientExchange {
    builder(group).schedule(warm_up(), PERIOD).build().unwrap()
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    (0..)
        .zip([COUNT, COUNT, 7])
        .map(|(tensor, count)| oracle::vector(rank + 10 * tensor + 100 * step, count))
        .collect()
}

/// Sets what the schedule should have set for the step.
fn set(exchange: &mut GradientExchange, step: u64) {
    for (tensor, own) in [("first", 0.01), ("second", 0.02)] {
        let density = warm_up().density_at_step(step, PERIOD).share().max(own);
        exchange.set_density(tensor, density).unwrap();
    }
}

fn in_parts(exchange: &mut GradientExchange, gradients: &mut [Vec<f32>]) -> brevity::Result<()> {
    exchange.begin()?.finish(gradients).map(drop)
}

/// As if the program had set the density before each step; in all ways to make a step.
#[test]
fn densities_follow_the_schedule() {
    for (world_size, between) in [1, 2, 3, 4].into_iter().flat_map(|size| BOTH.map(|between| (size, between)))
    {
        between.run(world_size, |group| {
            let (mut by_hand, mut by_schedule) = (builder(group).build().unwrap(), scheduled(group));
            for step in 0..9 {
                let (mut expected, mut found) = (inputs(group.rank(), step), inputs(group.rank(), step));
                assert_eq!(by_schedule.steps(), u64::from(step));
                set(&mut by_hand, step.into());
                by_hand.average(&mut expected).unwrap();
                match step % 3 {
                    0 => by_schedule.average(&mut found).unwrap(),
                    1 => in_parts(&mut by_schedule, &mut found).unwrap(),
                    _ => {
                        let ended;
                        ((by_schedule, found), ended) = by_schedule.start(found).wait();
                        ended.unwrap();
                    }
                }
                assert_eq!(found, expected, "step {step}");
                for tensor in ["first", "second"] {
                    assert_eq!(by_schedule.residual(tensor), by_hand.residual(tensor), "step {step}");
                }
            }
        });
    }
}

/// All ranks know of a value that is not finite: none counts the step.
#[test]
fn a_step_that_is_left_out_does_not_count() {
    for between in BOTH {
        between.run(3, |group| {
            let mut exchange = scheduled(group);
            for step in 0..6 {
                for average in [GradientExchange::average, in_parts] {
                    let mut gradients = inputs(group.rank(), step);
                    if group.rank() == 1 {
                        gradients[0][3] = f32::NAN;
                    }
                    let error = average(&mut exchange, &mut gradients).unwrap_err();
                    assert!(matches!(error, Error::NonFinite { rank: 1, .. }), "{error}");
                    assert_eq!(exchange.steps(), u64::from(step));
                }
                exchange.average(&mut inputs(group.rank(), step)).unwrap();
            }
        });
    }
}

/// The number of steps is saved, and the density goes on from there.
#[test]
fn a_restart_goes_on_in_the_schedule() {
    a_restart_goes_on(scheduled);
}

/// What is read of thresholds is that of the density then.
#[test]
fn a_restart_goes_on_with_thresholds_in_the_schedule() {
    a_restart_goes_on(|group| {
        let builder = GradientExchange::builder(group)
            .tensor("first", SHAPE, Policy::oktopk(0.01))
            .tensor("second", SHAPE, Policy::topk(0.02).threshold(Threshold::Adaptive))
            .tensor("bias", [7], Policy::dense());
        builder.schedule(warm_up(), PERIOD).build().unwrap()
    });
}

fn a_restart_goes_on(build: fn(&Group) -> GradientExchange) {
    on_local(3, move |group| {
        let mut whole = build(group);
        for step in 0..3 {
            whole.average(&mut inputs(group.rank(), step)).unwrap();
        }
        let mut saved = Vec::new();
        whole.save(&mut saved).unwrap();
        let mut restarted = build(group);
        restarted.load(&mut &saved[..]).unwrap();
        assert_eq!(restarted.steps(), 3);
        for step in 3..9 {
            let (mut expected, mut found) = (inputs(group.rank(), step), inputs(group.rank(), step));
            whole.average(&mut expected).unwrap();
            restarted.average(&mut found).unwrap();
            assert_eq!(found, expected, "step {step}");
        }
    });
}

/// A rank that is a step ahead is found out where that matters.
#[test]
fn ranks_apart_in_the_schedule_are_a_mismatch() {
    mismatches::all_end_with_a_mismatch("steps", |group| {
        let mut exchange = scheduled(group);
        exchange.average(&mut inputs(group.rank(), 0)).unwrap();
        if group.rank() == 2 {
            exchange.set_steps(2).unwrap();
        }
        exchange
    });
}

/// A rank can't know whether others have done it.
#[test]
fn a_step_that_has_failed_does_not_count() {
    for average in [GradientExchange::average, in_parts] {
        let group = Group::solo();
        let mut exchange = scheduled(&group);
        exchange.average(&mut inputs(0, 0)).unwrap();
        group.abort();
        let error = average(&mut exchange, &mut inputs(0, 1)).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::Aborted { .. })), "{error}");
        assert_eq!(exchange.steps(), 1);
    }
}

/// A tensor's own density counts where it is larger, whenever it was set.
#[test]
fn the_larger_density_counts() {
    let group = Group::solo();
    let mut exchange = scheduled(&group);
    let mut sent = |density: Option<f64>| {
        if let Some(density) = density {
            exchange.set_density("first", density).unwrap();
        }
        let mut gradients = inputs(0, 0);
        exchange.average(&mut gradients).unwrap();
        gradients[0].iter().filter(|value| **value != 0.0).count()
    };
    let entries = |density: f64| Density::new(density).unwrap().entries(COUNT);
    let of = |step| warm_up().density_at_step(step, PERIOD).entries(COUNT);
    assert_eq!(sent(None), of(0));
    assert_eq!(sent(Some(0.5)), entries(0.5));
    assert_eq!(sent(Some(0.02)), of(2));
    assert_eq!([sent(None), sent(None), sent(None)], [of(3), of(4), of(5)]);
    assert_eq!(sent(None), entries(0.02));
}
