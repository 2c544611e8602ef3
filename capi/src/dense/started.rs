//! Dense collectives that do not block. Made from `tests/capi/list.rs`: see `tests/capi/listed.rs`.

use std::ffi::c_void;

use super::{Arguments, Count, Operation, starting};
use crate::element::{brv_reduction, brv_type};
use crate::group::brv_group;
use crate::options::brv_options;
use crate::request::brv_request;
use crate::status::brv_status;

/// Starts a barrier.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ibarrier(
    group: *mut brv_group,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments::NONE;
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Barrier, arguments, request, options) }
}

/// Starts a broadcast.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ibroadcast(
    group: *mut brv_group,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input: std::ptr::null(), output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Broadcast { root }, arguments, request, options) }
}

/// Starts a broadcast-to.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ibroadcast_to(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::BroadcastTo { root }, arguments, request, options) }
}

/// Starts a reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ireduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Reduce { reduction, root }, arguments, request, options) }
}

/// Starts an all-reduce.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_reduce(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::AllReduce { reduction }, arguments, request, options) }
}

/// Starts a reduce-scatter.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ireduce_scatter(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    reduction: brv_reduction,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::ReduceScatter { reduction }, arguments, request, options) }
}

/// Starts a reduce-scatter-v.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_ireduce_scatter_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    reduction: brv_reduction,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::ReduceScatter { reduction }, arguments, request, options) }
}

/// Starts an all-gather.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_gather(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::AllGather, arguments, request, options) }
}

/// Starts an all-gather-v.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_gather_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::AllGather, arguments, request, options) }
}

/// Starts a gather.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_igather(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Gather { root }, arguments, request, options) }
}

/// Starts a gather-v.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_igather_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Gather { root }, arguments, request, options) }
}

/// Starts a scatter.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iscatter(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Scatter { root }, arguments, request, options) }
}

/// Starts a scatter-v.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iscatter_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    lengths: *const usize,
    r#type: brv_type,
    root: i32,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Lengths(lengths), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::Scatter { root }, arguments, request, options) }
}

/// Starts an all-to-all.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_to_all(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    n: usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::Each(n), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::AllToAll, arguments, request, options) }
}

/// Starts an all-to-all-v.
///
/// # Safety
/// As for `starting` in this module's parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_iall_to_all_v(
    group: *mut brv_group,
    input: *const c_void,
    output: *mut c_void,
    sent: *const usize,
    received: *const usize,
    r#type: brv_type,
    request: *mut *mut brv_request,
    options: *const brv_options,
) -> brv_status {
    let arguments = Arguments { input, output, count: Count::SentAndReceived(sent, received), r#type };
    // SAFETY: the caller in C guarantees it.
    unsafe { starting(group, Operation::AllToAll, arguments, request, options) }
}
