//! The engine's thread. It carries out aborts and, if requested, turns the engine while non-blocking calls
//! are pending and nobody else does.
//!
//! It sleeps on its own wake receiver, which an abort notifies. A thread that moves tasks is also woken when
//! a call is started and when a blocking call ends with others pending. It sleeps while nothing is pending
//! and while a blocking call turns the engine.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle, yield_now};
use std::time::{Duration, Instant};

use brevity_compress::in_standard_float_mode;
use ucx_sys_wrap::Error;
use ucx_sys_wrap::buffer::with_signals_blocked;
use ucx_sys_wrap::pollable::{Pollable, wait_for};
use ucx_sys_wrap::shm::WakeReceiver;

use super::Engine;
use super::sleep::Sleep;
use super::wait::LONGEST_SLEEP;

/// The thread names; the kernel limits them to 15 bytes.
const MOVER: &str = "brv-progress";
const WATCHER: &str = "brv-abort";

/// Enough to carry out aborts. Threads that move tasks also run the bodies of calls.
const WATCHER_STACK_BYTES: usize = 256 << 10;

/// A thread that moves tasks leaves the engine alone while handles are polled this often in a short sleep,
/// and this many sleeps longer once there is nothing to do: a call that follows soon then need not wake it.
pub(super) const FREQUENT_POLLS: u32 = 16;
const SHORT_SLEEP: Duration = Duration::from_millis(1);
pub(super) const KEPT_LOOKS: u32 = 100;

/// How long to keep turning after progress. Short, because the application computes meanwhile.
const PATIENCE: Duration = Duration::from_micros(20);

/// A driver that does not turn for so long is not relied on: longer than it may sleep.
const DRIVER_PATIENCE: Duration = LONGEST_SLEEP.saturating_mul(2);

/// State shared by an engine's thread and the users of the engine.
pub(super) struct Alarm {
    wake_receiver: WakeReceiver,
    /// Whether the thread turns the engine for non-blocking calls.
    pub(super) moves_tasks: bool,
    /// Whether the thread sleeps or is about to.
    is_asleep: AtomicBool,
    /// The number of blocked calls, which turn the engine themselves.
    blocked: AtomicU32,
    has_ended: AtomicBool,
}

/// The engine's thread, which ends when this is dropped.
pub struct EngineThread {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// Marks that a blocked call turns the engine.
pub(super) struct Blocked<'engine> {
    engine: &'engine Engine,
    alarm: &'engine Alarm,
}

impl EngineThread {
    /// Starts the thread of `engine`, which must have none. The thread does not keep the engine alive.
    /// `moves_tasks` tells whether it turns the engine while non-blocking calls are pending.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor or thread left.
    pub fn start(engine: &Arc<Engine>, moves_tasks: bool) -> Result<Self, Error> {
        let (is_asleep, blocked, has_ended) = Default::default();
        let alarm = Arc::new(Alarm {
            wake_receiver: WakeReceiver::new()?,
            moves_tasks,
            is_asleep,
            blocked,
            has_ended,
        });
        let (shared, weak) = (Arc::clone(&alarm), Arc::downgrade(engine));
        let builder = if moves_tasks {
            thread::Builder::new().name(MOVER.to_owned())
        } else {
            thread::Builder::new().name(WATCHER.to_owned()).stack_size(WATCHER_STACK_BYTES)
        };
        let thread = with_signals_blocked(|| {
            builder.spawn(move || {
                // A thread inherits the floating-point mode of its creator.
                in_standard_float_mode(|| shared.serve(&weak));
            })
        });
        let thread = thread.map_err(|error| Error::system("can't start the engine's thread", error))?;
        // Nothing is pending yet, so no wake-up was missed.
        engine.ready.alarm.get_or_init(|| Arc::clone(&alarm));
        Ok(Self { alarm, thread: Some(thread) })
    }
}

/// Marks that this thread polls bodies of calls, with all that engines hold meanwhile.
pub(super) struct InBody;

thread_local!(static BODIES: Cell<u32> = const { Cell::new(0) });

impl InBody {
    #[inline]
    pub(super) fn begin() -> Self {
        BODIES.set(BODIES.get() + 1);
        Self
    }

    /// Whether this thread does.
    #[inline]
    pub(super) fn is_here() -> bool {
        BODIES.get() > 0
    }
}

impl Drop for InBody {
    #[inline]
    fn drop(&mut self) {
        BODIES.set(BODIES.get() - 1);
    }
}

