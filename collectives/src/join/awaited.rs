//! Joining on a thread of its own.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use parking_lot::Mutex;
use ucx_sys_wrap::Error as Transport;
use ucx_sys_wrap::bootstrap::Cancel;
use ucx_sys_wrap::buffer::with_signals_blocked;

use super::Join;
use crate::error::{Error, Result};
use crate::group::Group;

const RESULT_IS_GONE: &str = "a Joining polled after it has returned its result";

/// A join that goes on, on a thread of its own: [`Join::join_async`].
///
/// # Panics
/// Like other futures, it panics if it is polled after it was ready.
#[must_use = "a dropped join is given up"]
pub struct Joining {
    state: Arc<Mutex<State>>,
    cancel: Cancel,
}

enum State {
    /// The task to wake, if one waits.
    Joins(Option<Waker>),
    Ended(Box<thread::Result<Result<Group>>>),
    /// Nobody waits for the result, or it was taken.
    Gone,
}

impl Joining {
    pub(super) fn start(join: Join) -> Self {
        let state = Arc::new(Mutex::new(State::Joins(None)));
        let (shared, cancel) = (Arc::clone(&state), Cancel::default());
        let canceled = cancel.clone();
        let thread = thread::Builder::new().name("brevity join".into());
        let started = with_signals_blocked(|| {
            let join = move || canceled.during(|| join.join());
            thread.spawn(move || finish(&shared, catch_unwind(AssertUnwindSafe(join))))
        });
        if let Err(error) = started {
            let error = Transport::system("can't start a thread that joins", error);
            finish(&state, Ok(Err(Error::Transport(error))));
        }
        Self { state, cancel }
    }
}

/// Hands over the result and wakes the task. If nobody waits, the group is left here, on this thread.
fn finish(state: &Mutex<State>, result: thread::Result<Result<Group>>) {
    let mut result = Some(Box::new(result));
    let waker = {
        let mut state = state.lock();
        match &mut *state {
            State::Joins(waker) => {
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

impl Future for Joining {
    type Output = Result<Group>;

    /// # Panics
    /// With the panic of the join, if it panicked. If an earlier poll has returned the result.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Group>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Ended(result) => Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic))),
            State::Joins(before) => {
                let same = before.filter(|waker| waker.will_wake(context.waker()));
                *state = State::Joins(Some(same.unwrap_or_else(|| context.waker().clone())));
                Poll::Pending
            }
            State::Gone => panic!("{RESULT_IS_GONE}"),
        }
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.cancel.cancel();
        let before = std::mem::replace(&mut *self.state.lock(), State::Gone);
        // Not under the lock: leaving a group takes time.
        drop(before);
    }
}
