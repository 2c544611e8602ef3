//! The memory of regions, which peers read and write.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::shm::copy_shared;

/// A region's memory as a transport sees it. Only these functions, and once it is exposed peers, or UCX on
/// their behalf, access the bytes.
#[derive(Clone)]
pub struct RegionMemory(Arc<Shared<dyn Send>>);

/// A shared buffer that nobody has a reference to.
///
/// Invariants: `pointer` is valid for reads and writes of `length` initialised bytes while `raw` lives.
/// Threads of this process access the bytes only while they hold the lock of `raw`. References to the bytes
/// exist only under the lock and before `is_exposed` is set; after that, accesses are by raw pointer, and
/// peers make them too, without the lock.
pub(crate) struct Shared<R: ?Sized> {
    pointer: NonNull<u8>,
    length: usize,
    is_exposed: AtomicBool,
    raw: Mutex<R>,
}

// SAFETY: the pointer is into memory that `raw` owns, which may move between threads (`R: Send`); shared
// access is under the lock.
unsafe impl<R: Send + ?Sized> Send for Shared<R> {}
// SAFETY: as above.
unsafe impl<R: Send + ?Sized> Sync for Shared<R> {}

impl<R: Send + 'static> Shared<R> {
    /// Memory that only this process accesses until it is [exposed](RegionMemory::open_to_the_outside).
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `length` initialised bytes while `raw` lives, and nothing
    /// else accesses them.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize, raw: R) -> Arc<Self> {
        Arc::new(Self { pointer, length, is_exposed: AtomicBool::new(false), raw: Mutex::new(raw) })
    }

    pub(crate) fn into_raw(self) -> R {
        self.raw.into_inner()
    }
}

impl<R: Send + 'static> From<Arc<Shared<R>>> for RegionMemory {
    fn from(shared: Arc<Shared<R>>) -> Self {
        Self(shared)
    }
}

impl RegionMemory {
    /// Memory that peers access directly; makes it zero.
    ///
    /// # Safety
    /// `length` bytes from `pointer` on are valid for reads and writes until the process ends, and this
    /// process accesses them only through this and its clones.
    pub(crate) unsafe fn forever(pointer: NonNull<u8>, length: usize) -> Self {
        let (is_exposed, raw) = (AtomicBool::new(true), Mutex::new(()));
        let memory = Self(Arc::new(Shared { pointer, length, is_exposed, raw }));
        memory.clear();
        memory
    }

    pub(crate) fn none() -> Self {
        // SAFETY: no bytes.
        unsafe { Shared::new(NonNull::dangling(), 0, ()) }.into()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.length
    }

    /// Exposes the memory to direct access by peers, and returns its address.
    pub(crate) fn open_to_the_outside(&self) -> NonNull<u8> {
        // The holder of a reference holds the lock.
        let _guard = self.0.raw.lock();
        self.0.is_exposed.store(true, Ordering::Relaxed);
        self.0.pointer
    }

    /// The address of a range of [exposed](Self::open_to_the_outside) memory, for access by raw pointer only;
    /// `None` unless the range is inside.
    pub(crate) fn outside(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        debug_assert!(self.0.is_exposed.load(Ordering::Relaxed), "there may be references");
        NonNull::new(self.range(offset, length)?)
    }

    /// Copies bytes in. Does nothing unless they fit.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        if let Some(to) = self.range(offset, from.len()) {
            // SAFETY: `to` points at this many bytes of this memory. `from` is no part of them, because
            // nobody has a reference to them.
            unsafe { self.copy(from.as_ptr(), to, from.len()) };
        }
    }

    pub(crate) fn clear(&self) {
        const ZEROES: [u8; 4096] = [0; 4096];
        for offset in (0..self.len()).step_by(ZEROES.len()) {
            self.write(offset, &ZEROES[..ZEROES.len().min(self.len() - offset)]);
        }
    }

    /// Copies bytes out. Does nothing unless all are there.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(from) = self.range(offset, into.len()) {
            // SAFETY: as in `write`.
            unsafe { self.copy(from, into.as_mut_ptr(), into.len()) };
        }
    }

    /// Copies into or out of the memory, under the lock. Peers may write exposed memory meanwhile, which
    /// would be a data race for an ordinary copy.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `bytes` bytes; one of them lies in this memory, and the
    /// other, which nothing else accesses, outside of it.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        let _guard = self.0.raw.lock();
        if self.0.is_exposed.load(Ordering::Relaxed) {
            // SAFETY: the caller guarantees both ranges.
            unsafe { copy_shared(from, to, bytes) };
        } else {
            // SAFETY: as above, and the lock keeps other threads out.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }

    /// Passes the bytes at `offset` to `body`; `None` unless they are there, and for exposed memory.
    pub(crate) fn with<T>(
        &self,
        offset: usize,
        length: usize,
        body: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let start = self.range(offset, length)?;
        let _guard = self.0.raw.lock();
        if self.0.is_exposed.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: valid initialised bytes, which the lock keeps other threads from, and peers do not access.
        Some(body(unsafe { std::slice::from_raw_parts_mut(start, length) }))
    }

    /// The start of a range, if it is inside the memory.
    fn range(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: at most the length, so the result lies inside the memory or one past its end.
        (end <= self.len()).then(|| unsafe { self.0.pointer.as_ptr().add(offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl RegionMemory {
        /// Memory that nobody else has.
        pub(crate) fn of_zeroes(length: usize) -> Self {
            let mut raw = vec![0u8; length];
            let pointer = NonNull::new(raw.as_mut_ptr()).unwrap();
            // SAFETY: the vector's own bytes, which it keeps; nobody else has it.
            unsafe { Shared::new(pointer, length, raw) }.into()
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies from a shared slice through atomics, which are assembly elsewhere")]
    fn copies_stay_inside_memory_that_is_open() {
        let memory = RegionMemory::of_zeroes(8);
        memory.open_to_the_outside();
        check_copies(&memory);
    }

    #[test]
    fn copies_stay_inside() {
        let memory = RegionMemory::of_zeroes(8);
        check_copies(&memory);
        assert_eq!(memory.with(8, 0, |bytes| bytes.len()), Some(0));
        assert_eq!(memory.with(8, 1, |bytes| bytes.len()), None);
    }

    fn check_copies(memory: &RegionMemory) {
        memory.write(2, &[1, 2, 3]);
        memory.write(6, &[9, 9, 9]);
        memory.write(usize::MAX, &[9, 9]);
        let mut seen = [7; 8];
        memory.read(0, &mut seen);
        assert_eq!(seen, [0, 0, 1, 2, 3, 0, 0, 0]);
        memory.read(1, &mut seen);
        assert_eq!(seen[0], 0, "nothing is read where not all is there");
        memory.clear();
        memory.read(0, &mut seen);
        assert_eq!(seen, [0; 8]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies from a shared slice through atomics, which are assembly elsewhere")]
    fn memory_of_any_length_becomes_zero() {
        for length in [0, 1, 4095, 4096, 4097, 10_000] {
            let memory = RegionMemory::of_zeroes(length);
            memory.write(0, &vec![7; length]);
            memory.open_to_the_outside();
            memory.clear();
            let mut seen = vec![7; length];
            memory.read(0, &mut seen);
            assert!(seen.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nobody_has_a_reference_to_what_is_reached_from_outside() {
        let memory = RegionMemory::of_zeroes(8);
        assert_eq!(memory.with(0, 8, |bytes| bytes.len()), Some(8));
        memory.open_to_the_outside();
        assert_eq!(memory.with(0, 8, |bytes| bytes.len()), None);
    }
}
