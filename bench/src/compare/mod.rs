//! `bench/compare p2p`: measures Brevity and the peers found on this machine in turns.

mod bar;
mod collectives;
mod figures;
pub(crate) mod namespace;
mod pairs;
mod plot;
mod rows;
mod table;

use std::path::{Path, PathBuf};

pub use bar::Bar;
pub use collectives::{CollectivesArguments, collectives, serve};
pub use figures::redraw;
pub(crate) use pairs::compare;
pub use pairs::{Comparison, Contestant, Effort, Subject, Turn};

pub use rows::{Row, Stage};

use crate::output::Outputs;
use crate::peers::{Mpi, Perftest, find_mpi, nearest};
use crate::record::{self, Circumstances, RECORD, Transcript};
use crate::size::SizeRange;
use crate::{Error, Result, probe};

/// Compares messages between ranks with those of other libraries.
#[derive(Clone, Debug, clap::Args)]
pub struct P2pArguments {
    /// Fewer sizes and shorter slices: says that everything works, and little more
    #[arg(long)]
    pub quick: bool,
    /// Write the figures to a file; "-" prints them in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Rows to measure [default: all]
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Bytes, as 8:4K: the powers of two from MIN to MAX [default: 8:16M]
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

/// The sizes without a given range: all that the bars name.
const ALL_SIZES: SizeRange = SizeRange { min: 8, max: 16 << 20 };

/// Compares, and returns whether every bar was met.
///
/// # Errors
/// [`Error::Arguments`] before anything is started; any other error if Brevity's side fails.
pub fn p2p(arguments: &P2pArguments) -> Result<bool> {
    let rows = arguments.rows()?;
    let effort = arguments.effort()?;
    let Outputs { json, .. } = Outputs::open(arguments.json.as_deref(), None)?;
    let folder = nearest(Path::new(RECORD)).unwrap_or_else(|| RECORD.into());
    if arguments.is_kept() {
        record::prepare(&folder).map_err(|error| Error::Arguments(format!("--record: {error}")))?;
    }
    namespace::enter()?;
    let (stage, peers) = arguments.stage(effort);
    let congestion_control = Some(namespace::congestion_control());
    let circumstances = Circumstances { congestion_control, ..Circumstances::now("bench/compare", peers) };
    let mut said = Transcript::beside(arguments.json.as_deref());
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
    json.map_or(Ok(()), |output| output.write(&figures))?;
    if arguments.is_kept() {
        let drawing = figures::drawing(&figures).map_err(|why| Error::contestant("the drawing", why))?;
        let files = [("json", &*figures), ("txt", said.text()), ("svg", &drawing)];
        let kept = record::keep(&circumstances, (&folder, "p2p"), &files)?;
        said.line(&kept)?;
    }
    Ok(found.iter().all(|comparison| comparison.met != Some(false)))
}

impl P2pArguments {
    fn rows(&self) -> Result<Vec<Row>> {
        let find = |name: &String| {
            let known = Row::ALL.into_iter().find(|row| row.name() == name);
            let names = Row::ALL.map(Row::name).join(", ");
            known.ok_or_else(|| {
                Error::Arguments(format!("--only {name}: there is no such row, name some of {names}"))
            })
        };
        if self.only.is_empty() { Ok(Row::ALL.to_vec()) } else { self.only.iter().map(find).collect() }
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
    fn sizes(&self) -> Vec<usize> {
        let sizes = self.size.unwrap_or(ALL_SIZES).sizes();
        if self.quick && self.size.is_none() { sizes.step_by(7).collect() } else { sizes.collect() }
    }

    /// The peers that were found, and lines about their versions and about the missing ones.
    fn stage(&self, effort: Effort) -> (Stage, Vec<String>) {
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
        (Stage { ucx: ucx.is_ok(), perftest, mpis, effort, sizes: self.sizes() }, peers)
    }

    /// Whether the run is kept in `bench/record`: whole runs are, and those with `--record`.
    fn is_kept(&self) -> bool {
        self.record || !(self.quick || self.size.is_some() || !self.only.is_empty())
    }
}
