//! Who a process is in its job, and how it joins it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::call::resolve;
use super::choice::{Choice, ENCRYPT};
use super::deadline::Deadline;
use super::host::MAX_HOST_ID_BYTES;
use super::id::JobId;
use super::job::{nameless, shortened};
use super::key::JobKey;
use super::launcher::Launcher;
use super::master::{MASTER, Master};
use super::reserve::Ports;
use super::variables::{RANK, WORLD_SIZE, not_set};
use crate::{Error, MAX_WORLD_SIZE, Rank, Result};

pub(super) const ANNOUNCE: &str = "BREVITY_ANNOUNCE";

/// The longest name of a job that is sent.
pub(super) const MAX_JOB_BYTES: usize = 64;

const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Who this process is in its job, and how it joins it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// This rank.
    pub rank: Rank,
    /// Ranks in the world.
    pub world_size: u32,
    /// Where rank 0 listens; unused in a world of one rank.
    pub master: Master,
    /// The job's key. Without one, only loopback is served.
    pub key: Option<JobKey>,
    /// The job's name, at most 64 bytes: ranks of another job are turned away.
    pub job: String,
    /// The transport asked for; only rank 0's counts.
    pub transport: Choice,
    /// How long joining may take, with all its steps; the earliest deadline of all ranks counts.
    pub join_timeout: Duration,
    /// The network interface (its name or address) to listen on; by default the one that leads to the master.
    pub interface: Option<String>,
    /// The ports to listen on, except the master's; the system's choice by default.
    pub ports: Ports,
    /// The forwarded address that peers connect to instead of this rank's own. Port 0 means the port that
    /// this rank listens on.
    pub announce: Option<Master>,
    /// Whether the launcher keeps the master's port bound for rank 0.
    pub port_reserved: bool,
    /// The launcher of this process, if any.
    pub launcher: Option<Launcher>,
    /// How this rank learns the master and the key; see [`introduce`](super::introduce).
    pub introduction: Introduction,
    /// Whether the launcher says that all ranks are on this host.
    pub one_host: bool,
    /// Whether the ranks of one host share memory; only rank 0's counts.
    pub shared_memory: bool,
    /// A name of this host, where the system's own names do not tell hosts apart: ranks with different ids
    /// share no memory.
    pub host_id: Option<String>,
    /// Whether the tcp transport is encrypted; rank 0's counts, and a rank that asks for it refuses to join
    /// without it.
    pub encrypt: bool,
    /// What the other ranks get from rank 0 when all have joined ([`Opened::greeting`](super::Opened)), at
    /// most [`MAX_BLOB_BYTES`](super::MAX_BLOB_BYTES).
    pub greeting: Vec<u8>,
    /// How often this rank was started again; one that was comes back to a job that goes on.
    pub incarnation: u32,
    /// Where lost ranks come back, on the host of the lowest rank that is left; the master's address by
    /// default.
    pub place_of_return: Option<Master>,
    /// The number of ranks on this host, if the launcher says it.
    pub(super) local_ranks: Option<u32>,
    /// Further ports of the master: rank 0 takes the first that is free, and the others call all of them.
    /// The same on all ranks; empty where there is one agreed port.
    pub(super) other_ports: Vec<u16>,
    /// The warning of a key file that others can read.
    pub(super) exposed_key: Option<String>,
    /// What was learned through the launcher's store.
    pub(super) published: Option<Published>,
}

/// What rank 0 has published through the launcher.
#[derive(Clone, Debug)]
pub(super) struct Published {
    /// Where rank 0 listens; the other ranks do not use it.
    pub(super) listen: SocketAddr,
    /// Where it can be reached, the best first.
    pub(super) addresses: Vec<SocketAddr>,
}

/// How a rank learns the master and the job's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Introduction {
    /// From the environment, or from the caller.
    Environment,
    /// From rank 0's identifier, which the caller has carried here.
    Id(JobId),
    /// From rank 0, through the launcher's PMIx server.
    Pmix,
    /// From rank 0, through PMI-1 on this descriptor.
    Pmi {
        /// The descriptor's number.
        descriptor: i32,
    },
}

impl Identity {
    /// The longest name of a job.
    pub const MAX_JOB_BYTES: usize = MAX_JOB_BYTES;

