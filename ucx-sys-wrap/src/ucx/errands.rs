//! What puts and gets between ranks that only sockets join have for UCX to do.

use brevity_ucx_sys::ucs_status_t;

use super::engine::{Engine, Protocol};
use super::handler::ACCESS;
use super::requests::{Bytes, Carried, Errand, Then};
use super::{MAX_EAGER_BYTES, NO_BYTES};
use crate::one_sided::frame::{FRAME_BYTES, RemoteFrame};
use crate::{Error, Rank};

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
        while let Some(errand) = self.requests().errands.pop_front() {
            did_anything = true;
            match errand {
                Errand::Send(to, frame, bytes, then) => self.send_frame(to, &frame, bytes, then),
                Errand::Fetch(offer, into, then) => {
                    let (bytes, target) = (offer.bytes, self.requests().target(&into));
                    let Some((place, _)) = target.filter(|(_, length)| *length == bytes) else {
                        // The get was canceled, and its parts were given back.
                        self.release(offer);
                        self.requests().end_work(then, Ok(()), false);
                        continue;
                    };
                    // SAFETY: so many bytes, which are kept with the flight until it is reaped: a region's,
                    // which are not reached but by raw pointers, or a part's, whose lease nobody else has.
                    let flight = unsafe { self.handler_context().fetch_to(place, offer) };
                    let carried = Carried { flight, bytes: into, expected: bytes, then };
                    self.requests().carried.push(carried);
                }
                Errand::Release(offer) => self.release(offer),
            }
        }
        did_anything
    }

    /// Ends what the requests have begun: operations with `error`, and its work for peers, once UCX is torn
    /// down.
    pub(super) fn close_requests(&mut self, error: &Error, is_torn_down: bool) {
        self.requests().close(error, is_torn_down);
        if is_torn_down {
            self.end_carried();
        }
    }

    fn send_frame(&mut self, to: Rank, frame: &RemoteFrame, bytes: Bytes, then: Then) {
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
        self.requests().carried.push(Carried { flight, bytes, expected: 0, then });
    }

    /// Lets go of the memory that UCX has done with, and tells peers whose bytes have come. Says whether
    /// there was any.
    fn end_carried(&mut self) -> bool {
        let is_torn_down = self.requests().is_torn_down;
        let mut carried = std::mem::take(&mut self.requests().carried);
        let before = carried.len();
        for Carried { flight, bytes, expected, then } in
            carried.extract_if(.., |carried| is_torn_down || carried.flight.is_over())
        {
            let outcome = self.reap(&flight);
            self.ucp_requests().put(flight);
            drop(bytes);
            let (Then::Answer(peer, _) | Then::Served(peer) | Then::Asked(peer, _)) = then;
            let (status, fetched) = outcome.unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
            let result = match status {
                ucs_status_t::UCS_OK if fetched == expected => Ok(()),
                ucs_status_t::UCS_OK => {
                    let what = format!("{fetched} bytes for a put or get of {expected}");
                    Err(Error::Protocol { rank: peer, what })
                }
                // Only a fetch brings bytes.
                _ if expected > 0 => Err(self.error(peer, "ucp_am_recv_data_nbx", status)),
                _ => Err(self.error(peer, "ucp_am_send_nbx", status)),
            };
            self.requests().end_work(then, result, expected > 0);
        }
        let is_less = carried.len() < before;
        self.requests().carried = carried;
        is_less
    }
}
