//! `bench/compare server`: what one shard of a parameter server takes from its workers, and a step of a
//! worker next to one of an exchange of gradients.

mod figures;
mod model;
mod replay;
mod seat;
mod steps;

use std::path::PathBuf;

use brevity::compress::Density;
use brevity::transport::bootstrap::Choice;

pub use figures::{Figures, Pushes, Step};
pub use seat::{Pushed, serve};

use crate::compare::{Comparison, Contestant, Effort, Opening, Subject, compare};
use crate::job::Job;
use crate::order::{Order, What};
use crate::record;
use crate::size::Size;
use crate::{Error, Result};
use model::TENSORS;

/// The shard and the density to which the bar of pushes applies.
const ELEMENTS: usize = 25_000_000;
const DENSITY: f64 = 0.001;

/// The model of the second row of steps is smaller by this factor.
const SMALLER: usize = 25;

/// The fewest elements: each tensor of the smaller model has one.
const FEWEST_ELEMENTS: usize = SMALLER * TENSORS;

/// The fewest pairs of blocks of steps.
const FEWEST_PAIRS: usize = 9;

/// Ranks of the jobs of steps.
const RANKS: u32 = 2;

/// The environment of all ranks: sockets, and time for a model that large to be made.
const VARIABLES: [(&str, &str); 2] = [("BREVITY_SHARED_MEMORY", "off"), ("BREVITY_TIMEOUT", "120")];

/// Measures the parameter server, over sockets.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArguments {
    /// Seconds of a repetition; a fifth as long before it, and a tenth is a block of steps
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// Blocks of steps of each side
    #[arg(long, value_name = "N", default_value_t = 11)]
    pub pairs: usize,
    /// Elements of the model, as 25M [default: 25000000]
    #[arg(long, value_name = "N")]
    pub elements: Option<Size>,
    /// The share of entries that is sent
    #[arg(long, value_name = "D", default_value_t = DENSITY)]
    pub density: f64,
    /// Workers of one shard
    #[arg(long, value_name = "W", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    pub workers: Vec<u32>,
    /// Repetitions with each number of workers, each of new processes
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub repetitions: usize,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Keep figures and table in bench/record, here or in the nearest folder above that has it
    #[arg(long)]
    pub record: bool,
}

/// Measures, and returns whether every bar was met.
///
/// # Errors
/// [`Error::Arguments`] before anything is started; any other error if a measurement fails.
pub fn server(arguments: &ServerArguments) -> Result<bool> {
    arguments.check()?;
    let mut opening = Opening::enter(arguments.json.as_deref(), arguments.record)?;
    let (circumstances, mut said) = (opening.circumstances(Vec::new()), opening.transcript());
    said.line(&circumstances.head())?;
    let elements = arguments.elements();
    let shard = format!("a shard of {elements} elements, density {}", arguments.density);
    said.line(&format!("\n# pushes of W workers to {shard}\n{}", Pushes::head()))?;
    let pushes = arguments.pushes()?;
    pushes.iter().try_for_each(|row| said.line(&row.line()))?;
    said.line(&format!("\n# a step of 2 ranks: all serve; GradientExchange with gtopk\n{}", Step::head()))?;
    let mut steps = Vec::new();
    for elements in [elements, elements / SMALLER] {
        let step = arguments.step(elements)?;
        said.line(&step.line())?;
        steps.push(step);
    }
    let (density, seconds) = (arguments.density, arguments.seconds);
    let figures = Figures { circumstances: &circumstances, density, elements, seconds, pushes, steps };
    let (met, all) = (figures.met().filter(|met| *met).count(), figures.met().count());
    said.line(&format!("\n# {met} of {all} bars met"))?;
    let text = record::to_json(&figures)?;
    opening.write(&text)?;
    let kept = opening.keep(&circumstances, "server", (&text, &said), false)?;
    kept.map_or(Ok(()), |kept| said.line(&kept))?;
    Ok(met == all)
}

