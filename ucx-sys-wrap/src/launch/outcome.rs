//! How a job ended.

use crate::Rank;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How each rank ended, in rank order. Of a rank that was started again, how it ended the last time.
    pub endings: Vec<Ending>,
    /// How often each rank was [started again](super::Launch::restart), in rank order.
    pub restarts: Vec<u32>,
    /// The first rank that failed and was not started again. A rank that was killed comes before ranks that
    /// exited at the same time, most likely because of it. None if the job
    /// [goes on](super::Launch::keep_going) and a rank succeeded.
    pub first_failure: Option<Rank>,
}

impl Outcome {
    /// The exit status for the launcher: the first failing rank's, or 128 plus the signal that killed it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let Some(rank) = self.first_failure else { return 0 };
        match self.endings[rank.index()] {
            Ending::Exited(status) => status.clamp(1, 255) as u8,
            Ending::Killed(signal) => 128u8.wrapping_add(signal as u8),
        }
    }

    /// One line. Of a job that has failed, the first failure, as "rank 2 was killed by signal 9", and how
    /// often ranks were started again. Otherwise what became of all ranks that were lost, and how often each
    /// was started again. `None` if no rank was lost.
    #[must_use]
    pub fn report(&self) -> Option<String> {
        if let Some(rank) = self.first_failure {
            let failure = words(rank, self.endings[rank.index()]);
            return Some(match self.restarts.iter().copied().map(u64::from).sum::<u64>() {
                0 => failure,
                1 => format!("{failure}; one lost rank was started again"),
                restarts => format!("{failure}; lost ranks were started again {restarts} times"),
            });
        }
        let mut lost = Vec::new();
        for ((rank, &ending), &restarts) in (0..).map(Rank).zip(&self.endings).zip(&self.restarts) {
            match restarts {
                0 if ending == Ending::Exited(0) => {}
                0 => lost.push(words(rank, ending)),
                1 => lost.push(format!("{} after 1 restart", words(rank, ending))),
                _ => lost.push(format!("{} after {restarts} restarts", words(rank, ending))),
            }
        }
        let is_whole = self.endings.iter().all(|ending| *ending == Ending::Exited(0));
        let others = if is_whole { "" } else { "; the others went on" };
        (!lost.is_empty()).then(|| format!("{}{others}", lost.join(", ")))
    }
}

fn words(rank: Rank, ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => format!("rank {rank} ended with status {status}"),
        Ending::Killed(signal) => format!("rank {rank} was killed by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_say_what_became_of_lost_ranks() {
        use Ending::{Exited, Killed};
        let report = |endings: [Ending; 3], restarts: [u32; 3], first: Option<u32>| {
            let (endings, restarts) = (endings.to_vec(), restarts.to_vec());
            Outcome { endings, restarts, first_failure: first.map(Rank) }.report().unwrap_or_default()
        };
        let well = Exited(0);
        assert_eq!(report([well; 3], [0; 3], None), "");
        assert_eq!(report([well; 3], [0, 1, 0], None), "rank 1 ended with status 0 after 1 restart");
        assert_eq!(
            report([Killed(9), well, Exited(7)], [0, 2, 5], None),
            "rank 0 was killed by signal 9, rank 1 ended with status 0 after 2 restarts, \
             rank 2 ended with status 7 after 5 restarts; the others went on"
        );
        let failed = [Exited(7), Killed(9), Exited(7)];
        assert_eq!(report(failed, [0; 3], Some(1)), "rank 1 was killed by signal 9");
        assert_eq!(
            report(failed, [0, 1, 0], Some(0)),
            "rank 0 ended with status 7; one lost rank was started again"
        );
        assert_eq!(
            report(failed, [3, 1, 0], Some(0)),
            "rank 0 ended with status 7; lost ranks were started again 4 times"
        );
    }
}
