//! When a job stops, and when ranks that go on for too long are killed.

use std::time::{Duration, Instant};

use crate::STANDSTILL;

/// How long ranks have to stop by themselves when they are told to.
const STOPPING: Duration = Duration::from_secs(1);

/// An interrupt that comes later than this after the first is another one; until then it may be the same one,
/// passed on by a terminal and by a wrapper.
const SAME_INTERRUPT: Duration = Duration::from_secs(1);

/// The longest sleep while ranks may be killed at some time, or are looked at whether they have stopped.
const NAP: Duration = Duration::from_millis(100);
const GLANCE: Duration = Duration::from_millis(5);

/// What is to happen to a job, and when.
pub(super) struct Schedule {
    grace: Duration,
    kill_at: Option<Instant>,
    interrupted: Option<Instant>,
    stop: Stop,
}

/// Whether the job stops.
enum Stop {
    No,
    /// Its ranks were told to.
    Told(Instant),
    /// It has, since it was told to.
    Done(Instant),
}

impl Schedule {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, kill_at: None, interrupted: None, stop: Stop::No }
    }

    /// The job is to end: what goes on for longer than the grace period is killed. The first time counts.
    pub(super) fn end(&mut self, now: Instant) {
        // A grace period that no clock can hold is one that does not end.
        self.kill_at = self.kill_at.or_else(|| now.checked_add(self.grace));
    }

    /// The user interrupts the job: the second time it is killed at once.
    pub(super) fn interrupt(&mut self, now: Instant) {
        self.end(now);
        if now - *self.interrupted.get_or_insert(now) >= SAME_INTERRUPT {
            self.kill_at = Some(now);
        }
    }

    /// The ranks were told to stop.
    pub(super) fn stop(&mut self, now: Instant) {
        if matches!(self.stop, Stop::No) {
            self.stop = Stop::Told(now);
        }
    }

    /// The ranks go on; says whether they were told to stop. The time that they stood still does not count.
    pub(super) fn go_on(&mut self, now: Instant) -> bool {
        let (Stop::Told(since) | Stop::Done(since)) = std::mem::replace(&mut self.stop, Stop::No) else {
            return false;
        };
        self.postpone(now - since);
        true
    }

    /// Whether it is time to stop what has not, and this process; once for each stop. `have_stopped` says
    /// whether all ranks have.
    pub(super) fn is_stop_due(&mut self, now: Instant, have_stopped: impl FnOnce() -> bool) -> bool {
        let Stop::Told(since) = self.stop else { return false };
        let is_due = now - since >= STOPPING || have_stopped();
        if is_due {
            self.stop = Stop::Done(since);
        }
        is_due
    }

    /// Whether the job has stopped and was not told to go on.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.stop, Stop::Done(_))
    }

    /// Whether it is time to kill the ranks; once.
    pub(super) fn is_kill_due(&mut self, now: Instant) -> bool {
        let is_due = matches!(self.stop, Stop::No) && self.kill_at.is_some_and(|time| now >= time);
        if is_due {
            self.kill_at = None;
        }
        is_due
    }

    /// How long nothing is to be done by the clock; `None` for ever.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        match (&self.stop, self.kill_at) {
            (Stop::Told(_), _) => Some(GLANCE),
            (Stop::No, Some(time)) => Some(time.saturating_duration_since(now).min(NAP)),
            (Stop::Done(_), _) | (Stop::No, None) => None,
        }
    }

    /// A sleep that was meant to take `longest` took so long. Where this process stood still, so most likely
    /// did its ranks, by whatever has stopped all of them.
    pub(super) fn slept(&mut self, longest: Duration, took: Duration) {
        let still = took.saturating_sub(longest);
        if still >= STANDSTILL && matches!(self.stop, Stop::No) {
            self.postpone(still);
        }
    }

    fn postpone(&mut self, by: Duration) {
        self.kill_at = self.kill_at.and_then(|time| time.checked_add(by));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ranks_are_killed_after_their_grace_and_once() {
        let (mut schedule, start) = (Schedule::new(10 * SECOND), Instant::now());
        assert_eq!(schedule.patience(start), None);
        schedule.end(start);
        schedule.end(start + 5 * SECOND);
        assert!(!schedule.is_kill_due(start + 9 * SECOND));
        assert!(schedule.is_kill_due(start + 10 * SECOND) && !schedule.is_kill_due(start + 11 * SECOND));
        let mut patient = Schedule::new(Duration::MAX);
        patient.end(start);
        assert!(!patient.is_kill_due(start + 1_000_000 * SECOND));
    }

    #[test]
    fn a_second_interrupt_kills_but_not_the_same_one_twice() {
        let (mut schedule, start) = (Schedule::new(30 * SECOND), Instant::now());
        schedule.interrupt(start);
        schedule.interrupt(start + SECOND / 2);
        assert!(!schedule.is_kill_due(start + SECOND / 2));
        schedule.interrupt(start + 3 * SECOND);
        assert!(schedule.is_kill_due(start + 3 * SECOND));
    }

    #[test]
    fn time_that_the_job_stood_still_does_not_count() {
        let (mut schedule, start) = (Schedule::new(10 * SECOND), Instant::now());
        schedule.end(start);
        schedule.stop(start + SECOND);
        assert!(!schedule.is_stop_due(start + SECOND, || false));
        assert!(schedule.is_stop_due(start + SECOND, || true) && !schedule.is_stop_due(start, || true));
        assert!(!schedule.is_kill_due(start + 100 * SECOND), "it is stopped");
        // That this process was stopped with it counts once.
        schedule.slept(NAP, 99 * SECOND);
        assert!(schedule.go_on(start + 101 * SECOND) && !schedule.go_on(start + 101 * SECOND));
        assert!(!schedule.is_kill_due(start + 109 * SECOND));
        schedule.slept(NAP, 50 * SECOND + NAP);
        assert!(!schedule.is_kill_due(start + 159 * SECOND) && schedule.is_kill_due(start + 160 * SECOND));
    }

    #[test]
    fn ranks_that_do_not_stop_by_themselves_are_stopped() {
        let (mut schedule, start) = (Schedule::new(SECOND), Instant::now());
        schedule.stop(start);
        assert!(!schedule.is_stop_due(start + STOPPING / 2, || false));
        assert!(schedule.is_stop_due(start + STOPPING, || false));
    }
}
