//! Detects lost peers by control connections.
//!
//! Every rank listens on a control address. A rank that waits long for a peer connects to it and *watches*
//! it: the peer's kernel accepts even while the peer only computes, and ends the connection when the peer's
//! process ends. A rank that closes its transport tells its watchers, including those that only its kernel
//! has accepted; a rank that is torn down also connects to all others to tell them. A rank that has closed a
//! context tells the members likewise. This takes no thread, and costs nothing while nobody waits.
//!
//! If a forked child holds a peer's sockets, they stay open when the peer ends, so the process of a peer on
//! this host is watched too. A silent network says nothing about a peer: the watcher reconnects for as long
//! as somebody waits.
//!
//! Anybody can connect, so a rank keeps a bounded number of connections and closes the oldest unproven one,
//! on which nobody has shown the token. A closed connection alone is therefore no death: the watcher connects
//! again, and the peer is gone when nobody listens there any more.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};

use super::control::{Connection, End, Received, connect};
use super::failure_flag::{Closed, Token};
use super::notice::{Notice, Withdrawal, Wrong, decode, encode};
use super::peer_process::{Process, forget};
use crate::bootstrap::Ports;
use crate::process::PeerProcess;
use crate::told::later;
use crate::transport;
use crate::{Error, Rank, Result};

/// How long accepting pauses when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that are kept besides two for each peer.
const MAX_UNPROVEN: usize = 64;

/// Connections that the kernel keeps for a listener: a rank that only computes accepts none, and many may
/// watch it.
const BACKLOG: i32 = 4096;

const ACCEPTED_PER_POLL: usize = 64;
pub(super) const ACCEPTED_AT_END: usize = BACKLOG as usize;

/// How often events are read again so that what peers tell comes before the end that may follow from it. Not
/// without a limit: anybody may connect again and again.
const READ_AGAIN: u32 = 100;

const LISTENER: u64 = u64::MAX;
const ACCEPTED: u64 = 1 << 32;
const PROCESS: u64 = 1 << 63;

/// What is learnt about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerEvent {
    /// The peer's process has ended without a notice, or the peer has torn its transport down.
    Died(Rank),
    /// The peer has closed its transport in good order, or nobody listens there any more.
    Gone(Rank),
    /// The peer has given this rank up.
    Renounced(Rank),
    /// The peer has sent what no rank of the world sends.
    Violated(Rank),
}

pub(super) struct Liveness {
    pub(super) own: Rank,
    pub(super) listener: TcpListener,
    pub(super) token: Token,
    pub(super) peers: Vec<Option<Peer>>,
    pub(super) accepted: Slab<Connection>,
    accepted_ever: u64,
    epoll: OwnedFd,
    /// Until when accepting pauses.
    paused_until: Option<Instant>,
    /// The answer to watchers.
    pub(super) answer: Option<Closed>,
    /// Notices that could not be sent at once, in order.
    pub(super) unsent: Vec<Unsent>,
    pub(super) events: VecDeque<PeerEvent>,
    /// Events that the next check handles.
    pub(super) put_back: Vec<PeerEvent>,
    /// Messages that peers want back, for the inbox.
    pub(super) withdrawn: Vec<Withdrawal>,
    /// The contexts that peers have closed, in the order in which they came.
    pub(super) told: Vec<(Rank, transport::Notice)>,
}

/// A notice for a peer, and how many of its bytes were sent.
pub(super) struct Unsent {
    pub(super) to: Rank,
    pub(super) notice: Notice,
    pub(super) sent: usize,
}

pub(super) struct Peer {
    address: SocketAddr,
    pub(super) token: Token,
    pub(super) watch: Option<Connection>,
    /// Whether a connection to it was made and ended without a notice.
    was_closed: bool,
    process: Process,
}

