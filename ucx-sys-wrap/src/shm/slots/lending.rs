//! Steps whose bytes are not copied into a slot, but lent: the others copy them from the memory that they lie in.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::{CONTROL_BYTES, Header, SECOND_AT, Slots, Step};
use crate::shm::{Attempt, Inlet, Outlet, PIPES};
use crate::{Error, Result};

/// Steps that may be lent at once.
pub const LENT_DEPTH: u64 = PIPES as u64;

/// Where a rank says that it has taken back what it lent.
pub(super) const TAKEN_BACK_AT: usize = 64;

/// Where a slot's control says that the step is lent.
const LENT_AT: usize = SECOND_AT + 8;
const _: () = assert!(LENT_AT + 8 <= CONTROL_BYTES);

/// Where a block says which descriptors the pipes are that its neighbour puts into.
const PIPES_AT: usize = 1024;

/// What two ranks lend each other through.
#[derive(Default)]
pub(super) struct Pipes {
    inlet: Attempt<Inlet>,
    outlet: Attempt<Outlet>,
}

impl Slots {
    /// Offers the rank at `place` to lend to this one from now on. Costs four descriptors; where the system does not give them, it stays as it
    /// was.
    pub fn invite(&mut self, place: usize) {
        self.pipes[place].outlet.invite(&self.neighbourhood, place, PIPES_AT);
    }

    /// Whether lending is faster than copying into slots, as far as is known.
    #[must_use]
    pub fn prefers_lending(&self) -> bool {
        !self.loans.is_slow()
    }

    /// Takes note of how long `bytes` bytes took, lent or copied as [`prefers_lending`](Self::prefers_lending) says.
    pub fn learn(&mut self, bytes: usize, took: Duration) {
        self.loans.learn(bytes, took);
    }

    /// Lends `bytes` to all others for `step`, to be [published](Self::publish_lent) then, if all have invited this rank; says whether it has. All must have finished the
    /// step [`LENT_DEPTH`] before. The bytes may not change until all have finished this one, or until they are
    /// [taken back](Self::take_back).
    ///
    /// # Panics
    /// When there are more than [`PIPED_BYTES`](crate::shm::PIPED_BYTES).
    pub fn lend(&mut self, step: Step, bytes: &[u8]) -> bool {
        assert!(bytes.len() <= crate::shm::PIPED_BYTES, "{} bytes lent at once", bytes.len());
        let own = self.own_place();
        for place in (0..self.places()).filter(|place| *place != own) {
            if self.pipes[place].inlet.find(&self.neighbourhood, place, PIPES_AT).is_none() {
                return false;
            }
        }
        for pipes in &mut self.pipes {
            if pipes.inlet.get().is_some_and(|inlet| !inlet.put(step.number() as usize, bytes)) {
                pipes.inlet.bar();
                return false;
            }
        }
        self.is_lending = true;
        self.count(bytes.len());
        true
    }

    /// Publishes a step whose bytes are lent.
    #[inline]
    pub fn publish_lent(&mut self, step: Step, header: Header) {
        self.own.word(step.control() + LENT_AT).store(step.0, Ordering::Relaxed);
        self.publish(step, header);
    }

    /// Whether the bytes of a step that the rank at `place` has published are lent.
    #[inline]
    #[must_use]
    pub fn is_lent(&self, place: usize, step: Step) -> bool {
        self.peer(place).load(step.control() + LENT_AT) == step.0
    }

    /// Copies what the rank at `place` has lent to this one. Says whether it was not taken back meanwhile: else `into` holds anything.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is not as much as `into` is long.
    pub fn read_lent(&mut self, place: usize, step: Step, into: &mut [u8]) -> Result<bool> {
        let outlet = self.pipes[place].outlet.get();
        let is_read = outlet.is_some_and(|outlet| outlet.read(step.number() as usize, into));
        if !is_read {
            let what = format!("fewer than {} bytes lent for step {}", into.len(), step.0);
            return Err(Error::Protocol { rank: self.rank_at(place), what });
        }
        // It says so before the bytes change.
        fence(Ordering::SeqCst);
        Ok(self.peer(place).load(TAKEN_BACK_AT) == 0)
    }

    /// Whether bytes are lent that others may still read.
    #[must_use]
    pub fn is_lending(&self) -> bool {
        self.is_lending
    }

    /// Takes note that all have finished with what this rank has lent.
    pub fn end_loan(&mut self) {
        self.is_lending = false;
    }

    /// Takes back what is lent, if anything is: who copies it from now on finds out. The slots can't be used any more then.
    pub fn take_back(&mut self) {
        if std::mem::take(&mut self.is_lending) {
            self.own.word(TAKEN_BACK_AT).store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
    }
}
