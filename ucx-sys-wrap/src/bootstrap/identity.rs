//! Who a process is in its job, and how it joins it.

use std::net::SocketAddr;
use std::time::Duration;

use super::call::resolve;
use super::choice::{Choice, ENCRYPT};
use super::deadline::Deadline;
use super::job::shortened;
use super::key::JobKey;
use super::launcher::Launcher;
use super::master::Master;
use super::reserve::Ports;
use crate::{Error, Rank, Result};

pub(super) const ANNOUNCE: &str = "BREVITY_ANNOUNCE";

/// The longest job name, in bytes.
pub(super) const MAX_JOB_BYTES: usize = 64;

const DEFAULT_JOIN_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// The ports to listen on, but for the master's; the system's choice unless set.
    pub ports: Ports,
    /// Where peers are told to connect to, instead of to this rank's own address: a forwarded one. Port 0
    /// means the port that this rank listens on.
    pub announce: Option<Master>,
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
    /// What tells this host from others where the system's own word is not enough: ranks whose ids differ
    /// share no memory.
    pub host_id: Option<String>,
    /// Whether the bytes of the tcp transport are encrypted; rank 0's wish counts, and nobody who has it
    /// takes less.
    pub encrypt: bool,
    /// How many ranks the launcher says are on this host.
    pub(super) local_ranks: Option<u32>,
    /// Ports of the master beside [`master`](Self::master)'s: rank 0 takes the first that is free, and the
    /// others look for it on all of them. The same on all ranks; empty where the port is agreed upon.
    pub(super) other_ports: Vec<u16>,
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

/// How a rank learns where rank 0 waits and which key the job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Introduction {
    /// The environment says where; the key is the user's.
    Environment,
    /// Rank 0 tells the others through the launcher's PMIx server.
    Pmix,
    /// Rank 0 tells the others through PMI-1, spoken on this descriptor.
    Pmi {
        /// The descriptor's number.
        descriptor: i32,
    },
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

    /// Where rank 0 may wait, in the order in which it tries them.
    pub(super) fn masters(&self) -> impl Iterator<Item = Master> {
        let ports = std::iter::once(self.master.port).chain(self.other_ports.iter().copied());
        ports.map(|port| Master { port, host: self.master.host.clone() })
    }

    /// The job's name as ranks compare it: a job that tries its ports in another order is another job.
    pub(super) fn job_and_port(&self) -> String {
        if self.other_ports.is_empty() {
            return self.job.clone();
        }
        shortened(format!("{} from port {}", self.job, self.master.port))
    }

    /// Refuses what can't be: addresses for other hosts without a key, encryption or announcements that the
    /// transport can't have.
    pub(super) fn check(&self) -> Result<()> {
        self.check_key()?;
        self.check_announcement()?;
        self.check_encryption()
    }

    /// Refuses a master that other hosts could reach when there is no key.
    fn check_key(&self) -> Result<()> {
        let named = self.master.address().is_none() || self.introduction != Introduction::Environment;
        let safe = self.world_size == 1 || self.key.is_some() || self.master.is_loopback() || named;
        if safe { Ok(()) } else { Err(key_needed()) }
    }

    /// Refuses to announce what can't be served.
    fn check_announcement(&self) -> Result<()> {
        if self.announce.is_none() || self.world_size == 1 {
            return Ok(());
        }
        if self.transport == Choice::Ucx {
            let found = "set beside BREVITY_TRANSPORT=ucx".into();
            let expected = "BREVITY_TRANSPORT=tcp or auto: UCX tells its own addresses";
            return Err(Error::Environment { variable: ANNOUNCE, found, expected });
        }
        if self.key.is_none() && self.introduction == Introduction::Environment {
            let expected = "the same key on all ranks (or BREVITY_KEY_FILE), because BREVITY_ANNOUNCE is for other hosts";
            return Err(Error::Environment { variable: "BREVITY_KEY", found: "not set".into(), expected });
        }
        Ok(())
    }

    /// Refuses encryption of what can't be encrypted.
    fn check_encryption(&self) -> Result<()> {
        if self.encrypt && !cfg!(feature = "encryption") {
            let expected =
                "0, or a program that is built with the feature `encryption`: this one is built without";
            return Err(Error::Environment { variable: ENCRYPT, found: "1".into(), expected });
        }
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
                   this master; with all ranks on one host, BREVITY_MASTER=127.0.0.1:PORT and BREVITY_JOB=NAME do",
    }
}
