//! How the entries of an exchange are written: as its policy says, or as is estimated to be the fastest.

use std::collections::BTreeMap;

use brevity::collectives::sparse::{Coder, GtopkAllReduce, PutBack, TopkAllReduce, Wire};
use brevity::collectives::{Algorithm, Compressed, Ground, Machine, Operation, Planned, Summand, compare};
use brevity::compress::codec::{Choice, Encoder};
use brevity::compress::generator::Generator;
use brevity::compress::quantise::Values;
use brevity::compress::select::random_k;
use brevity::compress::{Density, SparseVec};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::transport::{Transport, local};
use brevity::{GradientExchange, Group, Policy, Settings, StepReport};
use brevity_tests::{on_groups, oracle};

const PACKED: Wire = Wire::Coded(Values::F32);

/// Machines on which pairs are faster, and packed entries.
const FAST: &str = "inside:20,0,0.01;between:20,0,0.01";
const SLOW: &str = "inside:20,0,80;between:20,0,80";

const COUNT: usize = 5000;
const DENSITY: f64 = 0.04;

fn settings(machine: &str) -> Settings {
    let wishes = "top-k-all-reduce:bruck".parse().unwrap();
    Settings { machine: Some(machine.parse().unwrap()), wishes, ..Settings::default() }
}

fn on_sim<R, F: Future<Output = R>>(world_size: u32, machine: &str, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, settings(machine)))).unwrap()
}

fn built(group: &Group, policy: Policy) -> GradientExchange {
    GradientExchange::builder(group).tensor("t", [COUNT], policy).build().unwrap()
}

fn gradient(rank: u32, step: u32) -> Vec<f32> {
    oracle::vector(rank + 100 * step, COUNT)
}

async fn step(exchange: &mut GradientExchange, gradients: &mut [Vec<f32>]) -> StepReport {
    let mut step = exchange.begin().unwrap();
    step.ready(0, &gradients[0]).unwrap();
    step.finish_async(gradients).await.unwrap()
}

/// The bytes of a message of these entries.
fn bytes(wire: Wire, entries: &BTreeMap<u32, f32>) -> u64 {
    let Wire::Coded(values) = wire else { return 8 * entries.len() as u64 };
    let (indices, floats) = entries.iter().unzip();
    let (entries, mut message) = (SparseVec::from_parts(COUNT, indices, floats).unwrap(), Vec::new());
    let mut quantiser = values.quantiser();
    Encoder::new().encode(entries.view(), Choice::Fast, &mut *quantiser, &mut message).unwrap();
    message.len() as u64
}

/// All that ranks send in one step, by the tree of gTop-k, and by Bruck's all-gather of two ranks.
#[test]
fn messages_have_the_bytes_of_the_choice() {
    let [pairs, packed] = [Wire::Pairs, PACKED];
    for (machine, gtopk, expected) in [
        (FAST, Policy::gtopk(DENSITY), pairs),
        (SLOW, Policy::gtopk(DENSITY), packed),
        (SLOW, Policy::gtopk(DENSITY).pairs(), pairs),
        (FAST, Policy::gtopk(DENSITY).values(Values::F32), packed),
    ] {
        let topk = match gtopk.to_string().split_once(',') {
            Some((_, setting)) => format!("topk:{DENSITY},{setting}").parse().unwrap(),
            None => Policy::topk(DENSITY),
        };
        let sent = |world_size, policy: Policy| {
            on_sim(world_size, machine, |group| async move {
                let mut exchange = built(&group, policy);
                assert_eq!(exchange.wire("t"), Some(expected), "{policy}, {machine}");
                let report = step(&mut exchange, &mut [gradient(group.rank(), 0)]).await;
                report.buckets[0].bytes_sent
            })
        };
        let k = Density::new(DENSITY).unwrap().entries(COUNT);
        let own: Vec<_> = (0..4).map(|rank| oracle::top_k(&gradient(rank, 0), k)).collect();
        let of = |entries: &BTreeMap<u32, f32>| bytes(expected, entries);
        let of_two = oracle::gtopk(own[2..].to_vec(), k);
        let sum = of(&oracle::gtopk(own.clone(), k));
        assert_eq!(sent(4, gtopk), [2 * sum, of(&own[1]), of(&of_two) + sum, of(&own[3])], "{gtopk}");
        // Lengths travel with the messages: numbers of entries, or of bytes.
        let lengths = if expected == pairs { 4 } else { 8 };
        assert_eq!(sent(2, topk), [of(&own[0]) + lengths, of(&own[1]) + lengths], "{topk}");
    }
    let none = built(&Group::solo(), Policy::random_k(0.1));
    assert_eq!((none.wire("t"), none.wire("other")), (None, None));
    let by_hosts = built(&Group::solo(), Policy::gtopk(0.1).values(Values::Bf16).hierarchical());
    assert_eq!(by_hosts.wire("t"), Some(Wire::Coded(Values::Bf16)));
}

