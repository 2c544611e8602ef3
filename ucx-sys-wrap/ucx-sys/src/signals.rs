//! What this process does on a signal stays as it was when UCX is loaded.
//!
//! UCX's constructors take over `SIGHUP`, by which it prints its statistics, and the signals of a crash, on
//! which it prints its own stack. A job would outlive its terminal by the first, and a program's own crash
//! handler would be gone by the second. So they are given back, but for those that the user asked UCX to
//! take.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGSEGV, sigaction};

/// The signals of a crash that UCX takes (its `UCX_ERROR_SIGNALS`), under `UCX_HANDLE_ERRORS`.
const CRASHES: [c_int; 4] = [SIGILL, SIGSEGV, SIGBUS, SIGFPE];

/// What the process did on the signals that UCX takes.
pub(crate) struct Kept(Vec<(c_int, sigaction)>);

impl Kept {
    /// Notes what the process does now.
    pub(crate) fn now() -> Self {
        let is_unset = |name| std::env::var_os(name).is_none();
        let mut signals = Vec::new();
        if is_unset("UCX_DEBUG_SIGNO") {
            signals.push(SIGHUP);
        }
        if is_unset("UCX_HANDLE_ERRORS") && is_unset("UCX_ERROR_SIGNALS") {
            signals.extend(CRASHES);
        }
        Self(signals.into_iter().filter_map(|signal| Some((signal, action_on(signal)?))).collect())
    }

    /// Has the process do again what it did.
    pub(crate) fn restore(self) {
        for (signal, action) in self.0 {
            // SAFETY: the action is what the kernel gave for this signal, so its handler is one of this
            // process.
            unsafe { sigaction(signal, &action, std::ptr::null_mut()) };
        }
    }
}

fn action_on(signal: c_int) -> Option<sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: a null new action changes nothing; the old one is written to a local.
    let status = unsafe { sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: written, as the status says.
    (status == 0).then(|| unsafe { action.assume_init() })
}
