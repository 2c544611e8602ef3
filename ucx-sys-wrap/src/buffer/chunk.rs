//! Memory that is split between operations and joined again.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{Buffer, RecvBuffer, SendBuffer, vector_parts};
use crate::memory::{ReadLease, WriteLease};
use crate::transport::{RecvParts, SendParts};

/// The sole right to a stretch of elements, borrowed for `'env` or owned.
///
/// A chunk is split into disjoint chunks, which operations take and give back, and neighbours are joined
/// again, all without copying. An owned chunk frees its memory when its last piece is dropped.
///
/// Invariants: `pointer..pointer + length` lies inside `origin`, whose pointer it derives from, and no other
/// chunk of the same origin overlaps it.
pub struct Chunk<'env, T> {
    pointer: NonNull<T>,
    length: usize,
    origin: Arc<Origin<T>>,
    env: PhantomData<&'env mut [T]>,
}

/// The memory that chunks are pieces of.
struct Origin<T> {
    pointer: NonNull<T>,
    length: usize,
    /// `Some` when the memory is a vector's.
    owned_capacity: Option<usize>,
}

// SAFETY: a chunk is the sole right to its elements, as a `&mut [T]` or a `Vec<T>` is.
unsafe impl<T: Send> Send for Chunk<'_, T> {}
// SAFETY: a shared chunk only gives shared access to its elements.
unsafe impl<T: Sync> Sync for Chunk<'_, T> {}
// SAFETY: the origin itself touches the elements only to free them, when no chunk is left.
unsafe impl<T: Send> Send for Origin<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Origin<T> {}

impl<'env, T> Chunk<'env, T> {
    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first `middle` elements and the rest.
    ///
    /// # Panics
    /// When `middle` is above the length.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        assert!(middle <= self.length, "split at {middle} of {} elements", self.length);
        // SAFETY: `middle` is at most the length, so the result lies inside the origin or one past its end.
        let second = unsafe { self.pointer.add(middle) };
        let rest = Self {
            pointer: second,
            length: self.length - middle,
            origin: Arc::clone(&self.origin),
            env: PhantomData,
        };
        (Self { length: middle, ..self }, rest)
    }

    /// Splits into pieces of `lengths` elements; what is left over stays with the last.
    ///
    /// # Panics
    /// When the lengths exceed the chunk's.
    #[must_use]
    pub fn split_into(self, lengths: impl IntoIterator<Item = usize>) -> Vec<Self> {
        let mut pieces = Vec::new();
        let mut rest = self;
        for length in lengths {
            let (piece, tail) = rest.split_at(length);
            pieces.push(piece);
            rest = tail;
        }
        pieces
    }

    /// The chunk that `self` and `next` are the two halves of.
    ///
    /// # Panics
    /// When `next` is not the neighbour that `self` was split from.
    #[must_use]
    pub fn join(self, next: Self) -> Self {
        assert!(
            Arc::ptr_eq(&self.origin, &next.origin)
                && self.pointer.as_ptr().wrapping_add(self.length) == next.pointer.as_ptr(),
            "only neighbours of one chunk can be joined"
        );
        Self { length: self.length + next.length, ..self }
    }

    /// Joins pieces in order.
    ///
    /// # Panics
    /// When there is none, or they are not neighbours.
    #[must_use]
    pub fn join_all(pieces: impl IntoIterator<Item = Self>) -> Self {
        let mut pieces = pieces.into_iter();
        let first = pieces.next().unwrap_or_else(|| panic!("there is no chunk to join"));
        pieces.fold(first, Self::join)
    }

    /// An empty piece at the start, leaving the whole in its place: a placeholder while the chunk is away.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let taken = Self {
            pointer: self.pointer,
            length: self.length,
            origin: Arc::clone(&self.origin),
            env: PhantomData,
        };
        self.length = 0;
        taken
    }
}

impl<T: Clone> Chunk<'_, T> {
    /// The elements as a vector: the original one where this is the whole of an owned chunk, else a copy.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        let whole = self.pointer == self.origin.pointer && self.length == self.origin.length;
        if !whole || self.origin.owned_capacity.is_none() {
            return self.to_vec();
        }
        match Arc::try_unwrap(self.origin) {
            Ok(origin) => origin.into_vec(),
            // Empty pieces of the same origin are still about.
            // SAFETY: this chunk was the whole, so nobody else has any of its elements.
            Err(origin) => unsafe { slice::from_raw_parts(origin.pointer.as_ptr(), origin.length) }.to_vec(),
        }
    }
}

impl<T> Origin<T> {
    /// # Panics
    /// When the memory is borrowed.
    fn into_vec(self) -> Vec<T> {
        let origin = ManuallyDrop::new(self);
        let capacity = origin.owned_capacity.unwrap_or_else(|| panic!("borrowed memory is no vector"));
        // SAFETY: these are the parts of a vector, and `origin` does not free them.
        unsafe { Vec::from_raw_parts(origin.pointer.as_ptr(), origin.length, capacity) }
    }
}

impl<T> Drop for Origin<T> {
    fn drop(&mut self) {
        if let Some(capacity) = self.owned_capacity {
            // SAFETY: these are the parts of a vector, and no chunk of it is left.
            drop(unsafe { Vec::from_raw_parts(self.pointer.as_ptr(), self.length, capacity) });
        }
    }
}

