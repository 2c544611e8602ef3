//! A pool of page-aligned memory: taken as buffers, and given back by dropping them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use parking_lot::Mutex;

use super::pages::{HUGE_PAGE_BYTES, PAGE_BYTES, Pages};
use super::pooled::PoolBuffer;
use crate::{Error, Result};

/// The default limit of unused bytes that a pool keeps.
const DEFAULT_KEPT_BYTES: usize = 256 << 20;

/// Reusable page-aligned memory for buffers.
///
/// Buffers of 2 MiB and more lie on huge pages if available ([`HugePages`](super::HugePages)): reserved ones,
/// else transparent ones. New memory is zeroed by the kernel; reused memory holds what its last user left.
/// Sizes are rounded up by at most a quarter (at least to 4 KiB, and to 2 MiB from there on), so that buffers
/// of similar length share memory. Taking and dropping a buffer costs a lock and a short search; new memory
/// costs a system call and the kernel's zeroing.
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

/// The contents and counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatistics {
    /// Bytes mapped from the kernel, used or unused.
    pub mapped_bytes: u64,
    /// Unused bytes among them.
    pub kept_bytes: u64,
    /// Buffers taken.
    pub taken: u64,
    /// Buffers taken whose memory had been used before.
    pub reused: u64,
}

pub(super) struct Inner {
    state: Mutex<State>,
    most_kept_bytes: usize,
}

#[derive(Default)]
struct State {
    /// Unused pages by their length.
    kept: BTreeMap<usize, Vec<Pages>>,
    statistics: PoolStatistics,
}

impl Pool {
    /// A pool that keeps at most 256 MiB of unused memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with_kept_bytes(DEFAULT_KEPT_BYTES)
    }

    /// A pool that keeps at most `most_kept_bytes` of unused memory; the rest goes back to the kernel.
    #[must_use]
    pub fn with_kept_bytes(most_kept_bytes: usize) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), most_kept_bytes }))
    }

    /// Takes a buffer of `length` elements with unspecified values.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory.
    pub fn take<T: Pod>(&self, length: usize) -> Result<PoolBuffer<T>> {
        Ok(self.take_pages(length)?.0)
    }

    /// Takes a buffer of `length` zeroes; writes them only if the memory was used before.
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

    /// The contents and counters of the pool.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.0.state.lock().statistics
    }

    /// Returns a buffer, and whether its memory was used before.
    fn take_pages<T: Pod>(&self, length: usize) -> Result<(PoolBuffer<T>, bool)> {
        let none = || {
            Error::system(format!("can't get memory for {length} elements"), std::io::ErrorKind::OutOfMemory)
        };
        let rounded = length.checked_mul(size_of::<T>()).and_then(rounded).ok_or_else(none)?;
        let buffer = |pages| PoolBuffer::new(pages, length, &self.0);
        let mut state = self.0.state.lock();
        state.statistics.taken += 1;
        if rounded == 0 {
            return Ok((buffer(None), false));
        }
        if let Some(pages) = state.kept.get_mut(&rounded).and_then(Vec::pop) {
            state.statistics.kept_bytes -= rounded as u64;
            state.statistics.reused += 1;
            return Ok((buffer(Some(pages)), true));
        }
        drop(state);
        let pages = Pages::map(rounded).ok_or_else(none)?;
        self.0.state.lock().statistics.mapped_bytes += rounded as u64;
        Ok((buffer(Some(pages)), false))
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

impl Inner {
    pub(super) fn give_back(&self, pages: Pages) {
        let mut state = self.state.lock();
        if state.statistics.kept_bytes as usize + pages.length > self.most_kept_bytes {
            state.statistics.mapped_bytes -= pages.length as u64;
            drop(state);
            // Unmapped here, without the lock.
            drop(pages);
            return;
        }
        state.statistics.kept_bytes += pages.length as u64;
        state.kept.entry(pages.length).or_default().push(pages);
    }
}

/// The size of the pages for `bytes`: a multiple of a quarter of its power of two, in whole pages, or whole
/// huge pages from 2 MiB on.
fn rounded(bytes: usize) -> Option<usize> {
    let quarter = bytes.checked_ilog2().map_or(0, |power| (1usize << power) / 4);
    let unit = if bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
    let rounded = bytes.checked_next_multiple_of(quarter.max(unit))?;
    (rounded <= isize::MAX as usize).then_some(rounded)
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
        assert_eq!(
            (statistics.mapped_bytes, statistics.kept_bytes),
            (16 << 10, 16 << 10),
            "the third went back"
        );
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
        if crate::buffer::HugePages::find() != crate::buffer::HugePages::None && !cfg!(miri) {
            assert_eq!(buffer.as_ptr() as usize % (2 << 20), 0);
        }
        drop(buffer);
        assert_eq!(pool.statistics().kept_bytes, 4 << 20);
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
}
