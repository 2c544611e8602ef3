//! Ranks that are processes (or threads), over UCX.
//!
//! UCX is loaded at run time, once and only when this transport is asked for ([`available`],
//! [`Ucx::connect`]). Every rank has one worker and an endpoint to each peer, made from the worker addresses
//! that all ranks exchange.
//!
//! **Messages** are UCX's active messages: a header of ours (`header.rs`) and a payload that UCX takes from
//! where it lies. Up to [`AT_ONCE_BYTES`] go at once and are copied once, by the receiver, straight into
//! their place; UCX's own tagged messages would cost a second copy. Above, and when the receiver has
//! [`CREDIT_BYTES`] that it has not asked for, the payload is offered, and fetched straight into its place
//! when its receive is posted. So what a rank keeps unasked is bounded, and no tag blocks another. Of several
//! parts up to [`PACKED_BYTES`] together are packed; above, large parts are active messages of their own.
//! Matching is ours (`inbox.rs`).
//!
//! **Neighbours.** Messages between ranks of one host that share memory go through that memory, as on tcp
//! (`link`): it is faster than UCX's. UCX carries what crosses hosts, and puts and gets.
//!
//! **Failure.** Endpoints have UCX's error handling `NONE`, which is what shared memory is fast with, and
//! which never reports a dead peer. So liveness is ours: who waits for a peer longer than about 20 ms, or
//! goes to sleep, watches it over a control connection (`liveness.rs`). Once a transport fails, its peers are
//! told, UCX is torn down at once and every operation ends with the cause; nothing is left that could touch
//! memory, because rendezvous is by `get_zcopy` wherever memory is shared (`tuning.rs`), and because a
//! receiver that has fetched from a sender's memory looks afterwards whether the sender had not taken it back
//! (`word.rs`).
//!
//! **Ending early.** A receive whose message has not come can be canceled; one whose parts are on the way
//! ends when they have come. A large send that is canceled asks its receiver, over the control connection, to
//! discard the message; if that does not answer, the send ends when the peer receives, or when the transport
//! is abandoned.
//!
//! Neither UCX's own connections nor the control connections are encrypted; the latter ask for a token that
//! only the job's ranks know. UCX is as trusted as its network.
#![allow(unsafe_code)]

mod card;
mod closing;
#[cfg(test)]
mod closing_tests;
mod control;
mod desk;
mod devices;
mod engine;
mod errands;
mod exiting;
mod flight;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod greeting;
mod handler;
mod header;
#[cfg(test)]
mod header_tests;
mod inbox;
#[cfg(test)]
mod inbox_tests;
mod incoming;
mod library;
mod lines;
mod liveness;
mod mapping;
mod neighbours;
mod notice;
mod one_sided;
#[cfg(test)]
mod one_sided_tests;
mod operations;
mod payload;
mod peer_process;
mod receiving;
mod remote;
mod requests;
mod sending;
mod spread;
mod table;
mod tuning;
mod watching;
#[cfg(test)]
mod watching_tests;
mod word;
#[cfg(test)]
mod worlds;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

pub use card::WIRE_VERSION;
pub use devices::rdma_devices;
pub use flow::CREDIT_BYTES;
pub use library::{Report, available};

use crate::boot;
use crate::bootstrap::Ports;
use crate::link::Links;
use crate::told::later;
use crate::transport::Transport;
use crate::{Error, Failure, MAX_WORLD_SIZE, Owner, Rank, Result};
use card::Card;
use engine::Engine;
use flight::{Bounces, Flight};
use liveness::Liveness;
use receiving::Receives;
use remote::Accesses;
use sending::Sends;
use tuning::Tuning;
use word::{Closed, OwnWord, PeerWord, Token};

/// The most payload of a message of several parts that is packed into one UCX message, in bytes.
pub const PACKED_BYTES: usize = 4096;

/// The longest payload that is sent before its receiver asks for it, in bytes.
pub const AT_ONCE_BYTES: usize = 32 << 10;

