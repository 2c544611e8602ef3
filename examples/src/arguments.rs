//! The arguments of `train`, and their checks.
//!
//! Everything is checked before any rank starts. Missing arguments get defaults that fit the data (`Defaults`
//! below).

use crate::Error;
use crate::asynchronous::arguments::{AsyncArguments, AsyncMethod};
use crate::data::{Dataset, digits, idx};
use crate::method::Method;
use crate::trainer::Settings;
use brevity_bench::output::{Output, Outputs, svg_file};
use clap::Parser;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How many times a run evaluates the test examples.
const EVALUATIONS: usize = 10;

/// How many seconds ranks may go on after one has failed, where they can't finish.
const GRACE: f64 = 30.0;

/// The default learning rate of signum, as a share of that of other methods: a step moves each parameter by
/// the whole rate.
const SIGNUM_RATE: f64 = 0.01;

/// The same of momentum correction: a gradient moves a parameter by `1 / (1 - momentum)` of its step.
const DGC_RATE: f64 = 0.1;

/// The momentum of asynchronous methods that have one.
const ASYNC_MOMENTUM: f64 = 0.7;

/// Trains a classifier of handwritten digits on several ranks, once per method of averaging
/// gradients, and prints what each method cost and achieved.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "train", version)]
pub struct Arguments {
    /// Folder of the four MNIST IDX files, plain or .gz [default: the built-in UCI digits].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// How many ranks to start on this host; under a launcher, its number counts.
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = whole,
        allow_negative_numbers = true,
    )]
    pub ranks: usize,
    /// How many seconds ranks that were started here may go on after one has failed or was told to end,
    /// before they are killed [default: 30; with --servers as long as they train].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub grace: Option<f64>,
    /// The methods to compare, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "dense,gtopk,lowrank")]
    pub method: Vec<Method>,
    /// The share of entries that sparse methods keep, above 0 and at most 1.
    #[arg(long, value_name = "D", default_value_t = 0.01, allow_negative_numbers = true)]
    pub density: f64,
    /// The rank of lowrank's factors.
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = whole, allow_negative_numbers = true)]
    pub rank: usize,
    /// Passes over the training examples [default: 3 on MNIST, 30 on the digits].
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub epochs: Option<usize>,
    /// Examples per rank and step [default: 32 on MNIST, 8 on the digits].
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    pub batch_size: Option<usize>,
    /// Decides the first weights and the order of the examples.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    pub seed: u64,
    /// Units of each hidden layer, separated by commas [default: 512,512 on MNIST, 128 on the digits].
    #[arg(
        long,
        value_name = "N,..",
        value_delimiter = ',',
        value_parser = whole,
        allow_negative_numbers = true,
    )]
    pub hidden: Option<Vec<usize>>,
    /// The largest learning rate: it rises over the first tenth of the steps and then falls to 0
    /// [default: 0.3 on MNIST, 0.2 on the digits; for signum, whose steps are 1 or -1, a
    /// hundredth of that, and for dgc, which has a momentum of its own, a tenth].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub learning_rate: Option<f64>,
    /// Momentum after averaging, at least 0 and below 1; it suits dense better than the others [default: 0].
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// Writes all results to this file; "-" prints them in place of the table.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draws loss and accuracy over steps, bytes and seconds into this SVG file.
    #[arg(long, value_name = "FILE.svg", value_parser = svg_file)]
    pub plot: Option<PathBuf>,
    /// Writes what each rank did when to a file that Perfetto opens (ui.perfetto.dev): a step's selection,
    /// collectives, waits and updates, and the bytes of each bucket.
    #[arg(long, value_name = "FILE.json", conflicts_with = "async")]
    pub trace: Option<PathBuf>,
    /// Asynchronous training, in place of averaging.
    #[command(flatten)]
    pub asynchronous: AsyncArguments,
}

/// The defaults of a run. Measured to give full accuracy with every method on each data set.
pub(crate) struct Defaults {
    pub(crate) epochs: usize,
    pub(crate) batch_size: usize,
    pub(crate) hidden: &'static [usize],
    pub(crate) learning_rate: f64,
}

impl Defaults {
    /// Those of the data in a folder, or of the digits.
    pub(crate) fn of(data: Option<&Path>) -> Self {
        if data.is_some() { MNIST } else { DIGITS }
    }
}

const MNIST: Defaults = Defaults { epochs: 3, batch_size: 32, hidden: &[512, 512], learning_rate: 0.3 };
const DIGITS: Defaults = Defaults { epochs: 30, batch_size: 8, hidden: &[128], learning_rate: 0.2 };

