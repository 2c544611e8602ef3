//! Policies that are chosen for the network.

use std::fmt;

use brevity_collectives::sparse::PutBack;
use brevity_collectives::{Operation, Planned};
use brevity_compress::Density;
use brevity_compress::quantise::Values;

use super::{DENSITIES, Kind, Policy, Resolved, SparseMethod, SparsePolicy};
use crate::error::{Error, Result};

/// The density of [`Policy::auto`].
const DENSITY: f64 = 0.001;

/// The parameters of [`Policy::auto`]: what it may choose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AutoPolicy {
    pub(crate) density: f64,
    /// The format to which values may be rounded.
    pub(crate) values: Option<Values>,
    /// The rank of the factors that matrices may have.
    pub(crate) rank: Option<usize>,
    /// Whether blocks may be selected.
    pub(crate) blocks: bool,
}

impl Policy {
    /// What is estimated to be the fastest of [`dense`](Self::dense), [`topk`](Self::topk),
    /// [`gtopk`](Self::gtopk) and [`oktopk`](Self::oktopk), the latter with [pairs](Self::pairs) or packed
    /// `f32`, and with the time that a rank needs to select, to write and read messages and to merge: dense
    /// where compression does not pay. An exchange that [keeps going](crate::ExchangeBuilder::keep_going) may
    /// also take [`gtopk`](Self::gtopk) by [hosts](Self::hierarchical), if several ranks share one. The
    /// [density](Self::density) is 0.001 unless set.
    ///
    /// So it may change which entries are delivered in a step, and how many, but no value is rounded: what is
    /// sent and what waits is what was handed in. More is weighed only if it is allowed:
    /// [`values`](Self::values) of 16 bits, [low rank](Self::allow_low_rank), and
    /// [blocks](Self::allow_blocks).
    ///
    /// The choice is made once, when the exchange is built, for all `auto` tensors of a sparse
    /// [bucket](crate::ExchangeBuilder::bucket_bytes) together that allow the same, from
    /// [`Group::compare`](brevity_collectives::Group::compare) and so from the speeds of rank 0: it is the
    /// same on all ranks. They then travel as tensors with the policy that was chosen, in buckets with
    /// others. [`GradientExchange::choice`](crate::GradientExchange::choice) tells it, and why. The exchange
    /// keeps it in another group ([`rejoin`](crate::GradientExchange::rejoin),
    /// [`go_on`](crate::GradientExchange::go_on)): ranks that are new there give the chosen policies.
    /// Saved state fits every choice but low rank, of exchanges that are built with `auto`.
    #[must_use]
    pub const fn auto() -> Self {
        Self(Kind::Auto(AutoPolicy { density: DENSITY, values: None, rank: None, blocks: false }))
    }

    /// Lets [`auto`](Self::auto) choose [`low_rank`](Self::low_rank) of this rank, for the matrices of a
    /// bucket that it shrinks, with its other tensors in the message of the left factors. It delivers other
    /// gradients than selected entries are. State that is saved with that choice is loaded with the same. As
    /// text `rank=R`. No effect on other policies.
    #[must_use]
    pub const fn allow_low_rank(mut self, rank: usize) -> Self {
        if let Kind::Auto(AutoPolicy { rank: own, .. }) = &mut self.0 {
            *own = Some(rank);
        }
        self
    }

    /// Lets [`auto`](Self::auto) choose [`block`](Self::block): blocks of 256 elements in place of entries,
    /// which need no index each and are merged faster, and deliver less of a gradient whose large entries lie
    /// apart. As text `block=yes`. No effect on other policies.
    #[must_use]
    pub const fn allow_blocks(mut self) -> Self {
        if let Kind::Auto(AutoPolicy { blocks, .. }) = &mut self.0 {
            *blocks = true;
        }
        self
    }

    /// Sets the density of [`auto`](Self::auto), or of a sparse policy (0 < density <= 1). No effect on other
    /// policies.
    #[must_use]
    pub const fn density(mut self, density: f64) -> Self {
        match &mut self.0 {
            Kind::Auto(AutoPolicy { density: own, .. }) => *own = density,
            Kind::Sparse(policy) => policy.density = density,
            _ => {}
        }
        self
    }

    /// What it says, if it is sparse.
    pub(crate) const fn as_sparse(&self) -> Option<&SparsePolicy> {
        if let Kind::Sparse(policy) = &self.0 { Some(policy) } else { None }
    }

    /// The format of a quantised policy.
    pub(crate) const fn quantised_values(&self) -> Option<Values> {
        if let Kind::Quantised(values) = self.0 { Some(values) } else { None }
    }

    /// Whether it is one of factors.
    pub(crate) const fn is_low_rank(&self) -> bool {
        matches!(self.0, Kind::LowRank(_))
    }
}