/// What to do where UCX can't be set up.
const RESOURCES: &str = "check UCX_* variables, enlarge /dev/shm (docker run --shm-size) and the limit of open files (ulimit -n), or \
                         take BREVITY_TRANSPORT=tcp";

/// What to do where UCX takes lanes by which a peer can't be reached.
const UNREACHED: &str = "ranks of one host with different users or user namespaces can't share UCX's memory; take \
                         UCX_TLS=tcp,self or BREVITY_TRANSPORT=tcp";

/// No payload.
const NO_BYTES: (*const u8, usize) = (NonNull::dangling().as_ptr(), 0);

/// The clock is looked at every so many turns.
const TURNS_PER_CLOCK: u32 = 64;

/// How often the operations under way are looked through for peers that are waited for long.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How long a transport that is dropped goes on sending what is queued.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How ranks reach each other before they are connected. A closure that exchanges is one.
pub trait Meeting {
    /// Hands this rank's bytes to all ranks and returns those of all, in the order of ranks; blocks until all
    /// have called.
    ///
    /// # Errors
    /// When that fails.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Whether all ranks are still there; asked now and then while they connect. Does not block.
    ///
    /// # Errors
    /// Names the rank that is not.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<F: FnMut(&[u8]) -> Result<Vec<Vec<u8>>>> Meeting for F {
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self(mine)
    }
}

/// What can be chosen when a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface that peers reach this rank's control listener by; loopback unless set.
    pub interface: IpAddr,
    /// The ports that the control listener may have; the system's choice unless set.
    pub ports: Ports,
    /// UCX settings, such as `("TLS", "tcp,self")`: names without `UCX_`. They win over the environment. A
    /// name that UCX does not know is ignored.
    pub settings: Vec<(String, String)>,
    /// How long UCX may take to connect all ranks once all addresses are known; 60 s unless set.
    pub join_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let (interface, settings) = (Ipv4Addr::LOCALHOST.into(), Vec::new());
        Self { interface, ports: Ports::default(), settings, join_timeout: Duration::from_secs(60) }
    }
}

/// The transport over UCX.
///
/// It may move between threads; its worker is entered by one thread at a time, which `&mut` ensures.
///
/// Dropped, it sends what is queued for at most a second and tells who waits for it that it has left; but not
/// as a copy in a forked child. Then go, in this order: endpoints, worker, context, and last the memory that
/// UCX's callbacks write.
///
/// When the process exits, the transport leaves that a [`Port`](crate::buffer::Port) holds, whatever other
/// threads do with it. Used by itself it must be dropped before: UCX goes with the process, and a thread
/// inside would crash.
pub struct Ucx {
    owner: Owner,
    rank: Rank,
    world_size: u32,
    sends: Sends,
    receives: Receives,
    accesses: Accesses,
    engine: Engine,
    /// After `engine`: UCX may use the memory until it is torn down.
    bounces: Bounces<PACKED_BYTES>,
    liveness: Liveness,
    word: OwnWord,
    /// The words of peers of this host.
    words: Vec<Option<PeerWord>>,
    /// Whose memory UCX's puts and gets reach by themselves; other owners are asked.
    is_reached: Vec<bool>,
    /// Whether peers may reach the memory of this rank so.
    is_open: bool,
    /// UCX's descriptor and that of `liveness`.
    epoll: Arc<OwnedFd>,
    /// Whether tearing UCX down ends all access to memory.
    can_be_quiet: bool,
    closed: Option<Closing>,
    turns: u32,
    /// Turns in which UCX is progressed because something has just moved there.
    busy_turns: u32,
    /// Looks so far.
    round: u32,
    next_look: Duration,
    /// Peers that were found gone while no operation waited for them.
    gone: Vec<Rank>,
    /// Messages to the ranks of this host, if they share memory.
    links: Option<Links>,
    /// The neighbours that operations on links waited for at the last look.
    waited_on_links: Vec<Rank>,
    /// Peers to whom an answer could not be sent, each with the time by which it has gone or is lost.
    unanswered: Vec<(Rank, Duration)>,
    /// Peers that are waited for; scratch of `look`.
    waited: Vec<Rank>,
    may_have_slept: bool,
    /// Whether anything happened since the last [`Transport::arm`].
    has_moved: bool,
    start: Instant,
}

