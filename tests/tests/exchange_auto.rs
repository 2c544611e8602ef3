//! Policies that are chosen by what they are estimated to take.

use brevity::collectives::{Algorithm, Operation, Summand};
use brevity::compress::quantise::Values;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Choice, Error, ExchangeBuilder, GradientExchange, Group, Machine, Policy, Settings};
use brevity_tests::{on_host, on_local, oracle};

/// Elements of the tensors.
const COUNTS: [usize; 3] = [3000, 12, 1000];
const DENSITY: f64 = 0.01;

/// A machine, and the policy that it prefers, by its density.
type Preferring = (&'static str, fn(f64) -> Policy);

/// Among four ranks: a network on which messages cost much, one on which bytes do, and slow processors.
const MESSAGES: &str = "between:1000,0,1";
const BYTES: &str = "between:1,0,1000";
const COMPUTING: &str = "between:1,0,0.001;reduce:10;copy:10";
const MACHINES: [Preferring; 3] = [
    (MESSAGES, |density| Policy::topk(density).values(Values::F32)),
    (BYTES, |density| Policy::oktopk(density).pairs()),
    (COMPUTING, |_| Policy::dense()),
];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, machine: &str, body: impl Fn(Group) -> F) -> Vec<R> {
    let machine: Machine = machine.parse().unwrap();
    let settings = Settings { machine: Some(machine), ..Settings::default() };
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, settings))).unwrap()
}

/// Two tensors that leave their way open, around one that does not.
fn builder(group: &Group, policies: [Policy; 2]) -> ExchangeBuilder {
    GradientExchange::builder(group)
        .tensor("first", [COUNTS[0]], policies[0])
        .tensor("bias", [COUNTS[1]], Policy::dense())
        .tensor("last", [COUNTS[2]], policies[1])
}

fn auto() -> [Policy; 2] {
    [Policy::auto().density(DENSITY); 2]
}

fn gradients(rank: u32, step: u32) -> Vec<Vec<f32>> {
    let of = |(tensor, count): (u32, usize)| oracle::vector(rank + 10 * tensor + 1000 * step, count);
    (0..).zip(COUNTS).map(of).collect()
}

async fn step(exchange: GradientExchange, given: Vec<Vec<f32>>) -> (GradientExchange, Vec<Vec<f32>>) {
    let ((exchange, averages), outcome) = exchange.start(given).await;
    outcome.unwrap();
    (exchange, averages)
}

fn choices(exchange: &GradientExchange) -> [Choice; 2] {
    ["first", "last"].map(|tensor| exchange.choice(tensor).unwrap().unwrap().clone())
}

fn saved(exchange: &GradientExchange) -> Vec<u8> {
    let mut bytes = Vec::new();
    exchange.save(&mut bytes).unwrap();
    assert_eq!(bytes.len(), exchange.saved_bytes());
    bytes
}

/// The same on all ranks, and the bits of an exchange that was given the chosen policies.
#[test]
fn the_fastest_policy_is_chosen() {
    for world_size in [1, 2, 3, 4, 5, 8, 16] {
        for (machine, of_four) in MACHINES {
            let ranks = on_sim(world_size, machine, |group| async move {
                let mut auto = builder(&group, auto()).build().unwrap();
                let chosen = choices(&auto);
                let policies = [chosen[0].policy, chosen[1].policy];
                let mut given = builder(&group, policies).build().unwrap();
                for number in 0..4 {
                    let (found, expected);
                    (auto, found) = step(auto, gradients(group.rank(), number)).await;
                    (given, expected) = step(given, gradients(group.rank(), number)).await;
                    assert!(found == expected, "{policies:?}, step {number}");
                    for tensor in ["first", "last"] {
                        assert_eq!(auto.residual(tensor), given.residual(tensor), "{policies:?}");
                    }
                }
                chosen
            });
            assert!(ranks.iter().all(|chosen| *chosen == ranks[0]), "P = {world_size}, {machine}");
            let [first, last] = &ranks[0];
            assert_eq!(first, last, "both are of one bucket");
            assert_eq!(first.elements, COUNTS[0] + COUNTS[2]);
            if world_size == 1 {
                assert_eq!(first.policy, Policy::dense());
            } else if world_size == 4 {
                assert_eq!(first.policy, of_four(DENSITY), "{machine}: {first}");
            }
            let compressed = first.compressed.unwrap();
            let is_slower = compressed.seconds() >= first.dense.seconds();
            assert_eq!(first.policy == Policy::dense(), is_slower, "{first}");
            assert!(compressed.own_seconds > 0.0 && first.dense.operation == Operation::ALL_REDUCE);
        }
    }
}

