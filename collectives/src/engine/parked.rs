//! Handles that wait without turning the engine.
//!
//! A handle that has waited for a millisecond parks: it prepares the engine's descriptor for sleeping, and
//! leaves waiting on it to the engine's thread, which wakes all parked handles when something has come. The
//! handles then turn the engine themselves, in the runtimes that poll them. If there is a driver, it waits
//! and turns in place of the thread, which takes over if the driver makes no turn for 20 ms.
//!
//! Whoever turns the engine takes the wake-up of the descriptor, so it must wake the parked handles when it
//! stops ([`Engine::stop_turning`]). If it does not, the thread wakes them after 10 ms.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::task::Waker;

use parking_lot::Mutex;

use super::Engine;

/// A handle that may be parked.
pub(super) trait Wakes: Send + Sync {
    /// Notes that it is parked. Returns whether it was not before.
    fn begins_to_park(&self) -> bool;

    /// Takes the waker of its task; it is not parked any more.
    fn take_waker(&self) -> Option<Waker>;
}

/// The handles of an engine that are parked.
#[derive(Default)]
pub(super) struct Parked {
    handles: Mutex<Vec<Arc<dyn Wakes>>>,
    /// Whether there are any. Cheaper than looking.
    has_some: AtomicBool,
    /// Whether the descriptor was prepared and nobody has turned the engine since.
    is_armed: AtomicBool,
    /// The turns of the engine. Concurrent ones may count once.
    turns: AtomicU32,
    /// The polls of handles.
    polls: AtomicU32,
    /// The first polls of handles since one was pending: so many calls have ended at once.
    at_once: AtomicU32,
}

/// A task lets others run after so many calls that have ended at once.
pub(super) const AT_ONCE: u32 = 16;

impl Parked {
    #[inline]
    pub(super) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.is_armed.load(Ordering::Relaxed)
    }

    pub(super) fn set_armed(&self, is_armed: bool) {
        self.is_armed.store(is_armed, Ordering::Relaxed);
    }

    /// Counts a turn of the engine, which takes the wake-up of the descriptor.
    #[inline]
    pub(super) fn count_turn(&self) {
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.is_armed() {
            self.is_armed.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn turns(&self) -> u32 {
        self.turns.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn count_poll(&self) {
        self.polls.store(self.polls().wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Counts the first poll of a handle. Returns whether its task is to let others run before.
    #[inline]
    pub(super) fn counts_at_once(&self) -> bool {
        let before = self.at_once.load(Ordering::Relaxed);
        let is_due = before >= AT_ONCE;
        self.at_once.store(if is_due { 0 } else { before + 1 }, Ordering::Relaxed);
        is_due
    }

    /// A task waits, so that others run.
    #[inline]
    pub(super) fn reset_at_once(&self) {
        self.at_once.store(0, Ordering::Relaxed);
    }

    /// Parks a handle whose task has left its waker.
    fn push(&self, handle: &Arc<dyn Wakes>) {
        if handle.begins_to_park() {
            self.handles.lock().push(Arc::clone(handle));
        }
        self.has_some.store(true, Ordering::Relaxed);
    }

    /// Wakes the tasks of all handles.
    #[cold]
    pub(super) fn wake_all(&self) {
        self.has_some.store(false, Ordering::Relaxed);
        let handles = std::mem::take(&mut *self.handles.lock());
        wake(handles.into_iter().filter_map(|handle| handle.take_waker()));
    }
}

/// Wakes tasks. Wakers are foreign code: no lock may be held, and a panic of one must not unwind through the
/// call of another.
pub(super) fn wake(wakers: impl Iterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

impl Engine {
    /// Parks a handle if a driver or a thread watches the descriptor, which is armed. Returns whether one
    /// does.
    pub(super) fn park(&self, handle: &Arc<dyn Wakes>) -> bool {
        if self.pollable.get().is_none() {
            return false;
        }
        if self.driven.has_driver() {
            self.parked.push(handle);
            fence(Ordering::SeqCst);
            // Otherwise it was dropped meanwhile, and perhaps has not seen the handle.
            if self.driven.has_driver() {
                self.driven.want();
                // It does not rely on the driver.
                if let Some(alarm) = self.alarm() {
                    alarm.wake();
                }
            } else {
                self.parked.wake_all();
            }
            return true;
        }
        let Some(alarm) = self.alarm().filter(|alarm| !alarm.has_ended()) else { return false };
        self.parked.push(handle);
        // The thread sees the handle before it sleeps, or this wakes it.
        alarm.wake();
        if alarm.has_ended() {
            self.parked.wake_all();
        }
        true
    }

    /// Wakes parked handles, if turns that nobody goes on with have taken what would wake them.
    #[inline]
    pub(crate) fn stop_turning(&self) {
        if self.parked.has_some() && !self.parked.is_armed() {
            self.parked.wake_all();
        }
        if self.driven.has_driver() && self.has_background() {
            self.driven.want();
        }
    }
}
