//! Messages between two ranks, and one-sided operations: their deadlines close nothing.

use std::time::Duration;

use ucx_sys_wrap::buffer::Comm;

use super::deadline::Deadline;
use super::{Engine, Status};

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
}
