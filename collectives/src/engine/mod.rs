//! The progress engine: polls collectives, moves the transport, and enforces deadlines.
//!
//! A blocking call is polled on the calling thread until it has ended ([`Engine::run`]). A non-blocking call
//! is a task that owns its buffers ([`Engine::spawn`]); every turn of the engine moves all tasks. There is no
//! global state, and at most one thread ([`EngineThread`]): it carries out aborts and, if requested, moves
//! the tasks; otherwise it sleeps.

mod deadline;
mod handle;
mod join;
mod sleep;
mod thread;
mod wait;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{CallTime, Comm, Port, Task, TaskFuture, scope_in_turns};
use ucx_sys_wrap::pollable::Pollable;
use ucx_sys_wrap::shm::LocalGroup;

pub use handle::Handle;
pub use join::join;
pub use sleep::Sleep;
pub use thread::EngineThread;

use deadline::Deadline;
use handle::Spawned;
use thread::{Alarm, Blocked};
use wait::{Processor, SPINS, Waiter};

/// Turns of a waiting call between two readings of the clock while it does not sleep.
const TURNS_PER_CLOCK: u32 = 16;

/// How long an abort waits for the engine's thread. The thread needs microseconds, unless it waits for a lock
/// that the thread of the signal handler holds.
const ABORT_PATIENCE: Duration = Duration::from_millis(100);

/// The same if a thread is in the transport: useless if that is the one that the signal handler interrupted.
const ABORT_PATIENCE_INSIDE: Duration = Duration::from_millis(2);
/// A call that begins this long after the last turn of the transport checks whether the group is closed.
const RECENT: Duration = Duration::from_millis(1);

/// Moves the collectives of one transport.
pub struct Engine {
    port: Arc<Port>,
    background: Mutex<Vec<Box<dyn Background>>>,
    /// Tasks started since the last poll of tasks, so that starting one never waits for a poll.
    started: Mutex<Vec<Box<dyn Background>>>,
    background_count: AtomicUsize,
    /// The thread that is polling the tasks, if any.
    polled_by: AtomicUsize,
    processor: Processor,
    /// When a call last turned the transport, in nanoseconds of its clock.
    looked_at: AtomicU64,
    is_simulated: bool,
    local_group: Option<Arc<LocalGroup>>,
    course: Arc<Course>,
    /// Wakes the engine's thread, if there is one.
    alarm: OnceLock<Arc<Alarm>>,
    /// The descriptor of [`prepare_sleep`](Engine::prepare_sleep), once it was called.
    pollable: OnceLock<Arc<Pollable>>,
}

/// What calls that do not use the transport share with their engine.
#[derive(Default)]
pub(crate) struct Course {
    /// Counts the progress of calls by other means than the transport, after which waiting starts anew.
    pub(crate) moves: AtomicU32,
    /// Whether the engine ends with its transport, so that calls that end with it do so because this rank
    /// leaves.
    pub(crate) has_ended: AtomicBool,
    /// Whether a call has ended because the group is closed. Cheaper than asking the transport.
    pub(crate) is_closed: AtomicBool,
}

/// What a blocked call does between polls.
struct Turns<'engine> {
    _blocked: Option<Blocked<'engine>>,
    waiter: Waiter,
    moves: u32,
    deadline: Deadline,
    turns: u32,
}

impl<'engine> Turns<'engine> {
    fn new(engine: &'engine Engine, timeout: Duration, time: &CallTime) -> Self {
        let now = engine.port.now();
        if !engine.is_late(now) {
            time.begin_to_wait(now);
        }
        let deadline = Deadline::after(now, timeout, engine.is_simulated);
        let blocked = Blocked::begin(engine);
        Self { _blocked: blocked, waiter: Waiter::new(), moves: engine.moves(), deadline, turns: 0 }
    }

    /// Pauses after a turn that `moved` something or not. Calls `expire` when the call must end, and `leave`
    /// before it sleeps.
    #[inline]
    fn pause(&mut self, moved: bool, engine: &Engine, expire: impl FnOnce(), leave: impl FnOnce()) {
        let before = std::mem::replace(&mut self.moves, engine.moves());
        let sleeps = self.waiter.pause(moved || self.moves != before, &engine.processor);
        self.turns = self.turns.wrapping_add(1);
        if sleeps || self.turns.is_multiple_of(TURNS_PER_CLOCK) {
            let now = engine.port.now();
            engine.looked_at.store(now.as_nanos() as u64, Ordering::Relaxed);
            self.deadline.look(now, moved, &engine.port, expire);
            if sleeps {
                leave();
                self.waiter.sleep(self.deadline.patience(now), &engine.port, engine.local_group());
            }
        }
    }
}

