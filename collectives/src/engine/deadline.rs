//! Deadlines of calls.
//!
//! When a deadline passes, the group is closed on all ranks, because nobody could tell which rank has which
//! result. Every operation that waits at that moment, on any rank, ends with a timeout that names the rank
//! that it waits for. So the names lead from rank to rank to the one that is late.
//!
//! Time in which this process was stopped or frozen does not count. A process is not told of that, but a
//! waiting call reads the clock every few milliseconds, so a long time between two readings shows it. If only
//! this process stood still, the deadlines of the others count.

use std::time::Duration;

use ucx_sys_wrap::STANDSTILL;
use ucx_sys_wrap::buffer::Port;

/// The deadline of one call, on the transport's clock.
pub(super) struct Deadline {
    end: Duration,
    is_over: bool,
    /// The last reading of the clock.
    seen: Duration,
    /// For a call that is polled at the caller's discretion: the longest time between two polls so far. It
    /// may be the caller's own, so only the longest counts as a standstill; otherwise a call that is polled
    /// every second would never end.
    longest: Option<Duration>,
}

impl Deadline {
    /// A deadline `timeout` after `now`, for a call that waits.
    pub(super) fn after(now: Duration, timeout: Duration) -> Self {
        Self { end: now.saturating_add(timeout), is_over: false, seen: now, longest: None }
    }

    /// A deadline `timeout` after `now`, for a call that is polled at the caller's discretion.
    pub(super) fn in_background(now: Duration, timeout: Duration) -> Self {
        Self { longest: Some(Duration::ZERO), ..Self::after(now, timeout) }
    }

    /// Closes the group if the deadline has passed at `now`, unless it is closed already. `expire` makes
    /// operations fail that are posted later.
    pub(super) fn look(&mut self, now: Duration, port: &Port, expire: impl FnOnce()) {
        self.see(now);
        if now >= self.end && !self.is_over {
            self.is_over = true;
            expire();
            port.time_out();
        }
    }

    /// Notes a reading of the clock.
    fn see(&mut self, now: Duration) {
        let unseen = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        if unseen >= STANDSTILL {
            let counted = self.longest.as_mut().map_or(Duration::ZERO, |longest| {
                let before = *longest;
                *longest = before.max(unseen);
                before
            });
            self.end = self.end.saturating_add(unseen.saturating_sub(counted));
        }
    }

    /// The time until the deadline.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_over { Duration::MAX } else { self.end.saturating_sub(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Whether the deadline has passed at `now`, in seconds.
    fn is_over(deadline: &mut Deadline, now: u32) -> bool {
        deadline.see(now * SECOND);
        now * SECOND >= deadline.end
    }

    /// Reads the clock often from `start` to `end`, in seconds.
    fn wait(deadline: &mut Deadline, start: u32, end: u32) {
        (start * 10..=end * 10).for_each(|tenths| deadline.see(tenths * SECOND / 10));
    }

    #[test]
    fn time_without_a_look_does_not_count_for_a_call_that_waits() {
        let mut deadline = Deadline::after(SECOND, 5 * SECOND);
        wait(&mut deadline, 1, 4);
        assert!(!is_over(&mut deadline, 100), "it stood still for 96 seconds");
        assert!(!is_over(&mut deadline, 200), "and for 100 more");
        wait(&mut deadline, 200, 201);
        assert!(!is_over(&mut deadline, 201));
        wait(&mut deadline, 201, 202);
        assert!(is_over(&mut deadline, 202));
    }

    #[test]
    fn of_a_call_in_the_background_the_longest_such_time_does_not_count() {
        let mut deadline = Deadline::in_background(SECOND, 5 * SECOND);
        assert!(!is_over(&mut deadline, 11), "nobody has looked for 10 seconds");
        assert!((12..16).all(|now| !is_over(&mut deadline, now)), "a look every second");
        assert!(is_over(&mut deadline, 16));
    }
}
