//! Aborting from any context, including a signal handler.
//!
//! A handler may interrupt its own thread inside the transport or the allocator, or with any lock held. So
//! [`Port::request_abort`] only stores a flag; the next user of the port carries the abort out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::nanosleep;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::contexts::MAX_CONTEXTS;
use super::port::Port;
use crate::Failure;

/// The time between two checks of whether an abort has been carried out.
const STEP: Duration = Duration::from_micros(50);

/// The contexts whose abort was requested and has not been carried out.
#[derive(Default)]
pub(super) struct AbortRequests {
    /// Whether there may be any.
    is_wanted: AtomicBool,
    /// A bit for each context.
    contexts: [AtomicU64; MAX_CONTEXTS / 64],
}

impl Port {
    /// Makes the next user of the port [abort](Self::abort) a context: the next turn, the next scope that is
    /// opened, the next call of [`failure`](Self::failure), or at the latest the drop of the port.
    ///
    /// Returns whether a thread is inside the transport, perhaps this one, interrupted by the signal. Wakes
    /// no thread. Async-signal-safe.
    pub fn request_abort(&self, context: u16) -> bool {
        let is_in_use = self.is_in_use();
        if let Some(word) = self.abort.contexts.get(usize::from(context / 64)) {
            word.fetch_or(1 << (context % 64), Ordering::Release);
            self.abort.is_wanted.store(true, Ordering::Release);
        }
        is_in_use
    }

    /// Whether an abort was requested and has not been carried out.
    #[inline]
    #[must_use]
    pub fn is_abort_wanted(&self) -> bool {
        self.abort.is_wanted.load(Ordering::Relaxed)
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
        if inside.transport.try_borrow_mut().is_err() {
            return;
        }
        let contexts = &self.abort.contexts;
        while self.abort.is_wanted.load(Ordering::Relaxed) {
            for (word, bits) in (0u16..).zip(contexts) {
                let bits = bits.swap(0, Ordering::AcqRel);
                for context in (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 64 + bit) {
                    let cause = Failure::Aborted(self.rank());
                    inside.close(context, cause, cause.into(), self.rank());
                }
            }
            self.abort.is_wanted.store(false, Ordering::SeqCst);
            // A handler that interrupted this may have set a bit before the flag was cleared.
            if contexts.iter().any(|bits| bits.load(Ordering::SeqCst) != 0) {
                self.abort.is_wanted.store(true, Ordering::Relaxed);
            }
        }
    }
}
