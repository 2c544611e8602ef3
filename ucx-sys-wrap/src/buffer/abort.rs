//! Aborting from anywhere, a signal handler included.
//!
//! A handler may interrupt its own thread inside the transport, inside the allocator, or with any lock held. So
//! [`Port::request_abort`] only stores a word; whoever uses the port next carries the abort out.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use rustix::thread::nanosleep;
use rustix::time::Timespec;

use super::port::Port;
use crate::Failure;

/// What has become of the request; each state is final but for the step to the next.
const NONE: u8 = 0;
const WANTED: u8 = 1;
const DONE: u8 = 2;

/// Between two looks at whether an abort has been carried out.
const STEP: Duration = Duration::from_micros(50);

/// Whether an abort was asked for, and whether it has been carried out.
#[derive(Default)]
pub(super) struct AbortRequest(AtomicU8);

impl Port {
    /// Has whoever uses the port next [abort](Self::abort): with the next turn, the next scope that is opened or
    /// the next look at [`failure`](Self::failure), and at the latest when the port is dropped.
    ///
    /// Says whether a thread is inside, perhaps this very one, which a signal handler has interrupted. Wakes
    /// nobody. Async-signal-safe: it stores a word.
    pub fn request_abort(&self) -> bool {
        let is_in_use = self.is_in_use();
        let _ = self.abort.0.compare_exchange(NONE, WANTED, Ordering::Release, Ordering::Relaxed);
        is_in_use
    }

    /// Whether an abort was asked for and has not been carried out.
    #[inline]
    #[must_use]
    pub fn is_abort_wanted(&self) -> bool {
        self.abort.0.load(Ordering::Relaxed) == WANTED
    }

    /// Waits until another thread has carried out what was requested, at most `longest`. Async-signal-safe.
    pub fn await_abort(&self, longest: Duration) {
        let step = Timespec { tv_sec: 0, tv_nsec: STEP.as_nanos() as i64 };
        for _ in 0..longest.as_micros() / STEP.as_micros() {
            if !self.is_abort_wanted() {
                return;
            }
            // A signal ends it early: then this looks sooner.
            let _ = nanosleep(&step);
        }
    }

    /// Carries out what was requested.
    #[inline]
    pub(super) fn heed_abort(&self) {
        if self.is_abort_wanted() {
            self.carry_out_abort();
        }
    }

    #[cold]
    fn carry_out_abort(&self) {
        let inside = self.enter();
        // Never borrowed where this is called; if it were, a later turn would come to it.
        if let Ok(mut transport) = inside.transport.try_borrow_mut() {
            transport.fail(Failure::Aborted(self.rank()));
            self.abort.0.store(DONE, Ordering::Relaxed);
        }
    }
}
