//! How a pending future gets polled again.

use std::task::{Context, Poll, Waker};

/// Returns pending, and arranges that the future is polled again in the next turn.
///
/// The transport keeps no wakers of operations. Instead a pending operation wakes its task at once, so that
/// executors that poll only woken tasks (`FuturesUnordered`, `join_all`) poll it again, as often as a
/// blocking call would. Scopes and engines poll every turn and use a no-op waker, which is not woken.
#[inline]
pub fn next_turn<T>(context: &Context<'_>) -> Poll<T> {
    if !context.waker().will_wake(Waker::noop()) {
        context.waker().wake_by_ref();
    }
    Poll::Pending
}
