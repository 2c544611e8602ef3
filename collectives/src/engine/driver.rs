//! Driving the calls of a job from an event loop or a runtime, in place of its thread.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::Error as Transport;
use ucx_sys_wrap::pollable::Pollable;

use super::Engine;
use super::thread::{FREQUENT_POLLS, InBody, KEPT_LOOKS};
use super::wait::LONGEST_SLEEP;
use crate::error::{Error, Result};

/// How long the end of a job waits for a turn of its driver.
const LONGEST_TURN: Duration = Duration::from_secs(1);

/// Moves the calls of a job, and wakes the tasks that await them: [`Group::driver`](crate::Group::driver).
///
/// Call [`turn`](Self::turn), and do what it says, again and again. Only one driver exists at a time. Without
/// one, the engine's thread does its work.
pub struct Driver {
    engine: Weak<Engine>,
    driven: Arc<Driven>,
    descriptor: Descriptor,
    /// The polls of handles at the last turn.
    polls: u32,
    /// Looks for which it stays near, in case another call is.
    kept: u32,
}

/// What to do after a turn of a [`Driver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Turn again, after other work that is waiting.
    Again,
    /// Turn when the descriptor is readable, or after so long at the latest.
    Sleep(Duration),
    /// Nothing needs the driver: turn when [`poll_wanted`](Driver::poll_wanted) is ready, or after so long,
    /// if that is set.
    Idle(Option<Duration>),
    /// The job has ended for this rank.
    Ended,
}

/// The descriptor of a [`Driver`]: readable when a turn may move something. It is the same as long as the job
/// lasts, and can be registered with a reactor once.
#[derive(Clone)]
pub struct Descriptor(Arc<Pollable>);

/// What an engine knows of its driver.
#[derive(Default)]
pub(super) struct Driven {
    has_driver: AtomicBool,
    /// Whether the job has ended for this rank.
    has_ended: AtomicBool,
    /// Whether calls are pending that nobody else moves.
    is_wanted: AtomicBool,
    /// Whether it waits for the first call after some time.
    is_idle: AtomicBool,
    /// Held while the driver uses the engine: the job ends here afterwards, not in the driver.
    inside: Mutex<()>,
    waker: Mutex<Option<Waker>>,
}

impl Driven {
    /// Whether there is one that will be told.
    #[inline]
    pub(super) fn has_driver(&self) -> bool {
        self.has_driver.load(Ordering::Relaxed) && !self.has_ended.load(Ordering::Relaxed)
    }

    /// Wakes an idle driver for a call that was started.
    #[inline]
    pub(super) fn rouse(&self) {
        if self.is_idle.load(Ordering::Relaxed) && self.has_driver() {
            self.want();
        }
    }

    /// Wakes the task of the driver, which is to move calls.
    pub(super) fn want(&self) {
        self.is_wanted.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().take();
        super::parked::wake(waker.into_iter());
    }
}

impl Engine {
    /// The engine's driver, unless there is one.
    pub(crate) fn driver(self: &Arc<Self>) -> Result<Driver> {
        let none = || Transport::Unavailable { name: self.port.name(), why: "it has no descriptor".into() };
        let pollable = self.pollable().ok_or_else(|| Error::Transport(none()))?;
        if self.driven.has_driver.swap(true, Ordering::Relaxed) {
            return Err(Error::AlreadyDriven);
        }
        // Those that are parked with the thread go to the driver.
        self.parked.wake_all();
        let (engine, driven) = (Arc::downgrade(self), Arc::clone(&self.driven));
        Ok(Driver { engine, driven, descriptor: Descriptor(pollable), polls: self.parked.polls(), kept: 0 })
    }

    /// The job ends for this rank: its driver is told.
    pub(crate) fn end_driver(&self) {
        self.driven.has_ended.store(true, Ordering::SeqCst);
        self.driven.want();
        self.parked.wake_all();
        // Inside a body this thread may be the driver's.
        if !InBody::is_here() {
            drop(self.driven.inside.try_lock_for(LONGEST_TURN));
        }
    }
}

impl Driver {
    /// Moves everything once, without blocking, and wakes the tasks of calls that have ended.
    pub fn turn(&mut self) -> Next {
        let driven = Arc::clone(&self.driven);
        let _inside = driven.inside.lock();
        if driven.has_ended.load(Ordering::SeqCst) {
            return Next::Ended;
        }
        let Some(engine) = self.engine.upgrade() else { return Next::Ended };
        driven.is_idle.store(false, Ordering::SeqCst);
        let polls = engine.parked.polls();
        let more = polls.wrapping_sub(std::mem::replace(&mut self.polls, polls));
        if engine.has_background() {
            self.kept = KEPT_LOOKS;
            // Tasks that poll their handles so often turn the engine themselves.
            if more >= FREQUENT_POLLS && !engine.parked.has_some() {
                return Next::Idle(Some(LONGEST_SLEEP));
            }
            return engine.prepare_sleep().map_or(Next::Again, |_| Next::Sleep(LONGEST_SLEEP));
        }
        engine.parked.wake_all();
        if more > 0 {
            self.kept = KEPT_LOOKS;
        }
        self.kept = self.kept.saturating_sub(1);
        if self.kept > 0 {
            return Next::Idle(Some(LONGEST_SLEEP));
        }
        driven.is_idle.store(true, Ordering::SeqCst);
        // A call that was started before has not seen that.
        if engine.has_background() { Next::Again } else { Next::Idle(None) }
    }

    /// Ready when calls are pending that nobody else moves: true, or false if the job has ended for this
    /// rank.
    pub fn poll_wanted(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let waker = context.waker().clone();
        let before = self.driven.waker.lock().replace(waker);
        // Foreign code: not under the lock.
        drop(before);
        // After the waker is left: who wants the driver after this look wakes it.
        if self.driven.has_ended.load(Ordering::SeqCst) || self.engine.strong_count() == 0 {
            return Poll::Ready(false);
        }
        if self.driven.is_wanted.swap(false, Ordering::SeqCst) { Poll::Ready(true) } else { Poll::Pending }
    }

    /// The descriptor to watch.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor.clone()
    }
}

impl Drop for Driver {
    /// The engine's thread takes over.
    fn drop(&mut self) {
        let driven = Arc::clone(&self.driven);
        let _inside = driven.inside.lock();
        driven.has_driver.store(false, Ordering::SeqCst);
        let waker = driven.waker.lock().take();
        drop(waker);
        if !driven.has_ended.load(Ordering::SeqCst)
            && let Some(engine) = self.engine.upgrade()
            && !engine.port.has_forked()
        {
            engine.parked.wake_all();
        }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
