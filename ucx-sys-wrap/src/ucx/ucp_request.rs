//! UCX operations under way, and the memory that UCX reads or writes for them.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use brevity_ucx_sys::{ucs_ptr_is_ptr, ucs_ptr_raw_status, ucs_status_ptr_t, ucs_status_t};

use super::PACKED_BYTES;
use super::header::MAX_HEADER_BYTES;

/// What UCX's callback writes for one operation.
///
/// Invariants: it stays at a fixed address until the [`UcpRequests`] that made it are dropped, which is after
/// the worker is gone. It is only reached through shared references, so a callback that runs inside one of
/// our UCX calls may write it while we hold one. One thread at a time uses it, as the worker.
pub(super) struct Record {
    state: Cell<State>,
    pub(super) status: Cell<ucs_status_t>,
    /// Bytes received.
    pub(super) bytes: Cell<usize>,
    /// UCX's request, from when the call returned it until it is freed.
    pub(super) handle: Cell<*mut c_void>,
    /// The header of a message to send, which UCX may read until the operation is over.
    header: UnsafeCell<[u8; MAX_HEADER_BYTES]>,
    /// A packed payload, likewise; allocated when it is first needed.
    packed: UnsafeCell<Option<Box<[u8; PACKED_BYTES]>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    UnderWay,
    Over,
}

/// The sole handle of a [`Record`] in use; comes from [`UcpRequests::take`] and goes back with
/// [`UcpRequests::put`].
pub(super) struct UcpRequest(NonNull<Record>);

// SAFETY: records are written by callbacks of the worker and read by the owner of both, `Ucx`, which moves
// between threads with all its requests at once.
unsafe impl Send for UcpRequest {}

impl UcpRequest {
    #[inline]
    pub(super) fn record(&self) -> &Record {
        // SAFETY: records outlive their handles (the invariants of `Record` and `UcpRequests`).
        unsafe { self.0.as_ref() }
    }

    /// The user data of the callbacks.
    #[inline]
    pub(super) fn user_data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// The memory for the header of a message.
    ///
    /// # Safety
    /// No operation of this request is under way.
    #[inline]
    pub(super) unsafe fn header_mut(&mut self) -> &mut [u8; MAX_HEADER_BYTES] {
        // SAFETY: UCX does not read it (the caller), and this is the sole handle.
        unsafe { &mut *self.record().header.get() }
    }

    /// The memory for a packed payload.
    ///
    /// # Safety
    /// No operation of this request is under way.
    pub(super) unsafe fn packed_mut(&mut self) -> &mut [u8; PACKED_BYTES] {
        // SAFETY: as in `header_mut`.
        let packed = unsafe { &mut *self.record().packed.get() };
        packed.get_or_insert_with(|| Box::new([0; PACKED_BYTES]))
    }

    #[inline]
    pub(super) fn header(&self) -> *const u8 {
        self.record().header.get().cast_const().cast()
    }

    /// Whether UCX has ended the operation.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.record().state.get() == State::Over
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.is_over() && self.record().status.get() == ucs_status_t::UCS_OK
    }
}

/// The callback of a send, put, get or flush.
pub(super) unsafe extern "C" fn send_ended(
    _handle: *mut c_void,
    status: ucs_status_t,
    user_data: *mut c_void,
) {
    // SAFETY: `user_data` is the record of a request, which lives until the worker is gone.
    unsafe { &*user_data.cast::<Record>() }.end(status, 0);
}

/// The callback of a payload that is fetched.
pub(super) unsafe extern "C" fn fetch_ended(
    _handle: *mut c_void,
    status: ucs_status_t,
    bytes: usize,
    user_data: *mut c_void,
) {
    // SAFETY: as in `send_ended`.
    unsafe { &*user_data.cast::<Record>() }.end(status, bytes);
}

impl Record {
    fn new() -> Self {
        Self {
            state: Cell::new(State::Free),
            status: Cell::new(ucs_status_t::UCS_OK),
            bytes: Cell::new(0),
            handle: Cell::new(ptr::null_mut()),
            header: UnsafeCell::new([0; MAX_HEADER_BYTES]),
            packed: UnsafeCell::new(None),
        }
    }

    #[inline]
    pub(super) fn begin(&self) {
        self.handle.set(ptr::null_mut());
        self.state.set(State::UnderWay);
    }

    /// The operation has ended, in a callback or inside its call.
    #[inline]
    pub(super) fn end(&self, status: ucs_status_t, bytes: usize) {
        self.status.set(status);
        self.bytes.set(bytes);
        self.state.set(State::Over);
    }

    /// Records what the call of the operation returned; its callback may have run before.
    #[inline]
    pub(super) fn returned(&self, pointer: ucs_status_ptr_t) {
        if ucs_ptr_is_ptr(pointer) {
            self.handle.set(pointer);
        } else if self.state.get() != State::Over {
            self.end(ucs_ptr_raw_status(pointer), 0);
        }
    }
}

/// Makes and keeps the records of a worker's operations.
///
/// Invariants: `all` is freed by `Drop` only, and the owner drops this after the worker.
pub(super) struct UcpRequests {
    all: Vec<NonNull<Record>>,
    free: Vec<NonNull<Record>>,
}

// SAFETY: as for `UcpRequest`.
unsafe impl Send for UcpRequests {}

impl UcpRequests {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    /// A request that is not in use. The one given back last comes first, because it is in the cache.
    #[inline]
    pub(super) fn take(&mut self) -> UcpRequest {
        UcpRequest(self.free.pop().unwrap_or_else(|| {
            let record = NonNull::from(Box::leak(Box::new(Record::new())));
            self.all.push(record);
            record
        }))
    }

    /// Takes a handle back whose operation is over (or never began).
    #[inline]
    pub(super) fn put(&mut self, request: UcpRequest) {
        request.record().state.set(State::Free);
        self.free.push(request.0);
    }
}

impl Drop for UcpRequests {
    fn drop(&mut self) {
        for record in self.all.drain(..) {
            // SAFETY: leaked from a box in `take`; the worker is gone, and handles are not used after this.
            drop(unsafe { Box::from_raw(record.as_ptr()) });
        }
    }
}
