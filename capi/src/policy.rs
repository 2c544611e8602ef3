//! How the gradients of one tensor travel, as in C.

use brevity::compress::quantise::{Magnitude, Values};
use brevity::{Policy, PutBack};

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

const DENSE: brv_method = 1;
const TOPK: brv_method = 2;
const GTOPK: brv_method = 3;
const LOW_RANK: brv_method = 4;
const QUANTISED: brv_method = 5;
const SIGNUM: brv_method = 6;

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
    reserved: [u64; 5],
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
    if policy.reserved != [0; 5] {
        return Err(Failure::argument(
            "a reserved field of policy is set, expected 0: begin with a macro, as BRV_POLICY_GTOPK",
        ));
    }
    match policy.method {
        DENSE => Ok(Policy::dense()),
        TOPK => sparse(Policy::topk(density(&policy)?), &policy),
        GTOPK => {
            let refused = || refused("put_back", policy.put_back, "a brv_put_back (0 to 2)");
            let rule = put_back(policy.put_back).ok_or_else(refused)?;
            sparse(Policy::gtopk(density(&policy)?).put_back(rule), &policy)
        }
        LOW_RANK => low_rank(&policy),
        QUANTISED => Ok(Policy::quantised(values_of(&policy)?)),
        SIGNUM => Ok(Policy::signum(momentum(&policy)?)),
        other => Err(refused("method", other, &format!("a brv_method ({DENSE} to {SIGNUM})"))),
    }
}

fn density(policy: &brv_policy) -> Result<f64, Failure> {
    let density = policy.density;
    if density > 0.0 && density <= 1.0 {
        return Ok(density);
    }
    Err(refused("density", density, "above 0 and at most 1"))
}

fn momentum(policy: &brv_policy) -> Result<f32, Failure> {
    // Rounded first: the nearest `f32` of a number below 1 may be 1.
    let momentum = policy.momentum as f32;
    if (0.0..1.0).contains(&momentum) {
        return Ok(momentum);
    }
    Err(refused("momentum", policy.momentum, "at least 0 and below 1"))
}

/// With the values and the momentum of a sparse policy.
fn sparse(sparse: Policy, policy: &brv_policy) -> Result<Policy, Failure> {
    let sparse = sparse.values(values_of(policy)?);
    let corrected = match policy.momentum_rule {
        0 => sparse,
        1 => sparse.momentum(momentum(policy)?),
        2 => sparse.momentum(momentum(policy)?).nesterov(),
        3 if policy.momentum as f32 > 0.0 => sparse.samomentum(momentum(policy)?),
        3 => return Err(refused("momentum", policy.momentum, "above 0 and below 1")),
        other => return Err(refused("momentum_rule", other, "a brv_momentum (0 to 3)")),
    };
    match policy.clip {
        0.0 => Ok(corrected),
        limit if limit > 0.0 && limit.is_finite() && policy.momentum_rule != 3 => Ok(corrected.clip(limit)),
        other => Err(refused("clip", other, "a norm above 0, or 0; with BRV_MOMENTUM_AWARE 0")),
    }
}

fn values_of(policy: &brv_policy) -> Result<Values, Failure> {
    values(policy.values).ok_or_else(|| refused("values", policy.values, "a brv_values (0 to 7)"))
}

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
    VALUES.get(number as usize).copied()
}

/// The rule of this number.
pub(crate) fn put_back(number: brv_put_back) -> Option<PutBack> {
    const RULES: [PutBack; 3] = [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps];
    RULES.get(number as usize).copied()
}

fn low_rank(policy: &brv_policy) -> Result<Policy, Failure> {
    if policy.rank == 0 {
        return Err(refused("rank", policy.rank, "1 or more"));
    }
    let low_rank = Policy::low_rank(policy.rank as usize);
    match policy.min_compression {
        0.0 => Ok(low_rank),
        factor if factor > 0.0 => Ok(low_rank.min_compression(factor)),
        other => Err(refused("min_compression", other, "a factor above 0, or 0 for 2")),
    }
}