    /// The longest name of a host.
    pub const MAX_HOST_ID_BYTES: usize = MAX_HOST_ID_BYTES;

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
            ports: Ports::default(),
            announce: None,
            port_reserved: false,
            launcher: None,
            introduction: Introduction::Environment,
            one_host: false,
            local_ranks: None,
            other_ports: Vec::new(),
            exposed_key: None,
            published: None,
            shared_memory: true,
            host_id: None,
            encrypt: false,
            greeting: Vec::new(),
            incarnation: 0,
            place_of_return: None,
        }
    }

    /// Takes the key from a file; of a file that others can read, one rank of each host warns.
    ///
    /// # Errors
    /// [`Error::System`] when the file can't be read; [`Error::Environment`] when its key is too short.
    pub fn read_key(&mut self, file: &Path) -> Result<()> {
        let (key, exposed) = JobKey::from_file("BREVITY_KEY_FILE", file.as_os_str())?;
        (self.key, self.exposed_key) = (Some(key), exposed);
        Ok(())
    }

    /// Meets at this address instead of where the launcher says.
    pub fn meet_at(&mut self, master: Master) {
        self.set_introduction(Introduction::Environment);
        self.master = master;
    }

    /// Meets where rank 0's identifier says, instead of where the launcher does.
    pub fn meet_by(&mut self, id: JobId) {
        self.set_introduction(Introduction::Id(id));
    }

    /// Forgets what the launcher has said about the place to meet.
    fn set_introduction(&mut self, introduction: Introduction) {
        (self.one_host, self.port_reserved, self.other_ports) = (false, false, Vec::new());
        self.introduction = introduction;
    }

    /// Checks an identity that was not read from the environment. `learns_place` says that the place to meet
    /// will come from rank 0, with a key.
    ///
    /// # Errors
    /// [`Error::Environment`] names the setting that is missing or does not fit the others, by its variable.
    pub fn validate(&self, learns_place: bool) -> Result<()> {
        let &Self { rank: Rank(rank), world_size, .. } = self;
        let refuse = |variable, found: u32, expected| {
            Err(Error::Environment { variable, found: found.to_string(), expected })
        };
        if !(1..=MAX_WORLD_SIZE).contains(&world_size) {
            return refuse("BREVITY_WORLD_SIZE", world_size, WORLD_SIZE);
        }
        if rank >= world_size {
            return refuse("BREVITY_RANK", rank, RANK);
        }
        let is_given = world_size > 1 && !learns_place && self.introduction == Introduction::Environment;
        if is_given && self.master.port == 0 {
            return Err(not_set("BREVITY_MASTER", MASTER));
        }
        self.check(learns_place)?;
        if is_given && self.key.is_none() && self.job.is_empty() { Err(nameless()) } else { Ok(()) }
    }

    /// The same without what was learned of the place to meet: for a new world of ranks of this job.
    pub(super) fn elsewhere(&self) -> Self {
        // A name may mean loopback on this host alone.
        let is_loopback = self.master.address().is_some_and(|address| address.is_loopback());
        let one_host = self.one_host || (self.master.port != 0 && is_loopback);
        Self {
            one_host,
            local_ranks: None,
            other_ports: Vec::new(),
            published: None,
            port_reserved: false,
            greeting: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether all ranks are known to be on this host.
    pub(super) fn are_all_here(&self) -> bool {
        self.one_host || self.local_ranks == Some(self.world_size)
    }

    /// Where peers reach this rank, which listens on `own`.
    pub(super) fn reached_at(&self, own: SocketAddr, deadline: &Deadline) -> Result<Vec<SocketAddr>> {
        let Some(announced) = &self.announce else { return Ok(vec![own]) };
        let port = if announced.port == 0 { own.port() } else { announced.port };
        resolve(&Master { host: announced.host.clone(), port }, deadline)
    }

    /// Where rank 0 may listen, in the order in which it tries them.
    pub(super) fn masters(&self) -> impl Iterator<Item = Master> {
        let ports = std::iter::once(self.master.port).chain(self.other_ports.iter().copied());
        ports.map(|port| Master { port, host: self.master.host.clone() })
    }

    /// The job's name as ranks compare it; it includes the first of several ports.
    pub(super) fn job_and_port(&self) -> String {
        if self.other_ports.is_empty() {
            return self.job.clone();
        }
        shortened(format!("{} from port {}", self.job, self.master.port))
    }

    /// Refuses addresses for other hosts without a key, and encryption or announcements that the transport
    /// does not support. `learns_key` says that the key will come from rank 0.
    pub(super) fn check(&self, learns_key: bool) -> Result<()> {
        let refuse = |variable, found: &str, expected| {
            Err(Error::Environment { variable, found: found.into(), expected })
        };
        let learns_key = learns_key || self.introduction != Introduction::Environment;
        let lacks_key = self.world_size > 1 && self.key.is_none() && !learns_key;
        if lacks_key && self.master.address().is_some_and(|address| !address.is_loopback()) {
            return Err(key_needed());
        }
        let is_announced = self.announce.is_some() && self.world_size > 1;
        if is_announced && self.transport == Choice::Ucx {
            let expected = "BREVITY_TRANSPORT=tcp or auto: UCX tells its own addresses";
            return refuse(ANNOUNCE, "set beside BREVITY_TRANSPORT=ucx", expected);
        }
        if is_announced && lacks_key {
            return Err(not_set(
                "BREVITY_KEY",
                "the same key on all ranks (or BREVITY_KEY_FILE), because BREVITY_ANNOUNCE is for other \
                 hosts",
            ));
        }
        if self.encrypt && !cfg!(feature = "encryption") {
            let expected =
                "0, or a program that is built with the feature `encryption`: this one is built without";
            return refuse(ENCRYPT, "1", expected);
        }
        if self.encrypt && self.transport == Choice::Ucx {
            let expected = "BREVITY_TRANSPORT=tcp or auto: UCX can't encrypt";
            return refuse(ENCRYPT, "1 beside BREVITY_TRANSPORT=ucx", expected);
        }
        Ok(())
    }
}

/// The error for a master that other hosts can reach, without a key.
pub(super) fn key_needed() -> Error {
    not_set(
        "BREVITY_KEY",
        "the same key of at least 16 bytes on all ranks (or BREVITY_KEY_FILE), because other hosts can \
            reach this \
         master; with all ranks on one host, BREVITY_MASTER=127.0.0.1:PORT and BREVITY_JOB=NAME do",
    )
}
