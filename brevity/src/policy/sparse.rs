//! Policies of sparse tensors.

use std::fmt;

use brevity_collectives::sparse::{Draw, PutBack, Wire};
use brevity_compress::Density;
use brevity_compress::quantise::Values;
use brevity_compress::select::BLOCK_PLACES;

use super::{AutoPolicy, Kind, Momentum, Policy, Scope};

/// A sparse policy's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SparsePolicy {
    pub(crate) density: f64,
    pub(crate) method: SparseMethod,
    /// How entries are written; `None` leaves it to the estimates whether they are pairs or packed.
    pub(crate) wire: Option<Wire>,
    pub(crate) momentum: Momentum,
    /// That of its method unless it is set.
    pub(crate) threshold: Option<Threshold>,
    /// Which tensors the threshold is common to.
    pub(crate) scope: Scope,
    /// The first steps, in which everything travels.
    pub(crate) dense_steps: u64,
    /// Whether the ranks of a host are summed first.
    pub(crate) hierarchical: bool,
}

/// The magnitude that an entry must reach for a rank to select it, of each tensor by itself unless the
/// [scope](Policy::scope) says otherwise. Of equal magnitudes, lower indices come first. Zeros are never
/// selected, and what is not stays in the residual.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Threshold {
    /// Exactly `k` entries. As text `exact`.
    Exact,
    /// From a sample of a thousandth of the values, at least 1,024: about `k` entries, at least one. Aji and
    /// Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017. As text `sampled`.
    Sampled,
    /// The `k`-th magnitude of an earlier step: at least half of `k` entries. It is estimated anew in every
    /// 32nd step that succeeds, and where fewer or too many entries reach it. Li and Hoefler, PPoPP 2022. As
    /// text `adaptive`.
    Adaptive,
    /// This one (finite, above 0), but at most `k` entries: the largest where more reach it. A value below it
    /// waits until gradients have raised it. As text the number.
    Fixed(f32),
}

impl Threshold {
    /// One that lets nothing, or everything, pass.
    pub(super) fn out_of_range(self) -> Option<f32> {
        match self {
            Self::Fixed(tau) if !(tau > 0.0 && tau.is_finite()) => Some(tau),
            _ => None,
        }
    }
}

/// As the value of a setting in a policy's text.
impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Sampled => f.write_str("sampled"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::Fixed(tau) => write!(f, "{tau}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SparseMethod {
    /// Every rank's largest entries, all delivered.
    Union,
    /// The largest entries of the sum over all ranks of their largest entries.
    Global(PutBack),
    /// About as many, by Ok-Topk.
    OkTopk,
    /// Entries at places that all ranks draw alike.
    Random(Draw),
    /// Every rank's blocks of largest norm, all delivered.
    Blocks,
}

impl SparseMethod {
    /// Its name in a policy's text.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Union => "topk",
            Self::Global(_) => "gtopk",
            Self::OkTopk => "oktopk",
            Self::Random(Draw::Scattered) => "random-k",
            Self::Random(Draw::Block) => "random-block",
            Self::Blocks => "block",
        }
    }

    /// How much of a tensor of `count` elements a rank selects: entries, or blocks.
    pub(crate) fn selected(self, density: Density, count: usize) -> usize {
        match self {
            Self::Blocks => density.entries(count.div_ceil(BLOCK_PLACES)),
            _ => density.entries(count),
        }
    }

    /// Its threshold, unless another is set.
    pub(crate) const fn own_threshold(self) -> Threshold {
        match self {
            Self::OkTopk => Threshold::Adaptive,
            _ => Threshold::Exact,
        }
    }

    /// Whether leaders of hosts can sum their entries by it.
    pub(crate) const fn has_leaders(self) -> bool {
        matches!(self, Self::Union | Self::Global(_))
    }

    /// Whether it sums entries of which each rank chooses its own: their values may be rounded.
    pub(crate) const fn has_entries(self) -> bool {
        matches!(self, Self::Union | Self::Global(_) | Self::OkTopk)
    }
}

impl Policy {
    /// About the largest `density` of the entries of the sum over all ranks (0 < density <= 1): Ok-Topk. Each
    /// rank selects by a threshold that it keeps for up to 32 steps, half to twice its share of the entries;
    /// the result has half to twice as many. However many ranks there are, one sends at most about four times
    /// its share.
    ///
    /// What is not delivered goes back to the residuals of its ranks. Thresholds begin anew when the density
    /// changes and when the exchange [moves](crate::GradientExchange::rejoin) to another group. Li and
    /// Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022.
    #[must_use]
    pub const fn oktopk(density: f64) -> Self {
        Self::sparse(density, SparseMethod::OkTopk)
    }

