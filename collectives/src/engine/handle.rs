//! Handles of non-blocking calls.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{GiveUp, Port, Task, next_turn};

use super::deadline::Deadline;
use super::parked::Wakes;
use super::ready::Wakeup;
use super::thread::InBody;
use super::wait::Waiter;
use super::{Background, Engine, Status};

const RESULT_IS_GONE: &str = "a Handle polled or waited for after it has returned its result";

type Slot<T> = Arc<Outcome<T>>;

/// The place for a call's result, or its panic, and for the waker of the task that awaits it.
struct Outcome<T> {
    state: Mutex<State<T>>,
    /// What gives the call up; `None` for calls of all ranks.
    give_up: Option<GiveUp>,
    /// Whether the engine keeps it among the parked ones.
    is_parked: AtomicBool,
    /// The waker of the call, if it has not ended at once.
    wakeup: Option<Arc<Wakeup>>,
}

struct State<T> {
    result: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

impl<T> Outcome<T> {
    fn ended(result: T) -> Slot<T> {
        Self::new(Some(Ok(result)), None, None)
    }

    fn new(
        result: Option<thread::Result<T>>,
        give_up: Option<GiveUp>,
        wakeup: Option<Arc<Wakeup>>,
    ) -> Slot<T> {
        let state = Mutex::new(State { result, waker: None });
        Arc::new(Self { state, give_up, is_parked: AtomicBool::new(false), wakeup })
    }

    /// The call is not wanted any more, and takes no message from now on. Its next poll ends it, unless it
    /// is one of all ranks.
    fn cancel(&self, port: &Port) {
        if let Some(give_up) = &self.give_up {
            port.give_up(give_up);
        }
        // The body of a call of all ranks may look at a flag of its own.
        if let Some(wakeup) = &self.wakeup {
            wakeup.wake_by_ref();
        }
    }
}

impl<T: Send> Wakes for Outcome<T> {
    fn begins_to_park(&self) -> bool {
        !self.is_parked.swap(true, Ordering::SeqCst)
    }

    fn take_waker(&self) -> Option<Waker> {
        // Before: a task that parks again after this is kept again.
        self.is_parked.store(false, Ordering::SeqCst);
        self.state.lock().waker.take()
    }
}

/// A panic that nobody takes is logged.
impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        let Some(Err(panic)) = &self.state.get_mut().result else { return };
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("no text");
        tracing::error!("a call whose handle was dropped has panicked, and closed its group: {text}");
    }
}

/// Turns of the engine in a poll of a handle, if nobody else turns it.
const TURNS_PER_POLL: u32 = 8;

/// Polls of a handle between two looks at the clock, while others turn the engine.
const POLLS_PER_LOOK: u32 = 64;

/// A non-blocking call: test it, wait for it, or await it in any runtime.
///
/// A task that awaits a handle turns the engine itself for the first millisecond of a wait, as a blocking
/// call does, and yields the processor if others want it. Then it sleeps: the engine's thread wakes it when
/// something has come. A runtime's other tasks run in between, also if call after call ends at once: then the
/// first poll of every 17th handle is pending, and wakes its task. Dropping a handle detaches the call,
/// because its peers still need it: the call continues whenever the engine is turned. If the call then
/// panics, that is logged. Receives of messages between two ranks, and probes for them, are
/// [canceled](Self::cancel) instead.
///
/// # Panics
/// Like other futures, a handle panics if it is polled after it was ready.
#[must_use = "a dropped handle loses the call's buffers and result"]
pub struct Handle<T> {
    engine: Arc<Engine>,
    slot: Slot<T>,
    /// The same as the slot; `None` for a call that was refused, which never waits.
    parkable: Option<Arc<dyn Wakes>>,
    waiter: Waiter,
    /// The turns of the engine at the last poll.
    turns: u32,
    /// The polls after turns of others.
    follows: u32,
    /// Whether a poll was pending.
    was_pending: bool,
    /// Whether a poll has returned the result.
    is_spent: bool,
    /// Whether dropping it cancels the call.
    is_receive: bool,
}

impl<T> Handle<T> {
    /// The handle of a call that has already ended with `value`.
    pub(crate) fn ended(engine: &Arc<Engine>, value: T) -> Self {
        Self::of(engine, Outcome::ended(value), None)
    }

    fn of(engine: &Arc<Engine>, slot: Slot<T>, parkable: Option<Arc<dyn Wakes>>) -> Self {
        let (engine, turns, waiter) = (Arc::clone(engine), engine.parked.turns(), Waiter::new());
        Self {
            engine,
            slot,
            parkable,
            waiter,
            turns,
            follows: 0,
            was_pending: false,
            is_spent: false,
            is_receive: false,
        }
    }

