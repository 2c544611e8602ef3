//! Memory of the program that a call has until it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;

use crate::memory::Stretch;

/// How many pieces of memory are lent to the calls of a group.
#[derive(Clone, Default)]
pub(crate) struct Loans(Arc<AtomicUsize>);

/// Elements that belong to a call until this is dropped.
pub(crate) struct Lent<T> {
    stretch: Stretch<T>,
    loans: Loans,
}

// SAFETY: whoever has lent the memory leaves it alone meanwhile (`Lent::new`), on every thread.
unsafe impl<T: Send> Send for Lent<T> {}
// SAFETY: likewise; without `&mut` the elements are only read.
unsafe impl<T: Sync> Sync for Lent<T> {}

impl Loans {
    /// Whether calls have any memory.
    pub(crate) fn has_some(&self) -> bool {
        // Pairs with the release at the end of a loan: the memory is not used any more.
        self.0.load(Ordering::Acquire) > 0
    }
}

impl<T: Pod> Lent<T> {
    /// Lends elements to a call.
    ///
    /// # Safety
    /// Until the result is dropped, all elements are in one live allocation, set, writable if the call writes
    /// them, and used by nobody else; read by nobody else either if the call writes them.
    pub(crate) unsafe fn new(stretch: Stretch<T>, loans: &Loans) -> Self {
        loans.0.fetch_add(1, Ordering::Relaxed);
        Self { stretch, loans: loans.clone() }
    }
}

impl<T: Pod> AsRef<[T]> for Lent<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: the caller of `new` has guaranteed it.
        unsafe { self.stretch.read() }
    }
}

impl<T: Pod> AsMut<[T]> for Lent<T> {
    fn as_mut(&mut self) -> &mut [T] {
        // SAFETY: the caller of `new` has guaranteed it; a call that only reads does not ask for this.
        unsafe { self.stretch.write() }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        self.loans.0.fetch_sub(1, Ordering::Release);
    }
}
