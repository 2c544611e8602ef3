//! One receive, from the wait for its header to the arrival of its parts.

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;

use super::BOUNCE_BYTES;
use super::aside::Aside;
use super::engine::Engine;
use super::flight::{Bounce, Bounces, Flight};
use super::header::{HEADER_BYTES, Header};
use super::sending::count_copy;
use crate::transport::{RecvParts, Statistics};
use crate::{Arrival, Envelope, Error, MAX_PARTS, Rank, Result, Signature, Tag};

/// A receive that is not tested yet.
///
/// Invariants: `parts` stay here until the flights of `Stage::Parts` are reaped.
pub(super) struct Incoming {
    from: Rank,
    pub(super) tag: Tag,
    signature: Signature,
    parts: RecvParts,
    stage: Stage,
    /// Who stands behind it in the line of its tag.
    pub(super) next: Option<u64>,
    is_canceled: bool,
    posted_in: u32,
}

enum Stage {
    /// Somebody before it waits for the header.
    InLine,
    /// UCX writes the header, or a packed message, to the bounce memory.
    Header(Flight, Bounce<BOUNCE_BYTES>),
    /// UCX writes the parts to their places.
    Parts(Arrival, PartFlights),
    Ended(Ended),
}

/// The part receives that are not reaped, each with the bytes that it expects.
type PartFlights = ArrayVec<(Flight, usize), MAX_PARTS>;

/// How a receive ended.
pub(super) struct Ended {
    pub(super) from: Rank,
    pub(super) result: Result<Arrival>,
    /// Whether parts were fetched from the sender's memory.
    pub(super) is_spread: bool,
}

/// What becomes of a header.
pub(super) enum Taken {
    /// The receive goes on, or has ended.
    Settled,
    /// The receive has ended; the parts on the way have no place.
    Unwanted(Header),
    /// The sender wants the message back; the receive waits for the next, once its header receive is posted again.
    Withdrawn(Header),
}

/// What receives work with.
pub(super) struct Means<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) bounces: &'a mut Bounces<BOUNCE_BYTES>,
    pub(super) statistics: &'a mut Statistics,
}

/// A receive that is given back, with how it ended.
pub(super) type Finished = (RecvParts, Ended);

impl Incoming {
    #[inline]
    pub(super) fn new(from: Rank, envelope: &Envelope, parts: RecvParts, posted_in: u32) -> Self {
        let Envelope { tag, signature, .. } = *envelope;
        Self { from, tag, signature, parts, stage: Stage::InLine, next: None, is_canceled: false, posted_in }
    }

    /// Posts the header receive; true if it is over at once.
    #[inline]
    pub(super) fn open(&mut self, means: &mut Means<'_>, number: u64) -> bool {
        let (flight, bounce) = (means.engine.flights.take(), means.bounces.take());
        // SAFETY: the bounce memory is put back in `take_header` or `give_up`, when the flight is reaped.
        let is_over = unsafe { means.engine.recv(self.tag.0, bounce.as_ptr(), BOUNCE_BYTES, &flight, Some(number)) };
        self.stage = Stage::Header(flight, bounce);
        is_over
    }

    /// What becomes of a receive whose header receive is over.
    #[inline]
    pub(super) fn take_header(&mut self, means: &mut Means<'_>, aside: &mut Aside) -> Taken {
        let Stage::Header(flight, bounce) = std::mem::replace(&mut self.stage, Stage::InLine) else {
            return Taken::Settled;
        };
        let (status, bytes) = means.engine.reap(&flight).unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
        means.engine.flights.put(flight);
        // SAFETY: the only operation on this memory has just been reaped.
        let message = unsafe { bounce.bytes(bytes) };
        let read = self.read_header(status, message, means.engine);
        let taken = match read {
            Ok((header, _)) if aside.is_withdrawn(&header) && !self.is_canceled => Taken::Withdrawn(header),
            Ok((header, payload)) => self.accept(header, payload, means),
            Err(error) => {
                if !matches!(error, Error::Canceled) {
                    aside.violation.get_or_insert((self.from, error.clone()));
                }
                self.end(error);
                Taken::Settled
            }
        };
        means.bounces.put(bounce);
        taken
    }

    /// Goes on with the message of `header`, packed or not.
    #[inline]
    pub(super) fn accept(&mut self, header: Header, payload: &[u8], means: &mut Means<'_>) -> Taken {
        means.statistics.messages_received += 1;
        means.statistics.bytes_received += (HEADER_BYTES + header.payload_bytes()) as u64;
        let checked = header.check(self.from, self.signature, &self.parts);
        if header.is_packed {
            self.stage = match checked {
                Ok(()) => self.unpack(&header, payload, means.statistics),
                Err(error) => self.ended(Err(error), false),
            };
            return Taken::Settled;
        }
        if let Err(error) = checked.and(if self.is_canceled { Err(Error::Canceled) } else { Ok(()) }) {
            self.end(error);
            return Taken::Unwanted(header);
        }
        self.stage = self.fetch_parts(header, means);
        Taken::Settled
    }

