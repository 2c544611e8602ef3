//! Tensors of an exchange, with their policies: as a struct, as text, and by rules.

use std::ffi::c_char;

use brevity::{Policy, PolicyRules};

use crate::boundary::guard;
use crate::exchange::{brv_exchange, plan_of, text};
use crate::failure::Failure;
use crate::memory::Stretch;
use crate::policy::{self, brv_policy};
use crate::status::brv_status;

/// Adds a tensor, which travels as the policy says.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `name` is NULL, or text that ends with a zero; `shape` has
/// `dimensions` numbers; `policy` is NULL or a policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_add(
    exchange: *mut brv_exchange,
    name: *const c_char,
    shape: *const usize,
    dimensions: usize,
    policy: *const brv_policy,
) -> brv_status {
    // SAFETY: the caller in C guarantees a policy.
    let policy = |_: &str, _: &[usize]| unsafe { policy::read(policy) };
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { add(exchange, name, (shape, dimensions), policy) })
}

/// Adds a tensor, which travels as the policy says that a text is.
///
/// # Safety
/// As for [`brv_exchange_add`]; `policy` is NULL, or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_add_text(
    exchange: *mut brv_exchange,
    name: *const c_char,
    shape: *const usize,
    dimensions: usize,
    policy: *const c_char,
) -> brv_status {
    let read = |_: &str, _: &[usize]| {
        // SAFETY: the caller in C guarantees text.
        let policy = unsafe { text(policy, "policy") }?;
        Ok(policy.parse::<Policy>()?)
    };
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { add(exchange, name, (shape, dimensions), read) })
}

/// Adds a tensor, which travels as the first rule says whose conditions it meets.
///
/// # Safety
/// As for [`brv_exchange_add`]; `rules` is NULL, or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_add_by_rules(
    exchange: *mut brv_exchange,
    name: *const c_char,
    shape: *const usize,
    dimensions: usize,
    rules: *const c_char,
) -> brv_status {
    let find = |name: &str, shape: &[usize]| {
        // SAFETY: the caller in C guarantees text.
        let rules = unsafe { text(rules, "rules") }?;
        Ok(rules.parse::<PolicyRules>()?.policy(name, shape)?)
    };
    // SAFETY: the caller in C guarantees the same.
    guard(|| unsafe { add(exchange, name, (shape, dimensions), find) })
}

/// Adds a tensor with the policy that `policy` finds for its name and shape.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `name` is NULL, or text that ends with a zero; `shape` has
/// `dimensions` numbers.
unsafe fn add(
    exchange: *mut brv_exchange,
    name: *const c_char,
    (shape, dimensions): (*const usize, usize),
    policy: impl FnOnce(&str, &[usize]) -> Result<Policy, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees text.
    let name = unsafe { text(name, "name") }?;
    // SAFETY: the caller of this function guarantees as many numbers, which nobody writes.
    let shape = unsafe { Stretch::new(shape, dimensions, "shape")?.read() };
    plan.add(name, shape, policy(name, shape)?)
}
