//! When a job stops, and when its ranks are killed.

use std::time::{Duration, Instant};

use crate::STANDSTILL;

/// How long ranks may take to stop by themselves.
const STOPPING: Duration = Duration::from_secs(1);

/// A later interrupt within this time counts as the same one, sent by both a terminal and a wrapper.
const SAME_INTERRUPT: Duration = Duration::from_secs(1);

/// The longest sleeps while ranks may have to be killed, and while they are stopping.
const NAP: Duration = Duration::from_millis(100);
const GLANCE: Duration = Duration::from_millis(5);

/// What is planned for a job.
pub(super) struct Schedule {
    grace: Duration,
    kill_at: Option<Instant>,
    interrupted: Option<Instant>,
    stop: Stop,
}

/// The progress of a stop.
enum Stop {
    No,
    /// The ranks were told to stop at this time.
    Told(Instant),
    /// They have stopped, told at this time.
    Done(Instant),
}

impl Schedule {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, kill_at: None, interrupted: None, stop: Stop::No }
    }

    /// Plans to kill the ranks after the grace period, once. Stopped ranks must continue, because they can't
    /// end; returns whether they had been stopped.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        let continued = self.go_on(now);
        // If the clock can't represent the end of the grace period, it never ends.
        self.kill_at = self.kill_at.or_else(|| now.checked_add(self.grace));
        continued
    }

    /// Handles an interrupt by the user, like [`end`](Self::end): a second one kills the ranks at once.
    pub(super) fn interrupt(&mut self, now: Instant) -> bool {
        let continued = self.end(now);
        if now - *self.interrupted.get_or_insert(now) >= SAME_INTERRUPT {
            self.kill_at = Some(now);
        }
        continued
    }

    /// Notes that the ranks were told to stop.
    pub(super) fn stop(&mut self, now: Instant) {
        if matches!(self.stop, Stop::No) {
            self.stop = Stop::Told(now);
        }
    }

    /// Notes that the ranks continue. Returns whether they had been stopped; that time does not count.
    pub(super) fn go_on(&mut self, now: Instant) -> bool {
        let (Stop::Told(since) | Stop::Done(since)) = std::mem::replace(&mut self.stop, Stop::No) else {
            return false;
        };
        self.postpone(now - since);
        true
    }

    /// Whether to stop the remaining ranks and this process now; true once per stop. `have_stopped` tells
    /// whether all ranks have stopped.
    pub(super) fn is_stop_due(&mut self, now: Instant, have_stopped: impl FnOnce() -> bool) -> bool {
        let Stop::Told(since) = self.stop else { return false };
        let is_due = now - since >= STOPPING || have_stopped();
        if is_due {
            self.stop = Stop::Done(since);
        }
        is_due
    }

    /// Whether the job neither stops nor has stopped.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self.stop, Stop::No)
    }

    /// Whether the job has stopped and does not continue yet.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.stop, Stop::Done(_))
    }

    /// Whether to kill the ranks now; true once.
    pub(super) fn is_kill_due(&mut self, now: Instant) -> bool {
        let is_due = matches!(self.stop, Stop::No) && self.kill_at.is_some_and(|time| now >= time);
        if is_due {
            self.kill_at = None;
        }
        is_due
    }

    /// How long nothing is due; `None` for ever.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        match (&self.stop, self.kill_at) {
            (Stop::Told(_), _) => Some(GLANCE),
            (Stop::No, Some(time)) => Some(time.saturating_duration_since(now).min(NAP)),
            (Stop::Done(_), _) | (Stop::No, None) => None,
        }
    }

    /// Notes that a sleep of at most `longest` took `took`. If this process stood still, its ranks most
    /// likely did too, so the excess does not count.
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
    fn a_stop_before_the_end_does_not_lengthen_the_grace() {
        let (mut schedule, start) = (Schedule::new(10 * SECOND), Instant::now());
        schedule.stop(start);
        assert!(schedule.is_stop_due(start + SECOND, || true));
        assert!(schedule.end(start + 3600 * SECOND), "the ranks must continue");
        assert!(schedule.is_kill_due(start + 3610 * SECOND));
        schedule.interrupt(start + 3620 * SECOND);
        schedule.stop(start + 3621 * SECOND);
        assert!(schedule.interrupt(start + 3700 * SECOND) && schedule.is_kill_due(start + 3700 * SECOND));
    }

    #[test]
    fn ranks_that_do_not_stop_by_themselves_are_stopped() {
        let (mut schedule, start) = (Schedule::new(SECOND), Instant::now());
        schedule.stop(start);
        assert!(!schedule.is_stop_due(start + STOPPING / 2, || false));
        assert!(schedule.is_stop_due(start + STOPPING, || false));
    }
}
