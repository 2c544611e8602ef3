//! Momentum before selection, against a serial reference of all ranks.

use brevity::compress::feedback::TopK;
use brevity::compress::momentum::{Clip, MomentumCorrection, SparsificationAware};
use brevity::compress::{Density, Error as Compress, SparseVec};

use super::*;

const COUNTS: [usize; 2] = [200, 60];
const DENSITY: f64 = 0.05;

fn policies() -> [(&'static str, Policy); 5] {
    [
        ("momentum", Policy::topk(DENSITY).momentum(0.9)),
        ("nesterov", Policy::topk(DENSITY).momentum(0.5).nesterov()),
        ("clip", Policy::topk(DENSITY).momentum(0.5).clip(2.0)),
        ("clip alone", Policy::topk(DENSITY).clip(2.0)),
        ("samomentum", Policy::topk(DENSITY).samomentum(0.7)),
    ]
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    let builder = GradientExchange::builder(group);
    let add = |builder: ExchangeBuilder, (tensor, count): (usize, usize)| {
        builder.tensor(tensor.to_string(), [count], policy)
    };
    COUNTS.into_iter().enumerate().fold(builder, add).build().unwrap()
}

fn inputs(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let all = (0..).zip(COUNTS);
    all.map(|(tensor, count)| oracle::vector(rank + 10 * tensor + 1000 * step, count)).collect()
}

/// One tensor on one rank.
enum Reference {
    Corrected(MomentumCorrection<TopK>),
    Aware(SparsificationAware<TopK>),
}

impl Reference {
    fn new(name: &str, count: usize, world_size: u32) -> Self {
        let top_k = TopK::new(Density::new(DENSITY).unwrap().entries(count));
        let corrected = |factor| MomentumCorrection::new(count, top_k.clone(), factor).unwrap();
        let clip = Clip::new(2.0, world_size as usize).unwrap();
        match name {
            "momentum" => Self::Corrected(corrected(0.9)),
            "nesterov" => Self::Corrected(corrected(0.5).with_nesterov()),
            "clip" => Self::Corrected(corrected(0.5).with_clip(clip)),
            "clip alone" => Self::Corrected(corrected(0.0).with_clip(clip)),
            _ => Self::Aware(SparsificationAware::new(count, top_k, 0.7).unwrap()),
        }
    }

    fn step(&mut self, gradient: &[f32]) -> SparseVec {
        let mut message = SparseVec::new(gradient.len());
        let stepped = match self {
            Self::Corrected(corrected) => corrected.compress(gradient, &mut message),
            Self::Aware(aware) => aware.compress(gradient, 1.0, &mut message),
        };
        stepped.unwrap();
        message
    }

    fn put_back(&mut self, entries: &SparseVec) -> Result<(), Compress> {
        match self {
            Self::Corrected(corrected) => corrected.put_back(entries.view()),
            Self::Aware(aware) => aware.put_back(entries),
        }
    }

    fn kept(&self) -> &[f32] {
        match self {
            Self::Corrected(corrected) => corrected.accumulated(),
            Self::Aware(aware) => aware.state(),
        }
    }
}

#[test]
fn momentum_is_applied_before_selecting() {
    for (name, policy) in policies() {
        for world_size in [1_u32, 2, 3] {
            let ranks = on_local(world_size, move |group| {
                let mut exchange = built(group, policy);
                let steps = (0..6).map(|step| {
                    let mut gradients = inputs(group.rank(), step);
                    exchange.average(&mut gradients).unwrap();
                    gradients
                });
                let steps: Vec<_> = steps.collect();
                (steps, ["0", "1"].map(|tensor| exchange.residual(tensor).unwrap()))
            });
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                let mut reference: Vec<_> =
                    (0..world_size).map(|_| Reference::new(name, count, world_size)).collect();
                for step in 0..6 {
                    let mut sum = vec![0.0; count];
                    for (rank, own) in (0..).zip(&mut reference) {
                        own.step(&inputs(rank, step)[tensor]).add_to(&mut sum);
                    }
                    for (steps, _) in &ranks {
                        let found = &steps[step as usize][tensor];
                        let off = found.iter().zip(&sum).map(|(a, b)| (a - b / world_size as f32).abs());
                        assert!(off.fold(0.0, f32::max) < 1e-4, "{name}, {world_size} ranks, step {step}");
                    }
                }
                for ((_, kept), reference) in ranks.iter().zip(&reference) {
                    assert_eq!(kept[tensor], reference.kept(), "{name}, {world_size} ranks");
                }
            }
        }
    }
}