fn refused(field: &str, found: impl std::fmt::Debug, expected: &str) -> Failure {
    Failure::argument(format!("policy.{field} is {found:?}, expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(method: brv_method) -> brv_policy {
        let size = size_of::<brv_policy>() as u32;
        let (density, rank, put_back, min_compression) = (0.5, 2, 0, 0.0);
        let (values, momentum_rule, momentum, clip, reserved) = (0, 0, 0.0, 0.0, [0; 5]);
        brv_policy {
            size,
            method,
            density,
            rank,
            put_back,
            min_compression,
            values,
            momentum_rule,
            momentum,
            clip,
            reserved,
        }
    }

    fn read_with(method: brv_method, change: impl Fn(&mut brv_policy)) -> Result<Policy, String> {
        let mut policy = policy(method);
        change(&mut policy);
        // SAFETY: the policy is a local variable.
        unsafe { read(&raw const policy) }.map_err(|failure| failure.text().to_owned())
    }

    #[test]
    fn each_method_takes_its_own_fields() {
        let plain = |method| read_with(method, |_| ()).unwrap();
        assert_eq!(plain(DENSE), Policy::dense());
        assert_eq!(plain(TOPK), Policy::topk(0.5));
        assert_eq!(plain(GTOPK), Policy::gtopk(0.5));
        assert_eq!(plain(LOW_RANK), Policy::low_rank(2));
        let published = read_with(GTOPK, |policy| policy.put_back = 1).unwrap();
        assert_eq!(published, Policy::gtopk(0.5).put_back(PutBack::Published));
        let keeps = read_with(GTOPK, |policy| policy.put_back = 2).unwrap();
        assert_eq!(keeps, Policy::gtopk(0.5).put_back(PutBack::MergerKeeps));
        let far = read_with(LOW_RANK, |policy| policy.min_compression = 3.5).unwrap();
        assert_eq!(far, Policy::low_rank(2).min_compression(3.5));
        for number in 0..8 {
            let expected = Policy::topk(0.5).values(values(number).unwrap());
            assert_eq!(read_with(TOPK, |policy| policy.values = number).unwrap(), expected);
            let expected = Policy::gtopk(0.5).values(values(number).unwrap());
            assert_eq!(read_with(GTOPK, |policy| policy.values = number).unwrap(), expected);
        }
        let eight_bit = read_with(QUANTISED, |policy| policy.values = 7).unwrap();
        assert_eq!(eight_bit, Policy::quantised(Values::EightBit));
        assert_eq!(read_with(SIGNUM, |_| ()).unwrap(), Policy::signum(0.0));
        assert_eq!(read_with(SIGNUM, |policy| policy.momentum = 0.9).unwrap(), Policy::signum(0.9));
        let momentum = |rule, clip| {
            let set = |policy: &mut brv_policy| {
                (policy.momentum_rule, policy.momentum, policy.clip) = (rule, 0.5, clip);
            };
            read_with(TOPK, set).unwrap()
        };
        assert_eq!(momentum(0, 0.0), Policy::topk(0.5));
        assert_eq!(momentum(0, 2.0), Policy::topk(0.5).clip(2.0));
        assert_eq!(momentum(1, 2.0), Policy::topk(0.5).momentum(0.5).clip(2.0));
        assert_eq!(momentum(2, 0.0), Policy::topk(0.5).momentum(0.5).nesterov());
        assert_eq!(momentum(3, 0.0), Policy::topk(0.5).samomentum(0.5));
        let unused = |policy: &mut brv_policy| {
            (policy.density, policy.rank, policy.put_back, policy.values) = (-1.0, 0, 9, 99);
            policy.momentum = -1.0;
        };
        assert_eq!(read_with(DENSE, unused), Ok(Policy::dense()));
        // SAFETY: NULL may be read.
        assert_eq!(unsafe { read(std::ptr::null()) }.ok(), Some(Policy::dense()));
    }

    #[test]
    fn wrong_fields_are_named() {
        let refused = |method, field: &str, change: fn(&mut brv_policy)| {
            let text = read_with(method, change).unwrap_err();
            assert!(text.contains(&format!("policy.{field} is ")), "{text}");
        };
        refused(DENSE, "size", |policy| policy.size -= 1);
        refused(0, "method", |_| ());
        refused(7, "method", |_| ());
        for method in [TOPK, GTOPK] {
            refused(method, "density", |policy| policy.density = 0.0);
            refused(method, "density", |policy| policy.density = f64::NAN);
            refused(method, "density", |policy| policy.density = 1.5);
        }
        refused(TOPK, "values", |policy| policy.values = 8);
        refused(GTOPK, "values", |policy| policy.values = 8);
        refused(QUANTISED, "values", |policy| policy.values = 8);
        refused(SIGNUM, "momentum", |policy| policy.momentum = 1.0);
        refused(SIGNUM, "momentum", |policy| policy.momentum = 1.0 - 1e-12);
        refused(SIGNUM, "momentum", |policy| policy.momentum = f64::NAN);
        refused(GTOPK, "put_back", |policy| policy.put_back = 3);
        refused(LOW_RANK, "rank", |policy| policy.rank = 0);
        refused(LOW_RANK, "min_compression", |policy| policy.min_compression = -2.0);
        refused(LOW_RANK, "min_compression", |policy| policy.min_compression = f64::NAN);
        for method in [TOPK, GTOPK] {
            refused(method, "momentum_rule", |policy| policy.momentum_rule = 4);
            refused(method, "momentum", |policy| (policy.momentum_rule, policy.momentum) = (1, 1.0));
            refused(method, "momentum", |policy| (policy.momentum_rule, policy.momentum) = (3, 0.0));
            refused(method, "clip", |policy| policy.clip = -1.0);
            refused(method, "clip", |policy| policy.clip = f64::NAN);
            refused(method, "clip", |policy| {
                (policy.momentum_rule, policy.momentum, policy.clip) = (3, 0.5, 1.0);
            });
        }
        assert!(read_with(DENSE, |policy| policy.reserved[4] = 1).unwrap_err().contains("reserved"));
    }
}
