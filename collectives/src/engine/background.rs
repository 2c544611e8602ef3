//! The tasks of an engine: who polls them, and when.

use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use super::thread::InBody;
use super::{Engine, parked};

/// Blocking calls between two turns before a call, while others are pending.
const CALLS_PER_TURN: u32 = 16;

/// A task that every turn of the engine moves.
pub(super) trait Background: Send {
    /// Polls it. Returns whether the task has ended and handed over its result.
    fn poll(&mut self) -> bool;

    /// Checks its deadline, after a poll and a turn of the transport that `moved` something or not. Returns
    /// whether the deadline has just passed, so that the next poll ends the task.
    fn look(&mut self, now: Duration, moved: bool) -> bool;

    /// The waker of the task that awaits it, once it has ended.
    fn take_waker(&mut self) -> Option<Waker>;
}

impl Engine {
    /// A task was canceled: it must take no message that comes from now on.
    pub(super) fn cancel(&self) {
        self.has_canceled.store(true, Ordering::SeqCst);
        // Inside a body, tasks are polled after it.
        if !InBody::is_here() {
            self.heed_canceled();
        }
    }

    /// Lets canceled tasks withdraw what they wait for, before the transport moves.
    #[inline]
    pub(super) fn heed_canceled(&self) {
        if self.has_canceled.load(Ordering::Relaxed) && self.has_canceled.swap(false, Ordering::SeqCst) {
            match self.background.try_lock() {
                // The thread that polls tasks has perhaps polled this one before.
                None => self.has_canceled.store(true, Ordering::SeqCst),
                Some(tasks) => {
                    drop(tasks);
                    self.poll_background(false);
                }
            }
        }
    }

    /// Turns before some of the blocking calls that are made while others are pending. A blocking call that
    /// finds all that it needs does not turn, and an application may make only such calls.
    #[inline]
    pub(crate) fn turn_for_others(&self) {
        if self.has_background() {
            // Concurrent calls have different counts, so one of them turns.
            let calls = self.calls_beside.fetch_add(1, Ordering::Relaxed);
            if calls.is_multiple_of(CALLS_PER_TURN) {
                self.turn();
            }
        }
    }

    /// Whether non-blocking calls are pending.
    #[inline]
    pub(super) fn has_background(&self) -> bool {
        self.background_count.load(Ordering::Relaxed) > 0
    }

    /// Whether this thread is polling a task.
    pub(super) fn is_polled_here(&self) -> bool {
        self.polled_by.load(Ordering::Relaxed) == this_thread()
    }

    /// Polls every task, then checks their deadlines: a task that has all that it needs ends first. Only one
    /// thread at a time does, and never from inside a task. `moved` tells whether the transport has moved.
    pub(super) fn poll_background(&self, moved: bool) -> bool {
        let Some(mut tasks) = self.background.try_lock() else { return false };
        tasks.append(&mut self.started.lock());
        let before = tasks.len();
        let polled = Polled::begin(self);
        let mut wakers = Vec::new();
        let mut poll = |task: &mut Box<dyn Background>| {
            let has_ended = task.poll();
            if has_ended {
                wakers.extend(task.take_waker());
            }
            !has_ended
        };
        tasks.retain_mut(&mut poll);
        if !tasks.is_empty() {
            let now = self.port.now();
            let is_late = tasks.iter_mut().fold(false, |is_late, task| task.look(now, moved) | is_late);
            if is_late {
                tasks.retain_mut(&mut poll);
            }
        }
        drop(polled);
        let ended = before - tasks.len();
        self.background_count.fetch_sub(ended, Ordering::Relaxed);
        drop(tasks);
        parked::wake(wakers.into_iter());
        ended > 0
    }
}

/// Marks this thread as polling the tasks.
struct Polled<'engine> {
    engine: &'engine Engine,
    _in_body: InBody,
}

impl<'engine> Polled<'engine> {
    fn begin(engine: &'engine Engine) -> Self {
        engine.polled_by.store(this_thread(), Ordering::Relaxed);
        Self { engine, _in_body: InBody::begin() }
    }
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        self.engine.polled_by.store(0, Ordering::Relaxed);
    }
}

/// A number, not 0, that no other live thread has.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}
