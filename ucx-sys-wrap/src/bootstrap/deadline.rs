//! A point in time to be done by. Time in which this process stood still does not count. Another thread can
//! bring it forward to now.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Error, Rank, STANDSTILL};

/// The longest sleep of a rank that joins: a much longer one shows that the process stood still.
const NAP: Duration = Duration::from_millis(100);

/// How long this process has stood still while it joined groups, in nanoseconds.
static STOOD_STILL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What gives up the join of this thread.
    static CANCEL: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// The most time that is reserved for the report of missing ranks.
const REPORT: Duration = Duration::from_secs(2);

/// Deadlines of equal length that start within this of each other count as one in messages.
const SKEW: Duration = Duration::from_secs(1);

/// The place to reach, where joined ranks can't reach each other.
const EACH_OTHER: &str = "each other (BREVITY_INTERFACE names the network to use)";

/// Gives up a join from another thread.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the join within about 100 ms, as if its deadline had passed; while UCX connects, by its deadline.
    /// Rank 0 leaves without a report then, so that the others find it lost.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Runs `join`, which [`cancel`](Self::cancel) gives up.
    pub fn during<R>(&self, join: impl FnOnce() -> R) -> R {
        struct Restore(Option<Cancel>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CANCEL.set(self.0.take());
            }
        }
        let _restore = Restore(CANCEL.replace(Some(self.clone())));
        join()
    }
}

/// Whether this thread's join is given up.
pub(super) fn is_given_up() -> bool {
    let is_set = |cancel: &RefCell<Option<Cancel>>| {
        cancel.borrow().as_ref().is_some_and(|cancel| cancel.0.load(Ordering::Relaxed))
    };
    // A thread that is ending has no join to give up.
    CANCEL.try_with(is_set).unwrap_or(false)
}

/// A point in time to be done by, and how long was given for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    start: Instant,
    /// How long the process had stood still before that.
    stood_still: Duration,
    /// The time that messages show.
    pub(super) given: Duration,
    /// From the start to the end; shorter than `given` where time is reserved.
    lasts: Duration,
}

impl Deadline {
    /// Deadlines are capped to this, so that adding one to a clock can't overflow.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    pub(super) fn after(given: Duration) -> Self {
        let given = given.min(Self::LONGEST);
        Self { start: Instant::now(), stood_still: stood_still(), given, lasts: given }
    }

    /// How much of the time is over.
    fn elapsed(&self) -> Duration {
        self.start.elapsed().saturating_sub(stood_still() - self.stood_still)
    }

    /// The time left, zero once it has passed.
    pub(super) fn remaining(&self) -> Duration {
        if is_given_up() { Duration::ZERO } else { self.told() }
    }

    /// The time left, for other ranks: one that gives up its join shortens no other's.
    pub(super) fn told(&self) -> Duration {
        self.lasts.saturating_sub(self.elapsed())
    }

    pub(super) fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The error for ranks that have joined, but could not be reached by others until then.
    pub(super) fn unreached(&self, missing: Vec<Rank>) -> Error {
        Error::MissingRanks { missing, deadline: self.given, master: EACH_OTHER.into() }
    }

    /// The same deadline, or `remaining` from now (to a millisecond) if that is earlier.
    pub(super) fn no_later_than(self, remaining: Duration) -> Self {
        let until_then = Duration::from_millis((self.elapsed() + remaining).as_millis() as u64 + 1);
        let is_skew = until_then + SKEW >= self.given && until_then * 2 >= self.given;
        let given = if is_skew { self.given } else { self.given.min(until_then) };
        Self { given, lasts: self.lasts.min(until_then), ..self }
    }

    /// The same deadline, less the time reserved for the report of missing ranks.
    pub(super) fn before_report(self) -> Self {
        let reserved = (self.remaining() / 4).min(REPORT);
        Self { lasts: self.lasts.saturating_sub(reserved), ..self }
    }

    pub(super) fn with_grace(self, grace: Duration) -> Self {
        Self { lasts: self.lasts + grace, ..self }
    }
}

/// Has `sleep` sleep for at most `longest`, or less, and takes note if it took so much longer that this
/// process must have stood still.
pub(super) fn nap<R>(longest: Duration, sleep: impl FnOnce(Duration) -> R) -> R {
    let (start, noted) = (Instant::now(), STOOD_STILL.load(Ordering::Relaxed));
    let longest = longest.min(NAP);
    let result = sleep(longest);
    let still = start.elapsed().saturating_sub(longest);
    if still >= STANDSTILL {
        let sum = noted.saturating_add(still.as_nanos() as u64);
        // If it fails, another thread has just taken note of the same time.
        let _ = STOOD_STILL.compare_exchange(noted, sum, Ordering::Relaxed, Ordering::Relaxed);
    }
    result
}

fn stood_still() -> Duration {
    Duration::from_nanos(STOOD_STILL.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_one_counts() {
        let minute = Deadline::after(Duration::from_secs(60));
        assert!(minute.no_later_than(Duration::from_secs(5)).remaining() <= Duration::from_millis(5002));
        for (told, given) in [(500, 60), (60, 60), (59, 60), (58, 58), (5, 5)] {
            let found = minute.no_later_than(Duration::from_secs(told)).given;
            assert_eq!(found.as_secs(), given, "{told} s left");
        }
        assert!(minute.no_later_than(Duration::from_secs(59)).remaining() <= Duration::from_millis(59_002));
        assert!(Deadline::after(Duration::ZERO).passed());
        assert_eq!(minute.before_report().given, Duration::from_secs(60));
        assert!(minute.before_report().remaining() <= Duration::from_secs(58));
        assert!(
            minute.no_later_than(Duration::from_secs(2)).before_report().remaining() > Duration::from_secs(1)
        );
        assert!(!Deadline::after(Duration::MAX).passed());
    }

    #[test]
    fn a_join_that_is_given_up_has_no_time_left() {
        let (deadline, cancel) = (Deadline::after(Duration::from_secs(60)), Cancel::default());
        cancel.during(|| {
            assert!(!deadline.passed());
            cancel.cancel();
            assert!(deadline.passed() && deadline.with_grace(Duration::from_secs(1)).passed());
            assert!(!deadline.told().is_zero());
            Cancel::default().during(|| assert!(!deadline.passed(), "another join"));
        });
        assert!(!deadline.passed());
    }

    #[test]
    fn time_that_the_process_stood_still_does_not_count() {
        let deadline = Deadline::after(Duration::from_secs(60));
        let before = deadline.remaining();
        nap(Duration::ZERO, |_| std::thread::sleep(STANDSTILL));
        assert!(deadline.remaining() + STANDSTILL > before, "it stood still");
        nap(Duration::from_secs(60), std::thread::sleep);
        assert!(deadline.remaining() + NAP <= before, "it slept");
    }
}
