//! Memory that is split between operations and joined again.

use std::alloc::{Layout, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{RecvBuffer, self_contained_buffer, vector_parts};
use super::pooled::PoolBuffer;
use crate::memory::WriteLease;
use crate::transport::RecvParts;

/// Exclusive access to a range of elements, borrowed for `'env` or owned.
///
/// A chunk can be split into disjoint chunks for different operations, and adjacent chunks can be joined
/// again, both without copying. Owned memory is freed with its last chunk, and that of a pool given back.
///
/// Invariants: `pointer..pointer + length` lies inside `origin`, whose pointer it derives from, and no other
/// chunk of the same origin overlaps it.
pub struct Chunk<'env, T> {
    pointer: NonNull<T>,
    length: usize,
    origin: Arc<Origin>,
    env: PhantomData<&'env mut [T]>,
}

/// The memory that chunks are parts of, of plain elements of any type.
struct Origin {
    pointer: NonNull<u8>,
    bytes: usize,
    /// What was allocated, for the memory of a vector.
    owned: Option<Layout>,
    /// What was taken of a pool: given back when it is dropped.
    _pooled: Option<PoolBuffer<u8>>,
}

// SAFETY: a chunk has exclusive access to its elements, like a `&mut [T]` or a `Vec<T>`.
unsafe impl<T: Send> Send for Chunk<'_, T> {}
// SAFETY: a shared chunk gives only shared access to its elements.
unsafe impl<T: Sync> Sync for Chunk<'_, T> {}
// SAFETY: the origin frees memory of elements that need no drop, and touches none of them.
unsafe impl Send for Origin {}
// SAFETY: as above.
unsafe impl Sync for Origin {}

impl<'env, T> Chunk<'env, T> {
    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Splits into the first `middle` elements and the rest.
    ///
    /// # Panics
    /// When `middle` exceeds the length.
    #[must_use]
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        assert!(middle <= self.length, "split at {middle} of {} elements", self.length);
        // SAFETY: `middle` is at most the length, so the result lies inside the origin or one past its end.
        let pointer = unsafe { self.pointer.add(middle) };
        let (length, origin) = (self.length - middle, Arc::clone(&self.origin));
        let rest = Self { pointer, length, origin, env: PhantomData };
        (Self { length: middle, ..self }, rest)
    }

    /// Splits into chunks of `lengths` elements. Elements beyond their sum are dropped.
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

    /// Joins `self` with `next`, which must directly follow it in the same origin.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn join(self, next: Self) -> Self {
        assert!(
            Arc::ptr_eq(&self.origin, &next.origin)
                && self.pointer.as_ptr().wrapping_add(self.length) == next.pointer.as_ptr(),
            "only neighbours of one chunk can be joined"
        );
        Self { length: self.length + next.length, ..self }
    }

    /// Joins adjacent chunks, in order.
    ///
    /// # Panics
    /// When there are none, or they are not adjacent.
    #[must_use]
    pub fn join_all(pieces: impl IntoIterator<Item = Self>) -> Self {
        let mut pieces = pieces.into_iter();
        let first = pieces.next().unwrap_or_else(|| panic!("there is no chunk to join"));
        pieces.fold(first, Self::join)
    }

    /// Takes the chunk out and leaves an empty one in its place.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let (pointer, origin) = (self.pointer, Arc::clone(&self.origin));
        std::mem::replace(self, Self { pointer, length: 0, origin, env: PhantomData })
    }
}

impl<'env, T: Pod> Chunk<'env, T> {
    /// The same memory as elements of another type. Chunks of one origin can be joined again when they have
    /// one type.
    ///
    /// # Panics
    /// When the memory is no whole number of such elements, or is not aligned for them.
    #[must_use]
    pub fn cast<U: Pod>(mut self) -> Chunk<'env, U> {
        let length = bytemuck::cast_slice_mut::<T, U>(&mut self).len();
        Chunk { pointer: self.pointer.cast(), length, origin: self.origin, env: PhantomData }
    }

    /// Returns the elements as a vector: the original one for a whole owned chunk, else a copy.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<T> {
        let is_whole =
            self.pointer.cast() == self.origin.pointer && size_of_val(&self[..]) == self.origin.bytes;
        // Fails while empty chunks of the same origin still exist.
        let original = Arc::get_mut(&mut self.origin).filter(|_| is_whole).and_then(Origin::take_vec);
        original.unwrap_or_else(|| self.to_vec())
    }
}

impl Origin {
    /// Takes the vector out of an origin that owns one of such elements. The caller has all its elements.
    fn take_vec<T: Pod>(&mut self) -> Option<Vec<T>> {
        let size = size_of::<T>();
        let is_alike = |owned: &mut Layout| {
            owned.align() == align_of::<T>() && size > 0 && owned.size().is_multiple_of(size)
        };
        let owned = self.owned.take_if(is_alike)?;
        // SAFETY: these are the parts of a vector, which is taken once: its allocation has this alignment and
        // this many elements, of which all plain values are valid. By the invariant of chunks, nobody else
        // has any of them.
        Some(unsafe {
            Vec::from_raw_parts(self.pointer.cast().as_ptr(), self.bytes / size, owned.size() / size)
        })
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if let Some(layout) = self.owned.take().filter(|layout| layout.size() > 0) {
            // SAFETY: a vector has allocated this with the global allocator, no chunk of it is left, and its
            // elements need no drop.
            unsafe { dealloc(self.pointer.as_ptr(), layout) };
        }
    }
}

