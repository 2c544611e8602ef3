//! A worker that talks to itself: enough to show that structs, masks and types fit the library.

mod common;

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use brevity_ucx_sys::*;

const TAG: ucp_tag_t = 0x0123_4567_89ab_cdef;
const DEADLINE: Duration = Duration::from_secs(30);
const OK: ucs_status_t = ucs_status_t::UCS_OK;

/// A context with one worker and an endpoint to it; dropped in the order endpoint, worker, context.
struct Loopback {
    ucp: Ucp,
    context: ucp_context_h,
    worker: ucp_worker_h,
    endpoint: ucp_ep_h,
}

impl Loopback {
    /// Nothing where UCX is not installed.
    fn new(features: ucp_feature) -> Option<Self> {
        let mut this =
            Self { ucp: common::ucx()?, context: null_mut(), worker: null_mut(), endpoint: null_mut() };
        this.make_context(features);
        this.make_worker();
        this.make_endpoint();
        Some(this)
    }

    fn make_context(&mut self, features: ucp_feature) {
        let params = ucp_params_t { field_mask: UCP_PARAM_FIELD_FEATURES, features, ..Default::default() };
        let mut config = null_mut();
        // SAFETY: the pointer is to a local, null means no prefix and no file.
        assert_eq!(OK, unsafe { self.ucp.ucp_config_read(null(), null(), &mut config) });
        // SAFETY: the configuration lives until it is released below; the strings are terminated.
        assert_eq!(OK, unsafe {
            self.ucp.ucp_config_modify(config, c"RNDV_THRESH".as_ptr(), c"64k".as_ptr())
        });
        // SAFETY: parameters and configuration live; the context is written to a field of ours.
        assert_eq!(OK, unsafe { self.ucp.ucp_init(&params, config, &mut self.context) });
        // SAFETY: made by `ucp_config_read`, used no more.
        unsafe { self.ucp.ucp_config_release(config) };
    }

    fn make_worker(&mut self) {
        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: ucs_thread_mode_t::UCS_THREAD_MODE_SINGLE,
            ..Default::default()
        };
        // SAFETY: the context lives until this is dropped.
        assert_eq!(OK, unsafe { self.ucp.ucp_worker_create(self.context, &params, &mut self.worker) });
    }

    fn make_endpoint(&mut self) {
        let mut attributes = ucp_worker_attr_t {
            field_mask: UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_THREAD_MODE,
            ..Default::default()
        };
        // SAFETY: the worker lives, the attributes are ours.
        assert_eq!(OK, unsafe { self.ucp.ucp_worker_query(self.worker, &mut attributes) });
        assert_eq!(attributes.thread_mode, ucs_thread_mode_t::UCS_THREAD_MODE_SINGLE);
        assert!(attributes.address_length > 0);
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
            address: attributes.address,
            err_mode: ucp_err_handling_mode_t::UCP_ERR_HANDLING_MODE_NONE,
            ..Default::default()
        };
        // SAFETY: worker and address live.
        assert_eq!(OK, unsafe { self.ucp.ucp_ep_create(self.worker, &params, &mut self.endpoint) });
        // SAFETY: the address came from `ucp_worker_query` of this worker, and is used no more.
        unsafe { self.ucp.ucp_worker_release_address(self.worker, attributes.address) };
    }

    fn send(&self, bytes: &[u8], param: &ucp_request_param_t) -> ucs_status_ptr_t {
        // SAFETY: every caller finishes the operation before `bytes` goes.
        unsafe { self.ucp.ucp_tag_send_nbx(self.endpoint, bytes.as_ptr().cast(), bytes.len(), TAG, param) }
    }

    fn receive(&self, bytes: &mut [u8], param: &ucp_request_param_t) -> ucs_status_ptr_t {
        let (data, length) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: every caller finishes the operation before it touches `bytes`.
        unsafe { self.ucp.ucp_tag_recv_nbx(self.worker, data, length, TAG, u64::MAX, param) }
    }

    /// Progresses until what a call returned is done, and frees it.
    fn finish(&self, request: ucs_status_ptr_t) -> ucs_status_t {
        if !ucs_ptr_is_ptr(request) {
            return ucs_ptr_status(request);
        }
        let start = Instant::now();
        loop {
            // SAFETY: the request is freed below and nowhere else.
            let status = unsafe { self.ucp.ucp_request_check_status(request) };
            if status != ucs_status_t::UCS_INPROGRESS {
                // SAFETY: it is complete and used no more.
                unsafe { self.ucp.ucp_request_free(request) };
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "an operation did not end");
            // SAFETY: the worker lives and belongs to this thread.
            unsafe { self.ucp.ucp_worker_progress(self.worker) };
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // operations may be under way: leave UCX's objects to the process's end
        }
        let param = ucp_request_param_t::default();
        // SAFETY: the endpoint is used no more.
        let closing = unsafe { self.ucp.ucp_ep_close_nbx(self.endpoint, &param) };
        assert_eq!(OK, self.finish(closing));
        // SAFETY: its endpoint is closed, its requests are freed.
        unsafe { self.ucp.ucp_worker_destroy(self.worker) };
        // SAFETY: its worker is destroyed.
        unsafe { self.ucp.ucp_cleanup(self.context) };
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251 + 1) as u8).collect()
}

