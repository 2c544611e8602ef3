//! Who is still there: control connections that follow the waits.
//!
//! Every rank listens on a control address. A rank that waits long for a peer connects to it and *watches*: the peer's
//! kernel takes the connection even if the peer only computes, and ends it when the peer's process ends. A rank that
//! closes its transport answers its watchers, those that its kernel has taken for it included, with the cause; a rank
//! that fails also connects to all others and tells them. No thread, and nothing to look at while nobody waits.
//!
//! Anybody can connect, so not everybody is kept: a rank has room for the connections of its peers and some strangers,
//! and makes more by closing the oldest on which nobody has proven to know the token. So an end alone is no death: a
//! watcher whose connection ends connects again, and the peer is gone when nobody listens there any more.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::notice::{NOTICE_BYTES, Notice, Withdrawal, decode, encode};
use super::word::{Closed, Token};
use crate::{Error, Failure, Rank, Result};

/// How long a failing rank tries to reach peers whose kernels do not answer at once.
const TELL_PATIENCE: Duration = Duration::from_millis(100);

/// How long a silent connection is trusted before the kernel asks the other host for a sign of life.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

/// Connections that are kept besides two for each peer: strangers', until they make room.
const STRANGERS: usize = 64;

/// Connections that are taken in one look, and when the last word is said: as many as the kernel keeps for a listener.
const TAKEN_AT_ONCE: usize = 64;
const TAKEN_AT_LAST: usize = 4096;

const LISTENER: u64 = u64::MAX;
const ACCEPTED: u64 = 1 << 32;

/// What is heard about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A rank reports why its transport is closed.
    Failed(Failure),
    /// The peer's process has ended without a word.
    Died(Rank),
    /// The peer has closed its transport in good order, or nobody listens there any more.
    Gone(Rank),
}

/// The control sockets of one rank.
pub(super) struct Liveness {
    listener: TcpListener,
    token: Token,
    peers: Vec<Option<Peer>>,
    accepted: Slab<Connection>,
    accepted_ever: u64,
    epoll: OwnedFd,
    /// What whoever asks is answered.
    answer: Option<Closed>,
    /// What could not be said at once.
    unsaid: Vec<(Rank, Withdrawal)>,
    /// What peers want back and nobody has taken note of.
    pub(super) withdrawn: Vec<Withdrawal>,
}

struct Peer {
    address: SocketAddr,
    token: Token,
    watch: Option<Connection>,
}

struct Connection {
    stream: TcpStream,
    notice: [u8; NOTICE_BYTES],
    filled: usize,
    /// Whether whoever is there has shown that it knows the token.
    is_proven: bool,
    /// How many were accepted before it.
    number: u64,
    /// Whether it was made because another one to the same peer had ended without a word.
    after_end: bool,
}

enum Heard {
    Nothing,
    Notice([u8; NOTICE_BYTES]),
    /// The connection is at its end: orderly after it was made, or in another way.
    End {
        was_made: bool,
    },
}

impl Liveness {
    /// Listens on a port of the system's choice.
    pub(super) fn new(interface: IpAddr, token: Token) -> Result<Self> {
        let make = || -> std::io::Result<(TcpListener, OwnedFd)> {
            let listener = TcpListener::bind((interface, 0))?;
            listener.set_nonblocking(true)?;
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
            Ok((listener, epoll))
        };
        let (listener, epoll) =
            make().map_err(|error| Error::system(format!("can't listen on {interface} for control"), error))?;
        let (peers, accepted, answer) = (Vec::new(), Slab::new(), None);
        let (unsaid, withdrawn) = (Vec::new(), Vec::new());
        Ok(Self { listener, token, peers, accepted, accepted_ever: 0, epoll, answer, unsaid, withdrawn })
    }

