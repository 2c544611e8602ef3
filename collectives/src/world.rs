//! What the groups of one job share: the engine, and the numbers and slots that contexts take.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{MAX_CONTEXTS, Pool, Port};
use ucx_sys_wrap::shm::{LocalGroup, MAX_GENERATIONS, SLOT_SETS, SlotSet};
use ucx_sys_wrap::{Owner, Rank};

use crate::engine::{Engine, EngineThread};
use crate::grow::Origin;
use crate::host::Host;
use crate::shrink::Agreements;

/// The unused memory that calls keep to receive into.
const SCRATCH_BYTES: usize = 64 << 20;

/// The numbers from here on are not for groups.
const RESERVED: usize = MAX_CONTEXTS - 16;

/// So many of these are for contexts of all ranks on which nobody agrees.
const AT_ONCE: usize = 8;

/// The words of a set of context numbers.
pub(crate) const WORDS: usize = MAX_CONTEXTS / 64;

/// One rank's part of a job.
pub(crate) struct World {
    /// Ends before everything else.
    pub(crate) thread: Option<EngineThread>,
    pub(crate) owner: Owner,
    pub(crate) engine: Arc<Engine>,
    pub(crate) local_group: Option<Arc<LocalGroup>>,
    pub(crate) is_encrypted: bool,
    /// The host of each rank.
    pub(crate) hosts: Arc<[u32]>,
    pub(crate) contexts: Arc<Numbers>,
    pub(crate) scratch: Pool,
    pub(crate) agreements: Agreements,
    /// How the job began, if ranks can come back to it.
    pub(crate) origin: Option<Origin>,
    /// Whether this rank has gone to the world of a group that has grown, or is bound to go if a majority
    /// does.
    pub(crate) has_gone: AtomicBool,
}

impl Drop for World {
    /// In a forked child, all state belongs to the parent, whose threads do not exist here.
    fn drop(&mut self) {
        if self.owner.is_here() {
            self.engine.end_driver();
        } else {
            std::mem::forget((self.thread.take(), Arc::clone(&self.engine)));
        }
    }
}

/// The numbers of contexts and the sets of slots that are free on this rank.
pub(crate) struct Numbers(Mutex<State>);

struct State {
    /// A bit for each number that is taken.
    taken: [u64; WORDS],
    /// How many contexts each number has had.
    epochs: Vec<u32>,
    sets: [Set; SLOT_SETS],
    /// Which contexts are open on which nobody has agreed, and how many there were.
    at_once: [bool; AT_ONCE],
    opened_at_once: u32,
}

#[derive(Default)]
struct Set {
    is_taken: bool,
    generation: u64,
    /// The slots of the group before, which its members may still read.
    last: Option<Arc<Host>>,
}

/// What this rank can offer to a new context.
pub(crate) struct Offer {
    /// A bit for each number that is free.
    pub(crate) free: [u64; WORDS],
    /// The generation of each set of slots that is free.
    pub(crate) sets: [Option<u64>; SLOT_SETS],
}

impl Numbers {
    /// Context 0 is open, with the first set of slots.
    pub(crate) fn new() -> Self {
        let mut state = State {
            taken: [0; WORDS],
            epochs: vec![0; MAX_CONTEXTS],
            sets: Default::default(),
            at_once: [false; AT_ONCE],
            opened_at_once: 0,
        };
        state.take(0);
        (RESERVED..MAX_CONTEXTS).for_each(|number| state.take(number));
        state.sets[0].is_taken = true;
        Self(Mutex::new(state))
    }

    /// What is free now. `lost` are the ranks whose reading nobody needs to wait for.
    pub(crate) fn offer(&self, lost: &[Rank]) -> Offer {
        let mut state = self.0.lock();
        let free = state.taken.map(|word| !word);
        let sets = std::array::from_fn(|index| state.sets[index].generation(lost));
        Offer { free, sets }
    }

    /// Takes a number, if it is still free; gives the epoch that its next context has on this rank at least.
    pub(crate) fn claim(&self, number: u16) -> Option<u32> {
        let mut state = self.0.lock();
        let is_free = state.taken[usize::from(number) / 64] >> (number % 64) & 1 == 0;
        is_free.then(|| {
            state.take(usize::from(number));
            // Any number may have come from a peer.
            state.epochs[usize::from(number)].wrapping_add(1)
        })
    }

    /// Gives back a number that no context was opened with.
    pub(crate) fn unclaim(&self, number: u16) {
        self.0.lock().leave(number);
    }

    /// Notes the epoch of the context that is opened with a claimed number.
    pub(crate) fn begin(&self, number: u16, epoch: u32) {
        self.0.lock().epochs[usize::from(number)] = epoch;
    }

