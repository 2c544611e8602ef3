//! Exchanging file descriptors with the ranks of this host, over Unix sockets.
//!
//! Every rank listens on an abstract address with a random name that the rendezvous distributes. Of two
//! ranks the higher one calls. The kernel shows that both belong to the same user, and both prove that they
//! hold the job's key (see [`proof`](super::proof)) before any descriptor is sent:
//!
//! | step | who | bytes |
//! | --- | --- | --- |
//! | 1 | caller | its opening |
//! | 2 | answerer | its own opening |
//! | 3 | caller | its proof |
//! | 4 | answerer | its own proof, with its descriptors |
//! | 5 | caller | one byte, with its descriptors |

use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, Builder};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg,
    send, sendmsg, socket_with,
};
use rustix::process::geteuid;

use super::deadline::{Deadline, nap};
use super::host::SOCKET_NAME_BYTES;
use super::key::hex;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, prove, verify};
use crate::shm::{Credentials, GIVEN, Gift};
use crate::{Error, Rank, Result};

/// Callers served at a time; others are closed, and call again.
const MAX_CALLERS: usize = 512;

/// The number of the connection that this rank makes, among those that it serves.
const OWN_CALL: u64 = u64::MAX;

/// The longest that a read or write blocks.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a listener is polled, and the pause between two calls.
const POLL: Duration = Duration::from_millis(20);

/// The byte that the caller's descriptors come with.
const DESCRIPTORS: u8 = 1;

/// The random name of a rank's socket.
type SocketName = [u8; SOCKET_NAME_BYTES];

/// The descriptors for a local peer.
type Give<'give> = &'give (dyn Fn(Rank) -> Result<[BorrowedFd<'give>; GIVEN]> + Sync);

/// The socket on which this rank waits for its local peers.
pub(super) struct FdExchange {
    listener: UnixListener,
    /// The user whose ranks are served.
    user: u32,
}

impl FdExchange {
    /// Listens under this name.
    ///
    /// # Errors
    /// [`Error::System`] when the name is taken or the system refuses.
    pub(super) fn open(name: &SocketName) -> Result<Self> {
        let failed = |error| Error::system("can't listen for the ranks of this host", error);
        let listener = || {
            let listener = socket()?;
            bind(&listener, &address(name)?)?;
            listen(&listener, MAX_CALLERS as i32)?;
            Ok::<_, std::io::Error>(listener.into())
        };
        Ok(Self { listener: listener().map_err(failed)?, user: geteuid().as_raw() })
    }

    /// Sends every local peer its descriptors and receives theirs. `peers` are the other ranks of the host
    /// with their sockets' names.
    ///
    /// Blocks until all descriptors have come, the deadline has passed, or `check` fails; all local peers must
    /// call it.
    ///
    /// # Errors
    /// [`Error::MissingRanks`] names the ranks without descriptors at the deadline; [`Error::System`] when no
    /// thread can be started; what `check` returns.
    pub(super) fn exchange(
        &self,
        party: &Party,
        peers: &[(Rank, SocketName)],
        give: Give<'_>,
        deadline: Deadline,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<(Rank, Gift)>> {
        let exchange = &self.begin(party, give, deadline);
        let mut received: Vec<(Rank, Gift)> = Vec::with_capacity(peers.len());
        let is_missing =
            |rank: Rank, received: &[(Rank, Gift)]| received.iter().all(|(giver, _)| *giver != rank);
        thread::scope(|scope| -> Result<()> {
            let (report, reports) = channel();
            let (called, calling) = (peers.iter().filter(|(rank, _)| rank.0 < party.rank), report.clone());
            let caller = Builder::new().spawn_scoped(scope, move || {
                for (rank, name) in called {
                    if let Some(gift) = exchange.call_until_over(*rank, name) {
                        let _ = calling.send((*rank, gift));
                    }
                }
            });
            caller.map_err(|error| {
                Error::system("can't start a thread that calls the ranks of this host", error)
            })?;
            let mut checked = Ok(());
            for number in 0..OWN_CALL {
                if received.len() == peers.len() || deadline.passed() || checked.is_err() {
                    break;
                }
                let is_accepted = |_: &_| exchange.streams.lock().len() < MAX_CALLERS;
                if let Some((stream, copy)) = self.accept().filter(is_accepted) {
                    let report = report.clone();
                    exchange.streams.lock().insert(number, copy);
                    let answering = Builder::new().spawn_scoped(scope, move || {
                        match exchange.answer(stream) {
                            Ok(gift) => drop(report.send(gift)),
                            Err(error) => tracing::warn!(%error, "turned away a caller on this host"),
                        }
                        exchange.streams.lock().remove(&number);
                    });
                    if let Err(error) = answering {
                        // The connection is closed, and the peer calls again.
                        tracing::warn!(%error, "can't start a thread for a caller on this host");
                        exchange.streams.lock().remove(&number);
                    }
                }
                for (rank, gift) in reports.try_iter() {
                    if peers.iter().any(|(peer, _)| *peer == rank) && is_missing(rank, &received) {
                        received.push((rank, gift));
                    }
                }
                checked = check();
            }
            exchange.cancelled.store(checked.is_err(), Ordering::Relaxed);
            for stream in exchange.streams.lock().values() {
                // Wakes the threads that still read. A connection that has ended needs no shutdown.
                let _ = stream.shutdown(Shutdown::Both);
            }
            checked
        })?;
        let missing = peers.iter().map(|(rank, _)| *rank).filter(|rank| is_missing(*rank, &received));
        let missing: Vec<Rank> = missing.collect();
        if missing.is_empty() {
            return Ok(received);
        }
        Err(Error::MissingRanks { missing, deadline: deadline.given(), master: "their neighbours".into() })
    }

    fn begin<'a, 'give>(
        &self,
        party: &'a Party,
        give: Give<'give>,
        deadline: Deadline,
    ) -> Exchange<'a, 'give> {
        let (streams, cancelled) = (Mutex::default(), AtomicBool::new(false));
        Exchange { party, give, deadline, user: self.user, streams, cancelled }
    }

    /// A caller of this user, if one comes soon, and a second handle to shut it down with.
    fn accept(&self) -> Option<(UnixStream, UnixStream)> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: POLL.subsec_nanos().into() };
        // A signal makes the poll shorter.
        let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout));
        let (stream, _) = self.listener.accept().ok()?;
        // Every user can see the address.
        check_user(&stream, self.user).ok()?;
        stream.set_nonblocking(false).ok()?;
        let copy = stream.try_clone().ok()?;
        Some((stream, copy))
    }
}