    /// Where peers connect to.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|error| Error::system("can't ask for the control address", error))
    }

    /// Adds the next rank; `None` for this one.
    pub(super) fn add_peer(&mut self, peer: Option<(SocketAddr, Token)>) {
        self.peers.push(peer.map(|(address, token)| Peer { address, token, watch: None }));
    }

    /// What proves this rank.
    pub(super) fn own_token(&self) -> Token {
        self.token
    }

    /// What proves a peer.
    pub(super) fn token(&self, peer: Rank) -> Option<Token> {
        self.peers.get(peer.index())?.as_ref().map(|peer| peer.token)
    }

    /// Readable when [`look`](Self::look) would hear something.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Begins to watch a peer, unless it is watched. `Gone` when its kernel says at once that nobody listens.
    pub(super) fn watch(&mut self, rank: Rank) -> Option<News> {
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        if peer.watch.is_some() {
            return None;
        }
        match connect(peer.address) {
            Ok(stream) => {
                let events = EventFlags::IN | EventFlags::RDHUP;
                // Not watched is not known to be dead: the next look tries again.
                epoll::add(&self.epoll, &stream, EventData::new_u64(rank.0.into()), events).ok()?;
                peer.watch = Some(Connection::new(stream));
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Some(News::Gone(rank)),
            Err(error) => {
                tracing::debug!(%rank, %error, "can't watch a peer now");
                None
            }
        }
    }

    /// Takes new connections and hears what there is. A cause that somebody names comes before what an end tells.
    pub(super) fn look(&mut self) -> Option<News> {
        self.say_unsaid();
        match self.hear() {
            // A rank tells its peers before it goes: what it told is here by now.
            Some(end @ (News::Died(_) | News::Gone(_))) => match self.hear() {
                Some(News::Failed(cause)) => Some(News::Failed(cause)),
                _ => Some(end),
            },
            other => other,
        }
    }

    fn hear(&mut self) -> Option<News> {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => {
                tracing::error!(%error, "epoll failed");
                0
            }
        };
        let mut end = None;
        for event in &events[..count] {
            let heard = match event.data.u64() {
                LISTENER => self.accept(TAKEN_AT_ONCE),
                key if key >= ACCEPTED => self.hear_accepted((key - ACCEPTED) as usize),
                rank => self.hear_watched(Rank(rank as u32)),
            };
            match heard {
                Some(News::Failed(cause)) => return Some(News::Failed(cause)),
                other => end = end.or(other),
            }
        }
        end
    }

    /// Takes at most `most` connections.
    fn accept(&mut self, most: usize) -> Option<News> {
        let mut failed = None;
        for _ in 0..most {
            // Whatever goes wrong with one connection, it is not taken; the next look goes on.
            let Ok((stream, _)) = self.listener.accept() else { break };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            self.make_room();
            let mut connection = Connection::new(stream);
            connection.number = self.accepted_ever;
            self.accepted_ever += 1;
            if let Some(answer) = self.answer {
                connection.say(&encode(Notice::Closed(answer), &self.token));
            }
            let entry = self.accepted.vacant_entry();
            let key = entry.key();
            let data = EventData::new_u64(ACCEPTED + key as u64);
            if epoll::add(&self.epoll, &connection.stream, data, EventFlags::IN | EventFlags::RDHUP).is_ok() {
                entry.insert(connection);
                failed = failed.or(self.hear_accepted(key));
            }
        }
        failed
    }

    /// Closes the oldest connection that nobody has proven themselves on, if there are too many.
    fn make_room(&mut self) {
        if self.accepted.len() < 2 * self.peers.len() + STRANGERS {
            return;
        }
        let oldest = self.accepted.iter().min_by_key(|(_, connection)| (connection.is_proven, connection.number));
        if let Some((key, _)) = oldest {
            self.accepted.remove(key);
        }
    }

    /// Hears a peer that has connected to this rank: it watches, or it has something to say. Who says anything else is a
    /// stranger, and not heard any longer.
    fn hear_accepted(&mut self, key: usize) -> Option<News> {
        let world_size = self.peers.len() as u32;
        loop {
            let connection = self.accepted.get_mut(key)?;
            let notice = match connection.hear() {
                Heard::Nothing => return None,
                Heard::Notice(bytes) => decode(&bytes, &self.token, world_size),
                Heard::End { .. } => None,
            };
            connection.is_proven = notice.is_some();
            match notice {
                Some(Notice::Closed(Closed::Failed(cause))) => return Some(News::Failed(cause)),
                Some(Notice::Withdrawn(message)) => self.withdrawn.push(message),
                Some(Notice::Closed(Closed::No | Closed::Left)) => {}
                None => {
                    self.accepted.remove(key);
                    return None;
                }
            }
        }
    }

    fn hear_watched(&mut self, rank: Rank) -> Option<News> {
        let world_size = self.peers.len() as u32;
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        let watch = peer.watch.as_mut()?;
        let news = match watch.hear() {
            Heard::Nothing => return None,
            Heard::Notice(bytes) => match decode(&bytes, &peer.token, world_size) {
                Some(Notice::Closed(Closed::Failed(cause))) => News::Failed(cause),
                // Somebody else listens there now.
                _ => News::Gone(rank),
            },
            Heard::End { was_made: true } => return self.watch_again(rank),
            Heard::End { was_made: false } if watch.after_end => News::Died(rank),
            Heard::End { was_made: false } => News::Gone(rank),
        };
        peer.watch = None;
        Some(news)
    }

    /// A connection has ended without a word: the peer is dead if nobody listens there any more.
    fn watch_again(&mut self, rank: Rank) -> Option<News> {
        self.peers.get_mut(rank.index())?.as_mut()?.watch = None;
        let gone = self.watch(rank);
        if let Some(Some(Peer { watch: Some(watch), .. })) = self.peers.get_mut(rank.index()) {
            watch.after_end = true;
        }
        gone.map(|_| News::Died(rank))
    }

    /// Tells a peer that this rank wants a message back: now, or with one of the next looks.
    pub(super) fn withdraw(&mut self, to: Rank, message: Withdrawal) {
        self.unsaid.push((to, message));
        self.say_unsaid();
    }

    fn say_unsaid(&mut self) {
        let unsaid = std::mem::take(&mut self.unsaid);
        for (to, message) in unsaid {
            if self.watch(to).is_some() {
                continue;
            }
            if let Some(Some(Peer { token, watch: Some(watch), .. })) = self.peers.get_mut(to.index())
                && !watch.say(&encode(Notice::Withdrawn(message), token))
            {
                self.unsaid.push((to, message));
            }
        }
    }

    /// From now on tells whoever asks that this rank's transport is closed, and those who have asked.
    pub(super) fn answer(&mut self, closed: Closed) {
        self.answer = Some(closed);
        let answer = encode(Notice::Closed(closed), &self.token);
        for (_, connection) in &mut self.accepted {
            connection.say(&answer);
        }
        self.accept(TAKEN_AT_LAST);
    }

    /// Tells every peer that this rank's transport is closed, for at most 100 ms.
    pub(super) fn tell_all(&mut self, closed: Closed) {
        self.answer(closed);
        let start = Instant::now();
        let mut untold: Vec<Rank> = Rank::all(self.peers.len() as u32).collect();
        untold.retain(|rank| self.watch(*rank).is_none());
        loop {
            untold.retain(|rank| {
                let Some(Some(Peer { token, watch: Some(watch), .. })) = self.peers.get_mut(rank.index()) else {
                    return false;
                };
                !watch.say(&encode(Notice::Closed(closed), token))
            });
            if untold.is_empty() || start.elapsed() > TELL_PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, notice: [0; NOTICE_BYTES], filled: 0, is_proven: false, number: 0, after_end: false }
    }

    /// Sends a notice; false if the connection is not made yet. If it is gone there is nobody to tell.
    fn say(&mut self, notice: &[u8; NOTICE_BYTES]) -> bool {
        // A notice is far smaller than any socket's room: it is taken whole or not at all.
        !matches!(self.stream.write(notice), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn hear(&mut self) -> Heard {
        loop {
            match self.stream.read(&mut self.notice[self.filled..]) {
                Ok(0) => return Heard::End { was_made: true },
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Heard::End { was_made: error.kind() == ErrorKind::ConnectionReset },
            }
            if self.filled == NOTICE_BYTES {
                self.filled = 0;
                return Heard::Notice(self.notice);
            }
        }
    }
}

/// Begins to connect, without waiting.
fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => Ok(socket.into()),
        connected => connected.map(|()| socket.into()),
    }
}

#[cfg(test)]
#[path = "liveness_tests.rs"]
mod tests;
