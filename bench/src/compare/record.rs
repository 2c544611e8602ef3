//! What is kept of a run: its figures with where, when and how they were taken, its table and its drawing.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::namespace;
use super::pairs::Comparison;
use super::plot::{self, Point};
use crate::peers::{find_program, printed};
use crate::processor;
use crate::{Error, Result};

/// Where, when and how figures were taken.
#[derive(Clone, Debug, Serialize)]
pub struct Circumstances {
    /// The day and time, UTC.
    pub date: String,
    /// Processor, processors that may be used, and kernel.
    pub machine: String,
    /// Of Brevity.
    pub version: &'static str,
    /// Of the sources, with a mark if they have been changed since.
    pub commit: String,
    /// As it was given.
    pub command: String,
    /// What the peers say of themselves.
    pub peers: Vec<String>,
    /// Of tcp, the same for all that is compared.
    pub congestion_control: String,
}

impl Circumstances {
    /// Those of this run.
    #[must_use]
    pub fn now(peers: Vec<String>) -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        Self {
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            machine: machine(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            command: format!("bench/compare {}", arguments.join(" ")),
            peers,
            congestion_control: namespace::congestion_control(),
        }
    }

    /// The lines above the tables.
    #[must_use]
    pub fn head(&self) -> String {
        let Self { date, machine, version, commit, command, peers, congestion_control } = self;
        let mut text = format!("# {command}\n# {date}, brevity {version} at {commit}\n# {machine}\n");
        let _ = write!(text, "# congestion control: {congestion_control}");
        peers.iter().for_each(|peer| _ = write!(text, "\n# {peer}"));
        text
    }
}

/// The contract's JSON, with more beside it.
#[derive(Serialize)]
struct Figures<'a> {
    #[serde(flatten)]
    circumstances: &'a Circumstances,
    pairs: &'a [Comparison],
}

/// Writes the figures.
///
/// # Errors
/// [`Error::Write`].
pub fn write_json(circumstances: &Circumstances, pairs: &[Comparison], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&Figures { circumstances, pairs });
    let text = text.map_err(|error| Error::Write { path: path.into(), why: error.to_string() })?;
    write(path, &(text + "\n"))
}

/// Keeps figures, table and drawing in `folder` under `name` and the day.
///
/// # Errors
/// [`Error::Write`].
pub fn keep(
    circumstances: &Circumstances,
    pairs: &[Comparison],
    table: &str,
    (folder, name): (&Path, &str),
) -> Result<()> {
    let day = circumstances.date.split('T').next().unwrap_or("today");
    let file = |ending: &str| -> PathBuf { folder.join(format!("{name}-{day}.{ending}")) };
    fs::create_dir_all(folder).map_err(|error| Error::Write { path: folder.into(), why: error.to_string() })?;
    write_json(circumstances, pairs, &file("json"))?;
    write(&file("txt"), table)?;
    redraw(&file("json"))?;
    println!("# kept as {}", file("{json,txt,svg}").display());
    Ok(())
}

/// Of what was written, what is drawn.
#[derive(Deserialize)]
struct Kept {
    date: String,
    machine: String,
    commit: String,
    command: String,
    pairs: Vec<Point>,
}

/// Draws the figures that were written to `path` beside them.
///
/// # Errors
/// [`Error::Arguments`] when these are no figures; [`Error::Write`].
pub fn redraw(path: &Path) -> Result<()> {
    let refuse = |why: String| Error::Arguments(format!("{}: no figures of a comparison ({why})", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let Kept { date, machine, commit, command, pairs } =
        serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
    let head = [
        &*format!("{command}: time of ours / theirs, medians and intervals"),
        &*format!("{date}, {commit}, {machine}"),
    ];
    let file = path.with_extension("svg");
    write(&file, &plot::svg(&head, &pairs).map_err(|why| Error::Write { path: file.clone(), why })?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Error::Write { path: path.into(), why: error.to_string() })
}

fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{model}, {} processors, Linux {}", processor::allowed().len(), said("uname", &["-r"]))
}

fn commit() -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    let commit = said("git", &["-C", folder, "rev-parse", "--short=12", "HEAD"]);
    let changes =
        said("git", &["-C", folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/bench/record"]);
    if changes == UNKNOWN { commit } else { format!("{commit}, changed since") }
}

const UNKNOWN: &str = "unknown";

/// The first line that a program prints.
fn said(program: &str, arguments: &[&str]) -> String {
    let text = find_program(Path::new(program)).map(|program| printed(&program, arguments)).unwrap_or_default();
    text.lines().next().unwrap_or(UNKNOWN).trim().to_owned()
}
