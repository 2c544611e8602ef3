//! The slots inside the body of a call, whose collectives on dense vectors use them one after the other.
//!
//! The body has one ticket, taken when the call was made, and keeps it until it ends. So calls use the slots
//! in the order in which they were made, and collectives of a body in program order, equally on all ranks.
//!
//! A rank may leave a body before the others, or skip a collective. The others would then take its next
//! publication for this one. So a publication inside a body carries the identity of the call.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::{Comm, next_turn};
use ucx_sys_wrap::shm::{Slots, Ticket, TicketLock};

use super::Host;
use super::call::{HostCall, Surroundings};
use crate::call::Shared;
use crate::choose::Cost;
use crate::error::{CallSite, Result};

/// A body's place in the queue for the slots.
type BodyTicket = Ticket<Slots, Arc<TicketLock<Slots>>>;

/// The right of a call's body to use the slots.
pub(crate) struct Inside {
    host: Arc<Host>,
    /// `None` while a collective uses it.
    ticket: Mutex<Option<BodyTicket>>,
    /// The signature of the body's call.
    outer: Signature,
    /// How often to check a flag before other work gets a turn.
    spins: u32,
    cost: Cost,
}

/// A collective of a body that should use the slots.
pub(crate) struct Claim<'a> {
    inside: &'a Inside,
    around: Surroundings<'a>,
    site: &'a CallSite,
}

/// A collective's right to use the slots; dropping it returns the ticket to the body.
pub(crate) struct Loan<'a> {
    claim: Claim<'a>,
    /// `None` only during the drop.
    ticket: Option<BodyTicket>,
}

impl Inside {
    /// Takes the body's place in the queue.
    pub(crate) fn new(host: &Arc<Host>, outer: Signature, spins: u32, cost: Cost) -> Self {
        let ticket = Mutex::new(Some(Ticket::take(Arc::clone(&host.slots))));
        Self { host: Arc::clone(host), ticket, outer, spins, cost }
    }

    /// The claim of a collective on vectors of `bytes`, if it should use the slots. All ranks agree.
    pub(crate) fn claim<'a>(
        &'a self,
        bytes: usize,
        comm: &'a Comm<'_>,
        site: &'a CallSite,
        shared: &'a Shared,
    ) -> Option<Claim<'a>> {
        let suits = self.host.is_always || self.cost.prefers_slots(comm.port().world_size(), bytes);
        suits.then(|| {
            let description = site.description.inside(site.sequence);
            let around = Surroundings {
                port: comm.port(),
                time: comm.time(),
                records: &self.host.records,
                course: &self.host.course,
                signature: description.encode(),
                outer: self.outer,
                shared,
                spins: self.spins,
            };
            Claim { inside: self, around, site }
        })
    }
}

impl<'a> Claim<'a> {
    /// Waits until no other collective of the body uses the slots.
    ///
    /// # Errors
    /// When the group is closed or the deadline passes before.
    pub(crate) async fn borrow(self) -> Result<Loan<'a>> {
        let ticket = poll_fn(|context| {
            if let Some(ticket) = self.inside.ticket.lock().take() {
                return Poll::Ready(Ok(ticket));
            }
            let end = self.around.end(self.site, self.around.port.rank(), 0);
            end.map_or_else(|| next_turn(context), |error| Poll::Ready(Err(error)))
        });
        let ticket = Some(ticket.await?);
        Ok(Loan { claim: self, ticket })
    }
}

impl Loan<'_> {
    /// Waits for the body's turn and takes the slots.
    ///
    /// # Errors
    /// As for [`Claim::borrow`].
    pub(crate) async fn begin(&mut self) -> Result<HostCall<'_>> {
        let ticket =
            self.ticket.as_mut().unwrap_or_else(|| unreachable!("it goes back when the loan is dropped"));
        HostCall::begin(ticket, &self.claim.around, self.claim.site).await
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        *self.claim.inside.ticket.lock() = self.ticket.take();
    }
}
