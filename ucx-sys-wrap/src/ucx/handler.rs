//! The handlers of active messages, which UCX calls inside `ucp_worker_progress`.

use std::ffi::c_void;
use std::ptr::NonNull;

use brevity_ucx_sys::*;

use super::engine::check;
use super::handler_context::HandlerContext;
use super::payload::{Payload, Rts};
use crate::{Rank, Result};

/// Handler numbers, which are part of the wire format.
pub(super) const MESSAGE: u32 = 0;
pub(super) const FRAGMENT: u32 = 1;
/// A [`CreditUpdate`](super::flow::CreditUpdate).
pub(super) const CREDIT_UPDATE: u32 = 2;
/// The sender's rank, 4 bytes, and the number of the greeting, 0 or 1, 1 byte.
pub(super) const GREETING: u32 = 3;

/// A [`RemoteFrame`](crate::one_sided::frame::RemoteFrame): a put or get, or its outcome.
pub(super) const ACCESS: u32 = 4;

/// How much is prefetched before the copy; the hardware prefetches the rest.
#[cfg(target_arch = "x86_64")]
const PREFETCHED_BYTES: usize = 1024;
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

pub(super) const GREETING_BYTES: usize = 5;

pub(super) fn greeting(from: Rank, time: u8) -> [u8; GREETING_BYTES] {
    let [a, b, c, d] = from.0.to_le_bytes();
    [a, b, c, d, time]
}

/// Registers the handlers, which put what arrives into the inbox of `context`.
///
/// # Safety
/// The worker lives, and is the context's. The context lives as long as the worker makes progress, and nobody
/// else has a reference to it during calls that make progress.
pub(super) unsafe fn set_handlers(
    ucp: &Ucp,
    worker: ucp_worker_h,
    context: NonNull<HandlerContext>,
) -> Result<()> {
    let handlers: [ucp_am_recv_callback_t; 5] = [
        Some(arrived::<MESSAGE>),
        Some(arrived::<FRAGMENT>),
        Some(arrived::<CREDIT_UPDATE>),
        Some(arrived::<GREETING>),
        Some(arrived::<ACCESS>),
    ];
    for (id, cb) in (0..).zip(handlers) {
        let param = ucp_am_handler_param_t {
            field_mask: UCP_AM_HANDLER_PARAM_FIELD_ID
                | UCP_AM_HANDLER_PARAM_FIELD_CB
                | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            id,
            cb,
            arg: context.as_ptr().cast(),
            ..Default::default()
        };
        // SAFETY: the worker lives (the caller), and the parameters during the call.
        let status = unsafe { ucp.ucp_worker_set_am_recv_handler(worker, &param) };
        check(ucp, "ucp_worker_set_am_recv_handler", status)?;
    }
    Ok(())
}

unsafe extern "C" fn arrived<const ID: u32>(
    context: *mut c_void,
    header: *const c_void,
    header_bytes: usize,
    data: *mut c_void,
    bytes: usize,
    param: *const ucp_am_recv_param_t,
) -> ucs_status_t {
    prefetch(data.cast(), bytes);
    // SAFETY: the context that `set_handlers` was given, which lives and which nobody else has now.
    let context = unsafe { &mut *context.cast::<HandlerContext>() };
    // SAFETY: UCX passes so many bytes, valid during this call.
    let header = unsafe { slice(header, header_bytes) };
    // SAFETY: UCX passes a parameter, valid during this call.
    let is_rendezvous = unsafe { (*param).recv_attr } & UCP_AM_RECV_ATTR_FLAG_RNDV != 0;
    // SAFETY: without rendezvous UCX passes so many bytes, valid during this call.
    if ID == MESSAGE && !is_rendezvous && context.inbox.take_plain(header, unsafe { slice(data, bytes) }) {
        return ucs_status_t::UCS_OK;
    }
    // SAFETY: as above.
    unsafe { arrived_any::<ID>(context, header, (data, bytes), is_rendezvous) }
}

/// Handles any message of handler `ID`.
///
/// # Safety
/// `data` is what UCX has passed: an RTS, used nowhere else, or so many bytes, valid during this call.
#[inline(never)]
unsafe fn arrived_any<const ID: u32>(
    context: &mut HandlerContext,
    header: &[u8],
    (data, bytes): (*mut c_void, usize),
    is_rendezvous: bool,
) -> ucs_status_t {
    let inbox = &mut context.inbox;
    let (payload, answer) = match NonNull::new(data).filter(|_| is_rendezvous) {
        // In progress: the RTS stays valid after this call.
        Some(pointer) => (Payload::Rendezvous(Rts { pointer, bytes }), ucs_status_t::UCS_INPROGRESS),
        // SAFETY: so many bytes (the caller).
        None => (Payload::Eager(unsafe { slice(data, bytes) }), ucs_status_t::UCS_OK),
    };
    match (ID, header) {
        (MESSAGE, _) => inbox.message(header, payload),
        (FRAGMENT, _) => inbox.fragment(header, payload),
        (CREDIT_UPDATE, _) => inbox.credit_update(header),
        (ACCESS, _) => {
            if let Err((from, what)) = context.requests.take_up(header, payload, &mut inbox.statistics) {
                inbox.refuse(from, what);
            }
        }
        (GREETING, [a, b, c, d, time]) => inbox.greeting(Rank(u32::from_le_bytes([*a, *b, *c, *d])), *time),
        _ => inbox.greeting(Rank(u32::MAX), u8::MAX),
    }
    if is_rendezvous {
        context.fetch_due();
    }
    answer
}

/// Prefetches the lines that are about to be copied: they lie in the cache of the sender's processor and
/// arrive while the header is read.
#[inline]
fn prefetch(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let (mut at, end) = (0, bytes.min(PREFETCHED_BYTES));
        while at < end {
            // SAFETY: a hint: nothing is read, whatever lies there.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at).cast()) };
            at += LINE_BYTES;
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}

/// # Safety
/// So many bytes at `pointer` are valid and unchanged for the result's life, or there are none.
unsafe fn slice<'a>(pointer: *const c_void, bytes: usize) -> &'a [u8] {
    if bytes == 0 || pointer.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer.cast(), bytes) }
}
