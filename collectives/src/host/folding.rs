//! Reductions over slots by a [`Reducer`].

use ucx_sys_wrap::shm::Fold;

use crate::data::Reducer;
use crate::error::{Error, Result};

/// A reducer with the number of ranks, by which averages are divided.
pub(super) struct Folding<'a> {
    pub(super) reducer: &'a Reducer,
    pub(super) ranks: u32,
}

impl Fold for Folding<'_> {
    type Error = Error;

    #[inline]
    fn size(&self) -> usize {
        self.reducer.size()
    }

    #[inline]
    fn wide(&self) -> usize {
        self.reducer.wide()
    }

    #[inline]
    fn start(&self, into: &mut [u8], from: &[u8]) {
        self.reducer.start(into, from);
    }

    #[inline]
    fn take(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        self.reducer.take(into, from)
    }

    #[inline]
    fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        self.reducer.combine(into, from)
    }

    #[inline]
    fn end(&self, into: &mut [u8], from: &mut [u8]) {
        self.reducer.end(into, from, self.ranks);
    }

    #[inline]
    fn end_in_place(&self, values: &mut [u8]) {
        self.reducer.end_in_place(values, self.ranks);
    }
}
