//! The state of an exchange: saved, refused, and loaded.

use std::sync::{Arc, Mutex};

use brevity::collectives::Error as Collective;
use brevity::compress::quantise::{Magnitude, Values};
use brevity::compress::state::Fault;
use brevity::{Error, GradientExchange, Group, Policy, PutBack, compress};
use brevity_tests::{on_local, oracle};

const SHAPE: [usize; 2] = [9, 17];
const COUNT: usize = SHAPE[0] * SHAPE[1];

/// All kinds of tensors, two of low rank, and some with rounded values.
fn exchange(group: &Group, density: f64) -> GradientExchange {
    GradientExchange::builder(group)
        .tensor("topk", SHAPE, Policy::topk(density))
        .tensor("low rank", SHAPE, Policy::low_rank(1))
        .tensor("gtopk", SHAPE, Policy::gtopk(density).put_back(PutBack::MergerKeeps))
        .tensor("bias", [7], Policy::dense())
        .tensor("low rank too", SHAPE, Policy::low_rank(2).min_compression(1.0))
        .tensor("rounded", SHAPE, Policy::topk(density).values(Values::TwoBit(Magnitude::Mean)))
        .tensor("quantised", SHAPE, Policy::quantised(Values::OneBit(Magnitude::Mean)))
        .tensor("voted on", SHAPE, Policy::signum(0.9))
        .tensor("quantised too", SHAPE, Policy::quantised(Values::TwoBit(Magnitude::Mean)))
        .tensor("oktopk", SHAPE, Policy::oktopk(density))
        .tensor("oktopk too", SHAPE, Policy::oktopk(density).momentum(0.5))
        .tensor("random k", SHAPE, Policy::random_k(density))
        .tensor("random block", SHAPE, Policy::random_block(density).samomentum(0.5))
        .tensor("block", SHAPE, Policy::block(density))
        .build()
        .unwrap()
}

const TENSORS: [(&str, usize); 14] = [
    ("topk", COUNT),
    ("low rank", COUNT),
    ("gtopk", COUNT),
    ("bias", 7),
    ("low rank too", COUNT),
    ("rounded", COUNT),
    ("quantised", COUNT),
    ("voted on", COUNT),
    ("quantised too", COUNT),
    ("oktopk", COUNT),
    ("oktopk too", COUNT),
    ("random k", COUNT),
    ("random block", COUNT),
    ("block", COUNT),
];

fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    (0..)
        .zip(TENSORS)
        .map(|(tensor, (_, count))| oracle::vector(rank + 10 * tensor + 100 * step, count))
        .collect()
}

/// The bits of the results of all steps, and of the residuals.
fn run(exchange: &mut GradientExchange, steps: std::ops::Range<u32>) -> Vec<u32> {
    let mut out = Vec::new();
    for step in steps {
        let mut gradients = gradients(exchange.group().rank(), step);
        exchange.average(&mut gradients).unwrap();
        out.extend(gradients.into_iter().flatten());
    }
    out.extend(TENSORS.iter().flat_map(|(name, _)| exchange.residual(name).unwrap()));
    out.into_iter().map(f32::to_bits).collect()
}

fn saved(exchange: &GradientExchange) -> Vec<u8> {
    let mut bytes = Vec::new();
    exchange.save(&mut bytes).unwrap();
    bytes
}

fn fault(result: Result<(), Error>) -> Fault {
    match result {
        Err(Error::State(compress::Error::State(fault))) => fault,
        other => panic!("expected a fault of saved state, found {other:?}"),
    }
}

#[test]
fn a_restart_from_saved_state_changes_no_bit() {
    for world_size in [1, 3] {
        let same = on_local(world_size, |group| {
            let mut whole = exchange(group, 0.05);
            run(&mut whole, 0..3);
            let mut checkpoint = saved(&whole);
            let length = checkpoint.len();
            checkpoint.extend(b"what the caller writes behind it");
            let expected = run(&mut whole, 3..6);
            // The exchange that loads it has another history.
            let mut restarted = exchange(group, 0.05);
            run(&mut restarted, 7..8);
            let mut from = &checkpoint[..];
            restarted.load(&mut from).unwrap();
            assert_eq!(from.len(), checkpoint.len() - length);
            assert_eq!(saved(&restarted), checkpoint[..length]);
            run(&mut restarted, 3..6) == expected
        });
        assert!(same.iter().all(|&same| same), "P = {world_size}: {same:?}");
    }
}

