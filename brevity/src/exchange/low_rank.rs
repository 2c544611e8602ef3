//! Tensors that travel as low-rank factors: all left factors together, then all right factors.

use brevity_collectives::low_rank::{Factors, describe, low_rank_all_reduce, pieces};
use brevity_collectives::{Call, Cost, Description, Result};
use brevity_compress::low_rank::LowRank;

use super::{Ending, add_finite};

/// All low-rank tensors of an exchange.
#[derive(Default)]
pub(super) struct LowRankLane {
    tensors: Vec<usize>,
    /// The same, as errors name them.
    numbers: Vec<u32>,
    states: Vec<LowRank>,
    /// The states as they were built.
    first_states: Vec<LowRank>,
    /// For each tensor what has not been delivered: before the collective, the error and this step's gradient.
    deltas: Vec<Vec<f32>>,
    /// Whether this step's gradient is in the delta.
    added: Vec<bool>,
    factors: Factors,
}

impl LowRankLane {
    pub(super) fn add(&mut self, tensor: usize, state: LowRank) {
        self.tensors.push(tensor);
        self.numbers.push(tensor as u32);
        self.deltas.push(vec![0.0; state.rows() * state.cols()]);
        self.first_states.push(state.clone());
        self.states.push(state);
        self.added.push(false);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Forgets the warm start.
    pub(super) fn restart(&mut self) {
        self.states.clone_from(&self.first_states);
    }

    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        let mut bad = None;
        for ((&tensor, delta), added) in self.tensors.iter().zip(&mut self.deltas).zip(&mut self.added) {
            *added = add_finite(delta, gradients[tensor]);
            if !*added {
                bad = bad.or(Some(tensor as u32));
            }
        }
        bad
    }

    pub(super) fn describe(&self) -> Description {
        describe(&self.states)
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool, cost: &Cost) -> Result<()> {
        let zeros: Vec<f32> =
            if poisoned { vec![0.0; self.deltas.iter().map(Vec::len).max().unwrap_or(0)] } else { Vec::new() };
        let matrices: Vec<&[f32]> =
            self.deltas.iter().map(|delta| if poisoned { &zeros[..delta.len()] } else { &delta[..] }).collect();
        let call = call.describe(self.describe());
        self.factors = low_rank_all_reduce(&call, &mut self.states, &matrices, &self.numbers, cost).await?;
        Ok(())
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [&mut [f32]]) {
        match ending {
            Ending::Done => self.commit(gradients),
            Ending::Failed => {}
            Ending::Poisoned => self.withdraw(gradients),
        }
    }

    /// Writes the approximation of the mean, and keeps what this rank's own projection misses (the paper's rule).
    fn commit(&mut self, gradients: &mut [&mut [f32]]) {
        let Self { tensors, states, deltas, factors, .. } = self;
        let Factors { p, own_q, q } = factors;
        let lefts = pieces(states, p, LowRank::p_len);
        let own_rights = pieces(states, own_q, LowRank::q_len);
        let rights = pieces(states, q, LowRank::q_len);
        let factors = lefts.into_iter().zip(own_rights).zip(rights);
        for (position, ((p, own_q), q)) in factors.enumerate() {
            let kept = states[position].subtract_reconstruction(p, own_q, &mut deltas[position]);
            let written = states[position].reconstruct(p, q, gradients[tensors[position]]);
            let warmed = states[position].set_q(q);
            debug_assert!(kept.is_ok() && written.is_ok() && warmed.is_ok(), "the factors have their state's shape");
        }
    }

    /// Takes this step's gradients out again.
    fn withdraw(&mut self, gradients: &[&mut [f32]]) {
        for ((&tensor, delta), _) in
            self.tensors.iter().zip(&mut self.deltas).zip(&self.added).filter(|(_, added)| **added)
        {
            for (sum, gradient) in delta.iter_mut().zip(gradients[tensor].iter()) {
                *sum -= gradient;
            }
        }
    }

    pub(super) fn residual(&self, tensor: usize) -> Option<Vec<f32>> {
        let position = self.tensors.iter().position(|&known| known == tensor)?;
        Some(self.deltas[position].clone())
    }
}