impl Drop for EngineThread {
    /// Waits for the thread to end, unless a body of a call held the last group: the thread may be polling
    /// that body, or wait for the transport that a blocking call holds during its body. Nor does the thread
    /// wait for itself, if a waker that it has called held the last group.
    fn drop(&mut self) {
        self.alarm.has_ended.store(true, Ordering::Relaxed);
        self.alarm.call();
        if let Some(thread) = self.thread.take()
            && !InBody::is_here()
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread was reported by its hook. Calls then need other turns of the engine.
            let _ = thread.join();
        }
    }
}

impl Alarm {
    /// Wakes the thread if it sleeps, after a change of what it checks.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.wake_receiver.ring();
        }
    }

    /// Wakes the thread unconditionally. Async-signal-safe: one system call.
    pub(super) fn call(&self) {
        self.wake_receiver.ring();
    }

    /// Whether the thread moves tasks and no blocked call turns the engine.
    pub(super) fn is_alone(&self) -> bool {
        self.moves_tasks && self.blocked.load(Ordering::Relaxed) == 0
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The main loop of the thread.
    fn serve(&self, weak: &Weak<Engine>) {
        let _last = WakeParked { alarm: self, engine: weak };
        let (mut since, mut tick) = (None, None);
        let mut polls = Polls::default();
        while let Some(engine) = self.look(weak) {
            if engine.port.is_abort_wanted() {
                engine.port.progress();
            }
            if self.moves_tasks && polls.are_frequent(&engine) {
                drop(engine);
                self.wake_receiver.hear();
                wait_for(self.wake_receiver.as_fd(), None, Some(SHORT_SLEEP));
                continue;
            }
            if self.is_wanted(&engine) {
                if engine.turn() {
                    since = None;
                    continue;
                }
                if since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    drop(engine);
                    yield_now();
                    continue;
                }
            }
            self.begin_sleep();
            match self.prepare(engine) {
                Prepared::Awake => since = None,
                Prepared::Until(sleep) => sleep.wait(self.wake_receiver.as_fd()),
                Prepared::For(pollable) => self.wait_for_parked(weak, &pollable, &mut tick),
                Prepared::Driven(turns) => self.watch_driver(weak, turns),
                Prepared::Idle => wait_for(self.wake_receiver.as_fd(), None, None),
            }
            self.is_asleep.store(false, Ordering::Relaxed);
        }
    }

    /// Sleeps until handles that are parked have something to do, and wakes them. Handles that are parked
    /// meanwhile need not wake this thread.
    fn wait_for_parked(&self, engine: &Weak<Engine>, pollable: &Pollable, tick: &mut Option<Instant>) {
        self.is_asleep.store(false, Ordering::Relaxed);
        let now = Instant::now();
        let end = *tick.get_or_insert(now + LONGEST_SLEEP);
        let has_come = pollable.wait(self.wake_receiver.as_fd(), end.saturating_duration_since(now));
        if has_come || Instant::now() >= end {
            *tick = None;
            if let Some(engine) = engine.upgrade() {
                engine.parked.wake_all();
            }
        }
    }

    /// Wakes the handles that are parked with a driver if nobody turns the engine for a while. Handles that
    /// are parked meanwhile need not wake this thread.
    fn watch_driver(&self, engine: &Weak<Engine>, turns: u32) {
        self.is_asleep.store(false, Ordering::Relaxed);
        wait_for(self.wake_receiver.as_fd(), None, Some(DRIVER_PATIENCE));
        if let Some(engine) = engine.upgrade()
            && engine.parked.turns() == turns
        {
            engine.parked.wake_all();
        }
    }

    /// The engine, unless the thread must end.
    fn look(&self, engine: &Weak<Engine>) -> Option<Arc<Engine>> {
        if self.has_ended.load(Ordering::Relaxed) { None } else { engine.upgrade() }
    }

    /// Whether there is work for the thread that nobody else does.
    fn is_wanted(&self, engine: &Engine) -> bool {
        self.moves_tasks && engine.has_background() && self.blocked.load(Ordering::Relaxed) == 0
    }

    /// From now on, changes wake the thread. Everything must be checked once more after this.
    fn begin_sleep(&self) {
        self.wake_receiver.hear();
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Prepares for sleeping, without keeping the engine alive.
    fn prepare(&self, engine: Arc<Engine>) -> Prepared {
        if self.has_ended.load(Ordering::Relaxed) || engine.port.is_abort_wanted() {
            return Prepared::Awake;
        }
        if !self.moves_tasks && engine.parked.has_some() {
            if engine.driven.has_driver() {
                return Prepared::Driven(engine.parked.turns());
            }
            return engine.pollable.get().map_or(Prepared::Awake, |pollable| Prepared::For(pollable.clone()));
        }
        if !self.is_wanted(&engine) {
            return Prepared::Idle;
        }
        engine.prepare_sleep().map_or(Prepared::Awake, Prepared::Until)
    }
}

