//! The interface of all transports: tagged messages between ranks.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use crate::memory::{ReadLease, WriteLease};
use crate::on_end::OnEnd;
use crate::{AccessId, Arrival, Envelope, Error, Failure, MAX_PARTS, OneSided, Rank, Result, Signature, Tag};

pub use crate::wanted::{Found, Wanted};

/// The parts of a message to send.
pub type SendParts = ArrayVec<ReadLease, MAX_PARTS>;

/// The buffers that the parts of a message are received into; each lease states the capacity of its part.
pub type RecvParts = ArrayVec<WriteLease, MAX_PARTS>;

/// A posted send, valid until [`Transport::test_send`] has returned its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub u64);

/// A posted receive, valid until [`Transport::test_recv`] or [`Transport::recv_outcome`] has ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvId(pub u64);

/// An operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationId {
    /// A send.
    Send(SendId),
    /// A receive.
    Recv(RecvId),
    /// A put, get or flush.
    Access(AccessId),
}

/// A send that has ended: the transport no longer accesses its memory.
#[derive(Debug)]
pub struct SendDone {
    /// The leases that were posted.
    pub parts: SendParts,
    /// Whether the message was accepted for sending. This does not mean that the peer has received it.
    pub result: Result<()>,
}

/// A receive that has ended: the transport no longer accesses its memory.
#[derive(Debug)]
pub struct RecvDone {
    /// The leases that were posted.
    pub parts: RecvParts,
    /// What arrived. After an error the bytes in the parts are unspecified.
    pub result: Result<Arrival>,
}

/// The result of posting an operation. Small operations often end at once.
#[derive(Debug)]
pub enum Posted<Id, Done> {
    /// It has already ended; there is nothing to test.
    Done(Done),
    /// It is in flight and must be tested until it ends.
    Pending(Id),
}

impl<Id, Done> Posted<Id, Done> {
    /// Applies `f` to an operation that has ended.
    #[inline]
    pub fn map<T>(self, f: impl FnOnce(Done) -> T) -> Posted<Id, T> {
        match self {
            Self::Done(done) => Posted::Done(f(done)),
            Self::Pending(id) => Posted::Pending(id),
        }
    }
}

/// Some of a context's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those of all epochs but one.
    OfOtherEpochs(u8),
    /// Those of one epoch from one rank.
    From(Rank, u8),
}

impl Which {
    /// Whether a message of this tag and signature is one of them.
    #[must_use]
    pub fn includes(self, tag: Tag, signature: Signature) -> bool {
        match self {
            Self::All => true,
            Self::OfOtherEpochs(epoch) => signature.epoch() != epoch,
            Self::From(source, epoch) => tag.source() == source && signature.epoch() == epoch,
        }
    }
}

/// What a member of a context tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The context's number, the group of its tags.
    pub context: u16,
    /// The context's epoch: another one means another context.
    pub epoch: u8,
    /// What it tells.
    pub said: Said,
}

/// The content of a [`Notice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has closed the context, for this cause.
    Closed(Failure),
    /// It waits, and its last call on the context is this one.
    Waits(CallDigest),
}

/// A call on a context, and what it and all calls before it were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallDigest {
    /// The call's number. Only the low 24 bits count, and travel.
    pub number: u32,
    /// The digest of all calls up to this one.
    pub digest: u32,
}

/// The kind of [`Said::Waits`] in its number for the wire, above those of causes.
const WAITS: u64 = 5;

impl Notice {
    /// Tells that a context was closed.
    #[must_use]
    pub const fn closed(context: u16, epoch: u8, cause: Failure) -> Self {
        Self { context, epoch, said: Said::Closed(cause) }
    }
}

impl Said {
    /// As a number of 64 bits, for the wire: a cause, or from the top a kind of 8 bits, the call's number and
    /// its digest.
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Closed(cause) => cause.encode(),
            Self::Waits(CallDigest { number, digest }) => {
                WAITS << 56 | u64::from(number & 0xff_ffff) << 32 | u64::from(digest)
            }
        }
    }

    /// From a peer's number; `None` for one that no rank of the world sends.
    pub(crate) fn decode(bits: u64, world_size: u32) -> Option<Self> {
        if bits >> 56 == WAITS {
            let number = (bits >> 32) as u32 & 0xff_ffff;
            return Some(Self::Waits(CallDigest { number, digest: bits as u32 }));
        }
        Failure::decode(bits, world_size).map(Self::Closed)
    }
}

