//! The transport between processes over TCP sockets.
//!
//! Any two ranks share one socket, encrypted or not; `wire` makes a byte stream each way of it. A connection
//! carries frames of [`WIRE_VERSION`](crate::bootstrap::WIRE_VERSION): `frame.rs` defines their header of 64
//! bytes, `one_sided/frame.rs` the frames of puts and gets.
//!
//! **Order and memory.** Messages are matched in the order they were posted. A message whose receive is
//! posted is read into its place, another is kept on the heap. A rank may have sent [`CREDIT_BYTES`] eagerly
//! to a peer that the peer has not received. It announces a message by an RTS (rendezvous) when the credit is
//! used up, when the message is larger than [`MAX_EAGER_BYTES`], or, unless it is small, while another
//! announced message waits. The peer answers with CTS when a receive is posted, and the message goes out in
//! fragments of at most [`SEGMENT_BYTES`] with other messages in between. So kept messages are bounded, none
//! blocks another, and a small message waits for at most a fragment or an eager message, and for what the
//! kernel has already taken.
//!
//! **Failure.** A connection that ends without a bye means that its peer has died: operations with it end,
//! and others go on. After a bye what the peer sent can still be received; an operation that waits for the
//! peer, or a new send to it, fails with [`Error::PeerLost`], and the peer is lost. So it is after an invalid
//! frame, with [`Error::Protocol`]. A notice tells that a rank has closed a context.
//!
//! **Local peers.** Messages between ranks of one host that share memory go through that memory, see `link`;
//! their socket carries puts and gets, and its end tells that one of them has died.
//!
//! Both sides of a socket have proven to hold the job's key before it comes here. Only encryption detects
//! bytes that are changed on their way.
#![forbid(unsafe_code)]

mod connection;
mod failures;
mod flow_control;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod held_tests;
mod incoming;
mod local_peers;
#[cfg(test)]
mod many_tests;
mod matching;
mod one_sided;
mod operations;
mod outgoing;
mod poller;
mod queued;
mod reading;
mod remote;
mod shutdown;
mod sizes;
mod staging;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod version_tests;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, MAX_MESSAGE_BYTES};
pub use frame::SEGMENT_BYTES;
pub use wire::Wire;

use crate::link::Links;
use crate::one_sided::Regions;
use crate::transport::{News, Statistics, check_peer};
use crate::{Error, Owner, Rank, Result};
use connection::{Connection, Status};
use failures::Ended;
use poller::Poller;

/// The most that a turn reads from and writes to one connection, in bytes.
const QUOTA: usize = 1 << 20;

/// Connections that no operation waits for are served once in so many turns.
const SWEEP_EVERY: u32 = 64;

/// Likewise where all peers share memory with this rank: only the first put or get comes unexpected there.
const SWEEP_LINKED_EVERY: u32 = 1024;

/// Where all peers share memory, a turn in so many asks whether a tick has passed since the last look at
/// their sockets.
const TURNS_PER_LOOK: u32 = 4;
const _: () =
    assert!(SWEEP_EVERY.is_multiple_of(TURNS_PER_LOOK) && SWEEP_LINKED_EVERY.is_multiple_of(TURNS_PER_LOOK));

/// From so many awaited connections on, epoll says which of them to serve.
const MANY: usize = 8;

/// The transport over TCP.
///
/// A drop writes what is queued for at most a second and sends a close frame. It then waits, for ten seconds
/// at most, until the kernel has sent everything: a socket that is closed earlier loses what is left when its
/// peer sends something. So a message whose send has ended arrives, unless the peer reads nothing for so
/// long. An abandoned transport waits a second at most. A drop in a forked child does none of this.
pub struct Tcp {
    owner: Owner,
    rank: Rank,
    world_size: u32,
    connections: Vec<Option<Connection>>,
    poller: Poller,
    /// The memory that peers may access.
    regions: Arc<Mutex<Regions>>,
    /// Indices of the connections served in every turn: an operation waits for them, or lately did.
    awaited: Vec<usize>,
    /// Peers whose connections ended without a close frame, until it is decided who died.
    suspects: Vec<Rank>,
    /// Peers whose processes have ended, but not their connections.
    ended: Vec<Ended>,
    lost: Vec<Rank>,
    news: VecDeque<News>,
    /// The result of every operation after [`abandon`](crate::Transport::abandon).
    closed: Option<Error>,
    turns: u32,
    /// The [`tick`](crate::tick::tick) of the last look at the sockets of local peers.
    looked_in: u64,
    /// Whether the next turn serves all connections, because this rank may have slept.
    sweep_next: bool,
    /// Whether the next turn serves all connections, because this rank waits for a message of any peer.
    is_listening: bool,
    /// Whether anything happened since the last [`arm`](crate::Transport::arm).
    has_moved: bool,
    statistics: Statistics,
    start: Instant,
    /// The shared-memory channels to local peers.
    links: Option<Links>,
    /// How often a connection was served.
    #[cfg(test)]
    looks: u64,
}

