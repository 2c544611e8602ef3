//! Puts and gets that the owner of the memory carries out, in messages that say what is wanted (`one_sided/frame.rs`).
//!
//! UCX does no better between ranks that nothing but sockets join: its own puts and gets are messages there, too. But it ends
//! the process when it answers one of a peer that has left, which these do not: they end as messages do.
//!
//! A put is one message for each part that has bytes, answered once the bytes are in the region's memory; a get is one
//! for each part, answered with the bytes. What is not long comes with its message and is copied to its place; what is long
//! is offered, and UCX fetches it straight there.
//!
//! Like the inbox this does not call UCX: handlers bring what arrives, and what UCX is to do stands in a list (`errands.rs`).

use std::collections::VecDeque;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;
use slab::Slab;

use super::flight::Flight;
use super::incoming::count_copy;
use super::payload::{Offer, Payload};
use crate::buffer::{ReadLease, RegionMemory};
use crate::limits::MAX_MESSAGE_BYTES;
use crate::one_sided::frame::{Extent, FRAME_BYTES, Outcome, Place, RemoteFrame};
use crate::one_sided::{PutOrder, RegionKey, Regions, get_bytes, put_bytes};
use crate::transport::{RecvParts, SendParts, Statistics};
use crate::{Error, MAX_PARTS, Rank, Result, Tag};

/// Messages of one rank that wait for their answer, at most; more are held back, and more of a peer's are not taken.
pub(super) const MAX_REQUESTS: usize = 1 << 14;

/// Bits of an operation's number on the wire that say which part it is.
const PART_BITS: u32 = 2;

/// What one rank asks of others' memory, and others of its own.
pub(super) struct Requests {
    own: Rank,
    /// The memory of this rank that peers may ask for.
    pub(super) regions: Regions,
    operations: Slab<Request>,
    /// The order of puts to each peer.
    orders: Vec<PutOrder>,
    /// Parts that are not asked for yet: operation and part.
    unasked: VecDeque<(usize, usize)>,
    unanswered: usize,
    errands: VecDeque<Errand>,
    /// What UCX does for peers, and sends to them.
    pub(super) carried: Vec<Carried>,
    is_closed: bool,
}

/// A put, get or flush of this rank.
///
/// Invariant: the parts of `kind` stay here until every flight is reaped.
struct Request {
    peer: Rank,
    kind: Kind,
    place: Place,
    extent: Extent,
    /// A bit for each part that is neither put nor being fetched.
    open: u8,
    /// A bit for each part that the peer was asked for and has not answered.
    asked: u8,
    /// UCX's work on the parts, each with the bytes that are to come.
    flights: ArrayVec<(Flight, usize), MAX_PARTS>,
    posted_in: u32,
    is_canceled: bool,
    result: Result<()>,
}

enum Kind {
    /// With its place in the order of puts.
    Put(SendParts, u64),
    Get(RecvParts),
    /// A flush of the puts before this one.
    Flush(u64),
}

/// What UCX is to do.
pub(super) enum Errand {
    /// To send a frame, and these bytes behind it.
    Send {
        to: Rank,
        frame: RemoteFrame,
        bytes: Bytes,
    },
    /// To fetch what a peer offers.
    Fetch {
        offer: Offer,
        into: Bytes,
        answer: Option<(Rank, u32)>,
    },
    Release(Offer),
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

/// UCX's work on a region's memory, or on no memory.
///
/// Invariant: `bytes` stays here until the flight is reaped.
pub(super) struct Carried {
    pub(super) flight: Flight,
    pub(super) bytes: Bytes,
    /// Whom to tell that the bytes have come.
    pub(super) answer: Option<(Rank, u32)>,
}

/// An operation that has ended: its peer, its result, and UCX's work to be reaped.
pub(super) struct EndedRequest {
    pub(super) peer: Rank,
    pub(super) result: Result<()>,
    pub(super) is_canceled: bool,
    pub(super) call: &'static str,
    pub(super) flights: ArrayVec<(Flight, usize), MAX_PARTS>,
}

impl Requests {
    pub(super) fn new(own: Rank, world_size: u32) -> Self {
        Self {
            own,
            regions: Regions::default(),
            operations: Slab::new(),
            orders: (0..world_size).map(|_| PutOrder::default()).collect(),
            unasked: VecDeque::new(),
            unanswered: 0,
            errands: VecDeque::new(),
            carried: Vec::new(),
            is_closed: false,
        }
    }

    pub(super) fn begin_put(&mut self, key: &RegionKey, offset: u64, parts: SendParts, posted_in: u32) -> usize {
        let bytes = put_bytes(&parts);
        let order = self.orders.get_mut(key.owner.index()).map_or(0, PutOrder::begin);
        self.begin(key, Extent { offset, bytes, region_bytes: key.length }, Kind::Put(parts, order), posted_in)
    }

