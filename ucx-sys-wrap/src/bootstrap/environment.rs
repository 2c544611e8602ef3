//! Who this process is, read from the environment.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::choice::{Choice, ENCRYPT};
use super::host::MAX_HOST_ID_BYTES;
use super::key::JobKey;
use super::launcher::{Launcher, Nesting};
use super::place::{Introduction, Place};
use super::variables::{SWITCH, Variables, non_empty, seconds, switch};
use crate::tcp::MAX_LANES;
use crate::{Error, Rank, Result};

/// The longest job name, in bytes.
pub(super) const MAX_JOB_BYTES: usize = 64;

const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Where rank 0 waits for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Who this process is in its job, and how it joins it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This rank.
    pub rank: Rank,
    /// Ranks in the world.
    pub world_size: u32,
    /// Where rank 0 waits for the others; of no use in a world of one rank.
    pub master: Master,
    /// The job's key. Without one, only loopback is served.
    pub key: Option<JobKey>,
    /// The job's name, at most 64 bytes: ranks of another job are turned away.
    pub job: String,
    /// The transport asked for; rank 0's is taken by all.
    pub transport: Choice,
    /// How long joining may take, with all its steps; the earliest deadline of all ranks counts.
    pub join_timeout: Duration,
    /// The network interface (or address of one) to serve peers on; else the one that leads to the master.
    pub interface: Option<String>,
    /// Whether the launcher holds the master's port bound for rank 0.
    pub port_reserved: bool,
    /// What has started this process; none if nobody has.
    pub launcher: Option<Launcher>,
    /// How this rank learns where the master is, and the key; see [`introduce`](super::introduce).
    pub introduction: Introduction,
    /// Whether the launcher says that all ranks are on this host.
    pub one_host: bool,
    /// Whether the ranks of one host share memory; rank 0's wish counts.
    pub shared_memory: bool,
    /// What tells this host from others where the system's own word is not enough: ranks whose ids differ share no
    /// memory.
    pub host_id: Option<String>,
    /// Whether the bytes of the tcp transport are encrypted; rank 0's wish counts, and nobody who has it takes less.
    pub encrypt: bool,
    /// Connections between two ranks of the tcp transport, 1 to [`MAX_LANES`]; rank 0's counts.
    pub streams: u8,
    /// What is to be said about the key's file, if others can read it.
    pub(super) exposed_key: Option<String>,
    /// What was learned through the launcher's store.
    pub(super) published: Option<Published>,
}

