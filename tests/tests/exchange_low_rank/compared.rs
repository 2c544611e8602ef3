//! The methods that Vogels et al. compare PowerSGD to, against a serial reference of all ranks.

mod serial;

use brevity::collectives::Error as Collective;
use brevity_tests::on_local;

use serial::Serial;

use super::*;

const SEED: u64 = 77;
const RANK: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Unbiased,
    Best,
    Atomo,
    SignNorm,
}

use Method::{Atomo, Best, SignNorm, Unbiased};

const METHODS: [Method; 4] = [Unbiased, Best, Atomo, SignNorm];

impl Method {
    fn policy(self) -> Policy {
        let policy = match self {
            Unbiased => Policy::unbiased_low_rank(RANK),
            Best => Policy::best_low_rank(RANK),
            Atomo => Policy::atomo(RANK),
            SignNorm => Policy::sign_norm(),
        };
        policy.min_compression(1.0)
    }

    fn has_feedback(self) -> bool {
        matches!(self, Best | SignNorm)
    }
}

/// Rows and columns of each tensor.
const SHAPES: [[usize; 2]; 2] = [[12, 10], [5, 9]];

/// More elements than are decoded at once.
const LARGE: [[usize; 2]; 2] = [[3, 5], [130, 150]];

fn model(method: Method, shapes: [[usize; 2]; 2]) -> Model {
    let [first, second] = shapes.map(Vec::from);
    vec![("first", first, method.policy()), ("second", second, method.policy())]
}

fn exchange(group: &Group, method: Method) -> GradientExchange {
    build(group, &model(method, SHAPES), |builder| builder.seed(SEED))
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    gradients(&model(Best, SHAPES), rank, step)
}

/// Compares averages and residuals of some steps on a simulated network.
fn compare(world_size: u32, method: Method, shapes: [[usize; 2]; 2], steps: u32) {
    let model = model(method, shapes);
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    let ranks = run(cluster, |transport| {
        let group = Group::new(transport, Settings::default());
        let model = &model;
        async move {
            let mut exchange = build(&group, model, |builder| builder.seed(SEED));
            let mut out = Vec::new();
            for step in 0..steps {
                let ((back, averages), outcome) = exchange.start(gradients(model, group.rank(), step)).await;
                outcome.unwrap();
                exchange = back;
                out.push((bits(&averages), bits(&residuals(&exchange))));
            }
            out
        }
    });
    let (ranks, mut serial) = (ranks.unwrap(), Serial::new(world_size, method, shapes));
    for step in 0..steps {
        let expected = bits(&serial.step(|rank| gradients(&model, rank, step), world_size as f32));
        for (rank, found) in ranks.iter().enumerate() {
            let (averages, left) = &found[step as usize];
            let about = format!("{method:?}, P = {world_size}, rank {rank}, step {step}");
            assert!(*averages == expected, "{about}: averages");
            assert!(*left == bits(&serial.kept[rank]), "{about}: residuals");
        }
    }
}

#[test]
fn averages_and_residuals_have_the_bits_of_the_serial_reference() {
    for (world_size, method) in SIZES.into_iter().flat_map(|size| METHODS.map(|method| (size, method))) {
        compare(world_size, method, SHAPES, 3);
    }
    for method in METHODS {
        compare(3, method, LARGE, 2);
    }
}

/// Over slots, in steps, and over those that take part.
#[test]
fn steps_and_participants_have_the_bits_of_the_reference() {
    for method in METHODS {
        let ranks = brevity_tests::on_host(3, Settings::default(), move |group| {
            let settings = |builder: ExchangeBuilder| builder.seed(SEED).average_over_participants();
            let mut exchange = build(group, &model(method, SHAPES), settings);
            let mut out = Vec::new();
            for step in 0..3 {
                let is_empty = step == 1 && group.rank() == 2;
                let mut values = inputs(group.rank(), step);
                if is_empty {
                    values.iter_mut().for_each(|values| values.fill(0.0));
                }
                let begun = if is_empty { exchange.begin_empty() } else { exchange.begin() };
                let mut begun = begun.unwrap();
                begun.ready(1, &values[1]).unwrap();
                begun.finish(&mut values).unwrap();
                out.push(bits(&values));
            }
            out
        });
        let mut serial = Serial::new(3, method, SHAPES);
        let expected: Vec<_> = (0..3)
            .map(|step| {
                let given = |rank| {
                    let mut values = inputs(rank, step);
                    if step == 1 && rank == 2 {
                        values.iter_mut().for_each(|values| values.fill(0.0));
                    }
                    values
                };
                bits(&serial.step(given, if step == 1 { 2.0 } else { 3.0 }))
            })
            .collect();
        assert!(ranks.iter().all(|found| *found == expected), "{method:?}");
    }
}

