//! What a rank does in asynchronous training: it trains, serves, or both.

use super::Job;
use super::arguments::{AsyncMethod, method};
use super::report;
use crate::Error;
use crate::course::{Course, count_share};
use crate::data::Shard;
use crate::model::Model;
use crate::optimizer::Schedule;
use crate::progress::Progress;
use crate::trainer::Run;
use brevity::server::{Charge, ParameterServer, Rule, Servers};
use brevity::transport::sim::Stopwatch;
use brevity::{Group, ReduceOp};
use std::thread;
use std::time::Duration;

/// Trains by one method as a rank of `group`; all ranks make the same call. Rank 0 shows its progress. The
/// rank that [reports](Job::reporter) returns the run.
///
/// With dedicated servers the death of a rank that trains leaves the others as they were.
///
/// # Errors
/// [`Error::Exchange`] of the library, [`Error::Diverged`] if the loss is no longer finite,
/// [`Error::Network`] if candle reports one.
pub async fn train(group: &Group, job: &Job<'_>, name: AsyncMethod) -> Result<Option<Run>, Error> {
    let model = job.settings.model(job.dataset)?;
    let mut parameters = model.values()?;
    let mut server = build(group, job, name, (&model, &parameters)).await.map_err(of_library)?;
    // A death closes the group, but not these.
    let peers = group.start_peers().await.map_err(of_group)?;
    let mut worker = Worker::new(group, job, name, &model);
    if server.is_worker() {
        server.fetch_async(&mut parameters).await.map_err(of_library)?;
        model.set(&parameters)?;
        worker.work(&mut server, &mut parameters).await?;
    }
    // Who has finished waits for the others, however slow they are.
    server.set_timeout(Duration::MAX);
    match job.arguments.roles() {
        Servers::EveryRank => {
            let group = &group.with_timeout(Duration::MAX);
            // What the servers hold is complete when all have trained.
            group.start_barrier().await.1.map_err(of_group)?;
            let shard = server.model();
            server.leave_async().await.map_err(of_library)?;
            let sums = sum(group, worker.figures()).await?;
            let longest = group.start_all_reduce(vec![worker.seconds], ReduceOp::Max).await;
            longest.1.map_err(of_group)?;
            let accuracy = evaluate(group, job, &model, shard).await?;
            let all: Vec<usize> = (0..job.ranks).collect();
            Ok((job.reporter() == group.rank()).then(|| worker.run(&sums, longest.0[0], accuracy, &all)))
        }
        Servers::Dedicated(_) if server.is_worker() => {
            server.leave_async().await.map_err(of_library)?;
            report::send(&peers, job, [worker.figures(), vec![worker.seconds]].concat()).await?;
            Ok(None)
        }
        Servers::Dedicated(_) => {
            server.serve_async().await.map_err(of_library)?;
            report::of_survivors(&peers, &worker, &server).await
        }
    }
}

async fn build(
    group: &Group,
    job: &Job<'_>,
    name: AsyncMethod,
    (model, parameters): (&Model, &[Vec<f32>]),
) -> brevity::Result<ParameterServer> {
    let arguments = &job.arguments;
    let mut builder = ParameterServer::builder(group)
        .method(method(name, job.density, job.settings.momentum))
        .servers(arguments.roles())
        .rule(arguments.rule_of(name))
        .charge(Charge::Measured(1.0));
    if let Some(density) = arguments.secondary_density
        && name != AsyncMethod::Asgd
    {
        builder = builder.secondary_density(density);
    }
    if let Some(steps) = arguments.staleness {
        builder = builder.staleness(steps as u64);
    }
    for (name, shape) in model.parameters() {
        builder = builder.tensor(name, shape);
    }
    builder.build_async(parameters).await
}

/// The share of test examples that the servers' model classifies correctly; every rank counts a part.
async fn evaluate(
    group: &Group,
    job: &Job<'_>,
    model: &Model,
    shard: Option<(usize, Vec<f32>)>,
) -> Result<f64, Error> {
    let mut all = vec![0.0f32; model.gradient_buffers().iter().map(Vec::len).sum()];
    if let Some((first, elements)) = shard {
        all[first..first + elements.len()].copy_from_slice(&elements);
    }
    // Each element is on one shard: the others add zeros.
    let (all, summed) = group.start_all_reduce(all, ReduceOp::Sum).await;
    summed.map_err(of_group)?;
    set_all(model, &all)?;
    let share = (group.rank() as usize, group.world_size() as usize);
    let correct = count_share(model, &job.dataset.test, share)?;
    let correct = sum(group, vec![correct as f64]).await?;
    Ok(correct[0] / job.dataset.test.len().max(1) as f64)
}

/// Sets all parameters, one after the other.
pub(super) fn set_all(model: &Model, mut rest: &[f32]) -> Result<(), Error> {
    let mut parameters = model.gradient_buffers();
    for values in &mut parameters {
        let (own, behind) = rest.split_at(values.len());
        values.copy_from_slice(own);
        rest = behind;
    }
    Ok(model.set(&parameters)?)
}

async fn sum(group: &Group, values: Vec<f64>) -> Result<Vec<f64>, Error> {
    let (sums, result) = group.start_all_reduce(values, ReduceOp::Sum).await;
    result.map(|()| sums).map_err(of_group)
}

