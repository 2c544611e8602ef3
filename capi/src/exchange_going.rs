//! Exchanges that go on after the loss of a rank.

use std::sync::Arc;

use crate::boundary::{check, guard};
use crate::element::OfGradients;
use crate::exchange::{brv_exchange, plan_of};
use crate::failure::Failure;
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
    // SAFETY: the caller in C guarantees the same.
    let go_on =
        |options: &Options| unsafe { go_on(exchange, group, (averages, tensors), delivered, options) };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, go_on) }
}

/// Likewise, with averages of any type.
///
/// # Safety
/// As for [`brv_exchange_go_on`].
pub(crate) unsafe fn go_on<E: OfGradients>(
    exchange: *mut brv_exchange,
    group: *mut brv_group,
    (averages, tensors): (*const *mut E, usize),
    delivered: *mut i32,
    options: &Options,
) -> Result<(), Failure> {
    check(delivered, "delivered")?;
    // SAFETY: the caller of this function guarantees a live exchange.
    let mut plan = unsafe { plan_of(exchange) }?;
    // SAFETY: the caller of this function guarantees a live group.
    let next = Arc::clone(unsafe { group_of(group) }?.shared());
    // SAFETY: the caller of this function guarantees the pointers, and set memory that nobody else uses.
    let mut slices = unsafe { plan.slices::<E>(averages, tensors) }?;
    let exchange = plan.exchange()?;
    let timeout = options.on(&next.group).timeout();
    let was_delivered = exchange.go_on_within::<E, _>(&next.group, &mut slices, timeout)?;
    plan.number = exchange.number();
    plan.group = next;
    // SAFETY: just checked; the caller of this function guarantees memory that may be written.
    unsafe { delivered.write(i32::from(was_delivered)) };
    Ok(())
}
