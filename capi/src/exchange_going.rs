//! Exchanges that go on after the loss of a rank.

use std::sync::Arc;

use crate::boundary::{check, guard};
use crate::exchange::{brv_exchange, plan_of};
use crate::group::{brv_group, group_of};
use crate::options::{Options, brv_options, waiting_call};
use crate::status::brv_status;

/// Lets the ranks that are left of a loss agree on the last step.
///
/// # Safety
/// `exchange` is NULL or a live exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_keep_going(exchange: *mut brv_exchange) -> brv_status {
    // SAFETY: the caller in C guarantees a live exchange.
    guard(|| unsafe { plan_of(exchange) }?.keep_going())
}

/// Goes on in another group, whose ranks agree on the last step.
///
/// # Safety
/// As for `brv_exchange_average`; `group` is NULL or a live group; `delivered` is NULL, or may be written;
/// `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_go_on(
    exchange: *mut brv_exchange,
    group: *mut brv_group,
    averages: *const *mut f32,
    tensors: usize,
    delivered: *mut i32,
    options: *const brv_options,
) -> brv_status {
    let go_on = |options: &Options| {
        check(delivered, "delivered")?;
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees a live group.
        let next = Arc::clone(unsafe { group_of(group) }?.shared());
        // SAFETY: the caller in C guarantees the pointers.
        let stretches = unsafe { plan.gradients(averages, tensors) }?;
        // SAFETY: the caller in C guarantees set memory that nobody else uses; the stretches are apart, as
        // just checked.
        let mut slices: Vec<&mut [f32]> =
            stretches.into_iter().map(|stretch| unsafe { stretch.write() }).collect();
        let exchange = plan.exchange()?;
        let timeout = options.on(&next.group).timeout();
        let was_delivered = exchange.go_on_within(&next.group, &mut slices, timeout)?;
        plan.number = exchange.number();
        plan.group = next;
        // SAFETY: just checked; the caller in C guarantees memory that may be written.
        unsafe { delivered.write(i32::from(was_delivered)) };
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, go_on) }
}
