//! A point in time to be done by.

use std::time::{Duration, Instant};

/// A point in time to be done by, and how long was given for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    given: Duration,
}

impl Deadline {
    /// No deadline is further away, so that adding it to a clock can't overflow.
    const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

    /// `given` from now.
    pub(super) fn after(given: Duration) -> Self {
        let given = given.min(Self::LONGEST);
        Self { at: Instant::now() + given, given }
    }

    /// What is left, zero once it has passed.
    pub(super) fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(super) fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long was given.
    pub(super) fn given(&self) -> Duration {
        self.given
    }

    /// The same deadline, or `remaining` from now if that is earlier.
    pub(super) fn no_later_than(self, remaining: Duration) -> Self {
        if remaining < self.remaining() { Self { at: Instant::now() + remaining, ..self } } else { self }
    }
}