/// A rank that trains.
pub(super) struct Worker<'a> {
    group: &'a Group,
    pub(super) job: &'a Job<'a>,
    name: AsyncMethod,
    pub(super) model: &'a Model,
    schedule: Schedule,
    /// The rate stays as it is.
    is_constant: bool,
    factor: f64,
    course: Course,
    gradients: Vec<Vec<f32>>,
    bytes: u64,
    lag: u64,
    /// When it began, and how long it has evaluated since.
    begun: Duration,
    evaluating: Duration,
    communicating: Duration,
    seconds: f64,
}

impl<'a> Worker<'a> {
    fn new(group: &'a Group, job: &'a Job<'a>, name: AsyncMethod, model: &'a Model) -> Self {
        let settings = job.settings;
        let (rank, workers) = (group.rank() as usize, job.workers());
        let steps = settings.steps(job.dataset, workers);
        Self {
            group,
            job,
            name,
            model,
            schedule: Schedule { peak: job.learning_rate(name), steps },
            is_constant: matches!(job.arguments.rule_of(name), Rule::AdaGrad { .. }),
            factor: job.arguments.factor(rank),
            course: Course::new((rank, workers), steps, settings.evaluations),
            gradients: model.gradient_buffers(),
            bytes: 0,
            lag: 0,
            begun: group.now(),
            evaluating: Duration::ZERO,
            communicating: Duration::ZERO,
            seconds: 0.0,
        }
    }

    /// All steps of this rank.
    async fn work(&mut self, server: &mut ParameterServer, parameters: &mut [Vec<f32>]) -> Result<(), Error> {
        let Job { dataset, settings, .. } = *self.job;
        let part = (self.group.rank() as usize, self.job.workers());
        let progress = self.progress();
        self.begun = self.group.now();
        for epoch in 0..settings.epochs {
            let seed = (settings.seed, epoch);
            let shard = Shard::new(dataset.train.len(), settings.batch_size, part, seed);
            for indices in shard.batches() {
                let loss = self.step(indices, server, parameters).await?;
                progress.step(loss);
                if self.course.count(loss) {
                    let now = self.group.now();
                    let time = now - self.begun - self.evaluating;
                    self.course.record(self.model, &dataset.test, (time, self.bytes))?;
                    self.evaluating += self.group.now() - now;
                }
            }
        }
        self.seconds = (self.group.now() - self.begun - self.evaluating).as_secs_f64();
        Ok(())
    }

    /// One step on the examples at `indices`; returns the loss.
    async fn step(
        &mut self,
        indices: &[u32],
        server: &mut ParameterServer,
        parameters: &mut [Vec<f32>],
    ) -> Result<f64, Error> {
        let stopwatch = Stopwatch::start();
        self.model.set(parameters)?;
        let loss = self.model.forward_backward(self.job.dataset.train.batch(indices), &mut self.gradients)?;
        if !loss.is_finite() {
            return Err(Error::Diverged { method: self.name.to_string(), step: self.course.step(), loss });
        }
        self.charge(stopwatch.elapsed()).await;
        let before = self.group.now();
        let stopwatch = Stopwatch::start();
        server.push(&self.gradients, self.rate()).map_err(of_library)?;
        self.group.compute(stopwatch.elapsed()).await;
        let step = server.pull_async(parameters).await.map_err(of_library)?;
        self.group.compute(step.computing).await;
        self.communicating += self.group.now() - before;
        self.bytes += step.bytes;
        self.lag += step.lag;
        Ok(loss)
    }

    /// Makes computing take as long as it is to: on a simulated network all of it, elsewhere what a straggler
    /// takes longer.
    async fn charge(&self, took: Duration) {
        if self.job.is_simulated() {
            self.group.compute(took.mul_f64(self.factor)).await;
        } else if self.factor > 1.0 {
            thread::sleep(took.mul_f64(self.factor - 1.0));
        }
    }

    fn rate(&self) -> f32 {
        let rate = if self.is_constant { self.schedule.peak } else { self.schedule.rate(self.course.step()) };
        rate as f32
    }

    fn progress(&self) -> Progress {
        match self.group.rank() {
            0 if self.job.shows_progress => Progress::shown(&self.name.to_string(), self.schedule.steps),
            _ => Progress::hidden(),
        }
    }

    /// What is summed over the ranks: lag, seconds of communication, and the points.
    fn figures(&self) -> Vec<f64> {
        [vec![self.lag as f64, self.communicating.as_secs_f64()], self.course.figures()].concat()
    }

    pub(super) fn no_figures(&self) -> Vec<f64> {
        [vec![0.0; 2], self.course.no_figures()].concat()
    }

    /// The run of these ranks.
    pub(super) fn run(&self, sums: &[f64], seconds: f64, test_accuracy: f64, ranks: &[usize]) -> Run {
        let steps = self.schedule.steps;
        let curve = self.course.curve(&sums[2..], self.job.dataset.test.len(), ranks);
        Run {
            method: self.name.to_string(),
            ranks: self.job.workers(),
            test_accuracy,
            bytes_per_rank_step: curve.last().map_or(0.0, |point| point.bytes_per_rank / steps as f64),
            steps,
            seconds,
            communication_seconds: sums[1] / ranks.len() as f64,
            staleness: Some(sums[0] / (ranks.len() * steps) as f64),
            lost_ranks: (0..self.job.workers()).filter(|rank| !ranks.contains(rank)).collect(),
            curve,
        }
    }
}

pub(super) fn of_library(error: brevity::Error) -> Error {
    Error::Exchange(error.into())
}

pub(super) fn of_group(error: brevity::collectives::Error) -> Error {
    of_library(error.into())
}