/// Steps later, averages and residuals are together what was handed in.
#[test]
fn what_feedback_keeps_is_what_was_not_delivered() {
    for method in [Best, SignNorm] {
        let ranks = on_local(4, move |group| {
            let mut exchange = exchange(group, method);
            let mut delivered: Vec<Vec<f32>> =
                inputs(0, 0).iter().map(|values| vec![0.0; values.len()]).collect();
            for step in 0..5 {
                let mut values = inputs(group.rank(), step);
                exchange.average(&mut values).unwrap();
                let pairs = delivered.iter_mut().flatten().zip(values.iter().flatten());
                pairs.for_each(|(total, value)| *total += 4.0 * value);
            }
            (delivered.concat(), residuals(&exchange).concat())
        });
        let given: Vec<Vec<f32>> =
            (0..5).flat_map(|step| (0..4).map(move |rank| inputs(rank, step).concat())).collect();
        let mut parts: Vec<_> = ranks.iter().map(|(_, left)| left.clone()).collect();
        parts.push(ranks[0].0.clone());
        assert!(is_close(&oracle::sum(&parts), &oracle::sum(&given), 1e-4), "{method:?}");
    }
}

/// The mean of many steps is the gradient, as no residual helps.
#[test]
fn methods_without_feedback_are_unbiased() {
    const STEPS: usize = 2000;
    for method in [Unbiased, Atomo] {
        let mut exchange = exchange(&Group::solo(), method);
        let gradient = inputs(0, 0);
        let mut mean: Vec<f64> = vec![0.0; gradient.concat().len()];
        for _ in 0..STEPS {
            let mut values = gradient.clone();
            exchange.average(&mut values).unwrap();
            mean.iter_mut().zip(values.concat()).for_each(|(mean, value)| *mean += f64::from(value));
        }
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let given = gradient.concat();
        let off = norm(&mut mean.iter().zip(&given).map(|(m, g)| m / STEPS as f64 - f64::from(*g)));
        let most = 0.1 * norm(&mut given.iter().map(|&g| f64::from(g)));
        assert!(off < most, "{method:?}: {off}, {most}");
        assert!(residuals(&exchange).concat().iter().all(|&value| value == 0.0));
    }
}

/// A value of a gradient, by rank, step and place.
type Element = fn(u32, u32, usize) -> f32;

#[test]
fn residuals_stay_bounded_over_1000_steps() {
    const STEPS: u32 = 1000;
    let kinds: [(&str, Element); 4] = [
        ("ones", |_, _, _| 1.0),
        ("changing", |rank, step, place| oracle::value(rank + 7 * step, place)),
        ("alternating", |rank, step, _| if (rank + step).is_multiple_of(2) { 1.0 } else { -1.0 }),
        ("some of them large", |rank, step, place| {
            if place as u32 % 31 == step % 31 { 1000.0 } else { oracle::value(rank + 7 * step, place) }
        }),
    ];
    for ((what, value), method) in
        kinds.into_iter().flat_map(|kind| [Best, SignNorm].map(|method| (kind, method)))
    {
        for world_size in [1, 3] {
            let halves = on_local(world_size, move |group| {
                let (mut exchange, mut halves) = (exchange(group, method), [0.0_f64; 2]);
                for step in 0..STEPS {
                    let mut values: Vec<Vec<f32>> = SHAPES
                        .map(|[rows, cols]| {
                            (0..rows * cols).map(|i| value(group.rank(), step, i)).collect::<Vec<f32>>()
                        })
                        .into();
                    exchange.average(&mut values).unwrap();
                    let all = residuals(&exchange).concat();
                    let norm = all.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
                    let half = &mut halves[2 * step as usize / STEPS as usize];
                    *half = half.max(norm);
                }
                halves
            });
            for [before, after] in halves {
                assert!(after <= 1.25 * before + 1e-3, "{method:?}, {what}: {before}, then {after}");
            }
        }
    }
}

