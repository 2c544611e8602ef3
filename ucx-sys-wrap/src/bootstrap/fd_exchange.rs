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

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg,
    sendmsg, socket_with,
};
use rustix::process::geteuid;

use super::deadline::{Deadline, nap};
use super::host::SOCKET_NAME_BYTES;
use super::key::hex;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, prove, verify};
use crate::shm::{Credentials, PASSED, PassedDescriptors};
use crate::{Error, Rank, Result};

/// Callers served at a time; the others wait in the listen queue.
const MAX_CALLERS: usize = 512;

/// The longest that a connection lasts: a peer that is not ready by then is called again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest sleep between two checks.
const POLL: Duration = Duration::from_millis(20);

/// The byte that the caller's descriptors come with.
const DESCRIPTORS: u8 = 1;

/// The random name of a rank's socket.
type SocketName = [u8; SOCKET_NAME_BYTES];

type Give<'give> = &'give dyn Fn(Rank) -> Result<[BorrowedFd<'give>; PASSED]>;

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
    /// Calls one peer at a time, since the system limits the descriptors in flight. Blocks until all
    /// descriptors have come, the deadline has passed, or `check` fails; all local peers must call it.
    ///
    /// # Errors
    /// [`Error::MissingRanks`] names the ranks without descriptors at the deadline; what `check` returns.
    pub(super) fn exchange(
        &self,
        party: &Party,
        peers: &[(Rank, SocketName)],
        give: Give<'_>,
        deadline: Deadline,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<(Rank, PassedDescriptors)>> {
        let mut received: Vec<(Rank, PassedDescriptors)> = Vec::with_capacity(peers.len());
        let mut called = peers.iter().filter(|(rank, _)| rank.0 < party.rank).peekable();
        let (mut call, mut answers): (Option<Link<'_>>, Vec<Link<'_>>) = (None, Vec::new());
        loop {
            if let Some((rank, name)) = called.peek() {
                let dial = || Link::call(party, *rank, dial(name).map_err(failed)?, self.user);
                let link = call.take().map_or_else(dial, Ok);
                match link.and_then(|mut link| Ok((link.advance(give)?, link))) {
                    Ok((Some(done), _)) => {
                        received.push(done);
                        called.next();
                    }
                    Ok((None, link)) => call = Some(link),
                    Err(error) => {
                        tracing::debug!(%error, "can't get the shared memory of a local peer yet")
                    }
                }
            }
            while answers.len() < MAX_CALLERS
                && let Some(stream) = self.accept()
            {
                answers.extend(Link::answer(party, stream));
            }
            answers.retain_mut(|link| match link.advance(give) {
                Ok(None) => true,
                Ok(Some((rank, passed))) => {
                    let is_peer = peers.iter().any(|(peer, _)| *peer == rank);
                    if is_peer && received.iter().all(|(sender, _)| *sender != rank) {
                        received.push((rank, passed));
                    }
                    false
                }
                Err(error) => {
                    tracing::warn!(%error, "turned away a caller on this host");
                    false
                }
            });
            let missing = peers.iter().map(|(rank, _)| *rank);
            let missing = missing.filter(|rank| received.iter().all(|(sender, _)| sender != rank));
            let missing: Vec<Rank> = missing.collect();
            if missing.is_empty() {
                return Ok(received);
            }
            if deadline.passed() {
                let master = "their local peers".into();
                return Err(Error::MissingRanks { missing, deadline: deadline.given, master });
            }
            check()?;
            let listener = (answers.len() < MAX_CALLERS).then_some(self.listener.as_fd());
            let links = call.iter().chain(&answers).map(|link| link.stream.as_fd());
            let events = links.chain(listener).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let mut events: Vec<PollFd<'_>> = events.collect();
            // A signal makes the sleep shorter.
            let _ = nap(POLL.min(deadline.remaining()), |longest| {
                poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() }))
            });
        }
    }

    /// The next caller of this user. Callers of other users are closed: every user can see the address.
    fn accept(&self) -> Option<UnixStream> {
        let (stream, _) = self.listener.accept().ok()?;
        check_user(&stream, self.user).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    }
}

