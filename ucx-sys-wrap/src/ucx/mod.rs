//! Ranks that are processes (or threads), over UCX.
//!
//! UCX is loaded at run time, once and only when this transport is asked for ([`available`], [`Ucx::connect`]).
//! Every rank has one worker and an endpoint to each peer, made from the worker addresses that all ranks exchange.
//!
//! **Messages.** A header of 64 bytes goes first. Up to [`PACKED_BYTES`] of payload are packed behind it into one UCX
//! message, copied once on each side. Above, header and parts are UCX messages of their own (under the tag's kinds 0 to
//! 3), and the parts are received straight into their places. How order is kept is said in `receiving.rs`.
//! Small messages are eager: UCX keeps those that come before their receive on its heap, without a bound of ours.
//!
//! **Failure.** Endpoints have UCX's error handling `NONE`, which is what shared memory is fast with, and which never
//! reports a dead peer. So liveness is ours: who waits for a peer longer than about 20 ms, or goes to sleep, watches it
//! over a control connection (`liveness.rs`). Once a transport fails, its peers are told, UCX is torn down at once and
//! every operation ends with the cause; nothing is left that could touch memory, because rendezvous is by `get_zcopy`
//! wherever memory is shared (`tuning.rs`), and because a receiver that has fetched from a sender's memory looks
//! afterwards whether the sender had not taken it back (`word.rs`).
//!
//! **Ending early.** A receive whose message has not come can be canceled; one whose parts are on the way ends when
//! they have come. A send can't be canceled: UCX ends it when the peer receives, or when the transport is abandoned.
//!
//! Neither UCX's own connections nor the control connections are encrypted; the latter ask for a token that only the
//! job's ranks know. UCX is as trusted as its network.
#![allow(unsafe_code)]

mod card;
mod engine;
mod flight;
mod header;
mod incoming;
mod library;
mod liveness;
mod operations;
mod receiving;
mod sending;
mod table;
mod tuning;
mod word;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

pub use card::WIRE_VERSION;
pub use library::{Report, available};

use crate::transport::{Statistics, Transport};
use crate::{Error, Failure, MAX_WORLD_SIZE, Rank, Result};
use card::Card;
use engine::Engine;
use flight::Bounces;
use header::HEADER_BYTES;
use incoming::Means;
use liveness::{Liveness, News};
use receiving::Receives;
use sending::Sends;
use tuning::Tuning;
use word::{Closed, OwnWord, PeerWord, Token};

/// The most payload that is packed into one UCX message with its header, in bytes.
pub const PACKED_BYTES: usize = 4096;

const BOUNCE_BYTES: usize = HEADER_BYTES + PACKED_BYTES;

/// The clock is looked at every so many turns.
const TURNS_PER_CLOCK: u32 = 64;

/// How often the operations under way are looked through for peers that are waited for long.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// An operation waits long when it was posted so many looks ago.
const LONG_ROUNDS: u32 = 2;

/// How long a transport that is dropped goes on sending what is queued.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// How long nothing must come of a peer that is gone before nothing more will: on this host, and over a network.
const SETTLED_HERE: Duration = Duration::from_millis(2);
const SETTLED_FAR: Duration = Duration::from_millis(50);

/// What can be chosen when a world is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface that peers reach this rank's control listener by; loopback unless set.
    pub interface: IpAddr,
    /// UCX settings, such as `("TLS", "tcp,self")`: names without `UCX_`. They win over the environment. A name that
    /// UCX does not know is ignored.
    pub settings: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self { interface: Ipv4Addr::LOCALHOST.into(), settings: Vec::new() }
    }
}

/// The transport over UCX.
///
/// It may move between threads; its worker is entered by one thread at a time, which `&mut` ensures.
///
/// Dropped, it sends what is queued for at most a second and tells who waits for it that it has left. Then go, in this
/// order: endpoints, worker, context, and last the memory that UCX's callbacks write.
pub struct Ucx {
    rank: Rank,
    world_size: u32,
    sends: Sends,
    receives: Receives,
    engine: Engine,
    /// After `engine`: UCX may use the memory until it is torn down.
    bounces: Bounces<BOUNCE_BYTES>,
    liveness: Liveness,
    word: OwnWord,
    /// The words of peers of this host.
    words: Vec<Option<PeerWord>>,
    /// UCX's descriptor and that of `liveness`.
    epoll: Arc<OwnedFd>,
    /// Whether tearing UCX down ends all access to memory.
    can_be_quiet: bool,
    closed: Option<Closing>,
    turns: u32,
    /// Looks so far.
    round: u32,
    next_look: Duration,
    /// Peers that are waited for; scratch of `look`.
    waited: Vec<Rank>,
    may_have_slept: bool,
    /// Whether anything happened since the last [`Transport::arm`].
    has_moved: bool,
    statistics: Statistics,
    start: Instant,
}

