//! What compressed collectives are estimated to take beside what they take on the simulated network.

use std::time::Duration;

use brevity::collectives::low_rank::LowRankAllReduce;
use brevity::collectives::quantised::QuantisedAllReduce;
use brevity::collectives::sparse::{
    BlockAllReduce, Coder, Draw, GtopkAllReduce, HierarchicalAllReduce, LeaderSum, OkTopk, OkTopkAllReduce,
    PutBack, RandomKAllReduce, RandomPlaces, SparseAllGather, SparseReduceScatter, TopkAllReduce,
};
use brevity::collectives::vote::VoteAllReduce;
use brevity::collectives::{
    Algorithm, Compressed, Ground, Link, Machine, Operation, Summand, Topology, compare, compressed_estimates,
};
use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::compress::quantise::Values;
use brevity::compress::select::{BLOCK_PLACES, random_k};
use brevity::transport::Rank;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};

const ALPHA: f64 = 20e-6;
const BETA: f64 = 1e-8;

const WORLD_SIZES: [u32; 5] = [4, 7, 8, 16, 64];

/// Entries of each rank in vectors of this length.
const ENTRIES: usize = 64 * 100;
const DIM: usize = ENTRIES * 500;

const SIDE: usize = 512;
const RANK: usize = 4;

fn ground(world_size: u32) -> Ground {
    Ground::new(Machine::uniform(ALPHA, BETA), world_size)
}

/// One entry anywhere in each of equal parts of the vector.
fn entries(rank: u32) -> SparseVec {
    let mut state = u64::from(rank) + 1;
    let part = DIM / ENTRIES;
    let indices = (0..ENTRIES).map(|place| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (place * part + (state >> 33) as usize % part) as u32
    });
    let indices: Vec<u32> = indices.collect();
    let values = indices.iter().map(|index| 1.0 + (*index % 977) as f32).collect();
    SparseVec::from_parts(DIM, indices, values).unwrap()
}

/// Seconds from the beginning to the end of the last rank.
fn measure<C>(world_size: u32, algorithm: Option<Algorithm>, of_rank: impl Fn(u32) -> C) -> f64
where
    C: Compressed<Output: 'static> + 'static,
{
    let machine = Some(ground(world_size).machine);
    let settings = Settings { timeout: Duration::from_secs(1_000_000), machine, ..Settings::default() };
    let seconds = run(Cluster::new(world_size, Links::new(ALPHA, BETA)), |transport| {
        let group = Group::opened(Opened::in_process(transport, None), settings).with_algorithm(algorithm);
        let collective = of_rank(group.rank());
        async move {
            let begun = group.now();
            group.start_compressed(collective).await.1.map(drop).unwrap();
            (group.now() - begun).as_secs_f64()
        }
    });
    seconds.unwrap().into_iter().fold(0.0, f64::max)
}

fn compared(text: String, estimated: f64, measured: f64, found: &mut Vec<String>) {
    let ratio = estimated / measured;
    let text = format!("{text}: {:.1} us, estimated {:.1} us, {ratio:.3}", measured * 1e6, estimated * 1e6);
    println!("{text}");
    if !(0.95..=1.05).contains(&ratio) {
        found.push(text);
    }
}

/// The fastest way by an operation.
fn fastest(summand: &Summand, operation: Operation, world_size: u32) -> f64 {
    let ways = compare(summand, &ground(world_size));
    ways.iter().find(|way| way.operation == operation).unwrap().estimate.seconds
}

/// Compares all algorithms of a collective.
fn check<C>(world_size: u32, of_rank: impl Fn(u32) -> C + Copy, found: &mut Vec<String>)
where
    C: Compressed<Output: 'static> + 'static,
{
    let work = of_rank(0).work();
    let estimates = compressed_estimates::<C>(&work, &ground(world_size));
    assert_eq!(estimates.len(), C::ROWS.len());
    for (algorithm, estimate) in estimates {
        let text = format!("{} by {algorithm}, {world_size} ranks", C::OPERATION);
        compared(text, estimate.seconds, measure(world_size, Some(algorithm), of_rank), found);
    }
}