/// A task that every turn of the engine moves.
trait Background: Send {
    /// Polls it. Returns whether the task has ended and handed over its result.
    fn poll(&mut self) -> bool;

    /// Checks its deadline, after a poll and a turn of the transport that `moved` something or not. Returns
    /// whether the deadline has just passed, so that the next poll ends the task.
    fn look(&mut self, now: Duration, moved: bool) -> bool;
}

impl Engine {
    /// An engine for `port`, of a rank that shares memory with its `local_group`. `is_crowded` tells
    /// whether the host has fewer processors for its ranks than ranks.
    #[must_use]
    pub fn new(port: Arc<Port>, local_group: Option<Arc<LocalGroup>>, is_crowded: bool) -> Arc<Self> {
        Arc::new(Self {
            is_simulated: port.is_simulated(),
            port,
            background: Mutex::default(),
            started: Mutex::default(),
            background_count: AtomicUsize::new(0),
            polled_by: AtomicUsize::new(0),
            processor: Processor::new(is_crowded),
            looked_at: AtomicU64::new(0),
            local_group,
            course: Arc::default(),
            alarm: OnceLock::new(),
            pollable: OnceLock::new(),
        })
    }

    fn local_group(&self) -> Option<&LocalGroup> {
        self.local_group.as_deref()
    }

    /// How often calls have made progress by other means than the transport.
    #[inline]
    fn moves(&self) -> u32 {
        self.course.moves.load(Ordering::Relaxed)
    }

    /// For calls that make progress by other means than the transport.
    pub(crate) fn course(&self) -> &Arc<Course> {
        &self.course
    }

    /// How often to check a flag before other work gets a turn; 0 if others want the processor.
    #[must_use]
    pub fn spins(&self) -> u32 {
        if self.processor.is_shared() { 0 } else { SPINS }
    }

    /// How often a receive may poll for its message before other work gets a turn; 0 if there are tasks.
    #[inline]
    fn looks(&self) -> u32 {
        if self.has_background() { 0 } else { self.spins() }
    }

