//! Waking the tasks that wait for the end of an operation.
//!
//! A future that polls an operation in vain leaves its waker with the operation, in the transport. When the
//! operation ends, the transport passes the waker on to the list of its [port](crate::buffer::Port), which
//! wakes the task once the transport has been left: wakers are foreign code.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

/// The place in an operation for the waker of the task that waits for its end.
#[derive(Default)]
pub struct OnEnd(Option<(Waker, Arc<Woken>)>);

/// The wakers of tasks whose operations have ended.
#[derive(Default)]
pub struct Woken {
    /// Whether there are any. Cheaper than looking.
    has_some: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl OnEnd {
    /// Leaves a waker, in place of the one before, and the list that it goes to.
    pub(crate) fn set(&mut self, waker: &Waker, woken: &Arc<Woken>) {
        match &self.0 {
            Some((before, _)) if before.will_wake(waker) => {}
            _ => {
                let before = self.0.replace((waker.clone(), Arc::clone(woken)));
                // Not dropped here, inside the transport.
                before.into_iter().for_each(|(waker, woken)| woken.push(waker));
            }
        }
    }

    /// The operation has ended, or must be tested from now on.
    #[inline]
    pub(crate) fn tell(&mut self) {
        if self.0.is_some() {
            self.pass_on();
        }
    }

    #[cold]
    fn pass_on(&mut self) {
        if let Some((waker, woken)) = self.0.take() {
            woken.push(waker);
        }
    }
}

impl Woken {
    fn push(&self, waker: Waker) {
        self.wakers.lock().push(waker);
        self.has_some.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    /// Wakes the tasks. Must be called outside any transport. A panic of a waker ends here: it must not
    /// unwind through the call of another task.
    #[cold]
    pub(crate) fn wake(&self) {
        self.has_some.store(false, Ordering::Relaxed);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for waker in wakers {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
