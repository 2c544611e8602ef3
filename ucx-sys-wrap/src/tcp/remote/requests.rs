//! Puts, gets and flushes of this rank, until they have ended.

use std::collections::VecDeque;

use super::landing::Landing;
use super::{Accesses, PIECE_BYTES};
use crate::buffer::ReadLease;
use crate::one_sided::frame::{Extent, Outcome, Place, RemoteFrame};
use crate::one_sided::{RegionKey, get_bytes};
use crate::tcp::outgoing::Outgoing;
use crate::tcp::sizes::HEADER_BYTES;
use crate::tcp::wire::Wire;
use crate::transport::{Posted, RecvParts, SendParts, Statistics};
use crate::{Error, Result};

pub(super) struct Operation {
    pub(super) kind: Kind,
    extent: Extent,
    /// Frames that wait for their answer.
    pub(super) unanswered: usize,
    done: Option<Result<()>>,
    /// Its end was reported: it is kept only for answers that are still to come.
    is_forgotten: bool,
}

pub(super) enum Kind {
    /// What is still to be sent, from where on, and its place in the order of puts.
    Put { rest: VecDeque<ReadLease>, place: Place, order: u64 },
    /// Where the bytes go, how many have come, and how many are wanted of where.
    Get { parts: RecvParts, received: u64, wanted: u64, place: Place },
    /// A flush of the puts before this one.
    Flush(u64),
}

impl Accesses {
    pub(in crate::tcp) fn post_put(&mut self, key: &RegionKey, offset: u64, parts: SendParts) -> usize {
        let mut rest: VecDeque<_> = parts.into_iter().collect();
        if rest.len() > 1 {
            // One frame of no bytes asks whether the region is there, if there is nothing to put.
            rest.retain(|part| !part.is_empty());
        }
        let order = self.order.begin();
        let bytes = rest.iter().map(|part| part.len() as u64).sum();
        let extent = Extent { offset, bytes, region_bytes: key.length };
        self.post(Kind::Put { rest, place: Place::of(key, offset), order }, extent)
    }

    pub(in crate::tcp) fn post_get(&mut self, key: &RegionKey, offset: u64, parts: RecvParts) -> usize {
        let wanted = get_bytes(&parts);
        let kind = Kind::Get { parts, received: 0, wanted, place: Place::of(key, offset) };
        self.post(kind, Extent { offset, bytes: wanted, region_bytes: key.length })
    }

    pub(in crate::tcp) fn post_flush(&mut self) -> Posted<usize, Result<()>> {
        let before = self.order.next();
        if self.order.has_reached(before) {
            return Posted::Done(Ok(()));
        }
        self.pending += 1;
        self.flushes += 1;
        Posted::Pending(self.operations.insert(Operation::new(Kind::Flush(before), Extent::default())))
    }

    pub(in crate::tcp) fn test(&mut self, number: usize, outgoing: &mut Outgoing) -> Option<Result<()>> {
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
    pub(in crate::tcp) fn cancel(
        &mut self,
        number: usize,
        outgoing: &mut Outgoing,
        statistics: &mut Statistics,
    ) {
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

    pub(super) fn post(&mut self, kind: Kind, extent: Extent) -> usize {
        self.pending += 1;
        let number = self.operations.insert(Operation::new(kind, extent));
        self.unsent.push_back(number);
        number
    }

    /// Sends the next frame of the first operation that has something to send; gives its bytes.
    pub(super) fn send_piece(
        &mut self,
        outgoing: &mut Outgoing,
        wire: &mut Wire,
        statistics: &mut Statistics,
    ) -> usize {
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
        if let Some(send) = outgoing.post_one_sided(wire, frame.encode(self.own), parts, statistics) {
            self.writing.push_back((number, send));
        }
        bytes
    }

    pub(super) fn take_up_bytes(&mut self, number: u32, length: usize) -> Result<usize> {
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

    pub(super) fn take_up_end(&mut self, number: u32, outcome: Outcome) -> Result<()> {
        let number = number as usize;
        let is_asked = |operation: &&mut Operation| {
            let is_get = matches!(operation.kind, Kind::Get { .. });
            operation.unanswered > 0 && !(is_get && outcome == Outcome::Done)
        };
        let Some(operation) = self.operations.get_mut(number).filter(is_asked) else {
            return self.refuse(format!("the end of operation {number}, which is none"));
        };
        let result = outcome.result(self.peer, operation.extent);
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

    pub(super) fn answered(&mut self, number: usize) {
        self.unanswered -= 1;
        if let Some(operation) = self.operations.get_mut(number) {
            operation.unanswered -= 1;
        }
    }

    /// Ends an operation, unless it has ended.
    pub(super) fn end(&mut self, number: usize, result: Result<()>) {
        let Some(operation) = self.operations.get_mut(number).filter(|operation| operation.done.is_none())
        else {
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

    pub(super) fn end_put(&mut self, order: u64) {
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
    pub(super) fn forget(&mut self, number: usize) {
        if self
            .operations
            .get(number)
            .is_some_and(|operation| operation.is_forgotten && operation.unanswered == 0)
        {
            self.operations.remove(number);
        }
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
