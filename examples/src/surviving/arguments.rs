//! The arguments of `survive`, and their checks.

use crate::Error;
use crate::arguments::{Defaults, check_folder, dataset, in_range, parse, seed, whole};
use crate::data::Dataset;
use crate::exchange::Way;
use crate::method::Method;
use crate::trainer::Settings;
use clap::Parser;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Trains a classifier of handwritten digits while ranks are killed at random, goes on without them, takes
/// them back when they have been started again, and prints the accuracy that is reached.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "survive", version)]
pub struct Arguments {
    /// Folder of the four MNIST IDX files, plain or .gz [default: the built-in UCI digits].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How many ranks to start on this host; under a launcher, its number counts.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 4, value_parser = whole)]
    pub ranks: usize,
    /// How many times a rank kills itself, at a random moment of a random step; rank 0 too.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole)]
    pub losses: usize,
    /// How many times lost ranks are started again [default: as often as they are lost].
    #[arg(long, value_name = "N")]
    pub restarts: Option<u32>,
    /// How many seconds to wait for a lost rank to come back.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, allow_negative_numbers = true)]
    pub wait: f64,
    /// How gradients are averaged.
    #[arg(long, default_value = "gtopk")]
    pub method: Method,
    /// The share of entries that sparse methods keep, above 0 and at most 1.
    #[arg(long, value_name = "D", default_value_t = 0.01, allow_negative_numbers = true)]
    pub density: f64,
    /// The rank of lowrank's factors.
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = whole)]
    pub rank: usize,
    /// Passes over the training examples [default: 3 on MNIST, 30 on the digits].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub epochs: Option<usize>,
    /// Decides the first weights, the order of the examples, and who is killed when.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed)]
    pub seed: u64,
}

impl Arguments {
    /// Parses a command line, whose first word is the program, and checks it. Prints and exits for help and
    /// version.
    ///
    /// # Errors
    /// [`Error::CommandLine`] or [`Error::Argument`], in one line.
    pub fn from_words<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>) -> Result<Self, Error> {
        let arguments: Self = parse(words)?;
        arguments.check()?;
        Ok(arguments)
    }

    fn check(&self) -> Result<(), Error> {
        in_range("--ranks", self.ranks, self.ranks >= 3, "at least 3: a majority goes on")?;
        in_range("--rank", self.rank, self.rank > 0, "at least 1")?;
        let density = self.density;
        in_range("--density", density, density > 0.0 && density <= 1.0, "above 0 and at most 1")?;
        let is_time = Duration::try_from_secs_f64(self.wait).is_ok();
        in_range("--wait", self.wait, is_time, "a number of seconds")?;
        check_folder(self.data.as_deref())
    }

    /// The data set that the arguments name.
    ///
    /// # Errors
    /// The data errors of [`idx::load`](crate::data::idx::load).
    pub fn dataset(&self) -> Result<Dataset, Error> {
        dataset(self.data.as_deref())
    }

    /// The settings of the training, and how often ranks are lost in it.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are fewer steps than losses, or too few examples.
    pub fn settings(&self, dataset: &Dataset, world_size: usize) -> Result<Settings, Error> {
        let Defaults { epochs, batch_size, hidden, learning_rate } = Defaults::of(self.data.as_deref());
        let settings = Settings {
            epochs: self.epochs.unwrap_or(epochs),
            batch_size,
            hidden: hidden.to_vec(),
            learning_rate,
            momentum: 0.0,
            seed: self.seed,
            evaluations: 1,
        };
        let steps = settings.steps(dataset, world_size);
        in_range(
            "--losses",
            self.losses,
            4 * self.losses < steps,
            &format!("below a quarter of {steps} steps"),
        )?;
        Ok(settings)
    }

    /// How gradients are averaged.
    pub fn way(&self) -> Way {
        Way { method: self.method, density: self.density, rank: self.rank, seed: self.seed }
    }

    /// How long to wait for lost ranks.
    pub fn patience(&self) -> Duration {
        Duration::try_from_secs_f64(self.wait).unwrap_or(Duration::MAX)
    }

    /// How often lost ranks are started again.
    pub fn restarts(&self) -> u32 {
        self.restarts.unwrap_or(self.losses as u32)
    }
}
