//! Ranks that are processes, over TCP sockets.
//!
//! There is one socket between any two ranks, encrypted or not: `wire` makes a stream of bytes each way of it.
//! A connection carries frames (of [`WIRE_VERSION`](crate::bootstrap::WIRE_VERSION)). `frame.rs` defines their
//! header of 64 bytes, `one_sided/frame.rs` the frames of puts and gets.
//!
//! **Order and room.** Messages are matched in the order they were posted. A message whose receive is posted
//! is read into its place, another is kept on the heap. A rank may send up to [`CREDIT_BYTES`] to a peer that
//! the peer has not received yet; beyond that, for any message above [`MAX_EAGER_BYTES`], and for any but a
//! small one while another is offered, it sends an offer, which the peer grants when a receive is posted, and
//! which is then sent in pieces of at most [`SEGMENT_BYTES`] with other messages in between. So kept messages
//! are bounded, none stands in the way of another, and a small message waits for at most a piece, or a
//! message, of 1 MiB and what the kernel has already taken.
//!
//! **Failure.** A connection that ends without bye or failure means that its peer has died: the transport
//! fails, and the cause is sent to all peers, which pass it on, so that every rank names the rank that died.
//! A rank that says bye has left in good order: what it sent can still be received, what it has taken back is
//! passed over, and the others go on, but who then waits for it, or sends to it, fails with
//! [`Error::PeerLost`] and tells all. A peer that sends what is no frame closes the transport with
//! [`Error::Protocol`]; the others are told that it is lost.
//!
//! **Neighbours.** Messages between ranks of one host that share memory go through that memory, see `link`;
//! their socket carries the rest, and ends when one of them dies.
//!
//! Both sides have proven to hold the job's key before a socket comes here. Who changes bytes on their way is
//! found out where they are encrypted, and only there.
#![forbid(unsafe_code)]

mod connecting;
mod connection;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod guess;
#[cfg(test)]
mod held_tests;
mod incoming;
mod judging;
mod leaving;
mod ledger;
#[cfg(test)]
mod many_tests;
mod matching;
mod neighbours;
mod one_sided;
mod operations;
mod outgoing;
mod poller;
mod processes;
mod queued;
mod reading;
mod remote;
mod sizes;
mod staging;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod version_tests;
pub(crate) mod wire;

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, MAX_MESSAGE_BYTES};
pub use frame::SEGMENT_BYTES;
pub use wire::Wire;

use crate::link::Links;
use crate::one_sided::Regions;
use crate::transport::{Statistics, check_peer};
use crate::{Error, Failure, Owner, Rank, Result};
use connecting::connect;
use connection::{Connection, Verdict};
use poller::Poller;
use processes::Ended;

/// How much is read and how much written a connection in one turn, in bytes.
const QUOTA: usize = 1 << 20;

/// Connections that nothing waits for are looked at in every so many turns.
const SWEEP_EVERY: u32 = 64;

/// The same where all peers are on this host and share memory: little but the first put or get comes unasked
/// on their sockets.
const SWEEP_LINKED_EVERY: u32 = 1024;

/// Where all peers share memory, it is asked every so many turns whether a tick has passed since their
/// sockets were looked at.
const TURNS_PER_LOOK: u32 = 4;
const _: () =
    assert!(SWEEP_EVERY.is_multiple_of(TURNS_PER_LOOK) && SWEEP_LINKED_EVERY.is_multiple_of(TURNS_PER_LOOK));

/// From so many awaited connections on, the kernel is asked which of them have something.
const MANY: usize = 8;

/// The transport over TCP.
///
/// Dropped, it writes what is queued for at most a second and says bye. It then waits, for ten seconds at
/// most, until the kernel has sent everything: a socket that is closed before that loses what is left when
/// its peer sends something. A message whose send has ended therefore arrives, unless the peer reads nothing
/// for so long. One that has failed waits a second at most, for its last word to arrive. A copy of it that is
/// dropped in a forked child does nothing of this.
pub struct Tcp {
    owner: Owner,
    rank: Rank,
    world_size: u32,
    connections: Vec<Option<Connection>>,
    poller: Poller,
    /// The memory that peers may access.
    regions: Arc<Mutex<Regions>>,
    /// Indices of the connections that an operation waits for, and of some that none waits for any more.
    awaited: Vec<usize>,
    /// Connections that ended without a word, until it is decided who died.
    suspects: Vec<Rank>,
    /// Peers whose processes have ended and whose connections have not.
    ended: Vec<Ended>,
    closed: Option<Closed>,
    turns: u32,
    /// The [`tick`](crate::tick::tick) in which the sockets of neighbours were last looked at.
    looked_in: u64,
    /// Whether somebody may have slept since the last turn.
    sweep_next: bool,
    /// Whether anything happened since the last [`Transport::arm`].
    has_moved: bool,
    statistics: Statistics,
    start: Instant,
    /// Messages to the ranks of this host, if they share memory.
    links: Option<Links>,
    /// How often a connection was read from or written to.
    #[cfg(test)]
    looks: u64,
}

/// Why nothing goes on.
struct Closed {
    /// What operations end with.
    error: Error,
    /// What peers are told; `None` after [`Transport::abandon`].
    cause: Option<Failure>,
}