impl ServerArguments {
    fn check(&self) -> Result<()> {
        let refuse = |option: &str, found: &dyn std::fmt::Display, expected: &str| {
            Err(Error::Arguments(format!("--{option} {found}: expected {expected}")))
        };
        if !(0.05..=60.0).contains(&self.seconds) {
            return refuse("seconds", &self.seconds, "from 0.05 to 60");
        }
        if self.pairs < FEWEST_PAIRS {
            return refuse("pairs", &self.pairs, &format!("at least {FEWEST_PAIRS}"));
        }
        if !(FEWEST_ELEMENTS..=1 << 32).contains(&self.elements()) {
            return refuse("elements", &self.elements(), &format!("from {FEWEST_ELEMENTS} to 2^32"));
        }
        if Density::new(self.density).is_err() {
            return refuse("density", &self.density, "above 0 and at most 1");
        }
        if let Some(workers) = self.workers.iter().find(|workers| !(1..=64).contains(*workers)) {
            return refuse("workers", workers, "from 1 to 64");
        }
        if self.repetitions == 0 {
            return refuse("repetitions", &0, "at least 1");
        }
        Ok(())
    }

    fn elements(&self) -> usize {
        self.elements.map_or(ELEMENTS, |Size(elements)| elements)
    }

    /// What one shard takes from each number of workers, in turns.
    fn pushes(&self) -> Result<Vec<Pushes>> {
        let mut found = vec![Vec::new(); self.workers.len()];
        for _ in 0..self.repetitions {
            for (workers, repetitions) in self.workers.iter().zip(&mut found) {
                repetitions.push(self.repetition(*workers)?);
            }
        }
        let has_bar = self.elements() == ELEMENTS && self.density == DENSITY;
        let rows = self.workers.iter().zip(&found);
        Ok(rows.map(|(workers, repetitions)| Pushes::new(*workers, repetitions, has_bar)).collect())
    }

    /// Pushes per second of all workers together, and the mean bytes of a push and of an answer.
    fn repetition(&self, workers: u32) -> Result<[f64; 3]> {
        let name = format!("{workers} workers");
        let mut job = self.job(&name, workers + 1)?;
        let milliseconds = self.seconds * 1e3;
        let bytes = size_of::<f32>() * self.elements();
        let order = Order::new(What::Push, bytes, milliseconds as usize, (milliseconds / 5.0) as usize);
        let answers = job.tell(&order)?;
        let wrong = |what: String| Error::contestant(&name, what);
        let pushed: Option<Vec<Pushed>> =
            answers.iter().map(|answer| Pushed::read(&answer.samples_us)).collect();
        let pushed = pushed.ok_or_else(|| wrong("an answer of another length".into()))?;
        let Some((server, workers)) = pushed.split_last() else { return Err(wrong("no answer".into())) };
        let sum = |of: fn(&Pushed) -> f64| workers.iter().map(of).sum::<f64>();
        let (sent, pushes) = (sum(|pushed| pushed.all), sum(|pushed| pushed.pushes));
        if sent != server.all || pushes == 0.0 {
            return Err(wrong(format!("{sent} pushes were sent, and {} applied", server.all)));
        }
        let rate = sum(|pushed| pushed.pushes / pushed.seconds);
        Ok([rate, sum(|pushed| pushed.push_bytes) / pushes, sum(|pushed| pushed.answer_bytes) / pushes])
    }

    /// A step where every rank serves, and a step of an exchange.
    fn step(&self, elements: usize) -> Result<Step> {
        let side = |name, what| self.job(name, RANKS).map(|job| SlowestRank { job, what });
        let bytes = size_of::<f32>() * elements;
        let subject = Subject { what: "step".into(), wire: "tcp", world_size: RANKS, bytes };
        let mut ours = side("server", What::Step)?;
        let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(side("gtopk", What::Average)?)];
        let effort = Effort { pairs: self.pairs, slice_us: self.seconds * 1e5, fewest: 4, first_look: 3 };
        let found = compare(&subject, What::Step, &mut ours, &mut theirs, effort)?;
        let none = || Error::contestant("gtopk", "no figures to compare with");
        let comparison: Comparison = found.into_iter().next().ok_or_else(none)?;
        Ok(Step::new(elements, comparison))
    }

    fn job(&self, name: &str, ranks: u32) -> Result<Job> {
        let density = format!("--density={}", self.density);
        Job::ours_as("server-rank", name, ranks, Choice::Tcp, &[&density], &VARIABLES)
    }
}

/// A job of which the slowest rank counts.
struct SlowestRank {
    job: Job,
    what: What,
}

impl Contestant for SlowestRank {
    fn name(&self) -> &str {
        self.job.name()
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        let answers = self.job.tell(&Order { what: self.what, ..*order })?;
        let slowest = answers.iter().filter_map(|answer| answer.median_us).reduce(f64::max);
        slowest.ok_or_else(|| Error::contestant(self.job.name(), format!("no times of {order}")))
    }
}
