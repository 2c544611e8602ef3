//! Puts and gets on one connection: requests that the peer carries out, and those that are carried out for it.
//!
//! A put is cut into frames of at most [`PIECE_BYTES`]; two at most wait to be written, so that messages get in between. The
//! payload is read into the region's memory where it can be, under the lock of the region. A get is answered with copies
//! of the region's memory, one frame at a time, as fast as the requester reads: what is kept for a peer stays bounded.
//! Both are checked against the key and the bounds of the region before a byte is moved.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

use parking_lot::Mutex;
use slab::Slab;

use super::frame::HEADER_BYTES;
use super::matching::Places;
use super::outgoing::Outgoing;
use super::remote_frame::{Outcome, PIECE_BYTES, Place, RemoteFrame};
use super::wire::Wire;
use crate::buffer::{ReadLease, RegionMemory};
use crate::local::remote::Regions;
use crate::one_sided::{PutOrder, RegionKey, get_bytes};
use crate::transport::{Posted, RecvParts, SendParts, Statistics};
use crate::{Error, Rank, Result};

/// Frames that wait for their answer, at most; more are held back, and more of a peer's are not taken.
const MAX_REQUESTS: usize = 1 << 14;

/// So many frames wait to be written before the next piece is made.
const PIECES_QUEUED: usize = 2;

/// The one-sided operations of one connection, in both directions.
pub(super) struct Accesses {
    own: Rank,
    peer: Rank,
    /// The memory of this rank that peers may access; all connections share the table.
    regions: Arc<Mutex<Regions>>,
    operations: Slab<Operation>,
    order: PutOrder,
    /// Flushes that nobody has been told the end of.
    flushes: usize,
    /// Operations that have something to send, in order.
    unsent: VecDeque<usize>,
    /// Pieces that are written or about to be: the operation, and the send of `Outgoing`.
    writing: VecDeque<(usize, usize)>,
    unanswered: usize,
    /// Operations that nobody has been told the end of.
    pending: usize,
    /// What the payload that is arriving is for.
    landing: Option<Landing>,
    answers: VecDeque<RemoteFrame>,
    served: VecDeque<Served>,
    /// Whether the peer's gets come next.
    serves_next: bool,
}

struct Operation {
    kind: Kind,
    extent: Extent,
    /// Frames that wait for their answer.
    unanswered: usize,
    done: Option<Result<()>>,
    /// Its end was reported: it is kept only for answers that are still to come.
    is_forgotten: bool,
}

/// Where an operation begins, its bytes, and those of the region as the key has it.
type Extent = (u64, u64, u64);

enum Kind {
    /// What is still to be sent, from where on, and its place in the order of puts.
    Put { rest: VecDeque<ReadLease>, place: Place, order: u64 },
    /// Where the bytes go, how many have come, and how many are wanted of where.
    Get { parts: RecvParts, received: u64, wanted: u64, place: Place },
    /// A flush of the puts before this one.
    Flush(u64),
}

/// Where payload goes.
enum Landing {
    /// Into a region, unless the request is refused.
    Put { number: u32, region: u64, memory: Option<(RegionMemory, usize)>, outcome: Outcome },
    /// Into the parts of a get.
    Got(usize),
}

/// A get of the peer.
struct Served {
    number: u32,
    region: u64,
    memory: RegionMemory,
    offset: usize,
    rest: usize,
}

impl Accesses {
    pub(super) fn new(own: Rank, peer: Rank, regions: Arc<Mutex<Regions>>) -> Self {
        Self {
            own,
            peer,
            regions,
            operations: Slab::new(),
            order: PutOrder::default(),
            flushes: 0,
            unsent: VecDeque::new(),
            writing: VecDeque::new(),
            unanswered: 0,
            pending: 0,
            landing: None,
            answers: VecDeque::new(),
            served: VecDeque::new(),
            serves_next: false,
        }
    }

