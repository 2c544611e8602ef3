//! Reads a process's identity from the environment.

use std::ffi::OsString;
use std::sync::Once;

use super::choice::{Choice, ENCRYPT};
use super::host::MAX_HOST_ID_BYTES;
use super::identity::{ANNOUNCE, Identity, Introduction, MAX_JOB_BYTES, key_needed};
use super::interface::{LOOPBACK, address_of};
use super::job;
use super::key::JobKey;
use super::launcher::Nesting;
use super::master::Master;
use super::names::warn_of_unknown;
use super::place;
use super::reserve::Ports;
use super::signs;
use super::variables::{PORTS, SWITCH, Variables, non_empty, seconds, switch};
use crate::{Error, Rank, Result};

impl Identity {
    /// Reads the environment of this process; see [`from_lookup`](Self::from_lookup).
    ///
    /// Of nested launchers, the innermost counts; see [`Launcher::from_env`](super::Launcher::from_env).
    /// Warns, once in a process, of unknown variables of this library, and of a launcher's variables for a
    /// larger world where this is a world of one rank.
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup).
    pub fn from_env() -> Result<Self> {
        let variables = Variables { lookup: &|name| std::env::var_os(name) };
        let identity = Self::read(variables, Nesting::of_this_process)?;
        identity.warn(variables);
        Ok(identity)
    }

    /// Warns once of unknown variables (on rank 0 only) and of signs of a larger world.
    fn warn(&self, variables: Variables<'_>) {
        static TOLD: Once = Once::new();
        if self.rank == Rank(0) {
            warn_of_unknown(std::env::vars_os().map(|(name, _)| name));
        }
        if self.world_size > 1 {
            return;
        }
        let signs = signs::of_a_larger_world(variables, self.launcher, Nesting::of_this_process);
        if !signs.is_empty() {
            let counts = self.launcher.map_or("no launcher is understood".into(), |launcher| {
                format!("{}=1 counts", launcher.variables().1)
            });
            TOLD.call_once(|| {
                tracing::warn!(
                    "this process is a world of one rank ({counts}), but {} means more: \
                     if so, set BREVITY_RANK, BREVITY_WORLD_SIZE and BREVITY_MASTER=host:port for each",
                    signs.join(", ")
                );
            });
        }
    }

    /// Reads the identity from the variables that `lookup` knows.
    ///
    /// The first of these launchers with variables set counts, unless [`from_env`](Self::from_env) can see
    /// which is the innermost: `brevity run`, Open MPI, PMI-1, torchrun, Slurm. `docs/launchers.md` lists
    /// their variables and where their ranks meet unless `BREVITY_MASTER` is set.
    ///
    /// Without any of them this is a world of one rank, also in an MPI program that was started without a
    /// launcher. Further variables: `BREVITY_TRANSPORT` (auto, tcp, ucx), `BREVITY_JOIN_TIMEOUT` (seconds,
    /// 60), `BREVITY_KEY` or `BREVITY_KEY_FILE`, `BREVITY_JOB`, `BREVITY_INTERFACE`, `BREVITY_PORT_RANGE`
    /// (`first-last`), `BREVITY_ANNOUNCE` (`host` or `host:port`), `BREVITY_SHARED_MEMORY` and
    /// `BREVITY_ENCRYPT` ([`switch`](super::switch)es), `BREVITY_HOST_ID`, `BREVITY_RETURN` (`host:port`),
    /// and `BREVITY_MASTER_RESERVED` and `BREVITY_INCARNATION` (set by launchers).
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or invalid, with the value found and the
    /// value expected; a master that other hosts can reach needs a key, and so does a job that neither
    /// `BREVITY_JOB` nor its launcher names. [`Error::System`] when the key file can't be read.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Self::read(Variables { lookup: &lookup }, Nesting::unknown)
    }

    /// Checks the variables of a rank that is to be started on this host.
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup), and when this host does not have the named interface.
    pub(crate) fn check_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<()> {
        let interface = Self::from_lookup(lookup)?.interface;
        interface.map_or(Ok(()), |name| address_of(&name, LOOPBACK).map(drop))
    }

    fn read(variables: Variables<'_>, nesting: impl Fn() -> Nesting) -> Result<Self> {
        let mut identity = place::read(variables, &nesting)?;
        (identity.key, identity.exposed_key) = read_key(variables)?;
        identity.transport =
            variables.read("BREVITY_TRANSPORT", TRANSPORTS, Choice::parse)?.unwrap_or(Choice::Auto);
        let job_name = |text: &str| (text.len() <= MAX_JOB_BYTES).then(|| text.to_owned());
        let name = variables.read("BREVITY_JOB", "a name of at most 64 bytes", job_name)?;
        let names: Vec<String> = name
            .into_iter()
            .chain([std::mem::take(&mut identity.job)])
            .filter(|name| !name.is_empty())
            .collect();
        identity.interface =
            variables.read("BREVITY_INTERFACE", "the name of a network interface", non_empty)?;
        identity.ports = variables.read("BREVITY_PORT_RANGE", PORTS, Ports::parse)?.unwrap_or_default();
        identity.announce = variables.read(ANNOUNCE, ANNOUNCED, Master::parse_announced)?;
        identity.shared_memory = variables.read("BREVITY_SHARED_MEMORY", SWITCH, switch)?.unwrap_or(true);
        let host_id = |text: &str| (text.len() <= MAX_HOST_ID_BYTES).then(|| non_empty(text))?;
        identity.host_id = variables.read("BREVITY_HOST_ID", "a name of 1 to 255 bytes", host_id)?;
        identity.encrypt = variables.read(ENCRYPT, SWITCH, switch)?.unwrap_or(false);
        identity.port_reserved = variables.read("BREVITY_MASTER_RESERVED", SWITCH, switch)?.unwrap_or(false);
        let number = |text: &str| text.parse().ok();
        identity.incarnation = variables.read("BREVITY_INCARNATION", INCARNATION, number)?.unwrap_or(0);
        identity.place_of_return = variables.read("BREVITY_RETURN", RETURN, Master::parse)?;
        if let Some(timeout) = variables.read("BREVITY_JOIN_TIMEOUT", "seconds above 0, as 60", seconds)? {
            identity.join_timeout = timeout;
        }
        identity.check(false)?;
        identity.name_job(&names, variables, nesting)?;
        Ok(identity)
    }

    fn name_job(
        &mut self,
        names: &[String],
        variables: Variables<'_>,
        nesting: impl FnOnce() -> Nesting,
    ) -> Result<()> {
        self.job = job::shortened(names.join(" "));
        let Some(launcher) = self.launcher.filter(|_| self.world_size > 1) else { return Ok(()) };
        self.local_ranks = job::local_ranks(launcher, variables);
        // Under PMI and PMIx rank 0 generates a key for the job.
        let is_unique =
            !names.is_empty() || self.key.is_some() || self.introduction != Introduction::Environment;
        if !is_unique {
            let named = job::of_starter(launcher, variables, nesting);
            self.job = named.map_err(|error| if self.master.is_loopback() { error } else { key_needed() })?;
        }
        Ok(())
    }
}

