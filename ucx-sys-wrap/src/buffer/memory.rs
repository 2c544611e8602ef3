//! What can be sent and received into: slices, vectors, shared vectors, `Bytes`, and tuples of them.
//!
//! An operation takes a buffer by value and gives it back when it has ended. In between it holds the raw
//! parts of the buffer, so that moving the operation does not count as an access to the memory.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bytemuck::Pod;
use bytes::Bytes;

use crate::memory::{ReadLease, WriteLease};
use crate::transport::{RecvParts, SendParts};

/// Memory that can be given to an operation and taken back.
///
/// # Safety
/// `from_raw(into_raw(buffer))` is `buffer`. In between, the leased memory stays valid and at its address
/// even if the raw parts are moved. Only the holder of a lease writes it, or reads it if the lease is a write
/// lease.
pub unsafe trait Buffer: Sized + Send {
    /// The buffer while an operation has it.
    type Raw: Send;

    /// Takes the buffer apart.
    fn into_raw(self) -> Self::Raw;

    /// Puts the buffer together again.
    ///
    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw) of the same type, and all its leases have been returned.
    unsafe fn from_raw(raw: Self::Raw) -> Self;
}

/// A buffer that can be sent, of at most three parts.
///
/// # Safety
/// The leases satisfy the invariants of [`ReadLease`] while `raw` exists.
pub unsafe trait SendBuffer: Buffer {
    /// Adds a lease for each part.
    ///
    /// # Safety
    /// `raw` is neither dropped nor put together again before all leases have been returned.
    unsafe fn lend(raw: &Self::Raw, parts: &mut SendParts);
}

/// A buffer that can be received into, of at most three parts.
///
/// # Safety
/// The leases satisfy the invariants of [`WriteLease`] while `raw` exists.
pub unsafe trait RecvBuffer: Buffer {
    /// Adds a lease for each part.
    ///
    /// # Safety
    /// `raw` is neither dropped nor put together again before all leases have been returned.
    unsafe fn lend(raw: &mut Self::Raw, parts: &mut RecvParts);
}

/// The raw parts of a slice.
pub struct RawSlice<T> {
    pointer: NonNull<T>,
    length: usize,
    capacity: usize,
    element: PhantomData<T>,
}

// SAFETY: the raw parts of a slice or vector of `T` give no more than the slice or vector itself.
unsafe impl<T: Send> Send for RawSlice<T> {}

impl<T: Pod> RawSlice<T> {
    fn byte_count(&self) -> usize {
        self.length * size_of::<T>()
    }

    fn read_lease(&self) -> ReadLease {
        // SAFETY: the original buffer owns or borrows these elements while `self` exists, and nobody writes
        // them; elements without padding are initialised bytes (`Pod`).
        unsafe { ReadLease::new(self.pointer.cast(), self.byte_count()) }
    }

    fn write_lease(&mut self) -> WriteLease {
        // SAFETY: the original buffer owns or exclusively borrows these elements while `self` exists; any
        // bytes are a valid element (`Pod`).
        unsafe { WriteLease::new(self.pointer.cast(), self.byte_count()) }
    }
}

// SAFETY: the elements lie behind the reference, borrowed for longer than the operation.
unsafe impl<T: Pod + Send + Sync> Buffer for &[T] {
    type Raw = RawSlice<T>;

    fn into_raw(self) -> Self::Raw {
        RawSlice {
            pointer: NonNull::from(self).cast(),
            length: self.len(),
            capacity: 0,
            element: PhantomData,
        }
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        // SAFETY: the parts are those of a slice borrowed for this lifetime.
        unsafe { std::slice::from_raw_parts(raw.pointer.as_ptr(), raw.length) }
    }
}

// SAFETY: a shared slice is not written while it is borrowed.
unsafe impl<T: Pod + Send + Sync> SendBuffer for &[T] {
    unsafe fn lend(raw: &Self::Raw, parts: &mut SendParts) {
        parts.push(raw.read_lease());
    }
}

// SAFETY: the elements lie behind the reference, borrowed exclusively for longer than the operation.
unsafe impl<T: Pod + Send> Buffer for &mut [T] {
    type Raw = RawSlice<T>;

    fn into_raw(self) -> Self::Raw {
        let length = self.len();
        RawSlice { pointer: NonNull::from(self).cast(), length, capacity: 0, element: PhantomData }
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        // SAFETY: the parts are those of a slice borrowed exclusively for this lifetime.
        unsafe { std::slice::from_raw_parts_mut(raw.pointer.as_ptr(), raw.length) }
    }
}

