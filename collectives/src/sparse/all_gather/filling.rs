//! A vector that grows by what arrives.

use ucx_sys_wrap::buffer::Chunk;

use crate::data::Element;

/// A vector that is filled from the front, and whose parts can be lent to operations.
pub(super) struct Filling<T: 'static> {
    pub(super) filled: Chunk<'static, T>,
    rest: Chunk<'static, T>,
}

impl<T: Element> Filling<T> {
    pub(super) fn new(first: &[T], mut all: Vec<T>) -> Self {
        all[..first.len()].copy_from_slice(first);
        let (filled, rest) = Chunk::from(all).split_at(first.len());
        Self { filled, rest }
    }

    /// Lends the first `count` filled elements until [`restore`](Self::restore).
    pub(super) fn lend(&mut self, count: usize) -> Chunk<'static, T> {
        let (lent, kept) = self.filled.take().split_at(count);
        self.filled = kept;
        lent
    }

    /// Lends room for `count` more until [`restore`](Self::restore).
    pub(super) fn room(&mut self, count: usize) -> Chunk<'static, T> {
        let (room, kept) = self.rest.take().split_at(count);
        self.rest = kept;
        room
    }

    /// Takes the lent parts back, with `count` more elements filled.
    pub(super) fn restore(&mut self, lent: Chunk<'static, T>, room: Chunk<'static, T>, count: usize) {
        let (arrived, unused) = room.split_at(count);
        self.filled = lent.join(self.filled.take()).join(arrived);
        self.rest = unused.join(self.rest.take());
    }
}
