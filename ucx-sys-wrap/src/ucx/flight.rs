//! One UCX operation under way, and the memory that UCX knows it by.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use brevity_ucx_sys::ucs_status_t;

use super::header::MAX_HEADER_BYTES;

/// Handles of one kind are made in batches of this many.
const BATCH: usize = 32;

/// What UCX's callback writes for one operation.
///
/// Invariants: it lies on the heap at a fixed address until the [`Flights`] that made it are dropped, which
/// is after the worker is gone. It is only ever reached through shared references, so a callback that runs
/// inside one of our UCX calls may write it while we hold one. One thread at a time, as the worker.
pub(super) struct Record {
    pub(super) state: Cell<State>,
    pub(super) status: Cell<ucs_status_t>,
    /// Bytes received.
    pub(super) bytes: Cell<usize>,
    /// UCX's request, from when the call returned it until it is freed.
    pub(super) request: Cell<*mut c_void>,
    /// The header of a message to send, which UCX may read until the operation is over.
    header: UnsafeCell<[u8; MAX_HEADER_BYTES]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    UnderWay,
    Over,
}

/// The sole handle of a [`Record`] that is in use; comes from [`Flights::take`] and goes back with
/// [`Flights::put`].
pub(super) struct Flight(NonNull<Record>);

// SAFETY: records are written by callbacks of the worker and read by the owner of both, `Ucx`, which moves
// between threads with all its flights at once.
unsafe impl Send for Flight {}
// SAFETY: as above.
unsafe impl Send for Flights {}

impl Flight {
    #[inline]
    pub(super) fn record(&self) -> &Record {
        // SAFETY: records outlive their handles (the invariants of `Record` and `Flights`).
        unsafe { self.0.as_ref() }
    }

    /// What the callbacks are given as user data.
    #[inline]
    pub(super) fn user_data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// The memory for the header of a message.
    ///
    /// # Safety
    /// No operation of this flight is under way.
    #[inline]
    pub(super) unsafe fn header_mut(&mut self) -> &mut [u8; MAX_HEADER_BYTES] {
        // SAFETY: UCX does not read it (the caller), and this is the sole handle.
        unsafe { &mut *self.record().header.get() }
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

    /// Whether it has, and did what it should.
    pub(super) fn has_succeeded(&self) -> bool {
        self.is_over() && self.record().status.get() == ucs_status_t::UCS_OK
    }
}

/// The callback of a send.
pub(super) unsafe extern "C" fn send_ended(
    _request: *mut c_void,
    status: ucs_status_t,
    user_data: *mut c_void,
) {
    // SAFETY: `user_data` is the record of a flight, which lives until the worker is gone.
    let record = unsafe { &*user_data.cast::<Record>() };
    record.end(status, 0);
}

/// The callback of a payload that is fetched.
pub(super) unsafe extern "C" fn fetch_ended(
    _request: *mut c_void,
    status: ucs_status_t,
    bytes: usize,
    user_data: *mut c_void,
) {
    // SAFETY: `user_data` is the record of a flight, which lives until the worker is gone.
    let record = unsafe { &*user_data.cast::<Record>() };
    record.end(status, bytes);
}

impl Record {
    /// The operation begins.
    #[inline]
    pub(super) fn begin(&self) {
        self.request.set(ptr::null_mut());
        self.state.set(State::UnderWay);
    }

    /// The operation has ended, in a callback or inside its call.
    #[inline]
    pub(super) fn end(&self, status: ucs_status_t, bytes: usize) {
        self.status.set(status);
        self.bytes.set(bytes);
        self.state.set(State::Over);
    }
}

/// Makes and keeps the records of a worker.
///
/// Invariants: `records` are freed by `Drop` only, and the owner drops this after the worker.
pub(super) struct Flights {
    records: Vec<NonNull<Record>>,
    free: Vec<NonNull<Record>>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self { records: Vec::new(), free: Vec::new() }
    }

    #[inline]
    pub(super) fn take(&mut self) -> Flight {
        if let Some(record) = self.free.pop() {
            return Flight(record);
        }
        for _ in 0..BATCH {
            let record = Record {
                state: Cell::new(State::Free),
                status: Cell::new(ucs_status_t::UCS_OK),
                bytes: Cell::new(0),
                request: Cell::new(ptr::null_mut()),
                header: UnsafeCell::new([0; MAX_HEADER_BYTES]),
            };
            let record = NonNull::from(Box::leak(Box::new(record)));
            self.records.push(record);
            self.free.push(record);
        }
        self.take()
    }

    /// Takes a handle back whose operation is over (or never began).
    #[inline]
    pub(super) fn put(&mut self, flight: Flight) {
        flight.record().state.set(State::Free);
        self.free.push(flight.0);
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        for record in self.records.drain(..) {
            // SAFETY: leaked from a box when it was made; the worker is gone, and handles are not used after
            // this.
            drop(unsafe { Box::from_raw(record.as_ptr()) });
        }
    }
}

/// Memory of `BYTES` bytes that UCX reads or writes on our behalf.
pub(super) struct Bounce<const BYTES: usize>(NonNull<UnsafeCell<[u8; BYTES]>>);

// SAFETY: the sole handle of plain bytes.
unsafe impl<const BYTES: usize> Send for Bounce<BYTES> {}
// SAFETY: it owns plain bytes, and handles move with it, in `Ucx`.
unsafe impl<const BYTES: usize> Send for Bounces<BYTES> {}

impl<const BYTES: usize> Bounce<BYTES> {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// All bytes, to write.
    ///
    /// # Safety
    /// No UCX operation on this memory is under way.
    pub(super) unsafe fn bytes_mut(&mut self) -> &mut [u8; BYTES] {
        // SAFETY: live, initialised memory that nobody else touches (the caller).
        unsafe { &mut *self.0.as_ptr().cast() }
    }
}

/// Makes and keeps bounce memory; freed by `Drop`, which the owner runs after the worker is gone.
pub(super) struct Bounces<const BYTES: usize> {
    all: Vec<NonNull<UnsafeCell<[u8; BYTES]>>>,
    free: Vec<NonNull<UnsafeCell<[u8; BYTES]>>>,
}

impl<const BYTES: usize> Bounces<BYTES> {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }

    /// Memory that is not in use. The one given back last comes first: it is in the cache.
    #[inline]
    pub(super) fn take(&mut self) -> Bounce<BYTES> {
        Bounce(self.free.pop().unwrap_or_else(|| {
            let memory = NonNull::from(Box::leak(Box::new(UnsafeCell::new([0; BYTES]))));
            self.all.push(memory);
            memory
        }))
    }

    /// Takes memory back that no UCX operation uses.
    #[inline]
    pub(super) fn put(&mut self, bounce: Bounce<BYTES>) {
        self.free.push(bounce.0);
    }
}

impl<const BYTES: usize> Drop for Bounces<BYTES> {
    fn drop(&mut self) {
        for memory in self.all.drain(..) {
            // SAFETY: leaked from a box when it was made; the worker is gone, and handles are not used after
            // this.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}
