//! All runs of one command line: every method in turn, on the ranks of one group.

use crate::Error;
use crate::arguments::Arguments;
use crate::data::Dataset;
use crate::exchange::GroupExchange;
use crate::progress::Progress;
use crate::trainer::{Run, Settings, train};
use brevity::Group;
use brevity::transport::local;

/// Trains once per method of `arguments`, as one rank of `group`; all ranks call this alike.
/// Rank 0 shows its progress.
///
/// # Errors
/// What [`train`] reports.
pub fn train_all(
    group: &Group,
    arguments: &Arguments,
    dataset: &Dataset,
    settings: &Settings,
) -> Result<Vec<Run>, Error> {
    let steps = settings.steps(dataset, group.world_size() as usize);
    let model = settings.model(dataset)?;
    let run = |method| {
        let policy = (method, arguments.density, arguments.rank);
        let mut exchange = GroupExchange::new(group, &model, policy).map_err(|error| Error::Exchange(error.into()))?;
        let name = method.to_string();
        let progress = if group.rank() == 0 { Progress::shown(&name, steps) } else { Progress::hidden() };
        train(&name, dataset, settings, &mut exchange, &progress)
    };
    arguments.method.iter().map(|&method| run(method)).collect()
}

/// [`train_all`] with ranks that are threads of this process; returns rank 0's runs.
///
/// # Errors
/// That of the rank that failed first, where its peers only lost it.
pub fn train_in_threads(arguments: &Arguments, dataset: &Dataset, settings: &Settings) -> Result<Vec<Run>, Error> {
    let ends: Vec<Result<Vec<Run>, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = local::world(arguments.ranks as u32)
            .into_iter()
            .map(|transport| {
                scope.spawn(move || {
                    let group = Group::new(Box::new(transport), brevity::Settings::default());
                    train_all(&group, arguments, dataset, settings)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut runs = Vec::new();
    let mut errors = Vec::new();
    for (rank, end) in ends.into_iter().enumerate() {
        match end {
            Ok(found) if rank == 0 => runs = found,
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
    // Who lost a peer only tells of the error that the peer had.
    errors.sort_by_key(|error| matches!(error, Error::Exchange(_)));
    errors.into_iter().next().map_or(Ok(runs), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Method;

    fn arguments(words: &str) -> Arguments {
        Arguments::from_words(std::iter::once("train").chain(words.split_whitespace())).unwrap()
    }

    #[test]
    fn every_method_gets_its_run() {
        let arguments = arguments("--ranks 2 --epochs 1 --hidden 32 --method dense,topk,gtopk,lowrank");
        let dataset = arguments.dataset().unwrap();
        let settings = arguments.settings(&dataset).unwrap();
        let runs = train_in_threads(&arguments, &dataset, &settings).unwrap();
        let methods: Vec<_> = runs.iter().map(|run| run.method.as_str()).collect();
        assert_eq!(methods, ["dense", "topk", "gtopk", "lowrank"]);
        assert_eq!(arguments.method.len(), 4);
        assert!(runs.iter().all(|run| run.ranks == 2 && run.steps == 1438 / 16));
        assert!(runs[1..].iter().all(|run| run.bytes_per_rank_step < runs[0].bytes_per_rank_step));
    }

    #[test]
    fn the_cause_of_a_failure_is_told_and_not_its_echo() {
        let arguments = arguments("--ranks 3 --epochs 2 --hidden 32 --method dense --learning-rate 1e30");
        assert_eq!(arguments.method, [Method::Dense]);
        let dataset = arguments.dataset().unwrap();
        let settings = arguments.settings(&dataset).unwrap();
        let error = train_in_threads(&arguments, &dataset, &settings).unwrap_err();
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
    }
}
