//! Which tasks of an engine are to be polled.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::is_for_next_turn;

use super::thread::Alarm;

/// The states of a [`Wakeup`].
const RESTING: u8 = 0;
/// To be polled in the next turn, though nothing has happened.
const AGAIN: u8 = 1;
/// To be polled as soon as possible.
const READY: u8 = 2;

/// The key of a task that the engine has not taken in.
const NO_KEY: usize = usize::MAX;

/// The tasks of an engine that are to be polled. Wakers keep it, and nothing else of the engine.
#[derive(Default)]
pub(super) struct Ready {
    /// Whether a task is ready, and whether one is to be polled again. Cheaper than looking.
    has_some: AtomicBool,
    has_again: AtomicBool,
    keys: Mutex<Vec<usize>>,
    /// Wakes the engine's thread, if there is one.
    pub(super) alarm: OnceLock<Arc<Alarm>>,
}

impl Ready {
    /// Whether something has happened for a task that was not polled since.
    #[inline]
    pub(super) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// Moves the keys of all tasks to poll to `batch`, which is empty.
    #[inline]
    pub(super) fn take(&self, batch: &mut Vec<usize>) {
        if self.has_some() || self.has_again.load(Ordering::Acquire) {
            let mut keys = self.keys.lock();
            self.has_some.store(false, Ordering::Relaxed);
            self.has_again.store(false, Ordering::Relaxed);
            std::mem::swap(&mut *keys, batch);
        }
    }

    fn push(&self, key: usize, has_some: &AtomicBool) {
        let mut keys = self.keys.lock();
        if key != NO_KEY {
            keys.push(key);
            has_some.store(true, Ordering::Release);
        }
    }
}

/// The waker of a task.
pub(super) struct Wakeup {
    key: AtomicUsize,
    state: AtomicU8,
    ready: Arc<Ready>,
}

impl Wakeup {
    pub(super) fn new(ready: &Arc<Ready>) -> Arc<Self> {
        Arc::new(Self {
            key: AtomicUsize::new(NO_KEY),
            state: AtomicU8::new(RESTING),
            ready: Arc::clone(ready),
        })
    }

    /// Sets the key of the task, which is ready from now on.
    pub(super) fn begin(&self, key: usize) {
        self.key.store(key, Ordering::SeqCst);
        // What has woken it before did not know the key.
        self.state.store(READY, Ordering::SeqCst);
        self.ready.push(key, &self.ready.has_some);
    }

    /// The task is about to be polled. Returns whether it is to be.
    pub(super) fn begin_poll(&self) -> bool {
        self.state.swap(RESTING, Ordering::AcqRel) != RESTING
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let key = || self.key.load(Ordering::SeqCst);
        if is_for_next_turn() {
            let exchanged = self.state.compare_exchange(RESTING, AGAIN, Ordering::SeqCst, Ordering::Relaxed);
            if exchanged.is_ok() {
                self.ready.push(key(), &self.ready.has_again);
            }
        } else if self.state.swap(READY, Ordering::SeqCst) != READY {
            self.ready.push(key(), &self.ready.has_some);
            // A blocked call turns the engine itself.
            if let Some(alarm) = self.ready.alarm.get().filter(|alarm| alarm.is_alone()) {
                alarm.wake();
            }
        }
    }
}
