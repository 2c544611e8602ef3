//! Puts and gets that the owner of the memory carries out, in messages that say what is wanted
//! (`one_sided/frame.rs`).
//!
//! UCX does no better between ranks that nothing but sockets join: its own puts and gets are messages there,
//! too. But it ends the process when it answers one of a peer that has left, which these do not: they end as
//! messages do.
//!
//! A put is one message for each part that has bytes, answered once the bytes are in the region's memory; a
//! get is one for each part, answered with the bytes. What is not long comes with its message and is copied
//! to its place; what is long is offered, and UCX fetches it straight there.
//!
//! Like the inbox this does not call UCX: handlers bring what arrives, and what UCX is to do stands in a list
//! (`errands.rs`), which is done before anything else arrives.

mod request;
mod taking;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ptr::NonNull;

use brevity_ucx_sys::ucs_status_t;
use slab::Slab;

use request::{Kind, Request};

use super::payload::Rts;
use super::ucp_request::UcpRequest;
use crate::buffer::RegionMemory;
use crate::one_sided::frame::{Extent, Outcome, Place, RemoteFrame};
use crate::one_sided::{PutOrder, RegionKey, Regions, get_bytes, put_bytes};
use crate::transport::{RecvParts, SendParts};
use crate::{Error, MAX_PARTS, Rank, Result};

/// Messages to one peer that wait for their answer, at most; more are held back.
const MAX_REQUESTS: usize = 1 << 14;

/// Puts and gets of one peer that are under way here, at most. It may ask for more as soon as it has begun to
/// fetch.
const MAX_SERVED: usize = 4 * MAX_REQUESTS;

/// Bits of an operation's number on the wire that say which part it is.
const PART_BITS: u32 = 2;

/// What one rank asks of others' memory, and others of its own.
pub(super) struct Requests {
    own: Rank,
    /// The memory of this rank that peers may ask for.
    pub(super) regions: Regions,
    operations: Slab<Request>,
    peers: Vec<Peer>,
    /// Parts to be asked for: operation and part.
    unasked: VecDeque<(usize, usize)>,
    errands: VecDeque<Errand>,
    /// What UCX does for peers.
    pub(super) carried: Vec<Carried>,
    /// Peers to whom an answer could not be sent: they have gone, or will wait for it in vain.
    pub(super) unanswered: Vec<Rank>,
    is_closed: bool,
    /// Whether UCX is torn down: it has nothing in its hands any more.
    pub(super) is_torn_down: bool,
}

#[derive(Default)]
struct Peer {
    order: PutOrder,
    /// Parts that it was asked for, or is about to be, and has not answered; and those that wait until it
    /// has.
    unanswered: usize,
    held_back: VecDeque<(usize, usize)>,
    /// Its puts and gets whose answer UCX has not sent yet.
    served: usize,
}

/// What UCX is to do.
pub(super) enum Errand {
    /// To send a frame, and these bytes behind it if it is a put or brings bytes.
    Send {
        to: Rank,
        frame: RemoteFrame,
        bytes: Bytes,
    },
    /// To fetch what a peer offers.
    Fetch {
        offer: Rts,
        into: Bytes,
        answer: Option<(Rank, u32)>,
    },
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
    /// A part of an operation.
    Part(usize, usize),
}

/// UCX's work for a peer, on a region's memory or on none.
///
/// Invariant: `bytes` stays here until the flight is reaped.
pub(super) struct Carried {
    pub(super) flight: UcpRequest,
    pub(super) bytes: Bytes,
    pub(super) then: Then,
}

/// What follows.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// The peer is told, about the operation of this number, that its bytes have come.
    Answer(Rank, u32),
    /// Nothing: the peer was answered.
    Served(Rank),
}

/// An operation that has ended: its peer, its result, and UCX's work to be reaped.
pub(super) struct EndedRequest {
    pub(super) peer: Rank,
    pub(super) result: Result<()>,
    pub(super) is_canceled: bool,
    pub(super) flights: request::Flights,
}

impl Requests {
    pub(super) fn new(own: Rank, world_size: u32) -> Self {
        Self {
            own,
            regions: Regions::default(),
            operations: Slab::new(),
            peers: (0..world_size).map(|_| Peer::default()).collect(),
            unasked: VecDeque::new(),
            errands: VecDeque::new(),
            carried: Vec::new(),
            unanswered: Vec::new(),
            is_closed: false,
            is_torn_down: false,
        }
    }

