//! Collectives over the shared memory of one host: over its [slots](Slots).
//!
//! They are for groups whose ranks are all on one host. Every rank reads what the others have published.
//! Elements are reduced in rank order, by one rank for all or by all alike, so that all ranks get the same
//! bits, except for NaN payloads of sums.
//!
//! Calls use the slots one after the other, in the order in which they were made, which is equal on all
//! ranks. So several may be pending, and none waits for a later one.

mod all_gather;
mod all_reduce;
mod broadcast;
mod call;
mod inside;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::shm::{LocalGroup, Records, Slots, TicketLock};

use crate::choose::Cost;
use crate::engine::Course;

pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub(crate) use all_reduce::{all_reduce_rest, at_once};
pub use broadcast::broadcast;
pub use call::HostCall;
pub(crate) use call::Surroundings;
pub(crate) use inside::{Claim, Inside};

/// The shared memory of a group whose ranks are all on one host.
pub(crate) struct Host {
    /// The slots. One call holds them at a time, in the order in which calls were made.
    pub(crate) slots: Arc<TicketLock<Slots>>,
    pub(crate) records: Records,
    /// Bytes that were written to slots.
    pub(crate) written: Arc<AtomicU64>,
    /// Counts waits, so that a waiting thread sees that calls make progress.
    pub(crate) course: Arc<Course>,
    /// Whether dense vectors of all lengths use the slots.
    pub(crate) is_always: bool,
}

impl Host {
    /// For the ranks of a local group, if it has all ranks of the world, and more than one.
    pub(crate) fn new(
        local_group: &Arc<LocalGroup>,
        world_size: u32,
        cost: &Cost,
        course: &Arc<Course>,
    ) -> Option<Self> {
        let is_whole = world_size > 1 && local_group.ranks().len() == world_size as usize;
        if !is_whole {
            return None;
        }
        let slots = Slots::new(local_group);
        Some(Self {
            written: Arc::clone(slots.written()),
            slots: Arc::new(TicketLock::new(slots)),
            records: Records::new(local_group),
            course: Arc::clone(course),
            is_always: cost.always_prefers_slots(world_size),
        })
    }

    /// Records this rank's call.
    #[inline]
    pub(crate) fn record(&self, sequence: u32, signature: Signature) {
        self.records.record(sequence, signature);
    }
}