/// What gTop-k does not deliver was not sent: its velocity goes on.
#[test]
fn undelivered_entries_keep_their_momentum() {
    for (name, policy) in [
        ("momentum", Policy::gtopk(DENSITY).momentum(0.9)),
        ("samomentum", Policy::gtopk(DENSITY).samomentum(0.7)),
    ] {
        on_local(3, move |group| {
            let count = COUNTS[0];
            let builder = GradientExchange::builder(group).tensor("weight", [count], policy);
            let mut exchange = builder.build().unwrap();
            let mut reference = Reference::new(name, count, 3);
            for step in 0..6 {
                let mut gradients = vec![inputs(group.rank(), step).swap_remove(0)];
                let message = reference.step(&gradients[0]);
                let k = Density::new(DENSITY).unwrap().entries(count);
                let outcome = group.gtopk_all_reduce(message.view(), k, PutBack::Conserving).unwrap();
                let delivered = outcome.result.indices();
                let (mut errors, mut others) = (SparseVec::new(count), SparseVec::new(count));
                for (index, value) in outcome.put_back.iter() {
                    let is_error = delivered.contains(&index);
                    if is_error { errors.push(index, value) } else { others.push(index, value) }
                }
                reference.put_back(&others).unwrap();
                match &mut reference {
                    Reference::Corrected(corrected) => corrected.add_error(errors.view()).unwrap(),
                    Reference::Aware(aware) => aware.put_back(&errors).unwrap(),
                }
                exchange.average(&mut gradients).unwrap();
                let mut expected = outcome.result.to_dense();
                expected.iter_mut().for_each(|value| *value /= 3.0);
                assert_eq!(gradients[0], expected, "{name}, step {step}");
                assert_eq!(exchange.residual("weight").unwrap(), reference.kept(), "{name}, step {step}");
            }
        });
    }
}

/// A step that is left out leaves neither momentum nor residual, and one that fails is kept.
#[test]
fn a_step_that_is_left_out_leaves_no_momentum() {
    for (name, policy) in policies() {
        let ranks = on_local(2, move |group| {
            let (mut disturbed, mut plain) = (built(group, policy), built(group, policy));
            let average = |exchange: &mut GradientExchange, step| {
                let mut gradients = inputs(group.rank(), step);
                exchange.average(&mut gradients).unwrap();
                gradients.concat()
            };
            assert_eq!(average(&mut disturbed, 0), average(&mut plain, 0));
            let mut gradients = inputs(group.rank(), 1);
            if group.rank() == 1 {
                gradients[1][7] = f32::NAN;
            }
            let error = disturbed.average(&mut gradients).unwrap_err();
            assert!(matches!(error, Error::NonFinite { rank: 1, ref tensor } if tensor == "1"), "{error}");
            let kept = |exchange: &GradientExchange| {
                ["0", "1"].map(|tensor| exchange.residual(tensor).unwrap()).concat()
            };
            let off = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off(&kept(&disturbed), &kept(&plain)) < 1e-4);
            off(&average(&mut disturbed, 2), &average(&mut plain, 2))
        });
        assert!(ranks.iter().all(|&off| off < 1e-4), "{name}: {ranks:?}");
    }
}

#[test]
fn the_state_with_momentum_goes_on_and_fits_no_other() {
    for (name, policy) in policies() {
        let group = Group::solo();
        let mut exchange = built(&group, policy);
        exchange.average(&mut inputs(0, 0)).unwrap();
        let mut state = Vec::new();
        exchange.save(&mut state).unwrap();
        let mut loaded = built(&group, policy);
        loaded.load(&mut &state[..]).unwrap();
        let (mut expected, mut found) = (inputs(0, 1), inputs(0, 1));
        exchange.average(&mut expected).unwrap();
        loaded.average(&mut found).unwrap();
        assert_eq!(found, expected, "{name}");
        let mut other = built(&group, Policy::topk(DENSITY));
        assert!(matches!(other.load(&mut &state[..]), Err(Error::State(_))), "{name}");
    }
}

#[test]
fn other_momentum_is_a_mismatch_and_impossible_ones_are_refused() {
    super::mismatches::all_end_with_a_mismatch("momentum", |group| {
        let factor = if group.rank() == 1 { 0.8 } else { 0.9 };
        built(group, Policy::topk(DENSITY).momentum(factor))
    });
    let topk = Policy::topk(DENSITY);
    for policy in [
        topk.momentum(1.0),
        topk.momentum(-0.1),
        topk.momentum(f32::NAN),
        topk.samomentum(0.0),
        topk.samomentum(1.0),
        topk.clip(0.0),
        topk.clip(f64::INFINITY),
    ] {
        let refused = GradientExchange::builder(&Group::solo()).tensor("t", [8], policy).build().err();
        assert!(matches!(refused, Some(Error::Policy { .. })), "{policy:?}: {refused:?}");
    }
    for other in [Policy::dense(), Policy::low_rank(2)] {
        assert_eq!(other.momentum(0.5).nesterov().clip(1.0).samomentum(0.5), other);
    }
}