// SAFETY: an exclusively borrowed slice has no other writer.
unsafe impl<T: Pod + Send> SendBuffer for &mut [T] {
    unsafe fn lend(raw: &Self::Raw, parts: &mut SendParts) {
        parts.push(raw.read_lease());
    }
}

// SAFETY: an exclusively borrowed slice has no other user.
unsafe impl<T: Pod + Send> RecvBuffer for &mut [T] {
    unsafe fn lend(raw: &mut Self::Raw, parts: &mut RecvParts) {
        parts.push(raw.write_lease());
    }
}

/// The raw parts of a vector. Dropping them frees its memory.
pub struct RawVec<T>(RawSlice<T>);

impl<T> Drop for RawVec<T> {
    fn drop(&mut self) {
        let RawSlice { pointer, length, capacity, .. } = self.0;
        // SAFETY: these are the parts of a vector, owned by `self`.
        drop(unsafe { Vec::from_raw_parts(pointer.as_ptr(), length, capacity) });
    }
}

// SAFETY: the elements lie on the heap and are owned by the raw parts.
unsafe impl<T: Pod + Send> Buffer for Vec<T> {
    type Raw = RawVec<T>;

    fn into_raw(self) -> Self::Raw {
        let (pointer, length, capacity) = vector_parts(self);
        RawVec(RawSlice { pointer, length, capacity, element: PhantomData })
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        let raw = ManuallyDrop::new(raw);
        // SAFETY: these are the parts of a vector, owned by `raw`, which is not dropped.
        unsafe { Vec::from_raw_parts(raw.0.pointer.as_ptr(), raw.0.length, raw.0.capacity) }
    }
}

// SAFETY: the raw parts own the vector.
unsafe impl<T: Pod + Send> SendBuffer for Vec<T> {
    unsafe fn lend(raw: &Self::Raw, parts: &mut SendParts) {
        parts.push(raw.0.read_lease());
    }
}

// SAFETY: the raw parts own the vector.
unsafe impl<T: Pod + Send> RecvBuffer for Vec<T> {
    unsafe fn lend(raw: &mut Self::Raw, parts: &mut RecvParts) {
        parts.push(raw.0.write_lease());
    }
}

/// Takes a vector apart into its pointer, length and capacity.
///
/// The pointer has provenance over the whole capacity, so a vector made of these parts may grow into it and
/// free it. The provenance of a pointer to the slice of elements would end with the last element.
pub(super) fn vector_parts<T>(vector: Vec<T>) -> (NonNull<T>, usize, usize) {
    let mut vector = ManuallyDrop::new(vector);
    // SAFETY: the pointer of a vector is never null.
    let pointer = unsafe { NonNull::new_unchecked(vector.as_mut_ptr()) };
    (pointer, vector.len(), vector.capacity())
}

/// Implements [`Buffer`] and [`SendBuffer`] for types that are their own raw parts.
///
/// SAFETY of each use: the type owns its elements, or a reference count of them. They lie elsewhere, so
/// moving the value does not touch them, and nobody writes them while the value exists and is not used.
macro_rules! self_contained_buffer {
    ($type:ty, [$($generics:tt)*], $bytes:expr) => {
        // SAFETY: see the macro.
        unsafe impl<$($generics)*> $crate::buffer::Buffer for $type {
            type Raw = Self;

            fn into_raw(self) -> Self {
                self
            }

            unsafe fn from_raw(raw: Self) -> Self {
                raw
            }
        }

        // SAFETY: see the macro.
        unsafe impl<$($generics)*> $crate::buffer::SendBuffer for $type {
            unsafe fn lend(raw: &Self, parts: &mut $crate::transport::SendParts) {
                let as_bytes: fn(&Self) -> &[u8] = $bytes;
                let bytes = as_bytes(raw);
                let pointer = std::ptr::NonNull::from(bytes).cast();
                // SAFETY: `raw` keeps the bytes alive and unchanged while it exists.
                parts.push(unsafe { $crate::memory::ReadLease::new(pointer, bytes.len()) });
            }
        }
    };
}
pub(super) use self_contained_buffer;

