//! Scopes that nobody holds any more: what their operations still use stays with the port.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Instant;

use super::port::{DRAIN_PATIENCE, Inner, Port};
use crate::exit;

/// A scope with operations in flight, and the memory that they work on: owned, and not freed when this is
/// dropped.
pub(super) struct Left {
    scope: usize,
    memory: NonNull<dyn Send>,
}

// SAFETY: it owns a value that may move to another thread.
unsafe impl Send for Left {}

impl Inner {
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        !self.left.borrow().is_empty()
    }
}

impl Port {
    /// Keeps a scope that could not be closed, and frees `memory` once it can be.
    ///
    /// # Safety
    /// `memory` is that of a `Box`, given away here; nothing but the scope's operations, and what the scope
    /// has kept of them, uses it any more.
    pub(super) unsafe fn leave_scope(&self, scope: usize, memory: NonNull<dyn Send>) {
        self.enter().left.borrow_mut().push(Left { scope, memory });
    }

    /// Ends what can be ended of the operations that were left, and frees their memory. Says whether none is
    /// left.
    #[cold]
    pub(super) fn end_left(&self) -> bool {
        let (ended, is_over) = {
            let inner = self.enter();
            let mut transport = inner.transport.borrow_mut();
            let mut scopes = inner.scopes.borrow_mut();
            let mut left = inner.left.borrow_mut();
            let ended: Vec<_> =
                left.extract_if(.., |left| scopes[left.scope].end_all(&mut **transport)).collect();
            let ended: Vec<_> =
                ended.into_iter().map(|left| (scopes.close(left.scope), left.memory)).collect();
            (ended, left.is_empty())
        };
        for (orphans, memory) in ended {
            // Whoever turns the transport is not who has made them: a panic of theirs, which has been told,
            // ends here.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                drop(orphans);
                // SAFETY: owned, by the promise of `leave_scope`, and taken out of the list, so that it is
                // freed once. The scope is closed, and what it had kept is gone.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
            }));
        }
        is_over
    }

    /// Ends all operations that were left, for a port that goes: what peers have begun to read goes on for a
    /// while. Then they are told, before the memory is given back, that what they still read of it does not
    /// count.
    fn end_all_left(&self) {
        let start = Instant::now();
        while !self.end_left() && start.elapsed() < DRAIN_PATIENCE {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
        if !self.enter().has_left() {
            return;
        }
        let abandoned = self.enter().transport.borrow_mut().abandon();
        match abandoned {
            Ok(()) => _ = self.end_left(),
            Err(error) => tracing::warn!(%error, "memory of calls that were given up is kept for ever"),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.enter().has_left() && !self.is_abort_wanted() {
            return;
        }
        // As the transport, which goes next: without its library nothing can be ended.
        let inside = exit::enter();
        if inside.is_some() && self.is_own() {
            self.heed_abort();
            self.end_all_left();
        }
        let inner = self.enter();
        if inner.has_left() {
            // Their memory is never freed, and so must not be what they have kept.
            std::mem::forget(inner.scopes.take());
        }
    }
}
