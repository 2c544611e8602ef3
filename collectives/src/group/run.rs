//! How a call on a group runs: its number, its body, and its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::Comm;

use super::Group;
use super::leave::Leave;
use crate::call::{Call, Shared};
use crate::calls::Numbered;
use crate::description::Description;
use crate::engine::{AbortUnlessEnded, Handle};

/// The future of a non-blocking call's body; see [`Group::start`].
pub type CallFuture<'a, R> = Pin<Box<dyn Future<Output = R> + Send + 'a>>;

/// A call that has its number.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub(super) description: Description,
    pub(super) numbered: Numbered,
    pub(super) signature: Signature,
    pub(super) timeout: Duration,
}

impl Group {
    /// Runs a custom call to completion on this thread.
    ///
    /// All ranks must pass equal descriptions. All operations of `body` have ended when this returns. A panic
    /// of `body` closes the group, because other ranks would wait for this one: they get
    /// [`Error::Aborted`](crate::Error::Aborted).
    pub fn run<'env, R>(&self, description: Description, body: impl AsyncFnOnce(&Call<'_, 'env>) -> R) -> R {
        self.run_with_parts(description, 0, body)
    }

    /// Like [`run`](Self::run), for a body that runs up to `parts` [parts](Call::part) at the same time. All
    /// ranks pass the same number.
    pub fn run_with_parts<'env, R>(
        &self,
        description: Description,
        parts: u32,
        body: impl AsyncFnOnce(&Call<'_, 'env>) -> R,
    ) -> R {
        let made = self.next_call(description, parts);
        self.run_body(made, Shared::default().with_parts(parts), body)
    }

    /// Like [`run`](Self::run), for a body with collectives on dense vectors: among ranks of one host, and
    /// inside each of several hosts, these use shared memory, as those of the group do.
    ///
    /// Calls use that memory in the order in which they were made, each until it ends. So `body` must not
    /// wait for a later call that uses it. Inside the body, collectives use it in the order of their first
    /// polls, which must be equal on all ranks. If ranks make different calls inside, one of them by
    /// messages, they may detect it only when the deadline passes.
    pub fn run_in_order<'env, R>(
        &self,
        description: Description,
        body: impl AsyncFnOnce(&Call<'_, 'env>) -> R,
    ) -> R {
        let made = self.next_call(description, 0);
        let shared = Shared::new(self.inside(made.signature, self.engine().spins()));
        self.run_body(made, shared, body)
    }

    pub(super) fn run_body<'env, R>(
        &self,
        made: Made,
        shared: Shared,
        body: impl AsyncFnOnce(&Call<'_, 'env>) -> R,
    ) -> R {
        let (ranks, status) = (&*self.context.ranks, &*self.context.status);
        self.engine().run_in(status, made.timeout, async |comm: &Comm<'env>| {
            // Before the scope ends the call's operations, some of which only peers can end.
            let unless_ended = AbortUnlessEnded { port: comm.port(), status };
            let leave = Leave { comm, ranks, shared: &shared };
            let result = body(&Call::new(comm, ranks, made.numbered, made.description, &shared)).await;
            leave.explained(status).await;
            std::mem::forget(unless_ended);
            result
        })
    }

    /// Starts a custom non-blocking call on `buffers`; the handle returns them with the result.
    ///
    /// The call gets its number here, so all ranks must start their calls in the same order. They may wait
    /// for them in any order. A panic of `body` closes the group, as in [`run`](Self::run).
    pub fn start<B, R, F>(&self, description: Description, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        self.start_with_parts(description, 0, buffers, body)
    }

    /// Like [`start`](Self::start), for a body that runs up to `parts` [parts](Call::part) at the same time.
    /// All ranks pass the same number.
    pub fn start_with_parts<B, R, F>(
        &self,
        description: Description,
        parts: u32,
        buffers: B,
        body: F,
    ) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let made = self.next_call(description, parts);
        self.start_body(made, Shared::default().with_parts(parts), buffers, body)
    }

    /// Like [`start`](Self::start), for a body with collectives on dense vectors; see
    /// [`run_in_order`](Self::run_in_order).
    pub fn start_in_order<B, R, F>(&self, description: Description, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let made = self.next_call(description, 0);
        self.start_body(made, Shared::new(self.inside(made.signature, 0)), buffers, body)
    }

    /// The handle of a call that was refused: it has ended with `value` without starting anything.
    pub fn ended<T>(&self, value: T) -> Handle<T> {
        Handle::ended(self.engine(), value)
    }

    pub(super) fn start_body<B, R, F>(
        &self,
        made: Made,
        shared: Shared,
        buffers: B,
        body: F,
    ) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(&'a Call<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let ranks = Arc::clone(&self.context.ranks);
        let (status, kept) = (Arc::clone(&self.context.status), Arc::clone(&ranks));
        self.engine().spawn_in(
            (Arc::clone(&status), Some(kept)),
            (made.timeout, None),
            buffers,
            move |comm, buffers| {
                Box::pin(async move {
                    let leave = Leave { comm, ranks: &ranks, shared: &shared };
                    let call = Call::new(comm, &ranks, made.numbered, made.description, &shared);
                    let result = body(&call, buffers).await;
                    leave.explained(&status).await;
                    result
                })
            },
        )
    }

    /// Takes the number of the next call, and those of its parts. Arguments are checked before this.
    #[inline]
    pub(super) fn next_call(&self, description: Description, parts: u32) -> Made {
        let made = self.next_call_over_slots(description, parts);
        self.context.status.calls.note(made.numbered, &made.description, parts);
        made
    }

    /// Likewise, for a call over slots, which notes it itself.
    #[inline]
    pub(super) fn next_call_over_slots(&self, description: Description, parts: u32) -> Made {
        let numbered = self.context.status.calls.take(&description, parts);
        let signature = description.sign(self.context.ranks.epoch, numbered.digest);
        if let Some(host) = &self.context.ranks.host
            && self.context.is_open()
        {
            host.record(numbered.number, signature);
        }
        Made { description, numbered, signature, timeout: self.timeout() }
    }
}
