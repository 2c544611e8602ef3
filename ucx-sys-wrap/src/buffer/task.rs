//! A future that owns what its operations work on.

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::comm::Comm;
use super::port::Port;
use super::waking::next_turn;

/// The future of a task: it may use the task's own buffers and scope.
pub type TaskFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A future together with the buffers that it works on and the scope that its operations belong to.
///
/// Invariants: `future` borrows `*comm` and `*buffers`, both on the heap and touched by nothing else while it
/// exists; it is dropped first, then the scope is closed, then the two are freed. A scope that can't be
/// closed yet stays with the port, and the buffers with it: the network may still use them.
pub struct Task<B: Send + 'static, R> {
    future: Option<TaskFuture<'static, R>>,
    output: Option<R>,
    comm: NonNull<Comm<'static>>,
    buffers: Option<NonNull<B>>,
}

// SAFETY: the pointers are owning pointers to a `Comm`, which is `Send`, and to a `B: Send`; the future is
// `Send`.
unsafe impl<B: Send + 'static, R: Send> Send for Task<B, R> {}

impl<B: Send + 'static, R> Task<B, R> {
    /// Makes a task that runs `body` on `buffers`.
    pub fn new<F>(port: &Arc<Port>, buffers: B, body: F) -> Self
    where
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        let comm = Comm::open(port, 0);
        comm.time().begin_to_wait(port.now());
        let comm = NonNull::from(Box::leak(Box::new(comm)));
        let mut buffers = NonNull::from(Box::leak(Box::new(buffers)));
        // SAFETY: both live on the heap until the future is gone (the invariants), whatever lifetime they are
        // given here; `body` is generic over it and so can't keep them longer than its future.
        let future = unsafe { body(comm.as_ref(), buffers.as_mut()) };
        Self { future: Some(future), output: None, comm, buffers: Some(buffers) }
    }

    /// The scope of the task's operations.
    #[must_use]
    pub fn comm(&self) -> &Comm<'static> {
        // SAFETY: freed only when the task is dropped.
        unsafe { self.comm.as_ref() }
    }

    /// Polls the body and then ends what it left in flight; gives the buffers back with the result.
    ///
    /// Must not be called again after it was ready.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<(B, R)> {
        if let Some(future) = &mut self.future {
            match future.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(output) => self.output = Some(output),
            }
            self.future = None;
        }
        match (self.take_buffers(), self.output.take()) {
            (Some(buffers), Some(output)) => Poll::Ready((*buffers, output)),
            (_, output) => {
                self.output = output;
                next_turn(context)
            }
        }
    }

    /// The buffers, once nothing is in flight any more.
    fn take_buffers(&mut self) -> Option<Box<B>> {
        let buffers = self.buffers?;
        let orphans = self.comm().port().try_close_scope(self.comm().scope_key())?;
        self.buffers = None;
        // SAFETY: the future is gone and the scope is closed, so that only what it has kept may borrow the
        // buffers, and is dropped before them. They are freed once.
        let buffers = unsafe { Box::from_raw(buffers.as_ptr()) };
        drop(orphans);
        Some(buffers)
    }
}

impl<B: Send + 'static, R> Drop for Task<B, R> {
    fn drop(&mut self) {
        if self.buffers.is_some() && !self.comm().port().is_own() {
            // Nothing is canceled: the operations are those of the process that has forked this one.
            return std::mem::forget(self.future.take());
        }
        self.future = None;
        // SAFETY: the future is gone. What the scope keeps outlives `'env`, and so can't borrow this.
        let comm = unsafe { Box::from_raw(self.comm.as_ptr()) };
        let Some(buffers) = self.buffers else { return };
        match comm.port().try_close_scope(comm.scope_key()) {
            Some(orphans) => {
                // SAFETY: the future is gone and the scope is closed, so that only what it has kept may
                // borrow the buffers, and is dropped before them.
                let buffers = unsafe { Box::from_raw(buffers.as_ptr()) };
                drop(orphans);
                drop(buffers);
            }
            // SAFETY: leaked by `new`; the future is gone, and the task goes.
            None => unsafe { comm.port().leave_scope(comm.scope_key(), buffers) },
        }
    }
}
