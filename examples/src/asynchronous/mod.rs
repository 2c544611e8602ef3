//! Asynchronous training against a parameter server: no rank waits for the slowest one.
//!
//! What each rank does is the same on processes as on a simulated network: [`train_all`] runs it on the ranks
//! of a group, and [`simulate`] on ranks that are tasks of this process.

pub mod arguments;
mod rank;
mod report;

use crate::Error;
use crate::arguments::Arguments;
use crate::data::Dataset;
use crate::ranks::is_told_elsewhere;
use crate::trainer::{Run, Settings};
use arguments::{AsyncArguments, AsyncMethod};
use brevity::Group;
use brevity::collectives::Error as Collective;
use brevity::server::Rule;
use brevity::transport::sim::{Cluster, Fault, Links};
use std::time::Duration;

/// The latency of a simulated message, in seconds.
const LATENCY: f64 = 50e-6;

/// The timeout on a simulated network, where a straggler may take long.
const PATIENCE: Duration = Duration::from_secs(100_000);

/// The learning rates, if none is given.
const ADAGRAD_RATE: f64 = 0.005;
const SGD_RATE: f64 = 0.1;

/// What all ranks are given.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// How ranks and servers work together.
    pub arguments: &'a AsyncArguments,
    /// The share of entries that a rank sends.
    pub density: f64,
    /// The learning rate, if it was given.
    pub learning_rate: Option<f64>,
    /// The number of ranks, those that serve included.
    pub ranks: usize,
    /// The examples.
    pub dataset: &'a Dataset,
    /// The settings of training.
    pub settings: &'a Settings,
    /// Whether rank 0 shows its progress.
    pub shows_progress: bool,
}

impl<'a> Job<'a> {
    /// The job that the arguments describe.
    pub fn new(arguments: &'a Arguments, dataset: &'a Dataset, settings: &'a Settings) -> Self {
        Self {
            arguments: &arguments.asynchronous,
            density: arguments.density,
            learning_rate: arguments.learning_rate,
            ranks: arguments.ranks,
            dataset,
            settings,
            shows_progress: true,
        }
    }

    fn workers(&self) -> usize {
        self.arguments.workers(self.ranks)
    }

    fn learning_rate(&self, method: AsyncMethod) -> f64 {
        let default = match self.arguments.rule_of(method) {
            Rule::AdaGrad { .. } => ADAGRAD_RATE,
            Rule::Sgd => SGD_RATE,
        };
        self.learning_rate.unwrap_or(default)
    }

    /// The rank that has the results: of dedicated servers the last one, which no death of a worker concerns.
    pub fn reporter(&self) -> u32 {
        if self.arguments.servers == 0 { 0 } else { self.ranks as u32 - 1 }
    }

    /// Whether a rank has died that trains and does not serve.
    fn is_loss_of_worker(&self, error: &Error) -> bool {
        let Error::Exchange(cause) = error else { return false };
        let Some(brevity::Error::Collective(Collective::PeerLost { rank })) = cause.downcast_ref() else {
            return false;
        };
        self.arguments.servers > 0 && rank.index() < self.workers()
    }

    fn is_simulated(&self) -> bool {
        self.arguments.simulate.is_some()
    }
}

/// Trains once for each method, as one rank of `group`; all ranks make the same call. The rank that
/// [reports](Job::reporter) returns the runs.
///
/// After a run in which a rank has died, the methods that follow are left out: they would need it.
///
/// # Errors
/// The errors of a run. The group is closed then, so that no rank waits for this one.
pub fn train_all(group: &Group, job: &Job<'_>) -> Result<Vec<Run>, Error> {
    let mut runs = Vec::new();
    for (number, method) in job.arguments.methods.iter().enumerate() {
        match smol::block_on(rank::train(group, job, *method)) {
            Ok(run) => runs.extend(run),
            Err(error) if number > 0 && job.is_loss_of_worker(&error) => {
                if job.reporter() == group.rank() {
                    eprintln!("train: {error}: {method} and what follows is left out");
                }
                break;
            }
            Err(error) => {
                group.abort();
                return Err(error);
            }
        }
    }
    Ok(runs)
}

