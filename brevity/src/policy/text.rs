//! Policies in words: one text for command lines, settings, descriptions and what differs between ranks.

use std::fmt;
use std::str::FromStr;

use brevity_collectives::sparse::PutBack;
use brevity_compress::Density;
use brevity_compress::quantise::Values;

use super::sparse::{PAIRS, named};
use super::{
    DEFAULT_MIN_COMPRESSION, DENSITIES, Kind, LowRankMethod, LowRankPolicy, MOMENTA, Momentum, Policy, Scope,
    SparseMethod, SparsePolicy, Threshold,
};
use crate::error::{Error, Result};

/// The names of the rules of gTop-k.
const PUT_BACKS: [(&str, PutBack); 3] = [
    ("conserving", PutBack::Conserving),
    ("published", PutBack::Published),
    ("merger-keeps", PutBack::MergerKeeps),
];

const METHODS: &str = "dense, excluded, auto, auto:DENSITY, topk:DENSITY, gtopk:DENSITY, oktopk:DENSITY, \
                       random-k:DENSITY, random-block:DENSITY, block:DENSITY, low-rank:RANK, \
                       unbiased-low-rank:RANK, best-low-rank:RANK, atomo:RANK, quantised:FORMAT, sign-norm \
                       or signum:MOMENTUM";

const THRESHOLD: &str = "threshold=T, with exact, sampled, adaptive or a finite number above 0";

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Dense => f.write_str("dense"),
            Kind::Excluded => f.write_str("excluded"),
            Kind::Auto(policy) => fmt::Display::fmt(&policy, f),
            Kind::Sparse(policy) => {
                let SparsePolicy { density, method, wire, momentum, threshold, scope, .. } = policy;
                write!(f, "{}:{density}", method.name())?;
                if let Some(wire) = wire {
                    write!(f, ",values={}", named(wire))?;
                }
                if let SparseMethod::Global(rule) = method
                    && let Some((name, _)) = PUT_BACKS.iter().find(|(_, other)| *other == rule)
                    && rule != PutBack::default()
                {
                    write!(f, ",put-back={name}")?;
                }
                if let Some(threshold) = threshold.filter(|threshold| *threshold != method.own_threshold()) {
                    write!(f, ",threshold={threshold}")?;
                }
                if scope != Scope::default() {
                    write!(f, ",scope={scope}")?;
                }
                if policy.hierarchical {
                    f.write_str(",hierarchical=yes")?;
                }
                write!(f, "{momentum}")?;
                let dense_steps = policy.dense_steps;
                if dense_steps > 0 { write!(f, ",dense-steps={dense_steps}") } else { Ok(()) }
            }
            Kind::LowRank(LowRankPolicy { method, rank, min_compression, post_momentum, dense_steps }) => {
                write!(f, "{}:{rank}", method.name())?;
                if min_compression != DEFAULT_MIN_COMPRESSION {
                    write!(f, ",min={min_compression}")?;
                }
                if let Some(factor) = post_momentum {
                    write!(f, ",post-momentum={factor}")?;
                }
                if dense_steps > 0 { write!(f, ",dense-steps={dense_steps}") } else { Ok(()) }
            }
            Kind::Quantised(values) => write!(f, "quantised:{values}"),
            Kind::Signum { momentum } => write!(f, "signum:{momentum}"),
            Kind::SignNorm => f.write_str("sign-norm"),
        }
    }
}

/// Reads what [`Display`](fmt::Display) writes: a method, its number after a colon, then settings, as
/// `gtopk:0.001,put-back=published` or `low-rank:4,min=3`.
///
/// | method | number | settings |
/// | --- | --- | --- |
/// | `dense`, [`excluded`](Policy::excluded) | none | none |
/// | `auto` | none, or a [density](Policy::auto) | what it may choose: [`values`](Policy::values): `f16`, `bf16`; [`rank`](Policy::allow_low_rank): a rank; [`block`](Policy::allow_blocks): `yes` |
/// | `topk` | [density](Policy::topk) | [`values`](Policy::values): [`pairs`](Policy::pairs), or [`f32`, `bf16`, ...](Values); [`threshold`](Policy::threshold): [`exact`, `sampled`, `adaptive`, or a number](Threshold); [`scope`](Policy::scope): [`tensor`, `bucket`, `model`](Scope); [`momentum`](Policy::momentum), [`clip`](Policy::clip), [`samomentum`](Policy::samomentum): a number; [`nesterov`](Policy::nesterov), [`hierarchical`](Policy::hierarchical): `yes`; [`dense-steps`](Policy::dense_steps): a number |
/// | `gtopk` | [density](Policy::gtopk) | those of `topk`; [`put-back`](Policy::put_back): `conserving`, `published`, `merger-keeps` |
/// | `oktopk` | [density](Policy::oktopk) | those of `topk` but `hierarchical` |
/// | `random-k`, `random-block` | [density](Policy::random_k) | those of momentum; `dense-steps` |
/// | `block` | [density](Policy::block) | those of momentum; `dense-steps` |
/// | `low-rank` | [rank](Policy::low_rank) | [`min`](Policy::min_compression), [`post-momentum`](Policy::post_momentum): a factor; `dense-steps` |
/// | `unbiased-low-rank`, `best-low-rank`, `atomo` | [rank](Policy::unbiased_low_rank) | those of `low-rank` but `dense-steps` |
/// | `sign-norm` | none | none |
/// | `quantised` | [format](Policy::quantised): [`bf16`, `eight-bit`, ...](Values) | none |
/// | `signum` | [momentum](Policy::signum) | none |
impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |expected: String| Error::PolicyText { text: text.to_owned(), expected };
        let mut words = text.split(',').map(str::trim);
        let method = words.next().unwrap_or_default();
        let mut policy = method_of(method).map_err(refused)?;
        let mut known: Vec<&str> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if known.contains(&key) {
                return Err(refused(format!("{key} once")));
            }
            known.push(key);
            policy = policy.with(key, value).map_err(refused)?;
        }
        Ok(policy)
    }
}

