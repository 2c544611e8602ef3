//! Who is still there: control connections that follow the waits.
//!
//! Every rank listens on a control address. A rank that waits long for a peer connects to it and *watches*: the peer's
//! kernel takes the connection even if the peer only computes, and ends it when the peer's process ends. A rank that
//! closes its transport answers its watchers, those that its kernel has taken for it included, with the cause; a rank
//! that fails also connects to all others and tells them. No thread, and nothing to look at while nobody waits.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use slab::Slab;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::notice::{NOTICE_BYTES, Notice, decode, encode};
use super::sending::Withdrawal;
use super::word::{Closed, Token};
use crate::{Error, Failure, Rank, Result};

/// How long a failing rank tries to reach peers whose kernels do not answer at once.
const TELL_PATIENCE: Duration = Duration::from_millis(100);

/// How long a silent connection is trusted before the kernel asks the other host for a sign of life.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 6;

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
        Ok(Self { listener, token, peers, accepted, epoll, answer, unsaid: Vec::new(), withdrawn: Vec::new() })
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

    /// Hears a peer that has connected to this rank: it watches, or it has something to say.
    fn hear_accepted(&mut self, key: usize) -> Option<News> {
        let world_size = self.peers.len() as u32;
        loop {
            match self.accepted.get_mut(key)?.hear() {
                Heard::Nothing => return None,
                Heard::Notice(bytes) => match decode(&bytes, &self.token, world_size) {
                    Some(Notice::Closed(Closed::Failed(cause))) => return Some(News::Failed(cause)),
                    Some(Notice::Withdrawn(message)) => self.withdrawn.push(message),
                    Some(Notice::Closed(Closed::No | Closed::Left)) | None => {}
                },
                Heard::End { .. } => {
                    self.accepted.remove(key);
                    return None;
                }
            }
        }
    }

    fn hear_watched(&mut self, rank: Rank) -> Option<News> {
        let world_size = self.peers.len() as u32;
        let peer = self.peers.get_mut(rank.index())?.as_mut()?;
        let news = match peer.watch.as_mut()?.hear() {
            Heard::Nothing => return None,
            Heard::Notice(bytes) => match decode(&bytes, &peer.token, world_size) {
                Some(Notice::Closed(Closed::Failed(cause))) => News::Failed(cause),
                // Somebody else listens there now.
                _ => News::Gone(rank),
            },
            Heard::End { was_made: true } => News::Died(rank),
            Heard::End { was_made: false } => News::Gone(rank),
        };
        peer.watch = None;
        Some(news)
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
        Self { stream, notice: [0; NOTICE_BYTES], filled: 0 }
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
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Tag;

    fn pair() -> [Liveness; 2] {
        let mut ranks = [1, 2].map(|seed| Liveness::new(Ipv4Addr::LOCALHOST.into(), [seed; 16]).unwrap());
        let addresses = [0, 1].map(|rank: usize| Some((ranks[rank].address().unwrap(), ranks[rank].token)));
        ranks[0].add_peer(None);
        ranks[0].add_peer(addresses[1]);
        ranks[1].add_peer(addresses[0]);
        ranks[1].add_peer(None);
        ranks
    }

    /// What is heard, once something is.
    fn heard(rank: &mut Liveness) -> News {
        let start = Instant::now();
        loop {
            if let Some(news) = rank.look() {
                return news;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "nothing is heard");
        }
    }

    #[test]
    fn a_rank_that_goes_without_a_word_has_died() {
        let [mut watcher, watched] = pair();
        assert_eq!(watcher.watch(Rank(1)), None);
        assert_eq!(watcher.look(), None, "it does nothing, and lives");
        drop(watched);
        assert_eq!(heard(&mut watcher), News::Died(Rank(1)));
        let news = watcher.watch(Rank(1)).unwrap_or_else(|| heard(&mut watcher));
        assert_eq!(news, News::Gone(Rank(1)), "nobody listens there any more");
    }

    #[test]
    fn watchers_are_told_even_if_nobody_had_taken_their_connection() {
        let [mut watcher, mut watched] = pair();
        watcher.watch(Rank(1));
        watched.answer(Closed::Left);
        drop(watched);
        assert_eq!(heard(&mut watcher), News::Gone(Rank(1)));
    }

    #[test]
    fn a_failure_reaches_those_who_do_not_watch() {
        let [mut failing, mut other] = pair();
        failing.tell_all(Closed::Failed(Failure::PeerLost(Rank(1))));
        drop(failing);
        assert_eq!(heard(&mut other), News::Failed(Failure::PeerLost(Rank(1))));
    }

    #[test]
    fn withdrawals_arrive() {
        let [mut sender, mut receiver] = pair();
        let messages = [1, 2, 3].map(|serial| Withdrawal { tag: Tag(9), serial });
        messages.iter().for_each(|message| sender.withdraw(Rank(1), *message));
        let start = Instant::now();
        while receiver.withdrawn.len() < 3 && start.elapsed() < Duration::from_secs(10) {
            assert_eq!((sender.look(), receiver.look()), (None, None));
        }
        assert_eq!(receiver.withdrawn, messages);
    }
}
