//! Page-aligned buffers that are used again: taken from a pool, sent or received, shared, and given back by dropping.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;
use parking_lot::Mutex;

use super::lease::{ReadLease, WriteLease};
use super::memory::{Buffer, RecvBuffer, SendBuffer};
use super::pages::{HUGE_PAGE_BYTES, Kind, PAGE_BYTES, Pages};
use crate::transport::{RecvParts, SendParts};
use crate::{Error, Result};

/// Unless told otherwise, a pool keeps so many bytes that nobody uses.
const DEFAULT_KEPT_BYTES: usize = 256 << 20;

/// Memory for buffers, in whole pages, that is used again.
///
/// Buffers of 2 MiB and more lie on huge pages where the kernel has them ([`HugePages`](super::HugePages)): set-aside
/// ones if any are free, else transparent ones. Memory comes zeroed from the kernel when it is first used, and is not
/// touched again: a buffer that is used again holds what its last user left. Sizes are rounded up by at most a quarter (to
/// 4 KiB, and to 2 MiB from there on), so that buffers of nearly the same length share memory. Taking and dropping one cost
/// a lock and a search in a short list; the first use costs a system call and the kernel's zeroing.
///
/// Clones are handles of the same pool. Buffers may outlive it.
///
/// ```
/// use ucx_sys_wrap::buffer::Pool;
///
/// let pool = Pool::new();
/// let mut gradient = pool.take::<f32>(1000)?;
/// gradient.fill(0.5);
/// let address = gradient.as_ptr();
/// let shared = gradient.freeze(); // cheaply cloned: one buffer in many sends
/// assert_eq!(shared.clone()[999], 0.5);
/// drop(shared);
/// assert_eq!(pool.take::<f32>(900)?.as_ptr(), address);
/// # Ok::<(), ucx_sys_wrap::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// What a pool has and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes that the pool has from the kernel, in use or not.
    pub mapped_bytes: u64,
    /// Bytes of them that nobody uses.
    pub kept_bytes: u64,
    /// Bytes of them on huge pages that were set aside.
    pub reserved_huge_bytes: u64,
    /// Bytes of them on which the kernel was asked for transparent huge pages.
    pub advised_huge_bytes: u64,
    /// Buffers taken.
    pub taken: u64,
    /// Buffers of those whose memory had been used before.
    pub reused: u64,
}

struct Inner {
    state: Mutex<State>,
    most_kept_bytes: usize,
}

#[derive(Default)]
struct State {
    /// Pages that nobody uses, by their length.
    kept: BTreeMap<usize, Vec<Pages>>,
    statistics: PoolStatistics,
}

/// A buffer of a [`Pool`]: a slice that its holder alone has. Dropped, its memory goes back to the pool.
///
/// Can be sent, received into, and registered as a [`Region`](super::Region).
pub struct PoolBuffer<T> {
    /// `None` for a buffer without bytes.
    pages: Option<ManuallyDrop<Pages>>,
    length: usize,
    pool: Arc<Inner>,
    element: PhantomData<T>,
}

/// A frozen [`PoolBuffer`], or a piece of one: cheaply cloned, so that many sends have it at once. The memory goes back to
/// the pool with the last clone.
pub struct SharedBuffer<T> {
    buffer: Arc<PoolBuffer<T>>,
    range: Range<usize>,
}

impl Pool {
    /// A pool that keeps at most 256 MiB that nobody uses.
    #[must_use]
    pub fn new() -> Self {
        Self::with_kept_bytes(DEFAULT_KEPT_BYTES)
    }