impl<'env, T: Pod> From<&'env mut [T]> for Chunk<'env, T> {
    fn from(borrowed: &'env mut [T]) -> Self {
        let (length, bytes) = (borrowed.len(), size_of_val(borrowed));
        let pointer = NonNull::from(borrowed).cast();
        let origin = Arc::new(Origin { pointer: pointer.cast(), bytes, owned: None, _pooled: None });
        Self { pointer, length, origin, env: PhantomData }
    }
}

impl<T: Pod> From<Vec<T>> for Chunk<'_, T> {
    fn from(owned: Vec<T>) -> Self {
        let (pointer, length, capacity) = vector_parts(owned);
        let layout = Layout::array::<T>(capacity);
        let layout = layout.unwrap_or_else(|_| unreachable!("a vector is no longer than can be allocated"));
        let (bytes, owned) = (length * size_of::<T>(), Some(layout));
        let origin = Arc::new(Origin { pointer: pointer.cast(), bytes, owned, _pooled: None });
        Self { pointer, length, origin, env: PhantomData }
    }
}

impl<T: Pod> From<PoolBuffer<T>> for Chunk<'_, T> {
    fn from(pooled: PoolBuffer<T>) -> Self {
        let (pointer, length) = (pooled.pointer(), pooled.len());
        let pooled = pooled.into_bytes();
        let bytes = pooled.len();
        let origin = Origin { pointer: pointer.cast(), bytes, owned: None, _pooled: Some(pooled) };
        Self { pointer, length, origin: Arc::new(origin), env: PhantomData }
    }
}

impl<T> Deref for Chunk<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the chunk has exclusive access to these elements, and `self` is borrowed.
        unsafe { slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl<T> DerefMut for Chunk<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the chunk has exclusive access to these elements, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

self_contained_buffer!(Chunk<'_, T>, [T: Pod + Send + Sync], |chunk| bytemuck::cast_slice(chunk));
self_contained_buffer!(Arc<Chunk<'_, T>>, [T: Pod + Send + Sync], |chunk| bytemuck::cast_slice(chunk));

// SAFETY: only the chunk can access its elements.
unsafe impl<T: Pod + Send + Sync> RecvBuffer for Chunk<'_, T> {
    unsafe fn lend(raw: &mut Self, parts: &mut RecvParts) {
        // SAFETY: the chunk has exclusive access to its elements and does not use it while it is lent.
        parts.push(unsafe { WriteLease::new(raw.pointer.cast(), raw.length * size_of::<T>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Pool;

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
    fn a_chunk_of_other_elements_is_the_same_memory() {
        let vector = vec![1.0f32, 2.0, 3.0];
        let address = vector.as_ptr();
        let (first, mut rest) = Chunk::from(vector).cast::<u8>().split_at(4);
        rest[..4].copy_from_slice(&5.0f32.to_ne_bytes());
        let vector = first.join(rest).cast::<f32>().into_vec();
        assert_eq!((vector.as_ptr(), &vector[..]), (address, &[1.0, 5.0, 3.0][..]));

        let mut local = [1u16, 2];
        assert_eq!(Chunk::from(&mut local[..]).cast::<u8>().into_vec().len(), 4);
        // The allocation of bytes has another alignment: a copy, and the bytes are freed as such.
        let aligned = vec![0u64; 1];
        assert_eq!(Chunk::from(aligned).cast::<u8>().into_vec(), [0; 8]);
        drop(Chunk::from(vec![1u32; 5]).cast::<u8>());
        assert_eq!(Chunk::from(Vec::<u32>::new()).cast::<u8>().into_vec(), []);
    }

    #[test]
    fn memory_of_a_pool_goes_back_with_its_last_piece() {
        let pool = Pool::new();
        let buffer = pool.take::<u128>(1000).unwrap();
        let (address, mapped) = (buffer.as_ptr(), pool.statistics().mapped_bytes);
        let (mut first, rest) = Chunk::from(buffer).cast::<u8>().split_at(7000);
        first.fill(7);
        assert_eq!((first.as_ptr(), first.len(), rest.len()), (address.cast(), 7000, 9000));
        drop(rest);
        assert_eq!(pool.statistics().kept_bytes, 0, "a piece is left");
        assert_eq!(first.into_vec(), [7; 7000], "a copy: the memory is the pool's");
        assert_eq!(pool.statistics().kept_bytes, mapped);
        assert_eq!(pool.take::<u128>(1000).unwrap().as_ptr(), address);
        assert!(Chunk::from(pool.take::<u128>(0).unwrap()).cast::<u8>().cast::<f64>().is_empty());
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
