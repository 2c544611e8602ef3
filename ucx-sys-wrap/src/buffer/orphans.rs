//! Orphaned scopes: scopes without a holder whose operations still use memory. The port keeps both.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Instant;

use super::port::{DRAIN_PATIENCE, Inner, Port};
use crate::exit;

/// A scope with operations in flight and the memory they use. Dropping this does not free the memory.
pub(super) struct OrphanedScope {
    scope: usize,
    memory: NonNull<dyn Send>,
}

// SAFETY: it owns a value that is `Send`.
unsafe impl Send for OrphanedScope {}

impl Inner {
    #[inline]
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.borrow().is_empty()
    }
}

impl Port {
    /// Keeps a scope that can't be closed yet, and frees `memory` once it is closed.
    ///
    /// # Safety
    /// `memory` comes from a `Box` that the caller gives up. Only the scope's operations, and the buffers
    /// that the scope keeps, still use it.
    pub(super) unsafe fn orphan_scope(&self, scope: usize, memory: NonNull<dyn Send>) {
        self.enter().orphans.borrow_mut().push(OrphanedScope { scope, memory });
    }

    /// Ends operations of orphaned scopes as far as possible and frees their memory. Returns whether no
    /// orphaned scope is left.
    #[cold]
    pub(super) fn end_orphans(&self) -> bool {
        let (ended, is_over) = {
            let inner = self.enter();
            let mut transport = inner.transport.borrow_mut();
            let mut scopes = inner.scopes.borrow_mut();
            let mut orphans = inner.orphans.borrow_mut();
            let ended: Vec<_> =
                orphans.extract_if(.., |orphan| scopes.all[orphan.scope].end_all(&mut **transport)).collect();
            let ended: Vec<_> =
                ended.into_iter().map(|orphan| (scopes.close(orphan.scope), orphan.memory)).collect();
            (ended, orphans.is_empty())
        };
        for (kept, memory) in ended {
            // The caller is not the owner of these values, so their panics, already reported, end here.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                drop(kept);
                // SAFETY: `orphan_scope` was given ownership, and the entry is out of the list, so it is
                // freed once. The scope is closed and the buffers it kept are gone.
                drop(unsafe { Box::from_raw(memory.as_ptr()) });
            }));
        }
        is_over
    }

    /// Ends all orphaned scopes of a port that is being dropped. Waits a while for peers that are reading the
    /// memory; then abandons the transport, which tells them that their reads are void, and frees it.
    fn end_all_orphans(&self) {
        let start = Instant::now();
        while !self.end_orphans() && start.elapsed() < DRAIN_PATIENCE {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
        if !self.enter().has_orphans() {
            return;
        }
        let abandoned = self.enter().transport.borrow_mut().abandon();
        match abandoned {
            Ok(()) => _ = self.end_orphans(),
            Err(error) => tracing::warn!(%error, "memory of calls that were given up is kept for ever"),
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.enter().has_orphans() && !self.is_abort_wanted() {
            return;
        }
        // As for the transport, which is dropped next: without its library no operation can be ended.
        let inside = exit::enter();
        if inside.is_some() && self.is_own() {
            self.heed_abort();
            self.end_all_orphans();
        }
        let inner = self.enter();
        if inner.has_orphans() {
            // Their memory is never freed, so the buffers that may borrow it must not be either.
            std::mem::forget(inner.scopes.take());
        }
    }
}