    /// The header and the payload packed behind it; [`Error::Canceled`] if no message was matched.
    #[inline]
    fn read_header<'a>(&self, status: ucs_status_t, message: &'a [u8], engine: &Engine) -> Result<(Header, &'a [u8])> {
        match status {
            ucs_status_t::UCS_OK => Header::decode(message, self.from, self.tag),
            ucs_status_t::UCS_ERR_CANCELED => Err(Error::Canceled),
            ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED => {
                let what = format!("a message above {BOUNCE_BYTES} bytes in the place of a header");
                Err(Error::Protocol { rank: self.from, what })
            }
            status => Err(engine.error(self.from, "ucp_tag_recv_nbx", status)),
        }
    }

    #[inline]
    fn unpack(&mut self, header: &Header, mut payload: &[u8], statistics: &mut Statistics) -> Stage {
        count_copy(statistics, payload.len());
        for (place, length) in self.parts.iter_mut().zip(&header.lengths) {
            let (bytes, rest) = payload.split_at(*length);
            // A copy: the places were not known to be right before the header was read.
            place.bytes_mut()[..*length].copy_from_slice(bytes);
            payload = rest;
        }
        self.ended(Ok(header.arrival()), false)
    }

    /// Posts the receives of the parts, straight into their places.
    fn fetch_parts(&mut self, header: Header, means: &mut Means<'_>) -> Stage {
        let mut flights = PartFlights::new();
        for ((place, length), kind) in self.parts.iter_mut().zip(&header.lengths).zip(1..) {
            if *length == 0 {
                continue;
            }
            let flight = means.engine.flights.take();
            // SAFETY: whoever made the lease keeps the bytes, at least `length` of them (checked), until it is given
            // back, when the flight is reaped.
            unsafe {
                let bytes = place.bytes_mut().as_mut_ptr();
                means.engine.recv(header.tag.with_kind(kind).0, bytes, *length, &flight, None);
            }
            flights.push((flight, *length));
        }
        Stage::Parts(header.arrival(), flights)
    }

    /// Whether the receive has ended; draws the consequences of its parts.
    #[inline]
    pub(super) fn finish(&mut self, means: &mut Means<'_>, violation: &mut Option<(Rank, Error)>) -> bool {
        let Stage::Parts(arrival, flights) = &mut self.stage else { return matches!(self.stage, Stage::Ended(_)) };
        while let Some((flight, expected)) = flights.pop() {
            let Some((status, bytes)) = means.engine.reap(&flight) else {
                flights.push((flight, expected));
                return false;
            };
            means.engine.flights.put(flight);
            if status != ucs_status_t::UCS_OK {
                violation.get_or_insert((self.from, means.engine.error(self.from, "ucp_tag_recv_nbx", status)));
            } else if bytes != expected {
                let what = format!("{bytes} bytes in a part announced with {expected}");
                violation.get_or_insert((self.from, Error::Protocol { rank: self.from, what }));
            }
        }
        let result = match violation {
            Some((_, error)) => Err(error.clone()),
            None => Ok(arrival.clone()),
        };
        self.stage = self.ended(result, true);
        true
    }

    /// Ends what can be ended; true unless the receive had ended or UCX may still write its memory.
    pub(super) fn give_up(&mut self, means: &mut Means<'_>) -> bool {
        match std::mem::replace(&mut self.stage, Stage::InLine) {
            Stage::Ended(ended) => {
                self.stage = Stage::Ended(ended);
                return false;
            }
            Stage::InLine => {}
            Stage::Header(flight, bounce) => {
                means.engine.cancel(&flight);
                if means.engine.reap(&flight).is_none() {
                    self.stage = Stage::Header(flight, bounce);
                    return false;
                }
                means.engine.flights.put(flight);
                means.bounces.put(bounce);
            }
            Stage::Parts(arrival, mut flights) => {
                while let Some((flight, expected)) = flights.pop() {
                    if means.engine.reap(&flight).is_none() {
                        flights.push((flight, expected));
                        self.stage = Stage::Parts(arrival, flights);
                        return false;
                    }
                    means.engine.flights.put(flight);
                }
            }
        }
        true
    }

    /// Whether UCX is done with it.
    pub(super) fn is_over(&self) -> bool {
        match &self.stage {
            Stage::InLine | Stage::Header(..) => false,
            Stage::Parts(_, flights) => flights.iter().all(|(flight, _)| flight.is_over()),
            Stage::Ended(_) => true,
        }
    }

    /// The peer that it waits for, and the round that it was posted in.
    pub(super) fn wait(&self) -> (Rank, u32) {
        (self.from, self.posted_in)
    }

    /// Asks for an early end; true if it stands in a line and waits for nothing of UCX.
    pub(super) fn cancel(&mut self, engine: &Engine) -> bool {
        self.is_canceled = true;
        if let Stage::Header(flight, _) = &self.stage {
            engine.cancel(flight);
        }
        matches!(self.stage, Stage::InLine)
    }

    /// Ends it with `error`; UCX must be done with it.
    pub(super) fn end(&mut self, error: Error) {
        self.stage = self.ended(Err(error), false);
    }

    #[inline]
    fn ended(&self, result: Result<Arrival>, is_spread: bool) -> Stage {
        Stage::Ended(Ended { from: self.from, result, is_spread })
    }

    /// What is given back of a receive that [`finish`](Self::finish) has found over.
    #[inline]
    pub(super) fn finished(self) -> Finished {
        let ended = match self.stage {
            Stage::Ended(ended) => ended,
            _ => Ended { from: self.from, result: Err(Error::Canceled), is_spread: false },
        };
        (self.parts, ended)
    }
}
