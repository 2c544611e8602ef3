//! `bench/compare p2p` and `ffi`: Brevity and the peers found on this machine, and the C interface and
//! Rust, in turns.

mod bar;
mod collectives;
mod figures;
pub(crate) mod namespace;
mod opening;
mod pairs;
mod plot;
mod rows;
mod sparse;
mod table;

use std::path::PathBuf;

pub use bar::Bar;
pub use collectives::{CollectivesArguments, collectives, serve};
pub use figures::redraw;
pub(crate) use opening::Opening;
pub(crate) use pairs::compare;
pub use pairs::{Comparison, Contestant, Effort, Subject, Turn};

pub use rows::{Row, Stage};
pub use sparse::{Does, SparseArguments, serve_sparse, sparse};

use crate::peers::{Mpi, Perftest, find_mpi, folder};
use crate::size::SizeRange;
use crate::{Error, Result, probe};

/// What a comparison of rows takes.
#[derive(Clone, Debug, clap::Args)]
pub struct RowArguments {
    /// Fewer sizes and shorter slices: says that everything works, and little more
    #[arg(long)]
    pub quick: bool,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rows to measure [default: all]
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Bytes, as 8:4K: the powers of two from MIN to MAX [default: all that the bars name]
    #[arg(long, value_name = "MIN:MAX")]
    pub size: Option<SizeRange>,
    /// Turns of each side [default: 7]
    #[arg(long, value_name = "N")]
    pub pairs: Option<usize>,
    /// Milliseconds that one side of a turn is measured [default: 20]
    #[arg(long, value_name = "MS")]
    pub slice: Option<f64>,
    /// Keep figures, table and drawing in bench/record, here or in the nearest folder above that has it, as a
    /// whole run does anyway
    #[arg(long)]
    pub record: bool,
}

/// Compares messages between ranks with those of other libraries. Returns whether every bar was met.
///
/// # Errors
/// [`Error::Arguments`] before anything is started; any other error if Brevity's side fails.
pub fn p2p(arguments: &RowArguments) -> Result<bool> {
    let (effort, all) = (arguments.effort()?, SizeRange { min: 8, max: 16 << 20 });
    compare_rows(arguments, ("p2p", &Row::P2P), || arguments.stage(effort, all))
}

/// Compares calls through the C interface with the same calls in Rust. Returns whether every bar was met.
///
/// # Errors
/// As for [`p2p`]; [`Error::Arguments`] if the program in C is not built.
pub fn ffi(arguments: &RowArguments) -> Result<bool> {
    let (effort, all) = (arguments.effort()?, SizeRange { min: 8, max: 1 << 20 });
    let program = folder().join(FFI);
    if !program.is_file() {
        let why = format!("no {}: bench/peers/ffi.sh builds it", program.display());
        return Err(Error::Arguments(why));
    }
    let stage = || Stage { ffi: program.clone(), ..Stage::alone(effort, arguments.sizes(all)) };
    compare_rows(arguments, ("ffi", &Row::FFI), || (stage(), Vec::new()))
}

/// The program that `bench/peers/ffi.sh` builds.
const FFI: &str = "brevity/brevity_ffi";

/// Measures rows of a table, and keeps them under its name.
fn compare_rows(
    arguments: &RowArguments,
    (name, rows): (&str, &[Row]),
    stage: impl FnOnce() -> (Stage, Vec<String>),
) -> Result<bool> {
    let rows = arguments.rows(rows)?;
    let mut opening = Opening::enter(arguments.json.as_deref(), arguments.is_kept())?;
    let (stage, peers) = stage();
    let (circumstances, mut said) = (opening.circumstances(peers), opening.transcript());
    said.line(&circumstances.head())?;
    let mut found: Vec<Comparison> = Vec::new();
    for row in rows {
        said.line(&format!("\n# {}\n{}", row.name(), table::head()))?;
        let mut tell = |comparison: Comparison| {
            said.line(&table::line(&comparison))?;
            found.push(comparison);
            Ok(())
        };
        row.measure(&stage, &mut tell)?;
    }
    said.line(&format!("\n{}", table::verdict(&found)))?;
    let figures = figures::to_json(&circumstances, &found)?;
    opening.write(&figures)?;
    let kept = opening.keep(&circumstances, name, (&figures, &said), true)?;
    kept.map_or(Ok(()), |kept| said.line(&kept))?;
    Ok(found.iter().all(|comparison| comparison.met != Some(false)))
}

impl RowArguments {
    fn rows(&self, all: &[Row]) -> Result<Vec<Row>> {
        let find = |name: &String| {
            let known = all.iter().copied().find(|row| row.name() == name);
            let names = all.iter().map(|row| row.name()).collect::<Vec<_>>().join(", ");
            known.ok_or_else(|| {
                Error::Arguments(format!("--only {name}: there is no such row, name some of {names}"))
            })
        };
        if self.only.is_empty() { Ok(all.to_vec()) } else { self.only.iter().map(find).collect() }
    }

    fn effort(&self) -> Result<Effort> {
        let slice = self.slice.unwrap_or(if self.quick { 4.0 } else { 20.0 });
        let pairs = self.pairs.unwrap_or(if self.quick { 5 } else { 7 });
        if pairs == 0 {
            return Err(Error::Arguments("--pairs 0: expected at least 1".into()));
        }
        if !(0.1..=10_000.0).contains(&slice) {
            return Err(Error::Arguments(format!("--slice {slice}: expected from 0.1 to 10000 ms")));
        }
        Ok(Effort { pairs, slice_us: slice * 1e3, fewest: if self.quick { 3 } else { 6 }, first_look: 3 })
    }

    /// Every power of two; every eighth with `quick`.
    fn sizes(&self, all: SizeRange) -> Vec<usize> {
        let sizes = self.size.unwrap_or(all).sizes();
        if self.quick && self.size.is_none() { sizes.step_by(7).collect() } else { sizes.collect() }
    }

    /// The peers that were found, and lines about their versions and about the missing ones.
    fn stage(&self, effort: Effort, all: SizeRange) -> (Stage, Vec<String>) {
        let perftest = Perftest::find();
        let (mpis, missing) = find_mpi();
        let ucx = brevity::transport::ucx::available().map(drop);
        let mut peers = vec![match &perftest {
            Some(perftest) => format!("ucx_perftest: {}", perftest.version),
            None => "missing: ucx_perftest (bench/peers/install.sh installs it)".to_owned(),
        }];
        peers.extend(ucx.as_ref().err().map(|why| format!("missing: UCX for our own transport ({why})")));
        peers.extend(mpis.iter().map(|mpi| format!("{}: {}", mpi.name, mpi.version)));
        peers.extend(mpis.iter().flat_map(Mpi::settings_said));
        peers.extend(
            missing.iter().map(|name| format!("missing: {name} (bench/peers/install.sh installs it)")),
        );
        peers.push(format!(
            "store to a line that the other core has read: {:.1} ns",
            probe::dirty_store_nanoseconds()
        ));
        (Stage { ucx: ucx.is_ok(), perftest, mpis, ..Stage::alone(effort, self.sizes(all)) }, peers)
    }

    /// Whether the run is kept in `bench/record`: whole runs are, and those with `--record`.
    fn is_kept(&self) -> bool {
        self.record || !(self.quick || self.size.is_some() || !self.only.is_empty())
    }
}
