//! The progress engine: polls collectives, moves the transport, and enforces deadlines.
//!
//! A blocking call is polled on the calling thread until it has ended ([`Engine::run`]). A non-blocking call
//! is a task that owns its buffers ([`Engine::spawn`]); every turn of the engine moves those that are ready.
//! There is no global state, and at most one thread ([`EngineThread`]): it carries out aborts, wakes the
//! tasks that wait for handles and, if requested, moves the calls; otherwise it sleeps.

mod background;
mod deadline;
mod driver;
mod handle;
mod join;
mod messages;
mod parked;
mod ready;
mod sleep;
mod status;
mod thread;
mod turns;
mod until;
mod wait;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{CallTime, Comm, Port, Task, TaskFuture, scope_in_turns};
use ucx_sys_wrap::pollable::Pollable;
use ucx_sys_wrap::shm::LocalGroup;

pub use driver::{Descriptor, Driver, Next};
pub use handle::Handle;
pub use join::{join, join_all};
pub use sleep::Sleep;
pub(crate) use status::{AbortUnlessEnded, Course, Status};
pub use thread::EngineThread;

use background::{Background, Tasks};
use deadline::Deadline;
use driver::Driven;
use handle::{Kept, Spawned};
use parked::Parked;
use ready::Ready;
use thread::{Alarm, InBody};
use turns::Turns;
use wait::{Processor, SPINS};

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
    background: Mutex<Tasks>,
    /// Tasks started since the last poll of tasks, so that starting one never waits for a poll.
    started: Mutex<Vec<Box<dyn Background>>>,
    background_count: AtomicUsize,
    /// Which tasks to poll.
    ready: Arc<Ready>,
    /// Blocking calls that were made while others were pending.
    calls_beside: AtomicU32,
    /// The thread that is polling the tasks, if any.
    polled_by: AtomicUsize,
    processor: Processor,
    /// When a call last turned the transport, in nanoseconds of its clock.
    looked_at: AtomicU64,
    is_simulated: bool,
    local_group: Option<Arc<LocalGroup>>,
    course: Arc<Course>,
    /// The context of all ranks.
    world: Arc<Status>,
    /// The handles that wait for the engine's thread, or its driver.
    parked: Parked,
    driven: Arc<Driven>,
    /// The descriptor of [`prepare_sleep`](Engine::prepare_sleep), once it was called.
    pollable: OnceLock<Arc<Pollable>>,
}

impl Engine {
    /// An engine for `port`, of a rank that shares memory with its `local_group`. `is_crowded` tells
    /// whether the host has fewer processors for its ranks than ranks.
    #[must_use]
    pub fn new(port: Arc<Port>, local_group: Option<Arc<LocalGroup>>, is_crowded: bool) -> Arc<Self> {
        Arc::new(Self {
            is_simulated: port.is_simulated(),
            world: Arc::new(Status::new(0, &port)),
            port,
            background: Mutex::default(),
            started: Mutex::default(),
            background_count: AtomicUsize::new(0),
            ready: Arc::default(),
            calls_beside: AtomicU32::new(0),
            polled_by: AtomicUsize::new(0),
            processor: Processor::new(is_crowded),
            looked_at: AtomicU64::new(0),
            local_group,
            course: Arc::default(),
            parked: Parked::default(),
            driven: Arc::default(),
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

    /// The status of the context of all ranks.
    pub(crate) fn world(&self) -> &Arc<Status> {
        &self.world
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
    /// the context of all ranks is closed, because nobody could tell which rank has which result. A panic of
    /// `body` closes it as well.
    ///
    /// All operations of `body` have ended when this returns.
    pub fn run<'env, R>(&self, timeout: Duration, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        self.run_in(&self.world, timeout, async |comm: &Comm<'env>| {
            let unless_ended = AbortUnlessEnded { port: &self.port, status: &self.world };
            let result = body(comm).await;
            std::mem::forget(unless_ended);
            result
        })
    }

    /// Like [`run`](Self::run), but after `timeout` only the operations of `body` fail, with
    /// [`Error::Timeout`](ucx_sys_wrap::Error::Timeout): nothing is closed, and nobody is told. For messages
    /// of which a rank can do without.
    pub fn run_softly<'env, R>(&self, timeout: Duration, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
        self.run_with(&self.world, Deadline::soft, timeout, async |comm: &Comm<'env>| {
            let unless_ended = AbortUnlessEnded { port: &self.port, status: &self.world };
            let result = body(comm).await;
            std::mem::forget(unless_ended);
            result
        })
    }

    /// Like [`run`](Self::run), for a call on this context, whose `body` closes it when it panics.
    pub(crate) fn run_in<'env, R>(
        &self,
        status: &Status,
        timeout: Duration,
        body: impl AsyncFnOnce(&Comm<'env>) -> R,
    ) -> R {
        self.run_with(status, |deadline| deadline, timeout, body)
    }