/// One exchange, as the threads of this rank share it.
struct Exchange<'a, 'give> {
    party: &'a Party,
    give: Give<'give>,
    deadline: Deadline,
    /// The user of all peers.
    user: u32,
    /// Second handles to shut down the connections in use, by number.
    streams: Mutex<HashMap<u64, UnixStream>>,
    cancelled: AtomicBool,
}

impl Exchange<'_, '_> {
    fn is_over(&self) -> bool {
        self.deadline.passed() || self.cancelled.load(Ordering::Relaxed)
    }

    /// Calls a local peer until it has sent its descriptors or the exchange is over.
    fn call_until_over(&self, peer: Rank, name: &SocketName) -> Option<Gift> {
        let call = || {
            let stream = dial(name).map_err(failed)?;
            // Either this thread sees that the exchange is over, or the stream is shut down with the others.
            self.streams.lock().insert(OWN_CALL, stream.try_clone().map_err(failed)?);
            if self.is_over() { Err(failed(ErrorKind::TimedOut.into())) } else { self.call(peer, stream) }
        };
        loop {
            let called = call();
            self.streams.lock().remove(&OWN_CALL);
            match called {
                Ok(gift) => return Some(gift),
                Err(error) => {
                    tracing::debug!(%peer, %error, "can't get the shared memory of a neighbour yet")
                }
            }
            if self.is_over() {
                return None;
            }
            nap(POLL.min(self.deadline.remaining()), thread::sleep);
        }
    }

    fn call(&self, peer: Rank, stream: UnixStream) -> Result<Gift> {
        check_user(&stream, self.user)?;
        let mut connection = Connection::new(stream, self.deadline)?;
        let mine = self.party.opening(Purpose::FdExchange, Role::Caller, peer.0)?;
        connection.write(&mine.encode())?;
        let theirs = connection.read_opening()?;
        if !theirs.fits(&mine) {
            return Err(stranger());
        }
        let (key, caller, answerer) = (&self.party.key, mine.encode(), theirs.encode());
        connection.write(&prove(key, Role::Caller, &caller, &answerer))?;
        let mut proof = [0; PROOF_BYTES];
        let gift = connection.read_descriptors(&mut proof)?;
        if !verify(key, Role::Answerer, &caller, &answerer, &proof) {
            return Err(stranger());
        }
        connection.write_descriptors(&[DESCRIPTORS], &(self.give)(peer)?)?;
        Ok(gift)
    }

