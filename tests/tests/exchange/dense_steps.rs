//! First steps in which everything travels.

use brevity::Threshold;
use brevity::compress::feedback::TopK;
use brevity::compress::momentum::{MomentumCorrection, SparsificationAware};
use brevity::compress::{Density, SparseVec};

use super::*;

const COUNTS: [usize; 2] = [300, 40];
const DENSITY: f64 = 0.05;
const DENSE: u32 = 3;

fn policies() -> [Policy; 9] {
    [
        Policy::topk(DENSITY),
        Policy::gtopk(DENSITY),
        Policy::oktopk(DENSITY),
        Policy::random_k(DENSITY),
        Policy::random_block(DENSITY),
        Policy::block(DENSITY),
        Policy::topk(DENSITY).values(Values::Bf16),
        Policy::topk(DENSITY).threshold(Threshold::Sampled),
        Policy::topk(DENSITY).threshold(Threshold::Adaptive).scope(brevity::Scope::Bucket),
    ]
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    let builder = GradientExchange::builder(group);
    builder.tensor("0", [COUNTS[0]], policy).tensor("1", [COUNTS[1]], policy).build().unwrap()
}

fn with_dense_steps(group: &Group, policy: Policy) -> GradientExchange {
    built(group, policy.dense_steps(DENSE.into()))
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let of = |(tensor, count): (u32, usize)| oracle::vector(rank + 10 * tensor + 1000 * step, count);
    (0..).zip(COUNTS).map(of).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    ["0", "1"].map(|tensor| exchange.residual(tensor).unwrap()).to_vec()
}

fn zeros() -> Vec<Vec<f32>> {
    COUNTS.map(|count| vec![0.0; count]).to_vec()
}

fn saved(exchange: &GradientExchange) -> Vec<u8> {
    let mut bytes = Vec::new();
    exchange.save(&mut bytes).unwrap();
    bytes
}

/// Makes a step in one of three ways.
fn average(mut exchange: GradientExchange, number: u32, found: &mut Vec<Vec<f32>>) -> GradientExchange {
    match number % 3 {
        0 => exchange.average(found).unwrap(),
        1 => {
            let mut step = exchange.begin().unwrap();
            step.ready(1, &found[1]).unwrap();
            drop(step.finish(found).unwrap());
        }
        _ => {
            let ended;
            ((exchange, *found), ended) = exchange.start(std::mem::take(found)).wait();
            ended.unwrap();
        }
    }
    exchange
}

/// First as dense tensors, then as an exchange that begins with the first step that selects.
#[test]
fn everything_travels_in_the_first_steps() {
    for policy in policies() {
        for (world_size, between) in
            [1, 2, 3, 5].into_iter().flat_map(|size| BOTH.map(|between| (size, between)))
        {
            between.run(world_size, move |group| {
                let mut dense = built(group, Policy::dense());
                let mut exchange = with_dense_steps(group, policy);
                let mut later = built(group, policy);
                for number in 0..2 * DENSE + 3 {
                    let (mut expected, mut found) =
                        (inputs(group.rank(), number), inputs(group.rank(), number));
                    exchange = average(exchange, number, &mut found);
                    let as_if = if number < DENSE { &mut dense } else { &mut later };
                    as_if.average(&mut expected).unwrap();
                    assert!(found == expected, "{policy}, {between:?}, step {number}");
                    if number < DENSE {
                        assert_eq!(residuals(&exchange), zeros(), "{policy}, step {number}");
                    } else {
                        assert_eq!(residuals(&exchange), residuals(&later), "{policy}, step {number}");
                    }
                    assert_eq!(exchange.steps(), u64::from(number) + 1);
                }
            });
        }
    }
}

/// The velocity and the momentum after it, of one tensor on one rank.
enum Reference {
    Corrected(MomentumCorrection<TopK>, bool),
    Aware(SparsificationAware<TopK>),
}

const MOMENTUM: f32 = 0.5;

impl Reference {
    fn new(policy: usize, count: usize) -> Self {
        let top_k = TopK::new(Density::new(DENSITY).unwrap().entries(count));
        let corrected = |top_k| MomentumCorrection::new(count, top_k, MOMENTUM).unwrap();
        match policy {
            0 => Self::Corrected(corrected(top_k), false),
            1 => Self::Corrected(corrected(top_k).with_nesterov(), true),
            _ => Self::Aware(SparsificationAware::new(count, top_k, MOMENTUM).unwrap()),
        }
    }