/// A non-blocking connection with a local peer, until both have sent their descriptors.
struct Link<'a> {
    party: &'a Party,
    stream: UnixStream,
    since: Instant,
    mine: Opening,
    theirs: Option<Opening>,
    /// Answerer: the caller's proof was valid, and this end has sent its own with its descriptors.
    proven: bool,
    arrived: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl<'a> Link<'a> {
    /// Begins to call `peer`, which must be of this user.
    fn call(party: &'a Party, peer: Rank, stream: UnixStream, user: u32) -> Result<Self> {
        check_user(&stream, user)?;
        let mine = party.opening(Purpose::FdExchange, Role::Caller, peer.0)?;
        send(&stream, &mine.encode(), &[])?;
        Ok(Self::new(party, stream, mine))
    }

    fn answer(party: &'a Party, stream: UnixStream) -> Result<Self> {
        Ok(Self::new(party, stream, party.opening(Purpose::FdExchange, Role::Answerer, 0)?))
    }

    fn new(party: &'a Party, stream: UnixStream, mine: Opening) -> Self {
        let (since, arrived, descriptors) = (Instant::now(), Vec::new(), Vec::new());
        Self { party, stream, since, mine, theirs: None, proven: false, arrived, descriptors }
    }

    /// Makes as much progress as is possible without blocking; `Some` once both have sent their descriptors.
    fn advance(&mut self, give: Give<'_>) -> Result<Option<(Rank, PassedDescriptors)>> {
        let done = self.try_advance(give)?;
        if done.is_none() && self.since.elapsed() > PATIENCE {
            return Err(failed(ErrorKind::TimedOut.into()));
        }
        Ok(done)
    }

    fn try_advance(&mut self, give: Give<'_>) -> Result<Option<(Rank, PassedDescriptors)>> {
        let (key, is_caller) = (&self.party.key, self.mine.role == Role::Caller);
        if self.theirs.is_none() {
            let Some(bytes) = self.receive::<OPENING_BYTES>()? else { return Ok(None) };
            let theirs =
                Opening::decode(&bytes).filter(|theirs| self.is_peer(theirs)).ok_or_else(stranger)?;
            if is_caller {
                let proof = prove(key, Role::Caller, &self.mine.encode(), &theirs.encode());
                send(&self.stream, &proof, &[])?;
            } else {
                self.mine.peer = theirs.rank;
                send(&self.stream, &self.mine.encode(), &[])?;
            }
            self.theirs = Some(theirs);
        }
        let Some(theirs) = self.theirs.clone() else { return Ok(None) };
        let peer = Rank(theirs.rank);
        if !self.proven {
            let Some(proof) = self.receive::<PROOF_BYTES>()? else { return Ok(None) };
            let (caller, answerer) = if is_caller { (&self.mine, &theirs) } else { (&theirs, &self.mine) };
            let (caller, answerer) = (caller.encode(), answerer.encode());
            if !verify(key, theirs.role, &caller, &answerer, &proof) {
                return Err(stranger());
            }
            if is_caller {
                let passed = self.take_descriptors()?;
                send(&self.stream, &[DESCRIPTORS], &give(peer)?)?;
                return Ok(Some((peer, passed)));
            }
            send(&self.stream, &prove(key, Role::Answerer, &caller, &answerer), &give(peer)?)?;
            self.proven = true;
        }
        let Some([_]) = self.receive()? else { return Ok(None) };
        Ok(Some((peer, self.take_descriptors()?)))
    }

    /// Whether the peer may be at the other end: the called one, or a higher one of this job.
    fn is_peer(&self, theirs: &Opening) -> bool {
        let Self { mine, .. } = self;
        let is_of_job = (&theirs.job, theirs.world_size) == (&mine.job, mine.world_size);
        theirs.fits(mine) && (mine.role == Role::Caller || theirs.rank > mine.rank && is_of_job)
    }

    /// The next `N` bytes, once all have arrived. Keeps the descriptors of the first message that comes when
    /// the peer may send some; others are closed.
    fn receive<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        while self.arrived.len() < N {
            let (mut bytes, missing) = ([0; N], N - self.arrived.len());
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let places = &mut [IoSliceMut::new(&mut bytes[..missing])];
            let count = match recvmsg(&self.stream, places, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) if message.bytes == 0 => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(message) => message.bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed(error.into())),
            };
            self.arrived.extend_from_slice(&bytes[..count]);
            let is_awaited = self.theirs.is_some() && (self.mine.role == Role::Caller || self.proven);
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = message
                    && is_awaited
                    && self.descriptors.is_empty()
                {
                    self.descriptors.extend(received);
                }
            }
        }
        Ok(take(&mut self.arrived).try_into().ok())
    }

    fn take_descriptors(&mut self) -> Result<PassedDescriptors> {
        let descriptors = take(&mut self.descriptors).try_into().map_err(|_| stranger())?;
        let Credentials { process, .. } = Credentials::of_peer(self.stream.as_fd()).map_err(failed)?;
        Ok(PassedDescriptors { descriptors, process })
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

/// Sends a few bytes, and descriptors with them. All messages of a connection fit in the socket's buffer.
fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(failed(std::io::Error::other("no room for descriptors")));
    }
    let sent = retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL));
    match sent.map_err(|error| failed(error.into()))? {
        count if count == bytes.len() => Ok(()),
        _ => Err(failed(ErrorKind::WriteZero.into())),
    }
}

/// Connects to a socket of this name; fails at once when its listen queue is full.
fn dial(name: &SocketName) -> std::io::Result<UnixStream> {
    let caller = socket()?;
    connect(&caller, &address(name)?)?;
    Ok(caller.into())
}

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
