//! What UCX's handlers reach: the inbox, and what fetching a payload takes.

use std::ptr::{NonNull, null_mut};

use brevity_ucx_sys::*;

use super::inbox::{Deferred, Inbox};
use super::payload::Rts;
use super::requests::Requests;
use super::ucp_request::{UcpRequest, UcpRequests, fetch_ended};
use crate::Rank;

/// The state that handlers use.
///
/// Invariants: it lies on the heap at a fixed address and is freed after the worker. `worker` is null or
/// lives.
pub(super) struct HandlerContext {
    pub(super) own: Rank,
    pub(super) inbox: Inbox,
    pub(super) requests: Requests,
    pub(super) ucp_requests: UcpRequests,
    ucp: &'static Ucp,
    pub(super) worker: ucp_worker_h,
    /// Whether endpoints or the worker are about to go: handlers then begin no fetch.
    pub(super) is_leaving: bool,
}

impl HandlerContext {
    pub(super) fn new(ucp: &'static Ucp, own: Rank, world_size: u32) -> Self {
        let (inbox, requests) = (Inbox::new(own, world_size), Requests::new(own, world_size));
        Self {
            own,
            inbox,
            requests,
            ucp_requests: UcpRequests::new(),
            ucp,
            worker: null_mut(),
            is_leaving: false,
        }
    }

    /// Begins the fetches that are due: in the handler of the RTS, not a turn later.
    pub(super) fn fetch_due(&mut self) {
        while !self.is_leaving
            && let Some((number, part, rts)) = self.inbox.next_fetch()
        {
            if let Some(rts) = self.fetch(number, part, rts) {
                self.inbox.deferred.push_back(Deferred::Release(rts));
            }
        }
    }

    /// Begins to fetch a payload to a part of a receive; returns the RTS if the receive is over.
    pub(super) fn fetch(&mut self, number: u64, part: usize, rts: Rts) -> Option<Rts> {
        let bytes = rts.bytes;
        let place = self.inbox.receive(number).and_then(|incoming| incoming.place(part, bytes));
        let Some(place) = place.map(|place| NonNull::from(place).cast()) else { return Some(rts) };
        // SAFETY: the maker of the lease keeps the place, of so many bytes, until it is given back, when the
        // request is reaped.
        let request = unsafe { self.fetch_to(place, rts) };
        if let Some(incoming) = self.inbox.receive(number) {
            incoming.comes(Some((request, bytes)));
        }
        None
    }

    /// Begins to fetch a payload.
    ///
    /// # Safety
    /// As many bytes at `place` are valid, and nobody has a reference to them, until the request is reaped.
    pub(super) unsafe fn fetch_to(&mut self, place: NonNull<u8>, Rts { pointer, bytes }: Rts) -> UcpRequest {
        let request = self.ucp_requests.take();
        let record = request.record();
        record.begin();
        if self.worker.is_null() {
            record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
            return request;
        }
        let mut param = ucp_request_param_t {
            // Never completed without a callback, so the length is learnt in one way.
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK
                | UCP_OP_ATTR_FIELD_USER_DATA
                | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
            user_data: request.user_data(),
            ..Default::default()
        };
        param.cb.recv_am = Some(fetch_ended);
        let place = place.as_ptr().cast();
        // SAFETY: the worker lives; the RTS is used once, in its handler, which UCX allows, or after it; the
        // caller keeps the place; the record outlives the worker. The call runs no handler: those run in
        // progress, and there is no endpoint to this rank.
        let handle =
            unsafe { self.ucp.ucp_am_recv_data_nbx(self.worker, pointer.as_ptr(), place, bytes, &param) };
        record.returned(handle);
        request
    }
}
