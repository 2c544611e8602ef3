//! Messages between two ranks, and one-sided operations: their deadlines close nothing.

use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Comm, Task, TaskFuture};

use super::deadline::Deadline;
use super::handle::Kept;
use super::{Engine, Handle, Status};

impl Engine {
    /// Like [`run_in`](Self::run_in), for messages between two ranks. After `timeout` those that have not
    /// begun end and nothing is closed; those that have begun get the `grace`, after which the context is
    /// closed.
    pub(crate) fn run_messages<'env, R>(
        &self,
        status: &Status,
        (timeout, grace): (Duration, Duration),
        body: impl AsyncFnOnce(&Comm<'env>) -> R,
    ) -> R {
        self.run_with(
            status,
            |deadline| deadline.with_grace(grace),
            timeout,
            async |comm: &Comm<'env>| {
                comm.time().expire_softly_first();
                body(comm).await
            },
        )
    }

    /// Like [`run_in`](Self::run_in), for puts, gets and flushes, of which no other rank knows. After
    /// `timeout` they end, and nothing is closed.
    pub(crate) fn run_one_sided<'env, R>(
        &self,
        status: &Status,
        timeout: Duration,
        body: impl AsyncFnOnce(&Comm<'env>) -> R,
    ) -> R {
        self.run_with(status, Deadline::one_sided, timeout, body)
    }

    /// Like [`spawn_in`](Self::spawn_in), for messages; see [`run_messages`](Self::run_messages).
    pub(crate) fn spawn_messages<B, R, F>(
        self: &Arc<Self>,
        around: (Arc<Status>, Kept),
        (timeout, grace): (Duration, Duration),
        buffers: B,
        body: F,
    ) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        let task = Task::new(&self.port, buffers, body);
        task.comm().time().expire_softly_first();
        self.spawn_with(around, |deadline| deadline.with_grace(grace), timeout, task)
    }
}