/// Trains once for each method, on ranks that are tasks of this process on a network of `speed` Gbit/s.
///
/// # Errors
/// The errors of a run, of the rank that it came from.
pub fn simulate(job: &Job<'_>, speed: f64) -> Result<Vec<Run>, Error> {
    let run = |method| simulate_with(job, method, speed, Vec::new());
    job.arguments.methods.iter().map(|method| run(*method)).collect()
}

/// One run, with faults.
fn simulate_with(job: &Job<'_>, method: AsyncMethod, speed: f64, faults: Vec<Fault>) -> Result<Run, Error> {
    let links = Links::new(LATENCY, 8.0 / (speed * 1e9));
    let cluster = Cluster::new(job.ranks as u32, links).with_faults(faults);
    let ended = brevity::transport::sim::run(cluster, |transport| {
        let settings = brevity::Settings { timeout: PATIENCE, ..Default::default() };
        let group = Group::new(transport, settings);
        async move { rank::train(&group, job, method).await.inspect_err(|_| group.abort()) }
    });
    let mut ended = ended.map_err(|stuck| Error::Exchange(stuck.into()))?;
    match &mut ended[job.reporter() as usize] {
        Ok(Some(run)) if !run.lost_ranks.is_empty() => Ok(run.clone()),
        _ => first_cause(ended),
    }
}

/// The run of the rank that reports, or the error that those of other ranks followed from.
fn first_cause(ended: Vec<Result<Option<Run>, Error>>) -> Result<Run, Error> {
    let find = |is_cause: &dyn Fn(usize, &Error) -> bool| {
        let is_meant = |(rank, ended): (usize, &Result<Option<Run>, Error>)| {
            ended.as_ref().is_err_and(|error| is_cause(rank, error))
        };
        ended.iter().enumerate().position(is_meant)
    };
    let own = find(&|_, error| !matches!(error, Error::Exchange(_)));
    let cause = own.or_else(|| find(&|rank, error| !is_told_elsewhere(error, rank as u32)));
    let cause = cause.or_else(|| find(&|_, _| true));
    let mut ended = ended.into_iter();
    let ended = match cause {
        Some(rank) => ended.nth(rank),
        None => ended.find(|ended| matches!(ended, Ok(Some(_)))),
    };
    let none = || Error::Exchange("no rank has reported a run".into());
    ended.ok_or_else(none)?.and_then(|run| run.ok_or_else(none))
}

#[cfg(test)]
mod tests {
    use super::*;
    use brevity::transport::Rank;

    /// The others finish, and tell who has died.
    #[test]
    fn a_worker_that_dies_leaves_a_run() {
        let words = "train --async dgs --ranks 5 --servers 2 --epochs 6 --density 0.1 --simulate 1";
        let arguments = Arguments::from_words(words.split(' ')).unwrap();
        let dataset = arguments.dataset().unwrap();
        let settings = arguments.settings(&dataset).unwrap();
        let job = Job { shows_progress: false, ..Job::new(&arguments, &dataset, &settings) };
        for victim in [0, 2] {
            let fault = Fault::KillAfter { rank: Rank(victim), messages: 150 };
            let run = simulate_with(&job, AsyncMethod::Dgs, 1.0, vec![fault]).unwrap();
            assert_eq!(run.lost_ranks, [victim as usize]);
            assert!(run.test_accuracy > 0.5 && run.curve.len() == 10, "{run:?}");
            let last = &run.curve[9];
            assert!(
                last.step == run.steps && last.test_accuracy > 0.5 && last.test_accuracy <= 1.0,
                "{run:?}"
            );
        }
        let fault = Fault::KillAfter { rank: Rank(4), messages: 150 };
        assert!(simulate_with(&job, AsyncMethod::Dgs, 1.0, vec![fault]).is_err());
    }
}