/// Ends with the thread, however it does: nobody watches for parked handles any more.
struct WakeParked<'a> {
    alarm: &'a Alarm,
    engine: &'a Weak<Engine>,
}

impl Drop for WakeParked<'_> {
    fn drop(&mut self) {
        self.alarm.has_ended.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(engine) = self.engine.upgrade() {
            engine.parked.wake_all();
        }
    }
}

/// Whether tasks that await handles poll them so often that they turn the engine themselves.
#[derive(Default)]
struct Polls {
    seen: u32,
    /// Looks for which this stays so, in case the next call is near.
    kept: u32,
}

impl Polls {
    fn are_frequent(&mut self, engine: &Engine) -> bool {
        let polls = engine.parked.polls();
        let more = polls.wrapping_sub(std::mem::replace(&mut self.seen, polls));
        self.kept = match more {
            FREQUENT_POLLS.. => KEPT_LOOKS,
            _ if engine.has_background() => 0,
            _ => self.kept.saturating_sub(1),
        };
        self.kept > 0
    }
}

/// The result of the last check before a sleep.
enum Prepared {
    /// There is work.
    Awake,
    /// Calls are pending.
    Until(Sleep),
    /// Handles are parked.
    For(Arc<Pollable>),
    /// Handles are parked with a driver; the turns so far.
    Driven(u32),
    /// Nothing to do until a wake-up.
    Idle,
}

impl<'engine> Blocked<'engine> {
    /// `None` if there is no thread.
    pub(super) fn begin(engine: &'engine Engine) -> Option<Self> {
        let alarm = engine.mover()?;
        alarm.blocked.fetch_add(1, Ordering::Relaxed);
        Some(Self { engine, alarm })
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        if self.alarm.blocked.fetch_sub(1, Ordering::Relaxed) != 1 {
            return;
        }
        // Either this sees the call that was started, or the thread, in its check before sleeping, sees that
        // no call is blocked.
        fence(Ordering::SeqCst);
        if self.engine.has_background() {
            self.alarm.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::task::Poll;

    use ucx_sys_wrap::buffer::Port;
    use ucx_sys_wrap::local;

    use super::*;

    /// Generous: it only has to distinguish slow from stuck.
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn engine() -> (Arc<Engine>, EngineThread) {
        let alone = local::world(1).remove(0);
        let engine = Engine::new(Port::new(Box::new(alone)), None, false);
        let thread = EngineThread::start(&engine, true).unwrap();
        (engine, thread)
    }

    /// Skips the first poll, which is made by the thread that starts the call.
    async fn later() {
        let mut polls = 0..1;
        poll_fn(|_| if polls.next().is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// The body holds the transport, which the thread wants for the pending call.
    #[test]
    fn a_thread_that_ends_inside_a_blocking_call_is_not_waited_for() {
        let (sender, ended) = channel();
        thread::spawn(move || {
            let (engine, own) = engine();
            let _pending = engine.spawn(TIMEOUT, (), |_, ()| Box::pin(std::future::pending::<()>()));
            engine.run(TIMEOUT, async move |_| {
                thread::sleep(Duration::from_millis(100));
                drop(own);
            });
            sender.send(()).unwrap();
        });
        ended.recv_timeout(TIMEOUT).unwrap();
    }

    /// Each body holds the last group of the other engine, so to speak.
    #[test]
    fn threads_that_end_each_other_do_not_wait() {
        let [(a, thread_of_a), (b, thread_of_b)] = [engine(), engine()];
        let both = Arc::new(Barrier::new(2));
        let (sender, ended) = channel();
        for (engine, other) in [(&a, thread_of_b), (&b, thread_of_a)] {
            let (both, sender) = (Arc::clone(&both), sender.clone());
            let handle = engine.spawn(TIMEOUT, (), move |_, ()| {
                Box::pin(async move {
                    later().await;
                    both.wait();
                    drop(other);
                    sender.send(()).unwrap();
                })
            });
            drop(handle);
        }
        for _ in 0..2 {
            ended.recv_timeout(TIMEOUT).unwrap();
        }
    }
}
