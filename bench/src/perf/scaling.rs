//! How the time of summing gradients grows with the ranks, on the simulated network: Figure 9 of the gTop-k
//! paper (Shi et al., ICDCS 2019), with its alpha and beta, and what has come since. Entries are raw pairs.

use std::fmt;
use std::time::Duration;

use brevity::collectives::sparse::{
    Coder, GtopkAllReduce, HierarchicalAllReduce, LeaderSum, OkTopk, OkTopkAllReduce, PutBack, TopkAllReduce,
};
use brevity::collectives::{Algorithm, Compressed, Link, Machine};
use brevity::compress::{SparseVec, SparseView};
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::transport::{Rank, Transport};
use brevity::{Group, ReduceOp, Settings};

use super::Simulation;
use crate::{Error, Result};

/// No call takes this long, in virtual time.
const TIMEOUT: Duration = Duration::from_secs(1_000_000);

/// The ranks of a host, in the hierarchical way.
const HOST_RANKS: u32 = 4;

/// How a message and a byte inside a host compare with those between hosts, in the hierarchical way.
const INSIDE: f64 = 0.01;

/// A way to sum the gradients of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summing {
    /// The whole vector, around a ring.
    DenseRing,
    /// All ranks' entries to all.
    TopkAllGather,
    /// A sparse reduce-scatter, then an all-gather (SparCML).
    TopkSplit,
    /// About `k` of the largest sums (Ok-Topk), in a step that estimates nothing anew.
    OkTopk,
    /// The largest sums by a tree.
    Gtopk,
    /// Dense inside hosts of four ranks, whose links are a hundred times as fast, and the largest sums by a
    /// tree between them.
    Hierarchical,
}

impl Summing {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::DenseRing,
        Self::TopkAllGather,
        Self::TopkSplit,
        Self::OkTopk,
        Self::Gtopk,
        Self::Hierarchical,
    ];

    /// Whether each rank holds a whole vector: too much memory for one process. Then a part of the elements
    /// on links that are slower by as much takes as long, since messages are long.
    #[must_use]
    pub const fn is_dense(self) -> bool {
        matches!(self, Self::DenseRing | Self::Hierarchical)
    }

    /// Likewise, whether what all ranks hold grows with their square: too much memory for many.
    #[must_use]
    pub const fn is_large(self) -> bool {
        self.is_dense() || matches!(self, Self::TopkAllGather | Self::TopkSplit)
    }

    /// Seconds of a sum of vectors of `count` elements, of which each rank has `k` entries at random places:
    /// from the time when the last rank begins to the time when the last one ends.
    ///
    /// # Errors
    /// If a call fails.
    pub fn seconds(self, on: Simulation, count: usize, k: usize) -> Result<f64> {
        match self {
            Self::DenseRing => dense(on, count),
            Self::TopkAllGather => topk(on, Algorithm::Bruck, count, k),
            Self::TopkSplit => topk(on, Algorithm::Direct, count, k),
            Self::Gtopk => simulated(on, None, |group| {
                let (local, rule) = (entries(group.rank(), 0, count, k), PutBack::default());
                let collective = GtopkAllReduce { local, k, rule, coder: Coder::pairs() };
                async move { timed(&group, collective).await.map(|(times, _)| times) }
            }),
            Self::Hierarchical => by_hosts(on, |group| {
                let vector = entries(group.rank(), 0, count, k).to_dense();
                let (by, coder) = (LeaderSum::Gtopk(PutBack::default()), Coder::pairs());
                let collective = HierarchicalAllReduce { vector, k, by, coder };
                async move { timed(&group, collective).await.map(|(times, _)| times) }
            }),
            Self::OkTopk => simulated(on, None, |group| async move {
                let state = OkTopk::new(count, k, group.world_size());
                let local = entries(group.rank(), 0, count, k);
                let first = OkTopkAllReduce { local, state, coder: Coder::pairs() };
                let (_, OkTopkAllReduce { state, .. }) = timed(&group, first).await?;
                group.start_barrier().await.1?;
                let local = entries(group.rank(), 1, count, k);
                let second = OkTopkAllReduce { local, state, coder: Coder::pairs() };
                timed(&group, second).await.map(|(times, _)| times)
            }),
        }
    }
}

impl fmt::Display for Summing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DenseRing => "dense ring",
            Self::TopkAllGather => "top-k all-gather",
            Self::TopkSplit => "top-k split",
            Self::OkTopk => "Ok-Topk",
            Self::Gtopk => "gTop-k",
            Self::Hierarchical => "hierarchical",
        })
    }
}

/// When a rank has begun and ended, in virtual seconds.
type Times = (f64, f64);

/// From the beginning of the last rank to the end of the last one.
fn simulated<F>(on: Simulation, algorithm: Option<Algorithm>, of_rank: impl Fn(Group) -> F) -> Result<f64>
where
    F: Future<Output = Result<Times>> + 'static,
{
    timed_on(on.cluster(), Machine::uniform(on.alpha, on.beta), |transport, settings| {
        let group = Group::opened(Opened::in_process(transport, None), settings);
        of_rank(group.with_algorithm(algorithm))
    })
}

