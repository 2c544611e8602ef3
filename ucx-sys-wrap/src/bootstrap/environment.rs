//! Who this process is, read from the environment.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::choice::Choice;
use super::key::JobKey;
use crate::{Error, MAX_WORLD_SIZE, Rank, Result};

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
    /// How long this rank waits for the others to join, and for each exchange.
    pub join_timeout: Duration,
    /// The network interface (or address of one) to serve peers on; else the one that leads to the master.
    pub interface: Option<String>,
    /// Whether the launcher holds the master's port bound for rank 0.
    pub port_reserved: bool,
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
    fn parse(text: &str) -> Option<Self> {
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
        }
    }

    /// Reads the environment of this process; see [`from_lookup`](Self::from_lookup).
    ///
    /// # Errors
    /// As [`from_lookup`](Self::from_lookup).
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// Reads who this process is from the variables that `lookup` knows.
    ///
    /// - `BREVITY_RANK`, `BREVITY_WORLD_SIZE` and `BREVITY_MASTER=host:port` come first;
    /// - else torchrun's `RANK`, `WORLD_SIZE` and `MASTER_ADDR`, with `BREVITY_MASTER`, or the port after `MASTER_PORT`
    ///   (torchrun's own store listens on that one);
    /// - nothing set at all is a world of one rank.
    ///
    /// `BREVITY_TRANSPORT` (auto, tcp, ucx), `BREVITY_JOIN_TIMEOUT` (seconds, 60), `BREVITY_KEY` or `BREVITY_KEY_FILE`,
    /// `BREVITY_JOB`, `BREVITY_INTERFACE` and `BREVITY_MASTER_RESERVED` (set by launchers) say the rest.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or not understood, with what was found and what is
    /// expected; a master that other hosts can reach needs a key. [`Error::System`] when the key file can't be read.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let variables = Variables { lookup: &lookup };
        let (rank, world_size, master) = variables.place()?;
        let mut identity = Self::new(rank, world_size, master);
        identity.key = variables.key()?;
        identity.transport = variables.read("BREVITY_TRANSPORT", TRANSPORTS, Choice::parse)?.unwrap_or(Choice::Auto);
        identity.job = variables.read("BREVITY_JOB", "a name of at most 64 bytes", job_name)?.unwrap_or_default();
        identity.interface = variables.read("BREVITY_INTERFACE", "the name of a network interface", non_empty)?;
        identity.port_reserved = variables.read("BREVITY_MASTER_RESERVED", "0 or 1", flag)?.unwrap_or(false);
        if let Some(timeout) = variables.read("BREVITY_JOIN_TIMEOUT", "seconds above 0, as 60", seconds)? {
            identity.join_timeout = timeout;
        }
        identity.check_key()?;
        Ok(identity)
    }

    /// Refuses a master that other hosts could reach when there is no key.
    fn check_key(&self) -> Result<()> {
        let named = self.master.address().is_none();
        let safe = self.world_size == 1 || self.key.is_some() || self.master.is_loopback() || named;
        if safe { Ok(()) } else { Err(key_needed()) }
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
const RANK: &str = "this process's number, from 0 to the world size minus one";
const WORLD_SIZE: &str = "the number of ranks, from 1 to 1048576";
const MASTER: &str = "host:port where rank 0 waits for the others";
const NEXT_PORT: &str = "torchrun's port, from 1 to 65534 (the next one is used), or BREVITY_MASTER=host:port";

/// The variables, read one by one.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Variables<'_> {
    /// Rank, world size and master by the first rule that applies.
    fn place(&self) -> Result<(Rank, u32, Master)> {
        if self.any(&["BREVITY_RANK", "BREVITY_WORLD_SIZE"]) {
            let (rank, world_size) = self.rank_of("BREVITY_RANK", "BREVITY_WORLD_SIZE")?;
            return Ok((rank, world_size, self.own_master(world_size)?));
        }
        if self.any(&["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]) {
            let (rank, world_size) = self.rank_of("RANK", "WORLD_SIZE")?;
            return Ok((rank, world_size, self.torchrun_master(world_size)?));
        }
        if self.any(&["BREVITY_MASTER"]) {
            return Err(not_set("BREVITY_RANK", RANK));
        }
        Ok((Rank(0), 1, no_master()))
    }

    fn rank_of(&self, rank_name: &'static str, world_size_name: &'static str) -> Result<(Rank, u32)> {
        let world_size = self.required(world_size_name, WORLD_SIZE, world_size)?;
        let below = |text: &str| text.parse().ok().filter(|&rank| rank < world_size).map(Rank);
        Ok((self.required(rank_name, RANK, below)?, world_size))
    }

    fn own_master(&self, world_size: u32) -> Result<Master> {
        match self.read("BREVITY_MASTER", MASTER, Master::parse)? {
            Some(master) => Ok(master),
            None if world_size == 1 => Ok(no_master()),
            None => Err(not_set("BREVITY_MASTER", MASTER)),
        }
    }

    fn torchrun_master(&self, world_size: u32) -> Result<Master> {
        if world_size == 1 || self.any(&["BREVITY_MASTER"]) {
            return self.own_master(world_size);
        }
        let host = self.required("MASTER_ADDR", "the host of rank 0, or BREVITY_MASTER=host:port", non_empty)?;
        let next = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0)?.checked_add(1);
        Ok(Master { host, port: self.required("MASTER_PORT", NEXT_PORT, next)? })
    }

    fn key(&self) -> Result<Option<JobKey>> {
        let key = self.read("BREVITY_KEY", "at least 16 bytes, as from `openssl rand -hex 32`", JobKey::parse);
        // A key that is refused must not be shown.
        let key = key.map_err(|error| match error {
            Error::Environment { variable, expected, .. } => {
                Error::Environment { variable, found: "too short".into(), expected }
            }
            other => other,
        })?;
        match (self.lookup)("BREVITY_KEY_FILE") {
            None => Ok(key),
            Some(path) if key.is_none() => JobKey::from_file("BREVITY_KEY_FILE", &path).map(Some),
            Some(path) => Err(Error::Environment {
                variable: "BREVITY_KEY_FILE",
                found: format!("{path:?} beside BREVITY_KEY"),
                expected: "only one of the two",
            }),
        }
    }

    fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| (self.lookup)(name).is_some())
    }

    /// The variable's value, `None` when it is not set.
    fn read<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = (self.lookup)(variable) else { return Ok(None) };
        match value.to_str().and_then(parse) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(Error::Environment { variable, found: format!("{value:?}"), expected }),
        }
    }

    fn required<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        self.read(variable, expected, parse)?.ok_or_else(|| not_set(variable, expected))
    }
}

fn not_set(variable: &'static str, expected: &'static str) -> Error {
    Error::Environment { variable, found: "not set".into(), expected }
}

fn no_master() -> Master {
    Master { host: "127.0.0.1".into(), port: 0 }
}

fn world_size(text: &str) -> Option<u32> {
    text.parse().ok().filter(|size| (1..=MAX_WORLD_SIZE).contains(size))
}

fn seconds(text: &str) -> Option<Duration> {
    let timeout = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (!timeout.is_zero()).then_some(timeout)
}

fn job_name(text: &str) -> Option<String> {
    (text.len() <= MAX_JOB_BYTES).then(|| text.to_owned())
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