/// The next step is what it would have been without the bad one.
#[test]
fn a_bad_value_is_named_and_leaves_the_step_out() {
    for method in METHODS {
        for bad in [f32::NAN, f32::NEG_INFINITY, f32::MAX] {
            let errors = on_local(3, move |group| {
                let mut exchange = exchange(group, method);
                exchange.average(&mut inputs(group.rank(), 0)).unwrap();
                let before = residuals(&exchange);
                let mut values = inputs(group.rank(), 1);
                if bad == f32::MAX {
                    values[1].fill(bad);
                } else if group.rank() == 2 {
                    values[1][4] = bad;
                }
                let handed_in = bits(&values);
                let error = exchange.average(&mut values).unwrap_err();
                assert_eq!(bits(&values), handed_in);
                let after = residuals(&exchange);
                assert!(is_close(&after[0], &before[0], 1e-5), "{method:?}");
                let most = if bad == f32::MAX { f32::MAX * f32::EPSILON } else { 1e-3 };
                let off = after[1].iter().zip(&before[1]).find(|(a, b)| (*a - *b).abs() > most);
                assert_eq!(off, None, "{method:?}");
                if method.has_feedback() {
                    return error;
                }
                let (mut next, mut serial) = (inputs(group.rank(), 2), Serial::new(3, method, SHAPES));
                exchange.average(&mut next).unwrap();
                serial.step(|rank| inputs(rank, 0), 3.0);
                assert_eq!(bits(&next), bits(&serial.step(|rank| inputs(rank, 2), 3.0)), "{method:?}");
                error
            });
            for error in errors {
                let is_named = match &error {
                    Error::NonFinite { rank, tensor } => {
                        tensor == "second" && (*rank == 2 || bad == f32::MAX)
                    }
                    Error::Overflow { tensor } => tensor == "second" && bad == f32::MAX,
                    _ => false,
                };
                assert!(is_named, "{method:?}, {bad}: {error}");
            }
        }
    }
}

/// A survivor keeps the whole step, goes on alone, and delivers it.
#[test]
fn a_failed_step_stays_in_the_residuals() {
    for method in METHODS {
        on_local(2, move |group| {
            let mut exchange = exchange(group, method);
            exchange.average(&mut inputs(group.rank(), 0)).unwrap();
            if group.rank() == 1 {
                return;
            }
            let before = residuals(&exchange).concat();
            let error = exchange.average(&mut inputs(0, 1)).unwrap_err();
            assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
            let waiting = residuals(&exchange).concat();
            assert_eq!(waiting, oracle::sum(&[before, inputs(0, 1).concat()]), "{method:?}");
            exchange.rejoin(&Group::solo());
            let mut serial = Serial::new(1, method, SHAPES);
            serial.kept[0] = residuals(&exchange);
            let mut found = inputs(0, 2);
            exchange.average(&mut found).unwrap();
            assert_eq!(bits(&found), bits(&serial.step(|_| inputs(0, 2), 1.0)), "{method:?}");
            assert_eq!(bits(&residuals(&exchange)), bits(&serial.kept[0]), "{method:?}");
        });
    }
}

#[test]
fn a_restart_from_saved_state_changes_no_bit() {
    for method in METHODS {
        let same = on_local(2, move |group| {
            let steps = |exchange: &mut GradientExchange, steps: std::ops::Range<u32>| {
                let mut out = Vec::new();
                for step in steps {
                    let mut values = inputs(exchange.group().rank(), step);
                    exchange.average(&mut values).unwrap();
                    out.extend(bits(&values));
                }
                out
            };
            let mut whole = exchange(group, method);
            steps(&mut whole, 0..2);
            let state = saved(&whole);
            let expected = steps(&mut whole, 2..4);
            let mut restarted = exchange(group, method);
            steps(&mut restarted, 7..8);
            restarted.load(&mut &state[..]).unwrap();
            assert_eq!(saved(&restarted), state, "{method:?}");
            steps(&mut restarted, 2..4) == expected
        });
        assert_eq!(same, [true; 2], "{method:?}");
    }
}

/// Ranks would draw from different steps.
#[test]
fn states_of_different_steps_are_a_mismatch() {
    for method in [Unbiased, Atomo] {
        let errors = on_local(3, move |group| {
            let mut exchange = exchange(group, method);
            exchange.average(&mut inputs(group.rank(), 0)).unwrap();
            let early = saved(&exchange);
            exchange.average(&mut inputs(group.rank(), 1)).unwrap();
            let state = if group.rank() == 1 { early } else { saved(&exchange) };
            exchange.load(&mut &state[..]).unwrap();
            exchange.average(&mut inputs(group.rank(), 2)).unwrap_err().to_string()
        });
        let named = |text: &String| ["from step 1", "from step 2"].iter().all(|part| text.contains(part));
        assert!(errors.iter().any(named), "{errors:?}");
    }
}

#[test]
fn another_method_is_a_mismatch_that_names_both() {
    let words = [
        (Unbiased, "unbiased rank 2 of 12 x 10"),
        (Best, "best rank 2 of 12 x 10"),
        (Atomo, "Spectral Atomo, rank 2 of 12 x 10"),
        (SignNorm, "sign and norm"),
    ];
    for pair in words.windows(2) {
        let [(first, words), (second, other)] = [pair[0], pair[1]];
        let texts = on_local(3, move |group| {
            let mut exchange = exchange(group, if group.rank() == 1 { first } else { second });
            exchange.average(&mut inputs(group.rank(), 0)).unwrap_err().to_string()
        });
        let named =
            |text: &String| text.contains("\"first\"") && text.contains(words) && text.contains(other);
        assert!(texts.iter().any(named), "{texts:?}");
    }
}
