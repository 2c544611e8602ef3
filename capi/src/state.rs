//! What is known of a group: its failure, its counters and its settings.

use std::ffi::{CString, c_char, c_void};

use brevity::transport::Statistics;

use crate::boundary::{check, guard};
use crate::callback::in_callback;
use crate::failure::Failure;
use crate::group::{brv_group, group_of};
use crate::status::brv_status;

/// What this rank has sent and received, as in C.
#[repr(C)]
pub struct brv_statistics {
    size: u64,
    messages_sent: u64,
    bytes_sent: u64,
    messages_received: u64,
    bytes_received: u64,
    copies: u64,
    bytes_copied: u64,
    bytes_shared: u64,
    reserved: [u64; 8],
}

/// Receives one setting.
pub type brv_setting_function =
    Option<unsafe extern "C" fn(name: *const c_char, value: *const c_char, user_data: *mut c_void)>;

/// Why the group is closed, if it is.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_status(group: *mut brv_group) -> brv_status {
    // SAFETY: the caller in C guarantees a live group.
    guard(|| match unsafe { group_of(group) }?.group().failure() {
        None => Ok(()),
        Some(failure) => Err(failure.into()),
    })
}

/// Stores the counters.
///
/// # Safety
/// `group` is NULL or a live group. `statistics` is NULL, or points to 8 bytes that hold its size; if that is
/// the size of [`brv_statistics`], the whole struct may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_statistics(
    group: *const brv_group,
    statistics: *mut brv_statistics,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        check(statistics, "statistics")?;
        // SAFETY: not NULL and aligned; the caller in C guarantees 8 bytes.
        let size = unsafe { (&raw const (*statistics).size).read() };
        let expected = size_of::<brv_statistics>() as u64;
        if size != expected {
            return Err(Failure::argument(format!(
                "statistics.size is {size}, expected {expected}: begin with BRV_STATISTICS_INIT"
            )));
        }
        // SAFETY: it has the size of these statistics, so the caller in C guarantees all of it.
        unsafe { statistics.write(group.statistics().into()) };
        Ok(())
    })
}

/// Calls a function for each setting in force.
///
/// # Safety
/// `group` is NULL or a live group; `function` is NULL or may be called with `user_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_group_settings(
    group: *const brv_group,
    function: brv_setting_function,
    user_data: *mut c_void,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let group = unsafe { group_of(group) }?.group();
        let Some(function) = function else {
            return Err(Failure::argument("function is NULL, expected a valid pointer"));
        };
        for (name, value) in group.settings_in_force() {
            let (name, value) = (CString::new(name), CString::new(value));
            let (name, value) = (name.unwrap_or_default(), value.unwrap_or_default());
            // SAFETY: the caller in C guarantees the function; the strings live until it returns.
            in_callback(|| unsafe { function(name.as_ptr(), value.as_ptr(), user_data) });
        }
        Ok(())
    })
}

impl From<Statistics> for brv_statistics {
    fn from(statistics: Statistics) -> Self {
        let Statistics {
            messages_sent,
            bytes_sent,
            messages_received,
            bytes_received,
            copies,
            bytes_copied,
            bytes_shared,
        } = statistics;
        Self {
            size: size_of::<Self>() as u64,
            messages_sent,
            bytes_sent,
            messages_received,
            bytes_received,
            copies,
            bytes_copied,
            bytes_shared,
            reserved: [0; 8],
        }
    }
}
