//! Giving descriptors to the ranks of this host and getting theirs, over Unix sockets.
//!
//! Every rank waits at a door: an abstract address with a random name that is told at the rendezvous. Of two
//! ranks the higher calls. Both are of the same user, by the word of the kernel, and both prove that they
//! hold the job's key (see [`proof`](super::proof)) before anything is given:
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
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
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
use super::host::DOOR_BYTES;
use super::key::hex;
use super::proof::{OPENING_BYTES, Opening, PROOF_BYTES, Party, Purpose, Role, prove, verify};
use crate::shm::{Credentials, GIVEN, Gift};
use crate::{Error, Rank, Result};

/// Callers that are heard at the same time; more are turned away, and neighbours call again.
const MAX_HEARD: usize = 512;

/// The number of the neighbour that is called, among those who are heard.
const OWN_CALL: u64 = u64::MAX;

/// How long a caller that says nothing is heard.
const HEARING: Duration = Duration::from_secs(5);

/// How long the answerer looks for callers before it looks whether it needs more.
const GLANCE: Duration = Duration::from_millis(20);

/// The byte of the caller's gift.
const GIFT: u8 = 1;

/// What this rank gives to a neighbour.
type Give<'give> = &'give (dyn Fn(Rank) -> Result<[BorrowedFd<'give>; GIVEN]> + Sync);

/// Where this rank waits for its neighbours.
pub(super) struct Door {
    listener: UnixListener,
    /// The user whose ranks are let in.
    user: u32,
}

impl Door {
    /// Opens the door of this name.
    ///
    /// # Errors
    /// [`Error::System`] when the name is taken or the system refuses.
    pub(super) fn open(name: &[u8; DOOR_BYTES]) -> Result<Self> {
        let failed = |error| Error::system("can't listen for the ranks of this host", error);
        let listener = || {
            let listener = socket()?;
            bind(&listener, &address(name)?)?;
            listen(&listener, MAX_HEARD as i32)?;
            Ok::<_, std::io::Error>(listener.into())
        };
        Ok(Self { listener: listener().map_err(failed)?, user: geteuid().as_raw() })
    }

    /// Gives every neighbour what is for it, and gets theirs. `neighbours` are the other ranks of the host
    /// with their doors.
    ///
    /// Blocks until all have given, the deadline has passed, or `check` says in between that it is all in
    /// vain; all neighbours must call it.
    ///
    /// # Errors
    /// [`Error::MissingRanks`] names who has not given by the deadline; [`Error::System`] when there is no
    /// thread to call with; what `check` returns.
    pub(super) fn exchange(
        &self,
        party: &Party,
        neighbours: &[(Rank, [u8; DOOR_BYTES])],
        give: Give<'_>,
        deadline: Deadline,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<(Rank, Gift)>> {
        let (report, reports) = channel();
        // Those who are heard now, by their number, and who is called, each with a second handle to end it
        // with.
        let heard = Mutex::new(HashMap::new());
        let in_vain = AtomicBool::new(false);
        let mut gifts: Vec<(Rank, Gift)> = Vec::with_capacity(neighbours.len());
        std::thread::scope(|scope| -> Result<()> {
            let called = neighbours.iter().filter(|(rank, _)| rank.0 < party.rank);
            let (calling, in_vain, heard) = (report.clone(), &in_vain, &heard);
            let caller = Builder::new().spawn_scoped(scope, move || {
                for (rank, door) in called {
                    let is_over = || deadline.passed() || in_vain.load(Ordering::Relaxed);
                    // Who is called when it is over ends with those who are heard: one of the two sees the
                    // other.
                    let begin = |stream: &UnixStream| {
                        heard.lock().insert(OWN_CALL, stream.try_clone().map_err(failed)?);
                        if is_over() { Err(failed(ErrorKind::TimedOut.into())) } else { Ok(()) }
                    };
                    if let Some(gift) = self.call_until(party, (*rank, door), give, deadline, begin, is_over)
                    {
                        let _ = calling.send((*rank, gift));
                    }
                    heard.lock().remove(&OWN_CALL);
                }
            });
            caller.map_err(|error| {
                Error::system("can't start a thread that calls the ranks of this host", error)
            })?;
            let mut numbers = 0..OWN_CALL;
            let mut checked = Ok(());
            while gifts.len() < neighbours.len() && !deadline.passed() && checked.is_ok() {
                if let Some((stream, copy)) = self.accept() {
                    let report = report.clone();
                    if heard.lock().len() < MAX_HEARD
                        && let Some(number) = numbers.next()
                    {
                        heard.lock().insert(number, copy);
                        let answering = Builder::new().spawn_scoped(scope, move || {
                            match answer(party, stream, give, deadline) {
                                Ok(gift) => drop(report.send(gift)),
                                Err(error) => tracing::warn!(%error, "turned away a caller on this host"),
                            }
                            heard.lock().remove(&number);
                        });
                        if let Err(error) = answering {
                            // Its connection ends, and it calls again.
                            tracing::warn!(%error, "no thread to hear a caller on this host with");
                            heard.lock().remove(&number);
                        }
                    }
                }
                collect(&reports, neighbours, &mut gifts);
                checked = check();
            }
            in_vain.store(checked.is_err(), Ordering::Relaxed);
            for stream in heard.lock().values() {
                // Who still says nothing is not waited for. A connection that is gone needs no end.
                let _ = stream.shutdown(Shutdown::Both);
            }
            checked
        })?;
        let has_given = |rank: &Rank| gifts.iter().any(|(giver, _)| giver == rank);
        let missing: Vec<Rank> =
            neighbours.iter().map(|(rank, _)| *rank).filter(|rank| !has_given(rank)).collect();
        if missing.is_empty() {
            return Ok(gifts);
        }
        Err(Error::MissingRanks { missing, deadline: deadline.given(), master: "their neighbours".into() })
    }

    /// A caller, if one comes soon, and a second handle to end it with.
    fn accept(&self) -> Option<(UnixStream, UnixStream)> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: GLANCE.subsec_nanos().into() };
        // An interrupted look is a short look.
        let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout));
        let (stream, _) = self.listener.accept().ok()?;
        // Other users are not heard at all: anybody can see the address.
        self.check_user(&stream).ok()?;
        stream.set_nonblocking(false).ok()?;
        let copy = stream.try_clone().ok()?;
        Some((stream, copy))
    }

    /// Calls a neighbour until it has given or nobody wants it any more.
    fn call_until(
        &self,
        party: &Party,
        (peer, door): (Rank, &[u8; DOOR_BYTES]),
        give: Give<'_>,
        deadline: Deadline,
        begin: impl Fn(&UnixStream) -> Result<()>,
        is_over: impl Fn() -> bool,
    ) -> Option<Gift> {
        let call = || {
            let stream = dial(door).map_err(failed)?;
            begin(&stream)?;
            self.call(party, peer, stream, give, deadline)
        };
        loop {
            match call() {
                Ok(gift) => return Some(gift),
                Err(error) => {
                    tracing::debug!(%peer, %error, "can't get the shared memory of a neighbour yet")
                }
            }
            if is_over() {
                return None;
            }
            nap(GLANCE.min(deadline.remaining()), std::thread::sleep);
        }
    }

    fn call(
        &self,
        party: &Party,
        peer: Rank,
        stream: UnixStream,
        give: Give<'_>,
        deadline: Deadline,
    ) -> Result<Gift> {
        self.check_user(&stream)?;
        let mut line = Line::new(stream, deadline)?;
        let mine = party.opening(Purpose::Passing, Role::Caller, peer.0)?;
        line.write(&mine.encode())?;
        let theirs = line.read_opening()?;
        if (theirs.purpose, theirs.role, theirs.rank, theirs.peer)
            != (Purpose::Passing, Role::Answerer, peer.0, party.rank)
        {
            return Err(stranger());
        }
        let (caller, answerer) = (mine.encode(), theirs.encode());
        line.write(&prove(&party.key, Role::Caller, &caller, &answerer))?;
        let mut proof = [0; PROOF_BYTES];
        let gift = line.read_gift(&mut proof)?;
        if !verify(&party.key, Role::Answerer, &caller, &answerer, &proof) {
            return Err(stranger());
        }
        line.write_gift(&[GIFT], &give(peer)?)?;
        Ok(gift)
    }

    /// Whoever is at the other end is of this rank's user, by the word of the kernel.
    fn check_user(&self, stream: &UnixStream) -> Result<()> {
        let Credentials { user, .. } = Credentials::of_peer(stream.as_fd()).map_err(failed)?;
        if user == self.user {
            return Ok(());
        }
        Err(Error::Unauthenticated { who: format!("a process of user {user}") })
    }
}

