//! The engine's thread: carries out aborts, and turns the engine while non-blocking calls are pending and nobody
//! else does, where that was asked for.
//!
//! It sleeps on a bell of its own, which an abort rings. A thread that moves tasks is also woken when a call is
//! started and when a blocking call leaves others behind; it sleeps while nothing is pending and while a blocking
//! call turns the engine.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle, yield_now};
use std::time::{Duration, Instant};

use brevity_compress::in_standard_float_mode;
use ucx_sys_wrap::Error;
use ucx_sys_wrap::pollable::wait_for;
use ucx_sys_wrap::shm::Bell;

use super::Engine;
use super::sleep::Sleep;

/// The names of threads that move tasks and of the others; the kernel has room for 15 bytes.
const MOVER: &str = "brv-progress";
const WATCHER: &str = "brv-abort";

/// Enough for what an abort does: threads that move tasks run the bodies of calls.
const WATCHER_STACK_BYTES: usize = 256 << 10;

/// How long to go on turning after something has moved. Short, because the application computes meanwhile.
const PATIENCE: Duration = Duration::from_micros(20);

/// What an engine's thread and those who use the engine share.
pub(super) struct Alarm {
    bell: Bell,
    /// Whether the thread turns the engine for non-blocking calls.
    pub(super) moves_tasks: bool,
    /// Whether the thread sleeps or is about to.
    is_asleep: AtomicBool,
    /// Blocked calls, which turn the engine themselves.
    blocked: AtomicU32,
    has_ended: AtomicBool,
}

/// The thread; it ends when this is dropped.
pub struct EngineThread {
    alarm: Arc<Alarm>,
    thread: Option<JoinHandle<()>>,
}

/// While it lives, a blocked call turns the engine.
pub(super) struct Blocked<'engine> {
    engine: &'engine Engine,
    alarm: &'engine Alarm,
}

impl EngineThread {
    /// Starts the thread of `engine`, which has none yet. It does not keep the engine. `moves_tasks` says whether
    /// it turns the engine while non-blocking calls are pending.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no descriptor or thread left.
    pub fn start(engine: &Arc<Engine>, moves_tasks: bool) -> Result<Self, Error> {
        let (is_asleep, blocked, has_ended) = Default::default();
        let alarm = Arc::new(Alarm { bell: Bell::new()?, moves_tasks, is_asleep, blocked, has_ended });
        let (shared, weak) = (Arc::clone(&alarm), Arc::downgrade(engine));
        let builder = if moves_tasks {
            thread::Builder::new().name(MOVER.to_owned())
        } else {
            thread::Builder::new().name(WATCHER.to_owned()).stack_size(WATCHER_STACK_BYTES)
        };
        let thread = builder.spawn(move || {
            // A thread inherits the floating-point mode of the one that starts it.
            in_standard_float_mode(|| shared.serve(&weak));
        });
        let thread = thread.map_err(|error| Error::system("can't start the engine's thread", error))?;
        // Nothing is pending yet, so nobody has missed it.
        engine.alarm.get_or_init(|| Arc::clone(&alarm));
        Ok(Self { alarm, thread: Some(thread) })
    }
}

impl Drop for EngineThread {
    /// The thread has ended after this, unless a call that has just ended there took the group with it.
    fn drop(&mut self) {
        self.alarm.has_ended.store(true, Ordering::Relaxed);
        self.alarm.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread has been reported by its hook; calls then move when somebody turns the
            // engine.
            let _ = thread.join();
        }
    }
}

impl Alarm {
    /// Has the thread look again, if it sleeps: after something was changed that it looks at.
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// Rings, whether the thread sleeps or not. Async-signal-safe: one system call.
    pub(super) fn call(&self) {
        self.bell.ring();
    }

    /// The thread's life.
    fn serve(&self, engine: &Weak<Engine>) {
        let mut since = None;
        while let Some(engine) = self.look(engine) {
            if engine.port.is_abort_wanted() {
                engine.port.progress();
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
                Prepared::Until(sleep) => sleep.wait(self.bell.as_fd()),
                Prepared::Idle => wait_for(self.bell.as_fd(), None, None),
            }
            self.is_asleep.store(false, Ordering::Relaxed);
        }
    }

    /// The engine, unless the thread is to end.
    fn look(&self, engine: &Weak<Engine>) -> Option<Arc<Engine>> {
        if self.has_ended.load(Ordering::Relaxed) { None } else { engine.upgrade() }
    }

    /// Whether there is something to turn for, and nobody else who does.
    fn is_wanted(&self, engine: &Engine) -> bool {
        self.moves_tasks && engine.has_background() && self.blocked.load(Ordering::Relaxed) == 0
    }

    /// From now on whoever changes something rings. Everything must be looked at once more after this.
    fn begin_sleep(&self) {
        self.bell.hear();
        self.is_asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// What to sleep on, without the engine.
    fn prepare(&self, engine: Arc<Engine>) -> Prepared {
        if self.has_ended.load(Ordering::Relaxed) || engine.port.is_abort_wanted() {
            return Prepared::Awake;
        }
        if !self.is_wanted(&engine) {
            return Prepared::Idle;
        }
        engine.prepare_sleep().map_or(Prepared::Awake, Prepared::Until)
    }
}

/// What the thread's last look before a sleep has found.
enum Prepared {
    /// There is something to do.
    Awake,
    /// Calls are pending.
    Until(Sleep),
    /// Nobody needs the thread until the bell is rung.
    Idle,
}

impl<'engine> Blocked<'engine> {
    /// `None` where there is no thread to tell.
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
        // Either this sees the call that was started, or the thread, once it has prepared to sleep, sees that
        // nobody is blocked.
        fence(Ordering::SeqCst);
        if self.engine.has_background() {
            self.alarm.wake();
        }
    }
}
