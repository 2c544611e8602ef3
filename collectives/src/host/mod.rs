//! Collectives among ranks that share memory, over the [slots](Slots) of their host.
//!
//! They are for groups whose ranks are all on one host. Every rank reads what the others have published, and
//! elements are reduced in the order of ranks, by one rank for all or by all alike: the same bits everywhere,
//! but for which NaN a sum with NaN is.
//!
//! Calls take the slots one after the other, in the order in which they were made, which is the same on all
//! ranks. So several may be under way, and none waits for a later one.

mod all_gather;
mod all_reduce;
mod broadcast;
mod call;
mod inside;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::shm::{Neighbourhood, Records, Slots, Turnstile};

use crate::choose::Cost;
use crate::engine::Course;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub(crate) use all_reduce::{all_reduce_rest, at_once};
pub use broadcast::broadcast;
pub use call::HostCall;
pub(crate) use call::Surroundings;
pub(crate) use inside::{Claim, Inside};

/// What a group whose ranks are all on one host works with.
pub(crate) struct Host {
    /// The slots: one call has them at a time, in the order in which calls were made.
    pub(crate) slots: Arc<Turnstile<Slots>>,
    pub(crate) records: Records,
    /// Bytes that were put into slots.
    pub(crate) written: Arc<AtomicU64>,
    /// Where calls count their waits, so that whoever waits for one sees that it comes further.
    pub(crate) course: Arc<Course>,
    /// Whether dense vectors of all lengths go over the slots.
    pub(crate) is_always: bool,
}

impl Host {
    /// For the ranks of a neighbourhood, if they are all of the world's, and not just one.
    pub(crate) fn new(
        neighbourhood: &Arc<Neighbourhood>,
        world_size: u32,
        cost: &Cost,
        course: &Arc<Course>,
    ) -> Option<Self> {
        let is_whole = world_size > 1 && neighbourhood.ranks().len() == world_size as usize;
        if !is_whole {
            return None;
        }
        let slots = Slots::new(neighbourhood);
        Some(Self {
            written: Arc::clone(slots.written()),
            slots: Arc::new(Turnstile::new(slots)),
            records: Records::new(neighbourhood),
            course: Arc::clone(course),
            is_always: cost.always_prefers_slots(world_size),
        })
    }

    /// Takes note of what this rank calls.
    #[inline]
    pub(crate) fn record(&self, sequence: u32, signature: Signature) {
        self.records.record(sequence, signature);
    }
}