    fn answer(&self, stream: UnixStream) -> Result<(Rank, Gift)> {
        let (party, mut connection) = (self.party, Connection::new(stream, self.deadline)?);
        let theirs = connection.read_opening()?;
        let mine = party.opening(Purpose::FdExchange, Role::Answerer, theirs.rank)?;
        let is_of_job = (&theirs.job, theirs.world_size) == (&party.job, party.world_size);
        if !theirs.fits(&mine) || theirs.rank <= party.rank || !is_of_job {
            return Err(stranger());
        }
        connection.write(&mine.encode())?;
        let (caller, answerer) = (theirs.encode(), mine.encode());
        let mut proof = [0; PROOF_BYTES];
        connection.read(&mut proof)?;
        if !verify(&party.key, Role::Caller, &caller, &answerer, &proof) {
            return Err(stranger());
        }
        let own = (self.give)(Rank(theirs.rank))?;
        connection.write_descriptors(&prove(&party.key, Role::Answerer, &caller, &answerer), &own)?;
        Ok((Rank(theirs.rank), connection.read_descriptors(&mut [0])?))
    }
}

/// Refuses a peer of another user, which the kernel tells.
fn check_user(stream: &UnixStream, expected: u32) -> Result<()> {
    let Credentials { user, .. } = Credentials::of_peer(stream.as_fd()).map_err(failed)?;
    if user == expected {
        return Ok(());
    }
    Err(Error::Unauthenticated { who: format!("a process of user {user}") })
}

/// A blocking connection with timeouts.
struct Connection(UnixStream);

impl Connection {
    fn new(stream: UnixStream, deadline: Deadline) -> Result<Self> {
        let patience = Some(PATIENCE.min(deadline.remaining()).max(Duration::from_millis(1)));
        stream.set_read_timeout(patience).map_err(failed)?;
        stream.set_write_timeout(patience).map_err(failed)?;
        Ok(Self(stream))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.0.read_exact(bytes).map_err(failed)
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let sent = retry_on_intr(|| send(&self.0, bytes, SendFlags::NOSIGNAL));
            bytes = &bytes[sent.map_err(|error| failed(error.into()))?..];
        }
        Ok(())
    }

    fn read_opening(&mut self) -> Result<Opening> {
        let mut bytes = [0; OPENING_BYTES];
        self.read(&mut bytes)?;
        Opening::decode(&bytes).ok_or_else(stranger)
    }

    /// Sends bytes, and the descriptors with them.
    fn write_descriptors(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>; GIVEN]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(failed(std::io::Error::other("no room for descriptors")));
        }
        // A socket with a timeout is interrupted also by handlers that restart system calls.
        let sent =
            retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL));
        self.write(&bytes[sent.map_err(|error| failed(error.into()))?..])
    }

    /// Receives bytes and the descriptors that came with them; a wrong number of them is closed.
    fn read_descriptors(&mut self, bytes: &mut [u8]) -> Result<Gift> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let places = &mut [IoSliceMut::new(bytes)];
        let received = retry_on_intr(|| recvmsg(&self.0, places, &mut ancillary, RecvFlags::CMSG_CLOEXEC));
        let count = received.map_err(|error| failed(error.into()))?.bytes;
        let mut descriptors: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        self.read(&mut bytes[count..])?;
        let descriptors = descriptors.try_into().map_err(|_| stranger())?;
        let Credentials { process, .. } = Credentials::of_peer(self.0.as_fd()).map_err(failed)?;
        Ok(Gift { descriptors, process })
    }
}

/// Connects to a socket of this name; fails at once when its listen queue is full.
fn dial(name: &SocketName) -> std::io::Result<UnixStream> {
    let caller = socket()?;
    connect(&caller, &address(name)?)?;
    let stream = UnixStream::from(caller);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A non-blocking socket.
fn socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn address(name: &SocketName) -> std::io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("brevity-{}", hex(name)).as_bytes())?)
}

fn failed(error: std::io::Error) -> Error {
    Error::system("can't talk to a rank on this host", error)
}

fn stranger() -> Error {
    Error::Unauthenticated { who: "a process on this host".into() }
}

#[cfg(test)]
#[path = "fd_exchange_tests.rs"]
mod tests;
