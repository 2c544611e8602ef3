//! The slots inside the body of a call, whose collectives on dense vectors use them one after the other.
//!
//! The body has one place in the queue, taken when the call was made, and keeps it until it ends. So calls
//! use the slots in the order in which they were made, and collectives of a body in the order of their first
//! polls, equally on all ranks.
//!
//! A rank may leave a body before the others, or skip a collective. The others would then take its next
//! publication for this one. So the signature of a publication contains the digest of the body's call.

use std::sync::Arc;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::Comm;
use ucx_sys_wrap::shm::{LockHandle, Slots, Ticket, TicketLock};

use super::Host;
use super::turn::{SlotQueue, Terms};
use crate::call::Shared;
use crate::error::CallSite;

/// A body's place in the queue for the slots.
pub(crate) type BodyTicket = Ticket<Slots, Arc<TicketLock<Slots>>>;

/// The right of a call's body to use the slots.
pub(crate) struct Inside {
    host: Arc<Host>,
    /// The body's place, for which its collectives queue in turn.
    queue: TicketLock<BodyTicket>,
    /// The signature of the body's call.
    outer: Signature,
    /// How often to check a flag before other work gets a turn.
    spins: u32,
}

/// The place of a collective in the queue of its body.
pub(crate) type InsideTicket<'a> = Ticket<BodyTicket, &'a TicketLock<BodyTicket>>;

impl<Q: LockHandle<BodyTicket>> SlotQueue for Ticket<BodyTicket, Q> {
    #[inline]
    fn slots(&mut self) -> Option<&mut Slots> {
        self.thing()?.thing()
    }
}

impl Inside {
    /// Takes the body's place in the queue.
    pub(crate) fn new(host: &Arc<Host>, outer: Signature, spins: u32) -> Self {
        let queue = TicketLock::new(Ticket::take(Arc::clone(&host.slots)));
        Self { host: Arc::clone(host), queue, outer, spins }
    }

    /// The place of a collective, and the terms of its turn.
    pub(crate) fn turn<'a>(
        &'a self,
        comm: &'a Comm<'_>,
        (site, signature): (&'a CallSite<'a>, Signature),
        shared: &'a Shared,
    ) -> (InsideTicket<'a>, Terms<'a>) {
        let terms = Terms {
            host: &self.host,
            port: comm.port(),
            time: comm.time(),
            site,
            shared,
            signature,
            outer: self.outer,
            made: None,
            spins: self.spins,
        };
        (Ticket::take(&self.queue), terms)
    }
}
