//! A read-only shared buffer: one memory in many sends.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::self_contained_buffer;
use super::pooled::PoolBuffer;

/// A frozen [`PoolBuffer`], or a range of one. Clones are cheap, so that many sends can share it. The memory
/// goes back to the pool with the last clone.
pub struct SharedBuffer<T> {
    buffer: Arc<PoolBuffer<T>>,
    range: Range<usize>,
}

impl<T> SharedBuffer<T> {
    pub(super) fn new(buffer: PoolBuffer<T>) -> Self {
        Self { range: 0..buffer.len(), buffer: Arc::new(buffer) }
    }

    /// A part of this buffer, without copying.
    ///
    /// # Panics
    /// When the range is not inside the buffer.
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

    /// Makes the buffer writable again, if it is whole and has no other clone.
    ///
    /// # Errors
    /// Returns `self` otherwise.
    pub fn thaw(self) -> std::result::Result<PoolBuffer<T>, Self> {
        let Self { buffer, range } = self;
        if range != (0..buffer.len()) {
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

self_contained_buffer!(SharedBuffer<T>, [T: Pod + Send + Sync], |shared| bytemuck::cast_slice(shared));

#[cfg(test)]
mod tests {
    use crate::buffer::Pool;

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
    #[should_panic(expected = "elements 3..11 of 10")]
    fn a_piece_lies_inside() {
        let _ = Pool::new().take::<u8>(10).unwrap().freeze().slice(3..11);
    }
}
