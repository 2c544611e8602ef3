//! Tensors that do not shrink travel with the left factors.

use brevity::collectives::Error as Collective;
use brevity_tests::on_local;

use super::*;

/// Vectors, an empty one and a matrix that is too small among them, around two matrices.
fn model(of_vectors: Policy) -> Model {
    let matrix = Policy::low_rank(2);
    vec![
        ("first", vec![7], of_vectors),
        ("conv", vec![16, 3, 5], matrix),
        ("bias", vec![16], of_vectors),
        ("empty", vec![0], of_vectors),
        ("weight", vec![24, 20], matrix),
        ("small", vec![3, 3], of_vectors),
        ("scalar", vec![], of_vectors),
    ]
}

const VECTORS: [usize; 5] = [0, 2, 3, 5, 6];

fn packed() -> Model {
    model(Policy::low_rank(2))
}

fn dense() -> Model {
    model(Policy::dense())
}

/// The average of a dense tensor, by its definition.
fn mean(model: &Model, world_size: u32, tensor: usize, step: u32) -> Vec<f32> {
    let all = (0..world_size).map(|rank| gradients(model, rank, step).swap_remove(tensor)).collect();
    brevity_tests::dense::in_order(all).into_iter().map(|sum| sum / world_size as f32).collect()
}

/// They cost no message, and the matrices have the same bits as without them.
#[test]
fn vectors_have_the_averages_of_dense_tensors_and_no_message() {
    for world_size in SIZES {
        let (packed, dense) = (packed(), dense());
        let (found, expected) = (averages(world_size, &packed, 3), averages(world_size, &dense, 3));
        let matrices: Model = [1, 4].map(|tensor| packed[tensor].clone()).into();
        let alone = averages(world_size, &matrices, 3);
        for (rank, (steps, messages)) in found.iter().enumerate() {
            let about = format!("P = {world_size}, rank {rank}");
            for (step, found) in steps.iter().enumerate() {
                assert_eq!(bits(found), bits(&expected[rank].0[step]), "{about}, step {step}");
                assert_eq!(bits(found), bits(&steps_of(&expected, 0)[step]), "{about}, step {step}");
                for tensor in VECTORS {
                    assert_eq!(found[tensor], mean(&packed, world_size, tensor, step as u32), "{about}");
                }
            }
            assert_eq!(*messages, alone[rank].1, "{about}");
            assert!(*messages < expected[rank].1 || world_size == 1, "{about}");
        }
    }
}

fn steps_of(ranks: &[(Vec<Vec<Vec<f32>>>, u64)], rank: usize) -> &[Vec<Vec<f32>>] {
    &ranks[rank].0
}

/// In steps, over the slots of a host, and in other buckets.
#[test]
fn buckets_and_steps_change_no_bit_of_vectors() {
    let settings: [fn(ExchangeBuilder) -> ExchangeBuilder; 3] =
        [|builder| builder, |builder| builder.bucket_bytes(0), |builder| builder.bucket_bytes(100)];
    for (settings, by_steps) in settings.into_iter().flat_map(|one| [false, true].map(|steps| (one, steps))) {
        let ranks = brevity_tests::on_host(3, Settings::default(), move |group| {
            let (model, mut out) = (packed(), Vec::new());
            let mut exchange = build(group, &model, settings);
            for step in 0..3 {
                let mut values = gradients(&model, group.rank(), step);
                if by_steps {
                    let mut step = exchange.begin().unwrap();
                    for tensor in (0..values.len()).rev() {
                        step.ready(tensor, &values[tensor]).unwrap();
                    }
                    step.finish(&mut values).unwrap();
                } else {
                    exchange.average(&mut values).unwrap();
                }
                out.push(values);
            }
            out
        });
        let expected = averages(3, &dense(), 3);
        for found in ranks {
            for (found, expected) in found.iter().zip(steps_of(&expected, 0)) {
                assert_eq!(bits(found), bits(expected));
            }
        }
    }
}

/// Averages over some of the ranks are divided once, too.
#[test]
fn participants_are_counted_for_vectors() {
    let ranks = on_local(3, |group| {
        [packed(), dense()].map(|model| {
            let mut exchange = build(group, &model, ExchangeBuilder::average_over_participants);
            let mut values = gradients(&model, group.rank(), 0);
            if group.rank() == 1 {
                exchange.step_empty(&mut values).unwrap();
            } else {
                exchange.average(&mut values).unwrap();
            }
            bits(&values)
        })
    });
    assert!(ranks.iter().all(|[packed, dense]| packed == dense && *packed == ranks[0][0]));
}

