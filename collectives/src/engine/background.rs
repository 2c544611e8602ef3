//! The tasks of an engine: who polls them, and when.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};
use std::time::Duration;

use slab::Slab;

use super::ready::Wakeup;
use super::thread::InBody;
use super::{Engine, parked};

/// Blocking calls between two turns before a call, while others are pending.
const CALLS_PER_TURN: u32 = 16;

/// The time between two looks at the deadlines of all tasks, if none ends before.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A task whose future does not wake it is polled this often all the same.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// A task that turns of the engine move.
pub(super) trait Background: Send {
    /// Polls it. Returns whether the task has ended and handed over its result.
    fn poll(&mut self) -> bool;

    /// Its waker.
    fn wakeup(&self) -> &Arc<Wakeup>;

    /// When its deadline passes; never if it has passed.
    fn end(&self) -> Duration;

    /// Checks its deadline, after a poll and a turn of the transport that `moved` something or not. Returns
    /// whether the deadline has just passed, so that the next poll ends the task.
    fn look(&mut self, now: Duration, moved: bool) -> bool;

    /// The waker of the task that awaits it, once it has ended.
    fn take_waker(&mut self) -> Option<Waker>;
}

/// The tasks of an engine.
#[derive(Default)]
pub(super) struct Tasks {
    all: Slab<Box<dyn Background>>,
    /// Scratch: the keys of the tasks that a turn polls.
    batch: Vec<usize>,
    /// When to look at the deadlines of all tasks, and when to poll all of them.
    next_look: Duration,
    next_poll: Duration,
}

impl Tasks {
    /// Takes in tasks that were started; they are ready.
    fn take_in(&mut self, started: &mut Vec<Box<dyn Background>>) {
        for task in started.drain(..) {
            self.next_look = self.next_look.min(task.end());
            let wakeup = Arc::clone(task.wakeup());
            wakeup.begin(self.all.insert(task));
        }
    }

    /// Wakes all tasks if that is due.
    fn wake_all(&mut self, now: Duration, is_simulated: bool) {
        if now >= self.next_poll || is_simulated {
            self.next_poll = now.saturating_add(POLL_EVERY);
            for (_, task) in &self.all {
                task.wakeup().wake_by_ref();
            }
        }
    }

    /// Looks at the deadlines of all tasks if that is due, and wakes those that are late. Returns whether
    /// there are any.
    fn look(&mut self, now: Duration, moved: bool, is_simulated: bool) -> bool {
        if now < self.next_look && !is_simulated {
            return false;
        }
        let mut is_late = false;
        self.next_look = now.saturating_add(LOOK_EVERY);
        for (_, task) in &mut self.all {
            if task.look(now, moved) {
                task.wakeup().wake_by_ref();
                is_late = true;
            }
            self.next_look = self.next_look.min(task.end());
        }
        is_late
    }

    /// Polls the tasks that are ready, and removes those that have ended.
    fn poll(&mut self, engine: &Engine, wakers: &mut Vec<Waker>) {
        let Self { all, batch, .. } = self;
        engine.ready.take(batch);
        // Before any is polled: a task that was woken twice is in the batch twice.
        batch.retain(|key| all.get(*key).is_some_and(|task| task.wakeup().begin_poll()));
        for key in batch.drain(..) {
            let Some(task) = all.get_mut(key) else { continue };
            // A panic of the body was caught inside. One of foreign code beside it, as of a buffer's drop,
            // must not take the turn of the other tasks.
            let ended = catch_unwind(AssertUnwindSafe(|| task.poll()));
            if ended.unwrap_or(true) {
                wakers.extend(task.take_waker());
                let task = all.remove(key);
                let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
            }
        }
    }
}

impl Engine {
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
    pub(crate) fn has_background(&self) -> bool {
        self.background_count.load(Ordering::Acquire) > 0
    }

    /// Whether this thread is polling a task.
    pub(super) fn is_polled_here(&self) -> bool {
        self.polled_by.load(Ordering::Relaxed) == this_thread()
    }

    /// Polls the tasks that are ready, then checks the deadlines: a task that has all that it needs ends
    /// first. Only one thread at a time does, and never from inside a task. `moved` tells whether the
    /// transport has moved. Returns whether a task has ended or is ready again.
    ///
    /// So a turn costs what has moved, not what is pending, but for a look at all deadlines once in a
    /// millisecond.
    pub(super) fn poll_background(&self, moved: bool) -> bool {
        let Some(mut guard) = self.background.try_lock() else { return self.ready.has_some() };
        let tasks = &mut *guard;
        tasks.take_in(&mut self.started.lock());
        let before = tasks.all.len();
        let polled = Polled::begin(self);
        let mut wakers = Vec::new();
        if !tasks.all.is_empty() {
            let now = self.port.now();
            tasks.wake_all(now, self.is_simulated);
            tasks.poll(self, &mut wakers);
            if tasks.look(now, moved, self.is_simulated) {
                // The operations of late tasks wake futures inside them.
                self.port.wake();
                tasks.wake_all(now, self.is_simulated);
                tasks.poll(self, &mut wakers);
            }
        }
        drop(polled);
        let ended = before - tasks.all.len();
        // Whoever sees none pending sees all results.
        self.background_count.fetch_sub(ended, Ordering::Release);
        drop(guard);
        parked::wake(wakers.into_iter());
        ended > 0 || self.ready.has_some() || self.port.has_woken()
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
