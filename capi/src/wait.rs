//! Waiting for requests, and moving them from an event loop.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity::Group;
use brevity::collectives::engine::Sleep;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::boundary::{check, guard_pending};
use crate::callback::{check_may_wait, is_in_callback};
use crate::failure::Failure;
use crate::group::{Shared, brv_group, group_of};
use crate::memory::Stretch;
use crate::request::{Call, brv_request, call_of};
use crate::status::brv_status;

/// Waits for ever.
const FOREVER: f64 = -1.0;

/// Waits for one request.
///
/// # Safety
/// `request` is NULL or a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_wait(request: *mut brv_request, seconds: f64) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live request.
        let call = unsafe { call_of(request) }?;
        wait(std::slice::from_ref(&call), seconds, |calls| calls[0].settle())?;
        call.status()
    })
}

/// Waits until one of several requests has ended.
///
/// # Safety
/// `requests` may be read, and each is NULL or a live request; `index` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_wait_any(
    requests: *const *mut brv_request,
    count: usize,
    seconds: f64,
    index: *mut usize,
) -> brv_status {
    guard_pending(|| {
        check(index, "index")?;
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees the rest.
        unsafe { index.write(count) };
        // SAFETY: the caller in C guarantees live requests.
        let (places, calls) = unsafe { calls_of(requests, count) }?;
        if calls.is_empty() {
            return Err(Failure::argument("requests has no request, expected one at least"));
        }
        wait(&calls, seconds, |calls| calls.iter().any(|call| call.settle()))?;
        let Some(first) = calls.iter().position(|call| call.settle()) else {
            return Ok(brv_status::Pending);
        };
        // SAFETY: as above.
        unsafe { index.write(places[first]) };
        calls[first].status()
    })
}

/// Waits until several requests have ended.
///
/// # Safety
/// `requests` may be read, and each is NULL or a live request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_request_wait_all(
    requests: *const *mut brv_request,
    count: usize,
    seconds: f64,
) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees live requests.
        let (_, calls) = unsafe { calls_of(requests, count) }?;
        let have_ended = |calls: &[Arc<Call>]| calls.iter().all(|call| call.settle());
        if !wait(&calls, seconds, have_ended)? {
            return Ok(brv_status::Pending);
        }
        calls.iter().try_for_each(|call| call.status().map(drop))?;
        Ok(brv_status::Ok)
    })
}

/// Moves the calls of a job once.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_progress(group: *mut brv_group) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        group.check_process().map_err(Failure::from)?;
        let has_moved = !is_in_callback() && group.progress();
        Ok(if has_moved { brv_status::Ok } else { brv_status::Pending })
    })
}

/// Moves the calls of a job once, and prepares for sleeping.
///
/// # Safety
/// `group` is NULL or a live group; the others are NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_prepare_sleep(
    group: *mut brv_group,
    descriptor: *mut c_int,
    milliseconds: *mut c_int,
) -> brv_status {
    guard_pending(|| {
        // SAFETY: the caller in C guarantees a live group.
        let Shared { group, calls, .. } = &**unsafe { group_of(group) }?.shared();
        check(descriptor, "descriptor")?;
        check(milliseconds, "milliseconds")?;
        check_may_wait()?;
        group.check_process().map_err(Failure::from)?;
        let sleep = group.prepare_sleep();
        // Before: none is pending only if all that have ended are seen below.
        let has_pending = group.has_pending();
        let has_ended = calls.have_ended();
        let Some(sleep) = sleep.filter(|_| !has_ended) else { return Ok(brv_status::Pending) };
        let longest = if has_pending { sleep.longest().as_millis() as c_int } else { -1 };
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees the rest.
        unsafe { descriptor.write(sleep.as_fd().as_raw_fd()) };
        // SAFETY: likewise.
        unsafe { milliseconds.write(longest) };
        Ok(brv_status::Ok)
    })
}

/// The requests that are not NULL, and their places.
///
/// # Safety
/// `requests` may be read, and each is NULL or a live request.
unsafe fn calls_of(
    requests: *const *mut brv_request,
    count: usize,
) -> Result<(Vec<usize>, Vec<Arc<Call>>), Failure> {
    // SAFETY: the caller of this function guarantees that they may be read.
    let requests = unsafe { Stretch::new(requests, count, "requests")?.read() };
    let some = requests.iter().enumerate().filter(|(_, request)| !request.is_null());
    let calls = some.map(|(place, &request)| {
        // SAFETY: the caller of this function guarantees live requests.
        unsafe { call_of(request) }.map(|call| (place, call))
    });
    Ok(calls.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
}

/// Waits until `is_done`, and returns whether it is.
fn wait(calls: &[Arc<Call>], seconds: f64, is_done: impl Fn(&[Arc<Call>]) -> bool) -> Result<bool, Failure> {
    let longest = longest(seconds)?;
    if is_done(calls) {
        return Ok(true);
    }
    check_may_wait()?;
    let mut groups: Vec<&Group> = Vec::new();
    for call in calls {
        let group = &call.shared().group;
        group.check_process().map_err(Failure::from)?;
        if !groups.iter().any(|other| Arc::ptr_eq(other.engine(), group.engine())) {
            groups.push(group);
        }
    }
    Ok(match &groups[..] {
        [] => true,
        [group] => group.wait_until(longest, || is_done(calls)),
        several => wait_on_several(several, longest, || is_done(calls)),
    })
}

pub(crate) fn longest(seconds: f64) -> Result<Duration, Failure> {
    if seconds == FOREVER || seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        Failure::argument(format!("seconds is {seconds:?}, expected 0 or more, or BRV_FOREVER ({FOREVER})"))
    })
}

/// Waits on several jobs.
fn wait_on_several(groups: &[&Group], longest: Duration, is_done: impl Fn() -> bool) -> bool {
    let end = Instant::now().checked_add(longest);
    loop {
        // Every job is turned, also if one of them has something to do.
        let sleeps: Vec<Option<Sleep>> = groups.iter().map(|group| group.prepare_sleep()).collect();
        if is_done() {
            return true;
        }
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return false;
        }
        let Some(sleeps) = sleeps.into_iter().collect::<Option<Vec<Sleep>>>() else {
            // Something has moved, or a job has no descriptor.
            std::thread::yield_now();
            continue;
        };
        let longest = sleeps.iter().map(|sleep| sleep.longest()).fold(left, Duration::min);
        let longest = Timespec::try_from(longest).ok();
        let mut descriptors: Vec<_> = sleeps.iter().map(|sleep| PollFd::new(sleep, PollFlags::IN)).collect();
        // After an interruption by a signal, it turns again.
        let _ = poll(&mut descriptors, longest.as_ref());
    }
}