/// Why nothing goes on.
struct Closing {
    /// What operations end with.
    error: Error,
    /// `None` after [`Transport::abandon`].
    cause: Option<Failure>,
    /// What peers were told.
    told: Closed,
}

/// A rank's context and worker, before it knows of any other: where these can be made, UCX works.
pub struct Prepared {
    rank: Rank,
    world_size: u32,
    ucx_version: (u32, u32),
    tuning: Tuning,
    engine: Engine,
}

impl Prepared {
    /// Makes context and worker of `rank` in a world of `world_size`. Loads UCX if that has not happened.
    /// `settings` as in [`Options`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a usable UCX or with settings that it refuses, or when it can't get
    /// what it needs: the reason says which and what to do.
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
        if !tuning.is_quiet && rank == Rank(0) {
            tracing::warn!("{}", tuning::NOT_QUIET);
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
    /// There is one exchange. Blocks as long as it does, and then until every rank has heard from every other
    /// over UCX. All ranks must run the same minor version of UCX. Of `options`, the settings have been taken
    /// already.
    ///
    /// # Errors
    /// [`Error::Ucx`] and [`Error::System`] when addresses or sockets can't be made; [`Error::Disagreement`]
    /// for ranks with other versions or settings; [`Error::MissingRanks`] for ranks that are not heard from
    /// in time; whatever `meeting` returns.
    pub fn connect(self, meeting: &mut dyn Meeting, options: &Options) -> Result<Ucx> {
        let Self { rank, world_size, ucx_version, tuning, mut engine } = self;
        let inside = exiting::enter_to_make()?;
        let mut token = Token::default();
        getrandom::fill(&mut token)
            .map_err(|error| Error::system("can't draw a token", std::io::Error::other(error)))?;
        let mut liveness = Liveness::new(options.interface, options.ports, token)?;
        let word = OwnWord::new(&token)?;
        let own = Card {
            ucx_version,
            process: std::process::id(),
            word: word.number(),
            token,
            boot: boot::own(),
            control: liveness.address()?,
            has_rdma: tuning.has_rdma,
            settings: tuning.agreed.clone(),
            worker: engine.address()?,
        };
        drop(inside);
        let cards = meeting.exchange(&own.encode())?;
        let _inside = exiting::enter_to_make()?;
        let Neighbours { words, is_reached, is_open } =
            meet((rank, &tuning), world_size, &cards, ucx_version, &mut engine, &mut liveness)
                // A peer that has died meanwhile is the better reason.
                .map_err(|error| meeting.check().err().unwrap_or(error))?;
        let epoll = Arc::new(watch_all(&engine, &liveness)?);
        greeting::greet(rank, &mut engine, meeting, options.join_timeout)?;
        Ok(Ucx {
            owner: Owner::here(),
            rank,
            world_size,
            sends: Sends::new(),
            receives: Receives::new(rank),
            accesses: Accesses::new(),
            engine,
            bounces: Bounces::new(),
            liveness,
            word,
            words,
            is_reached,
            is_open,
            epoll,
            can_be_quiet: tuning.is_quiet,
            closed: None,
            turns: 0,
            busy_turns: 0,
            round: 0,
            next_look: LOOK_EVERY,
            gone: Vec::new(),
            links: None,
            waited_on_links: Vec::new(),
            unanswered: Vec::new(),
            waited: Vec::new(),
            may_have_slept: false,
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

/// What a rank knows of its peers' memory.
struct Neighbours {
    /// The words of peers of this host.
    words: Vec<Option<PeerWord>>,
    /// Whose memory UCX's puts and gets reach by themselves.
    is_reached: Vec<bool>,
    /// Whether any peer may reach the memory of this rank so: whoever does, both say that it can.
    is_open: bool,
}

/// Makes the endpoint to every peer, and opens the words of those that are on this host.
fn meet(
    (rank, tuning): (Rank, &Tuning),
    world_size: u32,
    cards: &[Vec<u8>],
    ucx_version: (u32, u32),
    engine: &mut Engine,
    liveness: &mut Liveness,
) -> Result<Neighbours> {
    if cards.len() != world_size as usize {
        let why = format!("the exchange gave {} addresses, expected {world_size}", cards.len());
        return Err(Error::Unavailable { name: "ucx", why });
    }
    let ranks = Rank::all(world_size);
    let cards: Vec<Card> = ranks
        .zip(cards)
        .map(|(peer, bytes)| Card::decode(bytes, peer, ucx_version))
        .collect::<Result<_>>()?;
    agree(&cards)?;
    let own = cards.get(rank.index());
    let (mut words, mut is_reached) = (Vec::with_capacity(cards.len()), Vec::with_capacity(cards.len()));
    let mut is_open = false;
    for (peer, card) in Rank::all(world_size).zip(&cards) {
        if peer == rank {
            liveness.add_peer(None);
            words.push(None);
            is_reached.push(false);
            continue;
        }
        engine.connect(peer, &card.worker).map_err(|error| Error::Unavailable {
            name: "ucx",
            why: format!("rank {peer} can't be reached, {error}: {UNREACHED}"),
        })?;
        liveness.add_peer(Some((card.control, card.token)));
        let is_here = own.is_some_and(|own| own.shares_host_with(card));
        let word = is_here.then(|| PeerWord::open(card.process, card.word, &card.token)).flatten();
        let (by_memory, by_hardware) = (is_here && tuning.reaches_here, tuning.has_rdma && card.has_rdma);
        is_reached.push(by_memory && word.is_some() || by_hardware);
        is_open |= by_memory || by_hardware;
        words.push(word);
    }
    Ok(Neighbours { words, is_reached, is_open })
}

/// All ranks have rank 0's settings, or all fail with the same error: who speaks otherwise may not be
/// understood, or may write where nobody expects it.
fn agree(cards: &[Card]) -> Result<()> {
    let Some(first) = cards.first() else { return Ok(()) };
    match Rank::all(u32::MAX).zip(cards).find(|(_, card)| card.settings != first.settings) {
        None => Ok(()),
        Some((rank, card)) => {
            let (found, expected) = (card.settings.clone(), first.settings.clone());
            Err(Error::Disagreement { what: "UCX settings", rank, found, expected })
        }
    }
}

/// One descriptor over UCX's and the control sockets.
fn watch_all(engine: &Engine, liveness: &Liveness) -> Result<OwnedFd> {
    let make = || -> Result<OwnedFd> {
        let refused = |error| Error::system("can't watch UCX's events", error);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused)?;
        // SAFETY: only handed to the kernel, here, while the worker lives; its end takes it out of the epoll.
        let events = unsafe { engine.descriptor() }?;
        epoll::add(&epoll, events, EventData::new_u64(0), EventFlags::IN).map_err(refused)?;
        epoll::add(&epoll, liveness.descriptor(), EventData::new_u64(1), EventFlags::IN).map_err(refused)?;
        Ok(epoll)
    };
    make()
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // UCX, its threads and all connections are those of the process that has forked this one.
        if !self.owner.is_here() {
            return self.engine.forget();
        }
        let inside = exiting::enter();
        if inside.is_none() {
            self.leave_at_exit(false);
        }
        if std::thread::panicking() {
            self.fail(Failure::PeerLost(self.rank));
        }
        self.flush_links();
        if let Some(Closing { told, .. }) = &self.closed {
            self.liveness.answer(*told);
            self.liveness.hang_up();
            return;
        }
        self.engine.close_endpoints(FLUSH_PATIENCE);
        if let Err(error) = self.word.write(Closed::Left) {
            later!(WARN, %error, "can't say goodbye");
        }
        self.liveness.answer(Closed::Left);
        self.liveness.hang_up();
    }
}