    /// A pool that keeps at most so many bytes that nobody uses; what comes back beyond that goes to the kernel.
    #[must_use]
    pub fn with_kept_bytes(most_kept_bytes: usize) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), most_kept_bytes }))
    }

    /// A buffer of `length` elements. What they are is unspecified: zero, or what the memory was last used for.
    ///
    /// # Errors
    /// [`Error::System`] when there is no memory.
    pub fn take<T: Pod>(&self, length: usize) -> Result<PoolBuffer<T>> {
        Ok(self.take_pages(length)?.0)
    }

    /// A buffer of `length` zeroes; costs writing them only where the memory was used before.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub fn take_zeroed<T: Pod>(&self, length: usize) -> Result<PoolBuffer<T>> {
        let (mut buffer, is_reused) = self.take_pages(length)?;
        if is_reused {
            bytemuck::cast_slice_mut::<T, u8>(&mut buffer).fill(0);
        }
        Ok(buffer)
    }

    /// What the pool has and has done.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.0.state.lock().statistics
    }

    /// A buffer, and whether its memory was used before.
    fn take_pages<T: Pod>(&self, length: usize) -> Result<(PoolBuffer<T>, bool)> {
        let none = || Error::system(format!("can't get memory for {length} elements"), std::io::ErrorKind::OutOfMemory);
        let rounded = length.checked_mul(size_of::<T>()).and_then(rounded).ok_or_else(none)?;
        let mut buffer = PoolBuffer { pages: None, length, pool: Arc::clone(&self.0), element: PhantomData };
        let mut state = self.0.state.lock();
        state.statistics.taken += 1;
        if rounded == 0 {
            return Ok((buffer, false));
        }
        if let Some(pages) = state.kept.get_mut(&rounded).and_then(Vec::pop) {
            state.statistics.kept_bytes -= rounded as u64;
            state.statistics.reused += 1;
            buffer.pages = Some(ManuallyDrop::new(pages));
            return Ok((buffer, true));
        }
        drop(state);
        let pages = Pages::map(rounded).ok_or_else(none)?;
        self.0.state.lock().statistics.count(&pages, u64::wrapping_add);
        buffer.pages = Some(ManuallyDrop::new(pages));
        Ok((buffer, false))
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

impl PoolStatistics {
    /// Adds or takes away what these pages are.
    fn count(&mut self, pages: &Pages, change: impl Fn(u64, u64) -> u64) {
        let bytes = pages.length as u64;
        self.mapped_bytes = change(self.mapped_bytes, bytes);
        match pages.kind {
            Kind::Ordinary => {}
            Kind::Advised => self.advised_huge_bytes = change(self.advised_huge_bytes, bytes),
            Kind::Reserved => self.reserved_huge_bytes = change(self.reserved_huge_bytes, bytes),
        }
    }
}

impl Inner {
    /// Takes pages back.
    fn give_back(&self, pages: Pages) {
        let mut state = self.state.lock();
        if state.statistics.kept_bytes as usize + pages.length > self.most_kept_bytes {
            state.statistics.count(&pages, u64::wrapping_sub);
            drop(state);
            // Unmapped here, without the lock.
            drop(pages);
            return;
        }
        state.statistics.kept_bytes += pages.length as u64;
        state.kept.entry(pages.length).or_default().push(pages);
    }
}

/// Bytes of pages for a buffer of so many: quarters of powers of two, whole pages, whole huge pages from 2 MiB on.
fn rounded(bytes: usize) -> Option<usize> {
    let quarter = bytes.checked_ilog2().map_or(0, |power| (1usize << power) / 4);
    let unit = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
    let rounded = bytes.checked_next_multiple_of(quarter.max(unit))?;
    (rounded <= isize::MAX as usize).then_some(rounded)
}

impl<T> PoolBuffer<T> {
    fn pointer(&self) -> NonNull<T> {
        self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.pointer.cast())
    }

    /// Makes the buffer one that is only read, and cheaply cloned. Copies nothing.
    #[must_use]
    pub fn freeze(self) -> SharedBuffer<T> {
        SharedBuffer { range: 0..self.length, buffer: Arc::new(self) }
    }

    /// Shortens the buffer to its first `length` elements, if it is longer; its memory stays as it is.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl<T> Drop for PoolBuffer<T> {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            self.pool.give_back(ManuallyDrop::into_inner(pages));
        }
    }
}