/// Takes the gifts that have come, one of each neighbour.
fn collect(
    reports: &Receiver<(Rank, Gift)>,
    neighbours: &[(Rank, [u8; DOOR_BYTES])],
    gifts: &mut Vec<(Rank, Gift)>,
) {
    loop {
        match reports.recv_timeout(Duration::ZERO) {
            Ok((rank, gift)) => {
                let is_expected = neighbours.iter().any(|(neighbour, _)| *neighbour == rank);
                if is_expected && gifts.iter().all(|(giver, _)| *giver != rank) {
                    gifts.push((rank, gift));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn answer(party: &Party, stream: UnixStream, give: Give<'_>, deadline: Deadline) -> Result<(Rank, Gift)> {
    let mut line = Line::new(stream, deadline)?;
    let theirs = line.read_opening()?;
    let is_caller =
        theirs.purpose == Purpose::Passing && theirs.role == Role::Caller && theirs.peer == party.rank;
    if !is_caller
        || theirs.rank <= party.rank
        || theirs.job != party.job
        || theirs.world_size != party.world_size
    {
        return Err(stranger());
    }
    let mine = party.opening(Purpose::Passing, Role::Answerer, theirs.rank)?;
    line.write(&mine.encode())?;
    let (caller, answerer) = (theirs.encode(), mine.encode());
    let mut proof = [0; PROOF_BYTES];
    line.read(&mut proof)?;
    if !verify(&party.key, Role::Caller, &caller, &answerer, &proof) {
        return Err(stranger());
    }
    let own = give(Rank(theirs.rank))?;
    line.write_gift(&prove(&party.key, Role::Answerer, &caller, &answerer), &own)?;
    let gift = line.read_gift(&mut [0])?;
    Ok((Rank(theirs.rank), gift))
}

/// A conversation with a process of the same user, which must not take long.
struct Line(UnixStream);

impl Line {
    fn new(stream: UnixStream, deadline: Deadline) -> Result<Self> {
        let patience = Some(HEARING.min(deadline.remaining()).max(Duration::from_millis(1)));
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

    /// Sends bytes and with them the descriptors.
    fn write_gift(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>; GIVEN]) -> Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(failed(std::io::Error::other("no room for descriptors")));
        }
        // A signal interrupts it even where its handler asks for a restart: the socket has a timeout.
        let sent =
            retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL));
        match sent.map_err(|error| failed(error.into()))? {
            count if count == bytes.len() => Ok(()),
            count => self.write(&bytes[count..]),
        }
    }

    /// Receives bytes and the descriptors that came with them; others are closed.
    fn read_gift(&mut self, bytes: &mut [u8]) -> Result<Gift> {
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

/// A connection to a door; an error at once where as many wait there as the system lets wait.
fn dial(name: &[u8; DOOR_BYTES]) -> std::io::Result<UnixStream> {
    let caller = socket()?;
    connect(&caller, &address(name)?)?;
    let stream = UnixStream::from(caller);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A socket that does not block.
fn socket() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn address(name: &[u8; DOOR_BYTES]) -> std::io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("brevity-{}", hex(name)).as_bytes())?)
}

fn failed(error: std::io::Error) -> Error {
    Error::system("can't talk to a rank on this host", error)
}

fn stranger() -> Error {
    Error::Unauthenticated { who: "a process on this host".into() }
}

#[cfg(test)]
#[path = "passing_tests.rs"]
mod tests;
