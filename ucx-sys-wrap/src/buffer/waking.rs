//! How a future that waits for the transport sees to it that it is polled again.

use std::task::{Context, Poll, Waker};

/// Pending, and polled again at the next turn of whoever moves the transport.
///
/// Nothing remembers the wakers of operations in flight: their task is woken at once, so that executors that
/// poll only what was woken (`FuturesUnordered`, `join_all`) poll it again, as busily as a blocked call.
/// Scopes and engines poll every turn anyway, with a waker that does nothing; for them this costs a comparison.
#[inline]
pub fn next_turn<T>(context: &Context<'_>) -> Poll<T> {
    if !context.waker().will_wake(Waker::noop()) {
        context.waker().wake_by_ref();
    }
    Poll::Pending
}