// SAFETY: the sole right to its elements, as a `Vec<T>` is.
unsafe impl<T: Send> Send for PoolBuffer<T> {}
// SAFETY: shared, it only gives shared access to its elements.
unsafe impl<T: Sync> Sync for PoolBuffer<T> {}

impl<T> Deref for PoolBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the pages hold so many elements (`take_pages`), initialised because any bytes are a `T: Pod`, and this
        // is their sole owner.
        unsafe { slice::from_raw_parts(self.pointer().as_ptr(), self.length) }
    }
}

impl<T> DerefMut for PoolBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.pointer().as_ptr(), self.length) }
    }
}

impl<T: fmt::Debug> fmt::Debug for PoolBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: PartialEq> PartialEq for PoolBuffer<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T> SharedBuffer<T> {
    /// A piece of this buffer. Copies nothing.
    ///
    /// # Panics
    /// When the range does not lie inside the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "elements {range:?} of {}",
            self.range.len()
        );
        let start = self.range.start;
        Self { buffer: Arc::clone(&self.buffer), range: start + range.start..start + range.end }
    }

    /// The buffer to write again, if nobody else has a clone.
    ///
    /// # Errors
    /// `self`, if somebody has, or if it is a piece.
    pub fn thaw(self) -> std::result::Result<PoolBuffer<T>, Self> {
        let Self { buffer, range } = self;
        if range != (0..buffer.length) {
            return Err(Self { buffer, range });
        }
        Arc::try_unwrap(buffer).map_err(|buffer| Self { buffer, range })
    }
}

impl<T> Clone for SharedBuffer<T> {
    fn clone(&self) -> Self {
        Self { buffer: Arc::clone(&self.buffer), range: self.range.clone() }
    }
}

impl<T> Deref for SharedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer[self.range.clone()]
    }
}

impl<T: fmt::Debug> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: moving the buffer does not touch its elements, which lie on pages of their own.
unsafe impl<T: Pod + Send + Sync> Buffer for PoolBuffer<T> {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}

// SAFETY: nobody else has the elements.
unsafe impl<T: Pod + Send + Sync> SendBuffer for PoolBuffer<T> {
    unsafe fn lend(raw: &Self, parts: &mut SendParts) {
        // SAFETY: the buffer has the sole right to its elements and does not use it while it is lent.
        parts.push(unsafe { ReadLease::new(raw.pointer().cast(), raw.length * size_of::<T>()) });
    }
}

// SAFETY: nobody else has the elements.
unsafe impl<T: Pod + Send + Sync> RecvBuffer for PoolBuffer<T> {
    unsafe fn lend(raw: &mut Self, parts: &mut RecvParts) {
        // SAFETY: as for sends; any bytes are a valid element.
        parts.push(unsafe { WriteLease::new(raw.pointer().cast(), raw.length * size_of::<T>()) });
    }
}

// SAFETY: sharing gives shared access only, and the elements stay where they are.
unsafe impl<T: Pod + Send + Sync> Buffer for SharedBuffer<T> {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}