/// What a transport has learned of its peers.
#[derive(Clone, Debug)]
pub enum News {
    /// A peer tells that it has closed a context.
    Told(Rank, Notice),
    /// A peer is lost; the error of the operations with it.
    Lost(Rank, Error),
    /// The transport as a whole has ended, for this cause: every operation ends with this error.
    Ended(Failure, Error),
}

/// The counters of a transport.
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
    /// Copies of payload inside the process.
    pub copies: u64,
    /// Bytes of payload copied inside the process.
    pub bytes_copied: u64,
    /// Bytes that collectives over shared memory made visible to other ranks of the host. Counted by groups
    /// of collectives, not by transports.
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
/// One thread at a time uses a transport. It holds memory as leases and returns each when its operation has
/// ended: then nothing reads or writes that memory any more. An operation is pending until its `test` returns
/// `Some`; cancel, failure and [`abandon`](Self::abandon) only make it end sooner. Because memory safety
/// depends on this, only this crate implements transports.
///
/// Once a peer is lost, every operation with it, pending or new, ends with that error; others go on. A peer
/// that has left in good order is lost as soon as an operation needs it: what it sent before can still be
/// received. The [port](crate::buffer::Port) closes the contexts that the lost rank is a member of.
///
/// A message whose signature has another [epoch](Signature::epoch) than the receive of its tag belongs to an
/// earlier context of the same number: it is dropped, as if received, and the receive goes on waiting.
pub trait Transport: Send + sealed::Sealed {
    /// The name of the transport, as "tcp".
    fn name(&self) -> &'static str;

    /// This rank.
    fn rank(&self) -> Rank;

    /// The number of ranks in the world.
    fn world_size(&self) -> u32;

    /// Posts a message to `to` of any number of parts, possibly empty ones.
    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone>;

    /// Like [`post_send`](Self::post_send) of one part, but drops the lease, which is faster for short
    /// messages.
    fn send_one(&mut self, to: Rank, envelope: &Envelope, part: ReadLease) -> Posted<SendId, Result<()>> {
        self.post_send(to, *envelope, one(part)).map(|done| done.result)
    }

    /// Posts a receive of the next message from `from` with the tag of `envelope`.
    ///
    /// The message must have the same signature and number of parts, none longer than its buffer; otherwise
    /// the receive ends with an error and the message is consumed. Bytes beyond a shorter part are
    /// unspecified.
    fn post_recv(&mut self, from: Rank, envelope: Envelope, parts: RecvParts) -> Posted<RecvId, RecvDone>;

    /// Tests whether a send has ended. After `Some`, the id is no longer valid.
    fn test_send(&mut self, id: SendId) -> Option<SendDone>;

    /// Tests whether a receive has ended. After `Some`, the id is no longer valid.
    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone>;

    /// Like [`test_recv`](Self::test_recv), but drops the leases.
    ///
    /// May first poll up to `spins` times for the message, which is faster than returning in between.
    fn recv_outcome(&mut self, id: RecvId, _spins: u32) -> Option<Result<Arrival>> {
        self.test_recv(id).map(|done| done.result)
    }

    /// The place for the waker of the task that waits for an operation, which has not ended. The transport
    /// tells it at the latest when the operation ends. `None` for an operation that must be tested in every
    /// turn instead: the transport finds out in a test that it has ended.
    fn on_end(&mut self, operation: OperationId) -> Option<&mut OnEnd> {
        let _ = operation;
        None
    }

    /// Asks a send to end early. The peer still gets the whole message or nothing. It must still be tested.
    fn cancel_send(&mut self, id: SendId);

    /// Asks a receive to end early; a matched message is consumed. It must still be tested.
    fn cancel_recv(&mut self, id: RecvId);

    /// Ends a receive early if none of its message has come. Returns whether it has not, or whether the
    /// receive had ended; otherwise it goes on. It must still be tested.
    fn withdraw_recv(&mut self, id: RecvId) -> bool;

    /// The first message that has come, or begun to come, and that no receive has. Messages of one rank are
    /// found in the order in which it has posted them.
    ///
    /// Does not move the transport. If there is none, or any rank may send it, the next
    /// [`progress`](Self::progress) looks at every peer.
    fn probe(&mut self, wanted: &Wanted) -> Option<Found>;

    /// Claims the message that the last [`probe`](Self::probe) has found: it is the one that a receive of its
    /// source and tag gets now. Returns whether it is still there. Call [`post_recv`](Self::post_recv) or
    /// [`unclaim`](Self::unclaim) next.
    fn claim(&mut self) -> bool {
        // A message is taken back in `progress` alone, where peers are not threads of one memory.
        true
    }