    pub(super) fn post_put(&mut self, key: &RegionKey, offset: u64, parts: SendParts) -> usize {
        let mut rest: VecDeque<_> = parts.into_iter().collect();
        if rest.len() > 1 {
            // One frame of no bytes asks whether the region is there, if there is nothing to put.
            rest.retain(|part| !part.is_empty());
        }
        let order = self.order.begin();
        let bytes = rest.iter().map(|part| part.len() as u64).sum();
        self.post(Kind::Put { rest, place: place(key, offset), order }, (offset, bytes, key.length))
    }

    pub(super) fn post_get(&mut self, key: &RegionKey, offset: u64, parts: RecvParts) -> usize {
        let wanted = get_bytes(&parts);
        let kind = Kind::Get { parts, received: 0, wanted, place: place(key, offset) };
        self.post(kind, (offset, wanted, key.length))
    }

    pub(super) fn post_flush(&mut self) -> Posted<usize, Result<()>> {
        let before = self.order.next();
        if self.order.has_reached(before) {
            return Posted::Done(Ok(()));
        }
        self.pending += 1;
        self.flushes += 1;
        Posted::Pending(self.operations.insert(Operation::new(Kind::Flush(before), (0, 0, 0))))
    }

    pub(super) fn test(&mut self, number: usize, outgoing: &mut Outgoing) -> Option<Result<()>> {
        self.collect(outgoing);
        if self.writing.iter().any(|(operation, _)| *operation == number) {
            return None;
        }
        let operation = self.operations.get_mut(number).filter(|operation| !operation.is_forgotten)?;
        let done = operation.done.clone()?;
        operation.is_forgotten = true;
        self.flushes -= usize::from(matches!(operation.kind, Kind::Flush(_)));
        self.pending -= 1;
        self.forget(number);
        Some(done)
    }

    /// Ends an operation early: what is being written is copied.
    pub(super) fn cancel(&mut self, number: usize, outgoing: &mut Outgoing, statistics: &mut Statistics) {
        if self.operations.get(number).is_none_or(|operation| operation.done.is_some()) {
            return;
        }
        for (_, send) in self.writing.iter().filter(|(operation, _)| *operation == number) {
            outgoing.cancel(*send, Error::Canceled, statistics);
        }
        self.collect(outgoing);
        self.unsent.retain(|unsent| *unsent != number);
        self.end(number, Err(Error::Canceled));
    }

