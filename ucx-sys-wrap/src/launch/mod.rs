//! Starts the ranks of a job on one host, and ends them together.
//!
//! The launcher starts every rank with its place in the environment, a fresh key and a reserved port, and
//! waits for all of them. After the first failure, or a signal that ends the job, the ranks get a grace
//! period and are then killed. Other signals are passed on, and the launcher stops and continues with its
//! ranks. The job is a process group of its own; what is left of it at the end is killed. If the launcher
//! itself is killed, ranks that have called [`die_with_parent`] die with it, and a [guard](Launch::guard)
//! kills the rest.
#![forbid(unsafe_code)]

mod blame;
mod child;
mod files;
mod guard;
mod job;
mod output;
mod schedule;
mod signals;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Pid;

pub use child::{die_with_parent, is_launched};
pub use guard::guard;
pub use job::{Ending, Job, Outcome};

use self::child::{LAUNCHER, own_mark};
use self::guard::Guard;
use crate::bootstrap::{Choice, Identity, JobKey, Ports, reserve, warn_of_unknown};
use crate::{Error, MAX_WORLD_SIZE, Rank, Result};

/// The default grace period.
const GRACE: Duration = Duration::from_secs(30);

const TRANSPORT: &str = "BREVITY_TRANSPORT";

/// A job of several ranks of one program on this host.
#[derive(Clone, Debug)]
#[must_use]
pub struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    ranks: u32,
    transport: Option<Choice>,
    encrypt: bool,
    tag_output: bool,
    grace: Duration,
    keeps_going: bool,
    environment: Vec<(OsString, OsString)>,
    guard: Option<(OsString, Vec<OsString>)>,
    /// The ranks' limit of open files, if this process has raised its own.
    files: Option<u64>,
}

impl Launch {
    /// A job of one rank that runs `program` with `arguments`.
    pub fn new<A: Into<OsString>>(
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            ranks: 1,
            transport: None,
            encrypt: false,
            tag_output: false,
            grace: GRACE,
            keeps_going: false,
            environment: Vec::new(),
            guard: None,
            files: None,
        }
    }

    /// Sets the number of ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Sets the ranks' transport. Default: from this process's environment, else the best.
    pub fn transport(mut self, transport: Choice) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Makes the ranks encrypt tcp connections. Default: from this process's environment.
    pub fn encrypt(mut self, encrypt: bool) -> Self {
        self.encrypt = encrypt;
        self
    }

    /// Prefixes every line of output with its rank.
    pub fn tag_output(mut self, tag: bool) -> Self {
        self.tag_output = tag;
        self
    }

    /// Sets the grace period, after which ranks are killed once a rank has failed or a signal has ended the
    /// job. Default: 30 seconds.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Lets ranks go on when others fail, for programs that can do without them. The job has succeeded if one
    /// rank ends with status 0; then the others have the [grace period](Self::grace) to end.
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keeps_going = keep_going;
        self
    }

    /// Sets a variable in the environment of every rank.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the program and arguments of a process that calls [`guard`], which ends the job if this process
    /// is killed.
    pub fn guard<A: Into<OsString>>(
        mut self,
        program: impl Into<OsString>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        self.guard = Some((program.into(), arguments.into_iter().map(Into::into).collect()));
        self
    }

    /// Starts the ranks.
    ///
    /// The calling thread must live as long as the job, because ranks that have called [`die_with_parent`]
    /// die with it. Rank 0 reads this process's standard input unless it is a terminal; other ranks read
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Environment`] for an invalid number of ranks or an invalid variable; no rank was started.
    /// [`Error::System`] if the limit of open files is too low or the program can't be started; no rank is
    /// left running.
    pub fn spawn(mut self) -> Result<Job> {
        if self.ranks == 0 || self.ranks > MAX_WORLD_SIZE {
            return Err(Error::Environment {
                variable: "the number of ranks",
                found: self.ranks.to_string(),
                expected: "1 to 1048576",
            });
        }
        self.files = files::make_room(self.ranks, self.tag_output)?;
        let loopback = Ipv4Addr::LOCALHOST;
        let reserved = reserve(loopback.into(), Ports::default());
        let (reserved, master) =
            reserved.map_err(|error| Error::system(format!("can't reserve a port on {loopback}"), error))?;
        let key = JobKey::generate()?.to_hex();
        check(&self.command(Rank(0), master, &key))?;
        warn_of_unknown(std::env::vars_os().chain(self.environment.iter().cloned()).map(|(name, _)| name));
        let guard = self.guard.clone().map(Guard::start).transpose()?;
        let mut job = Job::new(reserved, self.grace, (self.tag_output, self.keeps_going), guard)?;
        for rank in Rank::all(self.ranks) {
            let mut command = self.command(rank, master, &key);
            // The first rank leads the process group of the others and of all that they start.
            command.process_group(job.leader().map_or(0, Pid::as_raw_pid));
            let child = command.spawn().map_err(|error| {
                Error::system(format!("can't start {}", self.program.to_string_lossy()), error)
            })?;
            job.add(rank, child)?;
        }
        Ok(job)
    }

    fn command(&self, rank: Rank, master: SocketAddr, key: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        // Variables of a surrounding job do not apply.
        for name in ["BREVITY_KEY_FILE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
            command.env_remove(name);
        }
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("BREVITY_RANK", rank.to_string())
            .env("BREVITY_WORLD_SIZE", self.ranks.to_string())
            .env("BREVITY_MASTER", master.to_string())
            .env("BREVITY_MASTER_RESERVED", "1")
            .env("BREVITY_KEY", key)
            .env("BREVITY_JOB", format!("brevity-{}-{}", std::process::id(), master.port()))
            .env(LAUNCHER, own_mark(self.files));
        let inherited = std::env::var_os(TRANSPORT).is_some();
        if let Some(transport) = self.transport.or((!inherited).then_some(Choice::Auto)) {
            command.env(TRANSPORT, transport.name());
        }
        if self.encrypt {
            command.env("BREVITY_ENCRYPT", "1");
        }
        // A background process group would be stopped when it reads from the terminal.
        if rank != Rank(0) || std::io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if self.tag_output {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        command
    }
}

/// Refuses an environment that every rank would refuse.
fn check(command: &Command) -> Result<()> {
    Identity::check_lookup(|name| {
        let changed = command.get_envs().find(|(changed, _)| *changed == name);
        changed.map_or_else(|| std::env::var_os(name), |(_, value)| value.map(OsString::from))
    })
}
