//! Collectives on the simulated network: as many ranks as wanted in one process, in virtual time.

use std::time::Duration;

use brevity::collectives::Algorithm;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, Passage, run};
use brevity::{Group, Machine, Settings};

use super::making::{Make, maker};
use super::{Benchmark, Case, Dtype, Measured};
use crate::collective::Collective;
use crate::{Error, Result};

/// No call takes this long, in virtual time.
pub(super) const TIMEOUT: Duration = Duration::from_secs(100_000);

/// A network of equal links, as [`sim`](brevity::transport::sim) defines them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulation {
    /// Ranks.
    pub world_size: u32,
    /// Seconds a message.
    pub alpha: f64,
    /// Seconds a byte.
    pub beta: f64,
}

/// What each rank measures for one row: the time of one call that all ranks begin at once, on a network that
/// is idle before. It is the same in every run. The result is checked. Each rank is on a host of its own. Of
/// what estimates in its first call, the second one is measured.
///
/// # Errors
/// If a result is wrong; [`Error::Arguments`] if Brevity does not have the collective, and for messages
/// between pairs.
pub fn simulate(
    simulation: Simulation,
    benchmark: Benchmark,
    dtype: Dtype,
    case: Case,
) -> Result<Vec<Measured>> {
    let hosts: Vec<u32> = (0..simulation.world_size).collect();
    let make = maker(simulation.world_size, benchmark, dtype, case)?;
    simulate_on((simulation, &simulation.cluster()), None, &hosts, (benchmark, case), &make)
}

/// The messages of one call of a collective between ranks on these hosts, in the order in which they have
/// begun.
///
/// # Errors
/// As for [`simulate`], and for an algorithm that does not fit.
pub fn passages(
    (simulation, hosts): (Simulation, &[u32]),
    collective: Collective,
    algorithm: Option<Algorithm>,
    bytes: usize,
) -> Result<Vec<Passage>> {
    let case = Case { bytes, density: None, iterations: 1, warmup: 0 };
    let cluster = simulation.cluster().with_passages();
    let benchmark = Benchmark::Dense(collective);
    let make = maker(simulation.world_size, benchmark, Dtype::F32, case)?;
    simulate_on((simulation, &cluster), algorithm, hosts, (benchmark, case), &make)?;
    Ok(in_order(&cluster))
}

/// The messages that have arrived, in the order in which they have begun.
pub(super) fn in_order(cluster: &Cluster) -> Vec<Passage> {
    let mut passages = cluster.passages();
    passages.sort_by_key(|passage| (passage.begun, passage.from, passage.to));
    passages
}

impl Simulation {
    pub(super) fn cluster(self) -> Cluster {
        Cluster::new(self.world_size, Links::new(self.alpha, self.beta))
    }
}

