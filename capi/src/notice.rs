//! The function that the program wants to be called when a request ends.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::thread::{self, ThreadId};

use crate::callback::{in_callback, is_in_callback};
use crate::request::brv_request;

/// As in C.
pub type brv_request_function = Option<unsafe extern "C" fn(*mut brv_request, *mut c_void)>;

/// Calls a function once: as the waker of a call's handle, or at once.
#[derive(Default)]
pub(crate) struct Notice {
    state: Mutex<State>,
    has_returned: Condvar,
}

#[derive(Default)]
struct State {
    function: Option<Function>,
    /// Whether a function was set, and may have been called since.
    is_set: bool,
    runs_on: Option<ThreadId>,
}

/// A function and what it is called with.
pub(crate) struct Function {
    pub(crate) function: unsafe extern "C" fn(*mut brv_request, *mut c_void),
    pub(crate) request: *mut brv_request,
    pub(crate) user_data: *mut c_void,
}

// SAFETY: the pointers are only handed to the program's function, which may be called on any thread
// (`Notice::set`).
unsafe impl Send for Function {}

impl Notice {
    /// Sets the function. Returns false, and changes nothing, if one was set before.
    ///
    /// # Safety
    /// Until [`forget`](Self::forget), the function may be called once with these pointers, on any thread.
    pub(crate) unsafe fn set(&self, function: Function) -> bool {
        let mut state = self.lock();
        if !state.is_set {
            (state.is_set, state.function) = (true, Some(function));
            return true;
        }
        false
    }

    /// Calls the function, unless it was called or forgotten.
    pub(crate) fn call(&self) {
        let mut state = self.lock();
        let Some(Function { function, request, user_data }) = state.function.take() else { return };
        state.runs_on = Some(thread::current().id());
        drop(state);
        in_callback(|| {
            // SAFETY: the caller of `set` has guaranteed it; `forget` waits for the end of this.
            unsafe { function(request, user_data) };
            self.lock().runs_on = None;
            self.has_returned.notify_all();
        });
    }

    /// The function is not called any more after this. Waits for its end if it runs on another thread, but
    /// not in another function: two that free each other's requests would wait for ever.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        state.function = None;
        while !is_in_callback() && state.runs_on.is_some_and(|thread| thread != thread::current().id()) {
            state = self.has_returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}
