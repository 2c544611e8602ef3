//! Policies that are chosen for the network.

use brevity_collectives::Operation;
use brevity_collectives::sparse::{PutBack, Wire};

use super::{Kind, Policy, SparseMethod, SparsePolicy};

/// The density of [`Policy::auto`].
pub(super) const DENSITY: f64 = 0.001;

impl Policy {
    /// What is estimated to be the fastest of [`dense`](Self::dense), [`topk`](Self::topk),
    /// [`gtopk`](Self::gtopk) and [`oktopk`](Self::oktopk), the latter with [pairs](Self::pairs) or packed
    /// `f32`, and with the time that a rank needs to select, to write and read messages and to merge: dense
    /// where compression does not pay. An exchange that [keeps going](crate::ExchangeBuilder::keep_going) may
    /// also take [`gtopk`](Self::gtopk) by [hosts](Self::hierarchical), if several ranks share one. The
    /// [density](Self::density) is 0.001 unless set.
    ///
    /// The choice is made once, when the exchange is built, for all `auto` tensors of a sparse
    /// [bucket](crate::ExchangeBuilder::bucket_bytes) together, from
    /// [`Group::compare`](brevity_collectives::Group::compare) and so from the speeds of rank 0: it is the
    /// same on all ranks. They then travel as tensors with the policy that was chosen, in buckets with
    /// others. [`GradientExchange::choice`](crate::GradientExchange::choice) tells it, and why. The exchange
    /// keeps it in another group ([`rejoin`](crate::GradientExchange::rejoin),
    /// [`go_on`](crate::GradientExchange::go_on)): ranks that are new there give the chosen policies.
    /// Saved state fits every choice, of exchanges that are built with `auto`.
    #[must_use]
    pub const fn auto() -> Self {
        Self(Kind::Auto { density: DENSITY })
    }

    /// Sets the density of [`auto`](Self::auto), or of a sparse policy (0 < density <= 1). No effect on other
    /// policies.
    #[must_use]
    pub const fn density(mut self, density: f64) -> Self {
        match &mut self.0 {
            Kind::Auto { density: own } => *own = density,
            Kind::Sparse(policy) => policy.density = density,
            _ => {}
        }
        self
    }

    /// What it says, if it is sparse.
    pub(crate) const fn as_sparse(&self) -> Option<&SparsePolicy> {
        if let Kind::Sparse(policy) = &self.0 { Some(policy) } else { None }
    }

    /// The policies that [`auto`](Self::auto) chooses from, by their collective and its wire.
    pub(crate) fn chosen(operation: Operation, wire: Option<Wire>, density: f64) -> Option<Self> {
        let method = match operation {
            Operation::ALL_REDUCE => return Some(Self::dense()),
            Operation::TOPK_ALL_REDUCE => SparseMethod::Union,
            Operation::GTOPK_ALL_REDUCE => SparseMethod::Global(PutBack::Conserving),
            Operation::OK_TOPK_ALL_REDUCE => SparseMethod::OkTopk,
            Operation::HIERARCHICAL_ALL_REDUCE => SparseMethod::Global(PutBack::Conserving),
            _ => return None,
        };
        let sparse = Self::sparse(density, method);
        let by_hosts = operation == Operation::HIERARCHICAL_ALL_REDUCE;
        let sparse = if by_hosts { sparse.hierarchical() } else { sparse };
        Some(wire.map_or(sparse, |wire| sparse.on(wire)))
    }
}
