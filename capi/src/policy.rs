//! How the gradients of one tensor travel, as in C.

use brevity::compress::quantise::{Magnitude, Values};
use brevity::{Policy, PutBack, Threshold};

use crate::boundary::check;
use crate::failure::Failure;

/// A method's number. C may pass any number, so this is not a Rust enum.
pub type brv_method = u32;
/// The number of a rule for what gTop-k puts back.
pub type brv_put_back = u32;

/// The number of a format of values.
pub type brv_values = u32;
/// The number of a rule of momentum before selection.
pub type brv_momentum = u32;

/// The number of a rule for what a rank selects.
pub type brv_selection = u32;

const DENSE: brv_method = 1;
const TOPK: brv_method = 2;
const GTOPK: brv_method = 3;
const LOW_RANK: brv_method = 4;
const QUANTISED: brv_method = 5;
const SIGNUM: brv_method = 6;
const OK_TOPK: brv_method = 7;
const RANDOM_K: brv_method = 8;
const RANDOM_BLOCK: brv_method = 9;
const BLOCK: brv_method = 10;
const UNBIASED_LOW_RANK: brv_method = 11;
const BEST_LOW_RANK: brv_method = 12;
const ATOMO: brv_method = 13;
const SIGN_NORM: brv_method = 14;
const EXCLUDED: brv_method = 15;

/// The numbers of exact values in entries: pairs or packed, as is estimated to be faster; packed; pairs.
const CHOSEN: brv_values = 0;
pub(crate) const F32_PACKED: brv_values = 8;
/// Above those of formats, of which more may come.
pub(crate) const PAIRS: brv_values = 16;

/// A method with its parameters, as in C.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct brv_policy {
    size: u32,
    method: brv_method,
    density: f64,
    rank: u32,
    put_back: brv_put_back,
    min_compression: f64,
    values: brv_values,
    momentum_rule: brv_momentum,
    momentum: f64,
    clip: f64,
    selection: brv_selection,
    unused: u32,
    threshold: f64,
    post_momentum: f64,
    reserved: [u64; 2],
}

/// Reads a policy; NULL is dense. The fields that its method uses are checked.
///
/// # Safety
/// `policy` is NULL, or points to at least 4 bytes that hold its size. If that is the size of [`brv_policy`],
/// the whole struct may be read.
pub(crate) unsafe fn read(policy: *const brv_policy) -> Result<Policy, Failure> {
    if policy.is_null() {
        return Ok(Policy::dense());
    }
    check(policy, "policy")?;
    // SAFETY: not NULL and aligned; the caller of this function guarantees 4 bytes.
    let size = unsafe { (&raw const (*policy).size).read() };
    if size as usize != size_of::<brv_policy>() {
        let expected = size_of::<brv_policy>();
        return Err(refused("size", size, &format!("{expected}: begin with a macro, as BRV_POLICY_GTOPK")));
    }
    // SAFETY: it has the size of a policy, so the caller of this function guarantees all of it.
    let policy = unsafe { policy.read() };
    if policy.reserved != [0; 2] || policy.unused != 0 {
        return Err(Failure::argument(
            "a reserved field of policy is set, expected 0: begin with a macro, as BRV_POLICY_GTOPK",
        ));
    }
    let density = || density(&policy);
    match policy.method {
        DENSE => Ok(Policy::dense()),
        TOPK => of_entries(Policy::topk(density()?), &policy),
        GTOPK => {
            let refused = || refused("put_back", policy.put_back, "a brv_put_back (0 to 2)");
            let rule = put_back(policy.put_back).ok_or_else(refused)?;
            of_entries(Policy::gtopk(density()?).put_back(rule), &policy)
        }
        OK_TOPK => of_entries(Policy::oktopk(density()?), &policy),
        RANDOM_K => sparse(Policy::random_k(density()?), &policy),
        RANDOM_BLOCK => sparse(Policy::random_block(density()?), &policy),
        BLOCK => sparse(Policy::block(density()?), &policy),
        LOW_RANK => low_rank(Policy::low_rank, &policy),
        UNBIASED_LOW_RANK => low_rank(Policy::unbiased_low_rank, &policy),
        BEST_LOW_RANK => low_rank(Policy::best_low_rank, &policy),
        ATOMO => low_rank(Policy::atomo, &policy),
        QUANTISED => Ok(Policy::quantised(values_of(&policy)?)),
        SIGNUM => Ok(Policy::signum(momentum("momentum", policy.momentum)?)),
        SIGN_NORM => Ok(Policy::sign_norm()),
        EXCLUDED => Ok(Policy::excluded()),
        other => Err(refused("method", other, &format!("a brv_method ({DENSE} to {EXCLUDED})"))),
    }
}

fn density(policy: &brv_policy) -> Result<f64, Failure> {
    let density = policy.density;
    if density > 0.0 && density <= 1.0 {
        return Ok(density);
    }
    Err(refused("density", density, "above 0 and at most 1"))
}

