//! What is kept of a run: its figures with place, time and circumstances, its table and its drawing.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::output::{is_standard_output, print};
use crate::peers::{find_program, nearest, printed};
use crate::processor;
use crate::{Error, Result};

/// The folder of records, in the current folder or the nearest parent that has it.
pub const RECORD: &str = "bench/record";

/// Where, when and how figures were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Circumstances {
    /// The day and time, UTC.
    pub date: String,
    /// Processor model, number of usable processors, and kernel.
    pub machine: String,
    /// The version of Brevity.
    pub version: &'static str,
    /// The commit of the sources, with a mark if they have been changed since.
    pub commit: String,
    /// The command line.
    pub command: String,
    /// What the peers report about themselves, and what else the figures depend on.
    pub peers: Vec<String>,
    /// The congestion control of tcp, the same for all sides, if anything uses tcp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
}

impl Circumstances {
    /// The circumstances of this run of `program`.
    #[must_use]
    pub fn now(program: &str, peers: Vec<String>) -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        Self {
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            machine: machine(),
            version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            command: format!("{program} {}", arguments.join(" ")),
            peers,
            congestion_control: None,
        }
    }

    /// The lines above the tables.
    #[must_use]
    pub fn head(&self) -> String {
        let Self { date, machine, version, commit, command, peers, congestion_control } = self;
        let mut text = format!("# {command}\n# {date}, brevity {version} at {commit}\n# {machine}");
        congestion_control.iter().for_each(|name| _ = write!(text, "\n# congestion control: {name}"));
        peers.iter().for_each(|peer| _ = write!(text, "\n# {peer}"));
        text
    }
}

/// The figures as JSON.
///
/// # Errors
/// [`Error::Contestant`] for a value that JSON can't represent.
pub fn to_json(figures: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(figures);
    text.map(|text| text + "\n").map_err(|error| Error::contestant("the figures", error.to_string()))
}

/// Makes the folder in which a run will be kept, and checks that files can be written there.
///
/// # Errors
/// [`Error::Write`].
pub fn prepare(folder: &Path) -> Result<()> {
    let refused = |error: io::Error| Error::Write { path: folder.into(), why: error.to_string() };
    fs::create_dir_all(folder).map_err(refused)?;
    let probe = folder.join(format!(".writable-{}", std::process::id()));
    fs::write(&probe, "").and_then(|()| fs::remove_file(&probe)).map_err(refused)
}

/// Keeps files of a run in `folder` under `name` and the day. `files` has their extensions and texts.
///
/// # Errors
/// [`Error::Write`].
pub fn keep(
    circumstances: &Circumstances,
    (folder, name): (&Path, &str),
    files: &[(&str, &str)],
) -> Result<String> {
    let day = circumstances.date.split('T').next().unwrap_or("today");
    prepare(folder)?;
    for (ending, text) in files {
        write(&folder.join(format!("{name}-{day}.{ending}")), text)?;
    }
    let endings: Vec<&str> = files.iter().map(|(ending, _)| *ending).collect();
    let stem = folder.join(format!("{name}-{day}"));
    Ok(format!("# kept as {}.{{{}}}", stem.display(), endings.join(",")))
}

/// Writes a file.
///
/// # Errors
/// [`Error::Write`].
pub fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Error::Write { path: path.into(), why: error.to_string() })
}

/// What is printed and kept for the record.
#[derive(Default)]
pub struct Transcript {
    text: String,
    silent: bool,
}

impl Transcript {
    /// Keeps lines, and prints them unless the figures go to standard output.
    #[must_use]
    pub fn beside(json: Option<&Path>) -> Self {
        Self { silent: json.is_some_and(is_standard_output), ..Self::default() }
    }

    /// Prints a line and flushes.
    ///
    /// # Errors
    /// The same as for [`print()`].
    pub fn line(&mut self, text: &str) -> Result<()> {
        self.text.push_str(text);
        self.text.push('\n');
        if self.silent {
            return Ok(());
        }
        print(&format!("{text}\n"))
    }

    /// Whether lines are printed.
    #[must_use]
    pub fn is_printed(&self) -> bool {
        !self.silent
    }

    /// All lines.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{model}, {} processors, Linux {}", processor::allowed().len(), said("uname", &["-r"]))
}

/// The commit of the sources in the current folder; unknown if the program runs elsewhere.
fn commit() -> String {
    let Some(sources) =
        nearest(Path::new("compress/Cargo.toml")).filter(|_| nearest(Path::new("bench/peers")).is_some())
    else {
        return UNKNOWN.to_owned();
    };
    let folder = sources.parent().and_then(Path::to_str).unwrap_or(".");
    let commit = said("git", &["-C", folder, "rev-parse", "--short=12", "HEAD"]);
    let changes = said(
        "git",
        &["-C", folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/bench/record"],
    );
    let commit = format!("{commit} (of the present folder)");
    if changes == UNKNOWN { commit } else { format!("{commit}, changed since") }
}

const UNKNOWN: &str = "unknown";

/// The first line that a program prints.
fn said(program: &str, arguments: &[&str]) -> String {
    let text =
        find_program(Path::new(program)).map(|program| printed(&program, arguments)).unwrap_or_default();
    text.lines().next().unwrap_or(UNKNOWN).trim().to_owned()
}
