//! Puts and gets that the owner of the memory carries out, in messages that say what is wanted
//! (`one_sided/frame.rs`).
//!
//! UCX does no better between ranks that nothing but sockets join: its own puts and gets are messages there,
//! too. But it ends the process when it answers one of a peer that has left, which these do not: they end as
//! messages do.
//!
//! A put is one message for each part that has bytes, answered once the bytes are in the region's memory; a
//! get is one for each part, answered with the bytes (`one_sided/requests.rs`). What is not long comes with
//! its message and is copied to its place; what is long is offered, and UCX fetches it straight there.
//!
//! Like the inbox this does not call UCX: handlers bring what arrives, and what UCX is to do stands in a list
//! (`errands.rs`), which is done before anything else arrives.

mod taking;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ptr::NonNull;

use super::payload::Rts;
use super::ucp_request::UcpRequest;
use crate::buffer::{ReadLease, RegionMemory};
use crate::one_sided::frame::{Outcome, RemoteFrame};
use crate::one_sided::requests::{MAX_REQUESTS, PeerRequests, Request, Target};
use crate::one_sided::{AccessParts, RegionKey, Regions};
use crate::transport::Posted;
use crate::{Error, Rank, Result};

/// Puts and gets of one peer that are under way here, at most. It may ask for more as soon as it has begun to
/// fetch.
const MAX_SERVED: usize = 4 * MAX_REQUESTS;

/// What one rank asks of others' memory, and others of its own.
pub(super) struct Requests {
    own: Rank,
    /// The memory of this rank that peers may ask for.
    pub(super) regions: Regions,
    peers: Vec<Peer>,
    /// Operations of this rank whose end was not reported.
    pending: usize,
    pub(super) errands: VecDeque<Errand>,
    /// What UCX does on memory, or sends.
    pub(super) carried: Vec<Carried>,
    /// Peers to whom an answer could not be sent: they have gone, or will wait for it in vain.
    pub(super) unanswered: Vec<Rank>,
    is_closed: bool,
    /// Whether UCX is torn down: it has nothing in its hands any more.
    pub(super) is_torn_down: bool,
}

struct Peer {
    requests: PeerRequests,
    /// Its puts and gets whose answer UCX has not sent yet.
    served: usize,
}

/// What UCX is to do.
pub(super) enum Errand {
    /// To send a frame, and these bytes behind it if it is a put or brings bytes.
    Send(Rank, RemoteFrame, Bytes, Then),
    /// To fetch what a peer offers.
    Fetch(Rts, Bytes, Then),
    Release(Rts),
}

/// Where bytes come from, or go.
pub(super) enum Bytes {
    None,
    /// Of a region of this rank.
    Region {
        number: u64,
        memory: RegionMemory,
        offset: usize,
        length: usize,
    },
    /// A piece of a put of this rank.
    Lent(ReadLease),
    /// Of a get of this rank, from this peer.
    Got(Rank, Target),
}

/// UCX's work on memory, or on none.
///
/// Invariant: `bytes` stays here until the flight is reaped, and the parts of a get until it is released.
pub(super) struct Carried {
    pub(super) flight: UcpRequest,
    pub(super) bytes: Bytes,
    /// Bytes that are to be fetched.
    pub(super) expected: usize,
    pub(super) then: Then,
}

/// What follows.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// The peer is told, about the operation of this number, that its bytes have come.
    Answer(Rank, u32),
    /// Nothing: the peer was answered.
    Served(Rank),
    /// An operation of this rank, asked of this peer, goes on.
    Asked(Rank, usize),
}

impl Requests {
    pub(super) fn new(own: Rank, world_size: u32) -> Self {
        let requests = |rank| PeerRequests::new(Rank(rank), usize::MAX);
        Self {
            own,
            regions: Regions::default(),
            peers: (0..world_size).map(|rank| Peer { requests: requests(rank), served: 0 }).collect(),
            pending: 0,
            errands: VecDeque::new(),
            carried: Vec::new(),
            unanswered: Vec::new(),
            is_closed: false,
            is_torn_down: false,
        }
    }

    pub(super) fn begin(&mut self, key: &RegionKey, offset: u64, parts: AccessParts, round: u32) -> usize {
        let number = self.of(key.owner).post(key, offset, parts, round);
        self.pending += 1;
        self.ask(key.owner);
        number
    }

    pub(super) fn begin_flush(&mut self, peer: Rank, round: u32) -> Posted<usize, Result<()>> {
        let posted = self.of(peer).post_flush(round);
        self.pending += usize::from(matches!(posted, Posted::Pending(_)));
        posted
    }

    /// What is asked of one peer.
    pub(super) fn of(&mut self, peer: Rank) -> &mut PeerRequests {
        &mut self.peers[peer.index()].requests
    }

    /// Takes the end of an operation that is over, and whether bytes were fetched for it.
    pub(super) fn take_ended(&mut self, peer: Rank, number: usize) -> Option<(Result<()>, bool)> {
        let ended = self.of(peer).test(number)?;
        self.pending -= 1;
        Some(ended)
    }

