//! What puts and gets between ranks that only sockets join have for UCX to do.

use std::ptr::NonNull;

use brevity_ucx_sys::ucs_status_t;

use super::engine::{Engine, Protocol};
use super::handler::ACCESS;
use super::requests::{Bytes, Carried, EndedRequest, Errand, Then};
use super::{MAX_EAGER_BYTES, NO_BYTES};
use crate::one_sided::frame::{FRAME_BYTES, Outcome, RemoteFrame};
use crate::{Error, Rank, Result};

impl Engine {
    /// Does what is to be done, and looks at what has been. Says whether there was anything.
    #[inline]
    pub(super) fn run_errands(&mut self) -> bool {
        self.requests().has_errands() && self.end_carried() | self.do_errands()
    }

    /// Does what is to be done.
    #[inline(never)]
    pub(super) fn do_errands(&mut self) -> bool {
        let mut did_anything = false;
        while let Some(errand) = self.requests().next_errand() {
            did_anything = true;
            match errand {
                Errand::Send { to, frame, bytes } => self.send_frame(to, &frame, bytes),
                Errand::Fetch { offer, into, answer } => {
                    let (bytes, target) = (offer.bytes, self.requests().target(&into));
                    let place = target
                        .filter(|(_, length)| *length == bytes)
                        .and_then(|(start, _)| NonNull::new(start));
                    let Some(place) = place else {
                        // Nobody waits for it any more.
                        self.release(offer);
                        continue;
                    };
                    // SAFETY: so many bytes, which are kept with the flight until it is reaped: a region's,
                    // which are not reached but by raw pointers, or a part's, whose lease nobody else has.
                    let flight = unsafe { self.handler_context().fetch_to(place, offer) };
                    let then = answer.map_or(Then::Served(self.handler_context().own), |(to, number)| {
                        Then::Answer(to, number)
                    });
                    self.requests().keep(flight, into, bytes, then);
                }
                Errand::Release(offer) => self.release(offer),
            }
        }
        did_anything
    }

    /// The outcome of an operation that is over, and whether bytes were fetched for it.
    pub(super) fn take_ended_request(&mut self, number: usize) -> Option<(Rank, Result<()>, bool)> {
        let EndedRequest { peer, mut result, is_canceled, flights } = self.requests().take_ended(number)?;
        let is_fetched = flights.iter().any(|(_, expected)| *expected > 0);
        for (flight, expected) in flights {
            let (status, bytes) = self.reap(&flight).unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
            self.ucp_requests().put(flight);
            // Only a fetch brings bytes.
            let call = if expected > 0 { "ucp_am_recv_data_nbx" } else { "ucp_am_send_nbx" };
            let is_refused = matches!(result, Err(Error::NoSuchRegion { .. } | Error::OutOfRegion { .. }));
            if status != ucs_status_t::UCS_OK {
                // What was not sent is worse than what was refused.
                let failure = Err(self.error(peer, call, status));
                result = if is_refused { failure } else { result.and(failure) };
            } else if bytes != expected {
                let what = format!("{bytes} bytes for a get of {expected}");
                result = result.and(Err(Error::Protocol { rank: peer, what }));
            }
        }
        let canceled = if is_canceled { Err(Error::Canceled) } else { Ok(()) };
        Some((peer, result.and(canceled), is_fetched))
    }

    /// Ends what the requests have begun: operations with `error`, and its work for peers, once UCX is torn
    /// down.
    pub(super) fn close_requests(&mut self, error: &Error, is_torn_down: bool) {
        self.requests().close(error, is_torn_down);
        if is_torn_down {
            self.end_carried();
        }
    }

    fn send_frame(&mut self, to: Rank, frame: &RemoteFrame, bytes: Bytes) {
        let own = self.handler_context().own;
        let payload = self.requests().source(&bytes).unwrap_or(NO_BYTES);
        let mut flight = self.ucp_requests().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { flight.header_mut() };
        room[..FRAME_BYTES].copy_from_slice(&frame.encode(own));
        let manner = if payload.1 <= MAX_EAGER_BYTES { Protocol::Auto } else { Protocol::Rendezvous };
        // SAFETY: the bytes are kept with the flight until it is reaped; those of a region may change, and
        // whatever they are is sent.
        unsafe { self.send(to, (ACCESS, manner), FRAME_BYTES, payload, &flight) };
        self.requests().keep(flight, bytes, 0, Then::Served(to));
    }

    /// Lets go of the memory that UCX has done with, and tells peers whose bytes have come. Says whether
    /// there was any.
    fn end_carried(&mut self) -> bool {
        let is_torn_down = self.requests().is_torn_down;
        let mut carried = std::mem::take(&mut self.requests().carried);
        let before = carried.len();
        for Carried { flight, bytes, then } in
            carried.extract_if(.., |carried| is_torn_down || carried.flight.is_over())
        {
            let outcome = self.reap(&flight);
            self.ucp_requests().put(flight);
            drop(bytes);
            let (Then::Answer(peer, _) | Then::Served(peer)) = then;
            let is_done = matches!(outcome, Some((ucs_status_t::UCS_OK, _)));
            match then {
                Then::Answer(to, number) if is_done => self.requests().answer(to, number, Outcome::Done),
                _ => self.requests().end_served(peer),
            }
            if !is_done && !is_torn_down && !self.requests().unanswered.contains(&peer) {
                self.requests().unanswered.push(peer);
            }
        }
        let is_less = carried.len() < before;
        self.requests().carried = carried;
        is_less
    }
}