    /// Whether an operation has not ended.
    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// Whether there is something to send.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.answers.is_empty() || !self.served.is_empty() || self.may_send()
    }

    /// Sends what there is to send, as far as the queue takes it, about `quota` bytes at most.
    pub(super) fn pump(&mut self, outgoing: &mut Outgoing, wire: &mut Wire, quota: usize, statistics: &mut Statistics) {
        self.collect(outgoing);
        let mut sent = 0;
        while sent < quota && outgoing.queued() < PIECES_QUEUED && self.has_unsent() {
            sent += if let Some(answer) = self.answers.pop_front() {
                outgoing.post_frame(wire, answer.encode(self.own), SendParts::new(), statistics);
                HEADER_BYTES
            } else if !self.served.is_empty() && (self.serves_next || !self.may_send()) {
                self.serves_next = false;
                self.serve_piece(outgoing, wire, statistics)
            } else {
                self.serves_next = true;
                self.send_piece(outgoing, wire, statistics)
            };
        }
    }

    /// Takes up a frame; gives how many bytes of payload follow, if that is its kind.
    pub(super) fn take_up(&mut self, frame: RemoteFrame) -> Result<Option<usize>> {
        match frame {
            RemoteFrame::Put(number, place, length) => {
                let found = self.find(&place, length as u64)?;
                let (memory, outcome) = match found {
                    Ok(found) => (Some(found), Outcome::Done),
                    Err(outcome) => (None, outcome),
                };
                self.landing = Some(Landing::Put { number, region: place.region, memory, outcome });
                Ok(Some(length))
            }
            RemoteFrame::Get(number, place, length) => {
                let region = place.region;
                match self.find(&place, length)? {
                    // What was found is no longer than memory can be.
                    Ok((memory, offset)) => {
                        self.served.push_back(Served { number, region, memory, offset, rest: length as usize });
                    }
                    Err(outcome) => self.answers.push_back(RemoteFrame::Ended(number, outcome)),
                }
                Ok(None)
            }
            RemoteFrame::Bytes(number, length) => self.take_up_bytes(number, length).map(Some),
            RemoteFrame::Ended(number, outcome) => self.take_up_end(number, outcome).map(|()| None),
        }
    }

    /// Reads payload straight to where it goes, at most `limit` bytes; nothing for payload that goes nowhere.
    pub(super) fn read(
        &mut self,
        wire: &mut Wire,
        received: usize,
        limit: usize,
        statistics: &mut Statistics,
    ) -> Option<rustix::io::Result<usize>> {
        match self.landing.as_mut()? {
            Landing::Put { memory, .. } => {
                let (memory, offset) = memory.as_ref()?;
                memory.with(offset + received, limit, |place| wire.read(&mut [IoSliceMut::new(place)], statistics))
            }
            Landing::Got(number) => {
                let Kind::Get { parts, received, .. } = &mut self.operations.get_mut(*number)?.kind else {
                    return None;
                };
                let mut places = places(parts, *received, limit);
                if places.is_empty() {
                    return None;
                }
                let got = wire.read(&mut places, statistics);
                drop(places);
                *received += *got.as_ref().unwrap_or(&0) as u64;
                Some(got)
            }
        }
    }

    /// Copies payload that was read before it was known where it goes.
    pub(super) fn deposit(&mut self, received: usize, bytes: &[u8], statistics: &mut Statistics) {
        let mut count = |bytes: usize| {
            statistics.copies += u64::from(bytes > 0);
            statistics.bytes_copied += bytes as u64;
        };
        match &mut self.landing {
            Some(Landing::Put { memory: Some((memory, offset)), .. }) => {
                // A copy: these bytes came with the header.
                memory.write(*offset + received, bytes);
                count(bytes.len());
            }
            Some(Landing::Got(number)) => {
                let Some(Operation { kind: Kind::Get { parts, received, .. }, .. }) = self.operations.get_mut(*number)
                else {
                    return;
                };
                let mut rest = bytes;
                for mut place in places(parts, *received, bytes.len()) {
                    let (now, later) = rest.split_at(place.len());
                    // A copy: as above.
                    place.copy_from_slice(now);
                    count(now.len());
                    rest = later;
                }
                *received += bytes.len() as u64;
            }
            _ => {}
        }
    }

    /// The payload is complete.
    pub(super) fn landed(&mut self) {
        match self.landing.take() {
            Some(Landing::Put { number, outcome, .. }) => self.answers.push_back(RemoteFrame::Ended(number, outcome)),
            Some(Landing::Got(number)) => {
                if let Some(Operation { kind: Kind::Get { received, wanted, .. }, .. }) = self.operations.get(number)
                    && received == wanted
                {
                    self.answered(number);
                    self.end(number, Ok(()));
                    self.forget(number);
                }
            }
            None => {}
        }
    }

    /// Touches a region no more; who asked for it is told.
    pub(super) fn conceal(&mut self, concealed: u64) {
        if let Some(Landing::Put { region, memory, outcome, .. }) = &mut self.landing
            && *region == concealed
        {
            (*memory, *outcome) = (None, Outcome::NoSuchRegion);
        }
        for served in std::mem::take(&mut self.served) {
            if served.region == concealed {
                self.answers.push_back(RemoteFrame::Ended(served.number, Outcome::NoSuchRegion));
            } else {
                self.served.push_back(served);
            }
        }
    }

    /// Ends every operation with `error`, once `outgoing` has ended all its sends; nothing more is sent.
    pub(super) fn end_all(&mut self, error: &Error, outgoing: &mut Outgoing) {
        self.collect(outgoing);
        self.unsent.clear();
        self.answers.clear();
        self.served.clear();
        self.landing = None;
        let numbers: Vec<_> = self.operations.iter().map(|(number, _)| number).collect();
        for number in numbers {
            if let Some(operation) = self.operations.get_mut(number) {
                operation.unanswered = 0;
            }
            self.end(number, Err(error.clone()));
            self.forget(number);
        }
        self.unanswered = 0;
    }

    fn post(&mut self, kind: Kind, extent: Extent) -> usize {
        self.pending += 1;
        let number = self.operations.insert(Operation::new(kind, extent));
        self.unsent.push_back(number);
        number
    }

    /// Whether this rank has a put or get to send, and may.
    #[inline]
    fn may_send(&self) -> bool {
        !self.unsent.is_empty() && self.unanswered < MAX_REQUESTS
    }

    /// Takes leases back whose bytes are written.
    fn collect(&mut self, outgoing: &mut Outgoing) {
        self.writing.retain(|(_, send)| outgoing.take_ended(*send).is_none());
    }

    /// Sends the next frame of the first operation that has something to send; gives its bytes.
    fn send_piece(&mut self, outgoing: &mut Outgoing, wire: &mut Wire, statistics: &mut Statistics) -> usize {
        let Some(&number) = self.unsent.front() else { return 0 };
        let Some(operation) = self.operations.get_mut(number) else { return 0 };
        self.unanswered += 1;
        operation.unanswered += 1;
        let (frame, piece) = match &mut operation.kind {
            Kind::Put { rest, place, .. } => {
                let piece = rest.pop_front().map(|part| part.split_at(PIECE_BYTES));
                let (piece, tail) = piece.map_or((None, None), |(piece, tail)| (Some(piece), tail));
                if let Some(tail) = tail {
                    rest.push_front(tail);
                }
                let length = piece.as_ref().map_or(0, ReadLease::len);
                let frame = RemoteFrame::Put(number as u32, *place, length);
                place.offset += length as u64;
                (frame, piece)
            }
            Kind::Get { wanted, place, .. } => (RemoteFrame::Get(number as u32, *place, *wanted), None),
            Kind::Flush(_) => return 0,
        };
        if !operation.has_more() {
            self.unsent.pop_front();
        }
        let bytes = HEADER_BYTES + piece.as_ref().map_or(0, ReadLease::len);
        let parts = piece.into_iter().collect();
        if let Some(send) = outgoing.post_frame(wire, frame.encode(self.own), parts, statistics) {
            self.writing.push_back((number, send));
        }
        bytes
    }

    /// Sends the next bytes that the peer wants.
    fn serve_piece(&mut self, outgoing: &mut Outgoing, wire: &mut Wire, statistics: &mut Statistics) -> usize {
        let Some(served) = self.served.front_mut() else { return 0 };
        let length = served.rest.min(PIECE_BYTES);
        let mut bytes = vec![0; length];
        // A copy: the region's memory may change while these bytes wait for the socket.
        served.memory.read(served.offset, &mut bytes);
        statistics.copies += u64::from(length > 0);
        statistics.bytes_copied += length as u64;
        served.offset += length;
        served.rest -= length;
        let frame = RemoteFrame::Bytes(served.number, length);
        if served.rest == 0 {
            self.served.pop_front();
        }
        outgoing.push_copy(wire, frame.encode(self.own), bytes, statistics);
        HEADER_BYTES + length
    }

    /// The memory that a request of the peer is for.
    fn find(&self, place: &Place, length: u64) -> Result<std::result::Result<(RegionMemory, usize), Outcome>> {
        if self.answers.len() + self.served.len() > MAX_REQUESTS {
            return self.refuse(format!("more than {MAX_REQUESTS} puts and gets without reading the answers"));
        }
        let key =
            RegionKey { owner: self.own, number: place.region, nonce: place.nonce, length: 0, native: Vec::new() };
        Ok(match self.regions.lock().find(&key, place.offset, length) {
            Ok((memory, offset)) => Ok((memory.clone(), offset)),
            Err(Error::OutOfRegion { .. }) => Err(Outcome::OutOfRegion),
            Err(_) => Err(Outcome::NoSuchRegion),
        })
    }

    fn take_up_bytes(&mut self, number: u32, length: usize) -> Result<usize> {
        let number = number as usize;
        match self.operations.get(number) {
            Some(Operation { kind: Kind::Get { received, wanted, .. }, unanswered: 1.., .. })
                if length as u64 <= wanted - received =>
            {
                self.landing = Some(Landing::Got(number));
                Ok(length)
            }
            _ => self.refuse(format!("{length} bytes for get {number}, which has not asked for them")),
        }
    }

    fn take_up_end(&mut self, number: u32, outcome: Outcome) -> Result<()> {
        let number = number as usize;
        let is_asked = |operation: &&mut Operation| {
            let is_get = matches!(operation.kind, Kind::Get { .. });
            operation.unanswered > 0 && !(is_get && outcome == Outcome::Done)
        };
        let Some(operation) = self.operations.get_mut(number).filter(is_asked) else {
            return self.refuse(format!("the end of operation {number}, which is none"));
        };
        let result = match outcome {
            Outcome::Done => Ok(()),
            Outcome::NoSuchRegion => Err(Error::NoSuchRegion { rank: self.peer }),
            Outcome::OutOfRegion => {
                let (offset, bytes, region_bytes) = operation.extent;
                Err(Error::OutOfRegion { rank: self.peer, offset, bytes, region_bytes })
            }
        };
        let is_last = operation.unanswered == 1 && !operation.has_more();
        self.answered(number);
        if result.is_err() {
            self.unsent.retain(|unsent| *unsent != number);
        }
        if is_last || result.is_err() {
            self.end(number, result);
        }
        self.forget(number);
        Ok(())
    }

    fn answered(&mut self, number: usize) {
        self.unanswered -= 1;
        if let Some(operation) = self.operations.get_mut(number) {
            operation.unanswered -= 1;
        }
    }

    /// Ends an operation, unless it has ended.
    fn end(&mut self, number: usize, result: Result<()>) {
        let Some(operation) = self.operations.get_mut(number).filter(|operation| operation.done.is_none()) else {
            return;
        };
        operation.done = Some(result);
        match &mut operation.kind {
            Kind::Put { rest, order, .. } => {
                rest.clear();
                let order = *order;
                self.end_put(order);
            }
            Kind::Get { parts, .. } => parts.clear(),
            Kind::Flush(_) => {}
        }
    }

    fn end_put(&mut self, order: u64) {
        self.order.end(order);
        if self.flushes == 0 {
            return;
        }
        for (_, operation) in &mut self.operations {
            if let Kind::Flush(before) = operation.kind
                && operation.done.is_none()
                && self.order.has_reached(before)
            {
                operation.done = Some(Ok(()));
            }
        }
    }

    /// Lets go of an operation that nobody asks for any more.
    fn forget(&mut self, number: usize) {
        if self.operations.get(number).is_some_and(|operation| operation.is_forgotten && operation.unanswered == 0) {
            self.operations.remove(number);
        }
    }

    fn refuse<T>(&self, what: String) -> Result<T> {
        Err(Error::Protocol { rank: self.peer, what })
    }
}

impl Operation {
    fn new(kind: Kind, extent: Extent) -> Self {
        Self { kind, extent, unanswered: 0, done: None, is_forgotten: false }
    }

    /// Whether something is still to be sent after what was.
    fn has_more(&self) -> bool {
        matches!(&self.kind, Kind::Put { rest, .. } if !rest.is_empty())
    }
}

fn place(key: &RegionKey, offset: u64) -> Place {
    Place { region: key.number, nonce: key.nonce, offset }
}

/// Where the bytes of a get go that follow the first `received`, at most `limit` of them.
fn places(parts: &mut RecvParts, received: u64, limit: usize) -> Places<'_> {
    let mut places = Places::new();
    let (mut skip, mut room) = (received as usize, limit);
    for part in parts.iter_mut() {
        let start = skip.min(part.len());
        let end = start + (part.len() - start).min(room);
        skip -= start;
        room -= end - start;
        if end > start {
            places.push(IoSliceMut::new(&mut part.bytes_mut()[start..end]));
        }
    }
    places
}