self_contained_buffer!(Bytes, [], |shared| shared);
self_contained_buffer!(Arc<Vec<T>>, [T: Pod + Send + Sync], |shared| bytemuck::cast_slice(shared));

// SAFETY: there is no memory.
unsafe impl Buffer for () {
    type Raw = ();

    fn into_raw(self) {}

    unsafe fn from_raw((): ()) {}
}

// SAFETY: there is no memory.
unsafe impl SendBuffer for () {
    unsafe fn lend((): &(), _: &mut SendParts) {}
}

// SAFETY: there is no memory.
unsafe impl RecvBuffer for () {
    unsafe fn lend((): &mut (), _: &mut RecvParts) {}
}

// SAFETY: each half satisfies the contract.
unsafe impl<A: Buffer, B: Buffer> Buffer for (A, B) {
    type Raw = (A::Raw, B::Raw);

    fn into_raw(self) -> Self::Raw {
        (self.0.into_raw(), self.1.into_raw())
    }

    unsafe fn from_raw(raw: Self::Raw) -> Self {
        // SAFETY: the caller guarantees it for both halves.
        unsafe { (A::from_raw(raw.0), B::from_raw(raw.1)) }
    }
}

// SAFETY: each half satisfies the contract.
unsafe impl<A: SendBuffer, B: SendBuffer> SendBuffer for (A, B) {
    unsafe fn lend(raw: &Self::Raw, parts: &mut SendParts) {
        // SAFETY: the caller guarantees it for both halves.
        unsafe { A::lend(&raw.0, parts) };
        // SAFETY: as above.
        unsafe { B::lend(&raw.1, parts) };
    }
}

// SAFETY: each half satisfies the contract.
unsafe impl<A: RecvBuffer, B: RecvBuffer> RecvBuffer for (A, B) {
    unsafe fn lend(raw: &mut Self::Raw, parts: &mut RecvParts) {
        // SAFETY: the caller guarantees it for both halves.
        unsafe { A::lend(&mut raw.0, parts) };
        // SAFETY: as above.
        unsafe { B::lend(&mut raw.1, parts) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_as_they_were() {
        let mut local = [1.0f32, 2.0];
        let vector = vec![1u32, 2, 3];
        let address = vector.as_ptr();
        let raw = (vector, &mut local[..]).into_raw();
        // SAFETY: just taken apart, and nothing was lent.
        let (vector, slice) = unsafe { <(Vec<u32>, &mut [f32])>::from_raw(raw) };
        assert_eq!(vector.as_ptr(), address);
        assert_eq!(vector, [1, 2, 3]);
        assert_eq!(slice, [1.0, 2.0]);
    }

    #[test]
    fn leases_name_the_bytes() {
        let mut raw = (vec![0u32; 2], Vec::<f32>::new()).into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: the leases are dropped before the raw parts are put together.
        unsafe { <(Vec<u32>, Vec<f32>) as RecvBuffer>::lend(&mut raw, &mut parts) };
        assert_eq!((parts[0].len(), parts[1].len()), (8, 0));
        parts[0].bytes_mut().copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
        drop(parts);
        // SAFETY: the leases were given back by dropping them.
        let (indices, _) = unsafe { <(Vec<u32>, Vec<f32>)>::from_raw(raw) };
        assert_eq!(indices, [1, 2]);
    }

    #[test]
    fn a_raw_vector_that_is_dropped_frees_its_memory() {
        drop(vec![7u64; 1000].into_raw());
    }

    /// Room for eight elements, one of them in use.
    fn with_spare_capacity() -> Vec<u32> {
        let mut vector = Vec::with_capacity(8);
        vector.push(1);
        vector
    }

    /// Fails under miri if the raw parts have a pointer to the slice of the elements alone.
    #[test]
    fn a_vector_keeps_its_spare_capacity() {
        drop(with_spare_capacity().into_raw());
        let mut raw = with_spare_capacity().into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: the lease is dropped before the raw parts are put together.
        unsafe { <Vec<u32> as RecvBuffer>::lend(&mut raw, &mut parts) };
        parts[0].bytes_mut().copy_from_slice(&[5, 0, 0, 0]);
        drop(parts);
        // SAFETY: the lease was given back by dropping it.
        let mut vector = unsafe { Vec::<u32>::from_raw(raw) };
        let address = vector.as_ptr();
        vector.extend([2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(vector, [5, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(vector.as_ptr(), address, "it grew into its own memory");
    }
}