/// Two hosts of two ranks, on which messages take no time.
fn on_hosts<R, F: Future<Output = R>>(body: impl Fn(Group) -> F) -> Vec<R> {
    let machine = "inside:1,0,0;between:1000,0,1000".parse().unwrap();
    let settings = Settings { machine: Some(machine), ..Settings::default() };
    run(Cluster::new(4, Links::new(1e-5, 1e-9)), |transport| {
        let opened = Opened::in_process(transport, None).with_hosts(&[0, 0, 1, 1]);
        body(Group::opened(opened, settings))
    })
    .unwrap()
}

/// Sums by hosts are chosen where ranks agree on how a step has ended. Their state fits other choices.
#[test]
fn hosts_are_weighed_where_an_exchange_keeps_going() {
    let by_hosts = Policy::gtopk(DENSITY).values(Values::F32).hierarchical();
    let states = on_hosts(|group| async move {
        let plain = builder(&group, auto()).build().unwrap();
        assert!(!choices(&plain)[0].policy.to_string().contains("hierarchical"), "{:?}", choices(&plain));
        let mut exchange = builder(&group, auto()).keep_going().build().unwrap();
        let chosen = choices(&exchange).map(|choice| choice.policy);
        assert_eq!(chosen, [by_hosts; 2], "{}", choices(&exchange)[0]);
        let mut given = builder(&group, chosen).keep_going().build().unwrap();
        for number in 0..3 {
            let (found, expected);
            (exchange, found) = step(exchange, gradients(group.rank(), number)).await;
            (given, expected) = step(given, gradients(group.rank(), number)).await;
            assert!(found == expected, "step {number}");
        }
        let mut restarted = builder(&group, auto()).keep_going().build().unwrap();
        restarted.load(&mut &saved(&exchange)[..]).unwrap();
        assert_eq!(saved(&restarted), saved(&exchange));
        (exchange.residual("first").unwrap(), saved(&exchange))
    });
    for (machine, _) in MACHINES {
        let states = &states;
        on_sim(4, machine, |group| async move {
            let (residual, state) = &states[group.rank() as usize];
            let mut exchange = builder(&group, auto()).keep_going().build().unwrap();
            exchange.load(&mut &state[..]).unwrap();
            assert_eq!(exchange.residual("first").as_ref(), Some(residual), "{machine}");
            assert_eq!(saved(&exchange).len(), state.len(), "{machine}");
        });
    }
}

/// Where buckets hold less, what pays for one may not pay for another.
#[test]
fn each_bucket_has_its_own_choice() {
    let ranks = on_sim(4, "between:20,0,10", |group| async move {
        let builder = GradientExchange::builder(&group).bucket_bytes(0);
        let builder = builder.tensor("first", [40_000], Policy::auto().density(DENSITY));
        let exchange = builder.tensor("last", [300], Policy::auto().density(1.0)).build().unwrap();
        choices(&exchange)
    });
    let [first, last] = &ranks[0];
    assert_eq!((first.elements, last.elements), (40_000, 300));
    assert_ne!(first.policy, Policy::dense(), "{first}");
    assert_eq!(last.policy, Policy::dense(), "{last}");
}

#[test]
fn a_choice_says_why() {
    let exchange = builder(&Group::solo(), auto()).build().unwrap();
    let reason = exchange.choice("first").unwrap().unwrap().to_string();
    assert!(reason.starts_with("dense: of 4000 elements, the all-reduce "), "{reason}");
    assert!(reason.contains(" us, and the ") && reason.contains(", of which a rank compresses"), "{reason}");
    assert_eq!(exchange.choice("bias").unwrap(), None);
    assert!(matches!(exchange.choice("other"), Err(Error::NoSuchTensor { .. })));
}