    /// Turns the engine once and returns whether the call has ended. Inside the body of another call no call
    /// makes progress: await the handle there.
    #[must_use]
    pub fn test(&self) -> bool {
        self.engine.turn();
        self.engine.stop_turning();
        self.has_ended()
    }

    /// The handle of a receive, which is canceled when it is dropped: nobody else needs it.
    pub(crate) fn of_receive(mut self) -> Self {
        self.is_receive = true;
        self
    }

    /// Gives up a message that was started, and turns the engine once. A receive or probe that has found no
    /// message ends with [`Error::Canceled`](crate::Error::Canceled), and takes none; one whose message has
    /// begun to come goes on. A send that has not ended is given up: its receiver gets the whole message or
    /// nothing. Does nothing to calls of all ranks, which others need.
    ///
    /// The handle must still be waited for.
    pub fn cancel(&self) {
        self.slot.cancel(&self.engine.port);
        self.engine.turn();
        self.engine.stop_turning();
    }

    /// Like [`cancel`](Self::cancel), but leaves turning the engine to the caller: for one that holds a lock,
    /// because a turn runs wakers. No message is taken from now on, and the call ends in the next turn.
    pub fn cancel_in_next_turn(&self) {
        self.slot.cancel(&self.engine.port);
    }

    /// Whether the call has ended, without turning the engine.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_spent || self.slot.state.lock().result.is_some()
    }

    /// Leaves a waker to wake when the call ends, for a handle that nobody polls. Returns whether the call
    /// has ended already; then the waker is not kept. A later poll, or another waker, replaces it.
    pub fn wake_at_end(&self, waker: &Waker) -> bool {
        let mut state = self.slot.state.lock();
        if state.result.is_some() || self.is_spent {
            return true;
        }
        let before = state.waker.replace(waker.clone());
        drop(state);
        // Foreign code: not under the lock.
        drop(before);
        false
    }

    /// The result, if the call has ended.
    fn take(&self) -> Option<thread::Result<T>> {
        assert!(!self.is_spent, "{RESULT_IS_GONE}");
        self.slot.state.lock().result.take()
    }

    /// The result, if the call has ended. Otherwise its end will wake the task of `context`.
    fn take_or_leave(&self, context: &Context<'_>) -> Option<thread::Result<T>> {
        assert!(!self.is_spent, "{RESULT_IS_GONE}");
        let mut state = self.slot.state.lock();
        let result = state.result.take();
        if result.is_some() || state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return result;
        }
        let before = state.waker.replace(context.waker().clone());
        drop(state);
        // Foreign code: not under the lock.
        drop(before);
        None
    }

    /// Blocks until the call has ended, at the latest by its deadline.
    ///
    /// # Panics
    /// With the call's own panic, if it panicked. Inside the body of another non-blocking call, where this
    /// call can't make progress: await the handle there. If a poll has returned the result already.
    pub fn wait(mut self) -> T {
        // The call's own deadline ends it.
        self.engine.turn_until(Duration::MAX, || self.has_ended());
        let result = self.take().unwrap_or_else(|| unreachable!("it waits for ever"));
        // Nothing to cancel.
        self.is_spent = true;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// What a poll does while the call is pending: some turns at once, because a runtime may look at all its
    /// descriptors between two polls. Returns whether the task is to be polled again soon.
    fn await_turns(&mut self) -> bool {
        for _ in 1..TURNS_PER_POLL {
            let follows = self.follows;
            let is_again = self.await_turn();
            let has_followed = self.follows != follows;
            if !is_again || has_followed || self.has_ended() {
                return is_again;
            }
        }
        self.await_turn()
    }

    /// What a poll does while the call is pending. Returns whether the task is to be polled again soon;
    /// otherwise something will wake it.
    fn await_turn(&mut self) -> bool {
        let engine = &self.engine;
        let turns = engine.parked.turns();
        if turns != self.turns {
            // Somebody has turned since the last poll, perhaps another handle of this task, which pauses for
            // all.
            self.turns = turns;
            self.follows = self.follows.wrapping_add(1);
            let is_late =
                self.follows.is_multiple_of(POLLS_PER_LOOK) && self.waiter.pause(false, &engine.processor);
            return !(is_late || engine.parked.is_armed()) || !self.park();
        }
        let moves = engine.moves();
        let moved = engine.turn() || engine.moves() != moves;
        self.turns = engine.parked.turns();
        let is_late = self.waiter.pause(moved, &engine.processor);
        if !is_late {
            return true;
        }
        let is_armed = engine.prepare_sleep().is_some();
        self.turns = engine.parked.turns();
        if is_armed && self.park() {
            return false;
        }
        // Nobody would wake it, or something has just moved.
        thread::yield_now();
        true
    }

    fn park(&self) -> bool {
        self.parkable.as_ref().is_some_and(|handle| self.engine.park(handle))
    }
}

