//! One put, get or flush of this rank.

use arrayvec::ArrayVec;

use super::super::ucp_request::UcpRequest;
use crate::buffer::ReadLease;
use crate::one_sided::PutOrder;
use crate::one_sided::frame::{Extent, Place};
use crate::transport::{RecvParts, SendParts};
use crate::{MAX_PARTS, Rank, Result};

/// UCX's work for one operation, each with the bytes that are to come: what is sent for each part, and what
/// is fetched.
pub(in crate::ucx) type Flights = ArrayVec<(UcpRequest, usize), { 2 * MAX_PARTS }>;

/// Invariant: the parts of `kind` stay here until every flight is reaped.
pub(super) struct Request {
    pub(super) peer: Rank,
    pub(super) kind: Kind,
    pub(super) place: Place,
    pub(super) extent: Extent,
    /// A bit for each part that is neither put nor being fetched.
    pub(super) open: u8,
    /// A bit for each part that the peer was asked for and has not answered.
    pub(super) asked: u8,
    pub(super) flights: Flights,
    pub(super) posted_in: u32,
    pub(super) is_canceled: bool,
    /// Its end was reported, and its parts are given back: it is kept for answers that are still to come.
    pub(super) is_left: bool,
    pub(super) result: Result<()>,
}

pub(super) enum Kind {
    /// With its place in the order of puts.
    Put(SendParts, u64),
    Get(RecvParts),
    /// A flush of the puts before this one.
    Flush(u64),
}

impl Request {
    pub(super) fn new(peer: Rank, kind: Kind, place: Place, extent: Extent, posted_in: u32) -> Self {
        let (flights, is_canceled, is_left, result) = (ArrayVec::new(), false, false, Ok(()));
        Self {
            peer,
            kind,
            place,
            extent,
            open: 0,
            asked: 0,
            flights,
            posted_in,
            is_canceled,
            is_left,
            result,
        }
    }

    /// Bytes of a part, if there is such a part.
    pub(super) fn length(&self, part: usize) -> usize {
        match &self.kind {
            Kind::Put(parts, _) => parts.get(part).map_or(0, ReadLease::len),
            Kind::Get(parts) => parts.get(part).map_or(0, |part| part.len()),
            Kind::Flush(_) => 0,
        }
    }

    /// Whether its end can be told: UCX does not use its parts any more, and the peer has answered, or nobody
    /// waits for that. What has failed on the way is not answered.
    pub(super) fn is_over(&self, order: &PutOrder) -> bool {
        if let Kind::Flush(before) = self.kind {
            return self.result.is_err() || order.has_reached(before);
        }
        let is_awaited = self.open != 0 && !self.is_canceled;
        self.flights.iter().all(|(flight, _)| flight.is_over())
            && (!is_awaited || !self.flights.iter().all(|(flight, _)| flight.has_succeeded()))
    }

    /// Whether it has done what it should.
    pub(super) fn is_whole(&self, order: &PutOrder) -> bool {
        match self.kind {
            Kind::Flush(_) => self.is_over(order),
            _ => self.open == 0 && self.flights.iter().all(|(flight, _)| flight.has_succeeded()),
        }
    }

    /// A part is not asked for any more.
    pub(super) fn close_part(&mut self, part: usize, result: Result<()>) {
        self.open &= !(1 << part);
        if self.result.is_ok() {
            self.result = result;
        }
    }

    /// Gives the parts back; what the peer has been asked for it still answers.
    pub(super) fn leave(&mut self) -> (Result<()>, Flights) {
        self.is_left = true;
        match &mut self.kind {
            Kind::Put(parts, _) => parts.clear(),
            Kind::Get(parts) => parts.clear(),
            Kind::Flush(_) => {}
        }
        (std::mem::replace(&mut self.result, Ok(())), std::mem::take(&mut self.flights))
    }
}