    /// The port of the transport.
    #[must_use]
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Runs `body` to completion on this thread. If it has not ended after `timeout`, its operations fail and
    /// the transport is closed on all ranks, because nobody could tell which rank has which result.
    ///
    /// All operations of `body` have ended when this returns.
    pub fn run<'env, R>(&self, timeout: Duration, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        let mut turns: Option<Turns> = None;
        let result = scope_in_turns(
            &self.port,
            self.looks(),
            |comm, turn| {
                // A task may wait for another thread, and a thread that yields should block nobody. A task
                // that is started meanwhile is for the next turn.
                let has_background = self.has_background();
                if has_background || self.processor.is_shared() {
                    turn.leave();
                }
                let moved = turn.moved();
                let moved = moved | (has_background && self.poll_background(moved));
                let turns = turns.get_or_insert_with(|| Turns::new(self, timeout, comm.time()));
                turns.pause(moved, self, || comm.expire(), || turn.leave());
                comm.set_spins(self.looks());
            },
            body,
        );
        self.look_for_failure();
        result
    }

    /// Whether the group was closed before a call that begins to wait `now`. This rank may not have turned
    /// the transport while it computed, so this does, unless it was just done.
    fn is_late(&self, now: Duration) -> bool {
        let now = now.as_nanos() as u64;
        let before = self.looked_at.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) < RECENT.as_nanos() as u64 {
            return self.course.is_closed.load(Ordering::Relaxed);
        }
        // After this, the transport checks all peers, not only those that are waited for.
        drop(self.port.arm());
        self.port.progress();
        self.port.failure().is_some()
    }

    /// Notes whether the group is closed.
    fn look_for_failure(&self) {
        if self.port.failure().is_some() {
            self.course.is_closed.store(true, Ordering::Relaxed);
        }
    }

    /// Runs `body`, which posts no operations, to completion on this thread. When `time` expires, operations
    /// would fail, and `body` must end soon.
    pub(crate) fn run_without_scope<R>(
        &self,
        timeout: Duration,
        time: &CallTime,
        body: impl Future<Output = R>,
    ) -> R {
        let mut body = pin!(body);
        let mut context = Context::from_waker(Waker::noop());
        let mut turns: Option<Turns> = None;
        loop {
            if let Poll::Ready(result) = body.as_mut().poll(&mut context) {
                return result;
            }
            let turns = turns.get_or_insert_with(|| Turns::new(self, timeout, time));
            turns.pause(self.turn(), self, || time.expire(), || {});
        }
    }

    /// Starts `body` on buffers that the task owns; the handle returns them with the result.
    ///
    /// The first poll happens here, so that the first operations of `body` are posted in program order.
    pub fn spawn<B, R, F>(self: &Arc<Self>, timeout: Duration, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        let task = Task::new(&self.port, buffers, body);
        let now = self.port.now();
        if self.is_late(now) {
            task.comm().time().come_too_late();
        }
        let deadline = Deadline::in_background(now, timeout, self.is_simulated);
        let (handle, mut spawned) = Spawned::new(self, task, deadline);
        if spawned.poll() {
            self.look_for_failure();
        } else {
            self.background_count.fetch_add(1, Ordering::Relaxed);
            self.started.lock().push(Box::new(spawned));
            if let Some(alarm) = self.mover() {
                alarm.wake();
            }
        }
        handle
    }

    /// Wakes a thread that moves tasks.
    #[inline]
    fn mover(&self) -> Option<&Alarm> {
        self.alarm.get().map(|alarm| &**alarm).filter(|alarm| alarm.moves_tasks)
    }

    /// Closes the transport on all ranks. May be called anywhere, including in a signal handler that has
    /// interrupted a call of this engine.
    ///
    /// The next turn of the engine carries the abort out: by a blocked call of any thread, or by the engine's
    /// thread, which this wakes. Without that thread (a single rank, or a simulated network) the next call or
    /// the engine's drop does it. Waits briefly until it is done.
    pub fn abort(&self) {
        let is_in_use = self.port.request_abort();
        self.course.is_closed.store(true, Ordering::Relaxed);
        if let Some(alarm) = self.alarm.get() {
            alarm.call();
            self.port.await_abort(if is_in_use { ABORT_PATIENCE_INSIDE } else { ABORT_PATIENCE });
        }
    }

    /// Moves the transport and every task once, without blocking. Returns whether anything happened.
    pub fn turn(&self) -> bool {
        let moved = self.port.progress();
        moved | (self.has_background() && self.poll_background(moved))
    }

    /// Whether non-blocking calls are pending.
    #[inline]
    fn has_background(&self) -> bool {
        self.background_count.load(Ordering::Relaxed) > 0
    }

    /// Whether this thread is polling a task.
    fn is_polled_here(&self) -> bool {
        self.polled_by.load(Ordering::Relaxed) == this_thread()
    }

    /// Polls every task, then checks their deadlines: a task that has all that it needs ends first. Only one
    /// thread at a time does, and never from inside a task. `moved` tells whether the transport has moved.
    fn poll_background(&self, moved: bool) -> bool {
        let Some(mut tasks) = self.background.try_lock() else { return false };
        tasks.append(&mut self.started.lock());
        let before = tasks.len();
        let polled = Polled::begin(self);
        tasks.retain_mut(|task| !task.poll());
        if !tasks.is_empty() {
            let now = self.port.now();
            let is_late = tasks.iter_mut().fold(false, |is_late, task| task.look(now, moved) | is_late);
            if is_late {
                tasks.retain_mut(|task| !task.poll());
            }
        }
        drop(polled);
        let ended = before - tasks.len();
        if ended > 0 {
            self.look_for_failure();
        }
        self.background_count.fetch_sub(ended, Ordering::Relaxed);
        ended > 0
    }
}

/// Marks this thread as polling the tasks.
struct Polled<'engine>(&'engine Engine);

impl<'engine> Polled<'engine> {
    fn begin(engine: &'engine Engine) -> Self {
        engine.polled_by.store(this_thread(), Ordering::Relaxed);
        Self(engine)
    }
}

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        self.0.polled_by.store(0, Ordering::Relaxed);
    }
}

/// A number, not 0, that no other live thread has.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.course.has_ended.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_comes_further_over_shared_memory_does_not_sleep() {
        let alone = ucx_sys_wrap::local::world(1).into_iter().next().unwrap();
        let engine = Engine::new(Port::new(Box::new(alone)), None, false);
        let mut turns = Turns::new(&engine, Duration::from_secs(10), &CallTime::default());
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {
            engine.course().moves.fetch_add(1, Ordering::Relaxed);
            turns.pause(false, &engine, || {}, || {});
        }
        // As many turns as lie between two readings of the clock.
        assert!((0..32).all(|_| !turns.waiter.pause(false, &engine.processor)), "it has just moved");
    }
}
