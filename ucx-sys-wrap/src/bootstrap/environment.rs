//! Who this process is, read from the environment.

use std::ffi::OsString;
use std::sync::Once;

use super::choice::{Choice, ENCRYPT};
use super::host::MAX_HOST_ID_BYTES;
use super::identity::{ANNOUNCE, Identity, Introduction, MAX_JOB_BYTES, key_needed};
use super::job;
use super::key::JobKey;
use super::launcher::Nesting;
use super::master::Master;
use super::names::warn_of_unknown;
use super::place::Place;
use super::reserve::Ports;
use super::signs;
use super::variables::{PORTS, SWITCH, Variables, non_empty, seconds, switch};
use crate::{Error, Rank, Result};

impl Identity {
    /// Reads the environment of this process; see [`from_lookup`](Self::from_lookup).
    ///
    /// Of several launchers, one inside the other, the inner one counts; see
    /// [`Launcher::from_env`](super::Launcher::from_env). Warns, once in a process, of variables that can't
    /// be meant so: unknown ones of this library, and those of a launcher of many where this is a world of
    /// one rank.
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup).
    pub fn from_env() -> Result<Self> {
        let variables = Variables { lookup: &|name| std::env::var_os(name) };
        let identity = Self::read(variables, Nesting::of_this_process)?;
        identity.warn(variables);
        Ok(identity)
    }

    /// Tells once what this process's environment says in vain: names that are not known, by rank 0 for all,
    /// and a launcher that starts many where each is a world of its own.
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

    /// Reads who this process is from the variables that `lookup` knows.
    ///
    /// The first of these that is set, unless [`from_env`](Self::from_env) can see which is the innermost:
    ///
    /// | launcher | rank and world size | where to meet, unless `BREVITY_MASTER` says it |
    /// | --- | --- | --- |
    /// | `brevity run`, or by hand | `BREVITY_RANK`, `BREVITY_WORLD_SIZE` | `BREVITY_MASTER` |
    /// | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | PMIx |
    /// | `mpiexec` of MPICH, `srun --mpi=pmi2` | `PMI_RANK`, `PMI_SIZE` | PMI-1 on `PMI_FD` |
    /// | `torchrun`, or by hand | `RANK`, `WORLD_SIZE` | `MASTER_ADDR`, one of the 16 ports after `MASTER_PORT` |
    /// | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | PMIx with `--mpi=pmix`, else the first host of the step |
    ///
    /// Nothing set at all is a world of one rank, also under an MPI that was started without a launcher.
    /// `BREVITY_TRANSPORT` (auto, tcp, ucx), `BREVITY_JOIN_TIMEOUT` (seconds, 60), `BREVITY_KEY` or
    /// `BREVITY_KEY_FILE`, `BREVITY_JOB`, `BREVITY_INTERFACE`, `BREVITY_PORT_RANGE` (`first-last`),
    /// `BREVITY_ANNOUNCE` (`host` or `host:port`), `BREVITY_SHARED_MEMORY` and `BREVITY_ENCRYPT`
    /// ([`switch`](super::switch)es), `BREVITY_HOST_ID` and `BREVITY_MASTER_RESERVED` (set by launchers) say
    /// the rest.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or not understood, with what was found and
    /// what is expected; a master that other hosts can reach needs a key, and so does a job that neither
    /// `BREVITY_JOB` nor its launcher names. [`Error::System`] when the key file
    /// can't be read.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Self::read(Variables { lookup: &lookup }, Nesting::unknown)
    }

    /// Reads what a rank that is to be started on this host would see, so that a mistake is told before any
    /// is started.
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup), and when this host does not have the interface that is named.
    pub(crate) fn check_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<()> {
        super::interface::check(&Self::from_lookup(lookup)?)
    }

    fn read(variables: Variables<'_>, nesting: impl Fn() -> Nesting) -> Result<Self> {
        let Place { launcher, rank, world_size, introduction, master, other_ports, one_host, job } =
            Place::read(variables, &nesting)?;
        let mut identity =
            Self { launcher, introduction, other_ports, one_host, ..Self::new(rank, world_size, master) };
        (identity.key, identity.exposed_key) = read_key(variables)?;
        identity.transport =
            variables.read("BREVITY_TRANSPORT", TRANSPORTS, Choice::parse)?.unwrap_or(Choice::Auto);
        let name = variables.read("BREVITY_JOB", "a name of at most 64 bytes", job_name)?;
        let names: Vec<String> = name.into_iter().chain(job).filter(|name| !name.is_empty()).collect();
        identity.interface =
            variables.read("BREVITY_INTERFACE", "the name of a network interface", non_empty)?;
        identity.ports = variables.read("BREVITY_PORT_RANGE", PORTS, Ports::parse)?.unwrap_or_default();
        identity.announce = variables.read(ANNOUNCE, ANNOUNCED, Master::parse_announced)?;
        identity.shared_memory = variables.read("BREVITY_SHARED_MEMORY", SWITCH, switch)?.unwrap_or(true);
        identity.host_id = variables.read("BREVITY_HOST_ID", "a name of 1 to 255 bytes", host_id)?;
        identity.encrypt = variables.read(ENCRYPT, SWITCH, switch)?.unwrap_or(false);
        identity.port_reserved = variables.read("BREVITY_MASTER_RESERVED", SWITCH, switch)?.unwrap_or(false);
        if let Some(timeout) = variables.read("BREVITY_JOIN_TIMEOUT", "seconds above 0, as 60", seconds)? {
            identity.join_timeout = timeout;
        }
        identity.check()?;
        identity.name_job(&names, variables, nesting)?;
        Ok(identity)
    }
}

impl Identity {
    /// Names the job by all that is known of it.
    fn name_job(
        &mut self,
        names: &[String],
        variables: Variables<'_>,
        nesting: impl FnOnce() -> Nesting,
    ) -> Result<()> {
        self.job = job::shortened(names.join(" "));
        let Some(launcher) = self.launcher.filter(|_| self.world_size > 1) else { return Ok(()) };
        self.local_ranks = job::local_ranks(launcher, variables);
        // Under PMI and PMIx rank 0 draws a key for the job.
        let is_told_apart =
            !names.is_empty() || self.key.is_some() || self.introduction != Introduction::Environment;
        if !is_told_apart {
            let named = job::of_starter(launcher, variables, nesting);
            self.job = named.map_err(|error| if self.master.is_loopback() { error } else { key_needed() })?;
        }
        Ok(())
    }
}

const TRANSPORTS: &str = "auto, tcp or ucx";
const ANNOUNCED: &str = "host, host:port or an address where peers reach this rank";

/// The key from the one variable that holds it, and what is to be said about its file.
fn read_key(variables: Variables<'_>) -> Result<(Option<JobKey>, Option<String>)> {
    let key =
        variables.read("BREVITY_KEY", "at least 16 bytes, as from `openssl rand -hex 32`", JobKey::parse);
    // A key that is refused must not be shown.
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

fn job_name(text: &str) -> Option<String> {
    (text.len() <= MAX_JOB_BYTES).then(|| text.to_owned())
}

fn host_id(text: &str) -> Option<String> {
    (1..=MAX_HOST_ID_BYTES).contains(&text.len()).then(|| text.to_owned())
}
