//! Low-rank all-reduce: the mean of all ranks' matrices, by the factors of PowerSGD.
//!
//! Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
//! optimization", NeurIPS 2019, algorithm 1. All matrices' left factors travel in one all-reduce, then all
//! right factors in another: `4 r (rows + cols)` bytes a matrix and rank, times the all-reduce's own factor.

use brevity_compress::in_standard_float_mode;
use brevity_compress::low_rank::{Batch, Factors, LowRank, MatrixError, PowerSgd};
use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::choose::Cost;
use crate::dense::all_reduce;
use crate::description::{Description, Operation};
use crate::element::Reduction;
use crate::error::{Error, Result};

/// What ranks of a low-rank all-reduce must agree on: the matrices' shapes, since other shapes can have
/// factors of the same length, and where their states come from, since states that differ would part the
/// ranks without a word.
#[must_use]
pub fn describe(batch: &Batch) -> Description {
    let of_state = |state: &LowRank| {
        // What was loaded brings its own generators.
        let seed = if batch.origin() == 0 { state.seed() } else { 0 };
        [state.rows() as u64, state.cols() as u64, state.rank() as u64, seed]
    };
    let words = batch.states().iter().flat_map(of_state).chain([batch.origin()]);
    let plan: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    Description::of_plan(Operation::LOW_RANK_ALL_REDUCE, &plan)
}

/// Finds the low-rank factors of the mean of all ranks' matrices (row-major, one for each state of the
/// batch).
///
/// `tensors` are the numbers that errors name the matrices by. The states keep their right factors: the
/// caller warms them with the mean once it keeps the result. States have equal bits on all ranks: the call's
/// description must say what [`describe`] does of them. So a caller that warms states, or reconstructs what
/// ranks are to have alike, does so in [`in_standard_float_mode`].
///
/// # Errors
/// [`Error::Length`] when a matrix does not fit its state; [`Error::NonFinite`] and [`Error::Overflow`], on
/// all ranks alike; else what the transport reports.
pub async fn low_rank_all_reduce(
    call: &Call<'_, '_>,
    batch: &mut Batch,
    matrices: &[&[f32]],
    tensors: &[u32],
    cost: &Cost,
) -> Result<Factors> {
    check(batch, matrices)?;
    let mut factors = Factors { p: vec![0.0; batch.p_len()], ..Factors::default() };
    let outcome = in_standard_float_mode(|| batch.left_factors(matrices, &mut factors.p));
    poison_unless(outcome, &mut factors.p, call, tensors);
    all_reduce_factors(call, Plain { batch, matrices }, factors, tensors, cost).await
}

/// The same with error feedback: for what the batch has accumulated, whose packed left factors are
/// `factors.p`. The memory of the other factors is used again, so that a caller who hands in those of the
/// last step allocates nothing. The caller commits the factors once it keeps the result. A rank that is
/// poisoned takes part with zeros in `p`.
///
/// # Errors
/// As [`low_rank_all_reduce`].
pub async fn powersgd_all_reduce(
    call: &Call<'_, '_>,
    powersgd: &mut PowerSgd,
    factors: Factors,
    tensors: &[u32],
    cost: &Cost,
) -> Result<Factors> {
    let expected = powersgd.batch().p_len();
    if factors.p.len() != expected {
        return Err(Error::Length { what: "the left factors", found: factors.p.len(), expected });
    }
    all_reduce_factors(call, powersgd, factors, tensors, cost).await
}

/// The phases between and after the two messages.
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
    cost: &Cost,
) -> Result<Factors> {
    let Factors { p, mut own_q, mut q } = factors;
    let mut p = mean(call, p, cost).await?;
    call.check_poison()?;
    // The same bits on all ranks, and so the same outcome.
    in_standard_float_mode(|| phases.states().orthonormalise(&mut p))
        .map_err(|error| Error::Overflow { tensor: tensors[error.position] })?;
    own_q.resize(phases.states().q_len(), 0.0);
    let outcome = in_standard_float_mode(|| phases.project(&p, &mut own_q));
    poison_unless(outcome, &mut own_q, call, tensors);
    q.clone_from(&own_q);
    let q = mean(call, q, cost).await?;
    call.check_poison()?;
    match q.iter().position(|value| !value.is_finite()) {
        Some(place) => Err(Error::Overflow { tensor: tensors[phases.states().position_in_q(place)] }),
        None => Ok(Factors { p, own_q, q }),
    }
}

/// Where a factor came out not finite, says so to all ranks, and takes part with zeros.
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

async fn mean(call: &Call<'_, '_>, factors: Vec<f32>, cost: &Cost) -> Result<Vec<f32>> {
    let chunk = all_reduce(call, Chunk::from(factors), Reduction::Average, cost).await?;
    Ok(chunk.into_vec())
}

fn check(batch: &Batch, matrices: &[&[f32]]) -> Result<()> {
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