/// Whatever was chosen when it was saved and when it is loaded, what has not been sent is.
#[test]
fn state_fits_every_choice() {
    for (from, into) in MACHINES.into_iter().flat_map(|from| MACHINES.map(|into| (from, into))) {
        let before = on_sim(4, from.0, |group| async move {
            let mut exchange = builder(&group, auto()).build().unwrap();
            let mut delivered = vec![0.0; COUNTS[0]];
            for number in 0..3 {
                let averages;
                (exchange, averages) = step(exchange, gradients(group.rank(), number)).await;
                delivered.iter_mut().zip(&averages[0]).for_each(|(all, average)| *all += 4.0 * average);
            }
            assert_eq!(choices(&exchange)[0].policy, from.1(DENSITY));
            (delivered, exchange.residual("first").unwrap(), saved(&exchange))
        });
        let states: Vec<_> = before.iter().map(|(_, _, state)| state.clone()).collect();
        let after = on_sim(4, into.0, |group| {
            let (state, residual) = (&states[group.rank() as usize], &before[group.rank() as usize].1);
            async move {
                let mut exchange = builder(&group, auto()).build().unwrap();
                exchange.load(&mut &state[..]).unwrap();
                assert_eq!(choices(&exchange)[0].policy, into.1(DENSITY));
                assert_eq!(exchange.residual("first").as_ref(), Some(residual));
                assert_eq!(exchange.steps(), 3);
                // A choice that is the same changes no bit.
                assert!(from.0 != into.0 || saved(&exchange) == *state);
                let zeros = COUNTS.map(|count| vec![0.0; count]).to_vec();
                let (exchange, averages) = step(exchange, zeros).await;
                let delivered: Vec<f32> = averages[0].iter().map(|average| 4.0 * average).collect();
                (delivered, exchange.residual("first").unwrap())
            }
        });
        let given: Vec<_> = (0..4)
            .flat_map(|rank| (0..3).map(move |number| gradients(rank, number).swap_remove(0)))
            .collect();
        let left = after.iter().map(|(_, left)| left.clone());
        let parts: Vec<Vec<f32>> = left.chain([before[0].0.clone(), after[0].0.clone()]).collect();
        assert_eq!(oracle::sum(&parts), oracle::sum(&given), "{} to {}", from.0, into.0);
    }
}

/// A restart with the same choice goes on with the same bits.
#[test]
fn a_restart_changes_no_bit() {
    for (machine, _) in MACHINES {
        on_sim(4, machine, |group| async move {
            let mut whole = builder(&group, auto()).build().unwrap();
            for number in 0..3 {
                (whole, _) = step(whole, gradients(group.rank(), number)).await;
            }
            let mut restarted = builder(&group, auto()).build().unwrap();
            restarted.load(&mut &saved(&whole)[..]).unwrap();
            for number in 3..6 {
                let (expected, found);
                (whole, expected) = step(whole, gradients(group.rank(), number)).await;
                (restarted, found) = step(restarted, gradients(group.rank(), number)).await;
                assert!(found == expected, "{machine}, step {number}");
            }
            assert_eq!(saved(&restarted), saved(&whole), "{machine}");
        });
    }
}

/// A failed step of a tensor that travels dense is in its residual, and in its state.
#[test]
fn what_waits_is_saved_too() {
    let group = Group::solo();
    let mut exchange = builder(&group, auto()).build().unwrap();
    group.abort();
    assert!(exchange.average(&mut gradients(0, 0)).is_err());
    let mut restarted = builder(&Group::solo(), auto()).build().unwrap();
    restarted.load(&mut &saved(&exchange)[..]).unwrap();
    let mut zeros = COUNTS.map(|count| vec![0.0; count]);
    restarted.average(&mut zeros).unwrap();
    assert_eq!(zeros.to_vec(), gradients(0, 0));
}

/// Whether a sum over shared memory is among the ways.
fn has_slots(group: &Group) -> bool {
    let summand = Summand { elements: 1000, ..Summand::default() };
    group.compare(&summand).iter().any(|way| way.algorithm == Algorithm::Slots)
}

#[test]
fn shared_memory_counts_where_ranks_have_it() {
    assert_eq!(on_host(3, Settings::default(), has_slots), [true; 3]);
    assert_eq!(on_local(3, has_slots), [false; 3]);
}

/// Matrices that shrink, and a vector.
fn matrices(group: &Group, policy: Policy) -> ExchangeBuilder {
    GradientExchange::builder(group)
        .tensor("first", [60, 50], policy)
        .tensor("bias", [COUNTS[1]], policy)
        .tensor("last", [20, 50], policy)
}

/// What each policy would choose among four ranks, for matrices.
fn chosen(machine: &str, policy: Policy) -> Choice {
    let ranks = on_sim(4, machine, |group| async move {
        let exchange = matrices(&group, policy).build().unwrap();
        ["first", "bias", "last"].map(|tensor| exchange.choice(tensor).unwrap().unwrap().clone())
    });
    assert!(ranks.iter().flatten().all(|choice| *choice == ranks[0][0]), "{machine}, {policy}");
    ranks[0][0].clone()
}

