//! The gradient exchange: mass over steps, poison, and failures without loss.

mod buckets;
mod dense_steps;
mod excluded;
mod mismatches;
mod momentum;
mod participants;
mod reports;
mod schedules;
mod steps;
mod types;

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use brevity::collectives::Error as Collective;
use brevity::compress::quantise::{Magnitude, Values};
use brevity::transport::bootstrap::Opened;
use brevity::transport::shm::LocalGroup;
use brevity::transport::{Transport, local};
use brevity::{Error, ExchangeBuilder, GradientExchange, Group, Policy, PutBack, Scope, Settings};
use brevity_tests::{on_groups, on_host, on_local, oracle};

const POLICIES: [(&str, Policy); 20] = [
    ("dense", Policy::dense()),
    ("topk", Policy::topk(0.05)),
    ("gtopk", Policy::gtopk(0.05)),
    ("gtopk merger keeps", Policy::gtopk(0.05).put_back(PutBack::MergerKeeps)),
    ("topk bf16", Policy::topk(0.05).values(Values::Bf16)),
    ("oktopk", Policy::oktopk(0.05)),
    ("oktopk bf16", Policy::oktopk(0.05).values(Values::Bf16)),
    ("random k", Policy::random_k(0.05)),
    ("random block", Policy::random_block(0.05)),
    ("block", Policy::block(0.3)),
    ("topk of a bucket", Policy::topk(0.05).scope(Scope::Bucket)),
    ("gtopk after dense steps", Policy::gtopk(0.05).dense_steps(2)),
    ("gtopk by hosts", Policy::gtopk(0.05).hierarchical()),
    ("topk bf16 by hosts", Policy::topk(0.05).values(Values::Bf16).hierarchical()),
    ("topk one bit", Policy::topk(0.05).values(Values::OneBit(Magnitude::Mean))),
    ("low rank", Policy::low_rank(2)),
    ("quantised bf16", Policy::quantised(Values::Bf16)),
    ("quantised one bit", Policy::quantised(Values::OneBit(Magnitude::Mean))),
    ("best low rank", Policy::best_low_rank(2)),
    ("sign and norm", Policy::sign_norm()),
];

const SHAPE: [usize; 2] = [33, 65];
const COUNT: usize = SHAPE[0] * SHAPE[1];

fn exchange(group: &Group, policy: Policy) -> GradientExchange {
    GradientExchange::builder(group)
        .tensor("weight", SHAPE, policy)
        .tensor("bias", [7], Policy::dense())
        .build()
        .unwrap()
}

/// The gradients of one rank in one step.
fn gradients(rank: u32, step: usize) -> Vec<Vec<f32>> {
    vec![oracle::vector(rank + 100 * step as u32, COUNT), oracle::vector(rank + 50 + 100 * step as u32, 7)]
}

/// The connection between ranks: threads that only send messages, or threads that share memory like ranks of
/// one host.
#[derive(Clone, Copy, Debug)]
enum Between {
    Messages,
    Slots,
}

const BOTH: [Between; 2] = [Between::Messages, Between::Slots];

impl Between {
    fn run<R: Send + 'static>(
        self,
        world_size: u32,
        body: impl Fn(&Group) -> R + Clone + Send + 'static,
    ) -> Vec<R> {
        on_groups(self.groups(world_size), body)
    }

    fn groups(self, world_size: u32) -> Vec<Group> {
        let transports =
            local::world(world_size).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>);
        let local_groups = LocalGroup::in_process(world_size).unwrap().into_iter();
        let local_peers = local_groups.map(|all| matches!(self, Self::Slots).then_some(all));
        let opened = transports
            .zip(local_peers)
            .map(|(transport, local_group)| Opened::in_process(transport, local_group));
        opened.map(|opened| Group::opened(opened, Settings::default())).collect()
    }
}

/// If ranks share memory, dense tensors and factors are not sent.
#[test]
fn what_is_not_sparse_goes_over_shared_memory() {
    for policy in [Policy::dense(), Policy::low_rank(2), Policy::random_k(0.1)] {
        let ranks = on_host(3, Settings::default(), move |group| {
            let mut exchange = exchange(group, policy);
            exchange.average(&mut gradients(group.rank(), 0)).unwrap();
            let ((_, averaged), result) = exchange.start(gradients(group.rank(), 1)).wait();
            result.unwrap();
            (averaged, group.statistics())
        });
        for (averaged, statistics) in &ranks {
            assert_eq!(*averaged, ranks[0].0, "ranks differ");
            assert_eq!(statistics.messages_sent, 0, "{statistics:?}");
            assert!(statistics.bytes_shared > 0, "{statistics:?}");
        }
    }
}

