//! Collectives on vectors that are already sparse: the selection is not timed.

use std::mem;
use std::sync::Arc;

use brevity::collectives::Algorithm;
use brevity::collectives::sparse::{Coder, OkTopk, Wire, owned};
use brevity::compress::codec::{Choice, Encoder, decode};
use brevity::compress::quantise::Values;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::compress::{Density, SparseVec};
use brevity::{Group, PutBack, collectives};

use super::workload::{Difference, Going, Workload};
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
    /// Every rank gets their sum, by a reduce-scatter and an all-gather (SparCML's split).
    SplitAllReduce,
    /// Every rank gets the largest entries of their sum.
    GtopkAllReduce,
    /// Every rank gets about as many of the largest entries of their sum.
    OkTopkAllReduce,
}

impl SparseCollective {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::AllGather,
        Self::ReduceScatter,
        Self::TopkAllReduce,
        Self::SplitAllReduce,
        Self::GtopkAllReduce,
        Self::OkTopkAllReduce,
    ];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "sparse-allgather",
            Self::ReduceScatter => "sparse-reducescatter",
            Self::TopkAllReduce => "topk-allreduce",
            Self::SplitAllReduce => "split-allreduce",
            Self::GtopkAllReduce => "gtopk-allreduce",
            Self::OkTopkAllReduce => "oktopk-allreduce",
        }
    }

    /// Whether every rank gets all that ranks have.
    #[must_use]
    pub const fn gathers(self) -> bool {
        matches!(self, Self::AllGather | Self::TopkAllReduce | Self::SplitAllReduce)
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
        let indices = place.start as u32..place.end as u32;
        let piece = |(rank, given): (u32, &Entries)| {
            let piece = given.range(indices.clone()).map(|(index, value)| (*index, *value)).collect();
            if rank == owner { piece } else { self.said(piece, false) }
        };
        oracle::ordered((0..).zip(&self.given).map(piece).collect())
    }

    /// What a rank may get, by one algorithm or another.
    fn outcomes(&self, collective: SparseCollective, rank: u32) -> Outcomes {
        let list = |entries: Entries| entries.into_iter().collect::<Vec<_>>();
        let read = || self.given.iter().map(|entries| self.said(entries.clone(), false));
        let non_zero = |entries: Entries, is_sum: bool| {
            let mut read = self.said(entries, is_sum);
            read.retain(|_, value| *value != 0.0);
            read
        };
        let direct = || -> Vec<_> {
            let owners = 0..self.given.len() as u32;
            owners.flat_map(|owner| non_zero(self.scattered(owner), true)).collect()
        };
        let outcomes = match collective {
            SparseCollective::AllGather => vec![read().flatten().collect()],
            SparseCollective::ReduceScatter => vec![list(self.scattered(rank))],
            // A rank alone sends nothing, and so chooses no algorithm.
            SparseCollective::SplitAllReduce if self.given.len() > 1 => vec![direct()],
            SparseCollective::TopkAllReduce | SparseCollective::SplitAllReduce => {
                vec![list(oracle::ordered(read().collect())), direct()]
            }
            SparseCollective::GtopkAllReduce => {
                vec![list(oracle::gtopk(self.given.clone(), self.k, non_zero))]
            }
            // All of the sum, of which the result is a part.
            SparseCollective::OkTopkAllReduce => vec![list(oracle::ordered(self.given.clone()))],
        };
        outcomes.into()
    }
}

/// The entries that a rank may get, by one algorithm or another.
type Outcomes = Arc<[Vec<(u32, f32)>]>;

/// What ranks may get.
pub struct Expected(Of);

enum Of {
    /// All ranks get the same.
    All(Outcomes),
    /// Each rank gets something else.
    Each(Oracle, SparseCollective),
}

impl Expected {
    /// Of vectors made of the largest of `count` elements on each rank.
    #[must_use]
    pub fn new(
        world_size: u32,
        (collective, wire): (SparseCollective, Wire),
        count: usize,
        density: Density,
    ) -> Self {
        let k = density.entries(count);
        let given = (0..world_size).map(|rank| oracle::largest_of(rank, count, oracle::WIDE, k));
        let oracle = Oracle { given: given.collect(), count, k, wire };
        Self(match collective {
            SparseCollective::ReduceScatter => Of::Each(oracle, collective),
            _ => Of::All(oracle.outcomes(collective, 0)),
        })
    }

    fn of(&self, rank: u32) -> Outcomes {
        match &self.0 {
            Of::All(outcomes) => outcomes.clone(),
            Of::Each(oracle, collective) => oracle.outcomes(*collective, rank),
        }
    }
}

/// This rank's part in a collective on sparse vectors, with what it may get.
pub struct Sparse {
    collective: SparseCollective,
    k: usize,
    local: SparseVec,
    coder: Coder,
    state: OkTopk,
    last: Vec<SparseVec>,
    expected: Outcomes,
}