    /// What is sent in a step of momentum SGD.
    fn dense(&mut self, gradient: &[f32]) -> Vec<f32> {
        match self {
            Self::Corrected(corrected, nesterov) => {
                let moved = |u: &[f32]| -> Vec<f32> {
                    u.iter().zip(gradient).map(|(u, g)| MOMENTUM * u + g).collect()
                };
                let velocity = moved(corrected.velocity());
                corrected.load(&velocity, &vec![0.0; velocity.len()]).unwrap();
                if *nesterov { moved(&velocity) } else { velocity }
            }
            Self::Aware(aware) => {
                let sent: Vec<f32> = aware.state().iter().zip(gradient).map(|(w, g)| w + g).collect();
                let kept: Vec<f32> = sent.iter().map(|u| MOMENTUM * u).collect();
                aware.load(&kept).unwrap();
                sent
            }
        }
    }

    fn sparse(&mut self, gradient: &[f32]) -> Vec<f32> {
        let mut message = SparseVec::new(gradient.len());
        match self {
            Self::Corrected(corrected, _) => corrected.compress(gradient, &mut message).unwrap(),
            Self::Aware(aware) => aware.compress(gradient, 1.0, &mut message).unwrap(),
        }
        let mut sent = vec![0.0; gradient.len()];
        message.add_to(&mut sent);
        sent
    }

    fn kept(&self) -> &[f32] {
        match self {
            Self::Corrected(corrected, _) => corrected.accumulated(),
            Self::Aware(aware) => aware.state(),
        }
    }
}

/// Momentum SGD at first; then each rank goes on with its velocity. All numbers are exact in binary.
#[test]
fn velocities_go_on_through_dense_steps() {
    let policy = Policy::topk(DENSITY);
    let policies =
        [policy.momentum(MOMENTUM), policy.momentum(MOMENTUM).nesterov(), policy.samomentum(MOMENTUM)];
    for (of, policy) in policies.into_iter().enumerate() {
        for world_size in [1_u32, 2, 4] {
            let ranks = on_local(world_size, move |group| {
                let (mut exchange, mut steps) = (with_dense_steps(group, policy), Vec::new());
                for number in 0..7 {
                    let mut found = inputs(group.rank(), number);
                    exchange = average(exchange, number, &mut found);
                    steps.push(found);
                }
                (steps, residuals(&exchange))
            });
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                let new = |_| Reference::new(of, count);
                let mut references: Vec<_> = (0..world_size).map(new).collect();
                for number in 0..7 {
                    let sent = (0..).zip(&mut references).map(|(rank, reference)| {
                        let gradient = &inputs(rank, number)[tensor];
                        if number < DENSE { reference.dense(gradient) } else { reference.sparse(gradient) }
                    });
                    let sums = oracle::sum(&sent.collect::<Vec<_>>());
                    let expected: Vec<_> = sums.iter().map(|sum| sum / world_size as f32).collect();
                    for (steps, _) in &ranks {
                        assert!(steps[number as usize][tensor] == expected, "{policy}, step {number}");
                    }
                }
                for ((_, left), reference) in ranks.iter().zip(&references) {
                    assert_eq!(left[tensor], reference.kept(), "{policy}");
                }
            }
        }
    }
}

/// All ranks leave it out, and it does not count.
#[test]
fn a_dense_step_that_is_left_out_changes_nothing() {
    for policy in [Policy::topk(DENSITY), Policy::topk(DENSITY).momentum(0.5), Policy::oktopk(DENSITY)] {
        for between in BOTH {
            between.run(3, move |group| {
                let (mut exchange, mut whole) =
                    (with_dense_steps(group, policy), with_dense_steps(group, policy));
                for number in 0..DENSE + 2 {
                    let mut bad = inputs(group.rank(), number + 50);
                    if group.rank() == 1 {
                        bad[0][3] = f32::NAN;
                    }
                    let error = exchange.average(&mut bad).unwrap_err();
                    assert!(matches!(error, Error::NonFinite { rank: 1, .. }), "{error}");
                    assert_eq!(exchange.steps(), u64::from(number));
                    let (mut found, mut expected) =
                        (inputs(group.rank(), number), inputs(group.rank(), number));
                    exchange.average(&mut found).unwrap();
                    whole.average(&mut expected).unwrap();
                    assert!(found == expected, "{policy}, step {number}");
                }
                assert_eq!(residuals(&exchange), residuals(&whole));
            });
        }
    }
}

/// Each gradient is finite, and their sum is not.
#[test]
fn a_dense_sum_that_overflows_names_its_tensor() {
    on_local(2, |group| {
        let mut exchange = with_dense_steps(group, Policy::gtopk(DENSITY));
        let mut large = zeros();
        large[1][4] = f32::MAX;
        let error = exchange.average(&mut large).unwrap_err();
        assert!(matches!(&error, Error::Overflow { tensor } if tensor == "1"), "{error}");
        assert_eq!((residuals(&exchange), exchange.steps()), (zeros(), 0));
    });
}

