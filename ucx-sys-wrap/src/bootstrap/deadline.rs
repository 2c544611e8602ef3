//! A point in time to be done by.

use std::time::{Duration, Instant};

/// A point in time to be done by, and how long was given for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    start: Instant,
    given: Duration,
}

impl Deadline {
    /// No deadline is further away, so that adding it to a clock can't overflow.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    /// `given` from now.
    pub(super) fn after(given: Duration) -> Self {
        Self { start: Instant::now(), given: given.min(Self::LONGEST) }
    }

    /// What is left, zero once it has passed.
    pub(super) fn remaining(&self) -> Duration {
        self.given.saturating_sub(self.start.elapsed())
    }

    pub(super) fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long was given.
    pub(super) fn given(&self) -> Duration {
        self.given
    }

    /// The same deadline, or `remaining` from now (to a millisecond) if that is earlier.
    pub(super) fn no_later_than(self, remaining: Duration) -> Self {
        let until_then = Duration::from_millis((self.start.elapsed() + remaining).as_millis() as u64 + 1);
        Self { given: self.given.min(until_then), ..self }
    }

    /// The same deadline, later by `grace`.
    pub(super) fn with_grace(self, grace: Duration) -> Self {
        Self { given: self.given + grace, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_one_counts() {
        let minute = Deadline::after(Duration::from_secs(60));
        assert!(minute.no_later_than(Duration::from_secs(5)).remaining() <= Duration::from_millis(5002));
        assert_eq!(minute.no_later_than(Duration::from_secs(500)).given(), Duration::from_secs(60));
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::after(Duration::MAX).passed());
    }
}