fn simulate_on(
    (simulation, cluster): (Simulation, &Cluster),
    algorithm: Option<Algorithm>,
    hosts: &[u32],
    (benchmark, case): (Benchmark, Case),
    make: &Make,
) -> Result<Vec<Measured>> {
    let machine = Some(Machine::uniform(simulation.alpha, simulation.beta));
    // The results are small integers, which have one sum in any order.
    let settings =
        Settings { timeout: TIMEOUT, machine, any_order: algorithm.is_some(), ..Settings::default() };
    let ranks = run(cluster.clone(), |transport| {
        let opened = Opened::in_process(transport, None).with_hosts(hosts);
        let group = Group::opened(opened, settings).with_algorithm(algorithm);
        let made = make(&group);
        async move {
            let mut workload = made?;
            workload.prepare();
            if workload.has_first_call() {
                workload.start(&group).await?;
                workload.prepare();
                group.start_barrier().await.1?;
            }
            let (begun, sent_before) = (group.now(), group.statistics().bytes_sent);
            workload.start(&group).await?;
            let times = vec![(group.now() - begun).as_secs_f64() * 1e6];
            let bytes_sent = (group.statistics().bytes_sent - sent_before) as f64;
            let wrong = |wrong: super::Difference| wrong.of(group.rank(), benchmark.name(), case.bytes);
            workload.check().map_err(wrong)?;
            Ok(Measured { times, bytes_sent, kept: workload.kept(), ..Measured::default() })
        }
    });
    let ranks = ranks.map_err(|stuck| Error::contestant("the simulation", stuck.to_string()))?;
    ranks.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use brevity::collectives::sparse::Wire;
    use brevity::compress::Density;
    use brevity::compress::quantise::Values;

    use super::*;
    use crate::collective::measured;
    use crate::perf::{FewBits, SparseCollective, Varying};

    fn measured_by(world_size: u32, benchmark: Benchmark, bytes: usize, share: Option<f64>) -> Vec<Measured> {
        let simulation = Simulation { world_size, alpha: 1e-5, beta: 1e-9 };
        let density = share.map(|share| Density::new(share).unwrap());
        let case = Case { bytes, density, iterations: 1, warmup: 0 };
        simulate(simulation, benchmark, Dtype::F32, case).unwrap()
    }

    fn times(world_size: u32, benchmark: Benchmark, bytes: usize) -> Vec<f64> {
        let measured = measured_by(world_size, benchmark, bytes, None);
        measured.into_iter().map(|rank| rank.times[0]).collect()
    }

    #[test]
    fn a_broadcast_takes_the_time_of_a_message() {
        // 10 us a message, 1 ns a byte.
        let times = times(2, Benchmark::Dense(Collective::Broadcast), 4000);
        assert!((times[1] - 14.0).abs() < 0.5, "{times:?}");
    }

    #[test]
    fn every_collective_is_simulated_and_every_run_is_the_same() {
        for benchmark in measured().map(Benchmark::Dense).chain(Varying::ALL.map(Benchmark::Varying)) {
            let first = times(5, benchmark, 400);
            assert_eq!(first.len(), 5);
            assert!(first.iter().any(|&time| time >= 10.0), "{benchmark}: {first:?}");
            assert_eq!(times(5, benchmark, 400), first);
        }
    }

    /// All but those between pairs, whose results are checked. Ranks alone send nothing.
    #[test]
    fn what_is_compressed_is_simulated_and_every_run_is_the_same() {
        let compressed = |benchmark: &Benchmark| {
            !benchmark.is_paired() && !matches!(benchmark, Benchmark::Dense(_) | Benchmark::Varying(_))
        };
        let coded = SparseCollective::ALL.map(|which| Benchmark::Sparse(which, Wire::Coded(Values::Bf16)));
        let eight_bits = Benchmark::FewBits(FewBits::Quantised(Values::EightBit));
        for benchmark in Benchmark::all().filter(compressed).chain(coded).chain([eight_bits]) {
            let share = benchmark.is_sparse().then_some(0.05);
            for world_size in [1, 2, 3, 5, 8] {
                let figures = || -> Vec<(f64, f64)> {
                    let ranks = measured_by(world_size, benchmark, 8000, share);
                    ranks.iter().map(|rank| (rank.times[0], rank.bytes_sent)).collect()
                };
                let first = figures();
                let is_busy = |rank: &(f64, f64)| rank.0 >= 10.0 && rank.1 > 0.0;
                assert_eq!(first.iter().any(is_busy), world_size > 1, "{benchmark}: {first:?}");
                assert_eq!(figures(), first, "{benchmark}");
            }
        }
    }

    /// By the formula of a tree: two trips of k pairs, one up and one down.
    #[test]
    fn a_tree_of_two_ranks_takes_the_time_of_two_messages() {
        let gtopk = Benchmark::Sparse(SparseCollective::GtopkAllReduce, Wire::Pairs);
        let ranks = measured_by(2, gtopk, 400_000, Some(0.05));
        assert_eq!(ranks[0].kept, Some(5000));
        // The rank that sends first also receives last: 10 us a message, and 40 us for 5,000 pairs.
        assert!((ranks[1].times[0] - 100.0).abs() < 1.0, "{ranks:?}");
    }

    #[test]
    fn pairs_are_not_simulated() {
        let simulation = Simulation { world_size: 2, alpha: 1e-5, beta: 1e-9 };
        let case = Case { bytes: 8, density: None, iterations: 1, warmup: 0 };
        assert!(simulate(simulation, Benchmark::Latency, Dtype::F32, case).is_err());
    }
}
