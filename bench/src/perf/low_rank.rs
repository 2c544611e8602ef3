//! All-reduces of matrices by low-rank factors: multiplying is timed.

use std::mem;
use std::sync::Arc;

use brevity::compress::low_rank::{Batch, Factors, LowRank};
use brevity::{Group, collectives};

use super::workload::{Difference, Going, Workload};
use crate::{Error, Result, oracle};

/// The name on the command line.
pub(super) const NAME: &str = "lowrank-allreduce";

/// The seed of the first right factor, the same on all ranks.
const SEED: u64 = 7;

/// How far an element of the mean may be from what is expected, in shares of the largest.
const TOLERANCE: f32 = 1e-3;

/// A matrix `A B^T` of low rank. The matrix of each rank is a multiple of it, and so is their mean, of which
/// factors of that rank lose nothing.
#[derive(Clone, Debug)]
pub struct Factored {
    rows: usize,
    cols: usize,
    rank: usize,
    /// `A`, `rows x rank`, row-major.
    left: Vec<f32>,
    /// `B`, `cols x rank`, row-major.
    right: Vec<f32>,
}

impl Factored {
    /// A nearly square matrix of at most `count` elements.
    #[must_use]
    pub fn new(count: usize, rank: usize) -> Self {
        let rows = count.isqrt().max(1);
        let cols = count / rows;
        let rank = rank.min(rows).min(cols);
        let side = |number, length: usize| {
            let mut side = oracle::vector(number, length * rank, oracle::WIDE);
            side.iter_mut().for_each(|value| *value /= oracle::WIDE as f32);
            side
        };
        Self { rows, cols, rank, left: side(0, rows), right: side(1, cols) }
    }

    /// The matrix times `share`, row-major.
    fn times(&self, share: f32) -> impl Iterator<Item = f32> {
        product((self.rank, self.cols), &self.left, &self.right).map(move |value| share * value)
    }
}

/// The elements of `A B^T`, row-major. Both factors have `rank` columns, the second one `cols` rows.
fn product((rank, cols): (usize, usize), left: &[f32], right: &[f32]) -> impl Iterator<Item = f32> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let rows = left.len().checked_div(rank).unwrap_or(0);
    let row = move |row: usize| &left[row * rank..(row + 1) * rank];
    let column = move |column: usize| &right[column * rank..(column + 1) * rank];
    (0..rows).flat_map(move |i| (0..cols).map(move |j| dot(row(i), column(j))))
}

/// By how much a rank multiplies the matrix.
fn share(rank: u32) -> f32 {
    (rank % 7 + 1) as f32
}

/// This rank's part, with the expected result.
pub struct InFactors {
    matrix: Vec<f32>,
    batch: Batch,
    last: Factors,
    factored: Arc<Factored>,
    /// The mean of all ranks' shares.
    mean_share: f32,
}

impl InFactors {
    /// This rank's multiple of the matrix.
    ///
    /// # Errors
    /// If the system has no memory for the factors.
    pub fn new(group: &Group, factored: Arc<Factored>) -> Result<Self> {
        let Factored { rows, cols, rank, .. } = *factored;
        let state = LowRank::new(rows, cols, rank, SEED);
        let state = state.map_err(|error| Error::contestant(NAME, error.to_string()))?;
        let sum: f32 = (0..group.world_size()).map(share).sum();
        Ok(Self {
            matrix: factored.times(share(group.rank())).collect(),
            batch: Batch::new(vec![state]),
            last: Factors::default(),
            mean_share: sum / group.world_size() as f32,
            factored,
        })
    }
}

impl Workload for InFactors {
    fn prepare(&mut self) {}

    fn run(&mut self, group: &Group) -> collectives::Result<()> {
        self.last = group.low_rank_all_reduce(&mut self.batch, &[&self.matrix])?;
        Ok(())
    }

    fn start<'a>(&'a mut self, group: &'a Group) -> Going<'a> {
        let (batch, matrix) = (mem::take(&mut self.batch), mem::take(&mut self.matrix));
        let started = group.start_low_rank_all_reduce(batch, vec![matrix]);
        Box::pin(async move {
            let (mut given, factors) = started.await;
            self.batch = given.batch;
            self.matrix = given.matrices.pop().unwrap_or_default();
            self.last = factors?;
            Ok(())
        })
    }

    fn check(&self) -> Result<(), Difference> {
        let Factored { rank, cols, .. } = *self.factored;
        let expected = || self.factored.times(self.mean_share);
        let largest = expected().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let found = product((rank, cols), &self.last.p, &self.last.q);
        let is_near = |(found, expected): (f32, f32)| (found - expected).abs() <= TOLERANCE * largest;
        if self.last.p.len() != self.factored.left.len() || self.last.q.len() != self.factored.right.len() {
            return Difference::find(
                &[self.last.p.len(), self.last.q.len()],
                &[self.factored.left.len(), self.factored.right.len()],
            );
        }
        let wrong = found.zip(expected()).enumerate().find(|(_, pair)| !is_near(*pair));
        wrong.map_or(Ok(()), |(index, (found, expected))| {
            Err(Difference { index, found: found.to_string(), expected: expected.to_string() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_another_share_is_wrong() {
        let group = Group::solo();
        for (count, rank) in [(1, 1), (2, 4), (12, 2), (1000, 4), (5000, 40)] {
            let mut part = InFactors::new(&group, Arc::new(Factored::new(count, rank))).unwrap();
            part.run(&group).unwrap();
            assert_eq!(part.check(), Ok(()), "{count} elements, rank {rank}");
            part.mean_share = 1.01;
            assert!(part.check().is_err(), "{count} elements, rank {rank}");
            part.last = Factors::default();
            assert!(part.check().is_err(), "{count} elements, rank {rank}");
        }
    }

    #[test]
    fn the_matrix_is_nearly_square() {
        let sides = |count| {
            let Factored { rows, cols, rank, .. } = Factored::new(count, 4);
            (rows, cols, rank)
        };
        assert_eq!(sides(25_000_000), (5000, 5000, 4));
        assert_eq!(sides(6), (2, 3, 2));
        assert_eq!((sides(1), sides(0)), ((1, 1, 1), (1, 0, 0)));
    }
}
