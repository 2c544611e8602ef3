//! Which rank has failed first.

use super::Ending;
use crate::Rank;

/// Who has failed first.
pub(super) struct Blame {
    rank: Rank,
    ending: Ending,
    /// Those that were ending when this was seen.
    suspects: Vec<Rank>,
}

impl Blame {
    /// Who is to blame of those that were found to have `failed` first, at the same time, while others were
    /// `ending`.
    pub(super) fn among(failed: &[(Rank, Ending)], ending: Vec<Rank>) -> Option<Self> {
        let &(rank, first) = failed.first()?;
        let suspects = failed.iter().map(|&(rank, _)| rank).chain(ending).collect();
        Some(Self { rank, ending: first, suspects })
    }

    /// Who is to blame so far.
    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    /// Nobody who fails from now on is to blame.
    pub(super) fn settle(&mut self) {
        self.suspects.clear();
    }

    /// `rank` has failed too.
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

    /// Who is blamed of ranks that failed in two looks, while `ending` were.
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
