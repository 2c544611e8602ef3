//! Steps of a worker where every rank serves, and steps of an exchange of gradients.

use std::time::Instant;

use brevity::{GradientExchange, Group, ParameterServer};

use super::model::{Model, RATE, TENSORS};
use crate::order::{Order, What};
use crate::{Error, Result};

/// The elements of all gradients that are ready before a stretch of steps.
const READY: usize = 20_000_000;

/// One rank, which trains by either.
pub struct Steps {
    group: Group,
    model: Model,
    side: Side,
    /// What the gradients are copied from.
    source: Vec<Vec<f32>>,
    /// The gradients of the next steps. An exchange replaces them by averages.
    ready: Vec<Vec<Vec<f32>>>,
    /// The gradients that were handed in so far.
    taken: usize,
}

enum Side {
    Server { server: Box<ParameterServer>, parameters: Vec<Vec<f32>> },
    Exchange(Box<GradientExchange>),
}

impl Steps {
    /// Builds what `what` measures, and checks its first step.
    ///
    /// # Errors
    /// If a rank is lost, or the step's result is wrong.
    pub fn new(group: &Group, model: Model, what: What) -> Result<Self> {
        let side = if what == What::Step {
            let mut parameters = model.zeros();
            let mut server = model.server(group).build(&parameters)?;
            server.fetch(&mut parameters)?;
            Side::Server { server: Box::new(server), parameters }
        } else {
            Side::Exchange(Box::new(model.exchange(group).build()?))
        };
        let count = (READY / model.elements.max(1)).clamp(4, 20);
        let source = model.gradients(group.rank());
        let ready = vec![model.zeros(); count];
        let mut steps = Self { group: group.clone(), model, side, source, ready, taken: 0 };
        steps.refill(1);
        steps.side.step(&mut steps.ready[0])?;
        steps.check()?;
        Ok(steps)
    }

    /// The microseconds of a step, as the mean over the iterations of the order.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn measure(&mut self, order: &Order) -> Result<f64> {
        self.run(order.warmup)?;
        Ok(self.run(order.iterations)? * 1e6 / order.iterations as f64)
    }

    /// Leaves the server, if it is one.
    ///
    /// # Errors
    /// In a forked child.
    pub fn end(self) -> Result<()> {
        match self.side {
            Side::Server { server, .. } => server.leave().map(drop)?,
            Side::Exchange(_) => {}
        }
        Ok(())
    }

    /// The seconds of so many steps. Before each stretch its gradients are made, and all ranks wait for each
    /// other; that is not timed.
    fn run(&mut self, steps: usize) -> Result<f64> {
        let (mut left, mut seconds) = (steps, 0.0);
        while left > 0 {
            let count = left.min(self.ready.len());
            self.refill(count);
            self.group.barrier()?;
            let begin = Instant::now();
            self.ready[..count].iter_mut().try_for_each(|gradients| self.side.step(gradients))?;
            seconds += begin.elapsed().as_secs_f64();
            left -= count;
        }
        Ok(seconds)
    }

    /// Makes gradients for so many steps: each time every tensor gets those of the next one.
    fn refill(&mut self, count: usize) {
        for gradients in &mut self.ready[..count] {
            for (tensor, gradient) in gradients.iter_mut().enumerate() {
                let source = &self.source[(tensor + self.taken) % TENSORS];
                // Tensors may differ by one element.
                let both = gradient.len().min(source.len());
                gradient[..both].copy_from_slice(&source[..both]);
            }
            self.taken += 1;
        }
    }

    /// Whether the first step has changed something in every tensor, and no more than the largest entries of
    /// all ranks. Those of an exchange are the largest of all tensors together.
    fn check(&self) -> Result<()> {
        let ranks = self.group.world_size() as usize;
        let changes = |values: &[f32]| values.iter().filter(|value| **value != 0.0).count();
        let kept = self.model.ranges().map(|range| self.model.density.entries(range.len()));
        match &self.side {
            Side::Server { parameters, .. } => {
                for (tensor, (values, kept)) in parameters.iter().zip(kept).enumerate() {
                    // A tensor that is cut into parts has entries of each; every rank may have pushed once.
                    self.check_changes((tensor, changes(values)), (kept + ranks) * ranks)?;
                }
                Ok(())
            }
            Side::Exchange(_) => {
                let found = self.ready[0].iter().map(|values| changes(values)).sum();
                self.check_changes((0, found), kept.sum())
            }
        }
    }

    fn check_changes(&self, (tensor, found): (usize, usize), most: usize) -> Result<()> {
        if (1..=most).contains(&found) {
            return Ok(());
        }
        Err(Error::Wrong {
            rank: self.group.rank(),
            what: "a step",
            bytes: self.model.elements * size_of::<f32>(),
            index: tensor,
            found: format!("{found} changes"),
            expected: format!("1 to {most}"),
        })
    }
}

impl Side {
    fn step(&mut self, gradients: &mut [Vec<f32>]) -> Result<()> {
        match self {
            Self::Server { server, parameters } => server.step(gradients, RATE, parameters).map(drop)?,
            Self::Exchange(exchange) => exchange.average(gradients)?,
        }
        Ok(())
    }
}
