//! Policies of matrices.

use brevity_compress::low_rank::worth_it;

use super::{Kind, MOMENTA, Policy, Resolved};
use crate::error::{Error, Result};

/// A matrix that compresses by a smaller factor travels uncompressed.
pub(super) const DEFAULT_MIN_COMPRESSION: f64 = 2.0;

/// A low-rank policy's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LowRankPolicy {
    pub(crate) method: LowRankMethod,
    pub(crate) rank: usize,
    pub(crate) min_compression: f64,
    /// The factor of the momentum after aggregation.
    pub(crate) post_momentum: Option<f32>,
    /// The first steps, in which everything travels.
    pub(crate) dense_steps: u64,
}

/// How a matrix is approximated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LowRankMethod {
    PowerSgd,
    Unbiased,
    Best,
    Atomo,
}

impl LowRankMethod {
    /// The names of policies as text.
    pub(super) const ALL: [(&'static str, Self); 4] = [
        ("low-rank", Self::PowerSgd),
        ("unbiased-low-rank", Self::Unbiased),
        ("best-low-rank", Self::Best),
        ("atomo", Self::Atomo),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }

    /// Whether it needs singular vectors, which are a feature of this crate.
    const fn needs_svd(self) -> bool {
        matches!(self, Self::Best | Self::Atomo)
    }

    /// The policy of this method.
    pub(super) const fn policy(self, rank: usize) -> Policy {
        let (min_compression, post_momentum, dense_steps) = (DEFAULT_MIN_COMPRESSION, None, 0);
        Policy(Kind::LowRank(LowRankPolicy {
            method: self,
            rank,
            min_compression,
            post_momentum,
            dense_steps,
        }))
    }
}

impl Policy {
    /// Factors of rank `rank` of the tensor, seen as a matrix of its first dimension by the product of the
    /// others: PowerSGD. Vectors, and matrices that would not shrink by a factor of 2, travel uncompressed,
    /// in the message of the left factors, with the averages of [`dense`](Self::dense) tensors. Give a
    /// model's biases this policy too, and they cost no message of their own.
    ///
    /// [Dense first steps](Self::dense_steps) can help while gradients change fast.
    #[must_use]
    pub const fn low_rank(rank: usize) -> Self {
        LowRankMethod::PowerSgd.policy(rank)
    }

    /// Unbiased rank `rank`: `M U U^T`, with a random `U` that all ranks draw alike, another one in each
    /// step. Of the matrix `M`, seen as in [`low_rank`](Self::low_rank), only `M U` travels, in one
    /// all-reduce of `4 rank rows` bytes, together with vectors. There is no error feedback: the mean over
    /// all `U` is the average, and an average alone has an error of `sqrt(cols / rank - 1)` times the norm of
    /// `M`. A step that fails is kept whole (4 bytes an element) and sent later.
    ///
    /// For comparison: Vogels et al., NeurIPS 2019, 4.1.
    #[must_use]
    pub const fn unbiased_low_rank(rank: usize) -> Self {
        LowRankMethod::Unbiased.policy(rank)
    }

    /// Best rank `rank`: each rank's own best approximation, with error feedback. All ranks gather all
    /// factors (an all-gather of `4 rank (rows + cols)` bytes from each rank), and average what they multiply
    /// to. Vectors travel dense.
    ///
    /// For comparison (Vogels et al., NeurIPS 2019, 4.2), and slow: a singular value decomposition of each
    /// matrix in each step. Needs the feature `svd` of this crate; otherwise
    /// [`build`](crate::ExchangeBuilder::build) fails with [`Error::Feature`].
    #[must_use]
    pub const fn best_low_rank(rank: usize) -> Self {
        LowRankMethod::Best.policy(rank)
    }

    /// Spectral Atomo: each rank samples `rank` of its singular components at most, unbiased and without
    /// error feedback. Sent as [`best_low_rank`](Self::best_low_rank), as slow, and with the same feature.
    /// Samples depend on the seed, the tensor, the rank and the number of the step. A step that fails is kept
    /// whole (4 bytes an element) and sent later.
    ///
    /// For comparison: Wang et al., "ATOMO", NeurIPS 2018.
    #[must_use]
    pub const fn atomo(rank: usize) -> Self {
        LowRankMethod::Atomo.policy(rank)
    }

    /// The compression factor below which a low-rank tensor travels uncompressed. No effect on other
    /// policies.
    #[must_use]
    pub const fn min_compression(mut self, factor: f64) -> Self {
        if let Kind::LowRank(LowRankPolicy { min_compression, .. }) = &mut self.0 {
            *min_compression = factor;
        }
        self
    }

