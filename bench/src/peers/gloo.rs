//! Gloo, by the torch of a Python on this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{find_programs, printed};
use crate::Result;
use crate::collective::Collective;
use crate::job::Job;
use crate::net::Hosts;

/// The program of a rank.
const PROGRAM: &str = include_str!("../../peers/gloo.py");

/// The program of a rank that trains with the PowerSGD hook.
const POWER_SGD: &str = include_str!("../../peers/power_sgd.py");

/// Prints the versions of a Python that has Gloo.
const ASK: &str = "import sys, torch, torch.distributed as d; \
    print('has gloo', torch.__version__, sys.version.split()[0]) if d.is_gloo_available() else None";

/// A Python that has torch with Gloo.
#[derive(Clone, Debug)]
pub struct Gloo {
    python: PathBuf,
    /// The versions of torch and Python.
    pub version: String,
}

impl Gloo {
    /// The name in tables.
    pub const NAME: &str = "Gloo (torch)";

    /// The first `python3` in `PATH` that has it.
    #[must_use]
    pub fn find() -> Option<Self> {
        find_programs(Path::new("python3")).into_iter().find_map(|python| {
            let said = printed(&python, &["-c", ASK]);
            let versions = said.lines().find_map(|line| line.strip_prefix("has gloo "))?;
            let (torch, own) = versions.split_once(' ')?;
            let version = format!("torch {torch} on Python {own}, {}", python.display());
            Some(Self { python, version })
        })
    }

    /// Whether torch's Gloo has the collective.
    #[must_use]
    pub fn has(collective: Collective) -> bool {
        collective != Collective::ReduceScatter
    }

    /// Starts `ranks` ranks over loopback that wait for orders.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn start(&self, ranks: u32) -> Result<Job> {
        self.start_here(ranks, (Self::NAME, PROGRAM), &[])
    }

    /// Starts `ranks` ranks over loopback that do backward passes of torch's DDP for a matrix of this shape,
    /// with the PowerSGD hook of `rank` and without communication. They answer the difference.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn start_power_sgd(&self, ranks: u32, (rows, columns): (usize, usize), rank: usize) -> Result<Job> {
        let numbers = [rows, columns, rank].map(|number| number.to_string());
        self.start_here(ranks, ("torch's PowerSGD hook", POWER_SGD), &numbers)
    }

    fn start_here(&self, ranks: u32, (name, program): (&str, &str), more: &[String]) -> Result<Job> {
        Job::theirs(name, ranks, |socket| {
            let command = |rank: u32| {
                let mut command = Command::new(&self.python);
                command.args(arguments(program, socket)).args(more).env("GLOO_SOCKET_IFNAME", "lo");
                command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
                command
            };
            Ok((0..ranks).map(command).collect())
        })
    }

    /// Starts ranks on all hosts that wait for orders.
    ///
    /// # Errors
    /// If they can't be started or do not connect.
    pub fn start_on(&self, hosts: &Hosts) -> Result<Job> {
        Job::theirs(Self::NAME, hosts.ranks(), |socket| {
            let mut command = hosts.run(&self.python);
            command.args(arguments(PROGRAM, socket));
            Ok(vec![command])
        })
    }
}

fn arguments(program: &str, socket: &Path) -> [std::ffi::OsString; 4] {
    // The ranks meet in a file beside the socket.
    let store = socket.with_extension("store");
    ["-c".into(), program.into(), socket.into(), store.into()]
}