/// Why nothing goes on.
struct Closing {
    /// What operations end with.
    error: Error,
    /// `None` after [`Transport::abandon`].
    cause: Option<Failure>,
}

impl Ucx {
    /// Makes the transport of `rank` in a world of `world_size`, together with all other ranks.
    ///
    /// `exchange` is called twice: it hands this rank's bytes to all and returns those of all ranks, in the order of
    /// ranks. The second call makes sure that nobody leaves before all have connected. Blocks as long as it does. Loads UCX if that has not happened. All ranks must run the same minor
    /// version of UCX.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a usable UCX or with settings that it refuses; [`Error::Ucx`] and
    /// [`Error::System`] when worker or sockets can't be made; [`Error::Disagreement`] for ranks with other versions;
    /// whatever `exchange` returns.
    pub fn connect(
        rank: Rank,
        world_size: u32,
        exchange: &mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>>,
        options: &Options,
    ) -> Result<Self> {
        if rank.0 >= world_size || world_size > MAX_WORLD_SIZE {
            let why = format!("rank {rank} is not in a world of {world_size}, of {MAX_WORLD_SIZE} at most");
            return Err(Error::Unavailable { name: "ucx", why });
        }
        let ucp = library::load().map_err(|error| Error::Unavailable { name: "ucx", why: error.to_string() })?;
        let tuning = Tuning::decide(&options.settings, |name| std::env::var(name).ok(), ucp.version());
        let mut engine = Engine::new(ucp, &tuning, world_size)?;
        let mut token = Token::default();
        getrandom::fill(&mut token)
            .map_err(|error| Error::system("can't draw a token", std::io::Error::other(error)))?;
        let mut liveness = Liveness::new(options.interface, token)?;
        let word = OwnWord::new(&token)?;
        let ucx_version = (ucp.version().0, ucp.version().1);
        let own = Card {
            ucx_version,
            process: std::process::id(),
            word: word.number(),
            token,
            control: liveness.address()?,
            worker: engine.address()?,
        };
        let cards = exchange(&own.encode())?;
        let words = meet(rank, world_size, &cards, ucx_version, &mut engine, &mut liveness)?;
        let epoll = Arc::new(watch_all(&engine, &liveness)?);
        exchange(&[])?;
        Ok(Self {
            rank,
            world_size,
            sends: Sends::new(),
            receives: Receives::new(),
            engine,
            bounces: Bounces::new(),
            liveness,
            word,
            words,
            epoll,
            can_be_quiet: tuning.is_quiet,
            closed: None,
            turns: 0,
            round: 0,
            next_look: LOOK_EVERY,
            waited: Vec::new(),
            may_have_slept: false,
            has_moved: false,
            statistics: Statistics::default(),
            start: Instant::now(),
        })
    }

    fn means(&mut self) -> (&mut Receives, Means<'_>) {
        let means = Means { engine: &mut self.engine, bounces: &mut self.bounces, statistics: &mut self.statistics };
        (&mut self.receives, means)
    }

    /// Handles what callbacks have announced. Says whether there was anything.
    fn settle(&mut self) -> bool {
        let (receives, means) = self.means();
        let moved = receives.settle(means);
        self.judge_violation();
        moved
    }

    /// Closes the transport if a peer has sent what is no message.
    fn judge_violation(&mut self) {
        if let Some((rank, error)) = self.receives.violation.take() {
            tracing::error!(%rank, %error, "closing the transport");
            self.close_for(Some(Failure::PeerLost(rank)), error);
        }
    }

    /// Looks after peers that are waited for long, or at all if this rank is about to sleep.
    fn look(&mut self, about_to_sleep: bool) -> bool {
        self.round = self.round.wrapping_add(1);
        self.next_look = self.now() + LOOK_EVERY;
        if self.closed.is_some() {
            // Those who ask are answered; there is nothing to learn.
            self.liveness.look();
            return false;
        }
        let rounds = if about_to_sleep { 0 } else { LONG_ROUNDS };
        self.waited.clear();
        let long = |(_, posted_in): &(Rank, u32)| self.round.wrapping_sub(*posted_in) >= rounds;
        self.waited.extend(self.sends.waits().chain(self.receives.waits()).filter(long).map(|(peer, _)| peer));
        self.waited.sort_unstable();
        self.waited.dedup();
        let waited = std::mem::take(&mut self.waited);
        for peer in &waited {
            let news = self.read_word(*peer).or_else(|| self.liveness.watch(*peer));
            self.take_news(news);
        }
        self.waited = waited;
        let news = self.liveness.look();
        self.take_news(news)
    }

