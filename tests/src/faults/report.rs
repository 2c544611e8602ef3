//! The report of a rank on how its calls ended.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity_testing::Process;
use rustix::time::{ClockId, clock_gettime};

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
    /// The others go on without this rank.
    Excluded,
    /// The rank goes on in a group of so many ranks.
    On,
    /// Anything else.
    Other,
}

/// A call that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub kind: Kind,
    /// The rank that the error names, or the size of the group.
    pub rank: u32,
    /// The time since the call began.
    pub after: Duration,
    /// The time of [`now`].
    pub at: Duration,
}

/// The time of a clock that all processes of the host share.
#[must_use]
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The report of one rank.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The call that was in progress.
    pub call: Option<Ended>,
    /// The non-blocking call that was pending.
    pub pending: Option<Ended>,
    /// The call that was made afterwards.
    pub later: Option<Ended>,
    /// Calls of other names.
    pub others: Vec<(String, Ended)>,
    /// The peak memory of the rank's process, in KiB.
    pub peak_kib: u64,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::Lost, "lost"),
    (Kind::Aborted, "aborted"),
    (Kind::Timeout, "timeout"),
    (Kind::Excluded, "excluded"),
    (Kind::On, "on"),
    (Kind::Other, "other"),
];

/// Writes a rank's report for the test.
pub struct Log {
    folder: PathBuf,
    rank: u32,
}

impl Log {
    /// The log of a rank of the job that the environment names.
    ///
    /// # Panics
    /// If `FAULT_DIR` is not set.
    #[must_use]
    pub fn of(rank: u32) -> Self {
        let folder = std::env::var_os(FOLDER).unwrap_or_else(|| panic!("{FOLDER} is not set"));
        Self { folder: folder.into(), rank }
    }

    /// Reports that this rank is in the middle of its work.
    pub fn ready(&self) {
        write(&self.folder.join(format!("ready-{}", self.rank)), "");
    }

    /// Waits until the test says so, without a call on the group.
    ///
    /// # Panics
    /// If it does not.
    pub fn await_go(&self, patience: Duration) {
        let start = Instant::now();
        while !self.is_told("go") {
            assert!(start.elapsed() < patience, "nobody says go");
            sleep(Duration::from_millis(2));
        }
    }

    /// Whether the test has told the ranks `what`.
    #[must_use]
    pub fn is_told(&self, what: &str) -> bool {
        self.folder.join(what).exists()
    }

    /// Reports how the call `which` that began at `start` has failed.
    pub fn ended(&self, which: &str, error: &Error, start: Instant) {
        let now = now();
        eprintln!("rank {}: {which}: {error}", self.rank);
        let (kind, rank) = match error {
            Error::PeerLost { rank } => (Kind::Lost, rank.0),
            Error::Aborted { rank } => (Kind::Aborted, rank.0),
            Error::Timeout { rank, .. } => (Kind::Timeout, rank.0),
            Error::Excluded => (Kind::Excluded, self.rank),
            _ => (Kind::Other, u32::MAX),
        };
        self.tell(which, (kind, rank), start, now);
    }

    /// Reports that this rank goes on after its `loss`-th loss, in a group of `size` ranks.
    pub fn went_on(&self, loss: u32, size: u32, start: Instant) {
        self.tell(&format!("on-{loss}"), (Kind::On, size), start, now());
        write(&self.folder.join(format!("on-{loss}-{}", self.rank)), "");
    }

    fn tell(&self, which: &str, (kind, rank): (Kind, u32), start: Instant, now: Duration) {
        let name = KINDS.iter().find(|(known, _)| *known == kind).map_or("", |(_, name)| name);
        self.add(&format!("{which} {name} {rank} {} {}\n", start.elapsed().as_micros(), now.as_micros()));
    }

    /// Reports the peak memory of this process, and completes the report.
    pub fn finish(&self) {
        self.add(&format!("peak {}\nend\n", Process::own().peak_kib()));
    }

    fn add(&self, line: &str) {
        self.note("report", line);
    }

    /// Adds a line to this rank's file of another name.
    ///
    /// # Panics
    /// If it can't be written.
    pub fn note(&self, name: &str, line: &str) {
        let path = self.folder.join(format!("{name}-{}", self.rank));
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("can't report: {error}"));
    }
}

impl Report {
    /// The report of `rank`, once it is complete.
    pub(super) fn read(folder: &Path, rank: u32) -> Option<Self> {
        let text = fs::read_to_string(folder.join(format!("report-{rank}"))).ok()?;
        let mut report = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["end"] => return Some(report),
                ["peak", kib] => report.peak_kib = kib.parse().ok()?,
                [which, kind, rank, micros, now] => {
                    let (kind, _) = *KINDS.iter().find(|(_, name)| *name == kind)?;
                    let after = Duration::from_micros(micros.parse().ok()?);
                    let at = Duration::from_micros(now.parse().ok()?);
                    let ended = Ended { kind, rank: rank.parse().ok()?, after, at };
                    match which {
                        "call" => report.call = Some(ended),
                        "pending" => report.pending = Some(ended),
                        "later" => report.later = Some(ended),
                        _ => report.others.push((which.to_owned(), ended)),
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
