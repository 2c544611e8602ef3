//! What the ranks of a job are started with.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use super::Launch;
use super::child::{LAUNCHER, own_mark};
use crate::bootstrap::{Choice, Identity};
use crate::{Error, Rank, Result};

const TRANSPORT: &str = "BREVITY_TRANSPORT";

/// How often a rank was started again; a first process does not have it.
const INCARNATION: &str = "BREVITY_INCARNATION";

/// Starts the ranks of a job.
pub(super) struct Starter {
    pub(super) launch: Launch,
    /// Where ranks meet.
    pub(super) master: SocketAddr,
    /// The job's key.
    pub(super) key: String,
}

impl Starter {
    /// Refuses an environment that every rank would refuse.
    pub(super) fn check(&self) -> Result<()> {
        let command = self.command(Rank(0), 0);
        Identity::check_lookup(|name| {
            let changed = command.get_envs().find(|(changed, _)| *changed == name);
            changed.map_or_else(|| std::env::var_os(name), |(_, value)| value.map(OsString::from))
        })
    }

    /// Starts a process of `rank`, after `incarnation` others. The first one of a job leads the process group
    /// of the others and of all that they start.
    pub(super) fn start(&self, rank: Rank, incarnation: u32, leader: Option<Pid>) -> Result<Child> {
        let mut command = self.command(rank, incarnation);
        command.process_group(leader.map_or(0, Pid::as_raw_pid));
        command.spawn().map_err(|error| {
            Error::system(format!("can't start {}", self.launch.program.to_string_lossy()), error)
        })
    }

    fn command(&self, rank: Rank, incarnation: u32) -> Command {
        let Self { launch, master, key } = self;
        let mut command = Command::new(&launch.program);
        command.args(&launch.arguments);
        // Variables of a surrounding job do not apply.
        for name in ["BREVITY_KEY_FILE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
            command.env_remove(name);
        }
        command
            .envs(launch.environment.iter().map(|(name, value)| (name, value)))
            .env("BREVITY_RANK", rank.to_string())
            .env("BREVITY_WORLD_SIZE", launch.ranks.to_string())
            .env("BREVITY_MASTER", master.to_string())
            .env("BREVITY_MASTER_RESERVED", "1")
            .env("BREVITY_KEY", key)
            .env("BREVITY_JOB", format!("brevity-{}-{}", std::process::id(), master.port()))
            .env(LAUNCHER, own_mark(launch.files));
        match incarnation {
            0 => command.env_remove(INCARNATION),
            again => command.env(INCARNATION, again.to_string()),
        };
        let inherited = std::env::var_os(TRANSPORT).is_some();
        if let Some(transport) = launch.transport.or((!inherited).then_some(Choice::Auto)) {
            command.env(TRANSPORT, transport.name());
        }
        if launch.encrypt {
            command.env("BREVITY_ENCRYPT", "1");
        }
        // A background process group would be stopped when it reads from the terminal.
        if rank != Rank(0) || std::io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if launch.tag_output {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }
}
