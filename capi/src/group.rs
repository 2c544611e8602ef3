//! Groups as C handles.

use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::time::Duration;

use brevity::Group;

use crate::boundary::{guard, guard_anywhere, guard_value, hand_out, object};
use crate::callback::{drop_elsewhere, is_in_callback};
use crate::dense::Reductions;
use crate::failure::Failure;
use crate::lent::Loans;
use crate::request::{Call, Calls};
use crate::status::brv_status;

/// How long calls whose requests were freed, and canceled, may take to end before the group is aborted.
const FOR_CANCELED: Duration = Duration::from_millis(100);

/// The ranks of a job. A feedback that was used with the group also holds it.
pub struct brv_group(Arc<Shared>);

/// What all holders of a group share.
pub(crate) struct Shared {
    pub(crate) group: Group,
    transport: CString,
    pub(crate) loans: Loans,
    /// Those that the program has registered.
    pub(crate) reductions: Reductions,
    /// Those of all groups of the job.
    pub(crate) calls: Arc<Calls>,
}

impl Shared {
    /// Notes a started call.
    pub(crate) fn note(&self, call: &Arc<Call>) {
        self.calls.note(call);
    }

    /// Whether calls are pending, or have memory of the program.
    fn is_in_use(&self) -> bool {
        !self.calls.settle(self) || self.loans.has_some()
    }

    /// Ends all started calls, whose memory the program may then reuse.
    fn end_calls(&self) {
        // In a forked child the memory is a copy, and the locks may be held by threads of the parent.
        if self.group.check_process().is_err() || !self.is_in_use() {
            return;
        }
        // Receives that were canceled end in the next turns.
        let are_canceled = !is_in_callback() && self.calls.settle(self);
        if are_canceled && self.group.wait_until(FOR_CANCELED, || !self.is_in_use()) {
            return;
        }
        // Before others hear of the abort: what they do then may end a call in another way.
        self.calls.abandon(self);
        self.group.abort();
        if !is_in_callback() {
            self.group.wait_until(Duration::MAX, || !self.is_in_use());
        }
    }
}

impl brv_group {
    /// This process alone.
    pub(crate) fn solo() -> Self {
        Self::new(Group::solo())
    }

    /// The group of all ranks of a job.
    pub(crate) fn new(group: Group) -> Self {
        Self::of(group, Arc::default())
    }

    /// A group that was made of this one.
    pub(crate) fn part(&self, group: Group) -> Self {
        Self::of(group, Arc::clone(&self.0.calls))
    }

    fn of(group: Group, calls: Arc<Calls>) -> Self {
        let transport = CString::new(group.transport()).unwrap_or_default();
        Self(Arc::new(Shared {
            group,
            transport,
            loans: Loans::default(),
            reductions: Reductions::default(),
            calls,
        }))
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
    let status = guard_anywhere(|| {
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
    if group.is_null() {
        return;
    }
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let shared = Arc::clone(unsafe { group_of(group) }?.shared());
        // Functions of calls that end here may still use the group.
        shared.end_calls();
        // SAFETY: the handle was made by `Box::into_raw` in `hand_out`, and the caller in C gives it up.
        drop(unsafe { Box::from_raw(group) });
        drop_elsewhere(shared);
        Ok(())
    });
}

/// A rank of the group.
pub(crate) fn rank_of(group: &Group, rank: i32, name: &str) -> Result<u32, Failure> {
    let size = group.world_size();
    u32::try_from(rank).ok().filter(|&rank| rank < size).ok_or_else(|| {
        let last = size - 1;
        Failure::argument(format!("{name} is {rank}, expected a rank of the group (0 to {last})"))
    })
}

/// Converts a rank or a world size, which are far below 2^31.
pub(crate) fn small(number: u32) -> i32 {
    const { assert!(ucx_sys_wrap::MAX_WORLD_SIZE <= i32::MAX as u32) };
    number as i32
}