// SAFETY: what is shared is not written.
unsafe impl<T: Pod + Send + Sync> SendBuffer for SharedBuffer<T> {
    unsafe fn lend(raw: &Self, parts: &mut SendParts) {
        let bytes = bytemuck::cast_slice::<T, u8>(raw);
        // SAFETY: the count keeps the elements, and nobody writes them while there is one.
        parts.push(unsafe { ReadLease::new(NonNull::from(bytes).cast(), bytes.len()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_by_a_quarter_at_most() {
        assert_eq!(rounded(0), Some(0));
        assert_eq!((rounded(1), rounded(4096), rounded(4097)), (Some(4096), Some(4096), Some(8192)));
        assert_eq!(rounded((2 << 20) + 1), Some(4 << 20));
        assert_eq!((rounded(usize::MAX), rounded(isize::MAX as usize)), (None, None));
        for power in 12..40 {
            for bytes in [1usize << power, (1 << power) + 1, 3 << (power - 1), (1 << power) - 1] {
                let (rounded, unit) = (rounded(bytes).unwrap(), if bytes < 2 << 20 { 4096 } else { 2 << 20 });
                assert!(rounded >= bytes && rounded < bytes + (bytes / 4).max(unit), "{bytes} to {rounded}");
                assert_eq!(rounded % unit, 0);
            }
        }
    }

    #[test]
    fn memory_is_used_again_up_to_the_bound() {
        let pool = Pool::with_kept_bytes(16 << 10);
        let buffers: Vec<_> = (0..3).map(|_| pool.take::<u8>(8 << 10).unwrap()).collect();
        assert_eq!(pool.statistics().mapped_bytes, 24 << 10);
        drop(buffers);
        let statistics = pool.statistics();
        assert_eq!((statistics.mapped_bytes, statistics.kept_bytes), (16 << 10, 16 << 10), "the third went back");
        let buffer = pool.take::<u64>(1000).unwrap();
        assert_eq!(buffer.len(), 1000);
        let statistics = pool.statistics();
        assert_eq!((statistics.taken, statistics.reused, statistics.kept_bytes), (4, 1, 8 << 10));
        drop(pool);
        assert_eq!(buffer.as_ptr() as usize % 4096, 0, "a buffer outlives its pool");
    }

    #[test]
    fn memory_is_zeroed_when_asked_for_and_not_otherwise() {
        let pool = Pool::new();
        let mut buffer = pool.take::<u32>(5000).unwrap();
        assert!(buffer.iter().all(|element| *element == 0), "the kernel's memory is zero");
        buffer.fill(7);
        drop(buffer);
        assert!(pool.take::<u32>(5000).unwrap().iter().all(|element| *element == 7));
        assert!(pool.take_zeroed::<u32>(5000).unwrap().iter().all(|element| *element == 0));
    }

    #[test]
    fn large_buffers_lie_on_huge_pages_if_there_are_any() {
        let pool = Pool::new();
        let mut buffer = pool.take::<f32>(1 << 20).unwrap();
        buffer.fill(1.0);
        let statistics = pool.statistics();
        let huge = statistics.reserved_huge_bytes + statistics.advised_huge_bytes;
        if crate::buffer::HugePages::find() != crate::buffer::HugePages::None && !cfg!(miri) {
            assert_eq!(huge, 4 << 20);
            assert_eq!(buffer.as_ptr() as usize % (2 << 20), 0);
        }
        drop(buffer);
        assert_eq!(pool.statistics().kept_bytes, 4 << 20);
    }

    #[test]
    fn a_frozen_buffer_is_shared_sliced_and_thawed() {
        let pool = Pool::new();
        let mut buffer = pool.take::<u16>(10).unwrap();
        buffer.copy_from_slice(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let address = buffer.as_ptr();
        let shared = buffer.freeze();
        let piece = shared.slice(3..7).slice(1..3);
        assert_eq!(piece[..], [4, 5]);
        let shared = shared.thaw().unwrap_err();
        let piece = piece.thaw().unwrap_err();
        drop(piece);
        let buffer = shared.thaw().unwrap();
        assert_eq!(buffer.as_ptr(), address);
        assert_eq!(pool.statistics().kept_bytes, 0);
        drop(buffer);
        assert_eq!(pool.statistics().kept_bytes, 4096);
    }

    #[test]
    fn no_elements_take_no_memory() {
        let pool = Pool::new();
        let mut buffer = pool.take::<u64>(0).unwrap();
        assert!(buffer.is_empty() && buffer.iter_mut().next().is_none());
        assert_eq!(buffer.freeze().len(), 0);
        assert_eq!(pool.statistics().mapped_bytes, 0);
        assert!(matches!(pool.take::<u64>(usize::MAX / 2), Err(Error::System { .. })));
    }

    #[test]
    #[should_panic(expected = "elements 3..11 of 10")]
    fn a_piece_lies_inside() {
        let _ = Pool::new().take::<u8>(10).unwrap().freeze().slice(3..11);
    }
}
