//! The training loop: each rank computes gradients on its own examples, all ranks average them, and each
//! takes the same step.

use crate::Error;
use crate::course::{Course, Point};
use crate::data::{Dataset, Shard, batches_per_epoch};
use crate::model::Model;
use crate::optimizer::{Descent, Schedule};
use crate::progress::Progress;
use serde::Serialize;
use std::time::{Duration, Instant};

/// An error of any exchange.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The communication that the training loop needs; all ranks make the same calls.
pub trait Exchange {
    /// This rank, below [`Exchange::world_size`].
    fn rank(&self) -> usize;

    /// The number of ranks that train together.
    fn world_size(&self) -> usize;

    /// Replaces the gradients of this step by their average over all ranks, as far as the method sends it;
    /// the same bits on every rank.
    ///
    /// # Errors
    /// Errors of the communication; they end the run.
    fn average(&mut self, gradients: &mut [Vec<f32>]) -> Result<(), BoxError>;

    /// Replaces each value by its sum over all ranks. Used once, after the last step.
    ///
    /// # Errors
    /// Errors of the communication; they end the run.
    fn sum(&mut self, values: &mut [f64]) -> Result<(), BoxError>;

    /// The bytes that this rank has sent for [`Exchange::average`] so far.
    fn bytes_sent(&self) -> u64;
}

/// A single rank: the average is its own gradient, and nothing is sent.
pub struct Solo;

impl Exchange for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn average(&mut self, _gradients: &mut [Vec<f32>]) -> Result<(), BoxError> {
        Ok(())
    }

    fn sum(&mut self, _values: &mut [f64]) -> Result<(), BoxError> {
        Ok(())
    }

    fn bytes_sent(&self) -> u64 {
        0
    }
}

/// The parameters of a run besides the data and the exchange; the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Passes over the training examples.
    pub epochs: usize,
    /// Examples per rank and step.
    pub batch_size: usize,
    /// Units of each hidden layer.
    pub hidden: Vec<usize>,
    /// The largest learning rate of the [`Schedule`].
    pub learning_rate: f64,
    /// The momentum of the [`Descent`], applied after averaging.
    pub momentum: f64,
    /// The seed of the first weights and the order of the examples.
    pub seed: u64,
    /// How often a run evaluates the test examples; at least once, at the end.
    pub evaluations: usize,
}

impl Settings {
    /// The network that a run starts from.
    ///
    /// # Errors
    /// [`Error::Network`] for sizes that candle refuses.
    pub fn model(&self, dataset: &Dataset) -> Result<Model, Error> {
        Ok(Model::new(dataset.features, &self.hidden, dataset.classes, self.seed)?)
    }

    /// The number of steps of a run.
    pub fn steps(&self, dataset: &Dataset, world_size: usize) -> usize {
        self.epochs * batches_per_epoch(dataset.train.len(), self.batch_size, world_size)
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// How the gradients were averaged.
    pub method: String,
    /// The number of ranks that train.
    pub ranks: usize,
    /// The share of test examples that the trained network classifies correctly, 0 to 1.
    pub test_accuracy: f64,
    /// Bytes of messages, mean over ranks and steps: sent, and with a server also received.
    pub bytes_per_rank_step: f64,
    /// Steps taken.
    pub steps: usize,
    /// Time on rank 0 without the evaluations, in seconds; with a server, of the rank that takes longest.
    pub seconds: f64,
    /// The part of `seconds` that rank 0 spent in [`Exchange::average`]: compressing, sending
    /// and waiting for others.
    pub communication_seconds: f64,
    /// With a server: how many pushes of others a shard has applied between an answer to a rank and the
    /// rank's next push, mean over ranks and steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staleness: Option<f64>,
    /// With dedicated servers: the ranks that died while they trained. The other figures are of those that
    /// are left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_ranks: Vec<usize>,
    /// The course of the run.
    pub curve: Vec<Point>,
}

/// Trains a network and reports it under the name `method`; blocks until all ranks are done.
///
/// # Errors
/// [`Error::Exchange`] if the ranks could not average, [`Error::Diverged`] if the loss is no longer finite,
/// [`Error::Network`] if candle reports an error.
pub fn train<E: Exchange + ?Sized>(
    method: &str,
    dataset: &Dataset,
    settings: &Settings,
    exchange: &mut E,
    progress: &Progress,
) -> Result<Run, Error> {
    let mut training = Training::new(method, dataset, settings, exchange)?;
    for epoch in 0..settings.epochs {
        training.epoch(epoch, exchange, progress)?;
    }
    training.finish(exchange)
}

/// A run between its steps, on one rank.
struct Training<'a> {
    method: &'a str,
    dataset: &'a Dataset,
    settings: &'a Settings,
    rank: usize,
    world_size: usize,
    model: Model,
    descent: Descent,
    gradients: Vec<Vec<f32>>,
    course: Course,
    computing: Duration,
    communicating: Duration,
}