impl Sparse {
    /// This rank's vectors, made of the largest of `count` elements.
    ///
    /// # Errors
    /// If the vector is too long.
    pub fn new(
        group: &Group,
        which: (SparseCollective, Wire),
        count: usize,
        density: Density,
    ) -> collectives::Result<Self> {
        let expected = Expected::new(group.world_size(), which, count, density);
        Self::expecting(group, which, count, density, &expected)
    }

    /// The same with what is expected of such vectors, which ranks of one process may share.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn expecting(
        group: &Group,
        (collective, wire): (SparseCollective, Wire),
        count: usize,
        density: Density,
        expected: &Expected,
    ) -> collectives::Result<Self> {
        let k = density.entries(count);
        let mut local = SparseVec::new(count);
        top_k(&oracle::vector(group.rank(), count, oracle::WIDE), k, &mut local, &mut TopKScratch::new())?;
        let expected = expected.of(group.rank());
        let (coder, state) = (Coder::new(wire), OkTopk::new(count, k, group.world_size()));
        Ok(Self { collective, k, local, coder, state, last: Vec::new(), expected })
    }
}

impl Sparse {
    /// Ok-Topk does not promise a number of entries: of `k / 2` to `2 k`, or all, these are the largest of
    /// the sum. Where values are rounded, they are at places where the sum has any.
    fn check_about_k(&self, found: &[(u32, f32)]) -> Result<(), Difference> {
        let (sum, count) = (self.expected.concat(), found.len());
        let is_fit = count <= 2 * self.k && (2 * count >= self.k || count == sum.len());
        let largest = |k| oracle::largest(sum.clone(), k).into_iter().collect::<Vec<_>>();
        if !is_fit {
            return Difference::find(found, &largest(self.k));
        }
        if self.coder.wire().is_exact() {
            return Difference::find(found, &largest(count));
        }
        let has = |index: &u32| sum.binary_search_by_key(index, |entry| entry.0).is_ok();
        let known: Vec<_> = found.iter().copied().filter(|(index, _)| has(index)).collect();
        Difference::find(found, &known)
    }
}

/// The algorithm that splits the vector.
const SPLIT: Option<Algorithm> = Some(Algorithm::Direct);

impl Sparse {
    /// Starts the collective and awaits its result.
    async fn started(&mut self, group: &Group) -> collectives::Result<Vec<SparseVec>> {
        let (local, k, coder) = (self.local.clone(), self.k, mem::take(&mut self.coder));
        let outcome;
        (self.coder, outcome) = match self.collective {
            SparseCollective::AllGather => {
                let (call, all) = group.start_sparse_all_gather(local, k, coder).await;
                (call.coder, all)
            }
            SparseCollective::ReduceScatter => {
                let (call, outcome) = group.start_sparse_reduce_scatter(local, k, coder).await;
                (call.coder, outcome.map(|own| vec![own.sum]))
            }
            SparseCollective::TopkAllReduce => {
                let (call, outcome) = group.start_topk_all_reduce(local, k, coder).await;
                (call.coder, outcome.map(|all| vec![all.sum]))
            }
            SparseCollective::SplitAllReduce => {
                let started = group.with_algorithm(SPLIT).start_topk_all_reduce(local, k, coder);
                let (call, outcome) = started.await;
                (call.coder, outcome.map(|all| vec![all.sum]))
            }
            SparseCollective::GtopkAllReduce => {
                let rule = PutBack::Conserving;
                let (call, outcome) = group.start_gtopk_all_reduce(local, k, rule, coder).await;
                (call.coder, outcome.map(|all| vec![all.result]))
            }
            SparseCollective::OkTopkAllReduce => {
                let state = self.state.clone();
                let (call, outcome) = group.start_ok_topk_all_reduce(local, state, coder).await;
                self.state = call.state;
                (call.coder, outcome.map(|all| vec![all.result]))
            }
        };
        outcome
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
            SparseCollective::SplitAllReduce => {
                vec![group.with_algorithm(SPLIT).topk_all_reduce_by(local, k, coder)?.sum]
            }
            SparseCollective::GtopkAllReduce => {
                vec![group.gtopk_all_reduce_by(local, k, PutBack::Conserving, coder)?.result]
            }
            SparseCollective::OkTopkAllReduce => {
                vec![group.ok_topk_all_reduce_by(local, &mut self.state, coder)?.result]
            }
        };
        Ok(())
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        Box::pin(async move {
            self.last = self.started(group).await?;
            Ok(())
        })
    }

    fn check(&self) -> Result<(), Difference> {
        let found = self.last.iter().flat_map(SparseVec::iter).collect::<Vec<_>>();
        if self.collective == SparseCollective::OkTopkAllReduce {
            return self.check_about_k(&found);
        }
        let mut outcomes = self.expected.iter().map(|expected| Difference::find(&found, expected));
        let first = outcomes.next().unwrap_or(Ok(()));
        if outcomes.any(|outcome| outcome.is_ok()) { Ok(()) } else { first }
    }

    fn kept(&self) -> Option<usize> {
        Some(self.k)
    }

    fn has_first_call(&self) -> bool {
        self.collective == SparseCollective::OkTopkAllReduce
    }
}