const DIM: usize = 1_000_000;
const ENTRIES: usize = 2000;
const ALPHA: f64 = 20e-6;

/// Entries at random places.
fn entries(rank: u32) -> SparseVec {
    let (mut own, mut drawn) = (SparseVec::new(DIM), Vec::new());
    let mut generator = Generator::for_stream(13, rank.into());
    // Of equal values, merges would keep those at the beginning.
    let vector: Vec<f32> =
        (0..DIM).map(|index| 1.0 + ((index * 7919 + rank as usize * 31) % 5003) as f32).collect();
    random_k(&vector, ENTRIES, &mut generator, &mut own, &mut drawn).unwrap();
    own
}

/// Seconds of the slowest rank, on links of these speeds, with the algorithm that its machine prefers.
fn measure<C>(world_size: u32, machine: Machine, all: &[SparseVec], of: impl Fn(SparseVec) -> C) -> f64
where
    C: Compressed<Output: 'static> + 'static,
{
    let links = Links::new(machine.between.alpha, machine.between.beta);
    let settings = Settings { machine: Some(machine), ..Settings::default() };
    let ranks = run(Cluster::new(world_size, links), |transport| {
        let group = Group::new(transport, settings);
        let collective = of(all[group.rank() as usize].clone());
        async move {
            let begun = group.now();
            group.start_compressed(collective).await.1.map(drop).unwrap();
            (group.now() - begun).as_secs_f64()
        }
    });
    ranks.unwrap().into_iter().fold(0.0, f64::max)
}

/// The fastest way of an operation on a wire.
fn planned(operation: Operation, wire: Wire, by: Option<Algorithm>, ground: &Ground) -> Planned {
    let summand = Summand { elements: DIM, entries: Some(ENTRIES), wire: Some(wire), ..Summand::default() };
    let ways = compare(&summand, ground);
    let is_it = |way: &&Planned| way.operation == operation && by.is_none_or(|by| way.algorithm == by);
    *ways.iter().find(is_it).unwrap()
}

/// From one rate of links to the next, among powers of two of ranks, whose trees are full: messages take what
/// the simulated network takes, and the wire that is chosen is the faster one of the two, with the time to
/// write and to read messages, which the network does not have.
#[test]
fn the_faster_wire_is_chosen() {
    const RATES: [f64; 6] = [1e-11, 1e-10, 5e-10, 2e-9, 1e-8, 8e-8];
    let all: Vec<_> = (0..16).map(entries).collect();
    for (operation, world_size) in [Operation::GTOPK_ALL_REDUCE, Operation::TOPK_ALL_REDUCE]
        .into_iter()
        .flat_map(|operation| [2, 4, 8, 16].map(|size| (operation, size)))
    {
        let chosen = RATES.map(|beta| {
            let silent = Machine::uniform(ALPHA, beta);
            let machine = Machine { reduce: 1e-10, ..silent };
            let [pairs, packed] = [Wire::Pairs, PACKED].map(|wire| {
                let way = planned(operation, wire, None, &Ground::new(machine, world_size));
                let of_messages =
                    planned(operation, wire, Some(way.algorithm), &Ground::new(silent, world_size))
                        .estimate
                        .seconds;
                let (limit, k, coder) = (ENTRIES, ENTRIES, || Coder::new(wire));
                let measured = if operation == Operation::GTOPK_ALL_REDUCE {
                    let rule = PutBack::default();
                    measure(world_size, machine, &all, |local| GtopkAllReduce {
                        local,
                        k,
                        rule,
                        coder: coder(),
                    })
                } else {
                    measure(world_size, machine, &all, |local| TopkAllReduce { local, limit, coder: coder() })
                };
                let ratio = of_messages / measured;
                assert!((0.95..=1.05).contains(&ratio), "{way}, P = {world_size}, {beta}: {ratio}");
                measured + way.estimate.seconds - of_messages
            });
            let settings = Settings { machine: Some(machine), ..Settings::default() };
            let wires = run(Cluster::new(world_size, Links::new(ALPHA, beta)), |transport| {
                let group = Group::new(transport, settings);
                async move { group.exact_wire(operation, DIM, ENTRIES) }
            });
            let wires = wires.unwrap();
            assert!(wires.iter().all(|wire| *wire == wires[0]), "{wires:?}");
            let taken = if wires[0] == Wire::Pairs { pairs } else { packed };
            assert!(
                taken <= 1.02 * pairs.min(packed),
                "{operation}, P = {world_size}, {beta}: {:?} of {pairs} s and {packed} s",
                wires[0]
            );
            wires[0]
        });
        assert_eq!((chosen[0], chosen[RATES.len() - 1]), (Wire::Pairs, PACKED), "{operation}, {world_size}");
        assert!(chosen.is_sorted_by_key(|wire| *wire == PACKED), "{operation}, {world_size}: {chosen:?}");
    }
}

