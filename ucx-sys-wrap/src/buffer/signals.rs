//! Threads that handle no signals of the application.

use std::mem::MaybeUninit;
use std::ptr;

/// Signals that a fault of the thread itself causes.
const FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Restores the mask of this thread.
struct Restore(libc::sigset_t);

impl Drop for Restore {
    fn drop(&mut self) {
        // SAFETY: the mask is one that the system returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Runs `start` with all signals blocked but those of faults. A thread that it starts inherits this, so that
/// the signals of a process go to the application's threads: one that blocks a signal to take it by `sigwait`
/// or `signalfd` still gets it, and no handler runs on a thread of the library.
pub fn with_signals_blocked<R>(start: impl FnOnce() -> R) -> R {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `all` is writable; the call initialises it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in FAULTS {
        // SAFETY: `all` was initialised above.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    // SAFETY: `all` is initialised, `before` is writable.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: a call that succeeded has initialised `before`.
    let _restore = (failed == 0).then(|| Restore(unsafe { before.assume_init() }));
    start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim().to_owned()
    }

    #[test]
    fn a_thread_inherits_the_mask_and_its_creator_gets_its_own_back() {
        let before = blocked();
        let thread = with_signals_blocked(|| std::thread::spawn(blocked));
        let mask = u64::from_str_radix(&thread.join().unwrap(), 16).unwrap();
        let bit = |signal: i32| mask >> (signal - 1) & 1;
        assert_eq!([libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1].map(bit), [1, 1, 1]);
        assert_eq!(FAULTS.map(bit), [0; 6]);
        assert_eq!(blocked(), before);
    }
}
