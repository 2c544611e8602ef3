//! Exchanges whose tensors travel by hosts.

use brevity::collectives::Error as Collective;
use brevity::compress::Density;
use brevity::compress::schedule::Schedule;
use brevity::{Error, ExchangeBuilder, GradientExchange, Policy, Scope, Threshold};
use brevity_tests::on_local;

use super::*;

/// Both in one bucket.
const TENSORS: [(&str, usize); 2] = [("weight", 240), ("bias", 60)];

const POLICIES: [Policy; 4] = [
    Policy::topk(0.05).hierarchical(),
    Policy::gtopk(0.05).hierarchical(),
    Policy::gtopk(0.05).put_back(PutBack::MergerKeeps).hierarchical(),
    Policy::topk(0.05).values(Values::Bf16).hierarchical(),
];

/// Ranks of hosts, by rank.
const PLACED: [&[u32]; 6] = [&[0], &[0, 0], &[0, 1], &[0, 0, 1, 1], &[0, 1, 0, 2], &[0, 0, 0, 1, 1, 2, 2, 2]];

fn builder(group: &Group, policy: Policy) -> ExchangeBuilder {
    TENSORS.into_iter().fold(GradientExchange::builder(group), |builder, (name, count)| {
        builder.tensor(name, [count], policy)
    })
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    builder(group, policy).build().unwrap()
}

fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let all = (0..).zip(TENSORS);
    all.map(|(tensor, (_, count))| oracle::vector(rank + 50 * tensor + 1000 * step, count)).collect()
}

fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
    TENSORS.iter().map(|(name, _)| exchange.residual(name).unwrap()).collect()
}

/// One step, of an exchange that is given back.
async fn step(
    exchange: GradientExchange,
    gradients: Vec<Vec<f32>>,
) -> (GradientExchange, Vec<Vec<f32>>, brevity::Result<()>) {
    let ((exchange, averages), outcome) = exchange.start(gradients).await;
    (exchange, averages, outcome)
}

/// The same as the collective on what waits and the gradient.
#[test]
fn a_step_is_a_residual_around_the_collective() {
    for (policy, by) in [(Policy::topk(0.1), SUMS[0]), (Policy::gtopk(0.1), SUMS[1])] {
        let (policy, k) = (policy.hierarchical(), Density::new(0.1).unwrap().entries(COUNT));
        for hosts in PLACED {
            on_hosts(hosts, None, |group| async move {
                let builder = GradientExchange::builder(&group);
                let mut exchange = builder.tensor("weight", [COUNT], policy).build().unwrap();
                let mut waiting = vec![0.0; COUNT];
                for number in 0..8 {
                    let given = oracle::vector(group.rank() + 1000 * number, COUNT);
                    let (left, sum) = summed(&group, oracle::sum(&[waiting, given.clone()]), k, by).await;
                    let mut expected = sum.unwrap().to_dense();
                    expected.iter_mut().for_each(|sum| *sum /= group.world_size() as f32);
                    let (after, found, outcome) = step(exchange, vec![given]).await;
                    outcome.unwrap();
                    exchange = after;
                    assert_eq!(bits(&found[0]), bits(&expected), "{policy}, {hosts:?}, step {number}");
                    assert_eq!(exchange.residual("weight").unwrap(), left, "{policy}, {hosts:?}");
                    waiting = left;
                }
            });
        }
    }
}

/// Integers, whose averages over 1, 2, 4 and 8 ranks are exact.
#[test]
fn steps_lose_nothing() {
    const STEPS: u32 = 6;
    for (hosts, policy) in PLACED.into_iter().flat_map(|hosts| POLICIES.map(|policy| (hosts, policy))) {
        let ranks = hosts.len() as u32;
        let found = on_hosts_with_slots(hosts, move |group| {
            let mut exchange = built(group, policy);
            let mut delivered = TENSORS.map(|(_, count)| vec![0.0; count]);
            for number in 0..STEPS {
                let mut averages = gradients(group.rank(), number);
                exchange.average(&mut averages).unwrap();
                for (all, average) in delivered.iter_mut().zip(&averages) {
                    all.iter_mut().zip(average).for_each(|(all, average)| *all += average * ranks as f32);
                }
                let entries = averages.concat().iter().filter(|average| **average != 0.0).count();
                let is_gtopk = policy.to_string().starts_with("gtopk");
                let most = 15 * if is_gtopk { 1 } else { ranks_of(hosts).len() };
                assert!((1..=most).contains(&entries), "{entries} entries, {policy}, {hosts:?}");
            }
            (delivered, residuals(&exchange))
        });
        for (rank, (delivered, left)) in found.iter().enumerate() {
            assert!(*delivered == found[0].0, "{policy}, {hosts:?}");
            let is_leader = !hosts[..rank].contains(&hosts[rank]);
            let is_empty = left.concat().iter().all(|left| *left == 0.0);
            assert!(is_leader || is_empty, "rank {rank} of {hosts:?}");
        }
        for (tensor, (name, _)) in TENSORS.into_iter().enumerate() {
            let mut parts: Vec<_> = found.iter().map(|(_, left)| left[tensor].clone()).collect();
            parts.push(found[0].0[tensor].clone());
            let given = (0..ranks).flat_map(|rank| (0..STEPS).map(move |step| gradients(rank, step)));
            let given: Vec<_> = given.map(|all| all[tensor].clone()).collect();
            assert_eq!(oracle::sum(&parts), oracle::sum(&given), "{name}: {policy}, {hosts:?}");
        }
    }
}