const INCARNATION: &str = "how often this rank was started again, as 1";
pub(super) const RETURN: &str = "host:port where the lowest rank that is left waits for those that come back";
const TRANSPORTS: &str = "auto, tcp or ucx";
const ANNOUNCED: &str = "host, host:port or an address where peers reach this rank";

/// The key from the one variable that holds it, and the warning of its file.
fn read_key(variables: Variables<'_>) -> Result<(Option<JobKey>, Option<String>)> {
    let key =
        variables.read("BREVITY_KEY", "at least 16 bytes, as from `openssl rand -hex 32`", JobKey::parse);
    // The error must not show the key.
    let key = key.map_err(|error| match error {
        Error::Environment { variable, expected, .. } => {
            Error::Environment { variable, found: "too short".into(), expected }
        }
        other => other,
    })?;
    match (variables.lookup)("BREVITY_KEY_FILE") {
        None => Ok((key, None)),
        Some(path) if key.is_none() => {
            JobKey::from_file("BREVITY_KEY_FILE", &path).map(|(key, exposed)| (Some(key), exposed))
        }
        Some(path) => Err(Error::Environment {
            variable: "BREVITY_KEY_FILE",
            found: format!("{path:?} beside BREVITY_KEY"),
            expected: "only one of the two",
        }),
    }
}
