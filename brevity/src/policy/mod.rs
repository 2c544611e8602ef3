//! How a tensor's gradients travel.

mod momentum;
mod rules;
mod text;

pub(crate) use momentum::Momentum;
pub use rules::PolicyRules;

use brevity_collectives::sparse::PutBack;
use brevity_compress::Density;
use brevity_compress::low_rank::worth_it;
use brevity_compress::quantise::Values;

use crate::error::{Error, Result};

/// The range of a density, for error messages.
pub(crate) const DENSITIES: &str = "above 0 and at most 1";

/// A matrix that compresses by a smaller factor travels uncompressed.
const DEFAULT_MIN_COMPRESSION: f64 = 2.0;

/// An entry's index has 32 bits.
const MOST_INDICES: u64 = 1 << 32;

/// How one tensor's gradients travel. What is not sent stays in a residual and is sent later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy(pub(crate) Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Dense,
    Sparse(SparsePolicy),
    LowRank { rank: usize, min_compression: f64 },
}

/// A sparse policy's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SparsePolicy {
    pub(crate) density: f64,
    pub(crate) method: SparseMethod,
    /// The format of the values on the wire.
    pub(crate) values: Values,
    pub(crate) momentum: Momentum,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SparseMethod {
    /// Every rank's largest entries, all delivered.
    Union,
    /// The largest entries of the sum over all ranks of their largest entries.
    Global(PutBack),
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

    const fn sparse(density: f64, method: SparseMethod) -> Self {
        Self(Kind::Sparse(SparsePolicy { density, method, values: Values::F32, momentum: Momentum::None }))
    }

    /// Factors of rank `rank` of the tensor, seen as a matrix of its first dimension by the product of the
    /// others: PowerSGD. Vectors, and matrices that would not shrink by a factor of 2, travel dense.
    ///
    /// Dense first steps can help while gradients change fast. For that, begin with an exchange of
    /// [`dense`](Self::dense) tensors and build this one later: after a step that succeeded, a dense exchange
    /// keeps nothing that the new exchange would need.
    #[must_use]
    pub const fn low_rank(rank: usize) -> Self {
        Self(Kind::LowRank { rank, min_compression: DEFAULT_MIN_COMPRESSION })
    }

    /// Which part of a gTop-k contribution returns to which residual. No effect on other policies.
    #[must_use]
    pub const fn put_back(mut self, rule: PutBack) -> Self {
        if let Kind::Sparse(SparsePolicy { method: SparseMethod::Global(own), .. }) = &mut self.0 {
            *own = rule;
        }
        self
    }

    /// How the values of [`topk`](Self::topk) and [`gtopk`](Self::gtopk) are written: exactly (`f32`) unless
    /// this says otherwise. What rounding takes away stays in residuals, and indices are packed. Sums that
    /// gTop-k passes on are written in the [format for sums](Values::of_sums). No effect on other policies.
    #[must_use]
    pub const fn values(mut self, values: Values) -> Self {
        if let Kind::Sparse(SparsePolicy { values: own, .. }) = &mut self.0 {
            *own = values;
        }
        self
    }

    /// Momentum correction of [`topk`](Self::topk) and [`gtopk`](Self::gtopk) (0 <= factor < 1): momentum is
    /// applied before selecting, so the optimiser must not apply it again. Where an entry is delivered, its
    /// velocity begins anew (*masking*). Takes 4 bytes an element more. No effect on other policies. Lin et
    /// al., "Deep gradient compression", ICLR 2018.
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

    /// Sparsification-aware momentum of [`topk`](Self::topk) and [`gtopk`](Self::gtopk) (0 < factor < 1): a
    /// velocity that is not delivered grows as in one step with a larger batch. The optimiser must not apply
    /// momentum again. Takes no more memory than without. No effect on other policies. Yan et al., "Dual-way
    /// gradient sparsification", ICPP 2020.
    #[must_use]
    pub const fn samomentum(mut self, factor: f32) -> Self {
        if let Kind::Sparse(SparsePolicy { momentum, .. }) = &mut self.0 {
            *momentum = Momentum::Aware { factor };
        }
        self
    }

    /// The compression factor below which a low-rank tensor travels dense. No effect on other policies.
    #[must_use]
    pub const fn min_compression(mut self, factor: f64) -> Self {
        if let Kind::LowRank { min_compression, .. } = &mut self.0 {
            *min_compression = factor;
        }
        self
    }

    /// Checks a tensor of this shape as [`ExchangeBuilder::build`](crate::ExchangeBuilder::build) does and
    /// returns its number of elements, without allocating memory for it.
    ///
    /// # Errors
    /// [`Error::Policy`] for a parameter out of range; [`Error::TooLarge`] for more elements than memory or
    /// indices can address.
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
            Kind::Sparse(_) if count as u64 > MOST_INDICES => {
                Err(too_large(tensor, shape, "at most 2^32 with a sparse policy"))
            }
            Kind::Sparse(SparsePolicy { density, method, values, momentum }) => {
                let density =
                    Density::new(density).map_err(|_| out_of_range("density", density, DENSITIES))?;
                momentum.check().map_err(|(name, found, expected)| out_of_range(name, found, expected))?;
                Ok(Resolved::Sparse { k: density.entries(count), method, values, momentum })
            }
            Kind::LowRank { rank: 0, .. } => Err(out_of_range("rank", 0.0, "at least 1")),
            Kind::LowRank { rank, min_compression } => {
                let rows = shape.first().copied().unwrap_or(1);
                let cols = count.checked_div(rows).unwrap_or(0);
                let compress = shape.len() > 1 && worth_it(rows, cols, rank, min_compression);
                Ok(if compress { Resolved::LowRank { rows, cols, rank } } else { Resolved::Dense })
            }
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

/// A policy with the tensor's shape applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Resolved {
    Dense,
    Sparse { k: usize, method: SparseMethod, values: Values, momentum: Momentum },
    LowRank { rows: usize, cols: usize, rank: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_flat_tensors_travel_dense() {
        let policy = Policy::low_rank(2);
        assert_eq!(policy.resolve("bias", &[512]).unwrap(), Resolved::Dense);
        assert_eq!(policy.resolve("scalar", &[]).unwrap(), Resolved::Dense);
        assert_eq!(policy.resolve("small", &[4, 4]).unwrap(), Resolved::Dense);
        assert_eq!(policy.resolve("empty", &[0, 4]).unwrap(), Resolved::Dense);
        assert_eq!(
            policy.resolve("conv", &[64, 3, 7, 7]).unwrap(),
            Resolved::LowRank { rows: 64, cols: 147, rank: 2 }
        );
    }

    #[test]
    fn densities_outside_their_range_are_refused() {
        for density in [0.0, -0.1, 1.5, f64::NAN] {
            assert!(
                matches!(Policy::gtopk(density).resolve("t", &[8]), Err(Error::Policy { .. })),
                "{density}"
            );
        }
        assert!(matches!(Policy::low_rank(0).resolve("t", &[8, 8]), Err(Error::Policy { .. })));
    }

    #[test]
    fn tensors_that_no_memory_or_no_index_reaches_are_refused() {
        let refused = |policy: Policy, shape: &[usize]| {
            matches!(policy.resolve("t", shape), Err(Error::TooLarge { .. }))
        };
        for policy in [Policy::dense(), Policy::topk(0.1), Policy::gtopk(0.1), Policy::low_rank(1)] {
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
        let values = |policy: Policy| match policy.resolve("t", &[10]).unwrap() {
            Resolved::Sparse { values, .. } => values,
            other => panic!("{other:?}"),
        };
        for policy in [Policy::topk(0.5), Policy::gtopk(0.5)] {
            assert_eq!(values(policy), Values::F32);
            assert_eq!(values(policy.values(Values::Bf16)), Values::Bf16);
        }
        for other in [Policy::dense(), Policy::low_rank(2)] {
            assert_eq!(other.values(Values::Bf16), other);
        }
    }

    #[test]
    fn at_least_one_entry_is_kept() {
        let resolved = Policy::gtopk(0.001).resolve("t", &[10]).unwrap();
        assert!(matches!(resolved, Resolved::Sparse { k: 1, .. }));
    }
}
