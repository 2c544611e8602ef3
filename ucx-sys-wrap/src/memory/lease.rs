//! Memory lent to a transport for the time of one operation.

use std::fmt;
use std::ptr::NonNull;
use std::slice;

/// Bytes that a transport may read until it returns the lease.
///
/// Invariants, guaranteed by the maker of the lease: `pointer` is valid for reads of `length` bytes, and
/// nobody writes them, until the lease has been returned (or for ever, if it never is).
pub struct ReadLease {
    pointer: NonNull<u8>,
    length: usize,
}

/// Bytes that a transport may read and write until it returns the lease.
///
/// Invariants, guaranteed by the maker of the lease: `pointer` is valid for reads and writes of `length`
/// initialised bytes, and nobody else accesses them, until the lease has been returned (or for ever, if it
/// never is).
pub struct WriteLease {
    pointer: NonNull<u8>,
    length: usize,
}

macro_rules! lease {
    ($name:ident) => {
        impl $name {
            /// Lends `length` bytes at `pointer`.
            ///
            /// # Safety
            /// The invariants of the type hold.
            pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize) -> Self {
                Self { pointer, length }
            }

            /// The number of bytes.
            #[must_use]
            pub fn len(&self) -> usize {
                self.length
            }

            /// Whether there are no bytes.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.length == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({} bytes)", stringify!($name), self.length)
            }
        }
    };
}

lease!(ReadLease);
lease!(WriteLease);

impl ReadLease {
    /// The first `middle` bytes, and the rest if there is one.
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
        // SAFETY: the maker of the lease guarantees that the bytes are valid and unchanged while it exists.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl WriteLease {
    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The bytes, writable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the maker of the lease guarantees that the bytes are valid and that nobody else accesses
        // them.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

// SAFETY: a lease is the right to read bytes that nobody writes, which is valid on any thread.
unsafe impl Send for ReadLease {}
// SAFETY: a shared lease only reads.
unsafe impl Sync for ReadLease {}
// SAFETY: a lease is the exclusive right to access its bytes, which is valid on any thread.
unsafe impl Send for WriteLease {}
