//! Keeps the process's signal handlers when UCX is loaded.
//!
//! UCX's constructors take over `SIGHUP`, to print statistics, and the signals of a crash, to print a stack
//! trace. With the first a job would outlive its terminal; with the second a program would lose its own crash
//! handler. So the handlers are restored, except those that the user asked UCX to install.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGSEGV, sigaction};

/// The signals of a crash that UCX takes (its `UCX_ERROR_SIGNALS`), under `UCX_HANDLE_ERRORS`.
const CRASHES: [c_int; 4] = [SIGILL, SIGSEGV, SIGBUS, SIGFPE];

/// The process's handlers of the signals that UCX takes.
pub(crate) struct Kept(Vec<(c_int, sigaction)>);

impl Kept {
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

    pub(crate) fn restore(self) {
        for (signal, action) in self.0 {
            // SAFETY: the kernel gave this action for this signal, so its handler is one of this process.
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
