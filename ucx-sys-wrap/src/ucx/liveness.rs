//! Detects lost peers by control connections.
//!
//! Every rank listens on a control address. A rank that waits long for a peer connects to it and *watches*
//! it: the peer's kernel accepts even while the peer only computes, and ends the connection when the peer's
//! process ends. A rank that closes its transport sends the cause to its watchers, including those that only
//! its kernel has accepted; a rank that fails also connects to all others to tell them. This takes no thread,
//! and costs nothing while nobody waits.
//!
//! If a forked child holds a peer's sockets, they stay open when the peer ends, so the process of a peer on
//! this host is watched too. A silent network says nothing about a peer: the watcher reconnects for as long
//! as somebody waits.
//!
//! Anybody can connect, so a rank keeps a bounded number of connections and closes the oldest unproven one,
//! on which nobody has shown the token. A closed connection alone is therefore no death: the watcher connects
//! again, and the peer is gone when nobody listens there any more.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use slab::Slab;
use socket2::{Domain, Protocol, Socket, Type};

use super::control::{Connection, End, Received, connect};
use super::failure_flag::{Closed, Token};
use super::notice::{Notice, Withdrawal, decode, encode};
use super::peer_process::{Process, forget};
use crate::bootstrap::Ports;
use crate::process::PeerProcess;
use crate::told::later;
use crate::{Error, Failure, Rank, Result};

/// How long a failing rank tries to reach peers whose kernels do not answer at once.
const NOTIFY_PATIENCE: Duration = Duration::from_millis(100);

/// How long accepting pauses when the system has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that are kept besides two for each peer.
const MAX_UNPROVEN: usize = 64;

/// Connections that the kernel keeps for a listener: a rank that only computes accepts none, and many may
/// watch it.
const BACKLOG: i32 = 4096;

const ACCEPTED_PER_POLL: usize = 64;
const ACCEPTED_AT_END: usize = BACKLOG as usize;

const LISTENER: u64 = u64::MAX;
const ACCEPTED: u64 = 1 << 32;
const PROCESS: u64 = 1 << 63;

/// What is learnt about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerEvent {
    /// A rank reports why its transport is closed.
    Failed(Failure),
    /// The peer's process has ended without a notice.
    Died(Rank),
    /// The peer has closed its transport in good order, or nobody listens there any more.
    Gone(Rank),
}

pub(super) struct Liveness {
    listener: TcpListener,
    token: Token,
    peers: Vec<Option<Peer>>,
    accepted: Slab<Connection>,
    accepted_ever: u64,
    epoll: OwnedFd,
    /// Until when accepting pauses.
    paused_until: Option<Instant>,
    /// The answer to watchers.
    answer: Option<Closed>,
    /// Notices that could not be sent at once.
    unsent: Vec<(Rank, Notice)>,
    /// Messages that peers want back, for the inbox.
    pub(super) withdrawn: Vec<Withdrawal>,
}

