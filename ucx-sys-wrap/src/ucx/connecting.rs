//! Making the transport together with all other ranks.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::endpoint_info::EndpointInfo;
use super::engine::Engine;
use super::failure_flag::{OwnFailureFlag, PeerFailureFlag, Token};
use super::liveness::Liveness;
use super::remote::Accesses;
use super::sending::Sends;
use super::tuning::{self, Tuning};
use super::{CHECK_INTERVAL, Meeting, Options, Ucx, exiting, greeting, library, rdma_devices};
use crate::{Error, MAX_WORLD_SIZE, Owner, Rank, Result, boot};

/// The remedy where UCX chooses lanes that can't reach a peer.
const UNREACHED: &str = "ranks of one host with different users or user namespaces can't share UCX's \
                         memory; take UCX_TLS=tcp,self or BREVITY_TRANSPORT=tcp";

/// The remedy where UCX can't be set up.
const RESOURCES: &str = "check UCX_* variables, enlarge /dev/shm (docker run --shm-size) and the limit of \
                         open files (ulimit -n), or take BREVITY_TRANSPORT=tcp";

/// A rank's context and worker, before it knows other ranks. Where these can be made, UCX works.
pub struct Prepared {
    rank: Rank,
    world_size: u32,
    ucx_version: (u32, u32),
    tuning: Tuning,
    engine: Engine,
}

impl Prepared {
    /// Makes context and worker of `rank` in a world of `world_size`. Loads UCX if needed. `settings` as in
    /// [`Options`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a usable UCX, when it refuses the settings, or when it lacks resources;
    /// the reason names the remedy.
    pub fn new(rank: Rank, world_size: u32, settings: &[(String, String)]) -> Result<Self> {
        let unavailable = |why| Error::Unavailable { name: "ucx", why };
        if rank.0 >= world_size || world_size > MAX_WORLD_SIZE {
            return Err(unavailable(format!(
                "rank {rank} is not in a world of {world_size}, of {MAX_WORLD_SIZE} at most"
            )));
        }
        let ucp = library::load().map_err(|error| unavailable(error.to_string()))?;
        let _inside = exiting::enter_to_make()?;
        let environment = |name: &str| std::env::var(name).ok();
        let registers = tuning::registers_memory();
        let tuning = Tuning::decide(settings, environment, ucp.version(), registers, &rdma_devices());
        if !tuning.teardown_ends_access && rank == Rank(0) {
            tracing::warn!("{}", tuning::WRITABLE_AFTER_TEARDOWN);
        }
        let engine = Engine::new(ucp, &tuning, rank, world_size).map_err(|error| match error {
            Error::Ucx { .. } => unavailable(format!("{error}; {RESOURCES}")),
            error => error,
        })?;
        let ucx_version = (ucp.version().0, ucp.version().1);
        Ok(Self { rank, world_size, ucx_version, tuning, engine })
    }

    /// Makes the transport, together with all other ranks.
    ///
    /// Exchanges once, then blocks until every rank has received a greeting from every other over UCX. All
    /// ranks must run the same minor version of UCX. Ignores the settings of `options`, which
    /// [`new`](Self::new) has taken.
    ///
    /// # Errors
    /// [`Error::Ucx`] and [`Error::System`] when addresses or sockets can't be made; [`Error::Disagreement`]
    /// for ranks with other versions or settings; [`Error::MissingRanks`] for ranks that do not connect in
    /// time; whatever `meeting` returns.
    pub fn connect(self, meeting: &mut dyn Meeting, options: &Options) -> Result<Ucx> {
        let Self { rank, world_size, ucx_version, tuning, mut engine } = self;
        let inside = exiting::enter_to_make()?;
        let mut token = Token::default();
        getrandom::fill(&mut token)
            .map_err(|error| Error::system("can't draw a token", std::io::Error::other(error)))?;
        let mut liveness = Liveness::new(options.interface, options.ports, token)?;
        let failure_flag = OwnFailureFlag::new(&token)?;
        let own = EndpointInfo {
            ucx_version,
            process: std::process::id(),
            failure_flag: failure_flag.number(),
            token,
            boot: boot::own(),
            control: liveness.address()?,
            has_rdma: tuning.has_rdma,
            settings: tuning.agreed.clone(),
            worker: engine.address()?,
        };
        drop(inside);
        let infos = meeting.exchange(&own.encode())?;
        let _inside = exiting::enter_to_make()?;
        let PeerMemory { failure_flags, is_reached, is_open } =
            meet((rank, &tuning), world_size, &infos, ucx_version, &mut engine, &mut liveness)
                // The death of a peer is the better reason.
                .map_err(|error| meeting.check().err().unwrap_or(error))?;
        let epoll = Arc::new(watch_all(&engine, &liveness)?);
        greeting::greet(rank, &mut engine, meeting, options.join_timeout)?;
        Ok(Ucx {
            owner: Owner::here(),
            rank,
            world_size,
            sends: Sends::new(),
            accesses: Accesses::default(),
            engine,
            liveness,
            failure_flag,
            failure_flags,
            is_reached,
            is_open,
            epoll,
            teardown_ends_access: tuning.teardown_ends_access,
            closed: None,
            lost: Vec::new(),
            cut_off: Vec::new(),
            reclaiming: Vec::new(),
            is_troubled: false,
            news: VecDeque::new(),
            turns: 0,
            busy_turns: 0,
            round: 0,
            next_check: CHECK_INTERVAL,
            gone: Vec::new(),
            drained: Vec::new(),
            links: None,
            waited_on_links: Vec::new(),
            unanswered: Vec::new(),
            waited: Vec::new(),
            may_have_slept: false,
            is_listening: false,
            has_moved: false,
            start: Instant::now(),
        })
    }
}

