//! Starts the ranks of a job on one host, and ends them together.
//!
//! The launcher starts every rank with its place in the environment, a fresh key and a reserved port, and
//! waits for all of them. After the first failure, or a signal that ends the job, the ranks get a grace
//! period and are then killed. [Other jobs](Launch::keep_going) go on after failures, and lost ranks may be
//! [started again](Launch::restart). Other signals are passed on, and the launcher stops and continues with
//! its ranks. The job is a process group of its own; what is left of it at the end is killed. If the launcher
//! itself is killed, ranks that have called [`die_with_parent`] die with it, and a [guard](Launch::guard)
//! kills the rest.
#![forbid(unsafe_code)]

mod blame;
mod child;
mod files;
mod guard;
mod job;
mod outcome;
mod output;
mod restarts;
mod running;
mod schedule;
mod signals;
mod starter;

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::time::Duration;

pub use child::{die_with_parent, is_launched};
pub use guard::guard;
pub use job::Job;
pub use outcome::{Ending, Outcome};

use self::guard::Guard;
use self::starter::Starter;
use crate::bootstrap::{Choice, JobKey, Ports, reserve, warn_of_unknown};
use crate::{Error, MAX_WORLD_SIZE, Rank, Result};

/// The default grace period.
const GRACE: Duration = Duration::from_secs(30);

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
    /// How many restarts there may be; none if it was not given.
    restarts: Option<u32>,
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
            restarts: None,
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
    /// rank ends with status 0; then the others have the [grace period](Self::grace) to end, if a rank was
    /// lost before or is lost meanwhile.
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.keeps_going = keep_going;
        self
    }

    /// Starts lost ranks again, `times` in all. Implies [`keep_going`](Self::keep_going).
    ///
    /// A rank is lost when it is killed or ends with a status other than 0. It gets the same environment as
    /// before, and in addition `BREVITY_INCARNATION`, the number of times that this rank was started again.
    /// What it has started itself goes on until the job ends.
    ///
    /// A rank that has lived for 2 seconds is started at once; otherwise after a pause of 100 ms, which
    /// doubles each time, up to 2 seconds. Nothing is started once a rank has ended with status 0, or a
    /// signal has ended the job. An attempt that fails, for instance for want of memory, counts too.
    pub fn restart(mut self, times: u32) -> Self {
        self.restarts = Some(times);
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
    /// die with it; [`Job::wait`] starts lost ranks again. Rank 0 reads this process's standard input unless
    /// it is a terminal; other ranks read nothing.
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
        let starter = Starter { launch: self, master, key };
        starter.check()?;
        let Self { ranks, environment, guard, .. } = &starter.launch;
        warn_of_unknown(std::env::vars_os().chain(environment.iter().cloned()).map(|(name, _)| name));
        let (ranks, guard) = (*ranks, guard.clone().map(Guard::start).transpose()?);
        let mut job = Job::new(starter, reserved, guard)?;
        for rank in Rank::all(ranks) {
            job.add(rank)?;
        }
        Ok(job)
    }
}