#[test]
fn mass_is_conserved_exactly_over_steps() {
    for (name, policy) in &POLICIES[..14] {
        // Powers of two, so that the division by P is exact.
        for (world_size, between) in
            [1, 2, 4, 8].into_iter().flat_map(|size| BOTH.map(|between| (size, between)))
        {
            let policy = *policy;
            let ranks = between.run(world_size, move |group| {
                let mut exchange = exchange(group, policy);
                let mut delivered = vec![0.0; COUNT];
                for step in 0..5 {
                    let mut gradients = gradients(group.rank(), step);
                    exchange.average(&mut gradients).unwrap();
                    for (total, value) in delivered.iter_mut().zip(&gradients[0]) {
                        *total += value * group.world_size() as f32;
                    }
                }
                (delivered, exchange.residual("weight").unwrap())
            });
            let put_in: Vec<Vec<f32>> = (0..5)
                .flat_map(|step| (0..world_size).map(move |rank| gradients(rank, step).remove(0)))
                .collect();
            let mut parts: Vec<Vec<f32>> = ranks.iter().map(|(_, residual)| residual.clone()).collect();
            parts.push(ranks[0].0.clone());
            assert_eq!(oracle::sum(&parts), oracle::sum(&put_in), "{name}, {between:?}, P = {world_size}");
            assert!(ranks.iter().all(|(delivered, _)| *delivered == ranks[0].0), "{name}: ranks differ");
        }
    }
}

#[test]
fn low_rank_keeps_what_it_does_not_deliver() {
    let ranks = on_local(4, |group| {
        let mut exchange = exchange(group, Policy::low_rank(2));
        let mut delivered = vec![0.0f32; COUNT];
        for step in 0..5 {
            let mut gradients = gradients(group.rank(), step);
            exchange.average(&mut gradients).unwrap();
            for (total, value) in delivered.iter_mut().zip(&gradients[0]) {
                *total += value * 4.0;
            }
        }
        (delivered, exchange.residual("weight").unwrap())
    });
    let put_in: Vec<Vec<f32>> =
        (0..5).flat_map(|step| (0..4).map(move |rank| gradients(rank, step).remove(0))).collect();
    let mut parts: Vec<Vec<f32>> = ranks.iter().map(|(_, residual)| residual.clone()).collect();
    parts.push(ranks[0].0.clone());
    for (found, expected) in oracle::sum(&parts).iter().zip(oracle::sum(&put_in)) {
        assert!((found - expected).abs() < 0.05, "{found} {expected}");
    }
    assert!(ranks.iter().all(|(delivered, _)| *delivered == ranks[0].0), "ranks differ");
}

#[test]
fn a_value_that_is_not_finite_is_the_same_error_everywhere() {
    let all = POLICIES.into_iter().flat_map(|policy| BOTH.map(|between| (policy, between)));
    for ((name, policy), between) in all {
        for (bad_rank, tensor, bad) in [(0, 0, f32::NAN), (2, 1, f32::INFINITY), (2, 0, f32::NEG_INFINITY)] {
            let ranks = between.run(3, move |group| {
                let mut exchange = exchange(group, policy);
                exchange.average(&mut gradients(group.rank(), 0)).unwrap();
                let before = exchange.residual("weight").unwrap();
                let mut poisoned = gradients(group.rank(), 1);
                if group.rank() == bad_rank {
                    poisoned[tensor][3] = bad;
                }
                let handed_in = poisoned.clone();
                let error = exchange.average(&mut poisoned).unwrap_err();
                let applied = poisoned
                    .iter()
                    .flatten()
                    .zip(handed_in.iter().flatten())
                    .any(|(a, b)| a.to_bits() != b.to_bits());
                let after = exchange.residual("weight").unwrap();
                let next = exchange.average(&mut gradients(group.rank(), 2)).is_ok();
                (error, applied, before, after, next)
            });
            for (error, applied, before, after, next) in ranks {
                let Error::NonFinite { rank, tensor: found } = &error else { panic!("{name}: {error}") };
                assert_eq!((*rank, found.as_str()), (bad_rank, ["weight", "bias"][tensor]), "{name}");
                assert!(!applied && next, "{name}");
                assert!(
                    before.iter().zip(&after).all(|(b, a)| a.is_finite() && (a - b).abs() < 1e-2),
                    "{name}"
                );
            }
        }
    }
}

