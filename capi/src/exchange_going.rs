//! Exchanges that go on after the loss of a rank.

use std::ffi::c_void;
use std::sync::Arc;

use brevity::Element;

use crate::boundary::{check, guard};
use crate::element::{OfGradients, brv_type, with_element};
use crate::exchange::{brv_exchange, plan_of};
use crate::failure::Failure;
use crate::group::{brv_group, group_of, rank_of};
use crate::memory::Stretch;
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

/// Gives all ranks of a group the model and the state of one of them.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `group` is NULL or a live group; `parameters` has `count` pointers,
/// each to as many elements as `lengths` says, that nobody else uses meanwhile, and that are set on rank
/// `from`; `options` are as for `Options::read`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_share_state(
    exchange: *mut brv_exchange,
    group: *mut brv_group,
    from: i32,
    parameters: *const *mut c_void,
    lengths: *const usize,
    count: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let share = |options: &Options| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees a live group.
        let next = Arc::clone(unsafe { group_of(group) }?.shared());
        let from = rank_of(&next.group, from, "from")?;
        // SAFETY: the caller in C guarantees as many pointers, which nobody writes.
        let starts = unsafe { Stretch::new(parameters, count, "parameters")?.read() };
        // SAFETY: likewise of lengths.
        let lengths = unsafe { Stretch::new(lengths, count, "lengths")?.read() };
        let timeout = options.on(&next.group).timeout();
        let exchange = plan.exchange()?;
        with_element!(r#type, T => {
            // SAFETY: the caller in C guarantees the memory of the parameters.
            let mut slices = unsafe { slices_of::<T>((starts, lengths), next.group.rank() == from) }?;
            let was_closed = next.group.failure().is_some();
            exchange.share_state_within(&next.group, from, &mut slices, timeout).map_err(|error| {
                let failure = Failure::from(error);
                // What has come can't be taken over: all ranks know of it.
                let is_closed = !was_closed && next.group.failure().is_some();
                if is_closed { failure.of_closed_group() } else { failure }
            })
        })?;
        plan.move_to(next);
        Ok(())
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, share) }
}

/// The parameters of a model, which are apart.
///
/// # Safety
/// Each pointer is to as many elements of writable memory as its length says, that nobody else uses during
/// `'a`, and that are set if `are_set`.
unsafe fn slices_of<'a, T: Element>(
    (starts, lengths): (&[*mut c_void], &[usize]),
    are_set: bool,
) -> Result<Vec<&'a mut [T]>, Failure> {
    let stretches = starts.iter().zip(lengths).enumerate().map(|(position, (start, length))| {
        Stretch::new(start.cast::<T>().cast_const(), *length, &format!("parameter {position}"))
    });
    let stretches: Vec<Stretch<T>> = stretches.collect::<Result<_, _>>()?;
    Stretch::check_all_apart(&stretches, "two parameters")?;
    let slice = |stretch: Stretch<T>| {
        if are_set {
            // SAFETY: the caller of this function guarantees set memory; the stretches are apart.
            unsafe { stretch.write() }
        } else {
            // SAFETY: likewise, of memory that need not be set.
            unsafe { stretch.unset() }
        }
    };
    Ok(stretches.into_iter().map(slice).collect())
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
    plan.move_to(next);
    // SAFETY: just checked; the caller of this function guarantees memory that may be written.
    unsafe { delivered.write(i32::from(was_delivered)) };
    Ok(())
}
