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
use super::wait::LONGEST_SLEEP;
use crate::error::{Error, Result};

/// Moves the calls of a job, and wakes the tasks that await them: [`Group::driver`](crate::Group::driver).
///
/// Call [`turn`](Self::turn), and do what it says, again and again. Only one driver exists at a time. Without
/// one, the engine's thread does its work.
pub struct Driver {
    engine: Weak<Engine>,
    descriptor: Descriptor,
}

/// What to do after a turn of a [`Driver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Turn again, after other work that is waiting.
    Again,
    /// Turn when the descriptor is readable, or after so long at the latest.
    Sleep(Duration),
    /// No call is pending: turn when [`poll_wanted`](Driver::poll_wanted) is ready.
    Idle,
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
    waker: Mutex<Option<Waker>>,
}

impl Driven {
    /// Whether there is one that will be told.
    #[inline]
    pub(super) fn has_driver(&self) -> bool {
        self.has_driver.load(Ordering::Relaxed) && !self.has_ended.load(Ordering::Relaxed)
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
        Ok(Driver { engine: Arc::downgrade(self), descriptor: Descriptor(pollable) })
    }

    /// The job ends for this rank: its driver is told.
    pub(crate) fn end_driver(&self) {
        self.driven.has_ended.store(true, Ordering::SeqCst);
        self.driven.want();
        self.parked.wake_all();
    }
}

impl Driver {
    /// Moves everything once, without blocking, and wakes the tasks of calls that have ended.
    pub fn turn(&mut self) -> Next {
        let Some(engine) = self.engine.upgrade() else { return Next::Ended };
        if engine.driven.has_ended.load(Ordering::Relaxed) {
            return Next::Ended;
        }
        if !engine.has_background() {
            engine.parked.wake_all();
            return Next::Idle;
        }
        engine.prepare_sleep().map_or(Next::Again, |_| Next::Sleep(LONGEST_SLEEP))
    }

    /// Ready when a call is pending that nobody else moves: true, or false if the job has ended for this
    /// rank.
    pub fn poll_wanted(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(engine) = self.engine.upgrade() else { return Poll::Ready(false) };
        let before = engine.driven.waker.lock().replace(context.waker().clone());
        // Foreign code: not under the lock.
        drop(before);
        // After the waker is left: who wants the driver after this look wakes it.
        if engine.driven.has_ended.load(Ordering::Relaxed) {
            return Poll::Ready(false);
        }
        let is_wanted = engine.driven.is_wanted.swap(false, Ordering::SeqCst) || engine.parked.has_some();
        if is_wanted { Poll::Ready(true) } else { Poll::Pending }
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
        let Some(engine) = self.engine.upgrade() else { return };
        engine.driven.has_driver.store(false, Ordering::SeqCst);
        let waker = engine.driven.waker.lock().take();
        drop(waker);
        engine.parked.wake_all();
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