#[test]
fn a_bad_value_of_a_vector_is_named_and_leaves_the_step_out() {
    for (tensor, name) in [(2, "bias"), (5, "small"), (4, "weight")] {
        for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
            let ranks = on_local(3, move |group| {
                let model = packed();
                let mut exchange = build(group, &model, |builder| builder);
                exchange.average(&mut gradients(&model, group.rank(), 0)).unwrap();
                let before = residuals(&exchange);
                let mut values = gradients(&model, group.rank(), 1);
                if bad == f32::MAX || group.rank() == 2 {
                    values[tensor][3] = bad;
                }
                let handed_in = bits(&values);
                let error = exchange.average(&mut values).unwrap_err();
                assert_eq!(bits(&values), handed_in);
                let after = residuals(&exchange);
                let vectors = |all: &[Vec<f32>]| VECTORS.map(|tensor| all[tensor].clone());
                assert_eq!(bits(&vectors(&after)), bits(&vectors(&before)));
                let mut next = gradients(&model, group.rank(), 2);
                exchange.average(&mut next).unwrap();
                assert!(VECTORS.iter().all(|&tensor| next[tensor] == mean(&model, 3, tensor, 2)));
                error
            });
            for error in ranks {
                let named = match &error {
                    Error::NonFinite { rank: 2, tensor } => tensor == name,
                    Error::NonFinite { tensor, .. } | Error::Overflow { tensor } => {
                        bad == f32::MAX && tensor == name
                    }
                    _ => false,
                };
                assert!(named, "{bad}: {error}");
            }
        }
    }
}

/// A survivor delivers later what the failed step did not.
#[test]
fn a_failed_step_keeps_vectors() {
    let ranks = on_local(2, |group| {
        let model = packed();
        let mut exchange = build(group, &model, |builder| builder);
        exchange.average(&mut gradients(&model, group.rank(), 0)).unwrap();
        if group.rank() == 1 {
            return None;
        }
        let error = exchange.average(&mut gradients(&model, 0, 1)).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
        let left = residuals(&exchange);
        let state = saved(&exchange);
        exchange.rejoin(&Group::solo());
        let mut averages = gradients(&model, 0, 2);
        exchange.average(&mut averages).unwrap();
        Some((left, state, averages))
    });
    let (left, state, averages) = ranks.into_iter().flatten().next().unwrap();
    let model = packed();
    let (failed, next) = (gradients(&model, 0, 1), gradients(&model, 0, 2));
    for tensor in VECTORS {
        assert_eq!(left[tensor], failed[tensor]);
        let sums: Vec<f32> = failed[tensor].iter().zip(&next[tensor]).map(|(a, b)| a + b).collect();
        assert_eq!(averages[tensor], sums);
    }
    // What waits is saved, and fits a dense tensor.
    let mut restarted = build(&Group::solo(), &dense(), |builder| builder);
    restarted.load(&mut &state[..]).unwrap();
    assert_eq!(bits(&residuals(&restarted)), bits(&left));
    assert_eq!(saved(&restarted), state);
}

/// Vectors alone are dense tensors: with matrices on one rank, that is a mismatch.
#[test]
fn a_vector_that_travels_otherwise_is_a_mismatch() {
    let texts = on_local(3, |group| {
        let model = if group.rank() == 1 { dense() } else { packed() };
        let mut exchange = build(group, &model, |builder| builder);
        exchange.average(&mut gradients(&model, group.rank(), 0)).unwrap_err().to_string()
    });
    let named = |text: &String| text.contains("\"first\"") && text.contains("dense, with the left factors");
    assert!(texts.iter().any(named), "{texts:?}");
    let alone: Model = vec![("bias", vec![7], Policy::low_rank(2)), ("other", vec![3], Policy::dense())];
    let found = averages(3, &alone, 1);
    let together: Model = vec![("bias", vec![7], Policy::dense()), ("other", vec![3], Policy::dense())];
    assert_eq!(found, averages(3, &together, 1));
}
