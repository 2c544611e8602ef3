//! Sums of dense vectors by hosts: dense inside them, gTop-k between them. Selecting is timed.

use brevity::collectives::sparse::{Coder, LeaderSum};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, PutBack, collectives};

use super::workload::{Difference, Workload};
use crate::oracle;

/// This rank's part, with the expected result.
pub struct InHosts {
    vector: Vec<f32>,
    before: Vec<f32>,
    k: usize,
    coder: Coder,
    last: SparseVec,
    expected: Vec<(u32, f32)>,
}

impl InHosts {
    /// This rank's vector of `count` elements, of whose sums leaders select this share.
    pub fn new(group: &Group, count: usize, density: Density) -> Self {
        let (k, hosts) = (density.entries(count), group.host_numbers());
        let given = by_host(&hosts).into_iter().map(|ranks| {
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
        let before = oracle::vector(group.rank(), count, oracle::WIDE);
        Self {
            vector: before.clone(),
            before,
            k,
            coder: Coder::pairs(),
            last: SparseVec::new(count),
            expected: oracle::gtopk(given.collect(), k, said).into_iter().collect(),
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

impl Workload for InHosts {
    fn prepare(&mut self) {
        self.vector.copy_from_slice(&self.before);
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        let by = LeaderSum::Gtopk(PutBack::Conserving);
        self.last = group.hierarchical_all_reduce(&mut self.vector, self.k, by, &mut self.coder)?;
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.last.iter().collect::<Vec<_>>(), &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
