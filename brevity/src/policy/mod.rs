//! How a tensor's gradients travel.

mod auto;
mod columns;
mod excluded;
mod low_rank;
mod momentum;
mod rules;
mod scope;
mod sparse;
mod text;

pub(crate) use auto::AutoPolicy;
use columns::columns;
pub(crate) use low_rank::LowRankMethod;
use low_rank::{DEFAULT_MIN_COMPRESSION, LowRankPolicy};
pub(crate) use momentum::Momentum;
pub use rules::PolicyRules;
pub use scope::Scope;
pub use sparse::Threshold;
pub(crate) use sparse::{SparseMethod, SparsePolicy, has_scales};

use brevity_collectives::sparse::{PutBack, Wire};
use brevity_compress::Density;
use brevity_compress::quantise::Values;

use crate::error::{Error, Result};

/// The range of a density, for error messages.
pub(crate) const DENSITIES: &str = "above 0 and at most 1";

/// The range of a momentum, for error messages.
const MOMENTA: &str = "at least 0 and below 1";

/// The range of a fixed threshold, for error messages.
const THRESHOLDS: &str = "a finite number above 0";

/// An entry's index has 32 bits.
const MOST_INDICES: u64 = 1 << 32;

/// How one tensor's gradients travel. What is not sent stays in a residual and is sent later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Dense,
    Excluded,
    Auto(AutoPolicy),
    Sparse(SparsePolicy),
    LowRank(LowRankPolicy),
    Quantised(Values),
    Signum { momentum: f32 },
    SignNorm,
}

impl Policy {
    /// The whole tensor, uncompressed.
    #[must_use]
    pub const fn dense() -> Self {
        Self(Kind::Dense)
    }

    /// The largest `density` of each rank's entries (0 < density <= 1), gathered by all ranks: gradient
    /// dropping.
    #[must_use]
    pub const fn topk(density: f64) -> Self {
        Self::sparse(density, SparseMethod::Union)
    }

    /// The largest `density` of the entries over all ranks together (0 < density <= 1): gTop-k.
    #[must_use]
    pub const fn gtopk(density: f64) -> Self {
        Self::sparse(density, SparseMethod::Global(PutBack::Conserving))
    }

    /// Every element, rounded to a format of a few bits, with error feedback: a quantised all-reduce. All
    /// quantised tensors of an exchange that have the same format share buckets, with `one-bit-columns` those
    /// of as many columns.
    ///
    /// Each rank rounds its gradient and residual, the owner of each slice sums what all ranks sent of it and
    /// rounds the sum. What both roundings take away stays in residuals (4 bytes an element): the first in
    /// that of the rank, the second in that of the owner. In the formats of 1 and 2 bits, a scale is that of
    /// one tensor (`one-bit-columns`: of a column of it), or of its part in one of the `P` slices; of
    /// `eight-bit` and `qsgd-S`, of 512 elements of it. Sent: two
    /// messages to each other rank, together `2 (P - 1) / P` times the bytes of the
    /// [values](Values::most_bytes).
    ///
    /// `f32` rounds nothing; [`dense`](Self::dense) is faster. `f16` delivers at most 65,504 an element and
    /// step. `one-bit-min` and `two-bit-min` make a zero as large as the smallest magnitude, and residuals
    /// would grow without bound: tensors of more than one element are refused. With `one-bit-mean` it is
    /// signSGD with error feedback and norm (Karimireddy et al., ICML 2019). Quantised sums, and feedback for
    /// both roundings: Seide et al., Interspeech 2014. `ternary` and `qsgd-S` round at random, by a seed from
    /// the elements, and keep residuals as the others do, [unlike their papers](Values).
    #[must_use]
    pub const fn quantised(values: Values) -> Self {
        Self(Kind::Quantised(values))
    }

