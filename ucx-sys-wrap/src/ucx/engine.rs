//! UCX's objects, and the calls that are made on them.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

use super::desk::Desk;
use super::exiting;
use super::flight::{Flight, Flights, Record, State, send_ended};
use super::handler::set_handlers;
use super::inbox::Inbox;
use super::library::Quiet;
use super::payload::Offer;
use super::requests::Requests;
use super::tuning::Tuning;
use crate::told::later;
use crate::{Error, Rank, Result};

/// Whether UCX sends a payload at once or only offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// As UCX likes.
    Any,
    AtOnce,
    Offer,
}

/// A context with one worker and an endpoint to each peer.
///
/// Invariants: the pointers are null or were made by `ucp`, and each is released once, in the order
/// endpoints, worker, context; `desk` is freed after the worker, whose callbacks write it, or when nobody
/// will make a leaked one progress. It is reached through this (or, in callbacks, while a method of this
/// calls UCX), never by two at a time. A null worker means that UCX is torn down: nothing is sent, received
/// or written any more.
pub(super) struct Engine {
    pub(super) ucp: &'static Ucp,
    pub(super) endpoints: Vec<ucp_ep_h>,
    worker: ucp_worker_h,
    pub(super) context: ucp_context_h,
    /// Whether memory was allocated by the context, which then is never cleaned up.
    pub(super) has_allocated: Cell<bool>,
    desk: NonNull<Desk>,
    /// How a message is sent at once or not at all.
    short: ucp_request_param_t,
    /// Whether everything goes over sockets.
    pub(super) has_sockets_only: bool,
    /// Whether every endpoint is connected.
    pub(super) is_connected: bool,
}

// SAFETY: the worker's thread mode is serialized: any thread may enter it, one at a time, which `&mut` of the
// owner ensures. The context and the flights are used through the worker only.
unsafe impl Send for Engine {}

