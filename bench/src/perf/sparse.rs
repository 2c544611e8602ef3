//! Collectives on vectors that are already sparse: the selection is not timed.

use brevity::collectives::sparse::{Coder, Wire, owned};
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
    /// Every rank gets its range of their sum.
    ReduceScatter,
    /// Every rank gets their sum.
    TopkAllReduce,
    /// Every rank gets the largest entries of their sum.
    GtopkAllReduce,
}

impl SparseCollective {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::AllGather, Self::ReduceScatter, Self::TopkAllReduce, Self::GtopkAllReduce];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "sparse-allgather",
            Self::ReduceScatter => "sparse-reducescatter",
            Self::TopkAllReduce => "topk-allreduce",
            Self::GtopkAllReduce => "gtopk-allreduce",
        }
    }
}

/// The entries of all ranks, and how they are read.
struct Oracle {
    given: Vec<Entries>,
    count: usize,
    k: usize,
    wire: Wire,
}

impl Oracle {
    fn said(&self, entries: Entries, is_sum: bool) -> Entries {
        match self.wire {
            Wire::Pairs => entries,
            Wire::Coded(values) => said(self.count, entries, if is_sum { values.of_sums() } else { values }),
        }
    }

    /// The sum at the indices of an owner, whose own entries are not rounded.
    fn scattered(&self, owner: u32) -> Entries {
        let place = owned(self.count, self.given.len() as u32, owner);
        let piece = |(rank, given): (u32, &Entries)| {
            let inside = given.iter().filter(|(index, _)| place.contains(&(**index as usize)));
            let piece = inside.map(|(index, value)| (*index, *value)).collect();
            if rank == owner { piece } else { self.said(piece, false) }
        };
        oracle::ordered((0..).zip(&self.given).map(piece).collect())
    }

    /// What a rank may get, by one algorithm or another.
    fn expected(self, collective: SparseCollective, rank: u32) -> Vec<Vec<(u32, f32)>> {
        let list = |entries: Entries| entries.into_iter().collect::<Vec<_>>();
        let read = || self.given.iter().map(|entries| self.said(entries.clone(), false));
        let non_zero = |entries: Entries, is_sum: bool| {
            let mut read = self.said(entries, is_sum);
            read.retain(|_, value| *value != 0.0);
            read
        };
        match collective {
            SparseCollective::AllGather => vec![read().flatten().collect()],
            SparseCollective::ReduceScatter => vec![list(self.scattered(rank))],
            SparseCollective::TopkAllReduce => {
                let owners = 0..self.given.len() as u32;
                let direct = owners.flat_map(|owner| non_zero(self.scattered(owner), true)).collect();
                vec![list(oracle::ordered(read().collect())), direct]
            }
            SparseCollective::GtopkAllReduce => {
                vec![list(oracle::gtopk(self.given.clone(), self.k, non_zero))]
            }
        }
    }
}

/// This rank's part in a collective on sparse vectors, with what it may get.
pub struct Sparse {
    collective: SparseCollective,
    k: usize,
    local: SparseVec,
    coder: Coder,
    last: Vec<SparseVec>,
    expected: Vec<Vec<(u32, f32)>>,
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
        let expected = Oracle { given: given.collect(), count, k, wire }.expected(collective, group.rank());
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
            SparseCollective::ReduceScatter => vec![group.sparse_reduce_scatter(local, k, coder)?.sum],
            SparseCollective::TopkAllReduce => vec![group.topk_all_reduce_by(local, k, coder)?.sum],
            SparseCollective::GtopkAllReduce => {
                vec![group.gtopk_all_reduce_by(local, k, PutBack::Conserving, coder)?.result]
            }
        };
        Ok(())
    }

    fn check(&self) -> Result<(), Difference> {
        let found = self.last.iter().flat_map(SparseVec::iter).collect::<Vec<_>>();
        let mut outcomes = self.expected.iter().map(|expected| Difference::find(&found, expected));
        let first = outcomes.next().unwrap_or(Ok(()));
        if outcomes.any(|outcome| outcome.is_ok()) { Ok(()) } else { first }
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }
}