#[test]
fn a_wrong_configuration_value_is_refused() {
    let Some(ucp) = common::ucx() else { return };
    let mut config = null_mut();
    // SAFETY: the pointer is to a local, null means no prefix and no file.
    assert_eq!(OK, unsafe { ucp.ucp_config_read(null(), null(), &mut config) });
    // SAFETY: the configuration lives until it is released below; the strings are terminated.
    let status = unsafe { ucp.ucp_config_modify(config, c"RNDV_THRESH".as_ptr(), c"much".as_ptr()) };
    assert_eq!(status, ucs_status_t::UCS_ERR_INVALID_PARAM);
    // SAFETY: made by `ucp_config_read`, used no more.
    unsafe { ucp.ucp_config_release(config) };
}

#[test]
fn tagged_messages_arrive() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    for length in [0, 8, 1 << 20] {
        let sent = pattern(length);
        let mut received = vec![0; length];
        let param = ucp_request_param_t::default();
        let receive = this.receive(&mut received, &param);
        let send = this.send(&sent, &param);
        assert_eq!(OK, this.finish(send), "{length}");
        assert_eq!(OK, this.finish(receive), "{length}");
        assert_eq!(sent, received, "{length}");
    }
}

#[test]
fn an_unexpected_message_is_probed_and_received() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    let sent = pattern(1 << 20);
    let param = ucp_request_param_t::default();
    let send = this.send(&sent, &param);
    let start = Instant::now();
    let mut info = ucp_tag_recv_info_t::default();
    let message = loop {
        // SAFETY: the worker lives, the information is ours.
        let message = unsafe { this.ucp.ucp_tag_probe_nb(this.worker, TAG, u64::MAX, 1, &mut info) };
        if !message.is_null() {
            break message;
        }
        assert!(start.elapsed() < DEADLINE);
        // SAFETY: the worker lives and belongs to this thread.
        unsafe { this.ucp.ucp_worker_progress(this.worker) };
    };
    assert_eq!((info.sender_tag, info.length), (TAG, sent.len()));
    let mut received = vec![0; info.length];
    // SAFETY: the message was removed by the probe; `received` is finished with below.
    let receive = unsafe {
        let (data, length) = (received.as_mut_ptr().cast(), received.len());
        this.ucp.ucp_tag_msg_recv_nbx(this.worker, data, length, message, &param)
    };
    assert_eq!(OK, this.finish(receive));
    assert_eq!(OK, this.finish(send));
    assert_eq!(sent, received);
}

#[test]
fn a_gathered_message_arrives_in_one_piece() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    let (header, payload) = (pattern(16), pattern(300_000));
    let parts = [&header, &payload]
        .map(|part| ucp_dt_iov_t { buffer: part.as_ptr().cast_mut().cast(), length: part.len() });
    let param = ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_DATATYPE,
        datatype: ucp_dt_make_iov(),
        ..Default::default()
    };
    let mut received = vec![0; header.len() + payload.len()];
    let receive = this.receive(&mut received, &ucp_request_param_t::default());
    // SAFETY: the list and what it points to live until the send is finished below.
    let send = unsafe {
        let list = parts.as_ptr().cast();
        this.ucp.ucp_tag_send_nbx(this.endpoint, list, parts.len(), TAG, &param)
    };
    assert_eq!(OK, this.finish(send));
    assert_eq!(OK, this.finish(receive));
    assert_eq!(received, [header, payload].concat());
}

unsafe extern "C" fn note(
    _request: *mut c_void,
    status: ucs_status_t,
    info: *const ucp_tag_recv_info_t,
    user_data: *mut c_void,
) {
    // SAFETY: the tests pass a pointer to a `Noted` that outlives the operation, for their thread alone.
    let noted = unsafe { &mut *user_data.cast::<Noted>() };
    noted.calls += 1;
    noted.status = status;
    if status == OK {
        // SAFETY: UCX passes the information of a message that was received.
        noted.length = unsafe { (*info).length };
    }
}

struct Noted {
    calls: u32,
    status: ucs_status_t,
    length: usize,
}