impl Arguments {
    /// Parses a command line, whose first word is the program, and checks everything that can be checked
    /// without the data. Prints and exits for help and version.
    ///
    /// # Errors
    /// [`Error::CommandLine`] or [`Error::Argument`], in one line.
    pub fn from_words<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>) -> Result<Self, Error> {
        let arguments: Self = parse(words)?;
        arguments.check()?;
        Ok(arguments)
    }

    /// How many seconds ranks may go on after one has failed.
    pub fn grace(&self) -> f64 {
        self.grace.unwrap_or(if self.asynchronous.servers > 0 { f64::INFINITY } else { GRACE })
    }

    /// The data set that the arguments name.
    ///
    /// # Errors
    /// The data errors of [`idx::load`].
    pub fn dataset(&self) -> Result<Dataset, Error> {
        dataset(self.data.as_deref())
    }

    /// The settings of the training loop, with defaults that fit `dataset`.
    ///
    /// # Errors
    /// [`Error::Argument`] if one step would need more examples than there are.
    pub fn settings(&self, dataset: &Dataset) -> Result<Settings, Error> {
        let defaults = Defaults::of(self.data.as_deref());
        let batch_size = self.batch_size.unwrap_or(defaults.batch_size);
        self.asynchronous.check_ranks(self.ranks)?;
        let workers = self.asynchronous.workers(self.ranks);
        let shard = dataset.train.len() / workers;
        if batch_size > shard {
            let given = self.batch_size.is_some();
            return Err(Error::Argument {
                flag: if given { "--batch-size" } else { "--ranks" },
                found: if given { batch_size } else { self.ranks }.to_string(),
                expected: format!(
                    "{}: {} has {} training examples, {shard} for each of {} ranks",
                    if given { format!("at most {shard}") } else { "fewer".into() },
                    dataset.name,
                    dataset.train.len(),
                    workers,
                ),
            });
        }
        Ok(Settings {
            epochs: self.epochs.unwrap_or(defaults.epochs),
            batch_size,
            hidden: self.hidden.clone().unwrap_or_else(|| defaults.hidden.to_vec()),
            learning_rate: self.learning_rate.unwrap_or(defaults.learning_rate),
            momentum: self.momentum.unwrap_or(if self.asynchronous.is_given() {
                ASYNC_MOMENTUM
            } else {
                0.0
            }),
            seed: self.seed,
            evaluations: EVALUATIONS,
        })
    }

    /// The same for one method, whose default learning rate may be another.
    pub fn settings_of(&self, method: Method, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        let share = match method {
            Method::Signum => SIGNUM_RATE,
            Method::Dgc => DGC_RATE,
            _ => 1.0,
        };
        if self.learning_rate.is_none() {
            settings.learning_rate *= share;
        }
        settings
    }

    /// Opens the requested files.
    ///
    /// # Errors
    /// [`Error::Output`] for a file that can't be written.
    pub fn open_outputs(&self) -> Result<Outputs, Error> {
        Ok(Outputs::open(self.json.as_deref(), self.plot.as_deref())?)
    }

    /// Opens the file of the timeline.
    ///
    /// # Errors
    /// As for [`open_outputs`](Self::open_outputs).
    pub fn open_trace(&self) -> Result<Option<Output>, Error> {
        Ok(self.trace.as_deref().map(|path| Output::open("--trace", path)).transpose()?)
    }

    fn check(&self) -> Result<(), Error> {
        at_least_one("--ranks", self.ranks)?;
        at_least_one("--rank", self.rank)?;
        at_least_one("--epochs", self.epochs.unwrap_or(1))?;
        at_least_one("--batch-size", self.batch_size.unwrap_or(1))?;
        for &units in self.hidden.iter().flatten() {
            at_least_one("--hidden", units)?;
        }
        let density = self.density;
        in_range("--density", density, density > 0.0 && density <= 1.0, "above 0 and at most 1")?;
        let rate = self.learning_rate.unwrap_or(1.0);
        in_range("--learning-rate", rate, rate > 0.0 && rate.is_finite(), "above 0")?;
        let grace = self.grace();
        in_range("--grace", grace, grace >= 0.0, "a number of seconds")?;
        let momentum = self.momentum.unwrap_or(0.5);
        let expected = "at least 0 and below 1";
        in_range("--momentum", momentum, (0.0..1.0).contains(&momentum), expected)?;
        let needs_momentum = self.asynchronous.methods.contains(&AsyncMethod::Dgs);
        in_range("--momentum", momentum, momentum > 0.0 || !needs_momentum, "above 0 for dgs")?;
        self.asynchronous.check()?;
        check_folder(self.data.as_deref())
    }
}

/// Parses a command line, whose first word is the program. Prints and exits for help and version.
pub(crate) fn parse<A: Parser, W: Into<OsString> + Clone>(
    words: impl IntoIterator<Item = W>,
) -> Result<A, Error> {
    A::try_parse_from(words).map_err(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        Error::CommandLine { line: one_line(&error.to_string()) }
    })
}

/// Refuses a folder that is not there.
pub(crate) fn check_folder(data: Option<&Path>) -> Result<(), Error> {
    match data {
        Some(folder) if !folder.is_dir() => Err(Error::MissingFolder { folder: folder.to_owned() }),
        _ => Ok(()),
    }
}

/// MNIST from a folder, or the built-in digits.
pub(crate) fn dataset(data: Option<&Path>) -> Result<Dataset, Error> {
    data.map_or_else(|| Ok(digits::load()), idx::load)
}

/// A whole number. That it is large enough is checked with everything else.
pub(crate) fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number, at least 0".to_owned())
}

pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "expected a whole number, at least 0 and below 2^64".to_owned())
}

fn at_least_one(flag: &'static str, found: usize) -> Result<(), Error> {
    in_range(flag, found, found > 0, "at least 1")
}

pub(crate) fn in_range(
    flag: &'static str,
    found: impl ToString,
    holds: bool,
    expected: &str,
) -> Result<(), Error> {
    if holds {
        return Ok(());
    }
    Err(Error::Argument { flag, found: found.to_string(), expected: expected.to_owned() })
}

/// The parser's message has several lines; this keeps one.
fn one_line(message: &str) -> String {
    let parts: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more") && !line.starts_with("Usage"))
        .collect();
    parts.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
#[path = "arguments_tests.rs"]
mod tests;
