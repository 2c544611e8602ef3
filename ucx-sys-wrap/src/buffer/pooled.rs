//! A buffer of a pool: sent, received into, registered, frozen, and given back by dropping.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{Buffer, RecvBuffer, SendBuffer};
use super::pages::Pages;
use super::pool::Inner;
use super::shared::SharedBuffer;
use crate::memory::{ReadLease, WriteLease};
use crate::transport::{RecvParts, SendParts};

/// A buffer of a [`Pool`](super::Pool): a slice that its holder alone has. Dropped, its memory goes back to
/// the pool.
///
/// Can be sent, received into, and registered as a [`Region`](super::Region).
pub struct PoolBuffer<T> {
    /// `None` for a buffer without bytes.
    pages: Option<ManuallyDrop<Pages>>,
    length: usize,
    pool: Arc<Inner>,
    element: PhantomData<T>,
}

impl<T> PoolBuffer<T> {
    /// A buffer of `length` elements in `pages` of `pool`, which are large enough and hold any bytes of a `T:
    /// Pod`.
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

    fn pointer(&self) -> NonNull<T> {
        self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.pointer.cast())
    }

    /// Makes the buffer one that is only read, and cheaply cloned. Copies nothing.
    #[must_use]
    pub fn freeze(self) -> SharedBuffer<T> {
        SharedBuffer::new(self)
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
        // SAFETY: the pages hold so many elements (`new`), initialised because any bytes are a `T: Pod`, and
        // this is their sole owner.
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