    pub(super) fn begin_get(&mut self, key: &RegionKey, offset: u64, parts: RecvParts, posted_in: u32) -> usize {
        let bytes = get_bytes(&parts);
        self.begin(key, Extent { offset, bytes, region_bytes: key.length }, Kind::Get(parts), posted_in)
    }

    pub(super) fn begin_flush(&mut self, peer: Rank, posted_in: u32) -> usize {
        let before = self.orders.get(peer.index()).map_or(0, PutOrder::next);
        let place = Place { region: 0, nonce: [0; 16], offset: 0 };
        self.operations.insert(Request::new(peer, Kind::Flush(before), place, Extent::default(), posted_in))
    }

    fn begin(&mut self, key: &RegionKey, extent: Extent, kind: Kind, posted_in: u32) -> usize {
        let mut request = Request::new(key.owner, kind, Place::of(key, extent.offset), extent, posted_in);
        // Where there are no bytes, one message asks whether the region is there.
        let is_asked_for = |part: &usize| request.length(*part) > 0 || extent.bytes == 0 && *part == 0;
        let parts: ArrayVec<usize, MAX_PARTS> = (0..MAX_PARTS).filter(is_asked_for).collect();
        request.open = parts.iter().fold(0, |open, part| open | 1 << part);
        let number = self.operations.insert(request);
        self.unasked.extend(parts.into_iter().map(|part| (number, part)));
        number
    }

    /// Asks an operation to end: what a peer has been asked for can't be taken back, but a flush can.
    pub(super) fn cancel(&mut self, number: usize) {
        let Some(request) = self.operations.get_mut(number) else { return };
        request.is_canceled = true;
        if matches!(request.kind, Kind::Flush(_)) && request.result.is_ok() {
            request.result = Err(Error::Canceled);
        }
    }

    /// Takes an operation out that is over.
    pub(super) fn take_ended(&mut self, number: usize) -> Option<EndedRequest> {
        let request = self.operations.get(number)?;
        if !request.is_over(&self.orders) {
            return None;
        }
        let Request { peer, kind, result, is_canceled, flights, .. } = self.operations.remove(number);
        let call = if matches!(kind, Kind::Get(_)) { "ucp_am_recv_data_nbx" } else { "ucp_am_send_nbx" };
        Some(EndedRequest { peer, result, is_canceled, call, flights })
    }

    /// The peers of operations that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        let pending = self.operations.iter().filter(|(_, request)| !request.is_over(&self.orders));
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
        for errand in std::mem::take(&mut self.errands) {
            match errand {
                Errand::Send { to, frame: RemoteFrame::Bytes(number, _), bytes } if bytes.is_of(key) => {
                    self.answer(to, number, Outcome::NoSuchRegion);
                }
                Errand::Fetch { offer, into, answer: Some((to, number)) } if into.is_of(key) => {
                    self.errands.push_back(Errand::Release(offer));
                    self.answer(to, number, Outcome::NoSuchRegion);
                }
                errand => self.errands.push_back(errand),
            }
        }
        !self.carried.iter().any(|carried| carried.bytes.is_of(key))
    }

    /// Takes what a peer says.
    ///
    /// # Errors
    /// What is no message of ours, and the rank that it names as its sender.
    pub(super) fn take_up(
        &mut self,
        header: &[u8],
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) -> std::result::Result<(), (Rank, String)> {
        if self.is_closed {
            return Ok(());
        }
        let Ok(header) = <&[u8; FRAME_BYTES]>::try_from(header) else {
            let what = format!("{} bytes about a put or get, expected {FRAME_BYTES}", header.len());
            return Err((Rank(u32::MAX), what));
        };
        let [.., from] = bytemuck::pod_read_unaligned::<[u64; 2]>(&header[..16]);
        let from = Tag(from.to_le()).source();
        let refuse = |what: String| Err((from, what));
        if from == self.own || from.index() >= self.orders.len() {
            return refuse("a put or get that names no peer as its source".into());
        }
        let frame = match RemoteFrame::decode(header, from, MAX_MESSAGE_BYTES) {
            Ok(frame) => frame,
            Err(Error::Protocol { what, .. }) => return refuse(what),
            Err(error) => return refuse(error.to_string()),
        };
        let announced = match frame {
            RemoteFrame::Put(_, _, length) | RemoteFrame::Bytes(_, length) => length,
            RemoteFrame::Get(..) | RemoteFrame::Ended(..) => 0,
        };
        if payload.bytes() != announced {
            return refuse(format!("{} bytes behind {frame:?}", payload.bytes()));
        }
        if self.errands.len() + self.carried.len() > MAX_REQUESTS * self.orders.len() {
            return refuse(format!("more than {MAX_REQUESTS} puts and gets without reading the answers"));
        }
        match frame {
            RemoteFrame::Put(number, place, length) => {
                self.take_put((from, number), (&place, length), payload, statistics);
                Ok(())
            }
            RemoteFrame::Get(number, place, length) => {
                match self.regions.look_up(self.own, &place, length) {
                    // What was found is no longer than memory can be.
                    Ok((memory, offset)) => {
                        let length = length as usize;
                        let bytes = Bytes::Region { number: place.region, memory, offset, length };
                        let frame = RemoteFrame::Bytes(number, length);
                        self.errands.push_back(Errand::Send { to: from, frame, bytes });
                    }
                    Err(outcome) => self.answer(from, number, outcome),
                }
                Ok(())
            }
            RemoteFrame::Bytes(number, length) => self.take_bytes(from, number, length, payload, statistics),
            RemoteFrame::Ended(number, outcome) => self.take_end(from, number, outcome),
        }
        .map_err(|what| (from, what))
    }

