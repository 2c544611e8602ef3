//! Low-rank all-reduce: the mean of all ranks' matrices, by the factors of PowerSGD.
//!
//! Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
//! NeurIPS 2019, algorithm 1. All matrices' left factors travel in one all-reduce, then all right factors in another:
//! `4 r (rows + cols)` bytes a matrix and rank, times the all-reduce's own factor.

use brevity_compress::low_rank::LowRank;
use ucx_sys_wrap::buffer::Chunk;

use crate::call::Call;
use crate::choose::Cost;
use crate::dense::{all_reduce, describe_all_reduce};
use crate::description::{Description, Operation};
use crate::element::{Element, Reduction};
use crate::error::{Error, Result};

/// What ranks of a low-rank all-reduce must agree on.
#[must_use]
pub fn describe(states: &[LowRank]) -> Description {
    let factors = states.iter().map(|state| state.p_len() + state.q_len()).sum();
    Description::new(Operation::LOW_RANK_ALL_REDUCE, f32::NUMBER, factors)
}

/// The factors of a low-rank all-reduce, one after the other for all matrices.
#[derive(Clone, Debug, Default)]
pub struct Factors {
    /// The orthonormal left factors, the same bits on every rank.
    pub p: Vec<f32>,
    /// This rank's own right factors: `p` times their transpose is the projection of its own matrices.
    pub own_q: Vec<f32>,
    /// The mean of all ranks' right factors, the same bits on every rank.
    pub q: Vec<f32>,
}

/// Finds the low-rank factors of the mean of all ranks' matrices (row-major, one for each state).
///
/// `tensors` are the numbers that errors name the matrices by. The states keep their right factors: the caller warms
/// them with the mean once it keeps the result. States have equal bits on all ranks.
///
/// # Errors
/// [`Error::Length`] when a matrix does not fit its state; [`Error::NonFinite`] and [`Error::Overflow`], on all ranks
/// alike; else what the transport reports.
pub async fn low_rank_all_reduce(
    call: &Call<'_, '_>,
    states: &mut [LowRank],
    matrices: &[&[f32]],
    tensors: &[u32],
    cost: &Cost,
) -> Result<Factors> {
    check(states, matrices)?;
    let mut p = vec![0.0; states.iter().map(LowRank::p_len).sum()];
    for (position, p) in pieces(states, &mut p, LowRank::p_len).into_iter().enumerate() {
        poison_unless(states[position].left_factor(matrices[position], p), p, call, tensors[position]);
    }
    let mut p = mean(call, p, cost).await?;
    call.check_poison()?;
    for (position, p) in pieces(states, &mut p, LowRank::p_len).into_iter().enumerate() {
        // The same bits on all ranks, and so the same outcome.
        states[position].orthonormalise(p).map_err(|_| Error::Overflow { tensor: tensors[position] })?;
    }
    let mut own_q = vec![0.0; states.iter().map(LowRank::q_len).sum()];
    let lefts = pieces(states, &mut p, LowRank::p_len);
    let rights = pieces(states, &mut own_q, LowRank::q_len);
    for (position, (p, q)) in lefts.into_iter().zip(rights).enumerate() {
        poison_unless(states[position].right_factor(matrices[position], p, q), q, call, tensors[position]);
    }
    let mut q = mean(call, own_q.clone(), cost).await?;
    call.check_poison()?;
    for (position, q) in pieces(states, &mut q, LowRank::q_len).into_iter().enumerate() {
        if !q.iter().all(|value| value.is_finite()) {
            return Err(Error::Overflow { tensor: tensors[position] });
        }
    }
    Ok(Factors { p, own_q, q })
}

/// Where a factor came out not finite, says so to all ranks, and takes part with zeros.
fn poison_unless(
    outcome: std::result::Result<(), brevity_compress::Error>,
    factor: &mut [f32],
    call: &Call<'_, '_>,
    tensor: u32,
) {
    if outcome.is_err() || !factor.iter().all(|value| value.is_finite()) {
        factor.fill(0.0);
        call.set_poison(tensor);
    }
}

async fn mean(call: &Call<'_, '_>, factors: Vec<f32>, cost: &Cost) -> Result<Vec<f32>> {
    let call = call.describe(describe_all_reduce::<f32>(factors.len(), Reduction::Average));
    let chunk = all_reduce(&call, Chunk::from(factors), Reduction::Average, cost).await?;
    Ok(chunk.into_vec())
}

/// The part of each state in vectors that are laid one after the other.
pub fn pieces<'a>(
    states: &[LowRank],
    mut all: &'a mut [f32],
    length: impl Fn(&LowRank) -> usize,
) -> Vec<&'a mut [f32]> {
    states
        .iter()
        .map(|state| {
            let (piece, rest) = std::mem::take(&mut all).split_at_mut(length(state));
            all = rest;
            piece
        })
        .collect()
}

fn check(states: &[LowRank], matrices: &[&[f32]]) -> Result<()> {
    if states.len() != matrices.len() {
        return Err(Error::Length { what: "the list of matrices", found: matrices.len(), expected: states.len() });
    }
    for (state, matrix) in states.iter().zip(matrices) {
        let expected = state.rows() * state.cols();
        if matrix.len() != expected {
            return Err(Error::Length { what: "a matrix", found: matrix.len(), expected });
        }
    }
    Ok(())
}
