//! UCX's objects, and the calls that are made on them.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

use super::flight::{Flight, Flights, Record, State, recv_ended, send_ended};
use super::tuning::Tuning;
use crate::{Error, Rank, Result};

/// All bits of a tag are compared.
const WHOLE_TAG: ucp_tag_t = ucp_tag_t::MAX;

/// The bits of a tag that name its source.
const SOURCE_MASK: u64 = 0xffff_f000_0000_0000;

/// A context with one worker and an endpoint to each peer.
///
/// Invariants: the pointers are null or were made by `ucp`, and each is released once, in the order endpoints, worker,
/// context; `flights` are freed after the worker, whose callbacks write them. A null worker means that UCX is torn
/// down: nothing is sent, received or written any more.
pub(super) struct Engine {
    pub(super) ucp: &'static Ucp,
    pub(super) endpoints: Vec<ucp_ep_h>,
    worker: ucp_worker_h,
    pub(super) context: ucp_context_h,
    pub(super) flights: Flights,
    /// Whether memory was allocated by the context, which then is never cleaned up.
    pub(super) has_allocated: Cell<bool>,
    /// Whether every endpoint is connected.
    pub(super) is_connected: bool,
}

// SAFETY: the worker's thread mode is serialized: any thread may enter it, one at a time, which `&mut` of the owner
// ensures. The context and the flights are used through the worker only.
unsafe impl Send for Engine {}

/// How long what UCX can do by itself may take when it is torn down.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);

impl Engine {
    /// Makes a worker for a world of `world_size`.
    pub(super) fn new(ucp: &'static Ucp, tuning: &Tuning, world_size: u32) -> Result<Self> {
        let mut engine = Self {
            ucp,
            endpoints: vec![null_mut(); world_size as usize],
            worker: null_mut(),
            context: null_mut(),
            flights: Flights::new(),
            has_allocated: Cell::new(false),
            is_connected: false,
        };
        engine.make_context(tuning)?;
        engine.make_worker()?;
        Ok(engine)
    }

