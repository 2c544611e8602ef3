//! Closing endpoints in good order.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

use super::engine::Engine;
use super::exiting;
use super::library::QuietLog;

/// How long what UCX can do by itself may take when it is torn down.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Closes the endpoints when what they send is on its way, for at most `patience`.
    pub(super) fn close_endpoints(&mut self, patience: Duration) {
        if self.is_torn_down() {
            return;
        }
        self.handler_context().is_leaving = true;
        let start = Instant::now();
        let param = ucp_request_param_t::default();
        let mut closing = Vec::new();
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
        for request in closing {
            // SAFETY: a request of this worker that is not freed. It need not be complete: UCX then frees it
            // when it is, and ends the process when its worker goes before and somebody still has it.
            unsafe { self.ucp.ucp_request_free(request) };
        }
    }

    /// Destroys the worker with its endpoints and then the context, whatever is under way. What is, is over.
    pub(super) fn tear_down(&mut self) {
        self.destroy_worker();
        self.destroy_context();
    }

    /// Destroys the worker with its endpoints.
    pub(super) fn destroy_worker(&mut self) {
        self.handler_context().is_leaving = true;
        self.finish_fetches();
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        if !self.worker.is_null() {
            // What UCX warns of is known: offers that nobody has taken, sends that nobody has received.
            let _quiet = QuietLog::begin(self.ucp);
            // SAFETY: destroyed once; it destroys the endpoints that are left, and calls only callbacks of
            // ours.
            unsafe { self.ucp.ucp_worker_destroy(self.worker) };
            self.worker = null_mut();
            self.handler_context().worker = null_mut();
        }
    }

    /// Destroys the context, whose worker and registrations are gone; leaks it if it has allocated memory,
    /// which peers may still reach and UCX would free.
    pub(super) fn destroy_context(&mut self) {
        if self.has_allocated.get() {
            self.context = null_mut();
        }
        if !self.context.is_null() {
            // As above: memory that was registered for what had not ended.
            let _quiet = QuietLog::begin(self.ucp);
            // SAFETY: its only worker is gone.
            unsafe { self.ucp.ucp_cleanup(self.context) };
            self.context = null_mut();
        }
    }

    /// Leaves to the process what is UCX's: from now on it is not entered.
    pub(super) fn forget(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        (self.worker, self.context) = (null_mut(), null_mut());
        self.handler_context().worker = null_mut();
    }

    /// Copies that this rank makes out of a peer's memory need nobody else; UCX 1.13 ends the process when
    /// its worker is destroyed in the middle of one.
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
        // Else it is leaked: the process exits, or a connection is being made, and UCX 1.13 ends the process
        // when one is destroyed then. Nobody makes it progress any more.
        // SAFETY: leaked from a box when it was made; the worker is gone or calls nothing any more.
        drop(unsafe { Box::from_raw(self.handler_context.as_ptr()) });
    }
}
