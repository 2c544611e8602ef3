//! Closing endpoints in good order, and tearing UCX down.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

use super::engine::Engine;
use super::exiting;
use super::library::QuietLog;
use crate::Rank;

/// How long the tear-down waits for fetches.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Closes the endpoints once their sends are on the way, for at most `patience`.
    pub(super) fn close_endpoints(&mut self, patience: Duration) {
        if self.is_torn_down() {
            return;
        }
        self.handler_context().is_leaving = true;
        let start = Instant::now();
        let param = ucp_request_param_t::default();
        let mut closing = std::mem::take(&mut self.closing);
        for endpoint in self.endpoints.iter_mut().map(|endpoint| std::mem::replace(endpoint, null_mut())) {
            if !endpoint.is_null() {
                // SAFETY: the endpoint was taken out of the table: it is closed once and not used again.
                closing.push(unsafe { self.ucp.ucp_ep_close_nbx(endpoint, &param) });
            }
        }
        closing.retain(|request| ucs_ptr_is_ptr(*request));
        while !closing.is_empty() && start.elapsed() < patience {
            if !self.progress() {
                std::thread::yield_now();
            }
            closing.retain(|request| !self.free_if_complete(*request));
        }
        self.closing = closing;
        self.free_closing();
    }

    /// Closes the endpoints that UCX can close by force. In their mode, UCX 1.13 ends the process when a
    /// worker is destroyed with operations under way.
    fn close_by_force(&mut self) {
        if self.is_torn_down() {
            return;
        }
        self.peers().into_iter().for_each(|peer| self.cut_off(peer));
        let start = Instant::now();
        while !self.closing.is_empty() && start.elapsed() < FETCH_PATIENCE {
            self.progress();
            self.reap_closing();
        }
    }

    fn free_closing(&mut self) {
        for request in std::mem::take(&mut self.closing) {
            // SAFETY: a request of this worker that is not freed. It need not be complete: UCX then frees it
            // when it is, and would end the process if the worker went before a request that is still held.
            unsafe { self.ucp.ucp_request_free(request) };
        }
    }

    /// Ends the use of the endpoint to a lost peer. If UCX can close it, its operations end in a later turn.
    pub(super) fn cut_off(&mut self, peer: Rank) {
        let endpoint = std::mem::replace(&mut self.endpoints[peer.index()], null_mut());
        if endpoint.is_null() || !self.is_closable[peer.index()] {
            // The worker's end destroys it.
            return;
        }
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_EP_CLOSE_FLAG_FORCE,
            ..Default::default()
        };
        // SAFETY: the endpoint was taken out of the table: it is closed once and not used again.
        let request = unsafe { self.ucp.ucp_ep_close_nbx(endpoint, &param) };
        if ucs_ptr_is_ptr(request) {
            self.closing.push(request);
        }
    }

    /// Frees the requests of endpoints that are closed.
    pub(super) fn reap_closing(&mut self) {
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain(|request| !self.free_if_complete(*request));
        self.closing = closing;
    }

    /// Destroys the worker with its endpoints and then the context; all operations under way are over.
    pub(super) fn tear_down(&mut self) {
        self.destroy_worker();
        self.destroy_context();
    }

    pub(super) fn destroy_worker(&mut self) {
        self.handler_context().is_leaving = true;
        self.finish_fetches();
        self.close_by_force();
        self.free_closing();
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        if !self.worker.is_null() {
            // UCX's warnings are expected: RTS that nobody has taken, sends that nobody has received.
            let _quiet = QuietLog::begin(self.ucp);
            // SAFETY: destroyed once; it destroys the endpoints that are left, and calls only callbacks of
            // ours.
            unsafe { self.ucp.ucp_worker_destroy(self.worker) };
            self.worker = null_mut();
            self.handler_context().worker = null_mut();
        }
    }

    /// Destroys the context after its worker and registrations. Leaks it if it has allocated memory, which
    /// peers may still reach and UCX would free.
    pub(super) fn destroy_context(&mut self) {
        if self.has_allocated.get() {
            self.context = null_mut();
        }
        if !self.context.is_null() {
            // As above: registrations of operations that had not ended.
            let _quiet = QuietLog::begin(self.ucp);
            // SAFETY: its only worker is gone.
            unsafe { self.ucp.ucp_cleanup(self.context) };
            self.context = null_mut();
        }
    }

    /// Leaves UCX's objects to the process and does not enter UCX any more.
    pub(super) fn forget(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        (self.worker, self.context) = (null_mut(), null_mut());
        self.closing.clear();
        self.handler_context().worker = null_mut();
    }

    /// Fetches what UCX can fetch without its peers: UCX 1.13 ends the process when a worker is destroyed in
    /// the middle of a copy from a peer's memory.
    fn finish_fetches(&mut self) {
        let start = Instant::now();
        while !self.is_torn_down() && self.progress() && start.elapsed() < FETCH_PATIENCE {}
    }

    fn free_if_complete(&self, request: ucs_status_ptr_t) -> bool {
        // SAFETY: a request of this worker that is not freed: the caller forgets those that were.
        if unsafe { self.ucp.ucp_request_check_status(request) } == ucs_status_t::UCS_INPROGRESS {
            return false;
        }
        // SAFETY: as above, and complete.
        unsafe { self.ucp.ucp_request_free(request) };
        true
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let inside = exiting::enter();
        if inside.is_some() && (self.is_connected || self.peers().is_empty()) {
            self.tear_down();
        }
        // Otherwise the worker is leaked: the process exits, or connecting is under way, when UCX 1.13 ends
        // the process on destruction. Nobody progresses it any more. SAFETY: leaked from a box when it was
        // made; the worker is gone or calls nothing any more.
        drop(unsafe { Box::from_raw(self.handler_context.as_ptr()) });
    }
}
