//! Tensors that are named and not exchanged.

use super::*;

fn with_excluded(group: &Group) -> GradientExchange {
    GradientExchange::builder(group)
        .tensor("frozen", [5], Policy::excluded())
        .tensor("weight", SHAPE, Policy::topk(0.05))
        .tensor("own", [3], Policy::excluded())
        .tensor("bias", [7], Policy::dense())
        .build()
        .unwrap()
}

fn without(group: &Group) -> GradientExchange {
    exchange(group, Policy::topk(0.05))
}

/// Each rank has its own, and values that are not finite are nobody's business.
fn gradients_with(rank: u32, step: usize) -> Vec<Vec<f32>> {
    let [weight, bias]: [Vec<f32>; 2] = gradients(rank, step).try_into().unwrap();
    let own = vec![f32::NAN, rank as f32, f32::INFINITY];
    vec![oracle::vector(rank + 7, 5), weight, own, bias]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The others travel as if they were alone.
#[test]
fn gradients_of_excluded_tensors_stay_as_they_are() {
    for between in BOTH {
        for by_ready in [false, true] {
            between.run(3, move |group| {
                let (mut with, mut without) = (with_excluded(group), without(group));
                for step in 0..4 {
                    let (mut found, mut expected) =
                        (gradients_with(group.rank(), step), gradients(group.rank(), step));
                    without.average(&mut expected).unwrap();
                    let given = found.clone();
                    if by_ready {
                        let mut begun = with.begin().unwrap();
                        [2, 3, 0, 1].iter().for_each(|&tensor| begun.ready(tensor, &given[tensor]).unwrap());
                        assert!(matches!(begun.ready(0, &given[0]), Err(Error::Order { .. })));
                        begun.finish(&mut found).unwrap();
                    } else {
                        with.average(&mut found).unwrap();
                    }
                    assert_eq!((&found[1], &found[3]), (&expected[0], &expected[1]));
                    assert_eq!((bits(&found[0]), bits(&found[2])), (bits(&given[0]), bits(&given[2])));
                }
                assert_eq!(with.residual("weight"), without.residual("weight"));
                let mut residual = [1.0; 5];
                with.residual_to("frozen", &mut residual).unwrap();
                assert_eq!(residual, [0.0; 5]);
                let refused = with.set_density("frozen", 0.5).unwrap_err().to_string();
                assert!(refused.contains("\"frozen\"") && refused.contains("topk or gtopk"), "{refused}");
            });
        }
    }
}

#[test]
fn a_rank_without_gradients_keeps_what_it_has() {
    on_local(2, |group| {
        let mut exchange = with_excluded(group);
        let mut given = gradients_with(group.rank(), 0);
        if group.rank() == 0 {
            exchange.average(&mut given).unwrap();
        } else {
            exchange.step_empty(&mut given).unwrap();
        }
        let expected = gradients_with(group.rank(), 0);
        assert_eq!((bits(&given[0]), bits(&given[2])), (bits(&expected[0]), bits(&expected[2])));
        assert!(given[3].iter().any(|value| *value != 0.0));
    });
}

#[test]
fn nothing_is_saved_of_them() {
    let group = Group::solo();
    let mut exchange = with_excluded(&group);
    exchange.average(&mut gradients_with(0, 0)).unwrap();
    let mut state = Vec::new();
    exchange.save(&mut state).unwrap();
    assert_eq!(state.len(), exchange.saved_bytes());
    let mut restarted = with_excluded(&group);
    restarted.load(&mut &state[..]).unwrap();
    assert_eq!(restarted.residual("weight"), exchange.residual("weight"));
    restarted.take_over(0, &mut &state[..]).unwrap();
    let twice = restarted.residual("weight").unwrap();
    assert!(twice.iter().zip(exchange.residual("weight").unwrap()).all(|(twice, once)| *twice == 2.0 * once));
    // One that exchanges them has something to load.
    let builder = GradientExchange::builder(&group).tensor("frozen", [5], Policy::dense());
    let builder = builder.tensor("weight", SHAPE, Policy::topk(0.05)).tensor("own", [3], Policy::excluded());
    let mut other = builder.tensor("bias", [7], Policy::dense()).build().unwrap();
    let error = other.load(&mut &state[..]).unwrap_err().to_string();
    assert!(error.contains("excluded"), "{error}");
}

#[test]
fn all_tensors_may_be_excluded() {
    on_local(3, |group| {
        let mut exchange =
            GradientExchange::builder(group).tensor("all", [4], Policy::excluded()).build().unwrap();
        let mut gradients = [vec![group.rank() as f32; 4]];
        exchange.average(&mut gradients).unwrap();
        let mut step = exchange.begin().unwrap();
        step.ready(0, &gradients[0]).unwrap();
        step.finish(&mut gradients).unwrap();
        assert_eq!((gradients[0].as_slice(), exchange.steps()), (&[group.rank() as f32; 4][..], 2));
    });
}

/// Also where the others have no other tensor.
#[test]
fn ranks_that_exclude_others_are_told() {
    mismatches::all_end_with_a_mismatch("excluded", |group| {
        let policy = if group.rank() == 1 { Policy::excluded() } else { Policy::dense() };
        GradientExchange::builder(group)
            .tensor("a", [4], policy)
            .tensor("b", [4], Policy::dense())
            .build()
            .unwrap()
    });
    mismatches::all_end_with_a_mismatch("all excluded", |group| {
        let builder = GradientExchange::builder(group);
        let name = if group.rank() == 1 { "a" } else { "b" };
        builder.tensor(name, [4], Policy::excluded()).build().unwrap()
    });
}
