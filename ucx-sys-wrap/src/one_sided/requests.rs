//! The puts, gets and flushes that this rank asks of one peer, until their end is reported and the peer has
//! answered.
//!
//! A put is sent in pieces, none of which spans two parts; the peer answers each piece. A get asks for each
//! part by itself, so that each piece of the answer has one place to go to. The transport sends the frames,
//! brings the answers, and reports when it no longer uses the memory of a frame or of bytes that have come.

use std::collections::VecDeque;

use slab::Slab;

use super::frame::{Extent, Outcome, Place, RemoteFrame};
use super::{AccessParts, PutOrder, RegionKey};
use crate::memory::ReadLease;
use crate::transport::{Posted, RecvParts, SendParts};
use crate::{Error, MAX_PARTS, Rank, Result};

/// Frames that wait for their answer, at most; more are held back.
pub(crate) const MAX_REQUESTS: usize = 1 << 14;

/// Bits of an operation's number on the wire that hold the part that a get asks for.
const PART_BITS: u32 = 2;

const _: () = assert!(MAX_PARTS <= 1 << PART_BITS);

/// What this rank asks of one peer.
pub(crate) struct PeerRequests {
    peer: Rank,
    /// The longest piece of a put; `usize::MAX` where parts are not cut, nor those of a get.
    piece_bytes: usize,
    operations: Slab<Operation>,
    order: PutOrder,
    /// Flushes that have not ended, each with the puts that it waits for, in order.
    flushes: VecDeque<(u64, usize)>,
    /// Operations that have frames to send, in order.
    unsent: VecDeque<usize>,
    unanswered: usize,
    /// Operations whose end was not reported.
    pending: usize,
}

struct Operation {
    kind: Kind,
    /// The place that the next frame is about.
    place: Place,
    extent: Extent,
    /// Frames that wait for their answer.
    unanswered: usize,
    /// Frames and arrivals whose memory the transport uses.
    in_use: usize,
    /// The transport's round in which it was posted.
    round: u32,
    /// Whether bytes were fetched from the peer's memory.
    is_fetched: bool,
    done: Option<Result<()>>,
    is_reported: bool,
}

enum Kind {
    /// What is still to be sent, and the place in the order of puts.
    Put {
        rest: SendParts,
        order: u64,
    },
    /// A bit for each part that is still to be asked for, and for each that is being answered; the bytes that
    /// are still to come.
    Get {
        parts: RecvParts,
        unasked: u8,
        open: u8,
        missing: [usize; MAX_PARTS],
    },
    Flush,
}

/// A frame to send, with the payload of a put. The transport calls [`release`](PeerRequests::release) once it
/// has done with it.
pub(crate) struct Request {
    pub(crate) number: usize,
    pub(crate) frame: RemoteFrame,
    pub(crate) payload: Option<ReadLease>,
}

/// Where bytes go that a get has brought, until they are [released](PeerRequests::release).
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) number: usize,
    part: usize,
    offset: usize,
    length: usize,
}

impl PeerRequests {
    pub(crate) fn new(peer: Rank, piece_bytes: usize) -> Self {
        Self {
            peer,
            piece_bytes,
            operations: Slab::new(),
            order: PutOrder::default(),
            flushes: VecDeque::new(),
            unsent: VecDeque::new(),
            unanswered: 0,
            pending: 0,
        }
    }

    /// Begins a put or get. [`waits`](Self::waits) gives `round` back.
    pub(crate) fn post(&mut self, key: &RegionKey, offset: u64, parts: AccessParts, round: u32) -> usize {
        let extent = Extent { offset, bytes: parts.bytes(), region_bytes: key.length };
        // Without bytes, one frame asks whether the region is there.
        let kind = match parts {
            AccessParts::Put(mut rest) => {
                rest.retain(|part| !part.is_empty());
                Kind::Put { rest, order: self.order.begin() }
            }
            AccessParts::Get(parts) => {
                let (mut unasked, mut missing) = (u8::from(extent.bytes == 0), [0; MAX_PARTS]);
                for (index, part) in parts.iter().enumerate() {
                    unasked |= u8::from(!part.is_empty()) << index;
                    missing[index] = part.len();
                }
                Kind::Get { parts, unasked, open: 0, missing }
            }
        };
        let number = self.insert(kind, Place::of(key, offset), extent, round);
        self.unsent.push_back(number);
        number
    }

    pub(crate) fn post_flush(&mut self, round: u32) -> Posted<usize, Result<()>> {
        let before = self.order.next();
        if self.order.has_reached(before) {
            return Posted::Done(Ok(()));
        }
        let number = self.insert(Kind::Flush, Place::default(), Extent::default(), round);
        self.flushes.push_back((before, number));
        Posted::Pending(number)
    }