/// What rank 0 has told the others through the launcher.
#[derive(Clone, Debug)]
pub(super) struct Published {
    /// Where rank 0 listens; of no use to the others.
    pub(super) listen: SocketAddr,
    /// Where it can be reached, the best first.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Master {
    /// Whether it is sure, without asking any name service, that only this host can connect.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.address().map_or(self.host == "localhost", |address| address.is_loopback())
    }

    /// The host as an address, if it is one.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Reads `host:port`; an IPv6 address stands in brackets.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let plain = !host.is_empty() && !host.contains(char::is_whitespace);
        let valid = plain && (bracketed.is_some() || !host.contains(':'));
        let port = port.parse().ok().filter(|&port| port != 0)?;
        valid.then(|| Self { host: host.into(), port })
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl Identity {
    /// An identity with no key, no job name, and defaults for the rest.
    #[must_use]
    pub fn new(rank: Rank, world_size: u32, master: Master) -> Self {
        Self {
            rank,
            world_size,
            master,
            key: None,
            job: String::new(),
            transport: Choice::Auto,
            join_timeout: DEFAULT_JOIN_TIMEOUT,
            interface: None,
            port_reserved: false,
            launcher: None,
            introduction: Introduction::Environment,
            one_host: false,
            exposed_key: None,
            published: None,
            shared_memory: true,
            host_id: None,
            encrypt: false,
            streams: 1,
        }
    }

    /// Reads the environment of this process; see [`from_lookup`](Self::from_lookup).
    ///
    /// Of several launchers, one inside the other, the inner one counts; see [`Launcher::from_env`].
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup).
    pub fn from_env() -> Result<Self> {
        Self::read(Variables { lookup: &|name| std::env::var_os(name) }, Nesting::of_this_process)
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
    /// | `torchrun`, or by hand | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` and the port after `MASTER_PORT` |
    /// | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | PMIx with `--mpi=pmix`, else the first host of the step |
    ///
    /// Nothing set at all is a world of one rank, also under an MPI that was started without a launcher.
    /// `BREVITY_TRANSPORT` (auto, tcp, ucx), `BREVITY_JOIN_TIMEOUT` (seconds, 60), `BREVITY_KEY` or `BREVITY_KEY_FILE`,
    /// `BREVITY_JOB`, `BREVITY_INTERFACE`, `BREVITY_SHARED_MEMORY` and `BREVITY_ENCRYPT` ([`switch`](super::switch)es), `BREVITY_HOST_ID`,
    /// `BREVITY_TCP_STREAMS` (1 to 16) and `BREVITY_MASTER_RESERVED` (set by launchers) say the rest.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or not understood, with what was found and what is
    /// expected; a master that other hosts can reach needs a key. [`Error::System`] when the key file can't be read.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        Self::read(Variables { lookup: &lookup }, Nesting::unknown)
    }

    /// Reads what a rank that is to be started on this host would see, so that a mistake is told before any is started.
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup), and when this host does not have the interface that is named.
    pub(crate) fn check_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<()> {
        super::interface::check(&Self::from_lookup(lookup)?)
    }

    fn read(variables: Variables<'_>, nesting: impl FnOnce() -> Nesting) -> Result<Self> {
        let Place { launcher, rank, world_size, introduction, master, one_host, job } =
            Place::read(variables, nesting)?;
        let mut identity = Self { launcher, introduction, one_host, ..Self::new(rank, world_size, master) };
        (identity.key, identity.exposed_key) = read_key(variables)?;
        identity.transport = variables.read("BREVITY_TRANSPORT", TRANSPORTS, Choice::parse)?.unwrap_or(Choice::Auto);
        let name = variables.read("BREVITY_JOB", "a name of at most 64 bytes", job_name)?;
        identity.job = name.or(job).unwrap_or_default();
        identity.interface = variables.read("BREVITY_INTERFACE", "the name of a network interface", non_empty)?;
        identity.shared_memory = variables.read("BREVITY_SHARED_MEMORY", SWITCH, switch)?.unwrap_or(true);
        identity.host_id = variables.read("BREVITY_HOST_ID", "a name of 1 to 255 bytes", host_id)?;
        identity.encrypt = variables.read(ENCRYPT, SWITCH, switch)?.unwrap_or(false);
        identity.streams = variables.read("BREVITY_TCP_STREAMS", "1 to 16", streams)?.unwrap_or(1);
        identity.port_reserved = variables.read("BREVITY_MASTER_RESERVED", SWITCH, switch)?.unwrap_or(false);
        if let Some(timeout) = variables.read("BREVITY_JOIN_TIMEOUT", "seconds above 0, as 60", seconds)? {
            identity.join_timeout = timeout;
        }
        identity.check_key()?;
        identity.check_encryption()?;
        Ok(identity)
    }

    /// Refuses a master that other hosts could reach when there is no key.
    fn check_key(&self) -> Result<()> {
        let named = self.master.address().is_none() || self.introduction != Introduction::Environment;
        let safe = self.world_size == 1 || self.key.is_some() || self.master.is_loopback() || named;
        if safe { Ok(()) } else { Err(key_needed()) }
    }

    /// Refuses encryption of what can't be encrypted.
    fn check_encryption(&self) -> Result<()> {
        if !self.encrypt || self.transport != Choice::Ucx {
            return Ok(());
        }
        let found = "1 beside BREVITY_TRANSPORT=ucx".into();
        Err(Error::Environment {
            variable: ENCRYPT,
            found,
            expected: "BREVITY_TRANSPORT=tcp or auto: UCX can't encrypt",
        })
    }
}

/// Without a key only loopback is served, and this master is not on it.
pub(super) fn key_needed() -> Error {
    Error::Environment {
        variable: "BREVITY_KEY",
        found: "not set".into(),
        expected: "the same key of at least 16 bytes on all ranks (or BREVITY_KEY_FILE), because other hosts can reach \
                   this master; with all ranks on one host, BREVITY_MASTER=127.0.0.1:PORT needs none",
    }
}

const TRANSPORTS: &str = "auto, tcp or ucx";
pub(super) const MASTER: &str = "host:port where rank 0 waits for the others";

/// The key from the one variable that holds it, and what is to be said about its file.
fn read_key(variables: Variables<'_>) -> Result<(Option<JobKey>, Option<String>)> {
    let key = variables.read("BREVITY_KEY", "at least 16 bytes, as from `openssl rand -hex 32`", JobKey::parse);
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

fn streams(text: &str) -> Option<u8> {
    text.parse().ok().filter(|&count| (1..=MAX_LANES).contains(&usize::from(count)))
}
