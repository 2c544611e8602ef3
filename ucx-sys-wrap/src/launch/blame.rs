//! The first rank that failed.

use super::Ending;
use crate::Rank;

/// The rank to blame for a failed job.
pub(super) struct Blame {
    rank: Rank,
    ending: Ending,
    /// Ranks that were already ending when the first failure was seen.
    suspects: Vec<Rank>,
}

impl Blame {
    /// Blames the first of the `failed` ranks, which were seen at the same time while others were `ending`.
    pub(super) fn among(failed: &[(Rank, Ending)], ending: Vec<Rank>) -> Option<Self> {
        let &(rank, first) = failed.first()?;
        let suspects = failed.iter().map(|&(rank, _)| rank).chain(ending).collect();
        Some(Self { rank, ending: first, suspects })
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Ignores later failures.
    pub(super) fn settle(&mut self) {
        self.suspects.clear();
    }

    /// Takes a failure into account. A killed rank comes before one that exited, most likely because of it.
    pub(super) fn hear(&mut self, rank: Rank, ending: Ending) {
        if let (Ending::Exited(_), Ending::Killed(_)) = (self.ending, ending)
            && self.suspects.contains(&rank)
        {
            *self = Self { rank, ending, suspects: Vec::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN_UP: (Rank, Ending) = (Rank(0), Ending::Exited(3));
    const KILLED: (Rank, Ending) = (Rank(2), Ending::Killed(9));

    /// The rank blamed when ranks fail in two looks while `ending` are ending.
    fn blamed(first: &[(Rank, Ending)], ending: &[Rank], later: &[(Rank, Ending)]) -> Rank {
        let mut blame = Blame::among(first, ending.to_vec()).unwrap();
        first.iter().chain(later).for_each(|&(rank, ending)| blame.hear(rank, ending));
        blame.rank
    }

    #[test]
    fn a_rank_that_was_killed_comes_before_those_that_failed_because_of_it() {
        assert_eq!(blamed(&[GIVEN_UP, KILLED], &[], &[]), Rank(2));
        assert_eq!(blamed(&[GIVEN_UP], &[Rank(2)], &[KILLED]), Rank(2));
        assert_eq!(blamed(&[KILLED], &[], &[GIVEN_UP]), Rank(2));
        // One that was killed later.
        assert_eq!(blamed(&[GIVEN_UP], &[], &[KILLED]), Rank(0));
        // Of two that were killed, the first.
        assert_eq!(blamed(&[(Rank(1), Ending::Killed(9)), KILLED], &[], &[]), Rank(1));
        assert!(Blame::among(&[], vec![Rank(1)]).is_none());
    }
}
