//! Work that blocks, on a thread of its own, awaited in any runtime.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::{io, thread};

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::with_signals_blocked;

const RESULT_IS_GONE: &str = "a future polled after it has returned its result";

/// The result of work on a thread of its own. The work goes on if this is dropped; its result is then dropped
/// on that thread.
///
/// # Panics
/// Like other futures, it panics if it is polled after it was ready.
pub(crate) struct Elsewhere<T>(Arc<Mutex<State<T>>>);

enum State<T> {
    /// The task to wake, if one waits.
    Works(Option<Waker>),
    Ended(Box<thread::Result<T>>),
    /// Nobody waits for the result, or it was taken.
    Gone,
}

impl<T: Send + 'static> Elsewhere<T> {
    /// Starts `work` on a thread of this name. If the system has no thread left, drops it here, and the
    /// result is that of `otherwise`.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
        otherwise: impl FnOnce(io::Error) -> T,
    ) -> Self {
        let state = Arc::new(Mutex::new(State::Works(None)));
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name(name.into());
        let started = with_signals_blocked(|| {
            thread.spawn(move || finish(&shared, catch_unwind(AssertUnwindSafe(work))))
        });
        if let Err(error) = started {
            finish(&state, Ok(otherwise(error)));
        }
        Self(state)
    }

    /// Work that has ended with `value`.
    pub(crate) fn ended(value: T) -> Self {
        Self(Arc::new(Mutex::new(State::Ended(Box::new(Ok(value))))))
    }
}

/// Hands over the result and wakes the task. If nobody waits, the result is dropped here.
fn finish<T>(state: &Mutex<State<T>>, result: thread::Result<T>) {
    let mut result = Some(Box::new(result));
    let waker = {
        let mut state = state.lock();
        match &mut *state {
            State::Works(waker) => {
                let waker = waker.take();
                if let Some(result) = result.take() {
                    *state = State::Ended(result);
                }
                waker
            }
            State::Ended(_) | State::Gone => None,
        }
    };
    // Neither under the lock: both run code of others.
    drop(result);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Future for Elsewhere<T> {
    type Output = T;

    /// # Panics
    /// With the panic of the work, if it panicked. If an earlier poll has returned the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(result) => Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic))),
            State::Works(before) => {
                let same = before.filter(|waker| waker.will_wake(context.waker()));
                *state = State::Works(Some(same.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
            State::Gone => panic!("{RESULT_IS_GONE}"),
        }
    }
}

impl<T> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Gone);
        // Not under the lock: it may take time, as leaving a group does.
        drop(before);
    }
}