impl Tcp {
    /// Makes a transport of sockets that are connected to every other rank, in the order of ranks, and
    /// authenticated.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn new(rank: Rank, world_size: u32, streams: Vec<Option<TcpStream>>) -> Result<Self> {
        Self::over(rank, world_size, streams.into_iter().map(|stream| stream.map(Wire::from)).collect())
    }

    /// The same over connections that may be encrypted.
    ///
    /// The sockets are made non-blocking and set to send small messages at once.
    ///
    /// # Errors
    /// [`Error::Unavailable`] unless there is a connection for each other rank and none for this one;
    /// [`Error::System`] when the system refuses to set one up.
    pub fn over(rank: Rank, world_size: u32, wires: Vec<Option<Wire>>) -> Result<Self> {
        let is_mesh = wires.len() == world_size as usize
            && rank.0 < world_size
            && wires.iter().enumerate().all(|(index, wire)| wire.is_none() == (index == rank.index()));
        if !is_mesh {
            let why = format!("rank {rank} of {world_size} must be connected to every other rank");
            return Err(Error::Unavailable { name: "tcp", why });
        }
        let poller = Poller::new()?;
        let regions = Arc::default();
        let connections = Rank::all(world_size).zip(wires);
        let connections = connections
            .map(|(peer, wire)| {
                wire.map(|wire| connect((rank, peer, world_size), wire, &poller, &regions)).transpose()
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            owner: Owner::here(),
            rank,
            world_size,
            connections,
            poller,
            regions,
            awaited: Vec::new(),
            suspects: Vec::new(),
            ended: Vec::new(),
            closed: None,
            turns: 0,
            looked_in: 0,
            sweep_next: false,
            has_moved: false,
            statistics: Statistics::default(),
            start: Instant::now(),
            links: None,
            #[cfg(test)]
            looks: 0,
        })
    }

    /// One turn of a transport that is open.
    ///
    /// One system call for each awaited connection or, where those are many, one for all and one for each
    /// that has something.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        let is_many = self.awaited.len() >= MANY;
        let mut position = 0;
        while let Some(&index) = self.awaited.get(position) {
            let Some(Some(connection)) = self.connections.get_mut(index) else { break };
            connection.end_turn();
            let has_own = connection.has_queued() || connection.has_unread() || !connection.is_awaited();
            if is_many && !has_own && !self.poller.is_unwatched(index) {
                position += 1;
                continue;
            }
            #[cfg(test)]
            (self.looks += 1);
            let (has_moved, verdict) = connection.service(QUOTA, &mut self.statistics);
            moved |= has_moved;
            if connection.is_awaited() {
                position += 1;
            } else {
                connection.is_listed = false;
                self.awaited.swap_remove(position);
            }
            if !matches!(verdict, Verdict::Open) {
                self.draw(index, verdict);
                if self.closed.is_some() {
                    return true;
                }
            }
        }
        if let Some(links) = &mut self.links {
            if self.sweep_next {
                links.hear();
            }
            let turn = links.turn(&mut self.statistics);
            moved |= self.judge_link(turn);
        }
        self.turns = self.turns.wrapping_add(1);
        if self.sweep_next || is_many || self.turns.is_multiple_of(TURNS_PER_LOOK) {
            moved |= self.look_about(is_many);
        }
        if !(self.ended.is_empty() && self.poller.ended.is_empty()) {
            moved |= self.settle_ended();
        }
        if !self.suspects.is_empty() {
            self.judge();
            moved = true;
        }
        moved
    }

    /// Looks at what is not awaited, if it is time.
    fn look_about(&mut self, is_many: bool) -> bool {
        let moved = if self.sweep_next || is_many || self.is_sweep_due() {
            self.sweep()
        } else {
            self.is_look_due() && self.sweep_sockets()
        };
        if self.turns.is_multiple_of(SWEEP_EVERY) {
            self.unwatch_awaited();
        }
        moved
    }

    /// Serves every connection and link that has something, awaited or not.
    fn sweep(&mut self) -> bool {
        self.sweep_next = false;
        let mut moved = false;
        if let Some(links) = &mut self.links {
            let sweep = links.sweep(&mut self.statistics);
            moved |= self.judge_link(sweep);
        }
        moved | self.sweep_sockets()
    }

    /// Serves every connection that has something, awaited or not.
    fn sweep_sockets(&mut self) -> bool {
        let mut moved = false;
        for index in self.poller.wait(Duration::ZERO) {
            moved |= self.service(index, QUOTA);
        }
        for index in self.poller.unwatched() {
            if !self.is_listed(index) {
                moved |= self.service(index, QUOTA);
            }
        }
        moved
    }

    /// Reads and writes one connection, and draws the consequences.
    fn service(&mut self, index: usize, quota: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        if self.closed.is_some() {
            return false;
        }
        #[cfg(test)]
        (self.looks += 1);
        let (moved, verdict) = connection.service(quota, &mut self.statistics);
        if matches!(verdict, Verdict::Open) {
            if connection.is_awaited() {
                self.list(index);
            }
            return moved;
        }
        self.draw(index, verdict);
        true
    }

    /// Has a connection polled in every turn for as long as an operation waits for it.
    fn list(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !connection.is_listed
        {
            connection.is_listed = true;
            self.awaited.push(index);
        }
    }

    fn is_listed(&self, index: usize) -> bool {
        matches!(self.connections.get(index), Some(Some(connection)) if connection.is_listed)
    }

    /// The open connection to a peer, and what is counted.
    fn connection(&mut self, peer: Rank) -> Result<(&mut Connection, &mut Statistics)> {
        check_peer(peer, self.rank, self.world_size)?;
        if let Some(closed) = &self.closed {
            return Err(closed.error.clone());
        }
        match self.connections.get_mut(peer.index()) {
            Some(Some(connection)) => Ok((connection, &mut self.statistics)),
            _ => Err(Error::NoSuchPeer { rank: peer, own: self.rank, world_size: self.world_size }),
        }
    }
}
