//! UCX's context, worker and endpoints, and the calls that are made on them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};

use arrayvec::ArrayVec;
use brevity_ucx_sys::*;

use super::handler::set_handlers;
use super::handler_context::HandlerContext;
use super::inbox::Inbox;
use super::payload::Rts;
use super::requests::Requests;
use super::tuning::Tuning;
use super::ucp_request::{UcpRequest, UcpRequests, send_ended};
use crate::told::later;
use crate::{Error, Rank, Result};

/// How UCX sends a payload; it chooses itself with `Auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Auto,
    Eager,
    Rendezvous,
}

/// A context with one worker and an endpoint to each peer.
///
/// Invariants: the pointers are null or were made by `ucp`, and each is released once, in the order
/// endpoints, worker, context. `handler_context` is freed after the worker, whose callbacks write it, or when
/// nobody will progress a leaked worker. It is reached through this (or, in callbacks, while a method of this
/// calls UCX), never by two at a time. A null worker means that UCX is torn down: nothing is sent, received
/// or written any more.
pub(super) struct Engine {
    pub(super) ucp: &'static Ucp,
    /// Null once a peer is lost.
    pub(super) endpoints: Vec<ucp_ep_h>,
    /// The peers whose endpoints UCX can close although the peer is dead.
    pub(super) is_closable: Vec<bool>,
    /// Endpoints that UCX is closing.
    pub(super) closing: Vec<ucs_status_ptr_t>,
    pub(super) worker: ucp_worker_h,
    pub(super) context: ucp_context_h,
    /// Whether the context has allocated memory; it then is never cleaned up.
    pub(super) has_allocated: Cell<bool>,
    pub(super) handler_context: NonNull<HandlerContext>,
    /// Parameters to send at once or not at all.
    short: ucp_request_param_t,
    pub(super) has_sockets_only: bool,
    pub(super) is_connected: bool,
    /// Credit updates that UCX has not sent yet.
    pub(super) credit_updates: Vec<UcpRequest>,
    /// Set at process exit when peers may go on writing parts that are being fetched: those receives never
    /// end.
    pub(super) is_left_open: bool,
}

// SAFETY: the worker's thread mode is serialized: any thread may enter it, one at a time, which `&mut` of the
// owner ensures. The context and the requests are used through the worker only.
unsafe impl Send for Engine {}

impl Engine {
    /// Makes a worker for `own` in a world of `world_size`.
    pub(super) fn new(ucp: &'static Ucp, tuning: &Tuning, own: Rank, world_size: u32) -> Result<Self> {
        let mut engine = Self {
            ucp,
            endpoints: vec![null_mut(); world_size as usize],
            is_closable: vec![false; world_size as usize],
            closing: Vec::new(),
            worker: null_mut(),
            context: null_mut(),
            has_allocated: Cell::new(false),
            handler_context: NonNull::from(Box::leak(Box::new(HandlerContext::new(ucp, own, world_size)))),
            short: ucp_request_param_t {
                op_attr_mask: UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
                ..Default::default()
            },
            has_sockets_only: tuning.has_sockets_only,
            is_connected: false,
            credit_updates: Vec::new(),
            is_left_open: false,
        };
        engine.make_context(tuning)?;
        engine.make_worker()?;
        engine.handler_context().worker = engine.worker;
        // SAFETY: the worker has just been made; the handler context is freed after it.
        unsafe { set_handlers(ucp, engine.worker, engine.handler_context) }?;
        Ok(engine)
    }

    fn make_context(&mut self, tuning: &Tuning) -> Result<()> {
        let params = ucp_params_t {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
            features: UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
            estimated_num_eps: self.endpoints.len(),
            ..Default::default()
        };
        let mut config = null_mut();
        // SAFETY: the pointer is to a local; null means no prefix and no file.
        let status = unsafe { self.ucp.ucp_config_read(null(), null(), &mut config) };
        check(self.ucp, "ucp_config_read", status)?;
        // SAFETY: just read, released below.
        let made = unsafe { tuning.apply(self.ucp, config) }.and_then(|()| {
            // SAFETY: parameters and configuration live; the context is written to a field of ours.
            let status = unsafe { self.ucp.ucp_init(&params, config, &mut self.context) };
            check(self.ucp, "ucp_init", status)
        });
        // SAFETY: made by `ucp_config_read`, used no more.
        unsafe { self.ucp.ucp_config_release(config) };
        made
    }

