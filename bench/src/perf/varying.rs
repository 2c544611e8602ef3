//! Dense collectives of blocks whose lengths differ from rank to rank.

use std::ops::Range;
use std::sync::Arc;

use brevity::{Group, ReduceOp, collectives};

use super::workload::{Difference, Going, Workload};
use crate::collective::{ROOT, Started, Vectors};
use crate::oracle::{self, EXACT};

/// A collective whose blocks have lengths of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varying {
    /// All ranks' blocks to all.
    AllGather,
    /// All ranks' blocks to the root.
    Gather,
    /// To each rank its block of the root's vector.
    Scatter,
    /// From each rank a block to each rank.
    AllToAll,
    /// To each rank its block of the sum of all ranks' vectors.
    ReduceScatter,
}

/// The lengths of three blocks are in these proportions, and so on.
const PROPORTIONS: [usize; 3] = [2, 3, 1];

impl Varying {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::AllGather, Self::Gather, Self::Scatter, Self::AllToAll, Self::ReduceScatter];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllGather => "allgatherv",
            Self::Gather => "gatherv",
            Self::Scatter => "scatterv",
            Self::AllToAll => "alltoallv",
            Self::ReduceScatter => "reducescatterv",
        }
    }

    /// The bytes of all blocks of a row of `bytes`: those of the vector in a reduce-scatter, else of one
    /// block on average.
    #[must_use]
    pub fn longest(self, bytes: usize, world_size: u32) -> usize {
        if self == Self::ReduceScatter { bytes } else { bytes * world_size as usize }
    }

    /// What is expected of a row of `count` elements on all ranks, if that is the same.
    pub(super) fn expected_on_all(self, world_size: u32, count: usize) -> Option<Arc<[f32]>> {
        (self == Self::AllGather).then(|| Ranks::new(self, world_size, count).expected(ROOT).into())
    }
}

/// The blocks of all ranks.
struct Ranks {
    which: Varying,
    world_size: u32,
    /// Elements of all blocks of a rank.
    total: usize,
}

impl Ranks {
    fn new(which: Varying, world_size: u32, count: usize) -> Self {
        Self { which, world_size, total: which.longest(count, world_size) }
    }

    /// The block of rank `to`, of those that rank `from` has for all ranks: only in an all-to-all these
    /// differ from rank to rank.
    fn block(&self, from: u32, to: u32) -> Range<usize> {
        let turn = if self.which == Varying::AllToAll { from } else { 0 };
        let before = |end: u32| -> usize {
            (0..end).map(|rank| PROPORTIONS[(turn as usize + rank as usize) % PROPORTIONS.len()]).sum()
        };
        let all = before(self.world_size);
        self.total * before(to) / all..self.total * before(to + 1) / all
    }

    fn lengths(&self, from: u32) -> Vec<usize> {
        (0..self.world_size).map(|to| self.block(from, to).len()).collect()
    }

    /// The block that rank `from` has for rank `to`, where it is a part of no vector.
    fn contents(&self, from: u32, to: u32) -> Vec<f32> {
        oracle::vector(from * self.world_size + to, self.block(from, to).len(), EXACT)
    }

    /// The block that a rank gathers or that the root scatters to it.
    fn own(&self, rank: u32) -> Vec<f32> {
        self.contents(ROOT, rank)
    }

    fn input(&self, rank: u32) -> Vec<f32> {
        let ranks = 0..self.world_size;
        match self.which {
            Varying::AllGather | Varying::Gather => self.own(rank),
            Varying::Scatter if rank == ROOT => ranks.flat_map(|rank| self.own(rank)).collect(),
            Varying::Scatter => Vec::new(),
            Varying::AllToAll => ranks.flat_map(|to| self.contents(rank, to)).collect(),
            Varying::ReduceScatter => oracle::vector(rank, self.total, EXACT),
        }
    }

    fn expected(&self, rank: u32) -> Vec<f32> {
        let ranks = 0..self.world_size;
        match self.which {
            Varying::Gather if rank != ROOT => Vec::new(),
            Varying::AllGather | Varying::Gather => ranks.flat_map(|rank| self.own(rank)).collect(),
            Varying::Scatter => self.own(rank),
            Varying::AllToAll => ranks.flat_map(|from| self.contents(from, rank)).collect(),
            Varying::ReduceScatter => oracle::sum(self.world_size, self.block(ROOT, rank), EXACT),
        }
    }
}

