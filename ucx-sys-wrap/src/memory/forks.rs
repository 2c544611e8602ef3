//! Notices that this process is a forked child, without a system call.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the first that asked.
static FORKS: AtomicU32 = AtomicU32::new(0);

static WATCHED: Once = Once::new();

/// Begins to count forks.
pub(crate) fn watch() {
    // Miri does not know forks.
    if cfg!(miri) {
        return;
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function without state, and what it calls is async-signal-safe.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        if failed != 0 {
            tracing::debug!("no memory for noticing forks");
        }
    });
}

/// The forks so far: another number than before shows that this process is a copy of the one before.
#[inline]
pub(crate) fn so_far() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Runs in each forked child, in its only thread, before `fork` returns there.
extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
