//! Groups as C handles.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use brevity::Group;

use crate::boundary::{free, guard, guard_value, hand_out, object};
use crate::failure::Failure;
use crate::status::brv_status;

/// The ranks of a job. A feedback that was used with the group also holds it.
pub struct brv_group(Arc<Shared>);

/// What all holders of a group share.
pub(crate) struct Shared {
    pub(crate) group: Group,
    transport: CString,
}

impl brv_group {
    /// This process alone.
    pub(crate) fn solo() -> Self {
        Self::new(Group::solo())
    }

    pub(crate) fn new(group: Group) -> Self {
        let transport = CString::new(group.transport()).unwrap_or_default();
        Self(Arc::new(Shared { group, transport }))
    }

    pub(crate) fn group(&self) -> &Group {
        &self.0.group
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

/// The group behind a handle.
///
/// # Safety
/// The same as for [`object`].
pub(crate) unsafe fn group_of<'a>(group: *const brv_group) -> Result<&'a brv_group, Failure> {
    // SAFETY: the caller of this function guarantees what `object` demands.
    unsafe { object(group, "group") }
}

/// Joins the job that the environment describes. Blocks until all ranks have joined.
///
/// # Safety
/// `group` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_from_env(group: *mut *mut brv_group) -> brv_status {
    let join = || {
        crate::log::if_asked();
        Ok(Some(brv_group::new(Group::from_env()?)))
    };
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(group, "group", join) })
}

/// Makes a group of this process alone.
///
/// # Safety
/// `group` is NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_solo(group: *mut *mut brv_group) -> brv_status {
    // SAFETY: the caller in C guarantees what `hand_out` demands.
    guard(|| unsafe { hand_out(group, "group", || Ok(Some(brv_group::solo()))) })
}

/// This rank, or -1 for NULL.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_rank(group: *const brv_group) -> i32 {
    // SAFETY: the caller in C guarantees a live group.
    guard_value(-1, || Ok(small(unsafe { group_of(group) }?.group().rank())))
}

/// Ranks in the group, or -1 for NULL.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_size(group: *const brv_group) -> i32 {
    // SAFETY: the caller in C guarantees a live group.
    guard_value(-1, || Ok(small(unsafe { group_of(group) }?.group().world_size())))
}

/// The transport's name; empty for NULL. Valid until the group is freed.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_transport(group: *const brv_group) -> *const c_char {
    // SAFETY: the caller in C guarantees a live group.
    guard_value(c"".as_ptr(), || Ok(unsafe { group_of(group) }?.0.transport.as_ptr()))
}

/// Closes the group on all ranks. Async-signal-safe with a live group, because it only calls
/// [`Group::abort`], which is. For the same reason it returns no text in a forked child.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_abort(group: *mut brv_group) -> brv_status {
    let mut is_refused = false;
    let status = guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        is_refused = group.check_process().is_err();
        group.abort();
        Ok(())
    });
    if is_refused { brv_status::Argument } else { status }
}

/// Frees a group. Does nothing for NULL.
///
/// # Safety
/// `group` is NULL or a live group that no other thread uses, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_free(group: *mut brv_group) {
    // SAFETY: the caller in C gives up the handle, which came from `hand_out`.
    unsafe { free(group) }
}

/// Converts a rank or a world size, which are far below 2^31.
pub(crate) fn small(number: u32) -> i32 {
    const { assert!(ucx_sys_wrap::MAX_WORLD_SIZE <= i32::MAX as u32) };
    number as i32
}
