//! What was chosen for the tensors of an exchange that have an automatic policy.

use std::ffi::{CString, c_char};
use std::ptr::null;

use brevity::Choice;

use crate::boundary::{check, guard};
use crate::exchange::{brv_exchange, plan_of, text};
use crate::status::brv_status;

/// A choice as text that C may read.
pub(crate) struct Told {
    policy: CString,
    reason: CString,
}

impl Told {
    pub(crate) fn of(choice: &Choice) -> Self {
        // None of the texts has a zero.
        let text = |text: String| CString::new(text).unwrap_or_default();
        Self { policy: text(choice.policy.to_string()), reason: text(choice.to_string()) }
    }
}

/// Tells what was chosen for a tensor.
///
/// # Safety
/// `exchange` is NULL or a live exchange; `name` is NULL, or text that ends with a zero; `policy` and
/// `reason` are NULL, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_exchange_choice(
    exchange: *mut brv_exchange,
    name: *const c_char,
    policy: *mut *const c_char,
    reason: *mut *const c_char,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live exchange.
        let mut plan = unsafe { plan_of(exchange) }?;
        // SAFETY: the caller in C guarantees text.
        let name = unsafe { text(name, "name") }?;
        check(policy, "policy")?;
        if !reason.is_null() {
            check(reason, "reason")?;
        }
        let told = plan.tell_choice(name)?;
        // SAFETY: not NULL and aligned, as just checked; the caller in C guarantees that it may be written.
        unsafe { policy.write(told.map_or(null(), |told| told.policy.as_ptr())) };
        if !reason.is_null() {
            // SAFETY: likewise.
            unsafe { reason.write(told.map_or(null(), |told| told.reason.as_ptr())) };
        }
        Ok(())
    })
}