/// A policy that leaves the wire open takes what one takes that says the wire which was chosen.
#[test]
fn an_open_policy_takes_what_was_chosen() {
    let methods: [fn(f64) -> Policy; 3] = [Policy::topk, Policy::gtopk, Policy::oktopk];
    for (machine, method) in [FAST, SLOW].into_iter().flat_map(|machine| methods.map(|of| (machine, of))) {
        let steps = |policy: Policy| {
            on_sim(4, machine, |group| async move {
                let mut exchange = built(&group, policy);
                let mut averages = Vec::new();
                for number in 0..3 {
                    let mut gradients = [gradient(group.rank(), number)];
                    step(&mut exchange, &mut gradients).await;
                    averages.extend(gradients);
                }
                (exchange.wire("t"), group.now(), averages, exchange.residual("t").unwrap())
            })
        };
        let open = steps(method(DENSITY));
        let said = match open[0].0 {
            Some(Wire::Pairs) => method(DENSITY).pairs(),
            _ => method(DENSITY).values(Values::F32),
        };
        assert_eq!(open[0].0 == Some(PACKED), machine == SLOW, "{said}");
        assert!(steps(said) == open, "{said}");
    }
}

/// What is saved on one wire is loaded on the other.
#[test]
fn state_does_not_depend_on_the_wire() {
    let policies =
        [Policy::gtopk(DENSITY), Policy::gtopk(DENSITY).pairs(), Policy::gtopk(DENSITY).values(Values::F32)];
    let saved = policies.map(|policy| {
        on_sim(3, SLOW, |group| async move {
            let mut exchange = built(&group, policy);
            step(&mut exchange, &mut [gradient(group.rank(), 0)]).await;
            let mut bytes = Vec::new();
            exchange.save(&mut bytes).unwrap();
            bytes
        })
    });
    assert!(saved.iter().all(|states| *states == saved[0]));
    let after = policies.map(|policy| {
        on_sim(3, FAST, |group| {
            let state = saved[0][group.rank() as usize].clone();
            async move {
                let mut exchange = built(&group, policy);
                exchange.load(&mut &state[..]).unwrap();
                let mut gradients = [gradient(group.rank(), 1)];
                step(&mut exchange, &mut gradients).await;
                (gradients, exchange.residual("t").unwrap())
            }
        })
    });
    assert!(after.iter().all(|ranks| *ranks == after[0]));
}

fn groups(machine: &str) -> Vec<Group> {
    let transports = local::world(2).into_iter().map(|rank| Box::new(rank) as Box<dyn Transport>);
    transports.map(|transport| Group::new(transport, settings(machine))).collect()
}

/// In another group the wire is chosen anew: ranks that come with an exchange have that of those that have
/// just built one by the same calls.
#[test]
fn another_group_may_have_another_wire() {
    for policy in [Policy::gtopk(DENSITY), Policy::topk(DENSITY), Policy::gtopk(DENSITY).pairs()] {
        let next = groups(SLOW);
        let averages = on_groups(groups(FAST), move |group| {
            let (mut exchange, next) = (built(group, policy), &next[group.rank() as usize]);
            assert_eq!(exchange.wire("t"), Some(Wire::Pairs));
            exchange.average(&mut [gradient(group.rank(), 0)]).unwrap();
            if group.rank() == 1 {
                exchange = built(next, policy);
            }
            exchange.share_state(next, 0, &mut [[0.0_f32]]).unwrap();
            let is_open = policy != policy.pairs();
            assert_eq!(exchange.wire("t"), Some(if is_open { PACKED } else { Wire::Pairs }));
            let mut gradients = [gradient(group.rank(), 1)];
            exchange.average(&mut gradients).unwrap();
            gradients
        });
        assert_eq!(averages[0], averages[1], "{policy}");
    }
}
