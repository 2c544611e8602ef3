//! Joining a job: its settings, from the caller or the environment, and the one way from them to a group.

mod awaited;
mod gather;
mod naming;

use std::borrow::Cow;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};

use ucx_sys_wrap::bootstrap::{self, Choice, Comeback, Identity, JobId, JobKey, Master, Ports, open};
use ucx_sys_wrap::{Error as Transport, Rank};

pub use awaited::Joining;
use naming::{METHODS, Names, in_words_of_the_caller, name_of};

use crate::error::{Error, Result};
use crate::group::{Group, Settings};
use crate::grow::Origin;
use crate::plan::{SEGMENTS, Terms};

const MASTER: &str = "host:port where rank 0 waits for the others, with an IPv6 address in brackets";
const KEY: &str = "at least 16 bytes, as from `openssl rand -hex 32`";
const PORTS: &str = "two ports above 0, the first of them the lower one";
const ANNOUNCED: &str = "host, host:port or an address where peers reach this rank";
const RETURN: &str = "host:port where lost ranks come back, with an IPv6 address in brackets";
const NAME: &str = "at most 64 bytes";
const HOST_ID: &str = "1 to 255 bytes";
const TIMEOUT: &str = "more than 0";
const SEGMENT: &str = "bytes, from 64 to 2^30";
const MACHINE: &str = "times from 0 on";
const PLACE: &str = "only one of the two";

/// How a rank joins a job: with settings of the program's own, from an environment or without one.
///
/// The ranks meet at the [`address`](Self::address) of rank 0, where it listens; by an [`id`](Self::id) that
/// rank 0 makes and the program's own store carries; or through an all-gather of the program's own
/// ([`join_with`](Self::join_with)). Every setting has the default that the environment has. A setting that
/// is wrong is told by [`join`](Self::join).
///
/// [`join`](Self::join) reads no variable of this library, except `BREVITY_UCX_LIB`, the file of the UCX
/// library, where the transport is not "tcp". UCX reads its own (`UCX_TLS` and others).
///
/// A process can be in several jobs at once, and be several ranks of one job, each in its own thread.
///
/// ```
/// use brevity_collectives::{Join, ReduceOp};
/// use ucx_sys_wrap::bootstrap::JobId;
///
/// let id = JobId::new()?; // on rank 0
/// let bytes = id.to_bytes(); // to the other ranks: by a pipe, a file, a database
/// std::thread::scope(|threads| {
///     for rank in 0..2 {
///         threads.spawn(move || {
///             let id = JobId::from_bytes(&bytes).map_err(brevity_collectives::Error::Transport)?;
///             let group = Join::new(rank, 2).id(id).join()?;
///             let mut sum = [rank];
///             group.all_reduce(&mut sum, ReduceOp::Sum)?;
///             assert_eq!(sum, [1]);
///             brevity_collectives::Result::Ok(())
///         });
///     }
/// });
/// # Ok::<(), ucx_sys_wrap::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Join {
    identity: Identity,
    settings: Settings,
    is_from_env: bool,
    /// What messages call settings that have variables.
    names: Cow<'static, Names>,
    /// The setting that names the place to meet, beside the environment.
    place: Option<&'static str>,
    /// The first setting that was wrong.
    fault: Option<Transport>,
}

impl Join {
    /// Joins as this rank of a world of so many.
    pub fn new(rank: u32, world_size: u32) -> Self {
        let nowhere = Master { host: String::new(), port: 0 };
        let identity = Identity::new(Rank(rank), world_size, nowhere);
        Self::of(identity, Settings::default(), false)
    }

    /// Joins as the environment says; what is set here takes precedence. See
    /// [`Group::from_env`](Group::from_env).
    ///
    /// # Errors
    /// When a variable is missing or invalid.
    pub fn from_env() -> Result<Self> {
        let settings = Settings::from_env()?;
        Ok(Self::of(Identity::from_env().map_err(Error::Transport)?, settings, true))
    }

    fn of(identity: Identity, settings: Settings, is_from_env: bool) -> Self {
        let names: &'static Names = if is_from_env { &[] } else { METHODS };
        let names = Cow::Borrowed(names);
        Self { identity, settings, is_from_env, names, place: None, fault: None }
    }

    /// As a member of a world that ranks come back to.
    pub(crate) fn invited(identity: Identity, settings: Settings) -> Self {
        Self::of(identity, settings, true)
    }

