//! A buffer that is read only and shared: one memory in many sends.

use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{Buffer, SendBuffer};
use super::pooled::PoolBuffer;
use crate::memory::ReadLease;
use crate::transport::SendParts;

/// A frozen [`PoolBuffer`], or a piece of one: cheaply cloned, so that many sends have it at once. The memory
/// goes back to the pool with the last clone.
pub struct SharedBuffer<T> {
    buffer: Arc<PoolBuffer<T>>,
    range: Range<usize>,
}

impl<T> SharedBuffer<T> {
    /// All of `buffer`.
    pub(super) fn new(buffer: PoolBuffer<T>) -> Self {
        Self { range: 0..buffer.len(), buffer: Arc::new(buffer) }
    }

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
