//! Who is still there: control connections that follow the waits.
//!
//! Every rank listens on a control address. A rank that waits long for a peer connects to it and *watches*: the peer's
//! kernel takes the connection even if the peer only computes, and ends it when the peer's process ends. A rank that
//! closes its transport answers its watchers, those that its kernel has taken for it included, with the cause; a rank
//! that fails also connects to all others and tells them. No thread, and nothing to look at while nobody waits.
//!
//! All that is ever sent is one notice of 32 bytes, little-endian: the letters `brvc`, four zero bytes, what is closed
//! as in [`Closed::encode`], and 16 bytes that prove the sender a member of the job: the token of the rank whose
//! listener the connection belongs to.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::word::{Closed, Token};
use crate::{Error, Failure, Rank, Result};

/// How long a failing rank tries to reach peers whose kernels do not answer at once.
const TELL_PATIENCE: Duration = Duration::from_millis(100);

/// How long a silent connection is trusted before the kernel asks the other host for a sign of life.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

const NOTICE_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"brvc\0\0\0\0";

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
    epoll: OwnedFd,
    /// What whoever asks is answered.
    answer: Option<Closed>,
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
        Ok(Self { listener, token, peers: Vec::new(), accepted: Slab::new(), epoll, answer: None })
    }

    /// Where peers connect to.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().map_err(|error| Error::system("can't ask for the control address", error))
    }

    /// Adds the next rank; `None` for this one.
    pub(super) fn add_peer(&mut self, peer: Option<(SocketAddr, Token)>) {
        self.peers.push(peer.map(|(address, token)| Peer { address, token, watch: None }));
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
                LISTENER => self.accept(),
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

    fn accept(&mut self) -> Option<News> {
        let mut failed = None;
        // Whatever goes wrong with one connection, it is not taken; the next look goes on.
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut connection = Connection::new(stream);
            if let Some(answer) = self.answer {
                connection.send(&notice(answer, &self.token));
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

    /// Hears a peer that has connected to this rank: it watches, or tells why its transport is closed.
    fn hear_accepted(&mut self, key: usize) -> Option<News> {
        let world_size = self.peers.len() as u32;
        match self.accepted.get_mut(key)?.hear() {
            Heard::Nothing => None,
            Heard::Notice(bytes) => match read_notice(&bytes, &self.token, world_size)? {
                Closed::Failed(cause) => Some(News::Failed(cause)),
                Closed::No | Closed::Left => None,
            },
            Heard::End { .. } => {
                self.accepted.remove(key);
                None
            }
        }
    }

    fn hear_watched(&mut self, rank: Rank) -> Option<News> {
        let world_size = self.peers.len() as u32;
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        let news = match peer.watch.as_mut()?.hear() {
            Heard::Nothing => return None,
            Heard::Notice(bytes) => match read_notice(&bytes, &peer.token, world_size) {
                Some(Closed::Failed(cause)) => News::Failed(cause),
                // Somebody else listens there now.
                _ => News::Gone(rank),
            },
            Heard::End { was_made: true } => News::Died(rank),
            Heard::End { was_made: false } => News::Gone(rank),
        };
        peer.watch = None;
        Some(news)
    }

    /// From now on tells whoever asks that this rank's transport is closed, and those who have asked.
    pub(super) fn answer(&mut self, closed: Closed) {
        self.answer = Some(closed);
        let answer = notice(closed, &self.token);
        self.accepted.iter_mut().for_each(|(_, connection)| connection.send(&answer));
        self.accept();
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
                // A notice is far smaller than any socket's room: it is taken whole or not at all.
                matches!(watch.stream.write(&notice(closed, token)), Err(error) if error.kind() == ErrorKind::WouldBlock)
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
        Self { stream, notice: [0; NOTICE_BYTES], filled: 0 }
    }

    fn send(&mut self, notice: &[u8; NOTICE_BYTES]) {
        // Whoever does not take it sees the end of the connection.
        let _ = self.stream.write(notice);
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

fn notice(closed: Closed, token: &Token) -> [u8; NOTICE_BYTES] {
    let mut bytes = [0; NOTICE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&closed.encode().to_le_bytes());
    bytes[16..].copy_from_slice(token);
    bytes
}

/// What a notice says; `None` if it is none, or not of this job.
fn read_notice(bytes: &[u8; NOTICE_BYTES], token: &Token, world_size: u32) -> Option<Closed> {
    let word = bytes[8..16].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    (bytes[..8] == MAGIC && bytes[16..] == *token).then(|| Closed::decode(word, world_size)).flatten()
}
