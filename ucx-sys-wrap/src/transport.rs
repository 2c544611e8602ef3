//! What every transport does: tagged bytes between two ranks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::memory::{ReadLease, WriteLease};
use crate::{Arrival, Envelope, Error, Failure, MAX_PARTS, OneSided, Rank, Result, Signature};

/// The parts of a message to send, gathered from where they lie.
pub type SendParts = ArrayVec<ReadLease, MAX_PARTS>;

/// The places that a message is received into; each states the most that its part may have.
pub type RecvParts = ArrayVec<WriteLease, MAX_PARTS>;

/// A posted send, until [`Transport::test_send`] has given its parts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub u64);

/// A posted receive, until [`Transport::test_recv`] or [`Transport::recv_outcome`] has given its parts back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvId(pub u64);

/// A send that has ended: the transport does not touch its memory any more.
#[derive(Debug)]
pub struct SendDone {
    /// The leases that were posted, given back.
    pub parts: SendParts,
    /// Whether the bytes are on their way. Completion does not mean that the peer has received them.
    pub result: Result<()>,
}

/// A receive that has ended: the transport does not touch its memory any more.
#[derive(Debug)]
pub struct RecvDone {
    /// The leases that were posted, given back.
    pub parts: RecvParts,
    /// What arrived. After an error the bytes in the parts are unspecified.
    pub result: Result<Arrival>,
}

/// An operation just posted: small ones are often done at once.
#[derive(Debug)]
pub enum Posted<Id, Done> {
    /// It has ended already; there is nothing to test.
    Done(Done),
    /// It goes on; test it until it gives its parts back.
    Pending(Id),
}

impl<Id, Done> Posted<Id, Done> {
    /// The same, with `f` of what has ended.
    #[inline]
    pub fn map<T>(self, f: impl FnOnce(Done) -> T) -> Posted<Id, T> {
        match self {
            Self::Done(done) => Posted::Done(f(done)),
            Self::Pending(id) => Posted::Pending(id),
        }
    }
}

/// What a transport has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages posted.
    pub messages_sent: u64,
    /// Bytes handed to the network, headers included.
    pub bytes_sent: u64,
    /// Messages delivered.
    pub messages_received: u64,
    /// Bytes taken from the network, headers included.
    pub bytes_received: u64,
    /// Times that payload was copied inside the process.
    pub copies: u64,
    /// Bytes of payload copied inside the process.
    pub bytes_copied: u64,
    /// Bytes put where the other ranks of the host read them, by collectives over shared memory. No transport
    /// counts these: a group of collectives does.
    pub bytes_shared: u64,
}

/// Counts one copy of payload, unless there is none.
#[inline]
pub(crate) fn count_copy(statistics: &mut Statistics, bytes: usize) {
    statistics.copies += u64::from(bytes > 0);
    statistics.bytes_copied += bytes as u64;
}

/// Tagged messages between this rank and its peers, first in first out per peer and tag.
///
/// A transport is entered by one thread at a time. Memory that it keeps reaches it as leases, which it gives
/// back when the operation has ended; giving a lease back is the promise that nothing reads or writes that
/// memory any more. An operation is pending until its `test` returns `Some`, whatever happens in between:
/// cancel, failure and [`abandon`](Self::abandon) only make that come sooner. Because memory safety rests on
/// that promise, only this crate implements transports.
///
/// Once a peer is lost or the job is aborted, every operation, pending or new, ends with that error.
pub trait Transport: Send + sealed::Sealed {
    /// The name that users choose it by, as "tcp".
    fn name(&self) -> &'static str;

    /// This rank.
    fn rank(&self) -> Rank;

    /// Ranks in the world.
    fn world_size(&self) -> u32;

    /// Posts a message to `to`. A zero-length part is a part; a message may have none.
    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone>;

    /// As [`post_send`](Self::post_send) of a message of one part, for who has no use for the lease: it is
    /// given back all the same. Spares short messages the passing of leases to and fro.
    fn send_one(&mut self, to: Rank, envelope: &Envelope, part: ReadLease) -> Posted<SendId, Result<()>> {
        self.post_send(to, *envelope, one(part)).map(|done| done.result)
    }

    /// Posts a receive of the next message from `from` with the tag of `envelope`.
    ///
    /// The message must have the same number of parts, none longer than its place, and the same signature;
    /// else the receive ends with an error and the message is consumed. What lies behind a shorter part is
    /// unspecified.
    fn post_recv(&mut self, from: Rank, envelope: Envelope, parts: RecvParts) -> Posted<RecvId, RecvDone>;

    /// Asks whether a send has ended. After `Some`, the id is no longer valid.
    fn test_send(&mut self, id: SendId) -> Option<SendDone>;

    /// Asks whether a receive has ended. After `Some`, the id is no longer valid.
    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone>;