/// A dense tensor has a residual only after a failure; that is saved too.
#[test]
fn what_waits_after_a_failure_is_saved() {
    let ranks = on_local(2, |group| {
        if group.rank() == 1 {
            return None;
        }
        let mut exchange = exchange(group, 0.05);
        let error = exchange.average(&mut gradients(0, 0)).unwrap_err();
        assert!(matches!(error, Error::Collective(Collective::PeerLost { .. })), "{error}");
        Some(saved(&exchange))
    });
    let checkpoint = ranks.into_iter().flatten().next().unwrap();
    let mut alone = exchange(&Group::solo(), 1.0);
    alone.load(&mut &checkpoint[..]).unwrap();
    // A step that is left out must not remove older residuals.
    let mut bad = gradients(0, 1);
    bad[3][0] = f32::NAN;
    assert!(matches!(alone.average(&mut bad).unwrap_err(), Error::NonFinite { .. }));
    let mut nothing: Vec<Vec<f32>> = TENSORS.iter().map(|&(_, count)| vec![0.0; count]).collect();
    alone.average(&mut nothing).unwrap();
    for tensor in [0, 2, 3, 9, 11, 13] {
        assert_eq!(nothing[tensor], gradients(0, 0)[tensor], "{}", TENSORS[tensor].0);
    }
}

#[test]
fn damaged_state_is_refused_and_changes_nothing() {
    let build = || {
        GradientExchange::builder(&Group::solo())
            .tensor("low rank", [6, 5], Policy::low_rank(1))
            .tensor("sparse", [3], Policy::topk(0.5))
            .tensor("dense", [2], Policy::dense())
            .build()
            .unwrap()
    };
    let gradients = |seed| vec![oracle::vector(seed, 30), oracle::vector(seed, 3), oracle::vector(seed, 2)];
    let (mut one, mut other) = (build(), build());
    one.average(&mut gradients(1)).unwrap();
    other.average(&mut gradients(2)).unwrap();
    let (bytes, before) = (saved(&one), saved(&other));
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let fault = fault(other.load(&mut &damaged[..]));
        let known = matches!(fault, Fault::NoState | Fault::Damaged { .. } | Fault::Truncated { .. });
        assert!(known, "bit {bit}: {fault:?}");
        assert_eq!(saved(&other), before, "bit {bit}");
    }
    for length in 0..bytes.len() {
        let fault = fault(other.load(&mut &bytes[..length]));
        assert!(matches!(fault, Fault::Truncated { .. }), "{length} bytes: {fault:?}");
        assert_eq!(saved(&other), before, "{length} bytes");
    }
    other.load(&mut &bytes[..]).unwrap();
    assert_eq!(saved(&other), bytes);
}

#[test]
fn the_state_of_something_else_is_refused_and_changes_nothing() {
    let weight = |shape: [usize; 2], policy| ("weight", shape.to_vec(), policy);
    let bias = ("bias", vec![5], Policy::dense());
    let build = |tensors: &[(&str, Vec<usize>, Policy)]| {
        let builder = tensors
            .iter()
            .fold(GradientExchange::builder(&Group::solo()), |builder, (name, shape, policy)| {
                builder.tensor(*name, shape, *policy)
            });
        builder.build().unwrap()
    };
    let refused = |tensors: &[(&str, Vec<usize>, Policy)]| {
        let bytes = saved(&build(&[weight([8, 6], Policy::low_rank(1)), bias.clone()]));
        let mut into = build(tensors);
        let mut gradients: Vec<_> =
            tensors.iter().map(|(_, shape, _)| vec![1.0; shape.iter().product()]).collect();
        into.average(&mut gradients).unwrap();
        let before = saved(&into);
        let fault = fault(into.load(&mut &bytes[..]));
        assert_eq!(saved(&into), before);
        fault.to_string()
    };
    let found = "saved state holds tensor \"weight\" of 48 elements, rank 1 of 8 x 6, expected";
    let end = "was it saved with another model or other settings?";
    let others = [
        (weight([8, 6], Policy::topk(0.1)), "tensor \"weight\" of 48 elements, sparse"),
        (weight([6, 8], Policy::low_rank(1)), "tensor \"weight\" of 48 elements, rank 1 of 6 x 8"),
        (weight([8, 7], Policy::low_rank(1)), "tensor \"weight\" of 56 elements, rank 1 of 8 x 7"),
        (bias.clone(), "tensor \"bias\" of 5 elements, dense"),
    ];
    for (other, expected) in others {
        let second = if other.0 == "bias" { weight([8, 6], Policy::low_rank(1)) } else { bias.clone() };
        assert_eq!(refused(&[other, second]), format!("{found} {expected}: {end}"));
    }
    assert_eq!(
        refused(std::slice::from_ref(&bias)),
        format!("saved state has shape [2], expected [1]: {end}")
    );
}

