//! Turns an averaged gradient into a step: optional momentum, and a learning rate that first rises and then
//! falls.

use crate::Error;
use crate::model::Model;

/// The share of all steps in which the learning rate rises.
const WARM_UP_SHARE: f64 = 0.1;

/// The learning rate of every step: linear up to `peak` over the first tenth of the steps, then a half cosine
/// down towards 0.
///
/// The decay matters most for compressed gradients: what they hold back arrives late, and small last steps
/// let it arrive without harm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The largest learning rate.
    pub peak: f64,
    /// The number of steps.
    pub steps: usize,
}

impl Schedule {
    /// The learning rate of step `step`, counted from 0.
    pub fn rate(&self, step: usize) -> f64 {
        let steps = self.steps.max(1) as f64;
        let warm_up = (steps * WARM_UP_SHARE).ceil();
        let done = step as f64 + 0.5;
        if done < warm_up {
            return self.peak * done / warm_up;
        }
        let share = ((done - warm_up) / (steps - warm_up).max(1.0)).min(1.0);
        self.peak * 0.5 * (1.0 + (std::f64::consts::PI * share).cos())
    }
}

/// Stochastic gradient descent on the averaged gradient: `v = momentum * v + g; x -= rate * v`.
///
/// With momentum 0 there is no velocity vector.
pub struct Descent {
    schedule: Schedule,
    momentum: f32,
    velocity: Vec<Vec<f32>>,
    step: usize,
}

impl Descent {
    /// A descent before its first step.
    pub fn new(schedule: Schedule, momentum: f64) -> Self {
        Self { schedule, momentum: momentum as f32, velocity: Vec::new(), step: 0 }
    }

    /// Takes the next step with the averaged `gradients`.
    ///
    /// # Errors
    /// [`Error::Network`] if the gradients do not fit the model.
    pub fn step(&mut self, model: &Model, gradients: &[Vec<f32>]) -> Result<(), Error> {
        let rate = self.schedule.rate(self.step) as f32;
        self.step += 1;
        if self.momentum == 0.0 {
            return Ok(model.apply(gradients, rate)?);
        }
        self.velocity.resize(gradients.len(), Vec::new());
        for (velocity, gradient) in self.velocity.iter_mut().zip(gradients) {
            velocity.resize(gradient.len(), 0.0);
            for (v, g) in velocity.iter_mut().zip(gradient) {
                *v = self.momentum * *v + g;
            }
        }
        Ok(model.apply(&self.velocity, rate)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_to_nothing() {
        for steps in [1, 2, 9, 10, 1000] {
            let schedule = Schedule { peak: 0.5, steps };
            let rates: Vec<f64> = (0..steps).map(|step| schedule.rate(step)).collect();
            assert!(rates.iter().all(|&r| r > 0.0 && r <= 0.5), "{steps}: {rates:?}");
        }
        let schedule = Schedule { peak: 0.5, steps: 1000 };
        assert!((1..100).all(|step| schedule.rate(step) > schedule.rate(step - 1)));
        assert!((101..1000).all(|step| schedule.rate(step) < schedule.rate(step - 1)));
        assert!((schedule.rate(100) - 0.5).abs() < 1e-5);
        assert!(schedule.rate(999) < 1e-5);
    }

    #[test]
    fn momentum_adds_up_equal_gradients() {
        let gradient = [vec![1.0; 4], vec![0.0; 2]];
        let schedule = Schedule { peak: 1.0, steps: 100 };
        let moved = |momentum| {
            let model = Model::new(2, &[], 2, 0).unwrap();
            let before = model.values().unwrap()[0][0];
            let mut descent = Descent::new(schedule, momentum);
            descent.step(&model, &gradient).unwrap();
            descent.step(&model, &gradient).unwrap();
            f64::from(before - model.values().unwrap()[0][0])
        };
        let (first, second) = (schedule.rate(0), schedule.rate(1));
        assert!((moved(0.0) - (first + second)).abs() < 1e-6);
        assert!((moved(0.5) - (first + 1.5 * second)).abs() < 1e-6);
    }
}
