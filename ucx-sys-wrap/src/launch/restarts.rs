//! Which lost ranks are started again, and when.

use std::time::{Duration, Instant};

use crate::Rank;

/// The pause before a rank that has lived for less than [`LONGEST`] is started again. It doubles each time,
/// up to [`LONGEST`], until the rank has lived longer.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

/// The restarts of a job.
pub(super) struct Restarts {
    /// How many more may be planned.
    left: u32,
    /// In rank order.
    ranks: Vec<Life>,
}

struct Life {
    /// When the rank was started last.
    began: Instant,
    /// The next pause.
    pause: Duration,
    /// When it is to be started again.
    due: Option<Instant>,
    /// How often it was started again.
    restarts: u32,
}

impl Restarts {
    /// At most `most` in all.
    pub(super) fn new(most: u32) -> Self {
        Self { left: most, ranks: Vec::new() }
    }

    /// Notes that the next rank was started for the first time.
    pub(super) fn add(&mut self, now: Instant) {
        self.ranks.push(Life { began: now, pause: SHORTEST, due: None, restarts: 0 });
    }

    /// Plans to start a rank again, which was lost at `now`. Returns false if the number is used up.
    pub(super) fn plan(&mut self, rank: Rank, now: Instant) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let life = &mut self.ranks[rank.index()];
        let mut pause = Duration::ZERO;
        if now.saturating_duration_since(life.began) < LONGEST {
            pause = life.pause;
            life.pause = (2 * pause).min(LONGEST);
        } else {
            life.pause = SHORTEST;
        }
        life.due = Some(now + pause);
        true
    }

    /// Gives all plans up, for good. Returns the ranks that are not started again.
    pub(super) fn give_up(&mut self) -> Vec<Rank> {
        self.left = 0;
        self.take(|_| true).into_iter().map(|(rank, _)| rank).collect()
    }

    /// The ranks that are to be started at `now`, and the number of this restart of each.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(Rank, u32)> {
        let due = self.take(|due| due <= now);
        due.iter().for_each(|(rank, _)| self.ranks[rank.index()].began = now);
        due
    }

    /// Notes that a rank was started again.
    pub(super) fn started(&mut self, rank: Rank) {
        self.ranks[rank.index()].restarts += 1;
    }

    /// Whether any rank was started again.
    pub(super) fn has_started(&self) -> bool {
        self.ranks.iter().any(|life| life.restarts > 0)
    }

    /// When the next rank is due; `None` if none is planned.
    pub(super) fn due(&self) -> Option<Instant> {
        self.ranks.iter().filter_map(|life| life.due).min()
    }

    /// How often each rank was started again, in rank order.
    pub(super) fn counts(&self) -> Vec<u32> {
        self.ranks.iter().map(|life| life.restarts).collect()
    }

    /// Takes the plans that are `wanted` by their time.
    fn take(&mut self, wanted: impl Fn(Instant) -> bool) -> Vec<(Rank, u32)> {
        let lives = (0..).map(Rank).zip(&mut self.ranks);
        let take = |(rank, life): (Rank, &mut Life)| {
            life.due.take_if(|due| wanted(*due)).map(|_| (rank, life.restarts.saturating_add(1)))
        };
        lives.filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn restarts(most: u32, start: Instant) -> Restarts {
        let mut restarts = Restarts::new(most);
        (0..3).for_each(|_| restarts.add(start));
        restarts
    }

    #[test]
    fn a_rank_that_ends_at_once_is_started_after_ever_longer_pauses() {
        let mut now = Instant::now();
        let mut restarts = restarts(100, now);
        let mut lose = |lived: Duration| {
            now += lived;
            assert!(restarts.plan(Rank(1), now));
            let due = restarts.due().unwrap();
            let pause = due - now;
            assert!(pause.is_zero() || restarts.take_due(due - MS).is_empty());
            let number = restarts.counts()[1] + 1;
            assert_eq!(restarts.take_due(due), [(Rank(1), number)]);
            assert!(restarts.due().is_none() && restarts.take_due(due).is_empty());
            restarts.started(Rank(1));
            now = due;
            pause.as_millis()
        };
        let pauses = [0, 1, 1999, 0, 0, 0, 0].map(|lived| lose(lived * MS));
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        // One that has lived longer is none of these.
        assert_eq!([2000, 5000, 0, 0, 2000, 0].map(|lived| lose(lived * MS)), [0, 0, 100, 200, 0, 100]);
        assert_eq!(restarts.counts(), [0, 13, 0]);
    }

    #[test]
    fn ranks_have_pauses_of_their_own_and_one_number_in_all() {
        let start = Instant::now();
        let mut restarts = restarts(3, start);
        assert!(restarts.plan(Rank(2), start) && restarts.plan(Rank(0), start));
        assert_eq!(restarts.take_due(start + SHORTEST), [(Rank(0), 1), (Rank(2), 1)]);
        restarts.started(Rank(2));
        assert!(restarts.plan(Rank(2), start + SHORTEST));
        assert_eq!(restarts.due(), Some(start + 3 * SHORTEST));
        assert!(!restarts.plan(Rank(1), start + SHORTEST), "a fourth one");
        assert_eq!(restarts.take_due(start + 3 * SHORTEST), [(Rank(2), 2)]);
        // Rank 0 could not be started.
        assert_eq!(restarts.counts(), [0, 0, 1]);
    }

    #[test]
    fn plans_are_given_up_for_good() {
        let start = Instant::now();
        let mut restarts = restarts(3, start);
        assert!(restarts.plan(Rank(1), start));
        assert_eq!(restarts.give_up(), [Rank(1)]);
        assert!(restarts.due().is_none() && !restarts.plan(Rank(0), start));
        assert!(restarts.give_up().is_empty());
    }
}
