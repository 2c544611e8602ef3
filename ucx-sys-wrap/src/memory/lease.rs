//! Memory lent to a transport for the time of one operation.

use std::fmt;
use std::ptr::NonNull;
use std::slice;

/// Bytes that a transport may read until it gives the lease back.
///
/// Invariants: `pointer` is valid for reads of `length` bytes, and nobody writes them, until the lease has
/// been given back (or for ever, if it never is). Whoever makes a lease guarantees both.
pub struct ReadLease {
    pointer: NonNull<u8>,
    length: usize,
}

/// Bytes that a transport may read and write until it gives the lease back.
///
/// Invariants: `pointer` is valid for reads and writes of `length` initialised bytes, and nobody else touches
/// them, until the lease has been given back (or for ever, if it never is). Whoever makes a lease guarantees
/// both.
pub struct WriteLease {
    pointer: NonNull<u8>,
    length: usize,
}

impl ReadLease {
    /// Lends `length` bytes at `pointer`.
    ///
    /// # Safety
    /// The invariants of [`ReadLease`] hold from now on.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize) -> Self {
        Self { pointer, length }
    }

    /// The first `middle` bytes, and the rest if there is any.
    pub(crate) fn split_at(self, middle: usize) -> (Self, Option<Self>) {
        if middle >= self.length {
            return (self, None);
        }
        // SAFETY: `middle` is less than the length, so the result lies inside the memory.
        let rest = unsafe { self.pointer.add(middle) };
        let rest = Self { pointer: rest, length: self.length - middle };
        (Self { pointer: self.pointer, length: middle }, Some(rest))
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: whoever made the lease guarantees that the bytes are valid and unchanged while it exists.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl WriteLease {
    /// Lends `length` bytes at `pointer`.
    ///
    /// # Safety
    /// The invariants of [`WriteLease`] hold from now on.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize) -> Self {
        Self { pointer, length }
    }

    /// Where the bytes lie.
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The bytes, to write.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: whoever made the lease guarantees that the bytes are valid and that nobody else touches
        // them.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

// SAFETY: a lease is the right to read bytes that nobody writes; that right may move to another thread.
unsafe impl Send for ReadLease {}
// SAFETY: a shared lease only reads.
unsafe impl Sync for ReadLease {}
// SAFETY: a lease is the sole right to touch its bytes; that right may move to another thread.
unsafe impl Send for WriteLease {}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadLease({} bytes)", self.length)
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLease({} bytes)", self.length)
    }
}