    fn make_context(&mut self, tuning: &Tuning) -> Result<()> {
        let params = ucp_params_t {
            field_mask: UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_TAG_SENDER_MASK | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
            features: UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
            tag_sender_mask: SOURCE_MASK,
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
        let mut attributes = ucp_worker_attr_t { field_mask: UCP_WORKER_ATTR_FIELD_THREAD_MODE, ..Default::default() };
        // SAFETY: the worker lives, the attributes are ours.
        let status = unsafe { self.ucp.ucp_worker_query(self.worker, &mut attributes) };
        check(self.ucp, "ucp_worker_query", status)?;
        if attributes.thread_mode == ucs_thread_mode_t::UCS_THREAD_MODE_SINGLE {
            let why = "this UCX binds a worker to one thread; install one that is built with --enable-mt".into();
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

    /// Makes the endpoint to `peer`, whose worker has this address. The connection is made as messages are sent.
    ///
    /// UCX reads the address without a length: it must be the very bytes that [`address`](Self::address) gave to a rank
    /// of the same UCX version.
    pub(super) fn connect(&mut self, peer: Rank, address: &[u8]) -> Result<()> {
        // A copy, aligned as the allocator aligns and with room behind it.
        let mut aligned = vec![0u64; address.len() / 8 + 9];
        bytemuck::cast_slice_mut(&mut aligned)[..address.len()].copy_from_slice(address);
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            address: aligned.as_ptr().cast(),
            err_mode: ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_NONE,
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

    /// Begins to send; the flight says when it is over.
    ///
    /// # Safety
    /// The bytes are valid and unchanged until [`reap`](Self::reap) has returned `Some`; `flight` is in no other use.
    #[inline]
    pub(super) unsafe fn send(&self, to: Rank, tag: u64, bytes: *const u8, length: usize, flight: &Flight) {
        let record = flight.record();
        record.begin();
        if self.is_quiet() {
            return record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
        }
        let mut param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
            user_data: flight.user_data(),
            ..Default::default()
        };
        param.cb.send = Some(send_ended);
        // SAFETY: the endpoint lives as the worker does; the caller keeps the bytes; the record outlives the worker.
        let request =
            unsafe { self.ucp.ucp_tag_send_nbx(self.endpoints[to.index()], bytes.cast(), length, tag, &param) };
        take_down(record, request);
    }

    /// Begins to flush what is queued for `to`.
    pub(super) fn flush(&self, to: Rank, flight: &Flight) {
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

    /// Begins to receive. With an `owner`, an end that comes through a callback is announced; one inside this call is
    /// not, and the call returns true.
    ///
    /// # Safety
    /// The bytes are valid for writes and touched by nobody else until [`reap`](Self::reap) has returned `Some`;
    /// `flight` is in no other use.
    #[inline]
    pub(super) unsafe fn recv(
        &self,
        tag: u64,
        bytes: *mut u8,
        length: usize,
        flight: &Flight,
        owner: Option<u64>,
    ) -> bool {
        let record = flight.record();
        record.begin();
        if self.is_quiet() {
            record.end(ucs_status_t::UCS_ERR_CANCELED, 0);
            return true;
        }
        let param = recv_param(flight);
        // SAFETY: the worker lives; the caller keeps the bytes; the record outlives the worker.
        let request = unsafe { self.ucp.ucp_tag_recv_nbx(self.worker, bytes.cast(), length, tag, WHOLE_TAG, &param) };
        take_down(record, request);
        if let (Some(owner), false) = (owner, flight.is_over()) {
            record.announce(self.flights.announced(), owner);
        }
        flight.is_over()
    }

    /// Takes the first message of `tag` that no receive has matched, if it has `length` bytes.
    pub(super) fn probe(&self, tag: u64, length: usize) -> Option<ucp_tag_message_h> {
        if self.is_quiet() {
            return None;
        }
        let mut info = ucp_tag_recv_info_t::default();
        // SAFETY: the worker lives, the information is ours; nothing is taken.
        let message = unsafe { self.ucp.ucp_tag_probe_nb(self.worker, tag, WHOLE_TAG, 0, &mut info) };
        if message.is_null() || info.length != length {
            return None;
        }
        // SAFETY: as above; the message is taken and the caller receives it.
        let message = unsafe { self.ucp.ucp_tag_probe_nb(self.worker, tag, WHOLE_TAG, 1, &mut info) };
        (!message.is_null()).then_some(message)
    }

    /// Receives what [`probe`](Self::probe) has taken.
    ///
    /// # Safety
    /// As for [`recv`](Self::recv); `message` was just taken.
    pub(super) unsafe fn recv_probed(
        &self,
        message: ucp_tag_message_h,
        bytes: *mut u8,
        length: usize,
        flight: &Flight,
    ) {
        let record = flight.record();
        record.begin();
        let param = recv_param(flight);
        // SAFETY: the worker lives; the caller vouches for the rest.
        let request = unsafe { self.ucp.ucp_tag_msg_recv_nbx(self.worker, bytes.cast(), length, message, &param) };
        take_down(record, request);
    }

    /// The outcome of an operation that is over, or `None`; afterwards UCX does not touch its memory. Frees its request.
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

    /// Asks for a receive to end. It still has to be reaped, and may have received its message.
    pub(super) fn cancel(&self, flight: &Flight) {
        let request = flight.record().request.get();
        if flight.record().state.get() == State::UnderWay && !request.is_null() && !self.is_quiet() {
            // SAFETY: the request is of this worker and not freed, because it has not been reaped.
            unsafe { self.ucp.ucp_request_cancel(self.worker, request) };
        }
    }

    #[inline]
    pub(super) fn progress(&self) -> bool {
        // SAFETY: the worker lives, and this is no callback.
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
    pub(super) fn arm(&self) -> bool {
        // SAFETY: the worker lives and has the wakeup feature.
        !self.is_quiet() && unsafe { self.ucp.ucp_worker_arm(self.worker) } == ucs_status_t::UCS_OK
    }

    /// Closes the endpoints when what they send is on its way, for at most `patience`.
    pub(super) fn close_endpoints(&mut self, patience: Duration) {
        if self.is_quiet() {
            return;
        }
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

    /// Destroys the worker with its endpoints and then the context, whatever is under way. What is, is over.
    pub(super) fn tear_down(&mut self) {
        self.destroy_worker();
        self.destroy_context();
    }

    /// Destroys the worker with its endpoints.
    pub(super) fn destroy_worker(&mut self) {
        self.finish_fetches();
        self.endpoints.iter_mut().for_each(|endpoint| *endpoint = null_mut());
        if !self.worker.is_null() {
            // SAFETY: destroyed once; it destroys the endpoints that are left, and calls only callbacks of ours.
            unsafe { self.ucp.ucp_worker_destroy(self.worker) };
            self.worker = null_mut();
        }
    }

    /// Destroys the context, whose worker and registrations are gone; leaks it if it has allocated memory, which peers
    /// may still reach and UCX would free.
    pub(super) fn destroy_context(&mut self) {
        if self.has_allocated.get() {
            self.context = null_mut();
        }
        if !self.context.is_null() {
            // SAFETY: its only worker is gone.
            unsafe { self.ucp.ucp_cleanup(self.context) };
            self.context = null_mut();
        }
    }

    /// Copies that this rank makes out of a peer's memory need nobody else; UCX 1.13 ends the process when its worker is
    /// destroyed in the middle of one.
    fn finish_fetches(&self) {
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
            | ucs_status_t::UCS_ERR_ENDPOINT_TIMEOUT => Error::PeerLost { rank: peer },
            _ => Error::Ucx { call, status: self.ucp.status_text(status).to_owned() },
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_connected || self.peers().is_empty() {
            self.tear_down();
        }
        // Else it is leaked: UCX 1.13 ends the process when a connection is destroyed that is being made. No memory
        // but its own is lent to it, and nobody makes it progress any more.
    }
}

/// How messages are received.
#[inline]
fn recv_param(flight: &Flight) -> ucp_request_param_t {
    let mut param = ucp_request_param_t {
        // Not completed without a callback: UCX 1.13 does not say then how long the message was.
        op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        user_data: flight.user_data(),
        ..Default::default()
    };
    param.cb.recv = Some(recv_ended);
    param
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
