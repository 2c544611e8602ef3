//! Sleeping in the caller's own event loop, on one descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::pollable::{Pollable, wait_for};
use ucx_sys_wrap::shm::LocalGroup;

use super::Engine;
use super::wait::LONGEST_SLEEP;

/// What to sleep on while an engine has nothing to do; see [`Engine::prepare_sleep`].
///
/// It keeps neither the engine nor the transport alive. The descriptor is the same each time, so that a
/// reactor can register it once.
#[must_use = "nobody sleeps by preparing for it"]
pub struct Sleep(pub(super) Arc<Pollable>);

impl Sleep {
    /// The time after which to turn the engine even if the descriptor has not become readable: deadlines must
    /// be checked, and another thread may have consumed the event.
    #[must_use]
    pub fn longest(&self) -> Duration {
        LONGEST_SLEEP
    }

    /// Sleeps on this thread, at most until `other` becomes readable.
    pub(super) fn wait(&self, other: BorrowedFd<'_>) {
        wait_for(self.as_fd(), Some(other), Some(LONGEST_SLEEP));
    }
}

impl AsFd for Sleep {
    /// Becomes readable when a turn of the engine may make progress.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Engine {
    /// Turns once and prepares for sleeping: returns what to sleep on, and for how long at most. `None` if
    /// something has moved, or if the transport has no descriptor: turn again, or call this again.
    ///
    /// The wake-up is guaranteed only until the engine is turned or a call is started, so call this before
    /// each sleep.
    pub fn prepare_sleep(&self) -> Option<Sleep> {
        let moves = self.moves();
        // Local peers are told before this rank checks, so that one sees the other. Their wake-ups after that
        // check must reach the sleeper: the transport, which does not check slots, leaves the wake receiver
        // alone while it is armed.
        if let Some(local_group) = self.local_group() {
            local_group.hear();
            local_group.begin_sleep();
        }
        if self.turn() || self.moves() != moves {
            return None;
        }
        // Before the transport is: a turn in between clears this, never the other way round.
        self.parked.set_armed(true);
        let Some(transport) = self.port.arm() else {
            self.parked.set_armed(false);
            return None;
        };
        // Without a descriptor, sleeping is impossible.
        self.join(&transport).map(Sleep)
    }

    /// The descriptor that becomes readable when a turn may make progress, once it is prepared. `None` if the
    /// transport or the system has none.
    pub(super) fn pollable(&self) -> Option<Arc<Pollable>> {
        let transport = self.port.descriptor()?;
        self.join(&transport)
    }

    /// Joins what wakes this rank to one descriptor, the same each time.
    fn join(&self, transport: &OwnedFd) -> Option<Arc<Pollable>> {
        if let Some(pollable) = self.pollable.get() {
            return Some(Arc::clone(pollable));
        }
        let wake_receiver = self.local_group().map(LocalGroup::wake_receiver);
        let descriptors: Vec<BorrowedFd<'_>> = [transport.as_fd()].into_iter().chain(wake_receiver).collect();
        let pollable = Arc::new(Pollable::new(&descriptors).ok()?);
        Some(Arc::clone(self.pollable.get_or_init(|| pollable)))
    }
}