    /// The end of an operation, once the transport no longer uses its memory; and whether bytes were fetched
    /// for it.
    pub(crate) fn test(&mut self, number: usize) -> Option<(Result<()>, bool)> {
        let operation = self
            .operations
            .get_mut(number)
            .filter(|operation| !operation.is_reported && operation.in_use == 0)?;
        let ended = (operation.done.clone()?, operation.is_fetched);
        operation.is_reported = true;
        if let Kind::Get { parts, .. } = &mut operation.kind {
            parts.clear();
        }
        self.pending -= 1;
        self.settle(number);
        Some(ended)
    }

    /// Ends an operation early, unless it has ended. What was not asked for never is.
    pub(crate) fn cancel(&mut self, number: usize) {
        if self.operations.get(number).is_some_and(|operation| operation.done.is_none()) {
            self.stop(number, Error::Canceled);
        }
    }

    /// Ends an operation because a transfer has failed, unless another failure has ended it before.
    pub(crate) fn fail(&mut self, number: usize, error: Error) {
        let Some(operation) = self.operations.get(number) else { return };
        if let None
        | Some(Ok(()) | Err(Error::Canceled | Error::NoSuchRegion { .. } | Error::OutOfRegion { .. })) =
            operation.done
        {
            self.stop(number, error);
        }
    }

    /// Ends all that has not ended with `error`; nothing more is sent, and no answers come.
    pub(crate) fn end_all(&mut self, error: &Error) {
        self.unsent.clear();
        self.flushes.clear();
        self.order = PutOrder::default();
        self.unanswered = 0;
        for (_, operation) in &mut self.operations {
            operation.unanswered = 0;
            operation.drop_unsent();
            if let Kind::Get { open, .. } = &mut operation.kind {
                *open = 0;
            }
            operation.done.get_or_insert_with(|| Err(error.clone()));
        }
        self.operations.retain(|_, operation| !operation.is_reported || operation.in_use > 0);
    }

