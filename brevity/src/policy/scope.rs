//! Over which tensors a threshold is.

use std::fmt;

use super::{Kind, LowRankMethod, LowRankPolicy, Policy, SparsePolicy};

/// Which tensors a [threshold](crate::Threshold) is common to. With more than one, a rank selects as many
/// entries as of each by itself, but the largest of all: a tensor with large gradients sends more of them.
///
/// Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017, compare thresholds
/// of a tensor (local) and of the model (global).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Each tensor has its own. As text `tensor`.
    #[default]
    Tensor,
    /// All tensors of a [bucket](crate::ExchangeBuilder::bucket_bytes) have one. As text `bucket`.
    Bucket,
    /// All tensors that have the same policy, but for density and momentum, have one. They are one bucket,
    /// whatever its size, which leaves when the last of their gradients is ready. Beyond 2^32 elements they
    /// are several buckets, with a threshold each. As text `model`.
    Model,
}

impl Scope {
    pub(super) const ALL: [Self; 3] = [Self::Tensor, Self::Bucket, Self::Model];

    /// The scope of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Bucket => "bucket",
            Self::Model => "model",
        }
    }
}

/// As the value of a setting in a policy's text.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Policy {
    /// Which tensors the [threshold](Self::threshold) of [`topk`](Self::topk), [`gtopk`](Self::gtopk) and
    /// [`oktopk`](Self::oktopk) is common to: each has its own unless this says otherwise. `k` is then the
    /// sum of what the density makes of each tensor. Takes 4 bytes an element more. Selection waits for the
    /// last gradient of a bucket. Other sparse policies, and formats of values with scales (8 bits and less),
    /// whose tensors travel alone, refuse it when the exchange is built, and so does
    /// [`hierarchical`](Self::hierarchical); no effect on policies that are not sparse.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        if let Kind::Sparse(SparsePolicy { scope: own, .. }) = &mut self.0 {
            *own = scope;
        }
        self
    }

    /// Exchanges everything in the first `steps` [steps](crate::GradientExchange::steps) of the exchange, by
    /// a dense all-reduce for each bucket; selection begins after them. Residuals are empty in between, and
    /// thresholds and draws begin with the first step that selects. A step that is left out or fails does not
    /// count, and what it leaves in the residual is sent with the next one.
    ///
    /// With [`momentum`](Self::momentum) or [`samomentum`](Self::samomentum), velocities go on and nothing is
    /// masked: what is delivered is that of momentum SGD. Takes 4 bytes an element more, until selection
    /// begins.
    ///
    /// Of [`low_rank`](Self::low_rank) tensors, matrices travel whole with the vectors, and factors begin
    /// from the seed afterwards. No effect on other policies.
    ///
    /// A warm-up as in Lin et al., ICLR 2018, 3.3; a [schedule](crate::ExchangeBuilder::schedule) of
    /// densities may follow, and counts the dense steps.
    #[must_use]
    pub const fn dense_steps(mut self, steps: u64) -> Self {
        if let Kind::Sparse(SparsePolicy { dense_steps, .. })
        | Kind::LowRank(LowRankPolicy { method: LowRankMethod::PowerSgd, dense_steps, .. }) = &mut self.0
        {
            *dense_steps = steps;
        }
        self
    }
}