/// A momentum in a field of this name.
fn momentum(field: &str, momentum: f64) -> Result<f32, Failure> {
    // Rounded first: the nearest `f32` of a number below 1 may be 1.
    let rounded = momentum as f32;
    if (0.0..1.0).contains(&rounded) {
        return Ok(rounded);
    }
    Err(refused(field, momentum, "at least 0 and below 1"))
}

/// With the values, the threshold and the momentum of a policy that selects entries.
fn of_entries(chosen: Policy, policy: &brv_policy) -> Result<Policy, Failure> {
    let coded = match policy.values {
        CHOSEN => chosen,
        F32_PACKED => chosen.values(Values::F32),
        PAIRS => chosen.pairs(),
        number => {
            let expected = format!("a brv_values (0 to {F32_PACKED}, or {PAIRS})");
            chosen.values(values(number).ok_or_else(|| refused("values", number, &expected))?)
        }
    };
    let selecting = match policy.selection {
        0 => coded,
        1 => coded.threshold(Threshold::Exact),
        2 => coded.threshold(Threshold::Sampled),
        3 => coded.threshold(Threshold::Adaptive),
        4 => coded.threshold(Threshold::Fixed(threshold(policy)?)),
        other => return Err(refused("selection", other, "a brv_selection (0 to 4)")),
    };
    sparse(selecting, policy)
}

fn threshold(policy: &brv_policy) -> Result<f32, Failure> {
    // Rounded first, as momenta are.
    let threshold = policy.threshold as f32;
    if threshold > 0.0 && threshold.is_finite() {
        return Ok(threshold);
    }
    Err(refused("threshold", policy.threshold, "a magnitude above 0, within the range of float"))
}

/// With the momentum of a sparse policy.
fn sparse(sparse: Policy, policy: &brv_policy) -> Result<Policy, Failure> {
    let factor = || momentum("momentum", policy.momentum);
    let corrected = match policy.momentum_rule {
        0 => sparse,
        1 => sparse.momentum(factor()?),
        2 => sparse.momentum(factor()?).nesterov(),
        3 if policy.momentum as f32 > 0.0 => sparse.samomentum(factor()?),
        3 => return Err(refused("momentum", policy.momentum, "above 0 and below 1")),
        other => return Err(refused("momentum_rule", other, "a brv_momentum (0 to 3)")),
    };
    match policy.clip {
        0.0 => Ok(corrected),
        limit if limit > 0.0 && limit.is_finite() && policy.momentum_rule != 3 => Ok(corrected.clip(limit)),
        other => Err(refused("clip", other, "a norm above 0, or 0; with BRV_MOMENTUM_AWARE 0")),
    }
}

/// The numbers of formats that are not for sparse calls alone.
pub(crate) const VALUES_TEXT: &str = "a brv_values (0 to 7 or 9 to 12)";

fn values_of(policy: &brv_policy) -> Result<Values, Failure> {
    values(policy.values).ok_or_else(|| refused("values", policy.values, VALUES_TEXT))
}

/// `BRV_VALUES_QSGD(0)`.
const QSGD: brv_values = 0x1000;

/// `BRV_VALUES_COLUMNS(0)`.
const COLUMNS: brv_values = 0x4000_0000;

/// The format of this number.
pub(crate) fn values(number: brv_values) -> Option<Values> {
    const VALUES: [Values; 8] = [
        Values::F32,
        Values::F16,
        Values::Bf16,
        Values::OneBit(Magnitude::Mean),
        Values::OneBit(Magnitude::Min),
        Values::TwoBit(Magnitude::Mean),
        Values::TwoBit(Magnitude::Min),
        Values::EightBit,
    ];
    match number {
        9 => Some(Values::Ternary),
        10 => Some(Values::Qsgd(7)),
        11 => Some(Values::Qsgd(127)),
        12 => Some(Values::OneBitColumns(0)),
        0x1002..=0x107f => Some(Values::Qsgd((number - QSGD) as u8)),
        0x4000_0001..=0x7fff_ffff => Some(Values::OneBitColumns(number - COLUMNS)),
        other => VALUES.get(other as usize).copied(),
    }
}

/// The rule of this number.
pub(crate) fn put_back(number: brv_put_back) -> Option<PutBack> {
    const RULES: [PutBack; 3] = [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps];
    RULES.get(number as usize).copied()
}

/// With the rank and what else is of a policy for matrices.
fn low_rank(method: fn(usize) -> Policy, policy: &brv_policy) -> Result<Policy, Failure> {
    if policy.rank == 0 {
        return Err(refused("rank", policy.rank, "1 or more"));
    }
    let factors = method(policy.rank as usize);
    let factors = match policy.min_compression {
        0.0 => factors,
        factor if factor > 0.0 => factors.min_compression(factor),
        other => return Err(refused("min_compression", other, "a factor above 0, or 0 for 2")),
    };
    match policy.post_momentum {
        0.0 => Ok(factors),
        factor => Ok(factors.post_momentum(momentum("post_momentum", factor)?)),
    }
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("policy.{field} is {found:?}, expected {expected}"))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
