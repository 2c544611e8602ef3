//! The memory of regions, which peers read and write.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::shm::copy_shared;

/// A region's memory as a transport has it: it copies in and out, and nothing else touches the bytes
/// meanwhile but what reaches them from outside: peers, or UCX on their behalf.
#[derive(Clone)]
pub struct RegionMemory(Arc<dyn Shareable>);

/// A buffer that several hold and nobody has a reference to.
///
/// Invariants: `pointer` is valid for reads and writes of `length` initialised bytes for as long as `raw`
/// lives, which is as long as this. Threads of this process touch the bytes only while they hold the lock of
/// `raw`, but by raw pointers, as peers do, once `is_reached_from_outside` is set. References to the bytes
/// are made under the lock, and never after that.
pub(crate) struct Shared<R> {
    pointer: NonNull<u8>,
    length: usize,
    raw: Mutex<R>,
    is_reached_from_outside: AtomicBool,
}

// SAFETY: the pointer is into memory that `raw` owns, which may move between threads (`R: Send`); what is
// shared is touched under a lock.
unsafe impl<R: Send> Send for Shared<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for Shared<R> {}

/// [`Shared`] without its type.
trait Shareable: Send + Sync {
    fn pointer(&self) -> NonNull<u8>;
    fn length(&self) -> usize;
    fn is_reached_from_outside(&self) -> &AtomicBool;
    /// Calls `body` while no other thread touches the bytes.
    fn locked(&self, body: &mut dyn FnMut());
}

impl<R: Send + 'static> Shared<R> {
    /// Memory that this process alone reaches, until it is [opened](RegionMemory::open_to_the_outside).
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `length` initialised bytes for as long as `raw` lives, and
    /// nothing else touches them.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize, raw: R) -> Arc<Self> {
        let is_reached_from_outside = AtomicBool::new(false);
        Arc::new(Self { pointer, length, raw: Mutex::new(raw), is_reached_from_outside })
    }

    /// What keeps the memory.
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
    /// Memory that peers reach by themselves; makes it zero.
    ///
    /// # Safety
    /// `length` bytes from `pointer` on are valid for reads and writes until the process ends, and this
    /// process touches them through this and its clones alone.
    pub(crate) unsafe fn forever(pointer: NonNull<u8>, length: usize) -> Self {
        let is_reached_from_outside = AtomicBool::new(true);
        let memory = Self(Arc::new(Shared { pointer, length, raw: Mutex::new(()), is_reached_from_outside }));
        memory.clear();
        memory
    }

    /// No memory.
    pub(crate) fn none() -> Self {
        // SAFETY: no bytes.
        unsafe { Shared::new(NonNull::dangling(), 0, ()) }.into()
    }

    /// Bytes of memory.
    pub(crate) fn len(&self) -> usize {
        self.0.length()
    }

    /// Where it lies; peers that are told reach it by themselves from now on.
    pub(crate) fn open_to_the_outside(&self) -> NonNull<u8> {
        // Whoever has a reference holds the lock.
        self.0.locked(&mut || self.0.is_reached_from_outside().store(true, Ordering::Relaxed));
        self.0.pointer()
    }

    /// Where so many bytes lie, of memory that is [open to the outside](Self::open_to_the_outside), for those
    /// who touch them by raw pointers alone; `None` unless they are there.
    pub(crate) fn outside(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        debug_assert!(self.0.is_reached_from_outside().load(Ordering::Relaxed), "there may be references");
        NonNull::new(self.place(offset, length)?)
    }

    /// Copies bytes in. Does nothing unless they fit.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        if let Some(place) = self.place(offset, from.len()) {
            // SAFETY: `place` points at as many bytes of this memory, and `from` is no part of them: nobody
            // has a reference to them.
            self.0.locked(&mut || unsafe { self.copy(from.as_ptr(), place, from.len()) });
        }
    }

    /// Makes all bytes zero.
    pub(crate) fn clear(&self) {
        const ZEROES: [u8; 4096] = [0; 4096];
        for offset in (0..self.len()).step_by(ZEROES.len()) {
            self.write(offset, &ZEROES[..ZEROES.len().min(self.len() - offset)]);
        }
    }

    /// Copies bytes out. Does nothing unless they are there.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(place) = self.place(offset, into.len()) {
            // SAFETY: as in `write`.
            self.0.locked(&mut || unsafe { self.copy(place, into.as_mut_ptr(), into.len()) });
        }
    }

    /// Copies into or out of the memory. Once it is reached from outside, other processes write it meanwhile:
    /// the compiler must not see that race, so the copy is one that it knows nothing about.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `bytes` bytes; one of them lies in this memory, the other
    /// outside of it. Other threads stay out of both: the caller has the lock.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        if self.0.is_reached_from_outside().load(Ordering::Relaxed) {
            // SAFETY: the caller guarantees both ranges.
            unsafe { copy_shared(from, to, bytes) };
        } else {
            // SAFETY: as above, and nobody else touches them.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }

    /// Gives the bytes at `offset` to `body`; `None` unless they are there, and for memory that is reached
    /// from outside.
    pub(crate) fn with<T>(
        &self,
        offset: usize,
        length: usize,
        body: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let place = self.place(offset, length)?;
        let (mut body, mut result) = (Some(body), None);
        self.0.locked(&mut || {
            if self.0.is_reached_from_outside().load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: valid initialised bytes that other threads stay out of (the lock) and nobody else
            // reaches.
            let bytes = unsafe { std::slice::from_raw_parts_mut(place, length) };
            result = body.take().map(|body| body(bytes));
        });
        result
    }

    fn place(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: at most the length, so it lies inside the memory or one past its end.
        (end <= self.len()).then(|| unsafe { self.0.pointer().as_ptr().add(offset) })
    }
}

impl<R: Send> Shareable for Shared<R> {
    fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    fn length(&self) -> usize {
        self.length
    }

    fn is_reached_from_outside(&self) -> &AtomicBool {
        &self.is_reached_from_outside
    }

    fn locked(&self, body: &mut dyn FnMut()) {
        let _guard = self.raw.lock();
        body();
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