    /// The peers of operations that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.peers.iter().flat_map(|peer| peer.requests.waits())
    }

    /// Whether nothing is under way, of this rank or for others.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.pending == 0 && self.carried.is_empty() && self.errands.is_empty()
    }

    /// Whether UCX moves bytes for peers.
    pub(super) fn serves(&self) -> bool {
        self.carried.iter().any(|carried| !matches!(carried.then, Then::Asked(..)))
    }

    /// Lets peers access a region no more. Says whether UCX does not use its memory any more either.
    pub(super) fn conceal(&mut self, key: &RegionKey) -> bool {
        self.regions.remove(key);
        let is_to_be_used = |errand: &Errand| match errand {
            Errand::Send(_, _, bytes, _) | Errand::Fetch(_, bytes, _) => bytes.is_of(key),
            Errand::Release(_) => false,
        };
        !self.errands.iter().any(is_to_be_used)
            && !self.carried.iter().any(|carried| carried.bytes.is_of(key))
    }

    /// Sends what may be sent of what is asked of a peer.
    fn ask(&mut self, to: Rank) {
        while let Some(Request { number, frame, payload }) = self.of(to).next_request() {
            let bytes = payload.map_or(Bytes::None, Bytes::Lent);
            self.errands.push_back(Errand::Send(to, frame, bytes, Then::Asked(to, number)));
        }
    }

    /// Tells a peer what has become of its put or get.
    fn answer(&mut self, to: Rank, number: u32, outcome: Outcome) {
        let frame = RemoteFrame::Ended(number, outcome);
        self.errands.push_back(Errand::Send(to, frame, Bytes::None, Then::Served(to)));
    }

    /// Whether UCX has something to do, or has had.
    #[inline]
    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty() || !self.carried.is_empty()
    }

    /// Where bytes lie that are to be sent, if there are any: they stay there until the flight is reaped that
    /// is then [kept](Carried).
    pub(super) fn source(&self, bytes: &Bytes) -> Option<(*const u8, usize)> {
        match bytes {
            Bytes::None | Bytes::Got(..) => None,
            Bytes::Region { .. } => {
                bytes.in_region().map(|(start, length)| (start.as_ptr().cast_const(), length))
            }
            Bytes::Lent(lease) => Some((lease.bytes().as_ptr(), lease.len())),
        }
    }

    /// Where bytes go that are fetched; likewise.
    pub(super) fn target(&mut self, bytes: &Bytes) -> Option<(NonNull<u8>, usize)> {
        match bytes {
            Bytes::None | Bytes::Lent(_) => None,
            Bytes::Region { .. } => bytes.in_region(),
            Bytes::Got(peer, target) => {
                let place = self.of(*peer).place(target)?;
                let length = place.len();
                Some((NonNull::from(place).cast(), length))
            }
        }
    }

    /// UCX has done this work, with `result`, and `is_fetched` if it has fetched bytes.
    pub(super) fn end_work(&mut self, then: Then, result: Result<()>, is_fetched: bool) {
        match then {
            Then::Asked(peer, number) => {
                if let Err(error) = result {
                    self.of(peer).fail(number, error);
                }
                self.of(peer).release(number, is_fetched);
            }
            Then::Answer(to, number) if result.is_ok() => self.answer(to, number, Outcome::Done),
            Then::Answer(peer, _) | Then::Served(peer) => {
                self.peers[peer.index()].served -= 1;
                if result.is_err() && !self.is_torn_down && !self.unanswered.contains(&peer) {
                    self.unanswered.push(peer);
                }
            }
        }
    }

    /// Ends the operations of a lost peer with `error`, once UCX does not use their memory any more. Nothing
    /// more is asked of it or answered.
    pub(super) fn lose(&mut self, peer: Rank, error: &Error) {
        self.of(peer).end_all(error);
        let errands = std::mem::take(&mut self.errands);
        let (lost, others): (VecDeque<_>, VecDeque<_>) =
            errands.into_iter().partition(|errand| match errand {
                Errand::Send(_, _, _, then) | Errand::Fetch(_, _, then) => then.peer() == peer,
                Errand::Release(_) => false,
            });
        self.errands = others;
        for errand in lost {
            if let Errand::Send(_, _, _, then) | Errand::Fetch(_, _, then) = errand {
                self.end_work(then, Err(error.clone()), false);
            }
        }
        self.unanswered.retain(|unanswered| *unanswered != peer);
    }

    /// Takes the memory of what is sent to a peer back although UCX has not ended that.
    ///
    /// # Safety
    /// UCX, here or at the peer, does not read that memory any more.
    pub(super) unsafe fn take_back(&mut self, peer: Rank, error: &Error) {
        let is_sent = |carried: &mut Carried| {
            carried.then.peer() == peer && carried.expected == 0 && !carried.flight.is_over()
        };
        // The records of the flights stay until the worker is gone, and are not used again.
        let sent: Vec<Then> = self.carried.extract_if(.., is_sent).map(|carried| carried.then).collect();
        for then in sent {
            self.end_work(then, Err(error.clone()), false);
        }
        self.unanswered.retain(|unanswered| *unanswered != peer);
    }

    /// Ends every operation with `error`, once UCX does not use its memory any more: at once if it is torn
    /// down. Nothing more is taken, or asked for.
    pub(super) fn close(&mut self, error: &Error, is_torn_down: bool) {
        (self.is_closed, self.is_torn_down) = (true, is_torn_down);
        for peer in &mut self.peers {
            peer.requests.end_all(error);
        }
        for errand in std::mem::take(&mut self.errands) {
            if let Errand::Send(_, _, _, then) | Errand::Fetch(_, _, then) = errand
                && let Then::Asked(peer, number) = then
            {
                self.of(peer).release(number, false);
            }
        }
    }
}

impl Then {
    pub(super) fn peer(self) -> Rank {
        let (Self::Answer(peer, _) | Self::Served(peer) | Self::Asked(peer, _)) = self;
        peer
    }
}

impl Bytes {
    fn is_of(&self, key: &RegionKey) -> bool {
        matches!(self, Self::Region { number, .. } if *number == key.number)
    }

    /// The first of the bytes of a region, and how many they are.
    fn in_region(&self) -> Option<(NonNull<u8>, usize)> {
        let Self::Region { memory, offset, length, .. } = self else { return None };
        Some((memory.outside(*offset, *length)?, *length))
    }
}
