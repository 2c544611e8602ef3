//! Calls of functions that the program has set.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::failure::Failure;
use crate::notice::Notice;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static IS_REDUCING: Cell<bool> = const { Cell::new(false) };
    /// What is to be called after the function that runs.
    static LATER: RefCell<VecDeque<Arc<Notice>>> = const { RefCell::new(VecDeque::new()) };
}

/// Runs a function of the program, in which calls that wait are refused: this thread may be the one that
/// moves them.
pub(crate) fn in_callback<R>(function: impl FnOnce() -> R) -> R {
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }
    DEPTH.set(DEPTH.get() + 1);
    let _inside = Inside;
    let result = function();
    if DEPTH.get() == 1 {
        while let Some(notice) = LATER.with_borrow_mut(VecDeque::pop_front) {
            notice.call();
        }
    }
    result
}

/// Runs a reduction of the program, in which all calls are refused: it runs in the middle of one, which holds
/// what they need.
pub(crate) fn in_reduction<R>(function: impl FnOnce() -> R) -> R {
    struct Inside(bool);
    impl Drop for Inside {
        fn drop(&mut self) {
            IS_REDUCING.set(self.0);
        }
    }
    let _inside = Inside(IS_REDUCING.replace(true));
    function()
}

/// Refuses a call in a reduction of the program.
#[inline]
pub(crate) fn check_may_call() -> Result<(), Failure> {
    if IS_REDUCING.get() {
        return Err(Failure::argument(
            "a call was made in a reduction, which may only combine its operands: make it elsewhere",
        ));
    }
    Ok(())
}

/// Calls a function of the program now, or after the one that runs: functions that start calls which end at
/// once do not fill the stack.
pub(crate) fn outside_callbacks(notice: Arc<Notice>) {
    if is_in_callback() {
        LATER.with_borrow_mut(|later| later.push_back(notice));
    } else {
        notice.call();
    }
}

/// Drops what may be the last holder of a job: in a function of the program on another thread, because this
/// one may be the job's own, for whose end the drop waits.
pub(crate) fn drop_elsewhere<T: Send + 'static>(holder: T) {
    if is_in_callback() {
        // Without a thread for it, it is dropped here.
        let _ = std::thread::Builder::new().name("brv-drop".into()).spawn(move || drop(holder));
    } else {
        drop(holder);
    }
}

/// Whether this thread is in a function of the program.
pub(crate) fn is_in_callback() -> bool {
    DEPTH.get() > 0
}

/// Refuses to wait in a function of the program.
pub(crate) fn check_may_wait() -> Result<(), Failure> {
    if is_in_callback() {
        return Err(Failure::argument(
            "a call that waits was made in a callback: start it, and wait for its request elsewhere",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_refused_in_a_reduction_only() {
        assert!(check_may_call().is_ok());
        in_reduction(|| assert!(check_may_call().is_err()));
        assert!(check_may_call().is_ok());
        in_callback(|| assert!(check_may_call().is_ok()));
    }

    #[test]
    fn waiting_is_refused_in_a_callback_only() {
        assert!(check_may_wait().is_ok());
        in_callback(|| assert!(is_in_callback() && check_may_wait().is_err()));
        assert!(check_may_wait().is_ok());
    }
}