impl Ucx {
    /// Makes the transport of `rank` in a world of `world_size`, together with all other ranks:
    /// [`Prepared::new`], then [`Prepared::connect`].
    ///
    /// # Errors
    /// As these.
    pub fn connect(
        rank: Rank,
        world_size: u32,
        meeting: &mut dyn Meeting,
        options: &Options,
    ) -> Result<Self> {
        Prepared::new(rank, world_size, &options.settings)?.connect(meeting, options)
    }
}

struct PeerMemory {
    failure_flags: Vec<Option<PeerFailureFlag>>,
    is_reached: Vec<bool>,
    is_open: bool,
}

/// Makes the endpoint to every peer, and opens the failure flags of those on this host.
fn meet(
    (rank, tuning): (Rank, &Tuning),
    world_size: u32,
    infos: &[Vec<u8>],
    ucx_version: (u32, u32),
    engine: &mut Engine,
    liveness: &mut Liveness,
) -> Result<PeerMemory> {
    if infos.len() != world_size as usize {
        let why = format!("the exchange gave {} addresses, expected {world_size}", infos.len());
        return Err(Error::Unavailable { name: "ucx", why });
    }
    let ranks = Rank::all(world_size);
    let infos: Vec<EndpointInfo> = ranks
        .zip(infos)
        .map(|(peer, bytes)| EndpointInfo::decode(bytes, peer, ucx_version))
        .collect::<Result<_>>()?;
    // All ranks fail with the same error if one has other settings than rank 0.
    let settings = infos.first().map(|first| first.settings.clone()).unwrap_or_default();
    if let Some((rank, info)) = Rank::all(world_size).zip(&infos).find(|(_, info)| info.settings != settings)
    {
        let (found, expected) = (info.settings.clone(), settings);
        return Err(Error::Disagreement { what: "UCX settings", rank, found, expected });
    }
    let own = infos.get(rank.index());
    let (mut failure_flags, mut is_reached) =
        (Vec::with_capacity(infos.len()), Vec::with_capacity(infos.len()));
    let mut is_open = false;
    for (peer, info) in Rank::all(world_size).zip(&infos) {
        if peer == rank {
            liveness.add_peer(None);
            failure_flags.push(None);
            is_reached.push(false);
            continue;
        }
        let is_here = own.is_some_and(|own| own.shares_host_with(info));
        let has_rdma = info.has_rdma || own.is_some_and(|own| own.has_rdma);
        // UCX can close the endpoint to a dead peer in one mode only, which its shared memory has not, and
        // which both sides must have: so they decide it by what both know.
        let is_closable = !has_rdma && (tuning.has_sockets_only || !is_here);
        engine.connect(peer, &info.worker, is_closable).map_err(|error| Error::Unavailable {
            name: "ucx",
            why: format!("rank {peer} can't be reached, {error}: {UNREACHED}"),
        })?;
        liveness.add_peer(Some((info.control, info.token)));
        let flag =
            is_here.then(|| PeerFailureFlag::open(info.process, info.failure_flag, &info.token)).flatten();
        let (by_memory, by_hardware) = (is_here && tuning.reaches_here, tuning.has_rdma && info.has_rdma);
        is_reached.push(by_memory && flag.is_some() || by_hardware);
        is_open |= by_memory || by_hardware;
        failure_flags.push(flag);
    }
    Ok(PeerMemory { failure_flags, is_reached, is_open })
}

/// Makes one descriptor over UCX's and the control sockets.
fn watch_all(engine: &Engine, liveness: &Liveness) -> Result<OwnedFd> {
    let refused = |error| Error::system("can't watch UCX's events", error);
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
    // SAFETY: only handed to the kernel, here, while the worker lives; its end takes it out of the epoll.
    let events = unsafe { engine.descriptor() }?;
    epoll::add(&epoll, events, EventData::new_u64(0), EventFlags::IN).map_err(refused)?;
    epoll::add(&epoll, liveness.descriptor(), EventData::new_u64(1), EventFlags::IN).map_err(refused)?;
    Ok(epoll)
}
