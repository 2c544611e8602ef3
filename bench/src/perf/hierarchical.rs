//! Sums of dense vectors by hosts: dense inside them, gTop-k between them. Selecting is timed.

use std::sync::Arc;

use brevity::collectives::sparse::{Coder, LeaderSum};
use brevity::compress::SparseVec;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Passage, run};
use brevity::{Group, Machine, PutBack, Settings, collectives};

use super::SentPart;
use super::simulated::{Simulation, TIMEOUT, in_order};
use super::workload::{Difference, Going, Workload};
use crate::{Error, Result, oracle};

/// How leaders sum.
const BY: LeaderSum = LeaderSum::Gtopk(PutBack::Conserving);

/// The entries that all ranks get.
pub type Expected = Arc<[(u32, f32)]>;

/// This rank's part, with the expected result.
pub struct InHosts {
    vector: Vec<f32>,
    before: Vec<f32>,
    k: usize,
    coder: Coder,
    last: SparseVec,
    expected: Expected,
}

impl InHosts {
    /// What ranks on these hosts get, whose vectors have `count` elements, and whose leaders select `k`
    /// entries.
    pub fn expected(hosts: &[u32], count: usize, k: usize) -> Expected {
        let given = by_host(hosts).into_iter().map(|ranks| {
            // Integers: a sum has the same bits in any order.
            let mut sum = vec![0.0; count];
            for rank in ranks {
                let vector = oracle::vector(rank, count, oracle::WIDE);
                sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
            }
            oracle::largest((0..).zip(sum).collect(), k)
        });
        let said = |mut entries: oracle::Entries, _| {
            entries.retain(|_, value| *value != 0.0);
            entries
        };
        oracle::gtopk(given.collect(), k, said).into_iter().collect()
    }

    /// This rank's vector of `count` elements, of whose sums leaders select `k` entries.
    pub fn new(group: &Group, count: usize, k: usize, expected: Expected) -> Self {
        let before = oracle::vector(group.rank(), count, oracle::WIDE);
        Self {
            vector: before.clone(),
            before,
            k,
            coder: Coder::pairs(),
            last: SparseVec::new(count),
            expected,
        }
    }
}

/// The ranks of each host, in the order of their first ranks.
fn by_host(hosts: &[u32]) -> Vec<Vec<u32>> {
    let mut all: Vec<(u32, Vec<u32>)> = Vec::new();
    for (rank, host) in (0..).zip(hosts) {
        match all.iter_mut().find(|(other, _)| other == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => all.push((*host, vec![rank])),
        }
    }
    all.into_iter().map(|(_, ranks)| ranks).collect()
}

/// The messages of one call between ranks on these hosts, in the order in which they have begun. Vectors have
/// so many bytes, and leaders select `k` entries. The result is checked.
///
/// # Errors
/// If the result is wrong.
pub fn hierarchical_passages(
    (simulation, hosts): (Simulation, &[u32]),
    bytes: usize,
    k: usize,
) -> Result<Vec<Passage>> {
    let cluster = simulation.cluster().with_passages();
    let machine = Some(Machine::uniform(simulation.alpha, simulation.beta));
    let settings = Settings { timeout: TIMEOUT, machine, ..Settings::default() };
    let count = bytes / size_of::<f32>();
    let expected = InHosts::expected(hosts, count, k);
    let ranks = run(cluster.clone(), |transport| {
        let group = Group::opened(Opened::in_process(transport, None).with_hosts(hosts), settings);
        let expected = expected.clone();
        async move {
            let mut part = InHosts::new(&group, count, k, expected);
            part.start(&group).await?;
            part.check().map_err(|wrong| wrong.of(group.rank(), SentPart::Hosts.name(), bytes))
        }
    });
    let ranks = ranks.map_err(|stuck| Error::contestant("the simulation", stuck.to_string()))?;
    ranks.into_iter().collect::<Result<()>>()?;
    Ok(in_order(&cluster))
}

impl Workload for InHosts {
    fn prepare(&mut self) {
        self.vector.copy_from_slice(&self.before);
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        self.last = group.hierarchical_all_reduce(&mut self.vector, self.k, BY, &mut self.coder)?;
        Ok(())
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let (vector, coder) = (std::mem::take(&mut self.vector), std::mem::take(&mut self.coder));
        let started = group.start_hierarchical_all_reduce(vector, self.k, BY, coder);
        Box::pin(async move {
            let (given, sum) = started.await;
            (self.vector, self.coder) = (given.vector, given.coder);
            self.last = sum?;
            Ok(())
        })
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.last.iter().collect::<Vec<_>>(), &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
