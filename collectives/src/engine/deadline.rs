//! The time that a call is given, and what happens when it is over.
//!
//! The group is closed then, on all ranks: nobody could tell who has which result. Every operation that waits
//! at that moment, here and elsewhere, ends with a timeout that names the rank that it waited for itself. So
//! the names lead from rank to rank to the one that is late.
//!
//! Time in which this process stood still does not count: it was stopped by a signal, or frozen with its
//! container. A process is not told of that, but who waits looks at the clock every few milliseconds, and a
//! long time between two looks shows it. If only this process stood still, the deadlines of the others count.

use std::time::Duration;

use ucx_sys_wrap::STANDSTILL;
use ucx_sys_wrap::buffer::Port;

/// The end of one call, on the transport's clock.
pub(super) struct Deadline {
    end: Duration,
    is_over: bool,
    /// The last look.
    seen: Duration,
    /// For a call that is looked at when its caller likes: the longest time between two looks so far. It may
    /// have been the caller's own, so only the longest counts as a standstill: else a call that is looked at
    /// every second would never end.
    longest: Option<Duration>,
}

impl Deadline {
    /// `timeout` from `now`, for a call that waits.
    pub(super) fn after(now: Duration, timeout: Duration) -> Self {
        Self { end: now.saturating_add(timeout), is_over: false, seen: now, longest: None }
    }

    /// `timeout` from `now`, for a call that is looked at when its caller likes.
    pub(super) fn in_background(now: Duration, timeout: Duration) -> Self {
        Self { longest: Some(Duration::ZERO), ..Self::after(now, timeout) }
    }

    /// Closes the group if time is over `now`, unless something else has; `expire` has operations fail that
    /// are posted later.
    pub(super) fn look(&mut self, now: Duration, port: &Port, expire: impl FnOnce()) {
        self.see(now);
        if now >= self.end && !self.is_over {
            self.is_over = true;
            expire();
            port.time_out();
        }
    }

    /// Takes note of a look at the clock.
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

    /// How long nothing is due.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_over { Duration::MAX } else { self.end.saturating_sub(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Whether time is over at `now`, in seconds.
    fn is_over(deadline: &mut Deadline, now: u32) -> bool {
        deadline.see(now * SECOND);
        now * SECOND >= deadline.end
    }

    /// Looks often from `start` to `end`, in seconds.
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
