//! Sleeping without blocking a thread of ours: one descriptor for whoever watches many.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::pollable::{Pollable, wait_for};
use ucx_sys_wrap::shm::Neighbourhood;

use super::Engine;
use super::wait::LONGEST_SLEEP;

/// What an engine that has nothing to do sleeps on; see [`Engine::prepare_sleep`].
///
/// It keeps neither the engine nor the transport. As a descriptor it is the same one each time, so that a
/// reactor may watch it from the first time on.
#[must_use = "nobody sleeps by preparing for it"]
pub struct Sleep(Arc<Pollable>);

impl Sleep {
    /// When to turn the engine again at the latest, even if the descriptor has not become readable: deadlines
    /// are looked at then, and another thread may have taken the news.
    #[must_use]
    pub fn longest(&self) -> Duration {
        LONGEST_SLEEP
    }

    /// Sleeps on this thread, until `other` is readable at the latest.
    pub(super) fn wait(&self, other: BorrowedFd<'_>) {
        wait_for(self.as_fd(), Some(other), Some(LONGEST_SLEEP));
    }
}

impl AsFd for Sleep {
    /// Readable when turning the engine may achieve something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Engine {
    /// Turns once, then prepares for sleeping: what to sleep on, and for how long at most. `None` when
    /// something has moved, or on transports that nobody can sleep on: turn again, or call this again.
    ///
    /// The promise to be woken holds until the engine is turned or a call is started, by whomever: call this
    /// before each sleep.
    pub fn prepare_sleep(&self) -> Option<Sleep> {
        let moves = self.moves();
        // Neighbours are told before everything is looked at, so that one of the two sees the other. What
        // they ring for after that look must wake the sleeper: the transport, which does not look at slots,
        // leaves the bell alone when it is armed.
        if let Some(neighbourhood) = self.neighbourhood() {
            neighbourhood.hear();
            neighbourhood.begin_sleep();
        }
        if self.turn() || self.moves() != moves {
            return None;
        }
        let transport = self.port.arm()?;
        if let Some(pollable) = self.pollable.get() {
            return Some(Sleep(Arc::clone(pollable)));
        }
        let bell = self.neighbourhood().map(Neighbourhood::bell);
        let descriptors: Vec<BorrowedFd<'_>> = [transport.as_fd()].into_iter().chain(bell).collect();
        // Without a descriptor left in the system nobody sleeps.
        let pollable = Arc::new(Pollable::new(&descriptors).ok()?);
        Some(Sleep(Arc::clone(self.pollable.get_or_init(|| pollable))))
    }
}
