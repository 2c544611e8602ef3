//! Asynchronous training against a parameter server: no rank waits for the slowest one.
//!
//! What each rank does is the same on processes as on a simulated network: [`train_all`] runs it on the ranks
//! of a group, and [`simulate`] on ranks that are tasks of this process.

pub mod arguments;
mod rank;

use crate::Error;
use crate::arguments::Arguments;
use crate::data::Dataset;
use crate::ranks::is_told_elsewhere;
use crate::trainer::{Run, Settings};
use arguments::{AsyncArguments, AsyncMethod};
use brevity::Group;
use brevity::server::Rule;
use brevity::transport::sim::{Cluster, Links};
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

    fn is_simulated(&self) -> bool {
        self.arguments.simulate.is_some()
    }
}

/// Trains once for each method, as one rank of `group`; all ranks make the same call.
///
/// # Errors
/// The errors of a run. The group is closed then, so that no rank waits for this one.
pub fn train_all(group: &Group, job: &Job<'_>) -> Result<Vec<Run>, Error> {
    let run = |method: &AsyncMethod| smol::block_on(rank::train(group, job, *method));
    let runs: Result<Vec<Run>, Error> = job.arguments.methods.iter().map(run).collect();
    runs.inspect_err(|_| group.abort())
}

/// Trains once for each method, on ranks that are tasks of this process on a network of `speed` Gbit/s.
///
/// # Errors
/// The errors of a run, of the rank that it came from.
pub fn simulate(job: &Job<'_>, speed: f64) -> Result<Vec<Run>, Error> {
    let run = |method| {
        let links = Links::new(LATENCY, 8.0 / (speed * 1e9));
        let cluster = Cluster::new(job.ranks as u32, links);
        let ended = brevity::transport::sim::run(cluster, |transport| {
            let settings = brevity::Settings { timeout: PATIENCE, ..Default::default() };
            let group = Group::new(transport, settings);
            async move { rank::train(&group, job, method).await.inspect_err(|_| group.abort()) }
        });
        first_cause(ended.map_err(|stuck| Error::Exchange(stuck.into()))?)
    };
    job.arguments.methods.iter().map(|method| run(*method)).collect()
}

/// The run as rank 0 has it, or the error that those of other ranks followed from.
fn first_cause(mut ended: Vec<Result<Run, Error>>) -> Result<Run, Error> {
    let find = |is_cause: &dyn Fn(usize, &Error) -> bool| {
        let is_meant = |(rank, ended): (usize, &Result<Run, Error>)| {
            ended.as_ref().is_err_and(|error| is_cause(rank, error))
        };
        ended.iter().enumerate().position(is_meant)
    };
    let own = find(&|_, error| !matches!(error, Error::Exchange(_)));
    let cause = own.or_else(|| find(&|rank, error| !is_told_elsewhere(error, rank as u32)));
    ended.swap_remove(cause.unwrap_or(0))
}
