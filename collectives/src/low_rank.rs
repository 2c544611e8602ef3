//! Low-rank all-reduce: the mean of all ranks' matrices by the factors of PowerSGD.
//!
//! Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
//! optimization", NeurIPS 2019, algorithm 1. One all-reduce carries the left factors of all matrices, and
//! another the right factors: `4 r (rows + cols)` bytes per matrix and rank, times the factor of the
//! all-reduce.

use std::borrow::BorrowMut;

use brevity_compress::in_standard_float_mode;
use brevity_compress::low_rank::{Batch, Factors, LowRank, MatrixError, PowerSgd};
use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::ReduceOp;
use crate::dense::{AllReduce, Collective, all_reduce};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Row, Work};

/// A row of an algorithm of all-reduces.
macro_rules! row {
    ($algorithm:ident) => {
        Row {
            algorithm: Algorithm::$algorithm,
            fits: |work, ground| {
                let (row, works) = all_reduces(Algorithm::$algorithm, work);
                works.iter().all(|work| (row.fits)(work, ground))
            },
            estimate: |work, ground| {
                let (row, [left, right]) = all_reduces(Algorithm::$algorithm, work);
                (row.estimate)(&left, ground).then((row.estimate)(&right, ground))
            },
        }
    };
}

/// What ranks of a low-rank all-reduce must agree on: the shapes of the matrices (different shapes can have
/// factors of the same length) and the origin of their states (different states would diverge silently).
#[must_use]
pub fn describe(batch: &Batch) -> Description {
    let of_state = |state: &LowRank| {
        // Loaded states have their own generators.
        let seed = if batch.origin() == 0 { state.seed() } else { 0 };
        [state.rows() as u64, state.cols() as u64, state.rank() as u64, seed]
    };
    let words = batch.states().iter().flat_map(of_state).chain([batch.origin()]);
    let plan: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    Description::of_plan(Operation::LOW_RANK_ALL_REDUCE, &plan)
}

/// Both all-reduces by each algorithm that one may take. Which they take is chosen for each.
pub(crate) const ROWS: &[Row] = &[row!(Doubling), row!(Halving), row!(Direct), row!(Ring), row!(Hosts)];

/// What a low-rank all-reduce of a matrix has to do.
#[must_use]
pub(crate) fn work(rows: usize, cols: usize, rank: usize) -> Work {
    let rank = rank.min(rows).min(cols);
    let bytes = |side: usize| side.saturating_mul(rank).saturating_mul(size_of::<f32>());
    let (left, right) = (bytes(rows), bytes(cols));
    let dim = rows.saturating_mul(cols);
    Work { bytes: left, wide_bytes: left, second_bytes: right, entries: rank, dim, ..Work::default() }
}

/// The row of the all-reduces, and their works.
fn all_reduces(algorithm: Algorithm, work: &Work) -> (&'static Row, [Work; 2]) {
    let row = AllReduce::ROWS.iter().find(|row| row.algorithm == algorithm);
    let row = row.unwrap_or_else(|| unreachable!("{algorithm} is none of an all-reduce"));
    (row, [work.bytes, work.second_bytes].map(|bytes| Work { bytes, wide_bytes: bytes, ..Work::default() }))
}

/// Computes the low-rank factors of the mean of all ranks' matrices (row-major, one per state of the batch).
///
/// `tensors` are the numbers by which errors name the matrices. The states keep their right factors: the
/// caller warms them with the mean if it keeps the result. States must have equal bits on all ranks, so the
/// call's description must include [`describe`], and a caller that warms states or reconstructs shared
/// results does so in [`in_standard_float_mode`].
///
/// # Errors
/// Those of [`check`], with which this rank leaves the call; [`Error::NonFinite`] and [`Error::Overflow`] on
/// all ranks, also where an element of the mean `P Q^T` might not be finite, by a bound; errors of the
/// transport.
pub async fn low_rank_all_reduce(
    call: &Call<'_, '_>,
    batch: &mut Batch,
    matrices: &[&[f32]],
    tensors: &[u32],
) -> Result<Factors> {
    call.computed(check(batch, matrices))?;
    let mut factors = Factors { p: call.zeros(batch.p_len())?, ..Factors::default() };
    let outcome = in_standard_float_mode(|| batch.left_factors(matrices, &mut factors.p));
    poison_unless(outcome, &mut factors.p, call, tensors);
    all_reduce_factors(call, Plain { batch, matrices }, factors, tensors, &mut []).await
}