impl Tcp {
    /// Makes a transport of authenticated sockets to every other rank, by rank.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub fn new(rank: Rank, world_size: u32, streams: Vec<Option<TcpStream>>) -> Result<Self> {
        Self::over(rank, world_size, streams.into_iter().map(|stream| stream.map(Wire::from)).collect())
    }

    /// Likewise, over connections that may be encrypted.
    ///
    /// Makes the sockets non-blocking and disables Nagle's algorithm.
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
        let regions = Arc::<Mutex<Regions>>::default();
        let connections = Rank::all(world_size).zip(wires);
        let connections = connections
            .map(|(peer, wire)| {
                let Some(wire) = wire else { return Ok(None) };
                wire.set_up().map_err(|error| {
                    Error::system(format!("can't set up the connection to rank {peer}"), error)
                })?;
                let mut connection = Connection::new(rank, peer, world_size, wire, Arc::clone(&regions));
                poller.add(peer.index(), &mut connection)?;
                Ok(Some(connection))
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
            lost: Vec::new(),
            news: VecDeque::new(),
            closed: None,
            turns: 0,
            looked_in: 0,
            sweep_next: false,
            is_listening: false,
            has_moved: false,
            statistics: Statistics::default(),
            start: Instant::now(),
            links: None,
            #[cfg(test)]
            looks: 0,
        })
    }

    /// One turn of an open transport.
    ///
    /// Makes one system call for each awaited connection or, if those are many, one for all and one for each
    /// that is ready.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        let is_many = self.awaited.len() >= MANY;
        let mut position = 0;
        while let Some(&index) = self.awaited.get(position) {
            let Some(Some(connection)) = self.connections.get_mut(index) else { break };
            connection.end_turn();
            let has_own = connection.has_queued() || connection.has_unread() || !connection.is_awaited();
            if is_many && !has_own && !self.poller.unwatched.contains(&index) {
                position += 1;
                continue;
            }
            #[cfg(test)]
            (self.looks += 1);
            let (has_moved, status) = connection.service(QUOTA, &mut self.statistics);
            moved |= has_moved;
            if connection.is_awaited() {
                position += 1;
            } else {
                connection.is_listed = false;
                self.awaited.swap_remove(position);
            }
            self.take_notices(index);
            if !matches!(status, Status::Open) {
                self.handle_status(index, status);
            }
        }
        if let Some(links) = &mut self.links {
            if self.sweep_next {
                links.hear();
            }
            let turn = links.turn(&mut self.statistics);
            moved |= self.handle_link_result(turn);
        }
        self.turns = self.turns.wrapping_add(1);
        if self.sweep_next || self.is_listening || is_many || self.turns.is_multiple_of(TURNS_PER_LOOK) {
            moved |= self.look_about(is_many);
        }
        if !(self.ended.is_empty() && self.poller.ended.is_empty()) {
            moved |= self.settle_ended();
        }
        if !self.suspects.is_empty() {
            self.find_dead_peer();
            moved = true;
        }
        moved
    }

    /// Serves connections and channels that are ready but not awaited, if it is time.
    fn look_about(&mut self, is_many: bool) -> bool {
        let mut moved = false;
        let listens = std::mem::take(&mut self.is_listening);
        let is_due = self.sweep_next || listens || is_many || self.is_sweep_due();
        if is_due {
            self.sweep_next = false;
            if let Some(links) = &mut self.links {
                let sweep = links.sweep(&mut self.statistics);
                moved |= self.handle_link_result(sweep);
            }
        }
        if is_due || self.is_look_due() {
            for index in self.poller.wait(Duration::ZERO) {
                moved |= self.service(index, QUOTA);
            }
            for index in self.poller.unwatched.clone() {
                if !self.is_listed(index) {
                    moved |= self.service(index, QUOTA);
                }
            }
        }
        if self.turns.is_multiple_of(SWEEP_EVERY) {
            self.unwatch_awaited();
        }
        moved
    }

    /// Reads from and writes to one connection, and handles its new status.
    fn service(&mut self, index: usize, quota: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        if self.closed.is_some() {
            return false;
        }
        #[cfg(test)]
        (self.looks += 1);
        let (moved, status) = connection.service(quota, &mut self.statistics);
        let is_awaited = connection.is_awaited();
        self.take_notices(index);
        if matches!(status, Status::Open) {
            if is_awaited {
                self.list(index);
            }
            return moved;
        }
        self.handle_status(index, status);
        true
    }

    /// Has every turn serve a connection for as long as an operation waits for it.
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

    /// The open connection to a peer, and the statistics.
    fn connection(&mut self, peer: Rank) -> Result<(&mut Connection, &mut Statistics)> {
        check_peer(peer, self.rank, self.world_size)?;
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        match self.connections.get_mut(peer.index()) {
            Some(Some(connection)) => Ok((connection, &mut self.statistics)),
            _ => Err(Error::NoSuchPeer { rank: peer, own: self.rank, world_size: self.world_size }),
        }
    }
}
