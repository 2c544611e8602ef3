//! The waiting time and deadline of one call.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// When a call began to wait, and whether its deadline has passed.
///
/// When a timeout closes the transport, pending operations of a call that waits end with
/// [`Error::Timeout`](crate::Error::Timeout). Those of a call that does not wait yet end with
/// [`Error::Aborted`](crate::Error::Aborted), which names the rank that timed out.
#[derive(Debug)]
pub struct CallTime {
    expired: AtomicBool,
    /// Nanoseconds of the transport's clock.
    since: AtomicU64,
}

const NOT_WAITING: u64 = u64::MAX;

impl Default for CallTime {
    /// The time of a call that does not wait yet.
    fn default() -> Self {
        Self { expired: AtomicBool::new(false), since: AtomicU64::new(NOT_WAITING) }
    }
}

impl CallTime {
    /// Marks the call as waiting from `now` on.
    pub fn begin_to_wait(&self, now: Duration) {
        self.since.store(now.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Marks the call as not waiting, because the transport was already closed.
    pub fn come_too_late(&self) {
        self.since.store(NOT_WAITING, Ordering::Relaxed);
    }

    /// Whether the call waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since.load(Ordering::Relaxed) != NOT_WAITING
    }

    /// How long the call has waited at `now`; zero if it does not wait.
    #[must_use]
    pub fn waited(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_nanos(self.since.load(Ordering::Relaxed)))
    }

    /// Marks the deadline as passed.
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