/// Like [`low_rank_all_reduce`], with error feedback: for the batch's accumulated gradients, whose packed
/// left factors are `factors.p`. The memory of the other factors is reused, so passing those of the last step
/// avoids allocation. The caller commits the factors if it keeps the result. A poisoned rank passes zeros in
/// `p` and in `vectors`.
///
/// `vectors` are values that do not shrink, as those of biases. They travel behind the left factors, in the
/// same message, and become their sums over all ranks, with the bits of a dense all-reduce. Sums that are not
/// finite are not looked for. All ranks pass as many.
///
/// # Errors
/// As for [`low_rank_all_reduce`], also where what a rank's own factors leave of its matrix might not be
/// finite; `vectors` is unspecified then.
pub async fn powersgd_all_reduce(
    call: &Call<'_, '_>,
    powersgd: &mut PowerSgd,
    factors: Factors,
    tensors: &[u32],
    vectors: &mut [f32],
) -> Result<Factors> {
    let expected = powersgd.batch().p_len();
    if factors.p.len() != expected {
        let found = factors.p.len();
        return call.computed(Err(Error::Length { what: "the left factors", found, expected }));
    }
    all_reduce_factors(call, powersgd, factors, tensors, vectors).await
}

/// The mean of all ranks' matrices, as a call of a group; see [`low_rank_all_reduce`].
#[derive(Debug)]
pub struct LowRankAllReduce<B = Batch, M = Vec<f32>> {
    /// The states, one for each matrix.
    pub batch: B,
    /// The matrices of this rank, row-major.
    pub matrices: Vec<M>,
}

impl<B: BorrowMut<Batch> + Send + Sync, M: AsRef<[f32]> + Send + Sync> Compressed for LowRankAllReduce<B, M> {
    type Output = Factors;

    const OPERATION: Operation = Operation::LOW_RANK_ALL_REDUCE;

    fn check(&self) -> Result<()> {
        check(self.batch.borrow(), &slices(&self.matrices))
    }

    fn description(&self) -> Description {
        describe(self.batch.borrow())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<Factors> {
        let matrices = slices(&self.matrices);
        let tensors: Vec<u32> = (0..matrices.len() as u32).collect();
        low_rank_all_reduce(call, self.batch.borrow_mut(), &matrices, &tensors).await
    }
}

fn slices<M: AsRef<[f32]>>(matrices: &[M]) -> Vec<&[f32]> {
    matrices.iter().map(AsRef::as_ref).collect()
}

/// The computations between and after the two all-reduces.
trait Phases {
    fn states(&mut self) -> &mut Batch;
    fn project(&mut self, p: &[f32], q: &mut [f32]) -> std::result::Result<(), MatrixError>;
}

/// Matrices of the caller.
struct Plain<'a> {
    batch: &'a mut Batch,
    matrices: &'a [&'a [f32]],
}

impl Phases for Plain<'_> {
    fn states(&mut self) -> &mut Batch {
        self.batch
    }

    fn project(&mut self, p: &[f32], q: &mut [f32]) -> std::result::Result<(), MatrixError> {
        self.batch.right_factors(self.matrices, p, q)
    }
}

impl Phases for &mut PowerSgd {
    fn states(&mut self) -> &mut Batch {
        self.batch_mut()
    }

    fn project(&mut self, p: &[f32], q: &mut [f32]) -> std::result::Result<(), MatrixError> {
        self.right_factors(p, q)
    }
}

