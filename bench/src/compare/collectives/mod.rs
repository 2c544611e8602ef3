//! `bench/compare collectives`: the dense collectives of Brevity and of other libraries in turns.
//!
//! Of each call the slowest rank's time counts. A barrier follows each call on every side, outside the clock.
//! Each row is a run of its own: its processes are started for it, and its figures are kept by themselves.

mod decades;
mod rows;
mod seat;
mod sides;
mod table;

use std::path::PathBuf;

use serde::Serialize;

pub use seat::serve;

use self::decades::Decade;
use self::rows::Row;
use self::sides::Stage;
use super::Opening;
use super::pairs::{Comparison, Effort};
use crate::peers::{Gloo, Mpi, find_mpi};
use crate::record::{self, Circumstances, Transcript};
use crate::size::SizeRange;
use crate::{Error, Result, processor};

/// The fewest turns of each side in a run whose figures count.
const FEWEST_PAIRS: usize = 9;

/// Compares dense collectives with those of other libraries.
#[derive(Clone, Debug, clap::Args)]
pub struct CollectivesArguments {
    /// Few sizes and short slices: says that everything works, and little more
    #[arg(long)]
    pub quick: bool,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rows to measure, as allreduce-tcp; or all of a collective, or on a wire: tcp, shm, links, pairs
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Bytes, as 1K:4M: the powers of two from MIN to MAX [default: those of the row]
    #[arg(long, value_name = "MIN:MAX")]
    pub size: Option<SizeRange>,
    /// Numbers of ranks [default: those of the row]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub ranks: Vec<u32>,
    /// Turns of each side, at least 9 unless with --quick [default: 9]
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Milliseconds that one side of a turn is measured, or one call if that is longer [default: 20]
    #[arg(long, value_name = "MS")]
    pub slice: Option<f64>,
    /// Keep figures, table and drawing of each row in bench/record, here or in the nearest folder above that
    /// has it, as a whole run does anyway
    #[arg(long)]
    pub record: bool,
}

/// Compares, and returns whether every bar was met.
///
/// # Errors
/// [`Error::Arguments`] before anything is started; any other error if Brevity's side fails.
pub fn collectives(arguments: &CollectivesArguments) -> Result<bool> {
    let rows = arguments.rows()?;
    let effort = arguments.effort()?;
    let mut opening = Opening::enter(arguments.json.as_deref(), arguments.is_kept())?;
    let (stage, peers) = arguments.stage(effort);
    let mut all = Vec::new();
    for row in rows {
        let run = Run::of(row, &stage, &peers, &opening)?;
        run.keep(&opening, &arguments.ranks)?;
        all.push(run);
    }
    let figures = figures_of(&all, || opening.circumstances(peers))?;
    opening.write(&figures)?;
    Ok(all.iter().all(Run::meets_all))
}

/// A row that has been measured.
struct Run {
    row: Row,
    circumstances: Circumstances,
    pairs: Vec<Comparison>,
    decades: Vec<Decade>,
    /// What could not be measured, and why.
    left_out: Vec<String>,
    said: Transcript,
}

/// The JSON of one row, or of all.
#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    circumstances: &'a Circumstances,
    pairs: Vec<&'a Comparison>,
    /// Geometric means over each decade of sizes.
    decades: Vec<&'a Decade>,
    /// What could not be measured, and why.
    left_out: Vec<&'a str>,
}

impl Run {
    /// Measures a row, and prints it.
    fn of(row: Row, stage: &Stage, peers: &[String], opening: &Opening) -> Result<Self> {
        let (circumstances, mut said) = (opening.circumstances(peers.to_vec()), opening.transcript());
        said.line(&format!("{}\n\n# {}\n{}", circumstances.head(), row.name(), table::head()))?;
        let (mut pairs, mut left_out) = (Vec::new(), Vec::new());
        let mut tell = |comparison| {
            said.line(&table::line(&comparison))?;
            pairs.push(comparison);
            Ok(())
        };
        row.measure(stage, &mut tell, &mut left_out)?;
        left_out.iter().try_for_each(|what| said.line(&format!("# left out: {what}")))?;
        let decades = decades::of(&row, &pairs);
        let verdict = table::verdict(&pairs, &decades);
        said.line(&format!("{verdict}\n"))?;
        Ok(Self { row, circumstances, pairs, decades, left_out, said })
    }