    fn make_worker(&mut self) -> Result<()> {
        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS,
            thread_mode: ucs_thread_mode_t::UCS_THREAD_MODE_SERIALIZED,
            // Abandoning tears down with requests under way.
            flags: UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK,
            ..Default::default()
        };
        // SAFETY: the context lives until this is dropped; the worker is written to a field of ours.
        let status = unsafe { self.ucp.ucp_worker_create(self.context, &params, &mut self.worker) };
        check(self.ucp, "ucp_worker_create", status)?;
        let mut attributes =
            ucp_worker_attr_t { field_mask: UCP_WORKER_ATTR_FIELD_THREAD_MODE, ..Default::default() };
        // SAFETY: the worker lives, the attributes are ours.
        let status = unsafe { self.ucp.ucp_worker_query(self.worker, &mut attributes) };
        check(self.ucp, "ucp_worker_query", status)?;
        if attributes.thread_mode == ucs_thread_mode_t::UCS_THREAD_MODE_SINGLE {
            let why =
                "this UCX binds a worker to one thread; install one that is built with --enable-mt".into();
            return Err(Error::Unavailable { name: "ucx", why });
        }
        Ok(())
    }

    /// The worker's address, for peers to connect to.
    pub(super) fn address(&self) -> Result<Vec<u8>> {
        let (mut address, mut length) = (null_mut(), 0);
        // SAFETY: the worker lives; the results go to locals.
        let status = unsafe { self.ucp.ucp_worker_get_address(self.worker, &mut address, &mut length) };
        check(self.ucp, "ucp_worker_get_address", status)?;
        // SAFETY: UCX returned an address of this length, released below.
        let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) }.to_vec();
        // SAFETY: from `ucp_worker_get_address` of this worker, used no more.
        unsafe { self.ucp.ucp_worker_release_address(self.worker, address) };
        Ok(bytes)
    }

    /// Makes the endpoint to `peer`, whose worker has this address. UCX connects when messages are sent.
    ///
    /// UCX reads the address without a length: it must be what [`address`](Self::address) gave to a rank of
    /// the same UCX version.
    pub(super) fn connect(&mut self, peer: Rank, address: &[u8], is_closable: bool) -> Result<()> {
        // A copy, aligned as the allocator aligns and with room behind it.
        let mut aligned = vec![0u64; address.len() / 8 + 9];
        bytemuck::cast_slice_mut(&mut aligned)[..address.len()].copy_from_slice(address);
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: aligned.as_ptr().cast(),
            err_mode: match is_closable {
                true => ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_PEER,
                false => ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_NONE,
            },
            err_handler: ucp_err_handler { cb: Some(endpoint_failed), arg: null_mut() },
            ..Default::default()
        };
        let mut endpoint = null_mut();
        // SAFETY: the worker lives; the peer vouches for the address, which outlives the call.
        let status = unsafe { self.ucp.ucp_ep_create(self.worker, &params, &mut endpoint) };
        check(self.ucp, "ucp_ep_create", status)?;
        self.endpoints[peer.index()] = endpoint;
        self.is_closable[peer.index()] = is_closable;
        Ok(())
    }

    pub(super) fn peers(&self) -> Vec<Rank> {
        let ranks = Rank::all(self.endpoints.len() as u32);
        ranks.filter(|rank| !self.endpoints[rank.index()].is_null()).collect()
    }

    #[inline]
    pub(super) fn is_torn_down(&self) -> bool {
        self.worker.is_null()
    }

    #[inline]
    pub(super) fn inbox(&mut self) -> &mut Inbox {
        &mut self.handler_context().inbox
    }

    /// Puts and gets by message, in both directions.
    #[inline]
    pub(super) fn requests(&mut self) -> &mut Requests {
        &mut self.handler_context().requests
    }

    #[inline]
    pub(super) fn ucp_requests(&mut self) -> &mut UcpRequests {
        &mut self.handler_context().ucp_requests
    }

    #[inline]
    pub(super) fn handler_context(&mut self) -> &mut HandlerContext {
        // SAFETY: freed by `Drop` only. The result borrows `self`, so no method that makes progress, and with
        // it no handler that uses the context, can run meanwhile.
        unsafe { self.handler_context.as_mut() }
    }

    #[inline]
    pub(super) fn handler_context_ref(&self) -> &HandlerContext {
        // SAFETY: as above; no callback runs while `self` is shared: what runs them takes `&mut self`.
        unsafe { self.handler_context.as_ref() }
    }

    /// Whether no receive is posted, no put or get is under way, and nothing is deferred.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        let context = self.handler_context_ref();
        context.inbox.is_idle() && context.requests.is_idle()
    }

    /// Sends `header_bytes` of the request's header and a payload to handler `id`. Does not block.
    ///
    /// # Safety
    /// The bytes are valid and unchanged until [`reap`](Self::reap) has returned `Some`; `request` is in no
    /// other use, and its header is not written until then.
    #[inline]
    pub(super) unsafe fn send(
        &mut self,
        to: Rank,
        (id, protocol): (u32, Protocol),
        header_bytes: usize,
        (bytes, length): (*const u8, usize),
        request: &UcpRequest,
    ) {
        let flags = match protocol {
            Protocol::Auto => 0,
            Protocol::Eager => UCP_AM_SEND_FLAG_EAGER,
            Protocol::Rendezvous => UCP_AM_SEND_FLAG_RNDV,
        };
        let header = request.header().cast();
        self.submit(to, request, flags, |ucp, endpoint, param| {
            // SAFETY: the endpoint lives as the worker does; the caller keeps header and bytes; the record
            // outlives the worker.
            unsafe { ucp.ucp_am_send_nbx(endpoint, id, header, header_bytes, bytes.cast(), length, param) }
        });
    }

    /// Makes a UCX call for a send, put, get or flush, and records its outcome in `request`. If the
    /// peer is lost, or after the tear-down, it makes no call, and the request ends canceled.
    #[inline]
    pub(super) fn submit(
        &self,
        to: Rank,
        request: &UcpRequest,
        flags: u32,
        call: impl FnOnce(&Ucp, ucp_ep_h, &ucp_request_param_t) -> ucs_status_ptr_t,
    ) {
        let (record, endpoint) = (request.record(), self.endpoints[to.index()]);
        record.begin();
        if endpoint.is_null() {
            return record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
        }
        let mut param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
            flags,
            user_data: request.user_data(),
            ..Default::default()
        };
        param.cb.send = Some(send_ended);
        record.returned(call(self.ucp, endpoint, &param));
    }

    /// Sends a header and a payload to handler `id` if UCX can do so at once. Otherwise returns false and
    /// does nothing.
    #[inline]
    pub(super) fn send_short(&mut self, to: Rank, id: u32, header: &[u8], payload: &[u8]) -> bool {
        let endpoint = match self.endpoints.get(to.index()) {
            Some(endpoint) if !endpoint.is_null() => *endpoint,
            _ => return false,
        };
        let (start, bytes, header_start) = (payload.as_ptr().cast(), payload.len(), header.as_ptr().cast());
        // SAFETY: the endpoint lives as the worker does. UCX copies header and payload before it returns, or
        // refuses.
        let status = unsafe {
            self.ucp.ucp_am_send_nbx(endpoint, id, header_start, header.len(), start, bytes, &self.short)
        };
        status.is_null()
    }

    #[inline]
    pub(super) fn has_endpoint(&self, peer: Rank) -> bool {
        self.endpoints.get(peer.index()).is_some_and(|endpoint| !endpoint.is_null())
    }

    pub(super) fn flush(&mut self, to: Rank, request: &UcpRequest) {
        // SAFETY: the endpoint lives as the worker does; the record outlives the worker.
        self.submit(to, request, 0, |ucp, endpoint, param| unsafe { ucp.ucp_ep_flush_nbx(endpoint, param) });
    }

    /// Releases a payload without receiving it; its sender's operation completes.
    pub(super) fn release(&mut self, rts: Rts) {
        if !self.is_torn_down() {
            // SAFETY: an RTS of this worker, used once.
            unsafe { self.ucp.ucp_am_data_release(self.worker, rts.pointer.as_ptr()) };
        }
    }

    /// The outcome of an operation that is over, or `None`. After `Some`, UCX does not touch its memory.
    #[inline]
    pub(super) fn reap(&self, request: &UcpRequest) -> Option<(ucs_status_t, usize)> {
        let record = request.record();
        if self.is_torn_down() && !request.is_over() {
            record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
        }
        if !request.is_over() {
            return None;
        }
        let handle = record.handle.replace(null_mut());
        if !handle.is_null() && !self.is_torn_down() {
            // SAFETY: the request is complete; the pointer was taken out of the record, so this happens once.
            unsafe { self.ucp.ucp_request_free(handle) };
        }
        Some((record.status.get(), record.bytes.get()))
    }

    /// Reaps requests that are over, from the last on; true when none is left. Passes bad statuses to
    /// `failed`.
    pub(super) fn reap_all<const COUNT: usize>(
        &mut self,
        requests: &mut ArrayVec<UcpRequest, COUNT>,
        mut failed: impl FnMut(&Self, ucs_status_t),
    ) -> bool {
        while let Some(request) = requests.pop() {
            let Some((status, _)) = self.reap(&request) else {
                requests.push(request);
                return false;
            };
            self.ucp_requests().put(request);
            if status != ucs_status_t::UCS_OK {
                failed(self, status);
            }
        }
        true
    }

    /// Reaps the requests that are over, whatever their outcome.
    pub(super) fn reap_finished(&mut self, requests: &mut Vec<UcpRequest>) {
        for position in (0..requests.len()).rev() {
            if self.reap(&requests[position]).is_some() {
                self.ucp_requests().put(requests.swap_remove(position));
            }
        }
    }

    #[inline]
    pub(super) fn progress(&mut self) -> bool {
        // SAFETY: the worker lives, and this is no callback; nobody has the inbox (`&mut`).
        !self.is_torn_down() && unsafe { self.ucp.ucp_worker_progress(self.worker) } > 0
    }

    /// UCX's event descriptor, which stays the worker's.
    ///
    /// # Safety
    /// Not used after the worker is destroyed.
    pub(super) unsafe fn descriptor(&self) -> Result<BorrowedFd<'static>> {
        let mut descriptor: c_int = -1;
        // SAFETY: the worker lives and has the wakeup feature; the result goes to a local.
        let status = unsafe { self.ucp.ucp_worker_get_efd(self.worker, &mut descriptor) };
        check(self.ucp, "ucp_worker_get_efd", status)?;
        // SAFETY: an open descriptor of the worker, used no longer than that (the caller).
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor as RawFd) })
    }

    /// Arms the descriptor; false when there is something to progress first.
    pub(super) fn arm(&mut self) -> bool {
        // SAFETY: the worker lives and has the wakeup feature.
        !self.is_torn_down() && unsafe { self.ucp.ucp_worker_arm(self.worker) } == ucs_status_t::UCS_OK
    }

    pub(super) fn check(&self, call: &'static str, status: ucs_status_t) -> Result<()> {
        check(self.ucp, call, status)
    }

    /// The error of a failed operation with `peer`.
    pub(super) fn error(&self, peer: Rank, call: &'static str, status: ucs_status_t) -> Error {
        match status {
            ucs_status_t::UCS_ERR_IO_ERROR
            | ucs_status_t::UCS_ERR_UNREACHABLE
            | ucs_status_t::UCS_ERR_SHMEM_SEGMENT
            | ucs_status_t::UCS_ERR_TIMED_OUT
            | ucs_status_t::UCS_ERR_REJECTED
            | ucs_status_t::UCS_ERR_NOT_CONNECTED
            | ucs_status_t::UCS_ERR_CONNECTION_RESET
            | ucs_status_t::UCS_ERR_ENDPOINT_TIMEOUT
            // Operations under way end so when an endpoint fails; this rank cancels none.
            | ucs_status_t::UCS_ERR_CANCELED => Error::PeerLost { rank: peer },
            _ => Error::Ucx { call, status: self.ucp.status_text(status).to_owned() },
        }
    }
}

/// Ignores the failure of an endpoint: its operations end with an error, and liveness names the lost peer.
/// Without a handler UCX would end the process when a peer dies whose memory is being read.
unsafe extern "C" fn endpoint_failed(_: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    later!(DEBUG, status = status.0, "UCX has lost an endpoint");
}

pub(super) fn check(ucp: &Ucp, call: &'static str, status: ucs_status_t) -> Result<()> {
    if status == ucs_status_t::UCS_OK {
        return Ok(());
    }
    Err(Error::Ucx { call, status: ucp.status_text(status).to_owned() })
}