    /// Gives a claim up; the message stays.
    fn unclaim(&mut self) {}

    /// Makes progress without blocking. Returns whether anything happened.
    fn progress(&mut self) -> bool;

    /// The transport's clock, from an arbitrary start; virtual on a simulated network.
    fn now(&self) -> Duration;

    /// Prepares for sleeping: returns a descriptor that becomes readable when there is something to
    /// [`progress`](Self::progress); `None` if there is something already, or if there is no descriptor.
    fn arm(&mut self) -> Option<Arc<OwnedFd>>;

    /// The descriptor that [`arm`](Self::arm) returns; `None` if there is none.
    fn descriptor(&self) -> Option<Arc<OwnedFd>>;

    /// Watches a peer that this rank waits for without an operation. Its death is [news](Self::next_news) in
    /// a later call of [`progress`](Self::progress). Returns whether it has left normally, which is none.
    ///
    /// To be called again while the wait goes on; it is cheap, but not free.
    fn watch(&mut self, peer: Rank) -> bool;

    /// The oldest news about peers that was not taken yet.
    ///
    /// What peers tell comes before a loss that may follow from it.
    fn next_news(&mut self) -> Option<News>;

    /// Gives a peer up: operations with it, pending or new, end with `error`, and the loss is news. Does
    /// nothing if the peer is lost already.
    fn lose(&mut self, peer: Rank, error: Error);

    /// Tells a peer something about a context. Needs no credit and does not block. Does nothing if the peer
    /// is lost or has left.
    fn tell(&mut self, peer: Rank, notice: Notice);

    /// Ends the operations whose tags are of `context` with `error`, as far as they have not ended. As after
    /// a cancel, they must still be tested.
    fn end_context(&mut self, context: u16, cause: Failure, error: &Error);

    /// Drops these messages of `context`, as far as they came before their receive, as if received. Returns
    /// how many these were.
    fn discard(&mut self, context: u16, which: Which) -> usize;

    /// Stops all access to leased memory. Afterwards every operation ends at its next test, and the transport
    /// is unusable.
    ///
    /// # Errors
    /// If the access can't be stopped. The caller must then keep the memory for ever.
    fn abandon(&mut self) -> Result<()>;

    /// Whether the transport depends on a library that is unloaded at exit, so that it must
    /// [leave](Self::leave_with_process) before.
    fn stands_on_library(&self) -> bool {
        false
    }

    /// Leaves because the process exits, as if dropped; afterwards every operation ends as after a failure.
    /// Does not call the library if that is already unloaded.
    fn leave_with_process(&mut self, is_library_there: bool) {
        let _ = is_library_there;
    }

    /// On a simulated network, lets this rank do nothing for so long, because it computes. Elsewhere
    /// computing takes its own time.
    fn compute(&mut self, lasting: Duration) {
        let _ = lasting;
    }

    /// Whether the clock is virtual. Then nothing happens between two turns.
    fn is_simulated(&self) -> bool {
        false
    }

    /// The transport's counters.
    fn statistics(&self) -> Statistics;

    /// Puts and gets on registered memory.
    fn one_sided(&mut self) -> &mut dyn OneSided;
}

/// The parts of a message of one part.
#[inline]
pub(crate) fn one(part: ReadLease) -> SendParts {
    let mut parts = SendParts::new();
    parts.push(part);
    parts
}

pub(crate) fn check_peer(peer: Rank, own: Rank, world_size: u32) -> Result<()> {
    if peer == own || peer.0 >= world_size {
        Err(Error::NoSuchPeer { rank: peer, own, world_size })
    } else {
        Ok(())
    }
}

/// The id of operation `key` of `peer`, for keys that are per peer. Less than 2^63, as ranks are less than
/// 2^31.
#[inline]
pub(crate) fn join(peer: Rank, key: usize) -> u64 {
    u64::from(peer.0) << 32 | key as u64
}

/// The index of the peer and the key of an id made by [`join`].
#[inline]
pub(crate) fn split(id: u64) -> (usize, usize) {
    ((id >> 32) as usize, id as u32 as usize)
}

/// Refuses a message that does not fit its receive. The signatures must be equal, and every part must fit its
/// buffer; a missing part or buffer counts as one of 0 bytes.
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

/// Names the first part that does not fit.
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