/// The values are finite, but their sums or products are not.
#[test]
fn an_overflow_is_the_same_error_everywhere_and_leaves_the_step_out() {
    for (name, policy) in POLICIES {
        for (all_ranks, between) in
            [true, false].into_iter().flat_map(|all| BOTH.map(|between| (all, between)))
        {
            let ranks = between.run(3, move |group| {
                let mut exchange = exchange(group, policy);
                let huge = if all_ranks || group.rank() == 1 { f32::MAX } else { 1.0 };
                let outcome = exchange.average(&mut [vec![huge; COUNT], vec![0.0; 7]]);
                let residual = exchange.residual("weight").unwrap();
                let next = exchange.average(&mut gradients(group.rank(), 0)).is_ok();
                (outcome.map_err(|error| error.to_string()), residual, next)
            });
            let (first, ..) = &ranks[0];
            for (outcome, residual, next) in &ranks {
                assert_eq!(outcome, first, "{name}");
                assert!(*next && residual.iter().all(|value| value.is_finite()), "{name}");
                if let Err(error) = outcome {
                    assert!(error.contains("\"weight\"") && error.contains("not finite"), "{name}: {error}");
                    assert!(
                        residual.iter().all(|value| *value == 0.0),
                        "{name}: the step is in the residual"
                    );
                }
            }
            assert!(first.is_err() || !all_ranks, "{name}: three times the largest number is no number");
        }
    }
}

