//! The costs of Table I of the gTop-k paper, on a simulated network with its alpha and beta. Shi et al.,
//! "A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth networks",
//! ICDCS 2019. All vectors have the length of its Figure 9, and all entries are raw pairs of 8 bytes.

use std::time::Duration;

use brevity::collectives::sparse::{Coder, GtopkAllReduce, PutBack, TopkAllReduce};
use brevity::collectives::{Algorithm, Compressed, Machine};
use brevity::compress::SparseVec;
use brevity::transport::Transport;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, ReduceOp, Settings};

/// Seconds a message.
const ALPHA: f64 = 0.436e-3;
/// Seconds an element of 4 bytes.
const BETA: f64 = 3.6e-8;
/// The length of a gradient, and the entries that a rank selects: a density of 0.001.
const DIM: usize = 25_000_000;
const K: usize = 25_000;

/// How far a time may be from its formula.
const TOLERANCE: f64 = 0.05;

fn links() -> Links {
    Links::new(ALPHA, BETA / 4.0)
}

/// One entry anywhere in each of equal parts of the vector, without ties.
fn entries(rank: u32) -> SparseVec {
    let mut state = u64::from(rank) + 1;
    let part = DIM / K;
    let mut entries = SparseVec::with_capacity(DIM, K);
    for place in 0..K {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        entries.push((place * part + (state >> 33) as usize % part) as u32, 1.0 + (state >> 41) as f32);
    }
    entries
}

/// The group of a rank that makes its calls by this algorithm.
fn group(transport: Box<dyn Transport>, algorithm: Option<Algorithm>) -> Group {
    let (timeout, any_order) = (Duration::from_secs(1_000_000), true);
    let machine = Some(Machine::uniform(ALPHA, BETA / 4.0));
    let settings = Settings { timeout, machine, any_order, ..Settings::default() };
    Group::opened(Opened::in_process(transport, None), settings).with_algorithm(algorithm)
}

/// Seconds from the beginning to the end of the last rank.
fn sparse<C>(world_size: u32, algorithm: Option<Algorithm>, of_rank: impl Fn(u32) -> C) -> f64
where
    C: Compressed<Output: 'static> + 'static,
{
    let seconds = run(Cluster::new(world_size, links()), |transport| {
        let group = group(transport, algorithm);
        let collective = of_rank(group.rank());
        async move {
            let begun = group.now();
            group.start_compressed(collective).await.1.map(drop).unwrap();
            (group.now() - begun).as_secs_f64()
        }
    });
    seconds.unwrap().into_iter().fold(0.0, f64::max)
}

fn ring(world_size: u32) -> f64 {
    let seconds = run(Cluster::new(world_size, links()), |transport| {
        let group = group(transport, Some(Algorithm::Ring));
        async move {
            let begun = group.now();
            let (sum, outcome) = group.start_all_reduce(vec![1.0_f32; DIM], ReduceOp::Sum).await;
            outcome.unwrap();
            assert_eq!([sum[0], sum[DIM - 1]], [world_size as f32; 2]);
            (group.now() - begun).as_secs_f64()
        }
    });
    seconds.unwrap().into_iter().fold(0.0, f64::max)
}

fn assert_near(what: &str, world_size: u32, found: f64, formula: f64) {
    let ratio = found / formula;
    println!("{what}, P = {world_size}: {:.2} ms, by Table I {:.2} ms", found * 1e3, formula * 1e3);
    assert!((ratio - 1.0).abs() <= TOLERANCE, "{what}, P = {world_size}: {found} s, by Table I {formula} s");
}

/// Powers of two from 4 to `usual`, or to `BREVITY_TABLE_RANKS` in `ci/exhaustive.sh`.
fn world_sizes(usual: u32) -> impl Iterator<Item = u32> {
    let most = std::env::var("BREVITY_TABLE_RANKS").map_or(usual, |ranks| ranks.parse().unwrap());
    (2..).map(|rounds| 1 << rounds).take_while(move |world_size| *world_size <= most)
}

/// `2 log2(P) alpha + 4 k log2(P) beta`.
#[test]
fn gtopk_takes_two_messages_a_level() {
    for world_size in world_sizes(128) {
        let gtopk = |rank| {
            let (local, rule) = (entries(rank), PutBack::default());
            GtopkAllReduce { local, k: K, rule, coder: Coder::pairs() }
        };
        let levels = f64::from(world_size).log2();
        let formula = 2.0 * levels * ALPHA + 4.0 * K as f64 * levels * BETA;
        assert_near("gTop-k", world_size, sparse(world_size, None, gtopk), formula);
    }
}

/// `log2(P) alpha + 2 (P - 1) k beta`.
#[test]
fn a_top_k_all_gather_takes_the_entries_of_all_others() {
    for world_size in world_sizes(32) {
        let topk = |rank| TopkAllReduce { local: entries(rank), limit: K, coder: Coder::pairs() };
        let ranks = f64::from(world_size);
        let formula = ranks.log2() * ALPHA + 2.0 * (ranks - 1.0) * K as f64 * BETA;
        assert_near("top-k", world_size, sparse(world_size, Some(Algorithm::Bruck), topk), formula);
    }
}

/// `2 (P - 1) alpha + 2 (P - 1) / P n beta`. Each rank has 100 MB.
#[test]
fn a_dense_ring_takes_twice_the_vector() {
    for world_size in world_sizes(4) {
        let others = f64::from(world_size) - 1.0;
        let formula = 2.0 * others * ALPHA + 2.0 * others / f64::from(world_size) * DIM as f64 * BETA;
        assert_near("dense ring", world_size, ring(world_size), formula);
    }
}
