//! The waiting time and deadline of one call.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// When a call began to wait, and whether its deadline has passed.
///
/// When a timeout closes the transport, pending operations of a call that waits end with
/// [`Error::Timeout`](crate::Error::Timeout). Those of a call that does not wait yet end with
/// [`Error::Aborted`](crate::Error::Aborted), which names the rank that timed out.
#[derive(Debug)]
pub struct CallTime {
    stage: AtomicU8,
    /// Nanoseconds of the transport's clock.
    since: AtomicU64,
}

/// The stages of a deadline.
const AHEAD: u8 = 0;
/// Ahead, and what has begun when it passes may go on until it passes a second time.
const AHEAD_SOFTLY: u8 = 1;
const PASSED_SOFTLY: u8 = 2;
const PASSED: u8 = 3;

const NOT_WAITING: u64 = u64::MAX;

impl Default for CallTime {
    /// The time of a call that does not wait yet.
    fn default() -> Self {
        Self { stage: AtomicU8::new(AHEAD), since: AtomicU64::new(NOT_WAITING) }
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

    /// Lets receives go on whose messages have begun to come when the deadline passes for the first time.
    pub fn expire_softly_first(&self) {
        self.stage.store(AHEAD_SOFTLY, Ordering::Relaxed);
    }

    /// Marks the deadline as passed.
    pub fn expire(&self) {
        let is_first = self.stage.load(Ordering::Relaxed) == AHEAD_SOFTLY;
        self.stage.store(if is_first { PASSED_SOFTLY } else { PASSED }, Ordering::Relaxed);
    }

    /// Whether the deadline has passed, and what has begun may go on.
    #[must_use]
    pub fn has_expired_softly(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == PASSED_SOFTLY
    }

    /// Whether the deadline has passed.
    #[inline]
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.stage.load(Ordering::Relaxed) >= PASSED_SOFTLY
    }
}