    fn take_put(
        &mut self,
        (from, number): (Rank, u32),
        (place, length): (&Place, usize),
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) {
        match (self.regions.look_up(self.own, place, length as u64), payload) {
            (Ok((memory, offset)), Payload::Here(bytes)) => {
                // A copy: UCX has received it before anybody knew where it belongs.
                memory.write(offset, bytes);
                count_copy(statistics, bytes.len());
                self.answer(from, number, Outcome::Done);
            }
            (Ok((memory, offset)), Payload::Offered(offer)) => {
                let into = Bytes::Region { number: place.region, memory, offset, length };
                self.errands.push_back(Errand::Fetch { offer, into, answer: Some((from, number)) });
            }
            (Err(outcome), payload) => {
                if let Payload::Offered(offer) = payload {
                    self.errands.push_back(Errand::Release(offer));
                }
                self.answer(from, number, outcome);
            }
        }
    }

    fn take_bytes(
        &mut self,
        from: Rank,
        number: u32,
        length: usize,
        payload: Payload<'_>,
        statistics: &mut Statistics,
    ) -> std::result::Result<(), String> {
        let (number, part) = split(number);
        let is_get = |request: &Request| matches!(request.kind, Kind::Get(_)) && request.length(part) == length;
        let Some(request) = self.answered(from, number, part, is_get) else {
            return Err(format!("{length} bytes for get {number}, which has not asked for them"));
        };
        match payload {
            Payload::Here(bytes) => {
                if let Kind::Get(parts) = &mut request.kind
                    && let Some(place) = parts.get_mut(part)
                {
                    // A copy: as above.
                    place.bytes_mut().copy_from_slice(bytes);
                    count_copy(statistics, length);
                }
                request.open &= !(1 << part);
            }
            Payload::Offered(offer) => {
                self.errands.push_back(Errand::Fetch { offer, into: Bytes::Part(number, part), answer: None });
            }
        }
        Ok(())
    }

    fn take_end(&mut self, from: Rank, number: u32, outcome: Outcome) -> std::result::Result<(), String> {
        let (number, part) = split(number);
        let is_end = |request: &Request| matches!(request.kind, Kind::Put(..)) || outcome != Outcome::Done;
        let Some(request) = self.answered(from, number, part, is_end) else {
            return Err(format!("the end of put or get {number}, which is none"));
        };
        request.open &= !(1 << part);
        if request.result.is_ok() {
            request.result = outcome.result(from, request.extent);
        }
        self.end_put(number);
        Ok(())
    }

    /// The operation that a peer answers about a part, if it waits for that and `is_meant` says that it is the one.
    fn answered(
        &mut self,
        from: Rank,
        number: usize,
        part: usize,
        is_meant: impl FnOnce(&Request) -> bool,
    ) -> Option<&mut Request> {
        let request = self.operations.get_mut(number)?;
        if request.peer != from || request.asked & 1 << part == 0 || !is_meant(request) {
            return None;
        }
        request.asked &= !(1 << part);
        self.unanswered -= 1;
        Some(request)
    }

    /// A put whose parts are all put is waited for by flushes no longer.
    fn end_put(&mut self, number: usize) {
        if let Some(request) = self.operations.get(number)
            && request.open == 0
            && let Kind::Put(_, order) = request.kind
            && let Some(orders) = self.orders.get_mut(request.peer.index())
        {
            orders.end(order);
        }
    }

    /// Tells a peer what has become of its put or get.
    pub(super) fn answer(&mut self, to: Rank, number: u32, outcome: Outcome) {
        let frame = RemoteFrame::Ended(number, outcome);
        self.errands.push_back(Errand::Send { to, frame, bytes: Bytes::None });
    }

