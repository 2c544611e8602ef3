//! The time that a call is given, and what happens when it is over.
//!
//! The group is closed then, on all ranks: nobody could tell who has which result. Every operation that waits
//! at that moment, here and elsewhere, ends with a timeout that names the rank that it waited for itself. So
//! the names lead from rank to rank to the one that is late.

use std::time::Duration;

use ucx_sys_wrap::buffer::Port;

/// The end of one call, on the transport's clock.
pub(super) struct Deadline {
    end: Duration,
    is_over: bool,
}

impl Deadline {
    /// `timeout` from `now`.
    pub(super) fn after(now: Duration, timeout: Duration) -> Self {
        Self { end: now.saturating_add(timeout), is_over: false }
    }

    /// Closes the group if time is over `now`, unless something else has; `expire` has operations fail that
    /// are posted later.
    pub(super) fn look(&mut self, now: Duration, port: &Port, expire: impl FnOnce()) {
        if now >= self.end && !self.is_over {
            self.is_over = true;
            expire();
            port.time_out();
        }
    }

    /// How long nothing is due.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_over { Duration::MAX } else { self.end.saturating_sub(now) }
    }
}