    /// Signum: the majority of all ranks' signs. The "average" of an element is 1, -1, or 0 for a tie, and no
    /// mean: the learning rate alone says how far a parameter moves. Gradients `g` make the momentum of each
    /// rank `m = momentum * m + (1 - momentum) * g`, whose sign is the rank's vote; 0 votes for nothing. With
    /// `momentum` 0 (0 <= momentum < 1) this is signSGD. Signum tensors share buckets.
    /// Sent: one or two bits an element, in two messages to each other rank. Don't apply momentum again
    /// afterwards.
    ///
    /// The momentum is all that is kept (4 bytes an element): there is no residual, what a vote ignores is
    /// gone, and a step that fails leaves the momentum as it was. A momentum votes whatever its size: where
    /// gradients become 0 for good, its sign stays.
    ///
    /// Bernstein et al., "signSGD: compressed optimisation for non-convex problems", ICML 2018, and "signSGD
    /// with majority vote is communication efficient and fault tolerant", ICLR 2019.
    #[must_use]
    pub const fn signum(momentum: f32) -> Self {
        Self(Kind::Signum { momentum })
    }

    /// Sign and norm: each rank's signs and the mean of all magnitudes of the tensor, one bit an element,
    /// with error feedback. All ranks gather all messages and average them, so a rank receives `P - 1` times
    /// `n / 8` bytes. [`quantised`](Self::quantised) with `one-bit-mean` receives an eighth of `2 n` bytes
    /// whatever `P` is, and rounds the sum once more.
    ///
    /// Karimireddy et al., ICML 2019, as compared to PowerSGD by Vogels et al., NeurIPS 2019, section 5.
    #[must_use]
    pub const fn sign_norm() -> Self {
        Self(Kind::SignNorm)
    }

    /// Which part of a gTop-k contribution returns to which residual. No effect on other policies.
    #[must_use]
    pub const fn put_back(mut self, rule: PutBack) -> Self {
        if let Kind::Sparse(SparsePolicy { method: SparseMethod::Global(own), .. }) = &mut self.0 {
            *own = rule;
        }
        self
    }

    /// Momentum correction of a sparse policy (0 <= factor < 1): momentum is applied before selecting, so the
    /// optimiser must not apply it again. Where an entry is delivered, its velocity begins anew (*masking*).
    /// Takes 4 bytes an element more. No effect on other policies; low-rank ones have a [momentum after
    /// aggregation](Self::post_momentum). Lin et al., "Deep gradient compression", ICLR 2018.
    #[must_use]
    pub const fn momentum(mut self, factor: f32) -> Self {
        if let Kind::Sparse(SparsePolicy { momentum, .. }) = &mut self.0 {
            *momentum = match *momentum {
                Momentum::Corrected { nesterov, clip, .. } => Momentum::Corrected { factor, nesterov, clip },
                _ => Momentum::Corrected { factor, nesterov: false, clip: None },
            };
        }
        self
    }

    /// Nesterov's form of [`momentum`](Self::momentum), which must be set before. No effect without.
    #[must_use]
    pub const fn nesterov(mut self) -> Self {
        if let Kind::Sparse(SparsePolicy { momentum: Momentum::Corrected { nesterov, .. }, .. }) = &mut self.0
        {
            *nesterov = true;
        }
        self
    }

    /// Clips the gradient of each tensor before it is added: to a norm of `limit / sqrt(P)` on each of `P`
    /// ranks, so that the sum of independent ones has about `limit`. With [`momentum`](Self::momentum), or
    /// alone. No effect with [`samomentum`](Self::samomentum), and on policies that are not sparse. Lin et
    /// al., ICLR 2018, 3.2.
    #[must_use]
    pub const fn clip(mut self, limit: f64) -> Self {
        if let Kind::Sparse(SparsePolicy { momentum, .. }) = &mut self.0 {
            *momentum = match *momentum {
                Momentum::None => Momentum::Corrected { factor: 0.0, nesterov: false, clip: Some(limit) },
                Momentum::Corrected { factor, nesterov, .. } => {
                    Momentum::Corrected { factor, nesterov, clip: Some(limit) }
                }
                aware @ Momentum::Aware { .. } => aware,
            };
        }
        self
    }

