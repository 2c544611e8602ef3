//! How gradients and answers travel, and what a shard does with them.

use brevity_compress::Density;
pub use brevity_compress::quantise::Values;

use crate::error::{Error, Result};
use crate::policy::DENSITIES;

/// How a worker's gradients become pushes.
///
/// | method | a push | who scales by the rate | memory of a worker |
/// | --- | --- | --- | --- |
/// | [`asgd`](Self::asgd) | the gradient | the shard | - |
/// | [`gradient_dropping`](Self::gradient_dropping) | the largest entries of the residual | the shard | one model |
/// | [`dgs`](Self::dgs) | the largest entries of the velocity (SAMomentum) | the worker | one model |
/// | [`dgc`](Self::dgc) | the largest entries of the accumulated velocity, with masking | the shard | two models |
///
/// Answers are the whole shard with `asgd`, and else the largest entries of what the worker is owed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Asgd,
    GradientDropping { density: f64 },
    Dgs { density: f64, momentum: f32 },
    Dgc { density: f64, momentum: f32, clip: Option<f64> },
}

impl Method {
    /// Asynchronous SGD: dense gradients, and the whole model back.
    #[must_use]
    pub const fn asgd() -> Self {
        Self(Kind::Asgd)
    }

    /// Gradient dropping: the largest `density` of the residual's entries (0 < density <= 1). Aji and
    /// Heafield, EMNLP 2017.
    #[must_use]
    pub const fn gradient_dropping(density: f64) -> Self {
        Self(Kind::GradientDropping { density })
    }

    /// Dual-way gradient sparsification with its momentum (0 < momentum < 1). Yan et al., ICPP 2020.
    #[must_use]
    pub const fn dgs(density: f64, momentum: f32) -> Self {
        Self(Kind::Dgs { density, momentum })
    }

    /// Deep gradient compression, asynchronous: momentum correction (0 <= momentum < 1) with masking. Lin et
    /// al., ICLR 2018.
    #[must_use]
    pub const fn dgc(density: f64, momentum: f32) -> Self {
        Self(Kind::Dgc { density, momentum, clip: None })
    }

    /// Clips the gradient of each tensor before it is added: to a norm of `limit / sqrt(W)` on each of `W`
    /// workers, so that the sum of independent ones has about `limit`, as
    /// [`Policy::clip`](crate::Policy::clip) does. The norm is that of the whole tensor, however it is cut
    /// into shards. No effect on other methods than [`dgc`](Self::dgc).
    #[must_use]
    pub const fn clip(mut self, limit: f64) -> Self {
        if let Kind::Dgc { clip, .. } = &mut self.0 {
            *clip = Some(limit);
        }
        self
    }

    /// The share of entries in a push; `None` for all.
    #[must_use]
    pub const fn density(self) -> Option<f64> {
        match self.0 {
            Kind::Asgd => None,
            Kind::GradientDropping { density } | Kind::Dgs { density, .. } | Kind::Dgc { density, .. } => {
                Some(density)
            }
        }
    }

    /// The limit of [`clip`](Self::clip).
    pub(super) const fn clipping(self) -> Option<f64> {
        if let Kind::Dgc { clip, .. } = self.0 { clip } else { None }
    }

    pub(super) const fn is_dense(self) -> bool {
        matches!(self.0, Kind::Asgd)
    }

    /// Whether pushes are scaled by the rate already.
    pub(super) const fn is_scaled(self) -> bool {
        matches!(self.0, Kind::Dgs { .. })
    }
}

/// Which ranks serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Servers {
    /// Every rank is a worker, and serves its share of the parameters.
    #[default]
    EveryRank,
    /// The last ranks of the group, so many, serve and do not work; the others work.
    Dedicated(u32),
}

/// What a shard does with a gradient `g` and a rate: it adds the result to the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rule {
    /// `- rate g`. Of [`Method::dgs`], whose pushes contain the rate, `- g`.
    #[default]
    Sgd,
    /// `h += g^2`, then `- rate g / (sqrt(h) + epsilon)`, with `h` for each element, which stops at the
    /// largest f32. One more model of memory.
    AdaGrad {
        /// What keeps the divisor from being 0, as 1e-8.
        epsilon: f32,
    },
}

/// Which entries are compared with each other when the largest are selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// Those of one tensor, as far as it is on one shard (a *local* threshold).
    #[default]
    PerTensor,
    /// All of a shard (a *global* threshold). The papers' is that of the whole model, which is the same with
    /// one server.
    PerShard,
}

/// Checks a density for all tensors.
pub(super) fn check_density(parameter: &'static str, density: f64) -> Result<Density> {
    let refused = |_| Error::Server { parameter, found: density.to_string(), expected: DENSITIES };
    Density::new(density).map_err(refused)
}