    /// As [`test_recv`](Self::test_recv), for who has no use for the leases: they are given back all the
    /// same.
    ///
    /// It may look for the message up to `spins` times first. Who waits for nothing else sees a short message
    /// sooner so than by taking turns.
    fn recv_outcome(&mut self, id: RecvId, _spins: u32) -> Option<Result<Arrival>> {
        self.test_recv(id).map(|done| done.result)
    }

    /// Asks a send to end early. The peer still gets the whole message or none of it. The send must still be
    /// tested.
    fn cancel_send(&mut self, id: SendId);

    /// Asks a receive to end early; a message that was matched is consumed. The receive must still be tested.
    fn cancel_recv(&mut self, id: RecvId);

    /// Moves bytes, without blocking. Says whether anything happened.
    fn progress(&mut self) -> bool;

    /// The transport's clock, from an arbitrary start. Virtual on a simulated network.
    fn now(&self) -> Duration;

    /// Prepares for sleeping: a descriptor that becomes readable when there is something to
    /// [`progress`](Self::progress), or `None` when there is already, or when this transport can't be slept
    /// on.
    fn arm(&mut self) -> Option<Arc<OwnedFd>>;

    /// Watches a peer that this rank waits for by other means than an operation: its death closes the
    /// transport with one of the next calls of [`progress`](Self::progress). Says whether it has left in good
    /// order, which does not.
    ///
    /// Call it again while the wait goes on; it costs little, but not nothing.
    fn watch(&mut self, peer: Rank) -> bool;

    /// Why the transport is closed, once it is.
    fn failure(&self) -> Option<Failure>;

    /// Closes the transport for `cause` and tells the peers. The first cause stays.
    fn fail(&mut self, cause: Failure);

    /// Tears down what is needed so that no leased memory is touched any more; afterwards every operation
    /// ends at its next test. The transport is of no use any more.
    ///
    /// # Errors
    /// When quiet can't be promised. The caller must then keep the memory for ever.
    fn abandon(&mut self) -> Result<()>;

    /// Whether the transport is one of a library that goes with the process, and must
    /// [leave](Self::leave_with_process) before.
    fn stands_on_library(&self) -> bool {
        false
    }

    /// Leaves because the process exits, as if dropped; afterwards every operation ends as after a failure.
    /// Does not enter the library when that is not there any more.
    fn leave_with_process(&mut self, is_library_there: bool) {
        let _ = is_library_there;
    }

    /// Whether the clock is virtual: nothing happens between two turns, and other threads have no business here.
    fn is_simulated(&self) -> bool {
        false
    }

    /// What was sent, received and copied.
    fn statistics(&self) -> Statistics;

    /// Puts and gets on registered memory.
    fn one_sided(&mut self) -> &mut dyn OneSided;
}

/// The only part of a message.
#[inline]
pub(crate) fn one(part: ReadLease) -> SendParts {
    let mut parts = SendParts::new();
    parts.push(part);
    parts
}

/// Refuses a peer that is not one.
pub(crate) fn check_peer(peer: Rank, own: Rank, world_size: u32) -> Result<()> {
    if peer == own || peer.0 >= world_size {
        Err(Error::NoSuchPeer { rank: peer, own, world_size })
    } else {
        Ok(())
    }
}

/// The name of operation `key` with `peer`, where every peer has keys of its own. Below 2^63: there are fewer
/// ranks.
#[inline]
pub(crate) fn join(peer: Rank, key: usize) -> u64 {
    u64::from(peer.0) << 32 | key as u64
}

/// The index of the peer and the key of an operation that [`join`] has named.
#[inline]
pub(crate) fn split(id: u64) -> (usize, usize) {
    ((id >> 32) as usize, id as u32 as usize)
}

/// Refuses a message that a receive may not have: the signature must be the expected one, and every part must
/// have its place; a part too many has a place of 0 bytes, and a place too many a part of 0 bytes.
#[inline]
pub(crate) fn check_message(
    rank: Rank,
    expected: Signature,
    places: &RecvParts,
    found: Signature,
    lengths: &[usize],
) -> Result<()> {
    if found != expected {
        return Err(Error::Mismatch { rank, expected, found });
    }
    if lengths.len() == places.len()
        && lengths.iter().zip(places).all(|(length, place)| *length <= place.len())
    {
        return Ok(());
    }
    Err(too_long(rank, places, lengths))
}

/// Names the first part that has no place.
#[cold]
fn too_long(rank: Rank, places: &RecvParts, lengths: &[usize]) -> Error {
    let part = lengths.iter().zip(places).position(|(length, place)| *length > place.len());
    let part = part.unwrap_or(lengths.len().min(places.len()));
    let sent = lengths.get(part).map_or(0, |length| *length as u64);
    Error::TooLong { rank, part, sent, capacity: places.get(part).map_or(0, |place| place.len()) }
}

pub(crate) mod sealed {
    /// Keeps the implementations of [`Transport`](super::Transport) in this crate.
    pub trait Sealed {}
}
