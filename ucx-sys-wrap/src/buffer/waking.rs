//! How a pending future gets polled again.

use std::cell::Cell;
use std::task::{Context, Poll, Waker};

thread_local!(static IS_FOR_NEXT_TURN: Cell<bool> = const { Cell::new(false) });

/// Returns pending, and arranges that the future is polled again in the next turn.
///
/// For a future that waits for something that nobody announces: it wakes its task at once, so that executors
/// that poll only woken tasks (`FuturesUnordered`, `join_all`) poll it again, as often as a blocking call
/// would. Scopes poll every turn and use a no-op waker, which is not woken.
#[inline]
pub fn next_turn<T>(context: &Context<'_>) -> Poll<T> {
    if !context.waker().will_wake(Waker::noop()) {
        wake_for_next_turn(context.waker());
    }
    Poll::Pending
}

#[cold]
fn wake_for_next_turn(waker: &Waker) {
    let _before = Restore(IS_FOR_NEXT_TURN.replace(true));
    waker.wake_by_ref();
}

/// Whether a waker is called by [`next_turn`] on this thread. Then nothing has happened yet, and whoever runs
/// the task may sleep before its next turn.
#[must_use]
pub fn is_for_next_turn() -> bool {
    IS_FOR_NEXT_TURN.get()
}

/// Puts the value back, also if a waker panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        IS_FOR_NEXT_TURN.set(self.0);
    }
}