    /// Keeps the record, if records are kept. Its name has the numbers of ranks that were asked for.
    fn keep(&self, opening: &Opening, ranks: &[u32]) -> Result<()> {
        let json = figures(&self.circumstances, std::slice::from_ref(self))?;
        let asked: String = ranks.iter().map(|ranks| format!("-p{ranks}")).collect();
        let name = format!("collectives-{}{asked}", self.row.name());
        match opening.keep(&self.circumstances, &name, (&json, &self.said), true)? {
            Some(kept) if self.said.is_printed() => crate::output::print(&format!("{kept}\n\n")),
            _ => Ok(()),
        }
    }

    fn meets_all(&self) -> bool {
        let pairs = self.pairs.iter().all(|comparison| comparison.met != Some(false));
        pairs && self.decades.iter().all(|decade| decade.met)
    }
}

fn figures_of(runs: &[Run], now: impl FnOnce() -> Circumstances) -> Result<String> {
    figures(&runs.first().map_or_else(now, |run| run.circumstances.clone()), runs)
}

fn figures(circumstances: &Circumstances, runs: &[Run]) -> Result<String> {
    let pairs = runs.iter().flat_map(|run| &run.pairs).collect();
    let decades = runs.iter().flat_map(|run| &run.decades).collect();
    let left_out = runs.iter().flat_map(|run| &run.left_out).map(String::as_str).collect();
    record::to_json(&Figures { circumstances, pairs, decades, left_out })
}

impl CollectivesArguments {
    fn rows(&self) -> Result<Vec<Row>> {
        for name in &self.only {
            if !Row::all().any(|row| row.is_named(name)) {
                let names = Row::all().map(|row| row.name()).collect::<Vec<_>>().join(", ");
                return Err(Error::Arguments(format!(
                    "--only {name}: there is no such row, name some of {names}"
                )));
            }
        }
        let is_wanted = |row: &Row| {
            let is_named = self.only.iter().any(|name| row.is_named(name));
            if self.only.is_empty() { row.is_default() } else { is_named }
        };
        Ok(Row::all().filter(is_wanted).collect())
    }

    fn effort(&self) -> Result<Effort> {
        let slice = self.slice.unwrap_or(if self.quick { 2.0 } else { 20.0 });
        let pairs = self.pairs.unwrap_or(if self.quick { 2 } else { FEWEST_PAIRS });
        let fewest = if self.quick { 1 } else { FEWEST_PAIRS };
        if pairs < fewest {
            return Err(Error::Arguments(format!("--pairs {pairs}: expected at least {fewest}")));
        }
        if !(0.1..=10_000.0).contains(&slice) {
            return Err(Error::Arguments(format!("--slice {slice}: expected from 0.1 to 10000 ms")));
        }
        if let Some(ranks) = self.ranks.iter().find(|ranks| !(2..=64).contains(*ranks)) {
            return Err(Error::Arguments(format!("--ranks {ranks}: expected from 2 to 64")));
        }
        Ok(Effort { pairs, slice_us: slice * 1e3, fewest: 1, first_look: 1 })
    }

    /// The peers that were found, and lines about their versions and about the missing ones.
    fn stage(&self, effort: Effort) -> (Stage, Vec<String>) {
        let (gloo, (mpis, missing)) = (Gloo::find(), find_mpi());
        let missing = missing.into_iter().chain(gloo.is_none().then_some(Gloo::NAME));
        let mut said: Vec<String> =
            gloo.iter().map(|gloo| format!("{}: {}", Gloo::NAME, gloo.version)).collect();
        said.extend(mpis.iter().map(|mpi| format!("{}: {}", mpi.name, mpi.version)));
        said.extend(mpis.iter().flat_map(Mpi::settings_said));
        said.extend(missing.map(|name| format!("missing: {name} (bench/peers/install.sh installs it)")));
        let processors = processor::allowed().len() as u32;
        let (quick, sizes, ranks) = (self.quick, self.size, self.ranks.clone());
        (Stage { gloo, mpis, processors, effort, quick, sizes, ranks }, said)
    }

    /// Whether the rows are kept in `bench/record`: those of whole runs are, and those with `--record`.
    fn is_kept(&self) -> bool {
        let is_part = self.quick || self.size.is_some() || !self.only.is_empty() || !self.ranks.is_empty();
        self.record || !is_part
    }
}
