//! Exchanges whose gradients have another type than `float`. State and messages are the same.

use std::ffi::c_void;

use crate::averages_started::start_all;
use crate::boundary::{guard, hand_out};
use crate::element::{brv_type, with_gradients};
use crate::exchange::{average, brv_exchange};
use crate::exchange_going::go_on;
use crate::exchange_steps::{finish, ready, step_empty};
use crate::group::brv_group;
use crate::options::{Options, brv_options, waiting_call};
use crate::request::brv_request;
use crate::status::brv_status;

/// Averages the gradients of all tensors over all ranks, in place.
///
/// # Safety
/// As for `brv_exchange_average`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_average_typed(
    exchange: *mut brv_exchange,
    gradients: *const *mut c_void,
    tensors: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let average = |options: &Options| {
        with_gradients!(r#type, E => {
            // SAFETY: the caller in C guarantees the same.
            unsafe { average(exchange, gradients.cast::<*mut E>(), tensors, options) }
        })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, average) }
}

/// Starts an average of the gradients of all tensors, in place.
///
/// # Safety
/// As for `brv_iexchange_average`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iexchange_average_typed(
    exchange: *mut brv_exchange,
    gradients: *const *mut c_void,
    tensors: usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let make = || {
        with_gradients!(r#type, E => {
            // SAFETY: the caller in C guarantees the same.
            unsafe { start_all(exchange, gradients.cast::<*mut E>(), tensors, options) }
        })
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(request, "request", make) })
}

/// Hands in the gradient of a tensor.
///
/// # Safety
/// As for `brv_exchange_ready`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_ready_typed(
    exchange: *mut brv_exchange,
    tensor: usize,
    gradient: *const c_void,
    n: usize,
    r#type: brv_type,
) -> brv_status {
    guard(|| {
        with_gradients!(r#type, E => {
            // SAFETY: the caller in C guarantees the same.
            unsafe { ready(exchange, tensor, gradient.cast::<E>(), n) }
        })
    })
}

/// Waits for the end of a step.
///
/// # Safety
/// As for `brv_exchange_finish`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_finish_typed(
    exchange: *mut brv_exchange,
    gradients: *const *mut c_void,
    tensors: usize,
    r#type: brv_type,
) -> brv_status {
    guard(|| {
        with_gradients!(r#type, E => {
            // SAFETY: the caller in C guarantees the same.
            unsafe { finish(exchange, gradients.cast::<*mut E>(), tensors) }
        })
    })
}

/// An average of a rank that has no gradient.
///
/// # Safety
/// As for `brv_exchange_step_empty`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_step_empty_typed(
    exchange: *mut brv_exchange,
    averages: *const *mut c_void,
    tensors: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let step = |options: &Options| {
        with_gradients!(r#type, E => {
            // SAFETY: the caller in C guarantees the same.
            unsafe { step_empty(exchange, averages.cast::<*mut E>(), tensors, options) }
        })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, step) }
}

/// Goes on in another group, whose ranks agree on the last step.
///
/// # Safety
/// As for `brv_exchange_go_on`, with elements of the type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_go_on_typed(
    exchange: *mut brv_exchange,
    group: *mut brv_group,
    averages: *const *mut c_void,
    tensors: usize,
    r#type: brv_type,
    delivered: *mut i32,
    options: *const brv_options,
) -> brv_status {
    let go_on = |options: &Options| {
        with_gradients!(r#type, E => {
            let averages = (averages.cast::<*mut E>(), tensors);
            // SAFETY: the caller in C guarantees the same.
            unsafe { go_on(exchange, group, averages, delivered, options) }
        })
    };
    // SAFETY: the caller in C guarantees options.
    unsafe { waiting_call(options, go_on) }
}