/// Nothing is rounded, and nothing but entries is selected, unless that is allowed.
#[test]
fn what_is_not_allowed_is_not_chosen() {
    let plain = Policy::auto().density(0.2);
    for (machine, _) in MACHINES {
        let text = chosen(machine, plain).policy.to_string();
        let is_exact = text == "dense" || text.ends_with("pairs") || text.ends_with("f32");
        assert!(is_exact && !["block", "rank"].iter().any(|other| text.contains(other)), "{machine}: {text}");
    }
    for (machine, policy, expected) in [
        (BYTES, Policy::auto().density(1.0).values(Values::Bf16), Policy::quantised(Values::Bf16)),
        (BYTES, Policy::auto().density(0.01).values(Values::Bf16), Policy::topk(0.01).values(Values::Bf16)),
        (BYTES, plain.allow_low_rank(1), Policy::low_rank(1)),
        (MESSAGES, plain.allow_blocks(), Policy::block(0.2)),
        // Of all that is allowed, the fastest.
        (BYTES, plain.values(Values::F16).allow_blocks().allow_low_rank(1), Policy::low_rank(1)),
    ] {
        let choice = chosen(machine, policy);
        assert_eq!(choice.policy, expected, "{policy}: {choice}");
        let compressed = choice.compressed.unwrap();
        assert!(compressed.seconds() < choice.dense.seconds(), "{choice}");
        assert_eq!(chosen(COMPUTING, policy).policy, Policy::dense(), "{policy}");
    }
}

/// The bits of an exchange that was given the chosen policies. State of another form is refused.
#[test]
fn what_is_allowed_travels_as_if_it_were_given() {
    for (machine, policy) in [
        (BYTES, Policy::auto().density(1.0).values(Values::Bf16)),
        (BYTES, Policy::auto().density(0.2).allow_low_rank(1)),
        (MESSAGES, Policy::auto().density(0.2).allow_blocks()),
    ] {
        let given_as = chosen(machine, policy).policy;
        let states = on_sim(4, machine, |group| async move {
            let mut auto = matrices(&group, policy).build().unwrap();
            let mut given = matrices(&group, given_as).build().unwrap();
            let mut restarted = matrices(&group, policy).build().unwrap();
            for number in 0..4 {
                if number == 2 {
                    restarted.load(&mut &saved(&auto)[..]).unwrap();
                }
                let (found, expected);
                (auto, found) = step(auto, gradients(group.rank(), number)).await;
                (given, expected) = step(given, gradients(group.rank(), number)).await;
                assert!(found == expected, "{policy}, step {number}");
                assert_eq!(auto.residual("first"), given.residual("first"), "{policy}");
                if number >= 2 {
                    let again;
                    (restarted, again) = step(restarted, gradients(group.rank(), number)).await;
                    assert!(again == expected, "{policy}, step {number}");
                }
            }
            assert_eq!(saved(&restarted), saved(&auto), "{policy}");
            (saved(&auto), auto.residual("first").unwrap())
        });
        let states = &states;
        on_sim(4, COMPUTING, |group| async move {
            let (state, residual) = &states[group.rank() as usize];
            let mut exchange = matrices(&group, policy).build().unwrap();
            assert_eq!(exchange.choice("first").unwrap().unwrap().policy, Policy::dense());
            let loaded = exchange.load(&mut &state[..]);
            if given_as == Policy::low_rank(1) {
                let refused = loaded.unwrap_err().to_string();
                assert!(refused.contains("rank 1 of 60 x 50") && refused.contains("auto"), "{refused}");
            } else {
                loaded.unwrap();
                assert_eq!(exchange.residual("first").as_ref(), Some(residual), "{policy}");
            }
        });
    }
}

/// What was saved where hosts were chosen is added where something else is.
#[test]
fn states_of_every_choice_are_taken_over() {
    let states = on_hosts(|group| async move {
        let mut exchange = builder(&group, auto()).keep_going().build().unwrap();
        assert!(choices(&exchange)[0].policy.to_string().contains("hierarchical"));
        (exchange, _) = step(exchange, gradients(group.rank(), 0)).await;
        let left = ["first", "bias", "last"].map(|tensor| exchange.residual(tensor).unwrap()).concat();
        (saved(&exchange), left)
    });
    let expected = oracle::sum(&states.iter().map(|(_, left)| left.clone()).collect::<Vec<_>>());
    let taken = |mut exchange: GradientExchange| {
        exchange.load_of(0, &mut &states[0].0[..]).unwrap();
        for (rank, (state, _)) in (0..).zip(&states).skip(1) {
            exchange.take_over(rank, &mut &state[..]).unwrap();
        }
        ["first", "bias", "last"].map(|tensor| exchange.residual(tensor).unwrap()).concat()
    };
    let taken = &taken;
    for (machine, _) in MACHINES {
        let of = |group: Group| async move { taken(builder(&group, auto()).keep_going().build().unwrap()) };
        assert!(on_sim(4, machine, of)[0] == expected, "{machine}");
    }
    let by_hosts =
        on_hosts(|group| async move { taken(builder(&group, auto()).keep_going().build().unwrap()) });
    assert!(by_hosts[0] == expected);
}