impl<'env, T> From<&'env mut [T]> for Chunk<'env, T> {
    fn from(borrowed: &'env mut [T]) -> Self {
        let length = borrowed.len();
        let pointer = NonNull::from(borrowed).cast();
        let origin = Arc::new(Origin { pointer, length, owned_capacity: None });
        Self { pointer, length, origin, env: PhantomData }
    }
}

impl<T> From<Vec<T>> for Chunk<'_, T> {
    fn from(owned: Vec<T>) -> Self {
        let (pointer, length, capacity) = vector_parts(owned);
        let origin = Arc::new(Origin { pointer, length, owned_capacity: Some(capacity) });
        Self { pointer, length, origin, env: PhantomData }
    }
}

impl<T> Deref for Chunk<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the chunk has the sole right to these elements, shared for as long as `self` is.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Chunk<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the chunk has the sole right to these elements.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

// SAFETY: moving a chunk does not touch its elements, which lie elsewhere and outlive it.
unsafe impl<T: Pod + Send + Sync> Buffer for Chunk<'_, T> {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}

// SAFETY: nobody else can write the elements of a chunk.
unsafe impl<T: Pod + Send + Sync> SendBuffer for Chunk<'_, T> {
    unsafe fn lend(raw: &Self, parts: &mut SendParts) {
        // SAFETY: the chunk has the sole right to its elements and does not use it while it is lent.
        parts.push(unsafe { ReadLease::new(raw.pointer.cast(), raw.length * size_of::<T>()) });
    }
}

// SAFETY: nobody else can touch the elements of a chunk.
unsafe impl<T: Pod + Send + Sync> RecvBuffer for Chunk<'_, T> {
    unsafe fn lend(raw: &mut Self, parts: &mut RecvParts) {
        // SAFETY: the chunk has the sole right to its elements and does not use it while it is lent.
        parts.push(unsafe { WriteLease::new(raw.pointer.cast(), raw.length * size_of::<T>()) });
    }
}

// SAFETY: sharing a chunk gives shared access only, and its elements stay where they are.
unsafe impl<T: Pod + Send + Sync> Buffer for Arc<Chunk<'_, T>> {
    type Raw = Self;

    fn into_raw(self) -> Self {
        self
    }

    unsafe fn from_raw(raw: Self) -> Self {
        raw
    }
}

// SAFETY: a shared chunk is not written.
unsafe impl<T: Pod + Send + Sync> SendBuffer for Arc<Chunk<'_, T>> {
    unsafe fn lend(raw: &Self, parts: &mut SendParts) {
        // SAFETY: the caller promises for the count, and thus for the chunk that it keeps.
        unsafe { <Chunk<'_, T> as SendBuffer>::lend(raw, parts) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_disjoint_and_join_to_the_whole() {
        let mut local = [1u32, 2, 3, 4, 5];
        let (mut left, right) = Chunk::from(&mut local[..]).split_at(2);
        let (middle, mut end) = right.split_at(1);
        left[0] = 10;
        end[1] = 50;
        let whole = Chunk::join_all([left, middle, end]);
        assert_eq!(&whole[..], [10, 2, 3, 4, 50]);
        drop(whole);
        assert_eq!(local, [10, 2, 3, 4, 50]);
    }

    #[test]
    fn an_owned_chunk_gives_its_vector_back_without_copying() {
        let vector = vec![1.0f32; 100];
        let address = vector.as_ptr();
        let mut pieces = Chunk::from(vector).split_into([30, 30, 40]);
        pieces[1][0] = 2.0;
        let vector = Chunk::join_all(pieces).into_vec();
        assert_eq!(vector.as_ptr(), address);
        assert_eq!((vector.len(), vector[30]), (100, 2.0));
    }

    /// Fails under miri if the chunk has kept a pointer to the slice of the elements alone.
    #[test]
    fn an_owned_chunk_keeps_the_spare_capacity_of_its_vector() {
        let with_spare_capacity = || {
            let mut vector = Vec::with_capacity(8);
            vector.push(1u16);
            Chunk::from(vector)
        };
        drop(with_spare_capacity());
        let mut chunk = with_spare_capacity();
        chunk[0] = 7;
        let mut vector = chunk.into_vec();
        let address = vector.as_ptr();
        vector.extend([2; 7]);
        assert_eq!((vector[0], vector[7], vector.as_ptr()), (7, 2, address));
    }

    #[test]
    fn a_piece_alone_is_copied_and_the_rest_freed() {
        let (piece, _) = Chunk::from(vec![1u8, 2, 3]).split_at(2);
        assert_eq!(piece.into_vec(), [1, 2]);
    }

    #[test]
    #[should_panic(expected = "only neighbours")]
    fn strangers_do_not_join() {
        let _ = Chunk::from(vec![1u8]).join(Chunk::from(vec![2u8]));
    }

    #[test]
    fn a_taken_chunk_leaves_an_empty_piece() {
        let mut chunk = Chunk::from(vec![1u8, 2]);
        let taken = chunk.take();
        assert!(chunk.is_empty());
        assert_eq!(taken.into_vec(), [1, 2]);
    }
}
