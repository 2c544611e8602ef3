//! Training that loses ranks, goes on without them, and takes them back.
//!
//! What a program has to do for that is in `Training::go_on`: after an error it shrinks its group, has the
//! exchange settle the last step, lets lost ranks come back, and gives them the model and what else is equal
//! on all ranks.

pub mod arguments;

use crate::Error;
use crate::data::{Dataset, Shard};
use crate::exchange::Way;
use crate::model::Model;
use crate::optimizer::Schedule;
use crate::trainer::Settings;
use brevity::collectives::Error as Collective;
use brevity::{GradientExchange, Group};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Signal, getpid, kill_process};
use std::thread;
use std::time::{Duration, Instant};

/// What a run has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Survived {
    /// The share of test examples that the trained network classifies correctly, 0 to 1.
    pub test_accuracy: f64,
    /// The ranks at the end.
    pub ranks: u32,
    /// Whether this is the lowest of them.
    pub is_lowest: bool,
    /// How often ranks were lost.
    pub losses: u32,
    /// How often lost ranks came back.
    pub returns: u32,
}

/// One rank's training.
pub struct Training<'a> {
    dataset: &'a Dataset,
    settings: &'a Settings,
    /// How many ranks the job began with: they share the examples.
    world_size: usize,
    /// How long to wait for lost ranks.
    patience: Duration,
    group: Group,
    exchange: GradientExchange,
    model: Model,
    steps: usize,
    /// The next one.
    step: usize,
    /// This rank's examples of an epoch.
    shard: Option<(usize, Shard)>,
    gradients: Vec<Vec<f32>>,
    /// Whether model, exchange and step are those of the job: one that has come back has none yet.
    is_current: bool,
    /// The step at which it was given them.
    came_at: Option<usize>,
    losses: u32,
    returns: u32,
}

/// The steps in which ranks kill themselves, and which, by the numbers that they had when the job began: at
/// random between the first and the last tenth of the steps.
pub fn deaths(losses: usize, steps: usize, world_size: u32, seed: u64) -> Vec<(usize, u32)> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let (first, span) = (steps / 10, steps * 8 / 10);
    let death = |place: usize| {
        // Each in a part of its own, so that no two of them meet as a rule.
        let (low, high) = (place * span / losses, (place + 1) * span / losses);
        (first + generator.random_range(low..high.max(low + 1)), generator.random_range(0..world_size))
    };
    (0..losses).map(death).collect()
}

impl<'a> Training<'a> {
    /// A rank of `group`. One that has come back gets the state of the others.
    ///
    /// # Errors
    /// Those of the network and of the library.
    pub fn new(
        group: Group,
        (dataset, settings): (&'a Dataset, &'a Settings),
        (way, patience): (Way, Duration),
        world_size: usize,
    ) -> Result<Self, Error> {
        let model = settings.model(dataset)?;
        let mut builder = GradientExchange::builder(&group).keep_going();
        for (name, shape) in model.parameters() {
            let policy = way.policy(shape.len() > 1);
            builder = builder.tensor(name, shape, policy);
        }
        let exchange = builder.build().map_err(failed)?;
        let gradients = model.gradient_buffers();
        let is_current = !group.returned().contains(&group.rank());
        let (steps, step) = (settings.steps(dataset, world_size), 0);
        let mut training = Self {
            dataset,
            settings,
            world_size,
            patience,
            group,
            exchange,
            model,
            steps,
            step,
            shard: None,
            gradients,
            is_current,
            came_at: None,
            losses: 0,
            returns: 0,
        };
        // If another rank is lost now, the group is shrunk like any other.
        match training.share() {
            Err(error) if is_of_a_loss(&error) => training.go_on()?,
            shared => shared?,
        }
        Ok(training)
    }

    /// Trains to the end, and dies in between as it is planned.
    ///
    /// # Errors
    /// Those of the network, and of the library if no majority of the ranks is left.
    pub fn run(mut self, deaths: &[(usize, u32)]) -> Result<Survived, Error> {
        let mut last = Duration::from_millis(1);
        while self.step < self.steps {
            let own = self.own();
            // One that has died in this step has come back to it.
            if deaths.contains(&(self.step, own)) && self.came_at != Some(self.step) {
                die_within(last);
            }
            let start = Instant::now();
            match self.take_step() {
                Err(error) if is_of_a_loss(&error) => self.go_on()?,
                taken => taken?,
            }
            last = start.elapsed();
        }
        let correct = self.model.count_correct(&self.dataset.test, 0..self.dataset.test.len())?;
        let survived = Survived {
            test_accuracy: correct as f64 / self.dataset.test.len() as f64,
            ranks: self.group.world_size(),
            is_lowest: self.group.rank() == 0,
            losses: self.losses,
            returns: self.returns,
        };
        // Nobody leaves while others go on from the last step.
        while let Err(error) = self.group.barrier() {
            if !is_loss(&error) {
                return Err(failed(error));
            }
            self.go_on()?;
        }
        Ok(survived)
    }

    /// The number that this rank had when the job began.
    fn own(&self) -> u32 {
        self.group.first_ranks()[self.group.rank() as usize].0
    }