    /// Sparsification-aware momentum of a sparse policy (0 < factor < 1): a velocity that is not delivered
    /// grows as in one step with a larger batch. The optimiser must not apply momentum again. Takes no more
    /// memory than without. No effect on other policies. Yan et al., "Dual-way gradient sparsification", ICPP
    /// 2020.
    #[must_use]
    pub const fn samomentum(mut self, factor: f32) -> Self {
        if let Kind::Sparse(SparsePolicy { momentum, .. }) = &mut self.0 {
            *momentum = Momentum::Aware { factor };
        }
        self
    }

    /// Checks a tensor of this shape as [`ExchangeBuilder::build`](crate::ExchangeBuilder::build) does and
    /// returns its number of elements, without allocating memory for it.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range; [`Error::PolicySetting`]; [`Error::Diverges`];
    /// [`Error::TooLarge`] for more elements than memory or indices can address.
    pub fn check(self, tensor: &str, shape: &[usize]) -> Result<usize> {
        self.resolve(tensor, shape)?;
        elements(tensor, shape)
    }

    /// The policy applied to a tensor of this shape.
    pub(crate) fn resolve(self, tensor: &str, shape: &[usize]) -> Result<Resolved> {
        let count = elements(tensor, shape)?;
        let out_of_range =
            |parameter, found, expected| Error::Policy { tensor: tensor.into(), parameter, found, expected };
        match self.0 {
            Kind::Dense => Ok(Resolved::Dense),
            Kind::Excluded => Ok(Resolved::Excluded),
            Kind::Auto(policy) => policy.resolve(tensor, shape),
            Kind::Sparse(_) if count as u64 > MOST_INDICES => {
                Err(too_large(tensor, shape, "at most 2^32 with a sparse policy"))
            }
            Kind::Sparse(policy) => {
                let density = Density::new(policy.density)
                    .map_err(|_| out_of_range("density", policy.density, DENSITIES))?;
                let wrong = |(name, found, expected)| out_of_range(name, found, expected);
                policy.momentum.check().map_err(wrong)?;
                if let Some(found) = policy.threshold().out_of_range() {
                    return Err(out_of_range("threshold", found.into(), THRESHOLDS));
                }
                if let Some((setting, reason)) = policy.refused() {
                    let (tensor, policy) = (tensor.into(), policy.method.name());
                    return Err(Error::PolicySetting { tensor, policy, setting, reason });
                }
                let wire = policy.wire.map(|wire| match wire {
                    Wire::Pairs => Wire::Pairs,
                    Wire::Coded(values) => Wire::Coded(values.of_columns(columns(shape, count))),
                });
                Ok(Resolved::Sparse(density, SparsePolicy { wire, ..policy }))
            }
            Kind::Quantised(values) if !values.quantiser().contracts(count, true) => {
                Err(Error::Diverges { tensor: tensor.into(), values })
            }
            Kind::Quantised(values) => {
                Ok(Resolved::Quantised { values: values.of_columns(columns(shape, count)) })
            }
            Kind::Signum { momentum } if !(0.0..1.0).contains(&momentum) => {
                Err(out_of_range("momentum", momentum.into(), MOMENTA))
            }
            Kind::Signum { momentum } => Ok(Resolved::Signum { momentum }),
            Kind::SignNorm => Ok(Resolved::SignNorm),
            Kind::LowRank(policy) => policy.resolve(tensor, shape, count),
        }
    }
}

/// The number of elements of a tensor of this shape.
///
/// # Errors
/// [`Error::TooLarge`] for more elements than memory can address, whatever the policy.
pub(crate) fn elements(tensor: &str, shape: &[usize]) -> Result<usize> {
    const MOST: usize = isize::MAX as usize / size_of::<f32>();
    if shape.contains(&0) {
        return Ok(0);
    }
    let count = shape.iter().try_fold(1_usize, |count, &length| count.checked_mul(length));
    count.filter(|&count| count <= MOST).ok_or_else(|| too_large(tensor, shape, "what fits in memory"))
}

