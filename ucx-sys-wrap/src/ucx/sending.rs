//! Sends, from posting until their parts are given back.

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;

use super::BOUNCE_BYTES;
use super::engine::Engine;
use super::flight::{Bounce, Bounces, Flight};
use super::header::{HEADER_BYTES, Header};
use super::table::Table;
use crate::transport::{Posted, SendDone, SendParts, Statistics};
use crate::{Error, MAX_PARTS, Rank, Result, Tag};

/// The sends of one rank, until they are tested.
pub(super) struct Sends {
    operations: Table<Outgoing>,
    posted: u32,
}

/// A message that its sender wants back, as its receiver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Withdrawal {
    pub(super) tag: Tag,
    pub(super) serial: u32,
}

/// A send under way.
///
/// Invariants: `parts` stay here, and `bounce` is not put back, until every flight is reaped.
struct Outgoing {
    to: Rank,
    message: Withdrawal,
    parts: SendParts,
    /// What UCX still works on: the header or packed message, and the parts.
    flights: ArrayVec<Flight, { MAX_PARTS + 1 }>,
    bounce: Option<Bounce<BOUNCE_BYTES>>,
    posted_in: u32,
    is_withdrawn: bool,
    result: Result<()>,
}

impl Sends {
    pub(super) fn new() -> Self {
        Self { operations: Table::new(), posted: 0 }
    }

    /// Sends a message: packed in one piece, or the header and then every part that is not empty, in order.
    #[inline]
    pub(super) fn post(
        &mut self,
        (engine, bounces): (&mut Engine, &mut Bounces<BOUNCE_BYTES>),
        to: Rank,
        mut header: Header,
        parts: SendParts,
        (posted_in, statistics): (u32, &mut Statistics),
    ) -> Posted<u64, SendDone> {
        self.posted = self.posted.wrapping_add(1);
        header.serial = self.posted;
        let mut bounce = bounces.take();
        // SAFETY: just taken: no operation uses it.
        let length = pack(&header, &parts, unsafe { bounce.bytes_mut() }, statistics);
        let flight = engine.flights.take();
        // SAFETY: the bounce memory is put back when the flight is reaped, here or in `is_over`.
        unsafe { engine.send(to, header.tag.0, bounce.as_ptr(), length, &flight) };
        if header.is_packed
            && let Some((ucs_status_t::UCS_OK, _)) = engine.reap(&flight)
        {
            engine.flights.put(flight);
            bounces.put(bounce);
            return Posted::Done(SendDone { parts, result: Ok(()) });
        }
        let message = Withdrawal { tag: header.tag, serial: header.serial };
        let (flights, is_withdrawn, result) = (ArrayVec::new(), false, Ok(()));
        let bounce = Some(bounce);
        let mut outgoing = Outgoing { to, message, parts, flights, bounce, posted_in, is_withdrawn, result };
        outgoing.fly(engine, flight);
        if !header.is_packed {
            outgoing.send_parts(engine, &header);
        }
        if outgoing.is_over(engine, bounces) {
            return Posted::Done(outgoing.done());
        }
        Posted::Pending(self.operations.insert(outgoing))
    }

    /// Gives a send back that is over.
    pub(super) fn test(
        &mut self,
        (engine, bounces): (&mut Engine, &mut Bounces<BOUNCE_BYTES>),
        number: u64,
    ) -> Option<(Rank, SendDone)> {
        if !self.operations.get_mut(number)?.is_over(engine, bounces) {
            return None;
        }
        self.operations.remove(number).map(|outgoing| (outgoing.to, outgoing.done()))
    }

    /// Wants a message back that UCX has not taken; says what to tell whom, the first time.
    pub(super) fn withdraw(&mut self, number: u64) -> Option<(Rank, Withdrawal)> {
        let outgoing = self.operations.get_mut(number)?;
        let is_over = outgoing.flights.iter().all(Flight::is_over);
        if is_over || std::mem::replace(&mut outgoing.is_withdrawn, true) {
            return None;
        }
        Some((outgoing.to, outgoing.message))
    }