#[test]
fn estimates_of_entries_are_what_the_simulated_network_takes() {
    let (mut found, limit) = (Vec::new(), ENTRIES);
    for world_size in WORLD_SIZES {
        let all_gather = |rank| SparseAllGather { local: entries(rank), limit, coder: Coder::pairs() };
        check(world_size, all_gather, &mut found);
        let scatter = |rank| SparseReduceScatter { local: entries(rank), limit, coder: Coder::pairs() };
        check(world_size, scatter, &mut found);
        let topk = |rank| TopkAllReduce { local: entries(rank), limit, coder: Coder::pairs() };
        check(world_size, topk, &mut found);
        let gtopk = |rank| {
            let rule = PutBack::default();
            GtopkAllReduce { local: entries(rank), k: limit, rule, coder: Coder::pairs() }
        };
        check(world_size, gtopk, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn estimates_of_quantised_vectors_are_what_the_simulated_network_takes() {
    let mut found = Vec::new();
    for world_size in WORLD_SIZES {
        let vector = |rank| vec![1.0 + rank as f32; 64 * 4096];
        for values in [Values::F32, Values::EightBit] {
            check(world_size, |rank| QuantisedAllReduce { vector: vector(rank), values }, &mut found);
        }
        check(world_size, |rank| VoteAllReduce { vector: vector(rank) }, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Each all-reduce of factors takes the fastest algorithm.
#[test]
fn estimates_of_factors_are_what_the_simulated_network_takes() {
    let mut found = Vec::new();
    for world_size in WORLD_SIZES {
        let of_rank = |rank: u32| LowRankAllReduce {
            batch: Batch::new(vec![LowRank::new(SIDE, SIDE, RANK, 7).unwrap()]),
            matrices: vec![(0..SIDE * SIDE).map(|at| ((at * 31 + rank as usize) % 97) as f32).collect()],
        };
        let summand = Summand { elements: SIDE * SIDE, rank: Some(RANK), ..Summand::default() };
        let estimate = fastest(&summand, Operation::LOW_RANK_ALL_REDUCE, world_size);
        let text = format!("low-rank all-reduce, {world_size} ranks");
        compared(text, estimate, measure::<LowRankAllReduce>(world_size, None, of_rank), &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Random K takes the fastest all-reduce of its values.
#[test]
fn estimates_of_random_places_are_what_the_simulated_network_takes() {
    const ELEMENTS: usize = 100_000;
    let mut found = Vec::new();
    for world_size in WORLD_SIZES {
        for (draw, k) in [(Draw::Scattered, 64 * 4), (Draw::Block, 64 * 4), (Draw::Block, 64 * 400)] {
            let summand = Summand { elements: ELEMENTS, entries: Some(k), ..Summand::default() };
            let of_rank = |rank| RandomKAllReduce {
                vector: vec![1.0 + rank as f32; ELEMENTS],
                places: RandomPlaces { draw, k, seed: 3, step: 4 },
            };
            let estimate = fastest(&summand, Operation::RANDOM_K_ALL_REDUCE, world_size);
            let measured = measure::<RandomKAllReduce>(world_size, None, of_rank);
            compared(format!("{draw:?} {k}, {world_size} ranks"), estimate, measured, &mut found);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// So many entries are anywhere that no block is without.
#[test]
fn estimates_of_blocks_are_what_the_simulated_network_takes() {
    const ELEMENTS: usize = BLOCK_PLACES * 64 * 20;
    let (mut found, k) = (Vec::new(), ELEMENTS / 40);
    let summand = Summand { elements: ELEMENTS, entries: Some(k), ..Summand::default() };
    for world_size in WORLD_SIZES {
        let of_rank = |rank: u32| {
            let (mut own, mut drawn) = (SparseVec::new(ELEMENTS), Vec::new());
            let mut generator = Generator::for_stream(9, rank.into());
            random_k(&vec![1.0; ELEMENTS], k, &mut generator, &mut own, &mut drawn).unwrap();
            BlockAllReduce { vector: own.to_dense(), block: BLOCK_PLACES }
        };
        let estimate = fastest(&summand, Operation::BLOCK_ALL_REDUCE, world_size);
        let measured = measure::<BlockAllReduce>(world_size, None, of_rank);
        compared(format!("blocks, {world_size} ranks"), estimate, measured, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The entries of all ranks are apart, and a `P`-th of those of each rank is large: together as many as the
/// result is to have.
fn apart(rank: u32, world_size: u32) -> SparseVec {
    let part = (DIM / ENTRIES) as u32;
    let indices: Vec<u32> = (0..ENTRIES as u32).map(|place| place * part + rank).collect();
    let is_large = |place: u32| (place + rank).is_multiple_of(world_size);
    let values = (0..ENTRIES as u32).map(|place| if is_large(place) { 8.0 } else { 1.0 });
    SparseVec::from_parts(DIM, indices, values.collect()).unwrap()
}

/// The second step, which uses the thresholds of the first.
#[test]
fn the_estimate_of_ok_topk_is_what_the_simulated_network_takes() {
    let mut found = Vec::new();
    for world_size in WORLD_SIZES {
        let machine = Some(ground(world_size).machine);
        let settings = Settings { timeout: Duration::from_secs(1_000_000), machine, ..Settings::default() };
        let of_rank =
            |rank, state| OkTopkAllReduce { local: apart(rank, world_size), state, coder: Coder::pairs() };
        let seconds = run(Cluster::new(world_size, Links::new(ALPHA, BETA)), |transport| {
            let group = Group::opened(Opened::in_process(transport, None), settings);
            async move {
                let first = of_rank(group.rank(), OkTopk::new(DIM, ENTRIES, world_size));
                let (first, sum) = group.start_compressed(first).await;
                assert!(sum.unwrap().result.len().abs_diff(ENTRIES) <= world_size as usize);
                group.start_barrier().await.1.unwrap();
                let begun = group.now();
                group.start_compressed(of_rank(group.rank(), first.state)).await.1.unwrap();
                (group.now() - begun).as_secs_f64()
            }
        });
        let measured = seconds.unwrap().into_iter().fold(0.0, f64::max);
        let work = of_rank(0, OkTopk::new(DIM, ENTRIES, world_size)).work();
        let estimates = compressed_estimates::<OkTopkAllReduce>(&work, &ground(world_size));
        compared(format!("ok-topk, {world_size} ranks"), estimates[0].1.seconds, measured, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Hosts with equally many ranks, inside which links are ten times as fast.
#[test]
fn estimates_of_levels_are_what_the_simulated_network_takes() {
    const COUNT: usize = 400_000;
    const K: usize = 4000;
    let mut found = Vec::new();
    for (hosts, ranks) in [(2, 2), (4, 4), (8, 2), (3, 3), (16, 4)] {
        let placed: Vec<u32> = (0..hosts * ranks).map(|rank| rank / ranks).collect();
        let inside = Link { alpha: ALPHA / 10.0, overhead: 0.0, beta: BETA / 10.0 };
        let machine = Machine { inside, ..Machine::uniform(ALPHA, BETA) };
        let ground =
            Ground { machine, topology: Topology::of(&placed), ..Ground::new(machine, hosts * ranks) };
        let mut links = Links::new(ALPHA, BETA);
        for rank in 0..hosts * ranks {
            for other in (rank + 1..hosts * ranks).take_while(|other| other / ranks == rank / ranks) {
                links = links.with_link(Rank(rank), Rank(other), inside.alpha, inside.beta);
            }
        }
        let collective = |rank: u32| {
            let value = |index: u32| ((index * 7919 + rank * 31) % 5003) as f32;
            let vector: Vec<f32> = (0..COUNT as u32).map(value).collect();
            let by = LeaderSum::Gtopk(PutBack::default());
            HierarchicalAllReduce { vector, k: K, by, coder: Coder::pairs() }
        };
        let timeout = Duration::from_secs(1_000_000);
        let settings = Settings { timeout, machine: Some(machine), ..Settings::default() };
        let seconds = run(Cluster::new(hosts * ranks, links), |transport| {
            let group = Group::opened(Opened::in_process(transport, None).with_hosts(&placed), settings);
            let collective = collective(group.rank());
            async move {
                let begun = group.now();
                group.start_compressed(collective).await.1.map(drop).unwrap();
                (group.now() - begun).as_secs_f64()
            }
        });
        let seconds = seconds.unwrap().into_iter().fold(0.0, f64::max);
        let estimates = compressed_estimates::<HierarchicalAllReduce>(&collective(0).work(), &ground);
        let [(Algorithm::Hosts, estimate)] = estimates[..] else { panic!("{estimates:?}") };
        let text = format!("hierarchical, {hosts} hosts of {ranks}");
        compared(text, estimate.seconds, seconds, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}
