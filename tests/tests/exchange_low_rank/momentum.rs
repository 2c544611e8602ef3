//! Momentum after aggregation, against that of the averages of an exchange without it.

use brevity::collectives::Error as Collective;
use brevity_tests::on_local;

use super::*;

const FACTOR: f32 = 0.9;

/// Two matrices, and a vector between them.
fn model(matrix: Policy) -> Model {
    vec![("first", vec![12, 10], matrix), ("bias", vec![9], matrix), ("last", vec![6, 14], matrix)]
}

fn policies() -> [Policy; 4] {
    let all = [Policy::low_rank(1), Policy::unbiased_low_rank(2), Policy::best_low_rank(1), Policy::atomo(2)];
    all.map(|policy| policy.min_compression(1.0))
}

fn moving() -> Model {
    model(Policy::low_rank(1).post_momentum(FACTOR))
}

/// The momenta of all tensors, by Algorithm 2 of Vogels et al.
struct Serial(Vec<Vec<f32>>);

impl Serial {
    fn new() -> Self {
        Self(model(Policy::dense()).iter().map(|(_, shape, _)| vec![0.0; shape.iter().product()]).collect())
    }

    fn step(&mut self, averages: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let tensors = self.0.iter_mut().zip(averages);
        let moved = tensors.map(|(momentum, averages)| {
            momentum.iter_mut().zip(averages).for_each(|(m, a)| *m = FACTOR * *m + a);
            averages.iter().zip(momentum).map(|(a, m)| a + *m).collect()
        });
        moved.collect()
    }
}

#[test]
fn results_are_averages_with_their_momentum() {
    for world_size in SIZES {
        for policy in policies() {
            let plain = averages(world_size, &model(policy), 4);
            let found = averages(world_size, &model(policy.post_momentum(FACTOR)), 4);
            let mut serial = Serial::new();
            let expected: Vec<_> = plain[0].0.iter().map(|averages| bits(&serial.step(averages))).collect();
            for ((steps, messages), (_, of_plain)) in found.iter().zip(&plain) {
                let found: Vec<_> = steps.iter().map(|step| bits(step)).collect();
                assert!(found == expected, "P = {world_size}, {policy}");
                assert_eq!(messages, of_plain, "a momentum costs no message");
            }
        }
    }
}

/// A step of which one rank's value is not finite, and one that is handed in tensor by tensor.
#[test]
fn only_a_step_that_is_done_changes_the_momentum() {
    let ranks = on_local(3, |group| {
        let [mut plain, mut moving] =
            [model(Policy::low_rank(1)), moving()].map(|model| build(group, &model, |builder| builder));
        let (mut serial, model) = (Serial::new(), super::momentum::moving());
        for step in 0..6 {
            let mut given = gradients(&model, group.rank(), step);
            if step == 2 && group.rank() == 1 {
                given[1][0] = f32::NAN;
            }
            let (mut expected, mut found) = (given.clone(), given.clone());
            let averaged = plain.average(&mut expected);
            let moved = if step % 2 == 0 {
                moving.average(&mut found)
            } else {
                let mut step = moving.begin().unwrap();
                step.ready(2, &found[2]).unwrap();
                step.finish(&mut found).map(drop)
            };
            assert_eq!(averaged.is_err(), step == 2);
            assert_eq!(moved.is_err(), step == 2);
            let expected = if step == 2 { given } else { serial.step(&expected) };
            assert_eq!(bits(&found), bits(&expected), "step {step}");
            assert_eq!(bits(&residuals(&moving)), bits(&residuals(&plain)), "step {step}");
        }
        bits(&serial.0)
    });
    assert!(ranks.iter().all(|momenta| *momenta == ranks[0]));
}

/// The momentum is that of the averages that ranks get, whether these are over all or over those that have a
/// gradient: a rank without one has the same.
#[test]
fn ranks_without_gradients_have_the_same_momentum() {
    for (policy, over_participants) in
        policies().into_iter().flat_map(|policy| [(policy, false), (policy, true)])
    {
        let ranks = on_local(4, move |group| {
            let settings: fn(ExchangeBuilder) -> ExchangeBuilder = if over_participants {
                ExchangeBuilder::average_over_participants
            } else {
                |builder| builder
            };
            let mut plain = build(group, &model(policy), settings);
            let mut moving = build(group, &model(policy.post_momentum(FACTOR)), settings);
            let mut serial = Serial::new();
            for step in 0..6 {
                let mut expected = gradients(&model(policy), group.rank(), step);
                let mut found = expected.clone();
                let with = 1 + step % 4;
                if group.rank() < with {
                    plain.average(&mut expected).unwrap();
                    moving.average(&mut found).unwrap();
                } else {
                    plain.step_empty(&mut expected).unwrap();
                    moving.step_empty(&mut found).unwrap();
                }
                let divisor = if over_participants { with } else { 4 };
                let vectors = (0..with).map(|rank| gradients(&model(policy), rank, step).swap_remove(1));
                let mean =
                    oracle::sum(&vectors.collect::<Vec<_>>()).into_iter().map(|sum| sum / divisor as f32);
                assert!(is_close(&expected[1], &mean.collect::<Vec<_>>(), 1e-5), "{policy}, step {step}");
                assert_eq!(bits(&found), bits(&serial.step(&expected)), "{policy}, step {step}");
                assert_eq!(bits(&residuals(&moving)), bits(&residuals(&plain)), "{policy}, step {step}");
            }
            bits(&serial.0)
        });
        assert!(ranks.iter().all(|momenta| *momenta == ranks[0]), "{policy}: ranks differ");
    }
}

