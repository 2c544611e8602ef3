//! A future that owns the buffers of its operations.

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::comm::Comm;
use super::port::Port;
use super::waking::next_turn;

/// The future of a task. It may use the task's buffers and scope.
pub type TaskFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A future with the buffers that it works on and the scope of its operations.
///
/// Invariants: `future` borrows `*comm` and `*buffers`, which lie on the heap and which nothing else accesses
/// while it exists. It is dropped first, then the scope is closed, then the two are freed. If the scope can't
/// be closed yet, it is left to the port together with the buffers, which the network may still use.
pub struct Task<B: Send + 'static, R> {
    future: Option<TaskFuture<'static, R>>,
    output: Option<R>,
    comm: NonNull<Comm<'static>>,
    buffers: Option<NonNull<B>>,
}

// SAFETY: it owns a `Comm`, which is `Send`, a `B: Send` and a future that is `Send`.
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
        // SAFETY: both live on the heap until the future is gone (the invariants). `body` is generic over
        // their lifetimes, so it can't keep them longer than its future.
        let future = unsafe { body(comm.as_ref(), buffers.as_mut()) };
        Self { future: Some(future), output: None, comm, buffers: Some(buffers) }
    }

    /// The scope of the task's operations.
    #[must_use]
    pub fn comm(&self) -> &Comm<'static> {
        // SAFETY: freed only when the task is dropped.
        unsafe { self.comm.as_ref() }
    }

    /// Polls the body, then ends its remaining operations. Returns the buffers with the result.
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
        let comm = self.comm;
        // SAFETY: freed only when the task is dropped.
        match (Self::take_buffers(unsafe { comm.as_ref() }, &mut self.buffers), self.output.take()) {
            (Some(buffers), Some(output)) => Poll::Ready((*buffers, output)),
            (_, output) => {
                self.output = output;
                next_turn(context)
            }
        }
    }

    /// Closes the scope of a future that is gone and returns the buffers, if no operation is in flight.
    fn take_buffers(comm: &Comm<'static>, owner: &mut Option<NonNull<B>>) -> Option<Box<B>> {
        let buffers = (*owner)?;
        let kept = comm.port().try_close_scope(comm.scope_key())?;
        *owner = None;
        // SAFETY: leaked by `new` and freed once. The future is gone and the scope is closed, so that only
        // what the scope kept may borrow the buffers, and it is dropped before them.
        let buffers = unsafe { Box::from_raw(buffers.as_ptr()) };
        drop(kept);
        Some(buffers)
    }
}

impl<B: Send + 'static, R> Drop for Task<B, R> {
    fn drop(&mut self) {
        if self.buffers.is_some() && !self.comm().port().is_own() {
            // A forked copy: the operations belong to the parent process, so nothing is canceled.
            return std::mem::forget(self.future.take());
        }
        self.future = None;
        // SAFETY: leaked by `new`. The future is gone, and what the scope keeps outlives `'env`, so it can't
        // borrow this.
        let comm = unsafe { Box::from_raw(self.comm.as_ptr()) };
        drop(Self::take_buffers(&comm, &mut self.buffers));
        if let Some(buffers) = self.buffers {
            // SAFETY: leaked by `new`; the future is gone and the task is dropped.
            unsafe { comm.port().orphan_scope(comm.scope_key(), buffers) };
        }
    }
}