    pub(super) fn begin_put(
        &mut self,
        key: &RegionKey,
        offset: u64,
        parts: SendParts,
        posted_in: u32,
    ) -> usize {
        let bytes = put_bytes(&parts);
        let order = self.peers[key.owner.index()].order.begin();
        self.begin(
            key,
            Extent { offset, bytes, region_bytes: key.length },
            Kind::Put(parts, order),
            posted_in,
        )
    }

    pub(super) fn begin_get(
        &mut self,
        key: &RegionKey,
        offset: u64,
        parts: RecvParts,
        posted_in: u32,
    ) -> usize {
        let bytes = get_bytes(&parts);
        self.begin(key, Extent { offset, bytes, region_bytes: key.length }, Kind::Get(parts), posted_in)
    }

    pub(super) fn begin_flush(&mut self, peer: Rank, posted_in: u32) -> usize {
        let before = self.peers[peer.index()].order.next();
        let place = Place { region: 0, nonce: [0; 16], offset: 0 };
        self.operations.insert(Request::new(peer, Kind::Flush(before), place, Extent::default(), posted_in))
    }

    fn begin(&mut self, key: &RegionKey, extent: Extent, kind: Kind, posted_in: u32) -> usize {
        let mut request = Request::new(key.owner, kind, Place::of(key, extent.offset), extent, posted_in);
        // Where there are no bytes, one message asks whether the region is there.
        let is_meant = |part: &usize| request.length(*part) > 0 || extent.bytes == 0 && *part == 0;
        request.open = (0..MAX_PARTS).filter(is_meant).fold(0, |open, part| open | 1 << part);
        let (open, peer) = (request.open, &mut self.peers[key.owner.index()]);
        let number = self.operations.insert(request);
        for part in (0..MAX_PARTS).filter(|part| open & 1 << part != 0) {
            if peer.unanswered < MAX_REQUESTS {
                peer.unanswered += 1;
                self.unasked.push_back((number, part));
            } else {
                peer.held_back.push_back((number, part));
            }
        }
        number
    }

    /// Asks an operation to end: it has once UCX does not use its parts any more. What the peer was not asked
    /// for it never is.
    pub(super) fn cancel(&mut self, number: usize) {
        let Some(request) = self.operations.get_mut(number).filter(|request| !request.is_canceled) else {
            return;
        };
        request.is_canceled = true;
        if matches!(request.kind, Kind::Flush(_)) {
            request.close_part(0, Err(Error::Canceled));
            return;
        }
        let held_back = &mut self.peers[request.peer.index()].held_back;
        if request.open & !request.asked == 0 || held_back.is_empty() {
            return;
        }
        held_back.retain(|(held, part)| {
            if *held == number {
                request.close_part(*part, Ok(()));
            }
            *held != number
        });
        self.end_put(number);
    }

    /// Takes the end of an operation that is over.
    pub(super) fn take_ended(&mut self, number: usize) -> Option<EndedRequest> {
        let request = self.operations.get_mut(number).filter(|request| !request.is_left)?;
        let (peer, is_canceled) = (request.peer, request.is_canceled);
        if !request.is_over(&self.peers[peer.index()].order) {
            return None;
        }
        let (result, flights) = request.leave();
        self.forget(number);
        Some(EndedRequest { peer, result, is_canceled, flights })
    }