/// What a failed step leaves is sent with the next one.
#[test]
fn a_dense_step_that_fails_is_kept() {
    let group = Group::solo();
    let mut exchange = with_dense_steps(&group, Policy::gtopk(DENSITY));
    group.abort();
    assert!(exchange.average(&mut inputs(0, 0)).is_err());
    assert_eq!((residuals(&exchange), exchange.steps()), (inputs(0, 0), 0));
    let mut restarted = with_dense_steps(&Group::solo(), Policy::gtopk(DENSITY));
    restarted.load(&mut &saved(&exchange)[..]).unwrap();
    let mut found = zeros();
    restarted.average(&mut found).unwrap();
    assert_eq!((found, residuals(&restarted)), (inputs(0, 0), zeros()));
}

/// A restart goes on with the same bits, and one that has other dense steps loses nothing.
#[test]
fn a_restart_goes_on_where_it_was() {
    for policy in policies().into_iter().chain([Policy::topk(DENSITY).momentum(0.5)]) {
        on_local(2, move |group| {
            for done in [DENSE - 1, DENSE, DENSE + 2] {
                let mut whole = with_dense_steps(group, policy);
                (0..done).for_each(|number| whole.average(&mut inputs(group.rank(), number)).unwrap());
                let state = saved(&whole);
                assert_eq!(state.len(), whole.saved_bytes());
                let mut restarted = with_dense_steps(group, policy);
                restarted.average(&mut inputs(group.rank(), 9)).unwrap();
                restarted.load(&mut &state[..]).unwrap();
                for number in done..done + 3 {
                    let (mut found, mut expected) =
                        (inputs(group.rank(), number), inputs(group.rank(), number));
                    restarted.average(&mut found).unwrap();
                    whole.average(&mut expected).unwrap();
                    assert!(found == expected, "{policy}, {done} steps, step {number}");
                }
                let mut dense = built(group, policy.dense_steps(100));
                dense.load(&mut &state[..]).unwrap();
                let left = residuals(&dense);
                let mut found = zeros();
                dense.average(&mut found).unwrap();
                let mut sums: Vec<Vec<f32>> = left;
                for (sum, average) in sums.iter_mut().zip(&found) {
                    group.all_reduce(sum, brevity::ReduceOp::Sum).unwrap();
                    let is_sent = sum.iter().zip(average).all(|(sum, average)| *sum == 2.0 * average);
                    // A velocity is sent too, with momentum.
                    assert!(is_sent || policy.to_string().contains("momentum"), "{policy}");
                }
            }
        });
    }
}

#[test]
fn other_dense_steps_are_a_mismatch() {
    super::mismatches::all_end_with_a_mismatch("dense steps", |group| {
        let steps = if group.rank() == 1 { 2 } else { 3 };
        built(group, Policy::topk(DENSITY).dense_steps(steps))
    });
    // One that is a step ahead is found out where that matters.
    super::mismatches::all_end_with_a_mismatch("steps", |group| {
        let mut exchange = with_dense_steps(group, Policy::topk(DENSITY));
        if group.rank() == 2 {
            exchange.set_steps(DENSE.into()).unwrap();
        }
        exchange
    });
}

/// The number of steps may be set, in both directions.
#[test]
fn steps_that_are_set_begin_and_end_dense_steps() {
    let mut exchange = with_dense_steps(&Group::solo(), Policy::topk(DENSITY));
    let mut sent = |steps: u64| {
        exchange.set_steps(steps).unwrap();
        let mut found = inputs(0, 0);
        exchange.average(&mut found).unwrap();
        found[0].iter().filter(|value| **value != 0.0).count()
    };
    let all = inputs(0, 0)[0].iter().filter(|value| **value != 0.0).count();
    let few = Density::new(DENSITY).unwrap().entries(COUNTS[0]);
    assert_eq!([sent(3), sent(2), sent(3)], [few, all, few]);
}

/// Everything goes over shared memory where ranks share some.
#[test]
fn dense_steps_send_no_message_on_one_host() {
    on_host(3, Settings::default(), |group| {
        let mut exchange = with_dense_steps(group, Policy::topk(DENSITY));
        for number in 0..DENSE {
            exchange.average(&mut inputs(group.rank(), number)).unwrap();
            assert_eq!(group.statistics().messages_sent, 0);
        }
        exchange.average(&mut inputs(group.rank(), DENSE)).unwrap();
        assert!(group.statistics().messages_sent > 0);
    });
}