    /// What a peer of this host says about itself.
    fn read_word(&self, peer: Rank) -> Option<News> {
        match self.words.get(peer.index())?.as_ref()?.read(self.world_size) {
            Closed::No => None,
            Closed::Left => Some(News::Gone(peer)),
            Closed::Failed(cause) => Some(News::Failed(cause)),
        }
    }

    /// Draws the consequences. Says whether there were any.
    fn take_news(&mut self, news: Option<News>) -> bool {
        if self.closed.is_some() {
            return false;
        }
        let lost = match news {
            None => return false,
            Some(News::Failed(cause)) => {
                tracing::warn!(?cause, "a peer reports a failure");
                self.close_for(Some(cause), cause.into());
                return true;
            }
            Some(News::Died(peer) | News::Gone(peer)) => peer,
        };
        // Whoever failed before it went has written why.
        let cause = match self.read_word(lost) {
            Some(News::Failed(cause)) => cause,
            _ => Failure::PeerLost(lost),
        };
        self.progress_until_settled(lost);
        let is_waited_for = self.sends.waits().chain(self.receives.waits()).any(|(peer, _)| peer == lost);
        if matches!(news, Some(News::Gone(_))) && !is_waited_for {
            return false;
        }
        tracing::warn!(rank = %lost, ?cause, "a peer is gone");
        self.close_for(Some(cause), cause.into());
        true
    }

    /// Takes in what a peer sent before it went.
    fn progress_until_settled(&mut self, peer: Rank) {
        let is_here = self.words.get(peer.index()).is_some_and(Option::is_some);
        let patience = if is_here { SETTLED_HERE } else { SETTLED_FAR };
        let mut quiet_since = Instant::now();
        let start = quiet_since;
        while quiet_since.elapsed() < patience && start.elapsed() < 10 * patience && self.closed.is_none() {
            if self.engine.progress() | self.settle() {
                quiet_since = Instant::now();
            }
        }
    }

    /// Ends everything with `error` and tells the peers; UCX is torn down. The first cause stays.
    fn close_for(&mut self, cause: Option<Failure>, error: Error) {
        if self.closed.is_some() {
            return;
        }
        let told = Closed::Failed(cause.unwrap_or(Failure::PeerLost(self.rank)));
        self.closed = Some(Closing { error: error.clone(), cause });
        self.has_moved = true;
        if let Err(error) = self.word.write(told) {
            tracing::error!(%error, "memory lent to peers can't be taken back");
            self.can_be_quiet = false;
        }
        self.liveness.tell_all(told);
        if self.can_be_quiet {
            self.engine.tear_down();
        }
        let (receives, mut means) = self.means();
        receives.end_all(&mut means, &error);
        receives.violation = None;
        self.sends.end_all(&error);
    }

    /// A message fetched from a peer's memory counts if the peer had not taken the memory back by then.
    fn has_taken_back(&mut self, peer: Rank) -> Option<Error> {
        let News::Failed(cause) = self.read_word(peer)? else { return None };
        self.close_for(Some(cause), cause.into());
        self.closed.as_ref().map(|closed| closed.error.clone())
    }
}

/// Makes the endpoint to every peer, and opens the words of those that are on this host.
fn meet(
    rank: Rank,
    world_size: u32,
    cards: &[Vec<u8>],
    ucx_version: (u32, u32),
    engine: &mut Engine,
    liveness: &mut Liveness,
) -> Result<Vec<Option<PeerWord>>> {
    if cards.len() != world_size as usize {
        let why = format!("the exchange gave {} addresses, expected {world_size}", cards.len());
        return Err(Error::Unavailable { name: "ucx", why });
    }
    let mut words = Vec::with_capacity(cards.len());
    for (peer, bytes) in Rank::all(world_size).zip(cards) {
        if peer == rank {
            liveness.add_peer(None);
            words.push(None);
            continue;
        }
        let card = Card::decode(bytes, peer, ucx_version)?;
        engine.connect(peer, &card.worker)?;
        liveness.add_peer(Some((card.control, card.token)));
        words.push(PeerWord::open(card.process, card.word, &card.token));
    }
    Ok(words)
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
        if std::thread::panicking() {
            self.fail(Failure::PeerLost(self.rank));
        }
        if let Some(Closing { cause, .. }) = &self.closed {
            self.liveness.answer(Closed::Failed(cause.unwrap_or(Failure::PeerLost(self.rank))));
            return;
        }
        self.engine.close_endpoints(FLUSH_PATIENCE);
        if let Err(error) = self.word.write(Closed::Left) {
            tracing::warn!(%error, "can't say goodbye");
        }
        self.liveness.answer(Closed::Left);
    }
}