/// On survivors a step is done, or its gradient and what waited before are in the residual.
#[test]
fn a_death_at_any_message_loses_nothing() {
    for hosts in [&[0, 0][..], &[0, 1], &[0, 0, 1], &[0, 0, 1, 1], &[0, 1, 1, 1]] {
        for (victim, policy) in (0..hosts.len()).flat_map(|victim| POLICIES.map(|policy| (victim, policy))) {
            let ranks = |fault| {
                on_hosts(hosts, fault, |group| async move {
                    let exchange = built(&group, policy);
                    let (exchange, first, outcome) = step(exchange, gradients(group.rank(), 0)).await;
                    let (before, sent) = (residuals(&exchange), group.statistics().messages_sent);
                    if outcome.is_err() {
                        let is_kept = before == gradients(group.rank(), 0) && first == before;
                        return (is_kept, outcome, sent, 0);
                    }
                    let given = gradients(group.rank(), 1);
                    let (exchange, after, outcome) = step(exchange, given.clone()).await;
                    let waiting = before.into_iter().zip(&given);
                    let waiting: Vec<_> =
                        waiting.map(|(before, given)| oracle::sum(&[before, given.clone()])).collect();
                    let is_kept = residuals(&exchange) == waiting && after == given;
                    (is_kept, outcome, sent, group.statistics().messages_sent)
                })
            };
            let calm = ranks(None);
            assert!(calm.iter().all(|(is_kept, outcome, ..)| !is_kept && outcome.is_ok()), "{hosts:?}");
            for messages in 1..=calm[victim].3 {
                let fault = Fault::KillAfter { rank: Rank(victim as u32), messages };
                for (rank, (is_kept, outcome, ..)) in ranks(Some(fault)).iter().enumerate() {
                    let is_right = match outcome {
                        Ok(()) => true,
                        Err(Error::Collective(Collective::PeerLost { rank: lost })) => {
                            *is_kept && lost.0 == victim as u32
                        }
                        Err(_) => false,
                    };
                    let about = format!("rank {rank} of {hosts:?}, {policy}, {fault:?}");
                    assert!(is_right || rank == victim, "{about}: {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_leaves_the_step_out() {
    for policy in POLICIES {
        for bad in 0..4 {
            on_hosts_with_slots(&[0, 0, 1, 1], move |group| {
                let mut exchange = built(group, policy);
                exchange.average(&mut gradients(group.rank(), 0)).unwrap();
                let before = residuals(&exchange);
                let mut given = gradients(group.rank(), 1);
                if group.rank() == bad {
                    given[1][7] = f32::INFINITY;
                }
                let error = exchange.average(&mut given.clone()).unwrap_err();
                let Error::NonFinite { rank, tensor } = &error else { panic!("{policy}: {error}") };
                assert_eq!((*rank, &**tensor), (bad, "bias"), "{policy}");
                assert_eq!(residuals(&exchange), before, "{policy}");
                exchange.average(&mut gradients(group.rank(), 2)).unwrap();
            });
        }
    }
}

/// What a host's leader had is delivered by another group of ranks on other hosts.
#[test]
fn states_are_loaded_by_another_number_of_ranks() {
    for policy in POLICIES {
        let saved = on_hosts_with_slots(&[0, 1, 1, 0], move |group| {
            let mut exchange = built(group, policy);
            (0..5).for_each(|number| exchange.average(&mut gradients(group.rank(), number)).unwrap());
            let mut state = Vec::new();
            exchange.save(&mut state).unwrap();
            (state, residuals(&exchange))
        });
        let waiting: Vec<_> = (0..2)
            .map(|tensor| saved.iter().map(|(_, left)| left[tensor].clone()).collect::<Vec<_>>())
            .map(|all| oracle::sum(&all))
            .collect();
        let states: Vec<_> = saved.into_iter().map(|(state, _)| state).collect();
        let ranks = on_hosts_with_slots(&[0, 0], move |group| {
            let mut exchange = built(group, policy.values(Values::F32));
            // Each rank takes two states, one after the other.
            let mut delivered = TENSORS.map(|(_, count)| vec![0.0; count]);
            for first in [0, 2] {
                let from = first + group.rank();
                exchange.load_of(from, &mut &states[from as usize][..]).unwrap();
                TENSORS.iter().for_each(|(name, _)| exchange.set_density(name, 1.0).unwrap());
                let mut averages = TENSORS.map(|(_, count)| vec![0.0; count]);
                exchange.average(&mut averages).unwrap();
                for (all, average) in delivered.iter_mut().zip(&averages) {
                    all.iter_mut().zip(average).for_each(|(all, average)| *all += 2.0 * average);
                }
                assert!(residuals(&exchange).concat().iter().all(|left| *left == 0.0));
            }
            delivered
        });
        assert!(ranks.iter().all(|delivered| delivered[..] == waiting[..]), "{policy}");
    }
}

#[test]
fn densities_follow_a_schedule() {
    let schedule = || Schedule::exponential(Density::new(0.05).unwrap(), 2);
    for policy in [Policy::topk(0.05), Policy::gtopk(0.05)].map(Policy::hierarchical) {
        let entries = on_hosts_with_slots(&[0, 0, 1], move |group| {
            let mut exchange = builder(group, policy).schedule(schedule(), 2).build().unwrap();
            let mut entries = Vec::new();
            for number in 0..8 {
                let mut all = gradients(group.rank(), number);
                exchange.average(&mut all).unwrap();
                entries.push(all.concat().iter().filter(|average| **average != 0.0).count());
            }
            entries
        });
        assert!(entries.iter().all(|other| *other == entries[0]));
        assert!(entries[0][0] > 2 * entries[0][7] && entries[0][7] >= 1, "{:?}", entries[0]);
    }
}

/// Of independent gradients and a drift that never ends, residuals keep a bounded number of steps.
#[test]
fn residuals_are_bounded_over_a_thousand_steps() {
    for policy in POLICIES {
        let largest = on_local(3, move |group| {
            let exchange = GradientExchange::builder(group).tensor("weight", [COUNT], policy);
            let (mut exchange, mut largest) = (exchange.build().unwrap(), [0.0_f32; 2]);
            for number in 0..1000 {
                let drift = (0..COUNT).map(|index| 20.0 + index as f32 / 30.0).collect();
                let noise = oracle::vector(group.rank() + 3 * number, COUNT);
                exchange.average(&mut [oracle::sum(&[drift, noise])]).unwrap();
                let left = exchange.residual("weight").unwrap();
                let most = left.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let half = &mut largest[number as usize / 500];
                *half = half.max(most);
            }
            largest
        });
        // A place is delivered once in 20 steps on average, with the drift of up to three ranks.
        for [first, second] in largest {
            assert!(second <= 2.0 * first && second < 3.0 * 40.0 * 80.0, "{policy}: {first}, then {second}");
        }
    }
}

#[test]
fn settings_that_leaders_do_not_take_are_refused() {
    let refused = [
        (Policy::oktopk(0.1), "the hierarchical form: leaders sum by topk or gtopk"),
        (Policy::block(0.1), "the hierarchical form: leaders sum by topk or gtopk"),
        (Policy::topk(0.1).momentum(0.9), "momentum in the hierarchical form"),
        (Policy::gtopk(0.1).clip(1.0), "momentum in the hierarchical form"),
        (Policy::topk(0.1).threshold(Threshold::Sampled), "a threshold in the hierarchical form"),
        (Policy::topk(0.1).scope(Scope::Bucket), "the scope of a threshold in the hierarchical form"),
        (Policy::topk(0.1).dense_steps(1), "dense steps in the hierarchical form"),
    ];
    for (policy, told) in refused {
        let builder = GradientExchange::builder(&Group::solo());
        let error = builder.tensor("t", [8], policy.hierarchical()).build().err().unwrap();
        assert!(matches!(error, Error::PolicySetting { .. }), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
    let dense = Policy::dense();
    assert_eq!(dense.hierarchical(), dense);
    let exact = Policy::topk(0.1).threshold(Threshold::Exact).hierarchical();
    assert!(GradientExchange::builder(&Group::solo()).tensor("t", [8], exact).build().is_ok());
}