impl<T> Future for Handle<T> {
    type Output = T;

    /// # Panics
    /// With the call's own panic, if it panicked. If an earlier poll has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Inside a body and in simulations nobody else runs on this thread.
        let is_in_runtime = !self.engine.is_simulated && !InBody::is_here();
        if self.was_pending {
            // Only now is it known that others have run: the task may have gone on with something else.
            self.engine.parked.reset_at_once();
        } else if is_in_runtime && self.engine.parked.counts_at_once() {
            self.was_pending = true;
            return next_turn(context);
        }
        let mut result = self.take_or_leave(context);
        if result.is_none() {
            self.engine.parked.count_poll();
            // Inside a body this thread may hold the transport, which others need to go on. Inside a task of
            // this engine, its end alone wakes the task.
            let is_again = if !self.engine.is_simulated && self.engine.is_polled_here() {
                false
            } else if self.engine.is_simulated || InBody::is_here() {
                self.engine.turn();
                true
            } else {
                self.await_turns()
            };
            result = self.take();
            if result.is_none() {
                self.was_pending = true;
                return if is_again { next_turn(context) } else { Poll::Pending };
            }
        }
        let Some(result) = result else { return Poll::Pending };
        self.is_spent = true;
        self.engine.stop_turning();
        Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<T> Drop for Handle<T> {
    /// Its task may own it: the waker would keep both.
    fn drop(&mut self) {
        if self.engine.port.has_forked() {
            return;
        }
        if self.is_receive && !self.is_spent {
            self.slot.cancel(&self.engine.port);
            // Inside a body, tasks are polled after it.
            if !InBody::is_here() {
                self.engine.poll_background(false);
            }
        }
        let waker = self.slot.state.lock().waker.take();
        drop(waker);
        self.engine.stop_turning();
    }
}

/// A task of the engine, and the slot for its result.
pub(super) struct Spawned<B: Send + 'static, R> {
    task: Task<B, R>,
    slot: Slot<(B, R)>,
    wakeup: Arc<Wakeup>,
    waker: Waker,
    status: Arc<Status>,
    deadline: Deadline,
    /// The waker of the task that awaits it, once it has ended.
    left: Option<Waker>,
    /// Dropped after the task, whose operations may end after its body.
    _kept: Kept,
}

/// What stays as long as a task.
pub(crate) type Kept = Option<Arc<dyn Send + Sync>>;

impl<B: Send + 'static, R: Send + 'static> Spawned<B, R> {
    pub(super) fn new(
        engine: &Arc<Engine>,
        task: Task<B, R>,
        (status, kept): (Arc<Status>, Kept),
        deadline: Deadline,
    ) -> (Handle<(B, R)>, Self) {
        let wakeup = Wakeup::new(&engine.ready);
        let give_up = deadline.has_grace().then(|| task.comm().to_give_up());
        let slot = Outcome::new(None, give_up, Some(Arc::clone(&wakeup)));
        let waker = Arc::clone(&wakeup).into();
        let parkable: Arc<dyn Wakes> = Arc::<Outcome<(B, R)>>::clone(&slot);
        let handle = Handle::of(engine, Arc::clone(&slot), Some(parkable));
        (handle, Self { task, slot, wakeup, waker, status, deadline, left: None, _kept: kept })
    }

    /// Polls the task, and returns its result if it has ended.
    fn poll_task(&mut self) -> Option<thread::Result<(B, R)>> {
        let mut context = Context::from_waker(&self.waker);
        match catch_unwind(AssertUnwindSafe(|| self.task.poll(&mut context))) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(Ok(result)),
            Err(panic) => {
                self.status.abort(self.task.comm().port());
                Some(Err(panic))
            }
        }
    }
}

impl<B: Send + 'static, R: Send + 'static> Background for Spawned<B, R> {
    fn poll(&mut self) -> bool {
        let comm = self.task.comm();
        if comm.is_given_up() && self.deadline.cancel(comm.now()) {
            comm.expire();
            // Futures inside the body are polled only when they are woken.
            comm.port().wake();
        }
        let Some(result) = self.poll_task() else { return false };
        self.status.look(self.task.comm().port());
        // At once: whoever sees the result may drop the handle, and the waker with it.
        let mut state = self.slot.state.lock();
        (state.result, self.left) = (Some(result), state.waker.take());
        true
    }

    fn wakeup(&self) -> &Arc<Wakeup> {
        &self.wakeup
    }

    fn end(&self) -> Duration {
        self.deadline.end()
    }

    fn take_waker(&mut self) -> Option<Waker> {
        self.left.take()
    }

    fn look(&mut self, now: Duration, moved: bool) -> bool {
        let comm = self.task.comm();
        self.deadline.look((now, moved), comm.port(), &self.status, &mut || comm.expire())
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