#[test]
fn two_bad_ranks_are_one_error() {
    let errors = on_local(5, |group| {
        let mut gradients = gradients(group.rank(), 0);
        if group.rank() >= 2 {
            gradients[(group.rank() % 2) as usize][0] = f32::NAN;
        }
        exchange(group, Policy::gtopk(0.1)).average(&mut gradients).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
    assert!(errors[0].contains("rank 2") && errors[0].contains("\"weight\""), "{errors:?}");
}

/// Three of four ranks lose the fourth in the middle of training, make a new group and continue.
#[test]
fn nothing_is_lost_over_a_failure() {
    for ((name, policy), between) in
        POLICIES.into_iter().flat_map(|policy| BOTH.map(|between| (policy, between)))
    {
        let survivors = Arc::new(Mutex::new(between.groups(3).into_iter().map(Some).collect::<Vec<_>>()));
        let done = Arc::new(Barrier::new(4));
        let ranks = between.run(4, move |group| {
            let rank = group.rank();
            let mut exchange = exchange(group, policy);
            let mut step_0 = gradients(rank, 0);
            exchange.average(&mut step_0).unwrap();
            let before = exchange.residual("weight").unwrap();
            // Whoever finds the loss closes the group, also for a rank that is still in the step before.
            done.wait();
            if rank == 3 {
                return None;
            }
            let error = exchange.average(&mut gradients(rank, 1)).unwrap_err();
            assert!(
                matches!(&error, Error::Collective(Collective::PeerLost { rank }) if rank.0 == 3),
                "{error}"
            );
            let after = exchange.residual("weight").unwrap();
            let group = survivors.lock().unwrap()[rank as usize].take().unwrap();
            exchange.rejoin(&group);
            let mut delivered = vec![0.0f32; COUNT];
            for _ in 0..60 {
                let mut nothing = vec![vec![0.0; COUNT], vec![0.0; 7]];
                exchange.average(&mut nothing).unwrap();
                for (total, value) in delivered.iter_mut().zip(&nothing[0]) {
                    *total += value * 3.0;
                }
            }
            Some((before, after, delivered, exchange.residual("weight").unwrap()))
        });
        let ranks: Vec<_> = ranks.into_iter().flatten().collect();
        assert_eq!(ranks.len(), 3, "{name}");
        for (rank, (before, after, ..)) in ranks.iter().enumerate() {
            let expected = oracle::sum(&[before.clone(), gradients(rank as u32, 1).remove(0)]);
            assert_eq!(*after, expected, "{name}: rank {rank} lost something");
        }
        let waiting: Vec<_> = ranks.iter().map(|(_, after, ..)| after.clone()).collect();
        let mut parts: Vec<_> = ranks.iter().map(|(.., rest)| rest.clone()).collect();
        parts.push(ranks[0].2.clone());
        let (found, expected) = (oracle::sum(&parts), oracle::sum(&waiting));
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-3 * largest.max(1.0), "{name}: {found} {expected}");
        }
        let sent = ranks[0].2.iter().filter(|value| **value != 0.0).count();
        assert!(sent > COUNT / 2, "{name}: only {sent} entries went out later");
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused_before_anything_is_sent() {
    let group = Group::solo();
    let mut exchange = exchange(&group, Policy::dense());
    let error = exchange.average(&mut [vec![0.0f32; COUNT]]).unwrap_err();
    assert!(matches!(error, Error::Shape { found: 1, expected: 2, .. }), "{error}");
    let error = exchange.average(&mut [vec![0.0f32; COUNT], vec![0.0; 8]]).unwrap_err();
    assert!(error.to_string().contains("\"bias\""), "{error}");
    assert_eq!(group.statistics().messages_sent, 0);
}

#[test]
fn a_started_average_gives_what_a_blocking_one_does() {
    for ((name, policy), between) in
        POLICIES.into_iter().flat_map(|policy| BOTH.map(|between| (policy, between)))
    {
        let results = between.run(3, move |group| {
            let mut blocking = exchange(group, policy);
            let mut expected = gradients(group.rank(), 0);
            blocking.average(&mut expected).unwrap();
            let started = exchange(group, policy).start(gradients(group.rank(), 0));
            let ((exchange, found), result) = started.wait();
            result.unwrap();
            assert_eq!(exchange.group().rank(), group.rank());
            found == expected
        });
        assert_eq!(results, [true; 3], "{name}, {between:?}");
    }
}

/// Nothing was sent and nothing is lost: the exchange comes back with its residuals.
#[test]
fn an_average_that_is_refused_gives_the_exchange_back() {
    let group = Group::solo();
    let mut before = exchange(&group, Policy::topk(0.05));
    before.average(&mut gradients(0, 0)).unwrap();
    let residual = before.residual("weight").unwrap();
    let wrong = vec![vec![1.0; COUNT], vec![1.0; 8]];
    let ((after, gradients), result) = before.start(wrong.clone()).wait();
    assert!(matches!(result, Err(Error::Shape { found: 8, expected: 7, .. })), "{result:?}");
    assert!(gradients == wrong && after.residual("weight").unwrap() == residual);
}

/// As during the warm-up of a training run.
#[test]
fn a_density_may_change_between_steps() {
    for between in BOTH {
        let ranks = between.run(3, |group| {
            let mut exchange = exchange(group, Policy::gtopk(0.05));
            [0.25, 0.0625].map(|density| {
                exchange.set_density("weight", density).unwrap();
                let mut gradients = gradients(group.rank(), 0);
                exchange.average(&mut gradients).unwrap();
                gradients[0].iter().filter(|value| **value != 0.0).count()
            })
        });
        assert_eq!(ranks, [[537, 135]; 3], "a quarter, and a sixteenth, of {COUNT}, {between:?}");
    }
}

#[test]
fn densities_of_what_is_not_sparse_are_refused() {
    let mut exchange = exchange(&Group::solo(), Policy::topk(0.05));
    for (tensor, density) in [("weight", 0.0), ("weight", 1.5), ("bias", 0.5)] {
        let error = exchange.set_density(tensor, density).unwrap_err();
        assert!(matches!(&error, Error::Policy { parameter: "density", .. }), "{error}");
        assert!(error.to_string().contains(tensor), "{error}");
    }
    let error = exchange.set_density("nobody", 0.5).unwrap_err();
    assert_eq!(error.to_string(), "no tensor is named \"nobody\": pass a name that it was built with");
}

/// Nothing is sent, and the numbers of later exchanges agree.
#[test]
fn an_exchange_that_no_memory_holds_is_refused() {
    let huge = [
        (Policy::dense(), vec![1 << 46]),
        (Policy::low_rank(2), vec![1 << 40, 1 << 10]),
        (Policy::low_rank(2), vec![1, 1 << 60]),
        (Policy::quantised(Values::Bf16), vec![1 << 46]),
        (Policy::signum(0.9), vec![1 << 46]),
        (Policy::unbiased_low_rank(2), vec![1 << 40, 1 << 10]),
        (Policy::best_low_rank(2), vec![1 << 40, 1 << 10]),
        (Policy::sign_norm(), vec![1 << 46]),
    ];
    for (policy, shape) in huge {
        let refused = on_local(2, move |group| {
            let build = GradientExchange::builder(group).tensor("weight", &shape, policy).build();
            let refused = build.err().unwrap();
            exchange(group, Policy::gtopk(0.1)).average(&mut gradients(group.rank(), 0)).unwrap();
            refused
        });
        assert!(refused.iter().all(|error| matches!(error, Error::Memory { .. })), "{refused:?}");
    }
}

/// A rank that drops a started average and its group has left without aborting; nothing keeps its group
/// alive.
#[test]
fn a_dropped_average_does_not_keep_its_group() {
    let settings = Settings { timeout: Duration::from_secs(4), ..Settings::default() };
    for (name, policy) in POLICIES {
        let ends = on_host(3, settings, move |group| {
            let mut exchange = exchange(group, policy);
            if group.rank() == 0 {
                drop(exchange.start(gradients(0, 0)));
                return None;
            }
            let averaged = exchange.average(&mut gradients(group.rank(), 0)).err();
            Some(averaged.map_or_else(|| group.barrier().unwrap_err().to_string(), |error| error.to_string()))
        });
        for end in ends.into_iter().flatten() {
            assert!(end.contains("rank 0 is lost"), "{name}: {end}");
        }
    }
}
