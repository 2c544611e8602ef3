//! One UCX operation under way, and the memory that UCX knows it by.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use brevity_ucx_sys::{ucp_tag_recv_info_t, ucs_status_t};

/// Handles of one kind are made in batches of this many.
const BATCH: usize = 32;

/// What UCX's callback writes for one operation.
///
/// Invariants: it lies on the heap at a fixed address until the [`Flights`] that made it are dropped, which is after
/// the worker is gone. It is only ever reached through shared references, so a callback that runs inside one of our
/// UCX calls may write it while we hold one. One thread at a time, as the worker.
pub(super) struct Record {
    pub(super) state: Cell<State>,
    pub(super) status: Cell<ucs_status_t>,
    /// Bytes received.
    pub(super) bytes: Cell<usize>,
    /// UCX's request, from when the call returned it until it is freed.
    pub(super) request: Cell<*mut c_void>,
    /// Where the callback announces the operation, if anywhere.
    announce_to: Cell<Option<NonNull<Announced>>>,
    /// The next in the list of those announced.
    next: Cell<Option<NonNull<Record>>>,
    /// Whose operation it is.
    owner: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    UnderWay,
    Over,
}

/// Operations that have ended and that nobody has looked at; written by callbacks.
#[derive(Default)]
pub(super) struct Announced {
    first: Cell<Option<NonNull<Record>>>,
}

/// The sole handle of a [`Record`] that is in use; comes from [`Flights::take`] and goes back with [`Flights::put`].
pub(super) struct Flight(NonNull<Record>);

// SAFETY: records are written by callbacks of the worker and read by the owner of both, `Ucx`, which moves between
// threads with all its flights at once.
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

    /// Whether UCX has ended the operation.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.record().state.get() == State::Over
    }
}

/// The callback of a send.
pub(super) unsafe extern "C" fn send_ended(_request: *mut c_void, status: ucs_status_t, user_data: *mut c_void) {
    // SAFETY: `user_data` is the record of a flight, which lives until the worker is gone.
    let record = unsafe { &*user_data.cast::<Record>() };
    record.end(status, 0);
}

/// The callback of a receive.
pub(super) unsafe extern "C" fn recv_ended(
    _request: *mut c_void,
    status: ucs_status_t,
    info: *const ucp_tag_recv_info_t,
    user_data: *mut c_void,
) {
    // SAFETY: `user_data` is the record of a flight, which lives until the worker is gone.
    let record = unsafe { &*user_data.cast::<Record>() };
    // SAFETY: UCX passes the information of a message that was received, valid during the callback.
    let bytes = if status == ucs_status_t::UCS_OK { unsafe { (*info).length } } else { 0 };
    record.end(status, bytes);
}

impl Record {
    /// The operation begins.
    #[inline]
    pub(super) fn begin(&self) {
        self.announce_to.set(None);
        self.request.set(ptr::null_mut());
        self.state.set(State::UnderWay);
    }

    /// From now on the end is announced to `owner`.
    #[inline]
    pub(super) fn announce(&self, list: &Announced, owner: u64) {
        self.announce_to.set(Some(NonNull::from(list)));
        self.owner.set(owner);
    }

    /// The operation has ended, in a callback or inside its call.
    #[inline]
    pub(super) fn end(&self, status: ucs_status_t, bytes: usize) {
        self.status.set(status);
        self.bytes.set(bytes);
        self.state.set(State::Over);
        if let Some(list) = self.announce_to.take() {
            // SAFETY: the list lies on the heap until the worker is gone (`Flights`), and is shared by one thread.
            let list = unsafe { list.as_ref() };
            self.next.set(list.first.replace(Some(NonNull::from(self))));
        }
    }
}

/// Makes and keeps the records of a worker.
///
/// Invariants: `records` and `announced` are freed by `Drop` only, and the owner drops this after the worker.
pub(super) struct Flights {
    records: Vec<NonNull<Record>>,
    free: Vec<NonNull<Record>>,
    announced: NonNull<Announced>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self { records: Vec::new(), free: Vec::new(), announced: NonNull::from(Box::leak(Box::<Announced>::default())) }
    }

    #[inline]
    pub(super) fn announced(&self) -> &Announced {
        // SAFETY: freed by `Drop` only.
        unsafe { self.announced.as_ref() }
    }

    /// The owner of one operation that was announced since.
    #[inline]
    pub(super) fn next_announced(&self) -> Option<u64> {
        let first = self.announced().first.take()?;
        // SAFETY: records live until `Drop`.
        let record = unsafe { first.as_ref() };
        self.announced().first.set(record.next.take());
        Some(record.owner.get())
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
                announce_to: Cell::new(None),
                next: Cell::new(None),
                owner: Cell::new(0),
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
            // SAFETY: leaked from a box when it was made; the worker is gone, and handles are not used after this.
            drop(unsafe { Box::from_raw(record.as_ptr()) });
        }
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.announced.as_ptr()) });
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

    /// The first `length` bytes.
    ///
    /// # Safety
    /// No UCX operation on this memory is under way.
    pub(super) unsafe fn bytes(&self, length: usize) -> &[u8] {
        // SAFETY: at most `BYTES` bytes of live, initialised memory, which nobody writes (the caller).
        unsafe { std::slice::from_raw_parts(self.as_ptr(), length.min(BYTES)) }
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
            // SAFETY: leaked from a box when it was made; the worker is gone, and handles are not used after this.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}