    /// `density` of the entries (0 < density <= 1), at places that all ranks draw alike from the
    /// [seed](crate::ExchangeBuilder::seed) and the number of the step: random K. A dense all-reduce sums the
    /// values, so no index travels, and the bytes do not grow with the ranks. What is not drawn stays in the
    /// residual; nothing is scaled. Vogels et al., "PowerSGD", NeurIPS 2019, appendix.
    #[must_use]
    pub const fn random_k(density: f64) -> Self {
        Self::sparse(density, SparseMethod::Random(Draw::Scattered))
    }

    /// Like [`random_k`](Self::random_k), with consecutive places from a random one on: random block.
    #[must_use]
    pub const fn random_block(density: f64) -> Self {
        Self::sparse(density, SparseMethod::Random(Draw::Block))
    }

    /// Each rank's `density` of the tensor's blocks of 256 elements (0 < density <= 1), those of largest
    /// norm: block top k. A [block-sparse all-reduce](brevity_collectives::sparse::block_all_reduce) sums
    /// them, and delivers all. Takes 4 bytes an element more. With a density of 1 it is OmniReduce itself:
    /// blocks that are zero do not travel, and nothing stays. Fei et al., "Efficient sparse collective
    /// communication and its application to accelerate distributed deep learning", SIGCOMM 2021.
    #[must_use]
    pub const fn block(density: f64) -> Self {
        Self::sparse(density, SparseMethod::Blocks)
    }

    /// By which threshold a rank selects entries for [`topk`](Self::topk) and [`gtopk`](Self::gtopk), exactly
    /// `k` of a tensor unless this says otherwise, and for [`oktopk`](Self::oktopk), by one that adapts.
    ///
    /// Where the threshold lets about `k` entries pass, a message of `topk` and `oktopk` has at most `2 k`
    /// entries, one of `gtopk` at most `k`: where more pass, the largest of all are selected instead, as many
    /// as that, or `k` by an [adaptive](Threshold::Adaptive) one. Other sparse policies refuse it when the
    /// exchange is built; no effect on policies that are not sparse.
    #[must_use]
    pub const fn threshold(mut self, threshold: Threshold) -> Self {
        if let Kind::Sparse(SparsePolicy { threshold: own, .. }) = &mut self.0 {
            *own = Some(threshold);
        }
        self
    }

    /// Packs the indices of [`topk`](Self::topk), [`gtopk`](Self::gtopk) and [`oktopk`](Self::oktopk), and
    /// writes values in this format, of which `f32` is exact. What rounding takes away stays in residuals.
    /// Sums that gTop-k and Ok-Topk pass on are written in the [format for sums](Values::of_sums). Replaces
    /// the format of [`quantised`](Self::quantised), and lets [`auto`](Self::auto) choose `f16` or `bf16` for
    /// entries, or for all values; it refuses others. Other sparse policies refuse it when the exchange is
    /// built; no effect on policies that are not sparse.
    ///
    /// Without this, [`pairs`](Self::pairs) or packed `f32`, whichever is estimated to be faster.
    #[must_use]
    pub const fn values(self, values: Values) -> Self {
        match self.0 {
            Kind::Quantised(_) => Self(Kind::Quantised(values)),
            Kind::Auto(policy) => Self(Kind::Auto(AutoPolicy { values: Some(values), ..policy })),
            _ => self.on(Wire::Coded(values)),
        }
    }

    /// Writes entries of [`topk`](Self::topk), [`gtopk`](Self::gtopk) and [`oktopk`](Self::oktopk) as pairs:
    /// an index and a value of 4 bytes each. As text `values=pairs`. Other sparse policies refuse it when the
    /// exchange is built; no effect on policies that are not sparse.
    ///
    /// Without this and [`values`](Self::values), entries are pairs or packed `f32`, both exact, whichever is
    /// [estimated](brevity_collectives::Group::exact_wire) to be faster for all tensors of a
    /// [bucket](crate::ExchangeBuilder::bucket_bytes), with the time to write and to read messages. The
    /// choice is made when the exchange is built, for the densities of its policies, and again when it moves
    /// to another group. All ranks make the same, from the speeds of rank 0.
    /// [`GradientExchange::wire`](crate::GradientExchange::wire) tells it.
    #[must_use]
    pub const fn pairs(self) -> Self {
        self.on(Wire::Pairs)
    }