#[test]
fn callbacks_get_status_length_and_user_data() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    let mut noted = Noted { calls: 0, status: ucs_status_t(-99), length: 0 };
    let mut param = ucp_request_param_t {
        op_attr_mask: UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        user_data: (&raw mut noted).cast(),
        ..Default::default()
    };
    param.cb.recv = Some(note);
    let (sent, mut received) = (pattern(100), vec![0; 200]);
    let receive = this.receive(&mut received, &param);
    let send = this.send(&sent, &ucp_request_param_t::default());
    assert_eq!(OK, this.finish(send));
    assert_eq!(OK, this.finish(receive));
    assert_eq!((noted.calls, noted.status, noted.length), (1, OK, 100));
    assert_eq!(received[..100], sent);
}

#[test]
fn a_short_buffer_is_reported_as_truncation() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    let param = ucp_request_param_t::default();
    let (sent, mut received) = (pattern(64), vec![0; 16]);
    let receive = this.receive(&mut received, &param);
    let send = this.send(&sent, &param);
    assert_eq!(OK, this.finish(send));
    assert_eq!(ucs_status_t::UCS_ERR_MESSAGE_TRUNCATED, this.finish(receive));
}

#[test]
fn an_unmatched_receive_can_be_cancelled() {
    let Some(this) = Loopback::new(UCP_FEATURE_TAG) else { return };
    let mut received = vec![7; 64];
    let receive = this.receive(&mut received, &ucp_request_param_t::default());
    assert!(ucs_ptr_is_ptr(receive));
    // SAFETY: the request is in progress and not freed yet.
    unsafe { this.ucp.ucp_request_cancel(this.worker, receive) };
    assert_eq!(ucs_status_t::UCS_ERR_CANCELED, this.finish(receive));
    assert_eq!(received, [7; 64]);
}

#[test]
fn put_and_get_reach_registered_memory() {
    let Some(this) = Loopback::new(UCP_FEATURE_RMA) else { return };
    let mut window = vec![0_u8; 1 << 20];
    let (memory, key) = register(&this, &mut window);
    let address = window.as_ptr() as u64;
    let param = ucp_request_param_t::default();
    let (written, mut read) = (pattern(window.len()), vec![0; window.len()]);
    // SAFETY: `written` and the window live until the flush is finished.
    let put = unsafe {
        let data = written.as_ptr().cast();
        this.ucp.ucp_put_nbx(this.endpoint, data, written.len(), address, key, &param)
    };
    assert_eq!(OK, this.finish(put));
    // SAFETY: the worker lives.
    let flush = unsafe { this.ucp.ucp_worker_flush_nbx(this.worker, &param) };
    assert_eq!(OK, this.finish(flush));
    // SAFETY: `read` and the window live until the get is finished.
    let get = unsafe {
        let data = read.as_mut_ptr().cast();
        this.ucp.ucp_get_nbx(this.endpoint, data, read.len(), address, key, &param)
    };
    assert_eq!(OK, this.finish(get));
    assert_eq!(read, written);
    // SAFETY: no operation uses the key any more.
    unsafe { this.ucp.ucp_rkey_destroy(key) };
    // SAFETY: nor the memory.
    assert_eq!(OK, unsafe { this.ucp.ucp_mem_unmap(this.context, memory) });
    assert_eq!(window, written);
}

/// Registers `window` and unpacks its key on the endpoint, as a peer would.
fn register(this: &Loopback, window: &mut [u8]) -> (ucp_mem_h, ucp_rkey_h) {
    let params = ucp_mem_map_params_t {
        field_mask: UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        address: window.as_mut_ptr().cast(),
        length: window.len(),
        ..Default::default()
    };
    let mut memory = null_mut();
    // SAFETY: the window outlives the registration, which the caller ends.
    assert_eq!(OK, unsafe { this.ucp.ucp_mem_map(this.context, &params, &mut memory) });
    let mut attributes = ucp_mem_attr_t {
        field_mask: UCP_MEM_ATTR_FIELD_LENGTH | UCP_MEM_ATTR_FIELD_MEM_TYPE,
        ..Default::default()
    };
    // SAFETY: the memory is registered, the attributes are ours.
    assert_eq!(OK, unsafe { this.ucp.ucp_mem_query(memory, &mut attributes) });
    assert!(attributes.length >= window.len());
    assert_eq!(attributes.mem_type, ucs_memory_type_t::UCS_MEMORY_TYPE_HOST);
    let (mut packed, mut length, mut key) = (null_mut(), 0, null_mut());
    // SAFETY: the memory is registered, the results go to locals.
    assert_eq!(OK, unsafe { this.ucp.ucp_rkey_pack(this.context, memory, &mut packed, &mut length) });
    assert!(length > 0);
    // SAFETY: the bytes are those that were just packed.
    assert_eq!(OK, unsafe { this.ucp.ucp_ep_rkey_unpack(this.endpoint, packed, &mut key) });
    // SAFETY: packed above, unpacked, used no more.
    unsafe { this.ucp.ucp_rkey_buffer_release(packed) };
    (memory, key)
}
