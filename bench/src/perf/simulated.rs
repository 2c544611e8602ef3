//! Dense collectives on the simulated network: as many ranks as wanted in one process, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use brevity::collectives::Algorithm;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, Passage, run};
use brevity::{Group, Machine, Settings};

use super::{Case, Dense, Dtype, Measured, Workload, of_dtype};
use crate::collective::{Collective, Number, Place, ROOT};
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
/// is idle before. It is the same in every run. The result is checked.
///
/// # Errors
/// If a result is wrong; [`Error::Arguments`] if Brevity does not have the collective.
pub fn simulate(
    simulation: Simulation,
    collective: Collective,
    dtype: Dtype,
    case: Case,
) -> Result<Vec<Measured>> {
    of_dtype!(dtype, simulate_as(simulation, collective, case))
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
    simulate_on::<f32>((simulation, &cluster), (collective, algorithm), hosts, case)?;
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

fn simulate_as<T: Number>(
    simulation: Simulation,
    collective: Collective,
    case: Case,
) -> Result<Vec<Measured>> {
    let hosts: Vec<u32> = (0..simulation.world_size).collect();
    simulate_on::<T>((simulation, &simulation.cluster()), (collective, None), &hosts, case)
}

fn simulate_on<T: Number>(
    (simulation, cluster): (Simulation, &Cluster),
    (collective, algorithm): (Collective, Option<Algorithm>),
    hosts: &[u32],
    case: Case,
) -> Result<Vec<Measured>> {
    let (world_size, count) = (simulation.world_size, case.bytes / size_of::<T>());
    let expected = |rank| -> Arc<[T]> { collective.expected(Place { rank, world_size }, count).into() };
    let of_all = collective.has_one_output().then(|| expected(ROOT));
    let machine = Some(Machine::uniform(simulation.alpha, simulation.beta));
    // The results are small integers, which have one sum in any order.
    let settings =
        Settings { timeout: TIMEOUT, machine, any_order: algorithm.is_some(), ..Settings::default() };
    let ranks = run(cluster.clone(), |transport| {
        let opened = Opened::in_process(transport, None).with_hosts(hosts);
        let group = Group::opened(opened, settings).with_algorithm(algorithm);
        let expected = of_all.clone().unwrap_or_else(|| expected(group.rank()));
        async move {
            let mut dense = Dense::expecting(&group, collective, count, expected)?;
            let begun = group.now();
            let started = dense.start(&group);
            dense.end(started.ended().await)?;
            let times = vec![(group.now() - begun).as_secs_f64() * 1e6];
            let wrong = |wrong: super::Difference| wrong.of(group.rank(), collective.name(), case.bytes);
            dense.check().map_err(wrong)?;
            let bytes_sent = group.statistics().bytes_sent as f64;
            Ok(Measured { times, bytes_sent, ..Measured::default() })
        }
    });
    let ranks = ranks.map_err(|stuck| Error::contestant("the simulation", stuck.to_string()))?;
    ranks.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::measured;

    fn times(world_size: u32, collective: Collective, bytes: usize) -> Vec<f64> {
        let simulation = Simulation { world_size, alpha: 1e-5, beta: 1e-9 };
        let case = Case { bytes, density: None, iterations: 1, warmup: 0 };
        let measured = simulate(simulation, collective, Dtype::F32, case).unwrap();
        measured.into_iter().map(|rank| rank.times[0]).collect()
    }

    #[test]
    fn a_broadcast_takes_the_time_of_a_message() {
        // 10 us a message, 1 ns a byte.
        let times = times(2, Collective::Broadcast, 4000);
        assert!((times[1] - 14.0).abs() < 0.5, "{times:?}");
    }

    #[test]
    fn every_collective_is_simulated_and_every_run_is_the_same() {
        for collective in measured() {
            let first = times(5, collective, 400);
            assert_eq!(first.len(), 5);
            assert!(first.iter().any(|&time| time >= 10.0), "{collective}: {first:?}");
            assert_eq!(times(5, collective, 400), first);
        }
    }
}
