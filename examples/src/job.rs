//! All runs of one command line: every method in turn, on the ranks of one group.

use crate::Error;
use crate::arguments::Arguments;
use crate::data::Dataset;
use crate::exchange::{GroupExchange, Way};
use crate::progress::Progress;
use crate::trainer::{Run, Settings, train};
use brevity::Group;
use brevity_bench::timeline::Timeline;

/// Trains once for each method of `arguments`, as one rank of `group`; all ranks make the same call. Rank 0
/// shows its progress. Also returns the text of the timeline, on rank 0 if there is to be one.
///
/// # Errors
/// The errors of [`train`]. The group is closed then, so that no rank waits for this one.
pub fn train_all(
    group: &Group,
    arguments: &Arguments,
    dataset: &Dataset,
    settings: &Settings,
) -> Result<(Vec<Run>, Option<String>), Error> {
    let steps = settings.steps(dataset, group.world_size() as usize);
    let model = settings.model(dataset)?;
    let failed = |error: brevity_bench::Error| Error::Exchange(error.into());
    let mut timeline =
        arguments.trace.as_ref().map(|_| Timeline::start(group)).transpose().map_err(failed)?;
    let mut run = |method| {
        let Arguments { density, rank, seed, .. } = *arguments;
        let way = Way { method, density, rank, seed };
        let exchange = GroupExchange::new(group, &model, way);
        let exchange = exchange.map_err(|error| Error::Exchange(error.into()))?;
        let mut exchange = exchange.traced(timeline.take());
        let name = method.to_string();
        let progress = if group.rank() == 0 { Progress::shown(&name, steps) } else { Progress::hidden() };
        let run = train(&name, dataset, &arguments.settings_of(method, settings), &mut exchange, &progress)?;
        timeline = exchange.into_timeline();
        Ok(run)
    };
    let runs: Result<Vec<Run>, Error> = arguments.method.iter().map(|&method| run(method)).collect();
    let runs = runs.inspect_err(|_| group.abort())?;
    let traced = timeline.map_or(Ok(None), |timeline| timeline.gather(group)).map_err(failed)?;
    Ok((runs, traced))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::is_told_elsewhere;
    use brevity::transport::local;

    /// The outcome of each rank's training, with threads as ranks.
    fn endings(words: &str) -> Vec<Result<Vec<Run>, Error>> {
        let arguments =
            Arguments::from_words(std::iter::once("train").chain(words.split_whitespace())).unwrap();
        let dataset = arguments.dataset().unwrap();
        let settings = arguments.settings(&dataset).unwrap();
        let (arguments, dataset, settings) = (&arguments, &dataset, &settings);
        std::thread::scope(|scope| {
            let threads: Vec<_> = local::world(arguments.ranks as u32)
                .into_iter()
                .map(|transport| {
                    scope.spawn(move || {
                        let group = Group::new(Box::new(transport), brevity::Settings::default());
                        train_all(&group, arguments, dataset, settings).map(|(runs, _)| runs)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_method_gets_its_run() {
        let all = "dense,topk,gtopk,gtopk-published,gtopk-merger-keeps,oktopk,lowrank,dgc,signum,one-bit,\
                   two-bit,eight-bit,qsgd,terngrad,random-k,random-block";
        for ending in endings(&format!("--ranks 2 --epochs 1 --hidden 32 --method {all}")) {
            let runs = ending.unwrap();
            let methods: Vec<_> = runs.iter().map(|run| run.method.as_str()).collect();
            assert_eq!(methods.join(","), all);
            assert!(runs.iter().all(|run| run.ranks == 2 && run.steps == 1438 / 16));
            assert!(runs[1..].iter().all(|run| run.bytes_per_rank_step < runs[0].bytes_per_rank_step));
        }
    }

    #[test]
    fn a_run_that_diverges_ends_all_ranks_and_is_told_of() {
        let endings = endings("--ranks 3 --epochs 2 --hidden 32 --method dense --learning-rate 1e30");
        let errors: Vec<Error> = endings.into_iter().map(Result::unwrap_err).collect();
        let told = errors.iter().enumerate().filter(|(rank, error)| !is_told_elsewhere(error, *rank as u32));
        assert!(told.count() >= 1, "{errors:?}");
    }
}