/// Likewise, on hosts with several ranks each.
fn by_hosts<F>(on: Simulation, of_rank: impl Fn(Group) -> F) -> Result<f64>
where
    F: Future<Output = Result<Times>> + 'static,
{
    let Simulation { world_size, alpha, beta } = on;
    let hosts: Vec<u32> = (0..world_size).map(|rank| rank / HOST_RANKS).collect();
    let inside = Link { alpha: alpha * INSIDE, overhead: 0.0, beta: beta * INSIDE };
    let mut links = Links::new(alpha, beta);
    for rank in 0..world_size {
        for other in (rank + 1..world_size).take_while(|other| other / HOST_RANKS == rank / HOST_RANKS) {
            links = links.with_link(Rank(rank), Rank(other), inside.alpha, inside.beta);
        }
    }
    let machine = Machine { inside, ..Machine::uniform(alpha, beta) };
    timed_on(Cluster::new(world_size, links), machine, |transport, settings| {
        of_rank(Group::opened(Opened::in_process(transport, None).with_hosts(&hosts), settings))
    })
}

fn timed_on<F>(
    cluster: Cluster,
    machine: Machine,
    of_rank: impl Fn(Box<dyn Transport>, Settings) -> F,
) -> Result<f64>
where
    F: Future<Output = Result<Times>> + 'static,
{
    let settings =
        Settings { timeout: TIMEOUT, machine: Some(machine), any_order: true, ..Settings::default() };
    let ranks = run(cluster, |transport| of_rank(transport, settings));
    let ranks = ranks.map_err(|stuck| Error::contestant("the simulation", stuck.to_string()))?;
    let times: Vec<Times> = ranks.into_iter().collect::<Result<_>>()?;
    let last = |of: fn(&Times) -> f64| times.iter().map(of).fold(0.0, f64::max);
    Ok(last(|times| times.1) - last(|times| times.0))
}

/// A call, and when it has begun and ended.
async fn timed<C>(group: &Group, collective: C) -> Result<(Times, C)>
where
    C: Compressed<Output: 'static> + 'static,
{
    let begun = group.now().as_secs_f64();
    let (collective, outcome) = group.start_compressed(collective).await;
    outcome?;
    Ok(((begun, group.now().as_secs_f64()), collective))
}

fn topk(on: Simulation, algorithm: Algorithm, count: usize, k: usize) -> Result<f64> {
    simulated(on, Some(algorithm), |group| {
        let local = entries(group.rank(), 0, count, k);
        let collective = TopkAllReduce { local, limit: k, coder: Coder::pairs() };
        async move { timed(&group, collective).await.map(|(times, _)| times) }
    })
}

fn dense(on: Simulation, count: usize) -> Result<f64> {
    simulated(on, Some(Algorithm::Ring), |group| async move {
        let begun = group.now().as_secs_f64();
        let (sum, outcome) = group.start_all_reduce(vec![1.0_f32; count], ReduceOp::Sum).await;
        outcome?;
        let ended = group.now().as_secs_f64();
        let ranks = group.world_size() as f32;
        match sum.iter().find(|value| **value != ranks) {
            None => Ok((begun, ended)),
            Some(wrong) => Err(Error::contestant("the simulation", format!("a sum of ones is {wrong}"))),
        }
    })
}

/// One entry anywhere in each of `k` equal parts of the vector, other ones in each step.
fn entries(rank: u32, step: u64, count: usize, k: usize) -> SparseVec {
    let mut state = (u64::from(rank) + 1) ^ step << 32;
    let (part, mut entries) = (count / k.max(1), SparseVec::with_capacity(count, k));
    for place in 0..k {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        entries.push((place * part + (state >> 33) as usize % part) as u32, 1.0 + (state >> 41) as f32);
    }
    debug_assert!(SparseView::new(count, entries.indices(), entries.values()).is_ok());
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(world_size: u32, times: f64) -> Simulation {
        Simulation { world_size, alpha: 0.436e-3, beta: 9e-9 * times }
    }

    #[test]
    fn a_hundredth_on_links_a_hundredth_as_fast_takes_as_long() {
        for summing in Summing::ALL.into_iter().filter(|summing| summing.is_large()) {
            let whole = summing.seconds(on(8, 1.0), 1_000_000, 50_000).unwrap();
            let part = summing.seconds(on(8, 100.0), 10_000, 500).unwrap();
            assert!((part / whole - 1.0).abs() < 0.05, "{summing}: {part} and {whole} s");
        }
    }

    /// As far as there is memory.
    #[test]
    fn a_hundredth_takes_as_long_among_128_ranks() {
        for summing in Summing::ALL.into_iter().filter(|summing| summing.is_large()) {
            let (count, k) = if summing.is_dense() { (400_000, 40_000) } else { (2_500_000, 2_500) };
            let whole = summing.seconds(on(128, 1.0), count, k).unwrap();
            let part = summing.seconds(on(128, 100.0), count / 100, k / 100).unwrap();
            assert!((part / whole - 1.0).abs() < 0.05, "{summing}: {part} and {whole} s");
        }
    }

    #[test]
    fn a_tree_takes_less_than_a_gather_among_many_ranks() {
        let seconds =
            |summing: Summing, world_size| summing.seconds(on(world_size, 1.0), 500_000, 5_000).unwrap();
        assert!(seconds(Summing::Gtopk, 32) < seconds(Summing::TopkAllGather, 32));
        assert!(seconds(Summing::Gtopk, 32) < seconds(Summing::DenseRing, 32));
        assert!(seconds(Summing::OkTopk, 32) > 0.0);
        // Half of the rounds between hosts, and what is inside them.
        let [hosts, ranks] = [8, 32].map(|world_size| seconds(Summing::Gtopk, world_size));
        assert!((hosts..ranks).contains(&seconds(Summing::Hierarchical, 32)));
    }
}