    /// The peers of operations that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        let is_over =
            |request: &Request| request.is_left || request.is_over(&self.peers[request.peer.index()].order);
        let pending = self.operations.iter().filter(move |(_, request)| !is_over(request));
        pending.map(|(_, request)| (request.peer, request.posted_in))
    }

    /// Whether nothing is under way, of this rank or for others.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.operations.is_empty() && self.carried.is_empty() && self.errands.is_empty()
    }

    /// Lets peers access a region no more. Says whether UCX does not use its memory any more either.
    pub(super) fn conceal(&mut self, key: &RegionKey) -> bool {
        self.regions.remove(key);
        let is_to_be_used = |errand: &Errand| match errand {
            Errand::Send { bytes, .. } | Errand::Fetch { into: bytes, .. } => bytes.is_of(key),
            Errand::Release(_) => false,
        };
        !self.errands.iter().any(is_to_be_used)
            && !self.carried.iter().any(|carried| carried.bytes.is_of(key))
    }

    /// A put that is put, or never will be, is waited for by flushes no longer.
    fn end_put(&mut self, number: usize) {
        if let Some(request) = self.operations.get(number)
            && request.open == 0
            && let Kind::Put(_, order) = request.kind
        {
            self.peers[request.peer.index()].order.end(order);
        }
    }

    /// Lets go of an operation whose end was told, once all answers have come.
    fn forget(&mut self, number: usize) {
        if let Some(request) = self.operations.get(number)
            && request.is_left
            && (request.asked == 0 && !self.unasked.iter().any(|(unasked, _)| *unasked == number)
                || self.is_closed)
        {
            self.operations.remove(number);
        }
    }

    /// Tells a peer what has become of its put or get.
    pub(super) fn answer(&mut self, to: Rank, number: u32, outcome: Outcome) {
        let frame = RemoteFrame::Ended(number, outcome);
        self.errands.push_back(Errand::Send { to, frame, bytes: Bytes::None });
    }

    /// A peer has its answer.
    pub(super) fn end_served(&mut self, peer: Rank) {
        if let Some(peer) = self.peers.get_mut(peer.index()) {
            peer.served = peer.served.saturating_sub(1);
        }
    }

    /// Whether UCX has something to do, or has had.
    #[inline]
    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty() || !self.carried.is_empty() || !self.unasked.is_empty()
    }

    /// What UCX is to do next.
    pub(super) fn next_errand(&mut self) -> Option<Errand> {
        if let Some(errand) = self.errands.pop_front() {
            return Some(errand);
        }
        let (number, part) = self.unasked.pop_front()?;
        let request = self.operations.get_mut(number)?;
        request.asked |= 1 << part;
        let before: u64 = (0..part).map(|part| request.length(part) as u64).sum();
        let place = Place { offset: request.place.offset + before, ..request.place };
        let (length, on_wire) = (request.length(part), (number as u32) << PART_BITS | part as u32);
        let frame = match request.kind {
            Kind::Get(_) => RemoteFrame::Get(on_wire, place, length as u64),
            _ => RemoteFrame::Put(on_wire, place, length),
        };
        Some(Errand::Send { to: request.peer, frame, bytes: Bytes::Part(number, part) })
    }

    /// Where bytes lie that are to be sent, if there are any: they stay there until the flight is reaped that
    /// is then handed to [`keep`](Self::keep).
    pub(super) fn source(&self, bytes: &Bytes) -> Option<(*const u8, usize)> {
        match bytes {
            Bytes::None => None,
            Bytes::Region { .. } => {
                bytes.in_region().map(|(start, length)| (start.as_ptr().cast_const(), length))
            }
            Bytes::Part(number, part) => match &self.operations.get(*number)?.kind {
                Kind::Put(parts, _) => parts.get(*part).map(|part| (part.bytes().as_ptr(), part.len())),
                _ => None,
            },
        }
    }

    /// Where bytes go that are fetched; likewise.
    pub(super) fn target(&mut self, bytes: &Bytes) -> Option<(*mut u8, usize)> {
        match bytes {
            Bytes::None => None,
            Bytes::Region { .. } => bytes.in_region().map(|(start, length)| (start.as_ptr(), length)),
            Bytes::Part(number, part) => match &mut self.operations.get_mut(*number)?.kind {
                Kind::Get(parts) => {
                    parts.get_mut(*part).map(|part| (part.bytes_mut().as_mut_ptr(), part.len()))
                }
                _ => None,
            },
        }
    }

    /// Keeps UCX's work, with the memory that it is on, until it is over; `fetched` bytes are to come.
    pub(super) fn keep(&mut self, flight: UcpRequest, bytes: Bytes, fetched: usize, then: Then) {
        let Bytes::Part(number, part) = bytes else {
            return self.carried.push(Carried { flight, bytes, then });
        };
        if let Some(request) = self.operations.get_mut(number) {
            request.flights.push((flight, fetched));
            if fetched > 0 {
                request.close_part(part, Ok(()));
            }
        }
    }

    /// Ends every operation with `error`, once UCX does not use its memory any more: at once if it is torn
    /// down. Nothing more is taken, or asked for.
    pub(super) fn close(&mut self, error: &Error, is_torn_down: bool) {
        (self.is_closed, self.is_torn_down) = (true, is_torn_down);
        self.errands.clear();
        self.unasked.clear();
        self.operations.retain(|_, request| !request.is_left);
        for (_, request) in &mut self.operations {
            if !request.is_whole(&self.peers[request.peer.index()].order) && request.result.is_ok() {
                request.result = Err(error.clone());
            }
            (request.open, request.asked) = (0, 0);
            let flights = request.flights.iter().map(|(flight, _)| flight).filter(|flight| !flight.is_over());
            flights
                .filter(|_| is_torn_down)
                .for_each(|flight| flight.record().end(ucs_status_t::UCS_ERR_CANCELED, 0));
        }
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
