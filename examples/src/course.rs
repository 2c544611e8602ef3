//! What a rank records of a run, and the curve of all ranks together.

use crate::Error;
use crate::data::Split;
use crate::model::Model;
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// The state of a run after some steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Steps taken so far.
    pub step: usize,
    /// Seconds since the first step without evaluations, mean over ranks.
    pub seconds: f64,
    /// Bytes of messages so far, mean over ranks.
    pub bytes_per_rank: f64,
    /// Training loss, mean over ranks and over the steps since the last point.
    pub loss: f64,
    /// The share of test examples classified correctly, each by the network of the rank that it is given to.
    pub test_accuracy: f64,
}

/// The figures of a point, of one rank alone.
const FIGURES: usize = 4;

/// The points of one rank of `ranks`.
pub struct Course {
    rank: usize,
    ranks: usize,
    steps: usize,
    evaluations: usize,
    step: usize,
    loss: f64,
    steps_since: usize,
    /// Step; seconds, bytes, loss, correct answers.
    points: Vec<(usize, [f64; FIGURES])>,
}

impl Course {
    /// The course of a rank that will take `steps` steps, with `evaluations` points, at least one.
    pub fn new((rank, ranks): (usize, usize), steps: usize, evaluations: usize) -> Self {
        let evaluations = evaluations.clamp(1, steps.max(1));
        Self { rank, ranks, steps, evaluations, step: 0, loss: 0.0, steps_since: 0, points: Vec::new() }
    }

    /// Steps taken so far.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Counts a step. Returns whether a point is due: it is after the last step too.
    pub fn count(&mut self, loss: f64) -> bool {
        self.step += 1;
        self.loss += loss;
        self.steps_since += 1;
        let due = |step: usize| step * self.evaluations / self.steps;
        due(self.step) > due(self.step - 1)
    }

    /// Adds a point: evaluates this rank's share of the test examples, so that no rank waits for another.
    ///
    /// # Errors
    /// [`Error::Network`] if candle reports one.
    pub fn record(
        &mut self,
        model: &Model,
        test: &Split,
        (time, bytes): (Duration, u64),
    ) -> Result<(), Error> {
        let correct = count_share(model, test, (self.rank, self.ranks))?;
        let loss = self.loss / self.steps_since.max(1) as f64;
        self.points.push((self.step, [time.as_secs_f64(), bytes as f64, loss, correct as f64]));
        (self.loss, self.steps_since) = (0.0, 0);
        Ok(())
    }

    /// The figures of all points, to be summed over the ranks.
    pub fn figures(&self) -> Vec<f64> {
        self.points.iter().flat_map(|(_, figures)| *figures).collect()
    }

    /// Zeros in place of the figures: of a rank that takes no steps.
    pub fn no_figures(&self) -> Vec<f64> {
        vec![0.0; FIGURES * self.evaluations]
    }

    /// The points of these ranks, from the sums of their figures. `tests` is the number of test examples.
    pub fn curve(&self, sums: &[f64], tests: usize, ranks: &[usize]) -> Vec<Point> {
        let due = |point: usize| (point + 1) * self.steps;
        let tests: usize = ranks.iter().map(|rank| share(tests, (*rank, self.ranks)).len()).sum();
        let ranks = ranks.len() as f64;
        let (sums, _) = sums.as_chunks::<FIGURES>();
        let point = |(number, [seconds, bytes, loss, correct]): (usize, &[f64; FIGURES])| Point {
            step: due(number).div_ceil(self.evaluations),
            seconds: seconds / ranks,
            bytes_per_rank: bytes / ranks,
            loss: loss / ranks,
            test_accuracy: correct / tests.max(1) as f64,
        };
        sums.iter().enumerate().map(point).collect()
    }
}

/// How many of a rank's share of the test examples the network classifies correctly.
///
/// # Errors
/// [`Error::Network`] if candle reports one.
pub fn count_share(model: &Model, test: &Split, (rank, ranks): (usize, usize)) -> Result<usize, Error> {
    Ok(model.count_correct(test, share(test.len(), (rank, ranks)))?)
}

/// The test examples that a rank evaluates.
fn share(tests: usize, (rank, ranks): (usize, usize)) -> Range<usize> {
    let first = |rank: usize| rank * tests / ranks;
    first(rank)..first(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::digits;

    #[test]
    fn points_are_even_and_the_last_step_has_one() {
        let (model, test) = (Model::new(64, &[], 10, 1).unwrap(), digits::load().test);
        for (steps, evaluations) in [(1, 10), (7, 3), (10, 10), (100, 7)] {
            let mut course = Course::new((0, 1), steps, evaluations);
            let mut due = Vec::new();
            for step in 1..=steps {
                if course.count(f64::from(step as u32)) {
                    due.push(step);
                    let time = Duration::from_secs(step as u64);
                    course.record(&model, &test, (time, 10 * step as u64)).unwrap();
                }
            }
            assert_eq!((due.len(), due.last()), (evaluations.min(steps), Some(&steps)));
            assert_eq!(course.figures().len(), course.no_figures().len());
            let curve = course.curve(&course.figures(), test.len(), &[0]);
            let found: Vec<usize> = curve.iter().map(|point| point.step).collect();
            assert_eq!(found, due);
            assert!(curve.iter().all(|point| point.bytes_per_rank == 10.0 * point.seconds));
            // The mean of the steps since the last point.
            assert_eq!(curve[0].loss, (1 + due[0]) as f64 / 2.0);
        }
    }
}
