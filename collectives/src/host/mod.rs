//! Collectives over the shared memory of one host: over its [slots](Slots).
//!
//! They are for the ranks of a group that are on one host: if these are all, a collective goes over slots
//! alone; else its part inside the host does. Every rank reads what the others have published.
//! Vectors are bytes. Their elements are reduced in the fixed order ([`data::order`](crate::data::order)), by
//! one rank for all or by all alike, so that all ranks get the same bits, except for NaN payloads of sums.
//!
//! Calls use the slots one after the other, in the order in which they were made, which is equal on all
//! ranks. So several may be pending, and none waits for a later one.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod exchange;
mod folding;
mod gather;
mod inside;
mod memory;
mod reduce;
mod reduce_scatter;
mod rows;
mod scatter;
mod slices;
mod turn;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ucx_sys_wrap::shm::{Records, SlotSet, Slots, Ticket, TicketLock};
use ucx_sys_wrap::{Rank, Signature};

use crate::engine::{Course, Status};
use crate::world::World;

pub use all_gather::all_gather;
pub(crate) use all_gather::all_gather_part;
pub use all_reduce::{Rest, all_reduce};
pub(crate) use all_reduce::{all_reduce_rest, at_once};
pub use all_to_all::all_to_all;
pub(crate) use all_to_all::all_to_all_part;
pub use barrier::barrier;
pub(crate) use barrier::{barrier_at_once, barrier_rest, leave, meet};
pub use broadcast::broadcast;
pub(crate) use broadcast::broadcast_part;
pub use gather::gather;
pub(crate) use inside::{Inside, InsideTicket};
pub use memory::Blocks;
pub use reduce::reduce;
pub(crate) use reduce::reduce_part;
pub use reduce_scatter::reduce_scatter;
pub(crate) use reduce_scatter::reduce_scatter_part;
pub(crate) use rows::{Operands, Rows, all_gather_rows, reduce_rows};
pub use scatter::scatter;
pub use turn::SlotTurn;
pub(crate) use turn::Terms;

/// The shared memory of the ranks of a group that are on this rank's host.
pub(crate) struct Host {
    /// The slots' set, which no other group uses meanwhile.
    pub(crate) set: SlotSet,
    /// The slots. One call holds them at a time, in the order in which calls were made.
    pub(crate) slots: Arc<TicketLock<Slots>>,
    pub(crate) records: Records,
    /// The number of ranks.
    places: u32,
    /// Bytes that were written to slots.
    pub(crate) written: Arc<AtomicU64>,
    /// Counts waits, so that a waiting thread sees that calls make progress.
    pub(crate) course: Arc<Course>,
    /// The group's context.
    pub(crate) status: Arc<Status>,
}

impl Host {
    /// For the members of a context on this rank's host, if there are several and all share its memory.
    pub(crate) fn new(world: &World, members: &[Rank], set: SlotSet, status: &Arc<Status>) -> Option<Self> {
        let local_group = world.local_group.as_ref()?;
        let places = places(world, members)?;
        let slots = Slots::over(local_group, set, &places);
        Some(Self {
            set,
            written: Arc::clone(slots.written()),
            slots: Arc::new(TicketLock::new(slots)),
            records: Records::over(local_group, set, &places),
            places: places.len() as u32,
            course: Arc::clone(world.engine.course()),
            status: Arc::clone(status),
        })
    }

    /// The number of ranks.
    #[inline]
    pub(crate) fn places(&self) -> u32 {
        self.places
    }

    /// Whether nobody but the `lost` still reads what this rank has published.
    pub(crate) fn is_at_rest(&self, lost: &[Rank]) -> bool {
        Ticket::take(&*self.slots).thing().is_some_and(|slots| slots.is_at_rest(lost))
    }

    /// Says that this rank makes no more calls here.
    pub(crate) fn end(&self) {
        if let Some(slots) = Ticket::take(&*self.slots).thing() {
            slots.end();
        }
    }

    /// Records this rank's call.
    #[inline]
    pub(crate) fn record(&self, sequence: u32, signature: Signature) {
        self.records.record(sequence, signature);
    }
}

/// The members' places in the local group, if there are several and all are in it.
pub(crate) fn places(world: &World, members: &[Rank]) -> Option<Vec<usize>> {
    let local_group = world.local_group.as_ref().filter(|_| members.len() > 1)?;
    members.iter().map(|member| local_group.place_of(*member)).collect()
}
