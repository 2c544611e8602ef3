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

use super::Status;

/// A call that waits tells others of its context after this time, and then again, so that ranks that make
/// different calls find out.
const WAITS_TOLD_AFTER: Duration = Duration::from_millis(100);
pub(super) const WAITS_TOLD_EVERY: Duration = Duration::from_millis(200);

/// The deadline of one call, on the transport's clock.
pub(super) struct Deadline {
    end: Duration,
    is_over: bool,
    /// When to tell members that this rank waits.
    tell_at: Duration,
    /// The last reading of the clock.
    seen: Duration,
    /// For a call that is polled at the caller's discretion: the longest time between two polls so far. It
    /// may be the caller's own, so only the longest counts as a standstill; otherwise a call that is polled
    /// every second would never end.
    longest: Option<Duration>,
    /// For such a call, once its deadline has passed: the time of the first look after that.
    overdue: Option<Duration>,
    /// The looks since then after turns that moved nothing.
    quiet_looks: u32,
    /// Whether the context stays open when it passes.
    is_soft: bool,
    /// For messages: how long what has begun may still take when it passes for the first time. Then nothing
    /// is closed.
    grace: Option<Duration>,
    /// In simulated time nothing stands still: a silence is a long time between two readings.
    is_simulated: bool,
}

impl Deadline {
    /// A deadline `timeout` after `now`, for a call that waits.
    pub(super) fn after(now: Duration, timeout: Duration, is_simulated: bool) -> Self {
        let (is_over, longest, overdue, quiet_looks, is_soft, grace) = Default::default();
        let end = now.saturating_add(timeout);
        let tell_at = now.saturating_add(WAITS_TOLD_AFTER);
        let seen = now;
        Self { end, is_over, tell_at, seen, longest, overdue, quiet_looks, is_soft, grace, is_simulated }
    }

    /// The same deadline, which ends its call and leaves the context open.
    pub(super) fn soft(self) -> Self {
        Self { is_soft: true, ..self }
    }

    /// The same deadline, for an operation of this rank alone: when it passes, nothing is closed, and this
    /// rank tells nobody that it waits.
    pub(super) fn one_sided(self) -> Self {
        Self { is_soft: true, tell_at: Duration::MAX, ..self }
    }

    /// The same deadline, for messages: when it passes, nothing is closed, and what has begun has the `grace`
    /// to end. They are no call, so this rank tells nobody that it waits.
    pub(super) fn with_grace(self, grace: Duration) -> Self {
        Self { grace: Some(grace), tell_at: Duration::MAX, ..self }
    }

    /// Whether it is one for messages that has not passed.
    pub(super) fn has_grace(&self) -> bool {
        self.grace.is_some()
    }

    /// Lets it pass now if that closes nothing. Returns whether it has.
    pub(super) fn cancel(&mut self, now: Duration) -> bool {
        let grace = self.grace.take();
        if let Some(grace) = grace {
            self.end = now.saturating_add(grace);
        }
        grace.is_some()
    }

    /// A deadline `timeout` after `now`, for a call that is polled at the caller's discretion.
    pub(super) fn in_background(now: Duration, timeout: Duration, is_simulated: bool) -> Self {
        Self { longest: Some(Duration::ZERO), ..Self::after(now, timeout, is_simulated) }
    }

    /// Closes the context if the deadline has passed at `now`, unless it is soft or the context is closed.
    /// `expire` makes operations fail that are posted later. `moved` tells whether the last turn of the
    /// transport moved anything. Returns whether the deadline ended the call.
    pub(super) fn look(
        &mut self,
        (now, moved): (Duration, bool),
        port: &Port,
        status: &Status,
        expire: &mut dyn FnMut(),
    ) -> bool {
        self.see(now);
        let ends = now >= self.end && !self.is_over && !self.is_owed_a_turn(now, moved);
        if ends {
            expire();
            if let Some(grace) = self.grace.take() {
                (self.end, self.overdue, self.quiet_looks) = (now.saturating_add(grace), None, 0);
                return true;
            }
            self.is_over = true;
            if !self.is_soft {
                port.time_out(status.number);
            }
        } else if now >= self.tell_at && !self.is_over {
            self.tell_at = now.saturating_add(WAITS_TOLD_EVERY);
            status.tell_of_wait(port, now);
        }
        ends
    }

