//! Aborting from any context, including a signal handler.
//!
//! A handler may interrupt its own thread inside the transport or the allocator, or with any lock held. So
//! [`Port::request_abort`] only stores a flag; the next user of the port carries the abort out.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::thread::nanosleep;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::port::Port;
use crate::Failure;

/// The states of a request, which follow each other in this order.
const NONE: u8 = 0;
const WANTED: u8 = 1;
const DONE: u8 = 2;

/// The time between two checks of whether an abort has been carried out.
const STEP: Duration = Duration::from_micros(50);

/// Whether an abort was requested, and whether it has been carried out.
#[derive(Default)]
pub(super) struct AbortRequest(AtomicU8);

impl Port {
    /// Makes the next user of the port [abort](Self::abort): the next turn, the next scope that is opened,
    /// the next call of [`failure`](Self::failure), or at the latest the drop of the port.
    ///
    /// Returns whether a thread is inside the transport, perhaps this one, interrupted by the signal. Wakes
    /// no thread. Async-signal-safe.
    pub fn request_abort(&self) -> bool {
        let is_in_use = self.is_in_use();
        let _ = self.abort.0.compare_exchange(NONE, WANTED, Ordering::Release, Ordering::Relaxed);
        is_in_use
    }

    /// Whether an abort was requested and has not been carried out.
    #[inline]
    #[must_use]
    pub fn is_abort_wanted(&self) -> bool {
        self.abort.0.load(Ordering::Relaxed) == WANTED
    }

    /// Waits at most `longest` until another thread has carried out the request. Async-signal-safe.
    pub fn await_abort(&self, longest: Duration) {
        let step = Timespec { tv_sec: 0, tv_nsec: STEP.as_nanos() as i64 };
        let now = || Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        let start = now();
        while self.is_abort_wanted() && now().saturating_sub(start) < longest {
            // A signal only makes the next check come sooner.
            let _ = nanosleep(&step);
        }
    }

    /// Carries out a requested abort.
    #[inline]
    pub(super) fn heed_abort(&self) {
        if self.is_abort_wanted() {
            self.carry_out_abort();
        }
    }

    #[cold]
    fn carry_out_abort(&self) {
        let inside = self.enter();
        // Never borrowed at the callers. If it were, a later turn would carry the abort out.
        if let Ok(mut transport) = inside.transport.try_borrow_mut() {
            transport.fail(Failure::Aborted(self.rank()));
            self.abort.0.store(DONE, Ordering::Relaxed);
        }
    }
}