/// How long what UCX can do by itself may take when it is torn down.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Makes a worker for `own` in a world of `world_size`.
    pub(super) fn new(ucp: &'static Ucp, tuning: &Tuning, own: Rank, world_size: u32) -> Result<Self> {
        let mut engine = Self {
            ucp,
            endpoints: vec![null_mut(); world_size as usize],
            worker: null_mut(),
            context: null_mut(),
            has_allocated: Cell::new(false),
            desk: NonNull::from(Box::leak(Box::new(Desk::new(ucp, own, world_size)))),
            short: ucp_request_param_t {
                op_attr_mask: UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
                ..Default::default()
            },
            has_sockets_only: tuning.has_sockets_only,
            is_connected: false,
        };
        engine.make_context(tuning)?;
        engine.make_worker()?;
        engine.desk().worker = engine.worker;
        // SAFETY: the worker has just been made; the desk is freed after it.
        unsafe { set_handlers(ucp, engine.worker, engine.desk) }?;
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
            // Tearing down with requests under way is what abandoning means.
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

    /// The bytes that peers connect to.
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

    /// Makes the endpoint to `peer`, whose worker has this address. The connection is made as messages are
    /// sent.
    ///
    /// UCX reads the address without a length: it must be the very bytes that [`address`](Self::address) gave
    /// to a rank of the same UCX version.
    pub(super) fn connect(&mut self, peer: Rank, address: &[u8]) -> Result<()> {
        // A copy, aligned as the allocator aligns and with room behind it.
        let mut aligned = vec![0u64; address.len() / 8 + 9];
        bytemuck::cast_slice_mut(&mut aligned)[..address.len()].copy_from_slice(address);
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: aligned.as_ptr().cast(),
            err_mode: ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_NONE,
            err_handler: ucp_err_handler { cb: Some(endpoint_failed), arg: null_mut() },
            ..Default::default()
        };
        let mut endpoint = null_mut();
        // SAFETY: the worker lives; the peer vouches for the address, which outlives the call.
        let status = unsafe { self.ucp.ucp_ep_create(self.worker, &params, &mut endpoint) };
        check(self.ucp, "ucp_ep_create", status)?;
        self.endpoints[peer.index()] = endpoint;
        Ok(())
    }

    /// The ranks that there are endpoints to.
    pub(super) fn peers(&self) -> Vec<Rank> {
        let ranks = Rank::all(self.endpoints.len() as u32);
        ranks.filter(|rank| !self.endpoints[rank.index()].is_null()).collect()
    }

    /// Whether UCX is torn down.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.worker.is_null()
    }

    /// What has come, and for whom.
    #[inline]
    pub(super) fn inbox(&mut self) -> &mut Inbox {
        &mut self.desk().inbox
    }

    /// What is asked of memory, in both directions.
    #[inline]
    pub(super) fn requests(&mut self) -> &mut Requests {
        &mut self.desk().requests
    }

    /// The same, to look at.
    #[inline]
    pub(super) fn seen_requests(&self) -> &Requests {
        // SAFETY: as in `seen_inbox`.
        unsafe { &self.desk.as_ref().requests }
    }

    /// The records of operations.
    #[inline]
    pub(super) fn flights(&mut self) -> &mut Flights {
        &mut self.desk().flights
    }

    #[inline]
    pub(super) fn desk(&mut self) -> &mut Desk {
        // SAFETY: freed by `Drop` only. The result borrows `self`, so that no method that makes progress, and
        // with it the handlers that use the desk, can run meanwhile.
        unsafe { self.desk.as_mut() }
    }

    /// The same, to look at.
    #[inline]
    pub(super) fn seen_inbox(&self) -> &Inbox {
        // SAFETY: as above; no callback runs while `self` is shared, because what runs them takes `&mut
        // self`.
        unsafe { &self.desk.as_ref().inbox }
    }

    /// Whether no receive is posted, nothing is asked of memory, and nothing is to be done.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.seen_inbox().is_idle() && self.seen_requests().is_idle()
    }

    /// Begins to send `header_bytes` of the flight's header and a payload to handler `id`; the flight says
    /// when it is over.
    ///
    /// # Safety
    /// The bytes are valid and unchanged until [`reap`](Self::reap) has returned `Some`; `flight` is in no
    /// other use, and its header is not written until then.
    #[inline]
    pub(super) unsafe fn send(
        &mut self,
        to: Rank,
        (id, manner): (u32, Manner),
        header_bytes: usize,
        (bytes, length): (*const u8, usize),
        flight: &Flight,
    ) {
        let record = flight.record();
        record.begin();
        if self.is_quiet() {
            return record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
        }
        let flags = match manner {
            Manner::Any => 0,
            Manner::AtOnce => UCP_AM_SEND_FLAG_EAGER,
            Manner::Offer => UCP_AM_SEND_FLAG_RNDV,
        };
        let mut param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
            flags,
            user_data: flight.user_data(),
            ..Default::default()
        };
        param.cb.send = Some(send_ended);
        let (endpoint, header) = (self.endpoints[to.index()], flight.header().cast());
        // SAFETY: the endpoint lives as the worker does; the caller keeps header and bytes; the record
        // outlives the worker.
        let request = unsafe {
            self.ucp.ucp_am_send_nbx(endpoint, id, header, header_bytes, bytes.cast(), length, &param)
        };
        take_down(record, request);
    }

    /// Sends a header and a payload to handler `id`, if UCX can do that before this returns; says whether it
    /// has. Else nothing has happened.
    #[inline]
    pub(super) fn send_short(&mut self, to: Rank, id: u32, header: &[u8], payload: &[u8]) -> bool {
        let Some(endpoint) = self.endpoints.get(to.index()).filter(|endpoint| !endpoint.is_null()) else {
            return false;
        };
        let (start, bytes) = (payload.as_ptr().cast(), payload.len());
        // SAFETY: the endpoint lives as the worker does. UCX copies header and payload before it returns, or
        // refuses.
        let status = unsafe {
            self.ucp.ucp_am_send_nbx(
                *endpoint,
                id,
                header.as_ptr().cast(),
                header.len(),
                start,
                bytes,
                &self.short,
            )
        };
        status.is_null()
    }

    /// Whether `peer` can be sent to.
    #[inline]
    pub(super) fn has_endpoint(&self, peer: Rank) -> bool {
        self.endpoints.get(peer.index()).is_some_and(|endpoint| !endpoint.is_null())
    }

    /// Begins to flush what is queued for `to`.
    pub(super) fn flush(&mut self, to: Rank, flight: &Flight) {
        let record = flight.record();
        record.begin();
        let mut param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
            user_data: flight.user_data(),
            ..Default::default()
        };
        param.cb.send = Some(send_ended);
        // SAFETY: the endpoint lives as the worker does; the record outlives the worker.
        let request = unsafe { self.ucp.ucp_ep_flush_nbx(self.endpoints[to.index()], &param) };
        take_down(record, request);
    }

    /// Begins to fetch an offered payload to a part of a receive; refuses it if the receive is over.
    pub(super) fn fetch(&mut self, number: u64, part: usize, offer: Offer) {
        if let Some(offer) = self.desk().fetch(number, part, offer) {
            self.release(offer);
        }
    }

    /// Refuses an offered payload; its sender's operation completes.
    pub(super) fn release(&mut self, offer: Offer) {
        if !self.is_quiet() {
            // SAFETY: an offer of this worker, used once.
            unsafe { self.ucp.ucp_am_data_release(self.worker, offer.pointer.as_ptr()) };
        }
    }

    /// The outcome of an operation that is over, or `None`; afterwards UCX does not touch its memory. Frees
    /// its request.
    #[inline]
    pub(super) fn reap(&self, flight: &Flight) -> Option<(ucs_status_t, usize)> {
        let record = flight.record();
        if self.is_quiet() && !flight.is_over() {
            record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
        }
        if !flight.is_over() {
            return None;
        }
        let request = record.request.replace(null_mut());
        if !request.is_null() && !self.is_quiet() {
            // SAFETY: the request is complete; the pointer was taken out of the record, so this happens once.
            unsafe { self.ucp.ucp_request_free(request) };
        }
        Some((record.status.get(), record.bytes.get()))
    }

    #[inline]
    pub(super) fn progress(&mut self) -> bool {
        // SAFETY: the worker lives, and this is no callback; nobody has the inbox (`&mut`).
        !self.is_quiet() && unsafe { self.ucp.ucp_worker_progress(self.worker) } > 0
    }

    /// UCX's event descriptor, which stays the worker's.
    ///
    /// # Safety
    /// Not used after [`tear_down`](Self::tear_down).
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
        !self.is_quiet() && unsafe { self.ucp.ucp_worker_arm(self.worker) } == ucs_status_t::UCS_OK
    }

    /// Destroys the worker with its endpoints and then the context, whatever is under way. What is, is over.
    pub(super) fn tear_down(&mut self) {
        self.destroy_worker();
        self.destroy_context();
    }

    /// Destroys the worker with its endpoints.
    pub(super) fn destroy_worker(&mut self) {
        self.desk().is_leaving = true;
        self.finish_fetches();
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        if !self.worker.is_null() {
            // What UCX warns of is known: offers that nobody has taken, sends that nobody has received.
            let _quiet = Quiet::begin(self.ucp);
            // SAFETY: destroyed once; it destroys the endpoints that are left, and calls only callbacks of
            // ours.
            unsafe { self.ucp.ucp_worker_destroy(self.worker) };
            self.worker = null_mut();
            self.desk().worker = null_mut();
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
            let _quiet = Quiet::begin(self.ucp);
            // SAFETY: its only worker is gone.
            unsafe { self.ucp.ucp_cleanup(self.context) };
            self.context = null_mut();
        }
    }

    /// Leaves to the process what is UCX's: from now on it is not entered.
    pub(super) fn forget(&mut self) {
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        (self.worker, self.context) = (null_mut(), null_mut());
        self.desk().worker = null_mut();
    }

    /// Copies that this rank makes out of a peer's memory need nobody else; UCX 1.13 ends the process when
    /// its worker is destroyed in the middle of one.
    fn finish_fetches(&mut self) {
        let start = Instant::now();
        while !self.is_quiet() && self.progress() && start.elapsed() < FETCH_PATIENCE {}
    }

    pub(super) fn check(&self, call: &'static str, status: ucs_status_t) -> Result<()> {
        check(self.ucp, call, status)
    }

    /// What a failed operation with `peer` means: mostly that it is gone.
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
            // What is under way when an endpoint fails; nothing is canceled by this rank.
            | ucs_status_t::UCS_ERR_CANCELED => Error::PeerLost { rank: peer },
            _ => Error::Ucx { call, status: self.ucp.status_text(status).to_owned() },
        }
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
        drop(unsafe { Box::from_raw(self.desk.as_ptr()) });
    }
}

/// Hears that an endpoint has failed.
///
/// It has nothing to do: what was under way there ends with an error, and liveness says who is lost. But an
/// error that nobody hears UCX takes for fatal: it would end the process when a peer dies whose memory is
/// being read.
unsafe extern "C" fn endpoint_failed(_: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    later!(DEBUG, status = status.0, "UCX has lost an endpoint");
}

/// Takes down what a call returned; its callback may have come before.
#[inline]
pub(super) fn take_down(record: &Record, request: ucs_status_ptr_t) {
    if ucs_ptr_is_ptr(request) {
        record.request.set(request);
    } else if record.state.get() != State::Over {
        record.end(ucs_ptr_raw_status(request), 0);
    }
}

/// A call's status as a result.
pub(super) fn check(ucp: &Ucp, call: &'static str, status: ucs_status_t) -> Result<()> {
    if status == ucs_status_t::UCS_OK {
        return Ok(());
    }
    Err(Error::Ucx { call, status: ucp.status_text(status).to_owned() })
}
