//! Collectives on vectors that are already sparse: the selection is not timed.

use brevity::collectives::sparse::{Coder, Wire};
use brevity::compress::codec::{Choice, Encoder, decode};
use brevity::compress::quantise::Values;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, PutBack, collectives};

use super::workload::{Difference, Workload};
use crate::oracle::{self, Entries};

/// A collective on sparse vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseCollective {
    /// Every rank gets the vectors of all.
    AllGather,
    /// Every rank gets their sum.
    TopkAllReduce,
    /// Every rank gets the largest entries of their sum.
    GtopkAllReduce,
}

impl SparseCollective {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AllGather, Self::TopkAllReduce, Self::GtopkAllReduce];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "sparse-allgather",
            Self::TopkAllReduce => "topk-allreduce",
            Self::GtopkAllReduce => "gtopk-allreduce",
        }
    }

    /// What every rank gets of the entries of all.
    fn expected(
        self,
        given: Vec<Entries>,
        k: usize,
        said: impl Fn(Entries, bool) -> Entries,
    ) -> Vec<Entries> {
        let read = |given: Vec<Entries>| given.into_iter().map(|entries| said(entries, false)).collect();
        match self {
            Self::AllGather => read(given),
            Self::TopkAllReduce => vec![oracle::ordered(read(given))],
            Self::GtopkAllReduce => {
                let read = |entries, is_sum| {
                    let mut read = said(entries, is_sum);
                    read.retain(|_, value| *value != 0.0);
                    read
                };
                vec![oracle::gtopk(given, k, read)]
            }
        }
    }
}

/// This rank's part in a collective on sparse vectors, with the expected result.
pub struct Sparse {
    collective: SparseCollective,
    k: usize,
    local: SparseVec,
    coder: Coder,
    last: Vec<SparseVec>,
    expected: Vec<(u32, f32)>,
}

impl Sparse {
    /// This rank's vectors, made of the largest of `count` elements.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(
        group: &Group,
        (collective, wire): (SparseCollective, Wire),
        count: usize,
        density: Density,
    ) -> collectives::Result<Self> {
        let k = density.entries(count);
        let mut local = SparseVec::new(count);
        top_k(&oracle::vector(group.rank(), count, oracle::WIDE), k, &mut local, &mut TopKScratch::new())?;
        let given = (0..group.world_size()).map(|rank| oracle::largest_of(rank, count, oracle::WIDE, k));
        let said = |entries: Entries, is_sum: bool| match wire {
            Wire::Pairs => entries,
            Wire::Coded(values) => said(count, entries, if is_sum { values.of_sums() } else { values }),
        };
        let expected = collective.expected(given.collect(), k, said).into_iter().flatten().collect();
        Ok(Self { collective, k, local, coder: Coder::new(wire), last: Vec::new(), expected })
    }
}

/// What ranks read of these entries.
fn said(count: usize, entries: Entries, values: Values) -> Entries {
    let mut message = Vec::new();
    let (indices, numbers) = entries.into_iter().unzip();
    let read = || -> Result<SparseVec, brevity::compress::Error> {
        let entries = SparseVec::from_parts(count, indices, numbers)?;
        Encoder::new().encode(entries.view(), Choice::Fast, &mut *values.quantiser(), &mut message)?;
        let mut said = SparseVec::new(count);
        decode(&message, count, entries.len(), &mut said)?;
        Ok(said)
    };
    read().map_or_else(|error| panic!("finite entries are not coded: {error}"), |said| said.iter().collect())
}

impl Workload for Sparse {
    fn prepare(&mut self) {
        self.last.clear();
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        let (local, k, coder) = (self.local.view(), self.k, &mut self.coder);
        self.last = match self.collective {
            SparseCollective::AllGather => group.sparse_all_gather_by(local, k, coder)?,
            SparseCollective::TopkAllReduce => vec![group.topk_all_reduce_by(local, k, coder)?.sum],
            SparseCollective::GtopkAllReduce => {
                vec![group.gtopk_all_reduce_by(local, k, PutBack::Conserving, coder)?.result]
            }
        };
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        let found = self.last.iter().flat_map(SparseVec::iter).collect::<Vec<_>>();
        Difference::find(&found, &self.expected)
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