/// Names that differ only beyond the stored length.
#[test]
fn long_names_are_told_apart() {
    let build = |end: &str| {
        let name = format!("{}{end}", "é".repeat(200));
        GradientExchange::builder(&Group::solo()).tensor(name, [1], Policy::dense()).build().unwrap()
    };
    let bytes = saved(&build("a"));
    build("a").load(&mut &bytes[..]).unwrap();
    assert!(matches!(fault(build("b").load(&mut &bytes[..])), Fault::Part { .. }));
}

#[test]
fn each_rank_loads_its_own() {
    let all = Arc::new(Mutex::new(Vec::new()));
    let saves = Arc::clone(&all);
    on_local(2, move |group| {
        let mut exchange = exchange(group, 0.1);
        run(&mut exchange, 0..2);
        saves.lock().unwrap().push((group.rank(), saved(&exchange), exchange.residual("topk")));
    });
    let saves = std::mem::take(&mut *all.lock().unwrap());
    let (_, of_rank_1, residual) = saves.iter().find(|(rank, ..)| *rank == 1).unwrap();
    let mut alone = exchange(&Group::solo(), 0.1);
    let fault = fault(alone.load(&mut &of_rank_1[..]));
    assert_eq!(
        fault,
        Fault::Part { found: "the state of rank 1".into(), expected: "the state of rank 0".into() }
    );
    alone.load_of(1, &mut &of_rank_1[..]).unwrap();
    assert_eq!(alone.residual("topk"), *residual);
    let mut again = Vec::new();
    alone.save(&mut again).unwrap();
    exchange(&Group::solo(), 0.1).load(&mut &again[..]).unwrap();
}

#[test]
fn values_may_be_others_after_a_restart() {
    let build = |values| {
        let builder = GradientExchange::builder(&Group::solo());
        builder.tensor("a", SHAPE, Policy::topk(0.1).values(values)).build().unwrap()
    };
    let mut first = build(Values::Bf16);
    first.average(&mut [oracle::vector(3, COUNT)]).unwrap();
    let mut second = build(Values::OneBit(Magnitude::Min));
    second.load(&mut &saved(&first)[..]).unwrap();
    assert_eq!(second.residual("a"), first.residual("a"));
}

#[test]
fn the_density_may_be_another_after_a_restart() {
    let group = Group::solo();
    let mut first = exchange(&group, 0.05);
    run(&mut first, 0..3);
    let mut second = exchange(&group, 0.5);
    second.load(&mut &saved(&first)[..]).unwrap();
    assert_eq!(second.residual("gtopk"), first.residual("gtopk"));
}

/// Low-rank factors of different steps would silently make the ranks diverge.
#[test]
fn ranks_that_load_different_steps_are_told() {
    let outcomes = on_local(3, |group| {
        let mut exchange = exchange(group, 0.05);
        run(&mut exchange, 0..1);
        let early = saved(&exchange);
        run(&mut exchange, 1..2);
        let checkpoint = if group.rank() == 1 { early } else { saved(&exchange) };
        exchange.load(&mut &checkpoint[..]).unwrap();
        exchange.average(&mut gradients(group.rank(), 2)).unwrap_err()
    });
    let is_named = |error: &Error| matches!(error, Error::Collective(Collective::Mismatch { .. }));
    let is_end = |error: &Error| matches!(error, Error::Collective(Collective::Differs { .. }));
    assert!(outcomes.iter().any(is_named), "{outcomes:?}");
    assert!(outcomes.iter().all(|error| is_named(error) || is_end(error)), "{outcomes:?}");
}

/// A rank that continues from a checkpoint among ranks that have none.
#[test]
fn after_rejoining_ranks_need_not_have_loaded_the_same() {
    let results = on_local(3, |group| {
        let mut exchange = exchange(group, 0.05);
        run(&mut exchange, 0..2);
        if group.rank() == 1 {
            let checkpoint = saved(&exchange);
            exchange.load(&mut &checkpoint[..]).unwrap();
        }
        exchange.rejoin(group);
        let mut gradients = gradients(group.rank(), 2);
        exchange.average(&mut gradients).unwrap();
        gradients
    });
    assert!(results.iter().all(|gradients| *gradients == results[0]), "ranks differ");
}