    /// On this wire, if it is sparse.
    pub(super) const fn on(mut self, wire: Wire) -> Self {
        if let Kind::Sparse(SparsePolicy { wire: own, .. }) = &mut self.0 {
            *own = Some(wire);
        }
        self
    }

    /// For [`topk`](Self::topk) and [`gtopk`](Self::gtopk): the ranks of each host sum their gradients first,
    /// as they are, to the first of them, which selects entries of the sum and takes part in the sparse sum
    /// for its host. Between hosts as much travels as with one rank on each, and what is selected is the
    /// largest of a host's sum. Inside a host, vectors go over shared memory where its ranks have some.
    ///
    /// After a step, what was not delivered is in the residual of each host's first rank, and other ranks
    /// have none; after a step that has failed on all ranks, each has its own gradient. Where ranks may be
    /// lost, build the exchange with [`keep_going`](crate::ExchangeBuilder::keep_going): otherwise, in a step
    /// that has ended on some ranks only, what members of a host gave may be lost or count twice. Which ranks
    /// share a host decides what is selected: the averages depend on it.
    ///
    /// A threshold other than [`Exact`](Threshold::Exact), a [scope](Self::scope), momentum, clipping and
    /// [dense steps](Self::dense_steps) are refused when the exchange is built, as are other sparse policies;
    /// no effect on policies that are not sparse. Takes 8 bytes an element more during a step.
    #[must_use]
    pub const fn hierarchical(mut self) -> Self {
        if let Kind::Sparse(SparsePolicy { hierarchical, .. }) = &mut self.0 {
            *hierarchical = true;
        }
        self
    }

    pub(super) const fn sparse(density: f64, method: SparseMethod) -> Self {
        let (wire, momentum, scope) = (None, Momentum::None, Scope::Tensor);
        let (threshold, dense_steps, hierarchical) = (None, 0, false);
        Self(Kind::Sparse(SparsePolicy {
            density,
            method,
            wire,
            momentum,
            threshold,
            scope,
            dense_steps,
            hierarchical,
        }))
    }
}

/// Pairs, among the formats of values.
pub(super) const PAIRS: &str = "pairs";

/// A wire as the value of a setting in a policy's text.
pub(super) fn named(wire: Wire) -> String {
    match wire {
        Wire::Pairs => PAIRS.into(),
        Wire::Coded(values) => values.to_string(),
    }
}

/// Whether several values on a wire share a scale, which must be of one tensor.
pub(crate) const fn has_scales(wire: Option<Wire>) -> bool {
    !matches!(wire, None | Some(Wire::Pairs | Wire::Coded(Values::F32 | Values::F16 | Values::Bf16)))
}

impl SparsePolicy {
    /// A setting that its method does not take, and why.
    pub(super) fn refused(&self) -> Option<(&'static str, &'static str)> {
        if !self.method.has_entries() && self.wire.is_some() {
            return Some(("a format of values", "its sums are those of f32 values"));
        }
        if !self.method.has_entries() && self.threshold.is_some() {
            return Some(("a threshold", "it does not select entries by their magnitudes"));
        }
        if !self.method.has_entries() && self.scope != Scope::Tensor {
            return Some(("the scope of a threshold", "it does not select entries by their magnitudes"));
        }
        if has_scales(self.wire) && self.scope != Scope::Tensor {
            let reason = "its tensors travel alone, because its format of values has scales: use f32, f16 \
                          or bf16 values";
            return Some(("the scope of a threshold", reason));
        }
        if self.hierarchical {
            return self.refused_by_hosts();
        }
        None
    }

    /// Likewise, of one by hosts.
    fn refused_by_hosts(&self) -> Option<(&'static str, &'static str)> {
        if !self.method.has_leaders() {
            return Some(("the hierarchical form", "leaders sum by topk or gtopk"));
        }
        if self.scope != Scope::Tensor {
            return Some((
                "the scope of a threshold in the hierarchical form",
                "leaders select of each tensor",
            ));
        }
        if self.dense_steps > 0 {
            return Some(("dense steps in the hierarchical form", "let the first exchange be a dense one"));
        }
        if self.momentum != Momentum::None {
            return Some(("momentum in the hierarchical form", "it is of one rank's gradients"));
        }
        if self.threshold() != Threshold::Exact {
            return Some(("a threshold in the hierarchical form", "leaders select their share exactly"));
        }
        None
    }

    /// The threshold that is set, or that of its method.
    pub(crate) fn threshold(&self) -> Threshold {
        self.threshold.unwrap_or(self.method.own_threshold())
    }
}