    /// The number of ranks in the job.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.identity.world_size
    }

    /// Where rank 0 listens and the others call it: `host:port`, with an IPv6 address in brackets. The same
    /// on all ranks, but for the host's name, which may differ. Rank 0 must have that address, or a name and
    /// a [`key`](Self::key); `docs/launchers.md` says where it listens then.
    pub fn address(mut self, address: &str) -> Self {
        self.choose_place("BREVITY_MASTER");
        match Master::parse(address) {
            Some(master) => self.identity.meet_at(master),
            None => self.refuse("BREVITY_MASTER", format!("{address:?}"), MASTER),
        }
        self
    }

    /// Meets by the identifier that rank 0 has made. Rank 0 joins in the process that has made it.
    pub fn id(mut self, id: JobId) -> Self {
        self.choose_place("id");
        self.identity.meet_by(id);
        self
    }

    /// The job's key: hexadecimal digits of at least 16 bytes, or any other text of at least 16 bytes. The
    /// same on all ranks; ranks prove that they have it, and never send it. Where ranks meet by an identifier
    /// or an all-gather, rank 0 makes a key, unless all ranks have one.
    pub fn key(mut self, key: &str) -> Self {
        match JobKey::parse(key) {
            Some(key) => self.identity.key = Some(key),
            // The error must not show the key.
            None => self.refuse("BREVITY_KEY", "too short".into(), KEY),
        }
        self
    }

    /// Reads the job's [`key`](Self::key) from a file.
    pub fn key_file(mut self, file: impl AsRef<Path>) -> Self {
        if let Err(error) = self.identity.read_key(file.as_ref()) {
            self.fault.get_or_insert(error);
        }
        self
    }

    /// The job's name, the same on all ranks: ranks of other jobs are turned away. A job on one host needs no
    /// key if it has a name that no other job has.
    pub fn job(mut self, name: &str) -> Self {
        if name.len() > Identity::MAX_JOB_BYTES {
            self.refuse("BREVITY_JOB", format!("a name of {} bytes", name.len()), NAME);
        }
        self.identity.job = name.into();
        self
    }

    /// How long joining may take, with all its steps; 60 seconds by default. The earliest deadline of all
    /// ranks counts. The timeout of calls is one of the [`settings`](Self::settings).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if timeout.is_zero() {
            self.refuse("BREVITY_JOIN_TIMEOUT", "0 s".into(), TIMEOUT);
        }
        self.identity.join_timeout = timeout;
        self
    }

    /// The transport; only rank 0's counts.
    pub fn transport(mut self, transport: Choice) -> Self {
        self.identity.transport = transport;
        self
    }

    /// Whether the ranks of one host share memory; only rank 0's counts. They do by default.
    pub fn shared_memory(mut self, is_shared: bool) -> Self {
        self.identity.shared_memory = is_shared;
        self
    }

    /// Whether the tcp transport is encrypted, which it is not by default. Rank 0's counts, and a rank that
    /// asks for it refuses to join without it.
    pub fn encrypt(mut self, encrypts: bool) -> Self {
        self.identity.encrypt = encrypts;
        self
    }

    /// The network interface to listen on, by its name or its address; by default the one that leads to rank
    /// 0, and for rank 0's identifier all.
    pub fn interface(mut self, interface: &str) -> Self {
        self.identity.interface = Some(interface.into());
        self
    }

    /// The ports to listen on, both included; the system's choice by default. Rank 0's [`address`] is not
    /// bound to it.
    ///
    /// [`address`]: Self::address
    pub fn port_range(mut self, first: u16, last: u16) -> Self {
        match Ports::new(first, last) {
            Some(ports) => self.identity.ports = ports,
            None => self.refuse("BREVITY_PORT_RANGE", format!("{first}-{last}"), PORTS),
        }
        self
    }

    /// The forwarded address that the other ranks connect to instead of this rank's own: `host` or
    /// `host:port`.
    pub fn announce(mut self, address: &str) -> Self {
        self.identity.announce = Master::parse_announced(address);
        if self.identity.announce.is_none() {
            self.refuse("BREVITY_ANNOUNCE", format!("{address:?}"), ANNOUNCED);
        }
        self
    }

    /// A name of this host, where the system's own names do not tell hosts apart: ranks with different ids
    /// share no memory.
    pub fn host_id(mut self, name: &str) -> Self {
        if !(1..=Identity::MAX_HOST_ID_BYTES).contains(&name.len()) {
            self.refuse("BREVITY_HOST_ID", format!("a name of {} bytes", name.len()), HOST_ID);
        }
        self.identity.host_id = Some(name.into());
        self
    }

    /// Whether the program keeps the port of rank 0's [`address`](Self::address) bound with `SO_REUSEPORT`,
    /// so that no other program gets it before rank 0 listens.
    pub fn port_reserved(mut self, is_reserved: bool) -> Self {
        self.identity.port_reserved = is_reserved;
        self
    }

    /// What errors call settings, in pairs of a variable of the environment and a name, as `("BREVITY_KEY",
    /// "--key")`. By default they are named as the methods here, or as variables where the environment is
    /// read. A variable that is not listed is named as such.
    pub fn names(mut self, names: &[(&'static str, &'static str)]) -> Self {
        self.names = names.to_vec().into();
        self
    }

    /// How often this rank was started again. A rank with a number above 0 comes back to a job that goes on,
    /// whose ranks that are left call [`grow`](Group::grow). Rank, world size, key and job are those with
    /// which the job began. The group may be closed already, if another rank is lost meanwhile:
    /// [shrink](Group::shrink) it then, as the others do.
    ///
    /// If the rank was lost while all joined at an [`address`](Self::address), so that the job has not begun,
    /// or if all ranks were started again, it joins as if this number was 0. The [`incarnation`] of the next
    /// process is higher nevertheless.
    ///
    /// [`incarnation`]: Self::incarnation
    pub fn incarnation(mut self, number: u32) -> Self {
        self.identity.incarnation = number;
        self
    }

    /// Where lost ranks come back: `host:port` on the host of the lowest rank that is left, which listens
    /// there in [`grow`](Group::grow), and which they call. By default the [`address`](Self::address) where
    /// the job began.
    pub fn place_of_return(mut self, address: &str) -> Self {
        self.identity.place_of_return = Master::parse(address);
        if self.identity.place_of_return.is_none() {
            self.refuse("BREVITY_RETURN", format!("{address:?}"), RETURN);
        }
        self
    }

    /// The settings of the group.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Makes the identifier of a new job, with this process as rank 0: with its interface, ports and
    /// announced address, and with a key of its own, unless one is set here. Only a join in this process can
    /// be rank 0 of the job.
    ///
    /// # Errors
    /// For wrong settings; when the system has no port or no random bytes.
    pub fn make_id(&self) -> Result<JobId> {
        self.fault.clone().map_or(Ok(()), Err).and_then(|()| JobId::of(&self.identity)).map_err(self.told())
    }

    /// Joins the job; blocks until all ranks have joined, at most for the [`timeout`](Self::timeout) and a
    /// second or two. Costs a connection and about twenty small messages between rank 0 and each other rank,
    /// and a connection for every two ranks.
    ///
    /// # Errors
    /// [`Error::Transport`]: when a setting is wrong, by its name; when ranks do not join in time, by their
    /// numbers; when they disagree about the world's size; when the system has no thread or descriptor left.
    /// A failed join may be tried again by all ranks, with the same identifier.
    pub fn join(self) -> Result<Group> {
        self.validate(false).map_err(self.told())?;
        let comes_back = self.identity.incarnation > 0 && self.identity.world_size > 1;
        if comes_back { self.come_back() } else { self.enter(None) }
    }

    /// Joins the world; how its job began is given if it is not the first one.
    pub(crate) fn enter(&self, origin: Option<Origin>) -> Result<Group> {
        let own = Terms::of(&self.settings);
        let mut identity = self.identity.clone();
        identity.greeting = own.encode();
        let opened = open(&identity).map_err(self.told())?;
        let mut settings = self.settings;
        if !opened.greeting.is_empty() {
            let what = || Transport::Protocol { rank: Rank(0), what: "invalid settings".into() };
            let first = Terms::decode(&opened.greeting).ok_or_else(what).map_err(Error::Transport)?;
            if let Some(differences) = own.differences(&first) {
                tracing::warn!(
                    "the settings of rank 0 count: rank {} was given {differences}",
                    identity.rank
                );
            }
            first.put_into(&mut settings);
        }
        let is_measured = settings.machine.is_none() && identity.world_size > 1;
        let group = Group::try_opened(opened, origin, settings)?;
        let machine =
            if is_measured { Some(group.measure_machine(identity.join_timeout)?) } else { settings.machine };
        Ok(group.planned(machine))
    }

    /// Comes back to a job that goes on, until its ranks have confirmed it or the time is over; or joins one
    /// that has not begun.
    fn come_back(self) -> Result<Group> {
        let (start, whole) = (Instant::now(), self.identity.join_timeout);
        loop {
            let mut identity = self.identity.clone();
            identity.join_timeout = whole.saturating_sub(start.elapsed());
            let called = bootstrap::come_back(&identity).map_err(|error| match error {
                Transport::NotTakenBack { rank, place, .. } => {
                    Transport::NotTakenBack { rank, place, deadline: whole }
                }
                error => error,
            });
            let Comeback::Invited(invited) = called.map_err(self.told())? else {
                let mut first = self.clone();
                first.identity.join_timeout = whole.saturating_sub(start.elapsed());
                return first.enter(None);
            };
            let (mut identity, invitation) = *invited;
            identity.join_timeout = whole;
            let entered = Origin::invited(&identity, &invitation)
                .and_then(|(identity, origin)| Self { identity, ..self.clone() }.enter(Some(origin)));
            invitation.forget();
            let confirmed = entered.and_then(|group| {
                let returned = group.returned();
                let left: Vec<u32> =
                    (0..group.world_size()).filter(|rank| !returned.contains(rank)).collect();
                group.confirm_return(&left, whole)
            });
            match confirmed {
                Err(error) if start.elapsed() < whole => {
                    tracing::warn!(%error, "coming back has failed: trying again");
                }
                confirmed => return confirmed,
            }
        }
    }

    /// Joins a job through an all-gather of the program's own: it is called once, with 128 bytes of every
    /// rank, and returns those of all ranks in the order of ranks. They contain the job's key, unless one is
    /// set. In a world of one rank it is not called.
    ///
    /// A rank whose settings are wrong takes part, so that the others learn of it and do not wait. The
    /// timeout of joining begins after the all-gather, which needs one of its own.
    ///
    /// # Errors
    /// As [`join`](Self::join); [`ucx_sys_wrap::Error::Gather`] when the all-gather fails or returns
    /// something else.
    pub fn join_with<E: Display>(
        self,
        all_gather: impl FnOnce(&[u8]) -> std::result::Result<Vec<Vec<u8>>, E>,
    ) -> Result<Group> {
        gather::join(self, all_gather)
    }

    /// Joins on a thread of its own, and wakes the task that awaits it: in any runtime, or without one.
    ///
    /// The thread ends with the join, at the latest by its deadline. If the future is dropped before, joining
    /// is given up, and the group, if there is one by then, is left again.
    pub fn join_async(self) -> Joining {
        Joining::start(self)
    }

    /// `learns_place` says that the place to meet will come from rank 0.
    fn validate(&self, learns_place: bool) -> ucx_sys_wrap::Result<()> {
        self.fault.clone().map_or(Ok(()), Err)?;
        let Settings { segment_bytes, machine, .. } = self.settings;
        if !SEGMENTS.contains(&segment_bytes) {
            let found = segment_bytes.to_string();
            return Err(Transport::Environment { variable: "BREVITY_SEGMENT", found, expected: SEGMENT });
        }
        if let Some(machine) = machine.filter(|machine| !machine.is_valid()) {
            let found = machine.to_string();
            return Err(Transport::Environment { variable: "BREVITY_MACHINE", found, expected: MACHINE });
        }
        // What the environment says was checked when it was read, and has a rule of its own for the job's
        // name.
        let is_checked = self.is_from_env && self.place.is_none();
        if is_checked { Ok(()) } else { self.identity.validate(learns_place) }
    }

    fn choose_place(&mut self, place: &'static str) {
        if let Some(other) = self.place.replace(place)
            && other != place
        {
            self.refuse(place, format!("set beside {}", name_of(other, METHODS)), PLACE);
        }
    }

    fn refuse(&mut self, variable: &'static str, found: String, expected: &'static str) {
        self.fault.get_or_insert(Transport::Environment { variable, found, expected });
    }

    /// Names settings in an error as the caller knows them.
    fn told(&self) -> impl Fn(Transport) -> Error {
        |error| Error::Transport(in_words_of_the_caller(error, &self.names))
    }
}