/// The policy of a method and its number. The error says what is expected.
fn method_of(text: &str) -> Result<Policy, String> {
    let (name, number) = text.split_once(':').map_or((text, None), |(name, number)| (name, Some(number)));
    let density = || {
        let density = number.and_then(|number| number.parse().ok());
        let density = density.filter(|&density| Density::new(density).is_ok());
        density.ok_or_else(|| format!("{name}:DENSITY, with a density {DENSITIES}"))
    };
    match name {
        "dense" if number.is_none() => Ok(Policy::dense()),
        "excluded" if number.is_none() => Ok(Policy::excluded()),
        "auto" if number.is_none() => Ok(Policy::auto()),
        "auto" => density().map(|density| Policy::auto().density(density)),
        "topk" => density().map(Policy::topk),
        "gtopk" => density().map(Policy::gtopk),
        "oktopk" => density().map(Policy::oktopk),
        "random-k" => density().map(Policy::random_k),
        "random-block" => density().map(Policy::random_block),
        "block" => density().map(Policy::block),
        "sign-norm" if number.is_none() => Ok(Policy::sign_norm()),
        "dense" | "excluded" | "sign-norm" => Err(format!("{name} without a number")),
        "quantised" => {
            let values = number.and_then(|number| number.parse().ok());
            values.map(Policy::quantised).ok_or_else(|| {
                let sound: Vec<_> =
                    Values::NAMES.into_iter().filter(|name| !name.ends_with("-min")).collect();
                format!("quantised:FORMAT, with one of {}", sound.join(", "))
            })
        }
        "signum" => {
            let momentum = number.and_then(|number| number.parse().ok());
            let momentum = momentum.filter(|momentum| (0.0..1.0).contains(momentum));
            let expected = || format!("signum:MOMENTUM, with a momentum of {MOMENTA}");
            momentum.map(Policy::signum).ok_or_else(expected)
        }
        _ => {
            let method = LowRankMethod::ALL.into_iter().find(|(known, _)| *known == name);
            let (_, method) = method.ok_or(METHODS)?;
            let rank = number.and_then(|number| number.parse().ok()).filter(|&rank| rank > 0);
            let expected = || format!("{name}:RANK, with a rank of at least 1");
            rank.map(|rank| method.policy(rank)).ok_or_else(expected)
        }
    }
}

