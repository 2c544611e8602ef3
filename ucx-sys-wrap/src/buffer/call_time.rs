//! The time of one call: when it began to wait, and whether its deadline has passed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// When a call began to wait, and whether its deadline has passed.
///
/// Operations that are pending when a timeout closes the transport end with
/// [`Error::Timeout`](crate::Error::Timeout) if their call waits, and with
/// [`Error::Aborted`](crate::Error::Aborted), which names the rank that timed out, if it has not begun to.
#[derive(Debug)]
pub struct CallTime {
    expired: AtomicBool,
    /// In nanoseconds of the transport's clock.
    since: AtomicU64,
}

const NOT_WAITING: u64 = u64::MAX;

impl Default for CallTime {
    /// Of a call that does not wait yet.
    fn default() -> Self {
        Self { expired: AtomicBool::new(false), since: AtomicU64::new(NOT_WAITING) }
    }
}

impl CallTime {
    /// The call waits from `now` on; the transport is open as far as this rank can know.
    pub fn begin_to_wait(&self, now: Duration) {
        self.since.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The call does not wait: it has come after the transport was closed.
    pub fn come_too_late(&self) {
        self.since.store(NOT_WAITING, Ordering::Relaxed);
    }

    /// Whether the call waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since.load(Ordering::Relaxed) != NOT_WAITING
    }

    /// How long the call has waited at `now`; zero if it does not.
    #[must_use]
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_nanos(self.since.load(Ordering::Relaxed)))
    }

    /// Lets the deadline pass.
    pub fn expire(&self) {
        self.expired.store(true, Ordering::Relaxed);
    }

    /// Whether the deadline has passed.
    #[inline]
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expired.load(Ordering::Relaxed)
    }
}