impl<'a> Training<'a> {
    fn new<E: Exchange + ?Sized>(
        method: &'a str,
        dataset: &'a Dataset,
        settings: &'a Settings,
        exchange: &E,
    ) -> Result<Self, Error> {
        let (rank, world_size) = (exchange.rank(), exchange.world_size());
        let steps = settings.steps(dataset, world_size);
        let model = settings.model(dataset)?;
        let schedule = Schedule { peak: settings.learning_rate, steps };
        Ok(Self {
            method,
            dataset,
            settings,
            rank,
            world_size,
            gradients: model.gradient_buffers(),
            model,
            descent: Descent::new(schedule, settings.momentum),
            course: Course::new((rank, world_size), steps, settings.evaluations),
            computing: Duration::ZERO,
            communicating: Duration::ZERO,
        })
    }

    fn epoch<E: Exchange + ?Sized>(
        &mut self,
        epoch: usize,
        exchange: &mut E,
        progress: &Progress,
    ) -> Result<(), Error> {
        let settings = self.settings;
        let shard = Shard::new(
            self.dataset.train.len(),
            settings.batch_size,
            (self.rank, self.world_size),
            (settings.seed, epoch),
        );
        for indices in shard.batches() {
            let loss = self.step(indices, exchange)?;
            progress.step(loss);
            if self.course.count(loss) {
                let cost = (self.computing, exchange.bytes_sent());
                self.course.record(&self.model, &self.dataset.test, cost)?;
            }
        }
        Ok(())
    }

    /// One step on the examples at `indices`; returns this rank's loss.
    fn step<E: Exchange + ?Sized>(&mut self, indices: &[u32], exchange: &mut E) -> Result<f64, Error> {
        let begin = Instant::now();
        let batch = self.dataset.train.batch(indices);
        let loss = self.model.forward_backward(batch, &mut self.gradients)?;
        if !loss.is_finite() {
            let (method, step) = (self.method.to_owned(), self.course.step());
            return Err(Error::Diverged { method, step, loss });
        }
        let before = Instant::now();
        exchange.average(&mut self.gradients).map_err(Error::Exchange)?;
        self.communicating += before.elapsed();
        self.descent.step(&self.model, &self.gradients)?;
        self.computing += begin.elapsed();
        Ok(loss)
    }

    fn finish<E: Exchange + ?Sized>(self, exchange: &mut E) -> Result<Run, Error> {
        let mut sums = self.course.figures();
        exchange.sum(&mut sums).map_err(Error::Exchange)?;
        let ranks: Vec<usize> = (0..self.world_size).collect();
        let curve = self.course.curve(&sums, self.dataset.test.len(), &ranks);
        let last = curve.last();
        Ok(Run {
            method: self.method.to_owned(),
            ranks: self.world_size,
            test_accuracy: last.map_or(0.0, |point| point.test_accuracy),
            bytes_per_rank_step: last.map_or(0.0, |p| p.bytes_per_rank / p.step as f64),
            steps: self.course.step(),
            seconds: self.computing.as_secs_f64(),
            communication_seconds: self.communicating.as_secs_f64(),
            staleness: None,
            lost_ranks: Vec::new(),
            curve,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;
    use crate::in_process;

    fn settings(batch_size: usize, epochs: usize) -> Settings {
        Settings {
            epochs,
            batch_size,
            hidden: vec![32],
            learning_rate: 0.1,
            momentum: 0.0,
            seed: 1,
            evaluations: 5,
        }
    }

    #[test]
    fn one_rank_learns_the_digits() {
        let run = train("dense", &digits::load(), &settings(32, 8), &mut Solo, &Progress::hidden()).unwrap();
        assert!(run.test_accuracy > 0.9, "accuracy {}", run.test_accuracy);
        assert_eq!(run.steps, 8 * (1438 / 32));
        assert_eq!(run.curve.len(), 5);
        assert_eq!(run.curve[4].step, run.steps);
        assert!(run.curve[4].loss < run.curve[0].loss / 2.0);
        assert_eq!(run.bytes_per_rank_step, 0.0);
        assert!(run.communication_seconds <= run.seconds);
    }

    #[test]
    fn three_ranks_learn_what_one_rank_with_their_batches_together_learns() {
        let alone =
            train("dense", &digits::load(), &settings(48, 2), &mut Solo, &Progress::hidden()).unwrap();
        let threads: Vec<_> = in_process::ranks(3)
            .into_iter()
            .map(|mut rank| {
                std::thread::spawn(move || {
                    let progress = Progress::hidden();
                    train("dense", &digits::load(), &settings(16, 2), &mut rank, &progress).unwrap()
                })
            })
            .collect();
        let runs: Vec<Run> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        for run in &runs {
            assert!(run.curve.iter().zip(&runs[0].curve).all(|(point, first)| point.loss == first.loss));
            assert_eq!((run.ranks, run.steps), (3, alone.steps));
            let parameters = 64 * 32 + 32 + 32 * 10 + 10;
            assert_eq!(run.bytes_per_rank_step, f64::from(4 * parameters));
            for (point, expected) in run.curve.iter().zip(&alone.curve) {
                assert!((point.loss - expected.loss).abs() < 1e-3, "{point:?}, {expected:?}");
                assert!((point.test_accuracy - expected.test_accuracy).abs() < 0.01);
            }
        }
    }

    #[test]
    fn a_loss_that_is_no_number_ends_the_run() {
        let mut wild = settings(32, 2);
        wild.learning_rate = 1e30;
        let error = train("dense", &digits::load(), &wild, &mut Solo, &Progress::hidden()).unwrap_err();
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
        assert_eq!(error.exit_status(), 1);
    }
}