    /// Whether UCX has something to do.
    #[inline]
    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty() || !self.carried.is_empty() || !self.unasked.is_empty()
    }

    /// What UCX is to do next.
    pub(super) fn next_errand(&mut self) -> Option<Errand> {
        if let Some(errand) = self.errands.pop_front() {
            return Some(errand);
        }
        if self.unanswered == MAX_REQUESTS {
            return None;
        }
        let (number, part) = self.unasked.pop_front()?;
        let request = self.operations.get_mut(number)?;
        request.asked |= 1 << part;
        self.unanswered += 1;
        let before: u64 = (0..part).map(|part| request.length(part) as u64).sum();
        let place = Place { offset: request.place.offset + before, ..request.place };
        let (length, on_wire) = (request.length(part), (number as u32) << PART_BITS | part as u32);
        let (frame, bytes) = match request.kind {
            Kind::Get(_) => (RemoteFrame::Get(on_wire, place, length as u64), Bytes::None),
            _ => (RemoteFrame::Put(on_wire, place, length), Bytes::Part(number, part)),
        };
        Some(Errand::Send { to: request.peer, frame, bytes })
    }

    /// Where bytes lie that are to be sent: they stay there until the flight is reaped that is then handed to
    /// [`keep`](Self::keep).
    pub(super) fn source(&self, bytes: &Bytes) -> Option<(*const u8, usize)> {
        match bytes {
            Bytes::None => None,
            Bytes::Region { .. } => bytes.in_region().map(|(start, length)| (start.as_ptr().cast_const(), length)),
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
                Kind::Get(parts) => parts.get_mut(*part).map(|part| (part.bytes_mut().as_mut_ptr(), part.len())),
                _ => None,
            },
        }
    }

    /// Keeps UCX's work, with the memory that it is on, until it is over.
    pub(super) fn keep(&mut self, flight: Flight, bytes: Bytes, answer: Option<(Rank, u32)>) {
        let Bytes::Part(number, part) = bytes else {
            return self.carried.push(Carried { flight, bytes, answer });
        };
        if let Some(request) = self.operations.get_mut(number) {
            let is_get = matches!(request.kind, Kind::Get(_));
            request.flights.push((flight, if is_get { request.length(part) } else { 0 }));
            if is_get {
                request.open &= !(1 << part);
            }
        }
    }

    /// Ends every operation with `error`, once UCX does not use its memory any more: at once if it is torn down. Nothing more
    /// is taken, or asked for.
    pub(super) fn close(&mut self, error: &Error, is_torn_down: bool) {
        self.is_closed = true;
        self.errands.clear();
        self.unasked.clear();
        for (_, request) in &mut self.operations {
            let is_whole = match request.kind {
                Kind::Flush(_) => request.is_over(&self.orders),
                _ => request.open == 0 && request.flights.iter().all(|(flight, _)| flight.has_succeeded()),
            };
            if !is_whole && request.result.is_ok() {
                request.result = Err(error.clone());
            }
            (request.open, request.asked) = (0, 0);
            let flights = request.flights.iter().map(|(flight, _)| flight).filter(|flight| !flight.is_over());
            flights.filter(|_| is_torn_down).for_each(|flight| flight.record().end(ucs_status_t::UCS_ERR_CANCELED, 0));
        }
    }
}

impl Request {
    fn new(peer: Rank, kind: Kind, place: Place, extent: Extent, posted_in: u32) -> Self {
        let (flights, is_canceled, result) = (ArrayVec::new(), false, Ok(()));
        Self { peer, kind, place, extent, open: 0, asked: 0, flights, posted_in, is_canceled, result }
    }

    /// Bytes of a part, if there is such a part.
    fn length(&self, part: usize) -> usize {
        match &self.kind {
            Kind::Put(parts, _) => parts.get(part).map_or(0, ReadLease::len),
            Kind::Get(parts) => parts.get(part).map_or(0, |part| part.len()),
            Kind::Flush(_) => 0,
        }
    }

    /// Whether neither UCX nor the peer has anything to do with it any more. What has failed on the way is not answered.
    fn is_over(&self, orders: &[PutOrder]) -> bool {
        if let Kind::Flush(before) = self.kind {
            return self.result.is_err() || orders.get(self.peer.index()).is_none_or(|order| order.has_reached(before));
        }
        self.flights.iter().all(|(flight, _)| flight.is_over())
            && (self.open == 0 || !self.flights.iter().all(|(flight, _)| flight.has_succeeded()))
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

/// The operation and the part of a number on the wire.
fn split(number: u32) -> (usize, usize) {
    ((number >> PART_BITS) as usize, (number & ((1 << PART_BITS) - 1)) as usize)
}
