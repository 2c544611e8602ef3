//! Closing endpoints in good order.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

use super::engine::Engine;

impl Engine {
    /// Closes the endpoints when what they send is on its way, for at most `patience`.
    pub(super) fn close_endpoints(&mut self, patience: Duration) {
        if self.is_quiet() {
            return;
        }
        self.desk().is_leaving = true;
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