    /// Takes the next number for a context of all ranks on which nobody agrees, and its epoch: every rank
    /// counts for itself. `None` if this rank still has the context that had the number last.
    pub(crate) fn take_at_once(&self) -> Option<(u16, u32)> {
        let mut state = self.0.lock();
        let count = state.opened_at_once;
        // Also if this one fails: the other ranks have it.
        state.opened_at_once = count.wrapping_add(1);
        let place = count as usize % AT_ONCE;
        let is_open = std::mem::replace(&mut state.at_once[place], true);
        (!is_open).then_some(((RESERVED + place) as u16, count / AT_ONCE as u32 + 1))
    }

    /// Takes a set of slots, if it is still free.
    pub(crate) fn claim_set(&self, set: SlotSet, lost: &[Rank]) -> bool {
        let mut state = self.0.lock();
        let place = &mut state.sets[set.index];
        let is_free = place.generation(lost).is_some_and(|generation| generation <= set.generation);
        if is_free {
            *place = Set { is_taken: true, generation: set.generation, last: None };
        }
        is_free
    }

    /// Gives back a set of slots that was not used.
    pub(crate) fn unclaim_set(&self, set: SlotSet) {
        self.0.lock().sets[set.index].is_taken = false;
    }

    /// A context has ended.
    pub(crate) fn release(&self, number: u16, host: Option<Arc<Host>>) {
        let mut state = self.0.lock();
        match usize::from(number).checked_sub(RESERVED) {
            Some(place) => state.at_once[place] = false,
            // Context 0 stays open as long as the transport.
            None if number == 0 => {}
            None => state.leave(number),
        }
        if let Some(host) = host {
            host.end();
            let set = host.set;
            state.sets[set.index] = Set { is_taken: false, generation: set.generation, last: Some(host) };
        }
    }
}

impl State {
    fn take(&mut self, number: usize) {
        self.taken[number / 64] |= 1 << (number % 64);
    }

    fn leave(&mut self, number: u16) {
        self.taken[usize::from(number) / 64] &= !(1 << (number % 64));
    }
}

impl Set {
    /// The generation that its next group has at least, if it is free and nobody reads it any more.
    fn generation(&mut self, lost: &[Rank]) -> Option<u64> {
        if self.is_taken || self.last.as_ref().is_some_and(|last| !last.is_at_rest(lost)) {
            return None;
        }
        Some(self.generation + 1).filter(|generation| *generation < MAX_GENERATIONS)
    }
}

impl World {
    /// Memory for calls to receive into.
    pub(crate) fn scratch() -> Pool {
        Pool::with_kept_bytes(SCRATCH_BYTES)
    }

    /// The number of a rank's host.
    pub(crate) fn host(&self, rank: Rank) -> u32 {
        self.hosts.get(rank.index()).copied().unwrap_or(u32::MAX)
    }

    /// Those of some ranks that are on this rank's host.
    pub(crate) fn here(&self, ranks: &[Rank]) -> Vec<Rank> {
        let own = self.host(self.port().rank());
        ranks.iter().copied().filter(|rank| self.host(*rank) == own).collect()
    }

    pub(crate) fn port(&self) -> &Arc<Port> {
        self.engine.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_taken_once_and_has_another_epoch_afterwards() {
        let numbers = Numbers::new();
        let is_free = |number: usize| numbers.offer(&[]).free[number / 64] >> (number % 64) & 1 == 1;
        assert!(!is_free(0) && is_free(1) && is_free(RESERVED - 1) && !is_free(RESERVED));
        assert_eq!((numbers.claim(1), numbers.claim(1), is_free(1)), (Some(1), None, false));
        numbers.unclaim(1);
        assert_eq!(numbers.claim(1), Some(1), "nothing was opened");
        numbers.begin(1, 7);
        numbers.release(1, None);
        assert_eq!((is_free(1), numbers.claim(1)), (true, Some(8)));
    }

    #[test]
    fn every_rank_counts_the_contexts_on_which_nobody_agrees() {
        let numbers = Numbers::new();
        let first = RESERVED as u16;
        assert_eq!(
            (numbers.take_at_once(), numbers.take_at_once()),
            (Some((first, 1)), Some((first + 1, 1)))
        );
        numbers.release(first + 1, None);
        assert!((2..8).all(|place| numbers.take_at_once() == Some((first + place, 1))));
        // The first one is still open; the number counts all the same.
        assert_eq!((numbers.take_at_once(), numbers.take_at_once()), (None, Some((first + 1, 2))));
        assert_eq!(numbers.claim(first), None);
    }

    #[test]
    fn a_set_of_slots_is_taken_once() {
        let numbers = Numbers::new();
        assert_eq!(numbers.offer(&[]).sets[..2], [None, Some(1)]);
        let set = SlotSet { index: 1, generation: 4 };
        assert!(numbers.claim_set(set, &[]) && !numbers.claim_set(set, &[]));
        numbers.unclaim_set(set);
        assert_eq!(numbers.offer(&[]).sets[1], Some(5));
        assert!(!numbers.claim_set(set, &[]), "another member has used a later one");
    }
}
