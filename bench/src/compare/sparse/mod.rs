//! `bench/compare sparse`: sparse and low-rank exchanges of gradients in turns with dense sums, with torch,
//! and with their own parts.
//!
//! Of each step the slowest rank's time counts. A barrier precedes or follows each step on every side,
//! outside the clock.

mod rows;
mod seat;
mod work;

use std::path::PathBuf;

pub use seat::serve as serve_sparse;
pub use work::Does;

use self::rows::{Row, Stage};
use super::pairs::{Comparison, Effort};
use super::{Opening, figures, table};
use crate::peers::Gloo;
use crate::{Error, Result};

/// The fewest turns of each side in a run whose figures count.
const FEWEST_PAIRS: usize = 9;

/// Compares the exchange of compressed gradients with dense sums, torch, and its own parts.
#[derive(Clone, Debug, clap::Args)]
pub struct SparseArguments {
    /// A hundredth of the elements and few turns: says that everything works, and little more
    #[arg(long)]
    pub quick: bool,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rows to measure [default: all]
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Turns of each side, at least 9 unless with --quick [default: 9]
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Milliseconds that one side of a turn is measured, or one step if that is longer [default: 400]
    #[arg(long, value_name = "MS")]
    pub slice: Option<f64>,
    /// Keep figures and table of each row in bench/record, here or in the nearest folder above that has it,
    /// as a whole run does anyway
    #[arg(long)]
    pub record: bool,
}

/// Compares, and returns whether every bar was met.
///
/// # Errors
/// [`Error::Arguments`] before anything is started; any other error if Brevity's side fails.
pub fn sparse(arguments: &SparseArguments) -> Result<bool> {
    let rows = arguments.rows()?;
    let (effort, gloo) = (arguments.effort()?, Gloo::find());
    let mut opening = Opening::enter(arguments.json.as_deref(), arguments.is_kept())?;
    let peers = vec![match &gloo {
        Some(gloo) => format!("{}: {}", Gloo::NAME, gloo.version),
        None => format!("missing: {} (bench/peers/install.sh installs it)", Gloo::NAME),
    }];
    let stage = Stage { gloo, effort, quick: arguments.quick };
    let mut all: Vec<Comparison> = Vec::new();
    for row in rows {
        let (circumstances, mut said) = (opening.circumstances(peers.clone()), opening.transcript());
        said.line(&format!("{}\n\n# {}: {}\n{}", circumstances.head(), row.name, row.about, table::head()))?;
        let mut found: Vec<Comparison> = Vec::new();
        match row.measure(&stage) {
            Ok(measured) => found.extend(measured),
            // What this machine can't do is no failure of Brevity.
            Err(rows::Missing::Here(why)) => said.line(&format!("# left out: {why}"))?,
            Err(rows::Missing::Failed(error)) => return Err(error),
        }
        found.iter().try_for_each(|comparison| said.line(&table::line(comparison)))?;
        said.line(&format!("{}\n", table::verdict(&found)))?;
        let json = figures::to_json(&circumstances, &found)?;
        let name = format!("sparse-{}", row.name);
        if let Some(kept) = opening.keep(&circumstances, &name, (&json, &said), false)? {
            said.line(&format!("{kept}\n"))?;
        }
        all.extend(found);
    }
    opening.write(&figures::to_json(&opening.circumstances(peers), &all)?)?;
    Ok(all.iter().all(|comparison| comparison.met != Some(false)))
}

impl SparseArguments {
    fn rows(&self) -> Result<Vec<&'static Row>> {
        let find = |name: &String| {
            rows::ALL.iter().find(|row| row.name == name).ok_or_else(|| {
                let names = rows::ALL.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
                Error::Arguments(format!("--only {name}: there is no such row, name some of {names}"))
            })
        };
        if self.only.is_empty() {
            Ok(rows::ALL.iter().collect())
        } else {
            self.only.iter().map(find).collect()
        }
    }

    fn effort(&self) -> Result<Effort> {
        let slice = self.slice.unwrap_or(if self.quick { 2.0 } else { 400.0 });
        let pairs = self.pairs.unwrap_or(if self.quick { 2 } else { FEWEST_PAIRS });
        let fewest = if self.quick { 1 } else { FEWEST_PAIRS };
        if pairs < fewest {
            return Err(Error::Arguments(format!("--pairs {pairs}: expected at least {fewest}")));
        }
        if !(0.1..=10_000.0).contains(&slice) {
            return Err(Error::Arguments(format!("--slice {slice}: expected from 0.1 to 10000 ms")));
        }
        Ok(Effort { pairs, slice_us: slice * 1e3, fewest: 1, first_look: 1 })
    }

    /// Whether the rows are kept in `bench/record`: those of whole runs are, and those with `--record`.
    fn is_kept(&self) -> bool {
        let is_part = self.quick || !self.only.is_empty();
        self.record || !is_part
    }
}