    /// Whether the end of an operation was not reported.
    #[inline]
    pub(crate) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// Whether there is a frame to send, and it may be sent.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        !self.unsent.is_empty() && self.unanswered < MAX_REQUESTS
    }

    /// The peer and the round of each operation that is not over.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        let is_pending = |operation: &&Operation| {
            !operation.is_reported && (operation.done.is_none() || operation.in_use > 0)
        };
        let operations = self.operations.iter().map(|(_, operation)| operation);
        operations.filter(is_pending).map(|operation| (self.peer, operation.round))
    }

    /// The next frame, if one may be sent.
    pub(crate) fn next_request(&mut self) -> Option<Request> {
        if !self.may_send() {
            return None;
        }
        let number = *self.unsent.front()?;
        let operation = self.operations.get_mut(number)?;
        let (on_wire, place) = ((number as u32) << PART_BITS, operation.place);
        let (frame, payload, bytes) = match &mut operation.kind {
            Kind::Put { rest, .. } => {
                let piece = rest.pop_at(0).map(|part| part.split_at(self.piece_bytes));
                let (payload, tail) = piece.unzip();
                if let Some(Some(tail)) = tail {
                    rest.insert(0, tail);
                }
                let bytes = payload.as_ref().map_or(0, ReadLease::len);
                (RemoteFrame::Put(on_wire, place, bytes), payload, bytes)
            }
            Kind::Get { unasked, open, missing, .. } => {
                let part = unasked.trailing_zeros() % u8::BITS;
                *unasked &= !(1 << part);
                *open |= 1 << part;
                let bytes = missing[part as usize];
                (RemoteFrame::Get(on_wire | part, place, bytes as u64), None, bytes)
            }
            Kind::Flush => return None,
        };
        operation.place.offset += bytes as u64;
        operation.unanswered += 1;
        operation.in_use += 1;
        if !operation.has_unsent() {
            self.unsent.pop_front();
        }
        self.unanswered += 1;
        Some(Request { number, frame, payload })
    }

    /// The peer brings bytes: where they go.
    ///
    /// # Errors
    /// [`Error::Protocol`] for bytes that this rank does not wait for.
    pub(crate) fn take_up_bytes(&mut self, on_wire: u32, length: usize) -> Result<Target> {
        let (number, part) = split(on_wire);
        // Bytes that are fetched come whole: nothing else may touch a part while one fetch goes on.
        let is_cut = self.piece_bytes < usize::MAX;
        if let Some(operation) = self.operations.get_mut(number)
            && let Kind::Get { parts, open, missing, .. } = &mut operation.kind
            && *open & 1 << part != 0
            && (length == missing[part] || length < missing[part] && is_cut)
        {
            let offset = parts.get(part).map_or(0, |place| place.len() - missing[part]);
            missing[part] -= length;
            operation.in_use += 1;
            if missing[part] == 0 {
                *open &= !(1 << part);
                operation.unanswered -= 1;
                self.unanswered -= 1;
            }
            return Ok(Target { number, part, offset, length });
        }
        self.refuse(format!("{length} bytes for get {number}, which has not asked for them"))
    }

    /// The peer reports an end.
    ///
    /// # Errors
    /// [`Error::Protocol`] for an end that this rank does not wait for.
    pub(crate) fn take_up_end(&mut self, on_wire: u32, outcome: Outcome) -> Result<()> {
        let (number, part) = split(on_wire);
        let is_awaited = |operation: &&mut Operation| match operation.kind {
            Kind::Put { .. } => operation.unanswered > 0 && part == 0,
            Kind::Get { open, .. } => open & 1 << part != 0 && outcome != Outcome::Done,
            Kind::Flush => false,
        };
        let Some(operation) = self.operations.get_mut(number).filter(is_awaited) else {
            return self.refuse(format!("the end of put or get {number}, which is none"));
        };
        operation.unanswered -= 1;
        self.unanswered -= 1;
        if let Kind::Get { open, .. } = &mut operation.kind {
            *open &= !(1 << part);
        }
        match outcome.result(self.peer, operation.extent) {
            Err(error) if operation.done.is_none() => self.stop(number, error),
            _ => self.settle(number),
        }
        Ok(())
    }

    /// Where bytes go that have come, unless the memory was given back.
    pub(crate) fn place(&mut self, target: &Target) -> Option<&mut [u8]> {
        let Kind::Get { parts, .. } = &mut self.operations.get_mut(target.number)?.kind else { return None };
        parts.get_mut(target.part)?.bytes_mut().get_mut(target.offset..target.offset + target.length)
    }

    /// The transport no longer uses the memory of a frame, or of bytes that have come, which it may have
    /// fetched from the peer's memory.
    pub(crate) fn release(&mut self, number: usize, is_fetched: bool) {
        if let Some(operation) = self.operations.get_mut(number) {
            operation.in_use -= 1;
            operation.is_fetched |= is_fetched;
            self.settle(number);
        }
    }

    fn insert(&mut self, kind: Kind, place: Place, extent: Extent, round: u32) -> usize {
        self.pending += 1;
        self.operations.insert(Operation {
            kind,
            place,
            extent,
            round,
            unanswered: 0,
            in_use: 0,
            is_fetched: false,
            done: None,
            is_reported: false,
        })
    }

    /// Ends an operation with an error: nothing more of it is sent.
    fn stop(&mut self, number: usize, error: Error) {
        if let Some(operation) = self.operations.get_mut(number) {
            operation.done = Some(Err(error));
            operation.drop_unsent();
            self.unsent.retain(|unsent| *unsent != number);
            self.flushes.retain(|(_, flush)| *flush != number);
            self.settle(number);
        }
    }

    /// Ends an operation of which everything was sent and answered and whose memory the transport no longer
    /// uses; removes it if its end was reported. A canceled put counts for flushes until it is answered.
    fn settle(&mut self, number: usize) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        if operation.unanswered > 0 || operation.in_use > 0 || operation.has_unsent() {
            return;
        }
        operation.done.get_or_insert(Ok(()));
        if let Kind::Put { order, .. } = operation.kind {
            self.order.end(order);
        }
        if operation.is_reported {
            self.operations.remove(number);
        }
        while let Some(&(before, flush)) = self.flushes.front()
            && self.order.has_reached(before)
        {
            self.flushes.pop_front();
            if let Some(flush) = self.operations.get_mut(flush) {
                flush.done = Some(Ok(()));
            }
        }
    }

    fn refuse<T>(&self, what: String) -> Result<T> {
        Err(Error::Protocol { rank: self.peer, what })
    }
}

impl Operation {
    /// Whether a frame is to be sent after one that was.
    fn has_unsent(&self) -> bool {
        match &self.kind {
            Kind::Put { rest, .. } => !rest.is_empty(),
            Kind::Get { unasked, .. } => *unasked != 0,
            Kind::Flush => false,
        }
    }

    fn drop_unsent(&mut self) {
        match &mut self.kind {
            Kind::Put { rest, .. } => rest.clear(),
            Kind::Get { unasked, .. } => *unasked = 0,
            Kind::Flush => {}
        }
    }
}

/// The operation and the part of a number on the wire.
fn split(on_wire: u32) -> (usize, usize) {
    ((on_wire >> PART_BITS) as usize, (on_wire & ((1 << PART_BITS) - 1)) as usize)
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
