//! The lanes of an exchange: each moves the tensors of one kind.

use brevity_collectives::{Call, Description, Error as Collective};

use super::Ending;
use super::dense::DenseLane;
use super::low_rank::LowRankLane;
use super::quantised::QuantisedLane;
use super::sparse::SparseLane;
use super::vote::VoteLane;

/// Tensors that travel together.
pub(super) enum Lane {
    Dense(DenseLane),
    Sparse(SparseLane),
    LowRank(LowRankLane),
    Quantised(QuantisedLane),
    Vote(VoteLane),
}

impl Lane {
    /// Adds the gradients to the residuals. Returns the first tensor with a value that is not finite; that
    /// tensor is not added.
    pub(super) fn accumulate(&mut self, gradients: &[&mut [f32]]) -> Option<u32> {
        match self {
            Self::Dense(lane) => lane.accumulate(gradients),
            Self::Sparse(lane) => lane.accumulate(gradients),
            Self::LowRank(lane) => lane.accumulate(gradients),
            Self::Quantised(lane) => lane.accumulate(gradients),
            Self::Vote(lane) => lane.accumulate(gradients),
        }
    }

    /// What all ranks must agree on for this lane.
    pub(super) fn describe(&self) -> Description {
        match self {
            Self::Dense(lane) => lane.describe(),
            Self::Sparse(lane) => lane.describe(),
            Self::LowRank(lane) => lane.describe(),
            Self::Quantised(lane) => lane.describe(),
            Self::Vote(lane) => lane.describe(),
        }
    }

    /// Runs the collective. A poisoned rank contributes no entries.
    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<(), Collective> {
        match self {
            Self::Dense(lane) => lane.exchange(call, poisoned).await,
            Self::Sparse(lane) => lane.exchange(call, poisoned).await,
            Self::LowRank(lane) => lane.exchange(call, poisoned).await,
            Self::Quantised(lane) => lane.exchange(call, poisoned).await,
            Self::Vote(lane) => lane.exchange(call, poisoned).await,
        }
    }

    /// Updates residuals and gradients according to the outcome.
    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [&mut [f32]], world_size: u32) {
        match self {
            Self::Dense(lane) => lane.finish(ending, gradients),
            Self::Sparse(lane) => lane.finish(ending, gradients, world_size),
            Self::LowRank(lane) => lane.finish(ending, gradients),
            Self::Quantised(lane) => lane.finish(ending, gradients, world_size),
            Self::Vote(lane) => lane.finish(ending, gradients),
        }
    }

    /// How a tensor of the lane travels, with all settings.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        match self {
            Self::Sparse(lane) => lane.holds(tensor).then(|| lane.travels()),
            Self::Quantised(lane) => lane.travels(tensor),
            Self::Vote(lane) => lane.travels(tensor),
            other => other.keeps(tensor),
        }
    }

    /// What is kept of a tensor of the lane from step to step: whatever has the same words can be loaded.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        match self {
            Self::Dense(lane) => lane.holds(tensor).then(|| "dense".into()),
            Self::Sparse(lane) => lane.holds(tensor).then(|| "sparse".into()),
            Self::LowRank(lane) => lane.travels(tensor),
            Self::Quantised(lane) => lane.holds(tensor).then(|| "quantised".into()),
            Self::Vote(lane) => lane.holds(tensor).then(|| "vote of signs".into()),
        }
    }

    /// Copies a tensor's residual to `out`, which is as long, if the tensor is of the lane.
    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        match self {
            Self::Dense(lane) => lane.residual_to(tensor, out),
            Self::Sparse(lane) => lane.residual_to(tensor, out),
            Self::LowRank(lane) => lane.residual_to(tensor, out),
            Self::Quantised(lane) => lane.residual_to(tensor, out),
            Self::Vote(lane) => lane.residual_to(tensor, out),
        }
    }
}

/// Adds `gradient` to `sum` and returns true. If any sum would not be finite, leaves `sum` unchanged and
/// returns false.
pub(super) fn add_finite(sum: &mut [f32], gradient: &[f32]) -> bool {
    let finite = sum.iter().zip(gradient).all(|(sum, gradient)| (sum + gradient).is_finite());
    if finite {
        for (sum, gradient) in sum.iter_mut().zip(gradient) {
            *sum += gradient;
        }
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_is_not_finite_is_not_stored() {
        let mut sum = [1.0, f32::MAX];
        assert!(!add_finite(&mut sum, &[1.0, f32::MAX]));
        assert_eq!(sum, [1.0, f32::MAX]);
        assert!(add_finite(&mut sum, &[1.0, 0.0]));
        assert_eq!(sum, [2.0, f32::MAX]);
    }
}