impl AutoPolicy {
    /// The policy applied to a tensor of this shape.
    pub(super) fn resolve(self, tensor: &str, shape: &[usize]) -> Result<Resolved> {
        let density = Density::new(self.density).map_err(|_| Error::Policy {
            tensor: tensor.into(),
            parameter: "density",
            found: self.density,
            expected: DENSITIES,
        })?;
        if !matches!(self.values, None | Some(Values::F16 | Values::Bf16)) {
            return Err(Error::PolicySetting {
                tensor: tensor.into(),
                policy: "auto",
                setting: "this format of values",
                reason: "it may round to f16 or bf16",
            });
        }
        let factors = self.rank.map(|rank| Policy::low_rank(rank).resolve(tensor, shape)).transpose()?;
        let matrix = match factors {
            Some(Resolved::LowRank { rows, cols, .. }) => Some([rows, cols]),
            _ => None,
        };
        Ok(Resolved::Auto { density, allowed: self, matrix })
    }

    /// The policies that it may choose, by their collective and its wire, with this density.
    pub(crate) fn chosen(self, way: &Planned, density: f64) -> Option<Policy> {
        let method = match way.operation {
            _ if way.policy.is_some() => return None,
            Operation::ALL_REDUCE => return Some(Policy::dense()),
            Operation::LOW_RANK_ALL_REDUCE => return self.rank.map(Policy::low_rank),
            Operation::QUANTISED_ALL_REDUCE => return self.values.map(Policy::quantised),
            Operation::BLOCK_ALL_REDUCE => SparseMethod::Blocks,
            Operation::TOPK_ALL_REDUCE => SparseMethod::Union,
            Operation::GTOPK_ALL_REDUCE => SparseMethod::Global(PutBack::Conserving),
            Operation::OK_TOPK_ALL_REDUCE => SparseMethod::OkTopk,
            Operation::HIERARCHICAL_ALL_REDUCE => SparseMethod::Global(PutBack::Conserving),
            _ => return None,
        };
        let sparse = Policy::sparse(density, method);
        let by_hosts = way.operation == Operation::HIERARCHICAL_ALL_REDUCE;
        let sparse = if by_hosts { sparse.hierarchical() } else { sparse };
        Some(way.wire.map_or(sparse, |wire| sparse.on(wire)))
    }

    /// With a setting of a policy's text. The error says what is expected.
    pub(super) fn with(self, key: &str, value: &str) -> std::result::Result<Policy, String> {
        let policy = Policy(Kind::Auto(self));
        match key {
            "values" => match value.parse() {
                Ok(values @ (Values::F16 | Values::Bf16)) => Ok(policy.values(values)),
                _ => Err("values=FORMAT, with f16 or bf16".into()),
            },
            "rank" => {
                let rank = value.parse().ok().filter(|rank| *rank > 0);
                rank.map(|rank| policy.allow_low_rank(rank))
                    .ok_or_else(|| "rank=R, with a rank of at least 1".into())
            }
            "block" if value == "yes" => Ok(policy.allow_blocks()),
            "block" => Err("block=yes".into()),
            _ => Err("only values=FORMAT, rank=R and block=yes after the method".into()),
        }
    }
}

impl fmt::Display for AutoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { density, values, rank, blocks } = self;
        f.write_str("auto")?;
        if *density != DENSITY {
            write!(f, ":{density}")?;
        }
        if let Some(values) = values {
            write!(f, ",values={values}")?;
        }
        if let Some(rank) = rank {
            write!(f, ",rank={rank}")?;
        }
        f.write_str(if *blocks { ",block=yes" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_survives_its_text() {
        let all = Policy::auto().density(0.01).values(Values::Bf16).allow_low_rank(4).allow_blocks();
        for (text, policy) in [
            ("auto,values=f16", Policy::auto().values(Values::F16)),
            ("auto,rank=2", Policy::auto().allow_low_rank(2)),
            ("auto:0.01,block=yes", Policy::auto().density(0.01).allow_blocks()),
            ("auto:0.01,values=bf16,rank=4,block=yes", all),
        ] {
            assert_eq!(text.parse::<Policy>().unwrap(), policy, "{text}");
            assert_eq!(policy.to_string(), text);
        }
        for (text, expected) in [
            ("auto,values=one-bit-mean", "values=FORMAT, with f16 or bf16"),
            ("auto,rank=0", "rank=R, with a rank of at least 1"),
            ("auto,block=no", "block=yes"),
            ("auto,momentum=0.5", "only values=FORMAT, rank=R and block=yes after the method"),
        ] {
            let refused = text.parse::<Policy>().unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        assert_eq!(Policy::dense().allow_low_rank(3).allow_blocks(), Policy::dense());
    }

    #[test]
    fn what_it_can_not_choose_is_refused() {
        let refused = Policy::auto().values(Values::OneBitColumns(0)).check("weight", &[8, 8]);
        assert!(matches!(refused, Err(Error::PolicySetting { policy: "auto", .. })), "{refused:?}");
        let refused = Policy::auto().allow_low_rank(0).check("weight", &[8, 8]);
        assert!(matches!(refused, Err(Error::Policy { parameter: "rank", .. })), "{refused:?}");
    }
}