struct Peer {
    address: SocketAddr,
    token: Token,
    watch: Option<Connection>,
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
            listener,
            token,
            peers: Vec::new(),
            accepted: Slab::new(),
            accepted_ever: 0,
            epoll,
            paused_until: None,
            answer: None,
            unsent: Vec::new(),
            withdrawn: Vec::new(),
        })
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|error| Error::system("can't ask for the control address", error))
    }

    /// Adds the next rank; `None` for this one.
    pub(super) fn add_peer(&mut self, peer: Option<(SocketAddr, Token)>) {
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

    /// Accepts connections and reads notices. A reported cause takes precedence over the end of a peer.
    pub(super) fn poll(&mut self) -> Option<PeerEvent> {
        self.send_unsent();
        match self.read_events() {
            // A rank notifies its peers before it goes, so its notice is here by now.
            Some(end @ (PeerEvent::Died(_) | PeerEvent::Gone(_))) => match self.read_events() {
                Some(PeerEvent::Failed(cause)) => Some(PeerEvent::Failed(cause)),
                _ => Some(end),
            },
            other => other,
        }
    }

    fn read_events(&mut self) -> Option<PeerEvent> {
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
        let mut end = None;
        for ready in &events[..count] {
            let event = match ready.data.u64() {
                LISTENER => self.accept(ACCEPTED_PER_POLL),
                key if key >= PROCESS => self.end_process(Rank((key - PROCESS) as u32)),
                key if key >= ACCEPTED => self.read_accepted((key - ACCEPTED) as usize),
                rank => self.read_watched(Rank(rank as u32)),
            };
            match event {
                Some(PeerEvent::Failed(cause)) => return Some(PeerEvent::Failed(cause)),
                other => end = end.or(other),
            }
        }
        end
    }

    fn accept(&mut self, most: usize) -> Option<PeerEvent> {
        let mut failed = None;
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
                connection.send(&encode(Notice::Closed(answer), &self.token));
            }
            let entry = self.accepted.vacant_entry();
            let key = entry.key();
            let data = EventData::new_u64(ACCEPTED + key as u64);
            if epoll::add(&self.epoll, &connection.stream, data, EventFlags::IN | EventFlags::RDHUP).is_ok() {
                entry.insert(connection);
                failed = failed.or(self.read_accepted(key));
            }
        }
        failed
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
    fn read_accepted(&mut self, key: usize) -> Option<PeerEvent> {
        let world_size = self.peers.len() as u32;
        loop {
            let connection = self.accepted.get_mut(key)?;
            let notice = match connection.receive() {
                Received::Nothing => return None,
                Received::Notice(bytes) => decode(&bytes, &self.token, world_size),
                Received::End(_) => None,
            };
            connection.is_proven = notice.is_some();
            match notice {
                Some(Notice::Closed(Closed::Failed(cause))) => return Some(PeerEvent::Failed(cause)),
                Some(Notice::Withdrawn(message)) => self.withdrawn.push(message),
                Some(Notice::Closed(Closed::No | Closed::Left)) => {}
                None => {
                    self.remove(key);
                    return None;
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
                Some(Notice::Closed(Closed::Failed(cause))) => Some(PeerEvent::Failed(cause)),
                // Another program listens there now.
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

    /// Tells a peer that this rank wants a message back, now or at a later poll.
    pub(super) fn withdraw(&mut self, to: Rank, message: Withdrawal) {
        self.unsent.push((to, Notice::Withdrawn(message)));
        self.send_unsent();
    }

    fn send_unsent(&mut self) {
        for (to, notice) in std::mem::take(&mut self.unsent) {
            if self.watch(to).is_none()
                && let Some(Some(Peer { token, watch: Some(watch), .. })) = self.peers.get_mut(to.index())
                && !watch.send(&encode(notice, token))
            {
                self.unsent.push((to, notice));
            }
        }
    }

    /// Tells present and future watchers that this rank's transport is closed.
    pub(super) fn answer(&mut self, closed: Closed) {
        self.answer = Some(closed);
        let answer = encode(Notice::Closed(closed), &self.token);
        for (_, connection) in &mut self.accepted {
            connection.send(&answer);
        }
        self.accept(ACCEPTED_AT_END);
    }

    /// Stops listening, even if a forked child holds the listener and would seem to listen for ever.
    pub(super) fn stop_listening(&self) {
        if let Err(error) = shutdown(&self.listener, Shutdown::Both) {
            later!(DEBUG, %error, "can't close the control listener");
        }
    }

    /// Tells every peer that this rank's transport is closed, for at most 100 ms.
    pub(super) fn notify_all(&mut self, closed: Closed) {
        self.answer(closed);
        let start = Instant::now();
        let peers = Rank::all(self.peers.len() as u32);
        self.unsent = peers.map(|peer| (peer, Notice::Closed(closed))).collect();
        self.send_unsent();
        while !self.unsent.is_empty() && start.elapsed() <= NOTIFY_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            self.send_unsent();
        }
        self.unsent.clear();
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