fn too_large(tensor: &str, shape: &[usize], expected: &'static str) -> Error {
    Error::TooLarge { tensor: tensor.into(), shape: shape.to_vec(), expected }
}

/// A policy with the tensor's shape applied. A `Vector` has a low-rank policy and travels uncompressed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Resolved {
    Dense,
    Excluded,
    Auto {
        density: Density,
        allowed: AutoPolicy,
        /// The rows and columns of a matrix that may be of low rank.
        matrix: Option<[usize; 2]>,
    },
    /// With the policy's density, checked.
    Sparse(Density, SparsePolicy),
    LowRank {
        method: LowRankMethod,
        rows: usize,
        cols: usize,
        rank: usize,
        dense_steps: u64,
    },
    Vector {
        method: LowRankMethod,
    },
    Quantised {
        values: Values,
    },
    Signum {
        momentum: f32,
    },
    SignNorm,
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Magnitude;

    use super::*;

    #[test]
    fn densities_outside_their_range_are_refused() {
        for density in [0.0, -0.1, 1.5, f64::NAN] {
            for policy in [Policy::gtopk(density), Policy::auto().density(density)] {
                assert!(matches!(policy.resolve("t", &[8]), Err(Error::Policy { .. })), "{density}");
            }
        }
    }

    #[test]
    fn tensors_that_no_memory_or_no_index_reaches_are_refused() {
        let refused = |policy: Policy, shape: &[usize]| {
            matches!(policy.resolve("t", shape), Err(Error::TooLarge { .. }))
        };
        let few_bits = [Policy::quantised(Values::Bf16), Policy::signum(0.9)];
        let others = [Policy::dense(), Policy::topk(0.1), Policy::gtopk(0.1), Policy::low_rank(1)];
        for policy in others.into_iter().chain(few_bits) {
            assert!(refused(policy, &[usize::MAX, 2]));
            assert!(refused(policy, &[2, usize::MAX / 2 + 1]));
            assert!(refused(policy, &[usize::MAX / 4]));
            assert!(!refused(policy, &[usize::MAX, 2, 0]), "nothing fits everywhere");
        }
        for policy in [Policy::topk(0.1), Policy::gtopk(0.1)] {
            assert!(!refused(policy, &[1 << 16, 1 << 16]));
            assert!(refused(policy, &[(1 << 32) + 1]));
            assert!(refused(policy, &[1 << 33]));
        }
        assert!(!refused(Policy::dense(), &[1 << 33]));
    }

    #[test]
    fn values_are_those_of_sparse_policies() {
        let wire = |policy: Policy| match policy.resolve("t", &[10]).unwrap() {
            Resolved::Sparse(_, policy) => policy.wire,
            other => panic!("{other:?}"),
        };
        for policy in [Policy::topk(0.5), Policy::gtopk(0.5), Policy::oktopk(0.5)] {
            assert_eq!(wire(policy), None);
            assert_eq!(wire(policy.values(Values::Bf16)), Some(Wire::Coded(Values::Bf16)));
            assert_eq!(wire(policy.pairs().values(Values::F32)), Some(Wire::Coded(Values::F32)));
            assert_eq!(wire(policy.values(Values::F32).pairs()), Some(Wire::Pairs));
        }
        for other in [Policy::dense(), Policy::low_rank(2)] {
            assert_eq!(other.values(Values::Bf16), other);
            assert_eq!(other.pairs(), other);
        }
        let quantised = Policy::quantised(Values::F16);
        assert_eq!(quantised.pairs(), quantised);
    }

    #[test]
    fn formats_that_residuals_diverge_with_are_refused() {
        let resolved = |values, shape: &[usize]| Policy::quantised(values).resolve("t", shape);
        for values in Values::ALL {
            let is_min = matches!(values, Values::OneBit(Magnitude::Min) | Values::TwoBit(Magnitude::Min));
            for shape in [&[0][..], &[1], &[]] {
                assert_eq!(resolved(values, shape).unwrap(), Resolved::Quantised { values });
            }
            for shape in [&[2][..], &[1 << 40], &[1000, 1000]] {
                match resolved(values, shape) {
                    Err(Error::Diverges { values: found, .. }) => assert!(is_min && found == values),
                    other => assert!(!is_min && other.is_ok(), "{values}: {other:?}"),
                }
            }
        }
        let error = resolved(Values::OneBit(Magnitude::Min), &[8]).unwrap_err().to_string();
        assert_eq!(
            error,
            "tensor \"t\": its residual would grow without bound with one-bit-min values: use the mean in \
             place of the smallest magnitude, or a topk policy, which selects no zeros"
        );
        let replaced = Policy::quantised(Values::F16).values(Values::Bf16);
        assert_eq!(replaced, Policy::quantised(Values::Bf16));
    }

    #[test]
    fn momenta_outside_their_range_are_refused() {
        for momentum in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
            let error = Policy::signum(momentum).resolve("t", &[8]).unwrap_err();
            assert!(matches!(error, Error::Policy { parameter: "momentum", .. }), "{error}");
        }
        let resolved = |momentum| Policy::signum(momentum).resolve("t", &[8]).unwrap();
        assert_eq!(resolved(0.0), Resolved::Signum { momentum: 0.0 });
        assert_eq!(resolved(0.9), Resolved::Signum { momentum: 0.9 });
    }

    #[test]
    fn settings_that_a_method_does_not_take_are_refused() {
        for policy in [Policy::random_k(0.5), Policy::random_block(0.5), Policy::block(0.5)] {
            assert!(matches!(policy.resolve("t", &[8]), Ok(Resolved::Sparse(..))), "{policy}");
            let refused = policy.threshold(Threshold::Exact).resolve("t", &[8]);
            assert!(
                matches!(refused, Err(Error::PolicySetting { setting: "a threshold", .. })),
                "{refused:?}"
            );
            let exact = [policy.pairs(), policy.values(Values::F32)].map(|policy| policy.resolve("t", &[8]));
            assert!(exact.iter().all(|found| matches!(found, Err(Error::PolicySetting { .. }))), "{exact:?}");
            let error = policy.values(Values::Bf16).resolve("t", &[8]).unwrap_err().to_string();
            let (name, _) = policy.to_string().split_once(':').map(|(a, b)| (a.to_owned(), b.len())).unwrap();
            let expected = format!(
                "tensor \"t\": {name} does not take a format of values: its sums are those of f32 values"
            );
            assert_eq!(error, expected);
        }
        assert!(Policy::oktopk(0.5).values(Values::Bf16).resolve("t", &[8]).is_ok());
    }

    #[test]
    fn fixed_thresholds_outside_their_range_are_refused() {
        for tau in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let refused = Policy::topk(0.5).threshold(Threshold::Fixed(tau)).resolve("t", &[8]);
            assert!(matches!(refused, Err(Error::Policy { parameter: "threshold", .. })), "{refused:?}");
        }
    }

    #[test]
    fn a_density_is_one_of_entries_or_of_blocks() {
        let k = |policy: Policy, count| match policy.resolve("t", &[count]).unwrap() {
            Resolved::Sparse(density, policy) => policy.method.selected(density, count),
            other => panic!("{other:?}"),
        };
        for policy in [Policy::oktopk(0.1), Policy::random_k(0.1), Policy::random_block(0.1)] {
            assert_eq!((k(policy, 1000), k(policy, 1), k(policy, 0)), (100, 1, 0), "{policy}");
        }
        let block = Policy::block(0.25);
        assert_eq!((k(block, 256 * 8), k(block, 256 * 8 + 1), k(block, 3), k(block, 0)), (2, 3, 1, 0));
    }

    #[test]
    fn at_least_one_entry_is_kept() {
        let resolved = Policy::gtopk(0.001).resolve("t", &[10]).unwrap();
        let Resolved::Sparse(density, policy) = resolved else { panic!("{resolved:?}") };
        assert_eq!(policy.method.selected(density, 10), 1);
    }
}