impl Liveness {
    pub(super) fn new(interface: IpAddr, ports: Ports, token: Token) -> Result<Self> {
        let listen = |address: SocketAddr| -> std::io::Result<TcpListener> {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        };
        let make = || -> std::io::Result<(TcpListener, OwnedFd)> {
            let listener = ports.find(interface, listen)?;
            listener.set_nonblocking(true)?;
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
            Ok((listener, epoll))
        };
        let (listener, epoll) = make()
            .map_err(|error| Error::system(format!("can't listen on {interface} for control"), error))?;
        Ok(Self {
            own: Rank(0),
            listener,
            token,
            peers: Vec::new(),
            accepted: Slab::new(),
            accepted_ever: 0,
            epoll,
            paused_until: None,
            answer: None,
            unsent: Vec::new(),
            events: VecDeque::new(),
            put_back: Vec::new(),
            withdrawn: Vec::new(),
            told: Vec::new(),
        })
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|error| Error::system("can't ask for the control address", error))
    }

    /// Adds the next rank; `None` for this one.
    pub(super) fn add_peer(&mut self, peer: Option<(SocketAddr, Token)>) {
        if peer.is_none() {
            self.own = Rank(self.peers.len() as u32);
        }
        let made = |(address, token)| Peer {
            address,
            token,
            watch: None,
            was_closed: false,
            process: Process::Unknown,
        };
        self.peers.push(peer.map(made));
    }

    /// Sets the processes of peers, by rank, which are watched with them.
    pub(super) fn add_processes(&mut self, processes: Vec<Option<PeerProcess>>) {
        for (peer, process) in self.peers.iter_mut().zip(processes) {
            if let (Some(peer), Some(process)) = (peer, process) {
                peer.process = Process::Known(process);
            }
        }
    }

    pub(super) fn own_token(&self) -> Token {
        self.token
    }

    pub(super) fn token(&self, peer: Rank) -> Option<Token> {
        self.peers.get(peer.index())?.as_ref().map(|peer| peer.token)
    }

    /// Readable when [`poll`](Self::poll) would return something.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Begins to watch a peer, unless it is watched. `Gone` if its kernel refuses at once, or its process has
    /// ended.
    pub(super) fn watch(&mut self, rank: Rank) -> Option<PeerEvent> {
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        if peer.watch.is_some() {
            return None;
        }
        peer.process.watch(PROCESS + u64::from(rank.0), &self.epoll);
        if matches!(peer.process, Process::Ended) {
            return Some(PeerEvent::Gone(rank));
        }
        match connect(peer.address) {
            Ok(stream) => {
                let events = EventFlags::IN | EventFlags::RDHUP;
                // Unwatched is not dead: the next poll tries again.
                epoll::add(&self.epoll, &stream, EventData::new_u64(rank.0.into()), events).ok()?;
                peer.watch = Some(Connection::new(stream));
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(PeerEvent::Gone(rank)),
            Err(error) => {
                later!(DEBUG, %rank, %error, "can't watch a peer now");
                None
            }
        }
    }

    /// Accepts connections and reads notices. Returns the oldest event; call it until there is none.
    ///
    /// A rank sends its notices before it ends. So this reads the notices of a peer before it returns the
    /// peer's end.
    pub(super) fn poll(&mut self) -> Option<PeerEvent> {
        self.hear();
        self.events.pop_front()
    }

    /// Like [`poll`](Self::poll), but keeps the events.
    pub(super) fn hear(&mut self) {
        self.send_unsent();
        let mut rounds = 0;
        while self.read_events() && !self.events.is_empty() && rounds < READ_AGAIN {
            rounds += 1;
        }
    }

    /// Makes [`poll`](Self::poll) return the events that were put back.
    pub(super) fn take_up(&mut self) {
        self.events.extend(self.put_back.drain(..));
    }

    /// Returns whether there was anything to read.
    fn read_events(&mut self) -> bool {
        if self.paused_until.is_some_and(|until| until <= Instant::now()) {
            self.listen(true);
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => {
                later!(ERROR, %error, "epoll failed");
                0
            }
        };
        for ready in &events[..count] {
            let event = match ready.data.u64() {
                LISTENER => {
                    self.accept(ACCEPTED_PER_POLL);
                    None
                }
                key if key >= PROCESS => self.end_process(Rank((key - PROCESS) as u32)),
                key if key >= ACCEPTED => {
                    self.read_accepted((key - ACCEPTED) as usize);
                    None
                }
                rank => self.read_watched(Rank(rank as u32)),
            };
            self.events.extend(event);
        }
        count > 0
    }

    pub(super) fn accept(&mut self, most: usize) {
        for _ in 0..most {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // It has gone already.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(error) => {
                    later!(DEBUG, %error, "can't take a control connection now");
                    self.listen(false);
                    break;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_room();
            let mut connection = Connection::new(stream);
            connection.number = self.accepted_ever;
            self.accepted_ever += 1;
            if let Some(answer) = self.answer {
                connection.send(&encode(Notice::Closed(self.own, answer), &self.token), &mut 0);
            }
            let entry = self.accepted.vacant_entry();
            let key = entry.key();
            let data = EventData::new_u64(ACCEPTED + key as u64);
            if epoll::add(&self.epoll, &connection.stream, data, EventFlags::IN | EventFlags::RDHUP).is_ok() {
                entry.insert(connection);
                self.read_accepted(key);
            }
        }
    }

    /// Resumes accepting, or pauses it: without descriptors the listener would stay readable. Peers that
    /// connect meanwhile wait as for a rank that only computes.
    fn listen(&mut self, is_ready: bool) {
        self.paused_until = if is_ready { None } else { Some(Instant::now() + ACCEPT_PAUSE) };
        let events = if is_ready { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), events) {
            later!(ERROR, %error, "can't change how the control listener is watched");
        }
    }

    /// Closes the oldest unproven connection if there are too many.
    fn make_room(&mut self) {
        if self.accepted.len() < 2 * self.peers.len() + MAX_UNPROVEN {
            return;
        }
        let oldest =
            self.accepted.iter().min_by_key(|(_, connection)| (connection.is_proven, connection.number));
        if let Some((key, _)) = oldest {
            self.remove(key);
        }
    }

    /// Reads an accepted connection; closes it after anything but a notice with the token.
    fn read_accepted(&mut self, key: usize) {
        let world_size = self.peers.len() as u32;
        while let Some(connection) = self.accepted.get_mut(key) {
            let notice = match connection.receive() {
                Received::Nothing => return,
                Received::Notice(bytes) => decode(&bytes, &self.token, world_size),
                Received::End(_) => Err(Wrong::Stranger),
            };
            connection.is_proven = notice.is_ok();
            match notice {
                Ok(Notice::Closed(from, Closed::Abandoned)) => self.events.push_back(PeerEvent::Died(from)),
                Ok(Notice::Closed(_, Closed::No | Closed::Left)) => {}
                Ok(Notice::Renounced(from)) => self.events.push_back(PeerEvent::Renounced(from)),
                Ok(Notice::Withdrawn(message)) => self.withdrawn.push(message),
                Ok(Notice::Told(from, notice)) => self.told.push((from, notice)),
                Err(wrong) => {
                    if let Wrong::Peer(rank) = wrong {
                        self.events.push_back(PeerEvent::Violated(rank));
                    }
                    self.remove(key);
                }
            }
        }
    }

    fn remove(&mut self, key: usize) {
        let connection = self.accepted.remove(key);
        forget(&self.epoll, &connection.stream);
    }

    /// Closes the connection to a peer. Returns whether there was one.
    fn unwatch(&mut self, rank: Rank) -> bool {
        let watch = self.peers.get_mut(rank.index()).and_then(|peer| peer.as_mut()?.watch.take());
        if let Some(watch) = &watch {
            forget(&self.epoll, &watch.stream);
            // A notice that was sent in part is sent anew.
            self.unsent.iter_mut().filter(|unsent| unsent.to == rank).for_each(|unsent| unsent.sent = 0);
        }
        watch.is_some()
    }

    fn read_watched(&mut self, rank: Rank) -> Option<PeerEvent> {
        let world_size = self.peers.len() as u32;
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        let watch = peer.watch.as_mut()?;
        let event = match watch.receive() {
            Received::Nothing => return None,
            Received::Notice(bytes) => match decode(&bytes, &peer.token, world_size) {
                Ok(Notice::Closed(from, Closed::Abandoned)) if from == rank => Some(PeerEvent::Died(rank)),
                // It has left in good order, or another program listens there now.
                _ => Some(PeerEvent::Gone(rank)),
            },
            Received::End(End::Closed) => return self.watch_again(rank),
            Received::End(End::Refused) if std::mem::take(&mut peer.was_closed) => {
                Some(PeerEvent::Died(rank))
            }
            Received::End(End::Refused) => Some(PeerEvent::Gone(rank)),
            // An operation that waits for the peer watches it again.
            Received::End(End::Unreachable) => None,
        };
        self.unwatch(rank);
        event
    }

    /// Reconnects after an end without a notice: the peer is dead if nobody listens there any more.
    fn watch_again(&mut self, rank: Rank) -> Option<PeerEvent> {
        self.unwatch(rank);
        let gone = self.watch(rank);
        self.peers.get_mut(rank.index())?.as_mut()?.was_closed = gone.is_none();
        gone.map(|_| PeerEvent::Died(rank))
    }

    /// Handles the end of a peer's process. Its last notice is here already.
    fn end_process(&mut self, rank: Rank) -> Option<PeerEvent> {
        self.peers.get_mut(rank.index())?.as_mut()?.process.end(&self.epoll);
        let reported = self.read_watched(rank);
        let end = if self.unwatch(rank) { PeerEvent::Died(rank) } else { PeerEvent::Gone(rank) };
        reported.or(Some(end))
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