/// This rank's vectors, with the expected result.
pub struct InLengths {
    which: Varying,
    vectors: Vectors<f32>,
    /// Elements of the blocks of ranks: those that this rank sends, and those that it receives.
    sent: Vec<usize>,
    received: Vec<usize>,
    expected: Arc<[f32]>,
    is_checked: bool,
}

impl InLengths {
    /// The vectors of this rank for a row of `count` elements, with what is expected on all ranks, if that is
    /// known.
    pub(super) fn new(group: &Group, which: Varying, count: usize, expected: Option<Arc<[f32]>>) -> Self {
        let (rank, ranks) = (group.rank(), Ranks::new(which, group.world_size(), count));
        let expected = expected.unwrap_or_else(|| ranks.expected(rank).into());
        let vectors = Vectors { input: ranks.input(rank), output: vec![0.0; expected.len()] };
        let received = (0..group.world_size()).map(|from| ranks.block(from, rank).len()).collect();
        Self { which, vectors, sent: ranks.lengths(rank), received, expected, is_checked: true }
    }

    fn begin(&mut self, group: &Group) -> Started<f32> {
        let Vectors { input, output } = std::mem::take(&mut self.vectors);
        let lengths = &self.sent[..];
        Started::apart(match self.which {
            Varying::AllGather => group.start_all_gather_v(input, output, lengths),
            Varying::Gather => group.start_gather_v(input, output, lengths, ROOT),
            Varying::Scatter => group.start_scatter_v(input, output, lengths, ROOT),
            Varying::AllToAll => group.start_all_to_all_v(input, output, lengths, &self.received),
            Varying::ReduceScatter => group.start_reduce_scatter_v(input, output, lengths, ReduceOp::Sum),
        })
    }
}

impl Workload for InLengths {
    fn prepare(&mut self) {
        if self.is_checked {
            self.vectors.output.fill(0.0);
        }
    }

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        let Vectors { input, output } = &mut self.vectors;
        let lengths = &self.sent[..];
        match self.which {
            Varying::AllGather => group.all_gather_v(input, output, lengths),
            Varying::Gather => group.gather_v(input, output, lengths, ROOT),
            Varying::Scatter => group.scatter_v(input, output, lengths, ROOT),
            Varying::AllToAll => group.all_to_all_v(input, output, lengths, &self.received),
            Varying::ReduceScatter => group.reduce_scatter_v(input, output, lengths, ReduceOp::Sum),
        }
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let started = self.begin(group);
        Box::pin(async move {
            let (vectors, result) = started.ended().await;
            self.vectors = vectors;
            result
        })
    }

    fn check(&self) -> Result<(), Difference> {
        Difference::find(&self.vectors.output, &self.expected)
    }

    fn settle(&mut self) {
        self.is_checked = false;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use brevity::Settings;
    use brevity::transport::local;

    use super::*;

    #[test]
    fn blocks_cover_a_vector_and_differ() {
        for (which, world_size, count) in
            Varying::ALL.into_iter().flat_map(|which| [(which, 1, 5), (which, 4, 0), (which, 7, 100)])
        {
            let ranks = Ranks::new(which, world_size, count);
            for from in 0..world_size {
                let mut end = 0;
                for to in 0..world_size {
                    let block = ranks.block(from, to);
                    assert_eq!(block.start, end);
                    end = block.end;
                }
                assert_eq!(end, which.longest(count, world_size), "{which:?}");
            }
            let lengths = ranks.lengths(0);
            assert!(count < 100 || lengths[0] != lengths[1] && lengths[1] != lengths[2], "{lengths:?}");
        }
    }

    /// Blocking and started.
    #[test]
    fn calls_give_what_is_expected() {
        for world_size in 1..=4 {
            thread::scope(|scope| {
                for rank in local::world(world_size) {
                    scope.spawn(move || {
                        let group = Group::new(Box::new(rank), Settings::default());
                        for (which, count) in
                            Varying::ALL.into_iter().flat_map(|which| [(which, 0), (which, 13), (which, 500)])
                        {
                            let mut work = InLengths::new(&group, which, count, None);
                            work.run(&group).unwrap();
                            assert_eq!(work.check(), Ok(()), "{which:?} of {count}");
                            work.prepare();
                            let (vectors, result) = work.begin(&group).wait();
                            result.unwrap();
                            work.vectors = vectors;
                            assert_eq!(work.check(), Ok(()), "{which:?} of {count}, started");
                        }
                    });
                }
            });
        }
    }
}