    /// Once UCX is torn down: every send that had not ended before has ended with `error`.
    pub(super) fn end_all(&mut self, error: &Error) {
        let is_sent = |flight: &Flight| flight.is_over() && flight.record().status.get() == ucs_status_t::UCS_OK;
        for outgoing in self.operations.iter_mut() {
            if outgoing.result.is_ok() && !outgoing.flights.iter().all(is_sent) {
                outgoing.result = Err(error.clone());
            }
        }
    }

    /// The peers of sends that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations
            .iter()
            .filter(|outgoing| outgoing.flights.iter().any(|flight| !flight.is_over()))
            .map(|outgoing| (outgoing.to, outgoing.posted_in))
    }
}

impl Outgoing {
    fn send_parts(&mut self, engine: &mut Engine, header: &Header) {
        for (part, kind) in (0..self.parts.len()).zip(1..) {
            let bytes = self.parts[part].bytes();
            // A stream that has broken stays as it is: the caller closes the transport.
            if bytes.is_empty() || self.result.is_err() {
                continue;
            }
            let flight = engine.flights.take();
            // SAFETY: whoever made the lease keeps the bytes until it is given back, when the flight is reaped.
            unsafe { engine.send(self.to, header.tag.with_kind(kind).0, bytes.as_ptr(), bytes.len(), &flight) };
            self.fly(engine, flight);
        }
    }

    /// Keeps a flight unless it is over already.
    fn fly(&mut self, engine: &mut Engine, flight: Flight) {
        if !self.land(engine, &flight) {
            self.flights.push(flight);
            return;
        }
        engine.flights.put(flight);
    }

    /// Whether UCX is done with a flight; takes its outcome down.
    fn land(&mut self, engine: &Engine, flight: &Flight) -> bool {
        match engine.reap(flight) {
            None => return false,
            Some((ucs_status_t::UCS_OK, _)) => {}
            Some((status, _)) if self.result.is_ok() => {
                self.result = Err(engine.error(self.to, "ucp_tag_send_nbx", status))
            }
            Some(_) => {}
        }
        true
    }

    /// Whether UCX touches none of the memory any more; then the bounce memory goes back.
    fn is_over(&mut self, engine: &mut Engine, bounces: &mut Bounces<BOUNCE_BYTES>) -> bool {
        while let Some(flight) = self.flights.pop() {
            if !self.land(engine, &flight) {
                self.flights.push(flight);
                return false;
            }
            engine.flights.put(flight);
        }
        if let Some(bounce) = self.bounce.take() {
            bounces.put(bounce);
        }
        true
    }

    fn done(self) -> SendDone {
        // The receiver does not say whether it had matched the message.
        let canceled = if self.is_withdrawn { Err(Error::Canceled) } else { Ok(()) };
        SendDone { parts: self.parts, result: self.result.and(canceled) }
    }
}

/// Writes the header, and the payload of a packed message; returns how many bytes that is.
#[inline]
fn pack(header: &Header, parts: &SendParts, room: &mut [u8; BOUNCE_BYTES], statistics: &mut Statistics) -> usize {
    room[..HEADER_BYTES].copy_from_slice(&header.encode());
    let mut end = HEADER_BYTES;
    if header.is_packed {
        for part in parts {
            let bytes = part.bytes();
            // A copy: one UCX message instead of two or more, which costs more than these bytes do.
            room[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        }
        count_copy(statistics, end - HEADER_BYTES);
    }
    end
}

/// Counts one copy of payload, unless there is none.
#[inline]
pub(super) fn count_copy(statistics: &mut Statistics, bytes: usize) {
    statistics.copies += u64::from(bytes > 0);
    statistics.bytes_copied += bytes as u64;
}