    /// Momentum of the averages of a low-rank tensor, after aggregation (0 <= factor < 1): with the average
    /// `a` of a step, `m = factor * m + a`, and the exchange returns `a + m` in place of `a`. So the
    /// optimiser does `x -= rate * result` and applies no momentum itself. Error feedback is as without it.
    /// Vectors with the policy have it too.
    ///
    /// It is not [`momentum`](Self::momentum), which each rank applies to its own gradients before it
    /// selects: this one has the same bits on all ranks. It takes 4 bytes an element. Only a step that
    /// succeeds changes it. It is saved and loaded, and [`rejoin`](crate::GradientExchange::rejoin) starts it
    /// again at 0, because survivors may be a step apart. Results stop at the largest finite number. All
    /// ranks pass gradients of one type: it is that of the averages as they are rounded to it. No effect on
    /// other policies.
    ///
    /// Vogels et al., NeurIPS 2019, algorithm 2 ("post-compression momentum").
    #[must_use]
    pub const fn post_momentum(mut self, factor: f32) -> Self {
        if let Kind::LowRank(LowRankPolicy { post_momentum, .. }) = &mut self.0 {
            *post_momentum = Some(factor);
        }
        self
    }

    /// The factor of [`post_momentum`](Self::post_momentum).
    pub(crate) const fn post_momentum_factor(self) -> Option<f32> {
        if let Kind::LowRank(LowRankPolicy { post_momentum, .. }) = self.0 { post_momentum } else { None }
    }
}

impl LowRankPolicy {
    /// The policy applied to a tensor of this shape and of `count` elements.
    pub(super) fn resolve(self, tensor: &str, shape: &[usize], count: usize) -> Result<Resolved> {
        let Self { method, rank, min_compression, post_momentum, dense_steps } = self;
        let out_of_range =
            |parameter, found, expected| Error::Policy { tensor: tensor.into(), parameter, found, expected };
        if rank == 0 {
            return Err(out_of_range("rank", 0.0, "at least 1"));
        }
        if let Some(factor) = post_momentum.filter(|factor| !(0.0..1.0).contains(factor)) {
            return Err(out_of_range("post-momentum", factor.into(), MOMENTA));
        }
        if method.needs_svd() && !cfg!(feature = "svd") {
            return Err(Error::Feature { tensor: tensor.into(), policy: method.name(), feature: "svd" });
        }
        let rows = shape.first().copied().unwrap_or(1);
        let cols = count.checked_div(rows).unwrap_or(0);
        let shrinks = shape.len() > 1 && worth_it(rows, cols, rank, min_compression);
        if shrinks {
            return Ok(Resolved::LowRank { method, rows, cols, rank, dense_steps });
        }
        Ok(Resolved::Vector { method })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_flat_tensors_travel_uncompressed() {
        let (policy, method) = (Policy::low_rank(2), LowRankMethod::PowerSgd);
        let vector = Resolved::Vector { method };
        for (name, shape) in [("bias", &[512][..]), ("scalar", &[]), ("small", &[4, 4]), ("empty", &[0, 4])] {
            assert_eq!(policy.resolve(name, shape).unwrap(), vector, "{name}");
        }
        let conv = |dense_steps| Resolved::LowRank { method, rows: 64, cols: 147, rank: 2, dense_steps };
        assert_eq!(policy.resolve("conv", &[64, 3, 7, 7]).unwrap(), conv(0));
        assert_eq!(policy.dense_steps(5).resolve("conv", &[64, 3, 7, 7]).unwrap(), conv(5));
    }

    #[test]
    fn dense_steps_are_those_of_powersgd() {
        for (text, policy) in [
            ("low-rank:4,dense-steps=500", Policy::low_rank(4).dense_steps(500)),
            (
                "low-rank:4,min=3,post-momentum=0.9,dense-steps=1",
                Policy::low_rank(4).min_compression(3.0).post_momentum(0.9).dense_steps(1),
            ),
        ] {
            assert_eq!(text.parse::<Policy>().unwrap(), policy, "{text}");
            assert_eq!(policy.to_string(), text);
        }
        for other in [Policy::unbiased_low_rank(2), Policy::best_low_rank(2), Policy::atomo(2)] {
            assert_eq!(other.dense_steps(3), other);
            let refused = format!("{other},dense-steps=3").parse::<Policy>().unwrap_err().to_string();
            assert!(refused.contains("only min=FACTOR and post-momentum=FACTOR after"), "{refused}");
        }
        for (text, expected) in [
            ("low-rank:4,dense-steps=-1", "dense-steps=N, with a number of steps"),
            ("low-rank:4,rows=1", "only min=FACTOR, post-momentum=FACTOR and dense-steps=N after"),
        ] {
            let refused = text.parse::<Policy>().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        assert!(matches!(Policy::low_rank(0).resolve("t", &[8, 8]), Err(Error::Policy { .. })));
        for factor in [-0.1, 1.0, f32::NAN] {
            let error = Policy::low_rank(1).post_momentum(factor).resolve("t", &[8]).unwrap_err();
            assert!(matches!(error, Error::Policy { parameter: "post-momentum", .. }), "{error}");
        }
        let refused = Policy::best_low_rank(1).resolve("t", &[8, 8]);
        let is_feature = matches!(refused, Err(Error::Feature { feature: "svd", .. }));
        assert_eq!(is_feature, !cfg!(feature = "svd"));
        assert_eq!(Policy::dense().post_momentum(0.5), Policy::dense());
        assert_eq!(Policy::low_rank(1).post_momentum(0.5).post_momentum_factor(), Some(0.5));
    }
}
