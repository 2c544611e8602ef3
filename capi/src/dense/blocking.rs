//! Dense collectives that wait. Made from `tests/capi/list.rs`: see `tests/capi/listed.rs`.

use std::ffi::c_void;

use super::{Arguments, Count, Operation, waiting};
use crate::element::{brv_reduction, brv_type};
use crate::group::brv_group;
use crate::options::brv_options;
use crate::status::brv_status;

/// Makes a barrier.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_barrier(group: *mut brv_group, options: *const brv_options) -> brv_status {
    let arguments = Arguments::NONE;
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Barrier, arguments, options) }
}

/// Makes a broadcast.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_broadcast(
    group: *mut brv_group,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input: std::ptr::null(), output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Broadcast { root }, arguments, options) }
}

/// Makes a broadcast-to.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_broadcast_to(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::BroadcastTo { root }, arguments, options) }
}

/// Makes a reduce.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_reduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Reduce { reduction, root }, arguments, options) }
}

/// Makes an all-reduce.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_reduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::AllReduce { reduction }, arguments, options) }
}

/// Makes a reduce-scatter.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_reduce_scatter(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::ReduceScatter { reduction }, arguments, options) }
}

/// Makes a reduce-scatter-v.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_reduce_scatter_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    reduction: brv_reduction,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::ReduceScatter { reduction }, arguments, options) }
}

/// Makes an all-gather.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_gather(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::AllGather, arguments, options) }
}

/// Makes an all-gather-v.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_gather_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::AllGather, arguments, options) }
}

/// Makes a gather.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_gather(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Gather { root }, arguments, options) }
}

/// Makes a gather-v.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_gather_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Gather { root }, arguments, options) }
}

/// Makes a scatter.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_scatter(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Scatter { root }, arguments, options) }
}

/// Makes a scatter-v.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_scatter_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    root: i32,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::Scatter { root }, arguments, options) }
}

/// Makes an all-to-all.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_to_all(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::AllToAll, arguments, options) }
}

/// Makes an all-to-all-v.
///
/// # Safety
/// As for `waiting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_all_to_all_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    sent: *const usize,
    received: *const usize,
    r#type: brv_type,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::SentAndReceived(sent, received), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { waiting(group, Operation::AllToAll, arguments, options) }
}