    /// Likewise; `limit` may change the deadline of the turns.
    fn run_with<'env, R>(
        &self,
        status: &Status,
        limit: impl Fn(Deadline) -> Deadline,
        timeout: Duration,
        body: impl AsyncFnOnce(&Comm<'env>) -> R,
    ) -> R {
        self.turn_for_others();
        let _in_body = InBody::begin();
        let mut turns: Option<Turns> = None;
        let result = scope_in_turns(
            &self.port,
            self.looks(),
            |comm, turn| {
                // A task may wait for another thread, and a thread that yields should block nobody. A task
                // that is started meanwhile is for the next turn.
                let has_background = self.has_background();
                self.parked.count_turn();
                if has_background || self.processor.is_shared() {
                    turn.leave();
                }
                let moved = turn.moved();
                let moved = moved | (has_background && self.poll_background(moved));
                let turns = turns.get_or_insert_with(|| {
                    let mut turns = Turns::new(self, timeout, status, comm.time());
                    turns.deadline = limit(turns.deadline);
                    turns
                });
                turns.pause(moved, self, || comm.expire(), || turn.leave());
                comm.set_spins(self.looks());
            },
            body,
        );
        status.look(&self.port);
        self.stop_turning();
        result
    }

    /// Whether the context was closed before a call that begins to wait `now`. This rank may not have turned
    /// the transport while it computed, so this does, unless it was just done.
    pub(crate) fn is_late(&self, now: Duration, status: &Status) -> bool {
        let now = now.as_nanos() as u64;
        let before = self.looked_at.swap(now, Ordering::Relaxed);
        if now.saturating_sub(before) < RECENT.as_nanos() as u64 {
            return status.is_closed();
        }
        // After this, the transport checks all peers, not only those that are waited for.
        drop(self.port.arm());
        self.port.progress();
        status.look(&self.port)
    }

    /// Runs `body`, which posts no operations, to completion on this thread. When `time` expires, operations
    /// would fail, and `body` must end soon.
    pub(crate) fn run_without_scope<R>(
        &self,
        status: &Status,
        timeout: Duration,
        time: &CallTime,
        body: impl Future<Output = R>,
    ) -> R {
        let mut body = pin!(body);
        let mut context = Context::from_waker(Waker::noop());
        let mut turns: Option<Turns> = None;
        loop {
            if let Poll::Ready(result) = body.as_mut().poll(&mut context) {
                self.stop_turning();
                return result;
            }
            let turns = turns.get_or_insert_with(|| Turns::new(self, timeout, status, time));
            turns.pause(self.turn(), self, || time.expire(), || {});
        }
    }

    /// Starts `body` on buffers that the task owns; the handle returns them with the result.
    ///
    /// The first poll happens here, so that the first operations of `body` are posted in program order. A
    /// panic of `body` closes the context of all ranks.
    pub fn spawn<B, R, F>(self: &Arc<Self>, timeout: Duration, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        self.spawn_in((Arc::clone(&self.world), None), (timeout, None), buffers, body)
    }

    /// Like [`spawn`](Self::spawn), for a call on this context, with what must stay until its operations have
    /// ended. Messages have a grace, as in [`run_messages`](Self::run_messages).
    pub(crate) fn spawn_in<B, R, F>(
        self: &Arc<Self>,
        (status, kept): (Arc<Status>, Kept),
        (timeout, grace): (Duration, Option<Duration>),
        buffers: B,
        body: F,
    ) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'comm> FnOnce(&'comm Comm<'env>, &'env mut B) -> TaskFuture<'comm, R>,
    {
        let task = Task::new(&self.port, buffers, body);
        let now = self.port.now();
        if self.is_late(now, &status) {
            task.comm().time().come_too_late();
        }
        let mut deadline = Deadline::in_background(now, timeout, self.is_simulated);
        if let Some(grace) = grace {
            task.comm().time().expire_softly_first();
            deadline = deadline.with_grace(grace);
        }
        let (handle, mut spawned) = Spawned::new(self, task, (status, kept), deadline);
        if !spawned.poll() {
            self.background_count.fetch_add(1, Ordering::Relaxed);
            self.started.lock().push(Box::new(spawned));
            if let Some(alarm) = self.mover() {
                alarm.wake();
            }
            self.driven.rouse();
        }
        handle
    }

    /// The alarm of the engine's thread, if there is one.
    #[inline]
    fn alarm(&self) -> Option<&Arc<Alarm>> {
        self.ready.alarm.get()
    }

    /// Wakes a thread that moves tasks.
    #[inline]
    fn mover(&self) -> Option<&Alarm> {
        self.alarm().map(|alarm| &**alarm).filter(|alarm| alarm.moves_tasks)
    }

    /// Closes a context on all its ranks. May be called anywhere, including in a signal handler that has
    /// interrupted a call of this engine.
    ///
    /// The next turn of the engine carries the abort out: by a blocked call of any thread, or by the engine's
    /// thread, which this wakes. Without that thread (a single rank, or a simulated network) the next call or
    /// the engine's drop does it. Waits briefly until it is done.
    pub(crate) fn abort(&self, status: &Status) {
        let is_in_use = self.port.request_abort(status.number);
        status.close();
        if let Some(alarm) = self.alarm() {
            alarm.call();
            self.port.await_abort(if is_in_use { ABORT_PATIENCE_INSIDE } else { ABORT_PATIENCE });
        }
    }

    /// Moves the transport and the tasks that are ready once, without blocking. Returns whether anything
    /// happened.
    pub fn turn(&self) -> bool {
        self.parked.count_turn();
        let moved = self.port.progress();
        moved | (self.has_background() && self.poll_background(moved))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.course.has_ended.store(true, Ordering::Relaxed);
    }
}