async fn all_reduce_factors(
    call: &Call<'_, '_>,
    mut phases: impl Phases,
    factors: Factors,
    tensors: &[u32],
    vectors: &mut [f32],
) -> Result<Factors> {
    let Factors { p, mut own_q, mut q } = factors;
    let mut p = mean(call, p, vectors).await?;
    call.check_poison()?;
    // All ranks have the same bits, and so the same outcome.
    in_standard_float_mode(|| phases.states().orthonormalise(&mut p))
        .map_err(|error| Error::Overflow { tensor: tensors[error.position] })?;
    call.resize(&mut own_q, phases.states().q_len())?;
    let outcome = in_standard_float_mode(|| phases.project(&p, &mut own_q));
    poison_unless(outcome, &mut own_q, call, tensors);
    call.resize(&mut q, own_q.len())?;
    q.copy_from_slice(&own_q);
    let q = mean(call, q, &mut []).await?;
    call.check_poison()?;
    match in_standard_float_mode(|| phases.states().first_overflow(&p, &q)) {
        Some(position) => Err(Error::Overflow { tensor: tensors[position] }),
        None => Ok(Factors { p, own_q, q }),
    }
}

/// Poisons the call unless a factor is finite, and replaces it by zeros.
fn poison_unless(
    outcome: std::result::Result<(), MatrixError>,
    factors: &mut [f32],
    call: &Call<'_, '_>,
    tensors: &[u32],
) {
    if let Err(error) = outcome {
        factors.fill(0.0);
        call.set_poison(tensors[error.position]);
    }
}

/// The mean of all ranks' factors. The `vectors` travel behind them, and become sums.
async fn mean(call: &Call<'_, '_>, mut factors: Vec<f32>, vectors: &mut [f32]) -> Result<Vec<f32>> {
    let length = factors.len();
    call.resize(&mut factors, length + vectors.len())?;
    factors[length..].copy_from_slice(vectors);
    let mut sums = all_reduce(call, Chunk::from(factors), ReduceOp::Sum).await?.into_vec();
    vectors.copy_from_slice(&sums[length..]);
    sums.truncate(length);
    let ranks = call.world_size() as f32;
    in_standard_float_mode(|| sums.iter_mut().for_each(|sum| *sum /= ranks));
    Ok(sums)
}

/// Checks the arguments of a [`low_rank_all_reduce`]. A rank whose call ends before it has sent anything
/// leaves the others waiting, so check before the call is made.
///
/// # Errors
/// [`Error::Length`] when a matrix does not fit its state.
pub fn check(batch: &Batch, matrices: &[&[f32]]) -> Result<()> {
    let states = batch.states();
    if states.len() != matrices.len() {
        return Err(Error::Length {
            what: "the list of matrices",
            found: matrices.len(),
            expected: states.len(),
        });
    }
    for (state, matrix) in states.iter().zip(matrices) {
        let expected = state.rows() * state.cols();
        if matrix.len() != expected {
            return Err(Error::Length { what: "a matrix", found: matrix.len(), expected });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use brevity_compress::generator::Generator;

    use super::*;
    use crate::group::Group;

    /// The factors are finite: `P` spans columns in which a constant vector is 1.6 times as large somewhere.
    #[test]
    fn a_mean_that_is_not_finite_is_an_overflow() {
        let outcome = |first: f32| {
            let (a, b) = (0.5406, -0.1666);
            let columns = [[0.6, 0.6], [a, b], [b, a], [a, b], [b, a]];
            let matrix: Vec<f32> = columns.iter().flat_map(|[p, q]| [first, *p, *q]).collect();
            let mut state = LowRank::new(5, 3, 2, 1).unwrap();
            state.restore(&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0], Generator::new(1)).unwrap();
            let batch = Batch::new(vec![LowRank::new(2, 2, 1, 1).unwrap(), state]);
            let call = LowRankAllReduce { batch, matrices: vec![vec![1.0; 4], matrix] };
            Group::solo().start_compressed(call).wait().1
        };
        assert!(outcome(0.1 * f32::MAX).is_ok());
        let error = outcome(0.65 * f32::MAX).unwrap_err();
        assert!(matches!(error, Error::Overflow { tensor: 1 }), "{error}");
    }
}