    fn take_step(&mut self) -> Result<(), Error> {
        let batches = self.steps / self.settings.epochs;
        let (epoch, place) = (self.step / batches, self.step % batches);
        let (train, own) = (&self.dataset.train, self.own() as usize);
        let shard = self.shard.take().filter(|(of, _)| *of == epoch).map(|(_, shard)| shard);
        let shard = shard.unwrap_or_else(|| {
            let order = (self.settings.seed, epoch);
            Shard::new(train.len(), self.settings.batch_size, (own, self.world_size), order)
        });
        let batch = train.batch(shard.batches().nth(place).unwrap_or_default());
        self.shard = Some((epoch, shard));
        self.model.forward_backward(batch, &mut self.gradients)?;
        self.exchange.average(&mut self.gradients).map_err(failed)?;
        self.apply()
    }

    /// Takes the step that was delivered.
    fn apply(&mut self) -> Result<(), Error> {
        let schedule = Schedule { peak: self.settings.learning_rate, steps: self.steps };
        self.model.apply(&self.gradients, schedule.rate(self.step) as f32)?;
        self.step += 1;
        Ok(())
    }

    /// Goes on after a loss, and after further ones meanwhile.
    fn go_on(&mut self) -> Result<(), Error> {
        loop {
            self.losses += 1;
            match self.try_to_go_on() {
                Err(error) if is_of_a_loss(&error) => {}
                gone_on => return gone_on,
            }
        }
    }

    fn try_to_go_on(&mut self) -> Result<(), Error> {
        self.group = self.group.shrink().map_err(failed)?;
        // All ranks that are left have delivered the last step, or none; what was not is in the residuals,
        // and is part of the next one.
        match self.exchange.go_on(&self.group, &mut self.gradients) {
            Ok(true) => self.apply()?,
            Ok(false) => {}
            // One that has come back, and was not given the state yet, has been in no step.
            Err(brevity::Error::Order { .. }) if !self.is_current => {}
            Err(error) => return Err(failed(error)),
        }
        let before = self.group.world_size();
        self.group = match self.group.grow(self.patience) {
            Ok(grown) => grown,
            Err(error @ Collective::NotGrown { .. }) => {
                eprintln!("survive: {error}; going on without the lost ranks");
                self.group.clone()
            }
            Err(error) => return Err(failed(error)),
        };
        self.returns += u32::from(self.group.world_size() > before);
        self.share()
    }

    /// Gives the ranks that have come back the state of the lowest rank that has it.
    fn share(&mut self) -> Result<(), Error> {
        let mut are_current = vec![0_u32; self.group.world_size() as usize];
        self.group.all_gather(&[u32::from(self.is_current)], &mut are_current).map_err(failed)?;
        if are_current.iter().all(|is_current| *is_current == 1) {
            return Ok(());
        }
        let Some(from) = are_current.iter().position(|is_current| *is_current == 1) else {
            return Err(failed("no rank is left that has the model"));
        };
        let from = from as u32;
        let mut parameters = self.model.values()?;
        self.exchange.share_state(&self.group, from, &mut parameters).map_err(failed)?;
        let mut counts = [self.step as u64, self.losses.into(), self.returns.into()];
        self.group.broadcast(&mut counts, from).map_err(failed)?;
        self.model.set(&parameters)?;
        let [step, losses, returns] = counts;
        self.step = step as usize;
        if !self.is_current {
            (self.losses, self.returns) = (losses as u32, returns as u32);
            (self.is_current, self.came_at) = (true, Some(self.step));
        }
        Ok(())
    }
}

/// Whether an error is one that the ranks that are left go on from.
fn is_of_a_loss(error: &Error) -> bool {
    let Error::Exchange(cause) = error else { return false };
    match cause.downcast_ref() {
        Some(brevity::Error::Collective(error)) => is_loss(error),
        Some(_) => false,
        None => cause.downcast_ref().is_some_and(is_loss),
    }
}

/// A death, or what others do because of it.
fn is_loss(error: &Collective) -> bool {
    matches!(error, Collective::PeerLost { .. } | Collective::Aborted { .. } | Collective::Timeout { .. })
}

fn failed<E: Into<crate::trainer::BoxError>>(error: E) -> Error {
    Error::Exchange(error.into())
}

/// Kills this process at a random moment within that time.
fn die_within(time: Duration) {
    let moment = time.mul_f64(rand::rng().random_range(0.0..1.0));
    thread::spawn(move || {
        thread::sleep(moment);
        let _ = kill_process(getpid(), Signal::KILL);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deaths_are_apart_and_of_any_rank() {
        for (losses, steps) in [(1, 10), (3, 100), (20, 1000)] {
            let planned = deaths(losses, steps, 4, 7);
            assert_eq!(planned.len(), losses);
            assert!(planned.is_sorted());
            assert!(planned.iter().all(|(step, rank)| *step >= steps / 10 && *step < steps && *rank < 4));
        }
        let many = deaths(200, 10_000, 4, 1);
        assert!((0..4).all(|rank| many.iter().any(|(_, dead)| *dead == rank)));
        assert!(deaths(0, 100, 4, 1).is_empty());
    }
}