/// A rank without a gradient begins its step likewise, and one that is left out changes no momentum.
#[test]
fn empty_steps_in_parts_have_the_momentum_too() {
    let ranks = on_local(3, |group| {
        let settings: fn(ExchangeBuilder) -> ExchangeBuilder = ExchangeBuilder::average_over_participants;
        let [mut plain, mut moving] =
            [model(Policy::low_rank(1)), moving()].map(|model| build(group, &model, settings));
        let (mut serial, model) = (Serial::new(), super::momentum::moving());
        for step in 0..5 {
            let has_gradient = group.rank() != step % 3;
            let mut given = gradients(&model, group.rank(), step);
            if !has_gradient {
                given.iter_mut().for_each(|gradient| gradient.fill(0.0));
            }
            if step == 3 && group.rank() == 1 {
                given[0][1] = f32::INFINITY;
            }
            let (mut expected, mut found) = (given.clone(), given.clone());
            let [averaged, moved] =
                [(&mut plain, &mut expected), (&mut moving, &mut found)].map(|(of, out)| {
                    let begun = if has_gradient { of.begin() } else { of.begin_empty() };
                    begun.unwrap().finish(out).map(drop)
                });
            assert_eq!((averaged.is_err(), moved.is_err()), (step == 3, step == 3));
            let expected = if step == 3 { given } else { serial.step(&expected) };
            assert_eq!(bits(&found), bits(&expected), "step {step}");
        }
        bits(&serial.0)
    });
    assert!(ranks.iter().all(|momenta| *momenta == ranks[0]));
}

/// A survivor may be a step behind the others: momenta start again.
#[test]
fn a_failed_step_changes_no_momentum_and_rejoining_starts_it_again() {
    let ranks = on_local(2, |group| {
        let mut exchange = build(group, &moving(), |builder| builder);
        exchange.average(&mut gradients(&moving(), group.rank(), 0)).unwrap();
        let before = saved(&exchange);
        if group.rank() == 1 {
            return None;
        }
        let mut nothing: Vec<Vec<f32>> = exchange.tensors().map(|(_, count)| vec![0.0; count]).collect();
        let error = exchange.average(&mut nothing).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
        assert!(nothing.iter().flatten().all(|&value| value == 0.0));
        let alone = Group::solo();
        let mut of_before = build(&alone, &moving(), |builder| builder);
        of_before.load(&mut &before[..]).unwrap();
        of_before.rejoin(&alone);
        exchange.rejoin(&alone);
        let results = [of_before, exchange].map(|mut exchange| {
            let mut values = gradients(&moving(), 0, 1);
            exchange.average(&mut values).unwrap();
            values
        });
        Some(results)
    });
    let [of_before, found] = ranks.into_iter().flatten().next().unwrap();
    assert_eq!(bits(&found), bits(&of_before));
    // From 0: twice the average, which is the gradient of the only rank.
    let doubled: Vec<f32> = gradients(&moving(), 0, 1)[1].iter().map(|value| value + value).collect();
    assert_eq!(found[1], doubled);
}

#[test]
fn momenta_are_saved_and_loaded() {
    let same = on_local(3, |group| {
        let run = |exchange: &mut GradientExchange, steps: std::ops::Range<u32>| {
            steps
                .flat_map(|step| {
                    let mut values = gradients(&moving(), exchange.group().rank(), step);
                    exchange.average(&mut values).unwrap();
                    bits(&values)
                })
                .collect::<Vec<_>>()
        };
        let mut whole = build(group, &moving(), |builder| builder);
        run(&mut whole, 0..2);
        let state = saved(&whole);
        let expected = run(&mut whole, 2..4);
        let mut restarted = build(group, &moving(), |builder| builder);
        run(&mut restarted, 7..8);
        restarted.load(&mut &state[..]).unwrap();
        assert_eq!(saved(&restarted), state);
        run(&mut restarted, 2..4) == expected
    });
    assert_eq!(same, [true; 3]);
}

/// The model of a rank with another momentum would silently become another one.
#[test]
fn momenta_of_different_steps_are_a_mismatch() {
    for vector_alone in [false, true] {
        let texts = on_local(3, move |group| {
            let model = if vector_alone { moving()[1..2].to_vec() } else { moving() };
            let mut exchange = build(group, &model, |builder| builder);
            exchange.average(&mut gradients(&model, group.rank(), 0)).unwrap();
            let early = saved(&exchange);
            exchange.average(&mut gradients(&model, group.rank(), 1)).unwrap();
            let state = if group.rank() == 1 { early } else { saved(&exchange) };
            exchange.load(&mut &state[..]).unwrap();
            exchange.average(&mut gradients(&model, group.rank(), 2)).unwrap_err().to_string()
        });
        let named = |text: &String| text.contains("momentum 0.9 of the averages, loaded");
        assert!(texts.iter().any(named), "{texts:?}");
    }
}

#[test]
fn another_factor_is_a_mismatch_that_names_both() {
    let texts = on_local(3, |group| {
        let factor = if group.rank() == 1 { 0.75 } else { 0.5 };
        let model = model(Policy::low_rank(1).post_momentum(factor));
        let mut exchange = build(group, &model, |builder| builder);
        exchange.average(&mut gradients(&model, group.rank(), 0)).unwrap_err().to_string()
    });
    let names =
        |text: &String| ["\"first\"", "momentum 0.75", "momentum 0.5"].iter().all(|part| text.contains(part));
    assert!(texts.iter().any(names), "{texts:?}");
}