impl Policy {
    /// With a setting of its method. The error says what is expected.
    fn with(self, key: &str, value: &str) -> Result<Self, String> {
        match (self.0, key) {
            (Kind::Auto(policy), _) => policy.with(key, value),
            (Kind::Sparse(SparsePolicy { method: SparseMethod::Global(_), .. }), "put-back") => {
                let rule = PUT_BACKS.iter().find(|(name, _)| *name == value).map(|(_, rule)| *rule);
                rule.map(|rule| self.put_back(rule)).ok_or_else(|| {
                    let names = PUT_BACKS.map(|(name, _)| name).join(", ");
                    format!("put-back=RULE, with one of {names}")
                })
            }
            (Kind::Sparse(SparsePolicy { method, .. }), "values") if method.has_entries() => {
                let pairs = Some(self.pairs()).filter(|_| value == PAIRS);
                let values = value.parse().ok().map(|values| self.values(values));
                pairs.or(values).ok_or_else(|| {
                    let names = Values::NAMES.join(", ");
                    format!("values=FORMAT, with one of {PAIRS}, {names}")
                })
            }
            (Kind::Sparse(SparsePolicy { method, .. }), "threshold") if method.has_entries() => {
                let threshold = match value {
                    "exact" => Some(Threshold::Exact),
                    "sampled" => Some(Threshold::Sampled),
                    "adaptive" => Some(Threshold::Adaptive),
                    _ => value.parse().ok().map(Threshold::Fixed),
                };
                let threshold = threshold.filter(|threshold| threshold.out_of_range().is_none());
                threshold.map(|threshold| self.threshold(threshold)).ok_or_else(|| THRESHOLD.into())
            }
            (Kind::Sparse(SparsePolicy { method, .. }), "scope") if method.has_entries() => {
                let names = || Scope::ALL.map(|scope| scope.to_string()).join(", ");
                let scope = Scope::named(value).map(|scope| self.scope(scope));
                scope.ok_or_else(|| format!("scope=SCOPE, with one of {}", names()))
            }
            (
                Kind::Sparse(_) | Kind::LowRank(LowRankPolicy { method: LowRankMethod::PowerSgd, .. }),
                "dense-steps",
            ) => {
                let steps = value.parse().ok().map(|steps| self.dense_steps(steps));
                steps.ok_or_else(|| "dense-steps=N, with a number of steps".into())
            }
            (Kind::Sparse(SparsePolicy { method, .. }), "hierarchical") if method.has_leaders() => {
                if value == "yes" { Ok(self.hierarchical()) } else { Err("hierarchical=yes".into()) }
            }
            (
                Kind::Sparse(SparsePolicy { momentum, .. }),
                "momentum" | "nesterov" | "clip" | "samomentum",
            ) => self.with_momentum(momentum, key, value),
            (Kind::LowRank(_), "min") => {
                let factor = value.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
                factor
                    .map(|factor| self.min_compression(factor))
                    .ok_or_else(|| "min=FACTOR, with a factor above 0".into())
            }
            (Kind::LowRank(_), "post-momentum") => {
                let factor = value.parse().ok().filter(|factor| (0.0..1.0).contains(factor));
                factor
                    .map(|factor| self.post_momentum(factor))
                    .ok_or_else(|| format!("post-momentum=FACTOR, with a factor of {MOMENTA}"))
            }
            (kind, _) => Err(match kind {
                Kind::Sparse(SparsePolicy { method: SparseMethod::Global(_), .. }) => {
                    "only values=FORMAT, put-back=RULE, threshold=T, scope=SCOPE, hierarchical=yes, \
                     momentum=FACTOR, nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N"
                }
                Kind::Sparse(SparsePolicy { method, .. }) if method.has_leaders() => {
                    "only values=FORMAT, threshold=T, scope=SCOPE, hierarchical=yes, momentum=FACTOR, \
                     nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N"
                }
                Kind::Sparse(SparsePolicy { method, .. }) if method.has_entries() => {
                    "only values=FORMAT, threshold=T, scope=SCOPE, momentum=FACTOR, nesterov=yes, clip=NORM, \
                     samomentum=FACTOR and dense-steps=N"
                }
                Kind::Sparse(_) => {
                    "only momentum=FACTOR, nesterov=yes, clip=NORM, samomentum=FACTOR and dense-steps=N"
                }
                Kind::LowRank(LowRankPolicy { method: LowRankMethod::PowerSgd, .. }) => {
                    "only min=FACTOR, post-momentum=FACTOR and dense-steps=N"
                }
                Kind::LowRank(_) => "only min=FACTOR and post-momentum=FACTOR",
                _ => "nothing",
            }
            .to_owned()
                + " after the method"),
        }
    }

    /// With a setting of its momentum.
    fn with_momentum(self, momentum: Momentum, key: &str, value: &str) -> Result<Self, String> {
        let is_aware = matches!(momentum, Momentum::Aware { .. });
        let number = || value.parse::<f64>().ok();
        let set = match key {
            "momentum" if !is_aware => number().map(|factor| self.momentum(factor as f32)),
            "nesterov" if matches!(momentum, Momentum::Corrected { .. }) && value == "yes" => {
                Some(self.nesterov())
            }
            "clip" if !is_aware => number().map(|limit| self.clip(limit)),
            "samomentum" if momentum == Momentum::None => {
                number().map(|factor| self.samomentum(factor as f32))
            }
            _ => None,
        };
        let valid = set.filter(|policy| match policy.0 {
            Kind::Sparse(SparsePolicy { momentum, .. }) => momentum.check().is_ok(),
            _ => false,
        });
        valid.ok_or_else(|| {
            match key {
                "momentum" => "momentum=FACTOR, at least 0 and less than 1, without samomentum",
                "nesterov" => "nesterov=yes, after momentum=FACTOR",
                "clip" => "clip=NORM, above 0, without samomentum",
                _ => "samomentum=FACTOR, more than 0 and less than 1, without momentum and clip",
            }
            .to_owned()
        })
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