    /// Whether a call in the background whose deadline has passed gets another turn. It does until the
    /// transport has nothing more that may be for it, but for less than [`STANDSTILL`], because others may
    /// keep the transport busy.
    fn is_owed_a_turn(&mut self, now: Duration, moved: bool) -> bool {
        if self.longest.is_none() {
            return false;
        }
        let since = *self.overdue.get_or_insert(now);
        self.quiet_looks = if moved { 0 } else { self.quiet_looks + 1 };
        // The first look may be before a turn. A simulation turns before each look.
        let enough = if self.is_simulated { 1 } else { 2 };
        self.quiet_looks < enough && now.saturating_sub(since) < STANDSTILL
    }

    /// When it passes; never if it has ended its call.
    pub(super) fn end(&self) -> Duration {
        if self.is_over { Duration::MAX } else { self.end }
    }

    /// Notes a reading of the clock.
    fn see(&mut self, now: Duration) {
        let unseen = now.saturating_sub(std::mem::replace(&mut self.seen, now));
        if unseen >= STANDSTILL && !self.is_simulated {
            let counted = self.longest.as_mut().map_or(Duration::ZERO, |longest| {
                let before = *longest;
                *longest = before.max(unseen);
                before
            });
            self.end = self.end.saturating_add(unseen.saturating_sub(counted));
        }
    }

    /// The time until the deadline, or until this rank tells that it waits.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_over { Duration::MAX } else { self.end.min(self.tell_at).saturating_sub(now) }
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
        let mut deadline = Deadline::after(SECOND, 5 * SECOND, false);
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
        let mut deadline = Deadline::in_background(SECOND, 5 * SECOND, false);
        assert!(!is_over(&mut deadline, 11), "nobody has looked for 10 seconds");
        assert!((12..16).all(|now| !is_over(&mut deadline, now)), "a look every second");
        assert!(is_over(&mut deadline, 16));
    }

    #[test]
    fn a_silence_in_simulated_time_counts() {
        for make in [Deadline::after, Deadline::in_background] {
            let mut deadline = make(SECOND, 5 * SECOND, true);
            assert!(!is_over(&mut deadline, 4));
            assert!(is_over(&mut deadline, 6));
        }
    }

    #[test]
    fn a_message_that_has_begun_has_its_grace() {
        let alone = ucx_sys_wrap::local::world(1).into_iter().next().unwrap();
        let port = Port::new(Box::new(alone));
        let status = Status::new(0, &port);
        let mut deadline = Deadline::after(SECOND, SECOND, true).with_grace(5 * SECOND);
        let mut expired = 0;
        let mut look = |now| deadline.look((now * SECOND, false), &port, &status, &mut || expired += 1);
        assert!(!look(1) && look(2) && !look(6));
        assert_eq!(port.failure(0), None, "nothing is closed");
        assert!(look(7) && !look(8));
        assert_eq!((expired, port.failure(0).is_some()), (2, true));
    }

    #[test]
    fn a_call_in_the_background_gets_what_the_transport_still_has_for_it() {
        let mut deadline = Deadline::in_background(SECOND, SECOND, false);
        let mut owed = |millis, moved| deadline.is_owed_a_turn(Duration::from_millis(millis), moved);
        assert!(owed(2000, false) && owed(2001, true) && owed(2002, false));
        assert!(!owed(2003, false), "two turns have moved nothing");
        assert!(!owed(2500, true), "others keep the transport busy");
    }
}
