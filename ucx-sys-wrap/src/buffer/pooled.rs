//! A buffer of a pool.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{RecvBuffer, self_contained_buffer};
use super::pages::Pages;
use super::pool::Inner;
use super::shared::SharedBuffer;
use crate::memory::WriteLease;
use crate::transport::RecvParts;

/// An exclusively owned buffer of a [`Pool`](super::Pool). Dropping it gives its memory back to the pool.
///
/// It can be sent, received into, and registered as a [`Region`](super::Region).
pub struct PoolBuffer<T> {
    /// `None` for a buffer without bytes.
    pages: Option<ManuallyDrop<Pages>>,
    length: usize,
    pool: Arc<Inner>,
    element: PhantomData<T>,
}

impl<T> PoolBuffer<T> {
    /// A buffer of `length` elements in `pages` of `pool`, which must be large enough.
    pub(super) fn new(pages: Option<Pages>, length: usize, pool: &Arc<Inner>) -> Self
    where
        T: Pod,
    {
        let held = pages.as_ref().map_or(0, |pages| pages.length);
        assert!(
            length.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= held),
            "{length} elements in {held} bytes"
        );
        Self { pages: pages.map(ManuallyDrop::new), length, pool: Arc::clone(pool), element: PhantomData }
    }

    pub(super) fn pointer(&self) -> NonNull<T> {
        self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.pointer.cast())
    }

    /// The same memory as bytes.
    pub(super) fn into_bytes(mut self) -> PoolBuffer<u8>
    where
        T: Pod,
    {
        let (length, pool) = (self.length * size_of::<T>(), Arc::clone(&self.pool));
        PoolBuffer { pages: self.pages.take(), length, pool, element: PhantomData }
    }

    /// Makes the buffer read-only and cheap to clone, without copying.
    #[must_use]
    pub fn freeze(self) -> SharedBuffer<T> {
        SharedBuffer::new(self)
    }

    /// Shortens the buffer to at most `length` elements, without moving memory.
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

// SAFETY: it exclusively owns its elements, like a `Vec<T>`.
unsafe impl<T: Send> Send for PoolBuffer<T> {}
// SAFETY: a shared buffer gives only shared access to its elements.
unsafe impl<T: Sync> Sync for PoolBuffer<T> {}

impl<T> Deref for PoolBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the pages hold this many elements (`new`), initialised because any bytes are a `T: Pod`,
        // and belong to this buffer alone.
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

self_contained_buffer!(PoolBuffer<T>, [T: Pod + Send + Sync], |buffer| bytemuck::cast_slice(buffer));

// SAFETY: the buffer exclusively owns its elements.
unsafe impl<T: Pod + Send + Sync> RecvBuffer for PoolBuffer<T> {
    unsafe fn lend(raw: &mut Self, parts: &mut RecvParts) {
        // SAFETY: the buffer does not use its elements while they are lent; any bytes are a valid element.
        parts.push(unsafe { WriteLease::new(raw.pointer().cast(), raw.length * size_of::<T>()) });
    }
}
