//! What a rank says about how its calls ended.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity_testing::Process;

use super::FOLDER;

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A rank is lost.
    Lost,
    /// A rank has aborted.
    Aborted,
    /// A rank did not answer in time.
    Timeout,
    /// Anything else.
    Other,
}

/// A call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub kind: Kind,
    /// The rank that is named.
    pub rank: u32,
    /// How long after the call began.
    pub after: Duration,
}

/// What one rank has said.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The call that was in progress.
    pub call: Option<Ended>,
    /// The non-blocking call that was pending.
    pub pending: Option<Ended>,
    /// The call that was made afterwards.
    pub later: Option<Ended>,
    /// The most memory that the rank's process had, in KiB.
    pub peak_kib: u64,
}

const KINDS: [(Kind, &str); 4] =
    [(Kind::Lost, "lost"), (Kind::Aborted, "aborted"), (Kind::Timeout, "timeout"), (Kind::Other, "other")];

/// What a rank uses to talk to the test.
pub struct Log {
    folder: PathBuf,
    rank: u32,
}

impl Log {
    /// The log of a rank of the job that the environment names.
    ///
    /// # Panics
    /// When `FAULT_DIR` is not set.
    #[must_use]
    pub fn of(rank: u32) -> Self {
        let folder = std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} is not set"));
        Self { folder: folder.into(), rank }
    }

    /// Says that this rank is in the middle of it.
    pub fn ready(&self) {
        write(&self.folder.join(format!("ready-{}", self.rank)), "");
    }

    /// Waits until the test says so; without calling anything of the group.
    ///
    /// # Panics
    /// When it does not.
    pub fn await_go(&self, patience: Duration) {
        let start = Instant::now();
        while !self.folder.join("go").exists() {
            assert!(start.elapsed() < patience, "nobody says go");
            sleep(Duration::from_millis(2));
        }
    }

    /// Says how the call `which` that began at `start` has failed.
    pub fn ended(&self, which: &str, error: &Error, start: Instant) {
        eprintln!("rank {}: {which}: {error}", self.rank);
        let (kind, rank) = match error {
            Error::PeerLost { rank } => (Kind::Lost, rank.0),
            Error::Aborted { rank } => (Kind::Aborted, rank.0),
            Error::Timeout { rank, .. } => (Kind::Timeout, rank.0),
            _ => (Kind::Other, u32::MAX),
        };
        let name = KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name);
        self.add(&format!("{which} {name} {rank} {}\n", start.elapsed().as_micros()));
    }

    /// Says how much memory this process had at most, and that there is nothing more to say.
    pub fn finish(&self) {
        self.add(&format!("peak {}\nend\n", Process::own().peak_kib()));
    }

    fn add(&self, line: &str) {
        let path = self.folder.join(format!("report-{}", self.rank));
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("can't report: {error}"));
    }
}

impl Report {
    /// What `rank` has said, once it has said all.
    pub(super) fn read(folder: &Path, rank: u32) -> Option<Self> {
        let text = fs::read_to_string(folder.join(format!("report-{rank}"))).ok()?;
        let mut report = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["end"] => return Some(report),
                ["peak", kib] => report.peak_kib = kib.parse().ok()?,
                [which, kind, rank, micros] => {
                    let (kind, _) = *KINDS.iter().find(|(_, name)| *name == kind)?;
                    let after = Duration::from_micros(micros.parse().ok()?);
                    let ended = Some(Ended { kind, rank: rank.parse().ok()?, after });
                    match which {
                        "call" => report.call = ended,
                        "pending" => report.pending = ended,
                        _ => report.later = ended,
                    }
                }
                _ => return None,
            }
        }
        None
    }
}

pub(super) fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("can't write {}: {error}", path.display()));
}
