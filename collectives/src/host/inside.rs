//! The slots inside the body of a call: its collectives of dense vectors have them one after the other.
//!
//! The body has one ticket, taken when the call was made, and keeps it to its end. So among calls the slots
//! go around in the order in which calls were made, and inside one in the order of its program: the same on
//! all ranks.
//!
//! A rank can leave a body before the others do, or leave out a collective. What it publishes next would then
//! stand where they look for their own. So what is published inside a body says which call that is a part of.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::{Comm, next_turn};
use ucx_sys_wrap::shm::{Slots, Ticket, Turnstile};

use super::Host;
use super::call::{HostCall, Surroundings};
use crate::call::Shared;
use crate::choose::Cost;
use crate::error::{Place, Result};

/// A body's place in the queue for the slots.
type BodyTicket = Ticket<Slots, Arc<Turnstile<Slots>>>;

/// What the body of a call needs to use the slots.
pub(crate) struct Inside {
    host: Arc<Host>,
    /// Away while a collective has it.
    ticket: Mutex<Option<BodyTicket>>,
    /// What the body's call is.
    outer: Signature,
    /// How often to look at a flag before anything else gets a turn.
    spins: u32,
    cost: Cost,
}

/// A collective of a body that may have the slots.
pub(crate) struct Claim<'a> {
    inside: &'a Inside,
    around: Surroundings<'a>,
    place: &'a Place,
}

/// A collective's right to the slots, which goes back to the body when this is dropped.
pub(crate) struct Loan<'a> {
    claim: Claim<'a>,
    /// `None` only while it is dropped.
    ticket: Option<BodyTicket>,
}

impl Inside {
    /// Takes the body's place in the queue.
    pub(crate) fn new(host: &Arc<Host>, outer: Signature, spins: u32, cost: Cost) -> Self {
        let ticket = Mutex::new(Some(Ticket::take(Arc::clone(&host.slots))));
        Self { host: Arc::clone(host), ticket, outer, spins, cost }
    }

    /// For a collective on vectors of `bytes`, if those go over the slots: the same on all ranks.
    pub(crate) fn claim<'a>(
        &'a self,
        bytes: usize,
        comm: &'a Comm<'_>,
        place: &'a Place,
        shared: &'a Shared,
    ) -> Option<Claim<'a>> {
        let suits = self.host.is_always || self.cost.prefers_slots(comm.port().world_size(), bytes);
        suits.then(|| {
            let description = place.description.inside(place.sequence);
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
            Claim { inside: self, around, place }
        })
    }
}

impl<'a> Claim<'a> {
    /// Waits until no other collective of the body has the slots.
    ///
    /// # Errors
    /// When the group is closed or the deadline passes before.
    pub(crate) async fn borrow(self) -> Result<Loan<'a>> {
        let ticket = poll_fn(|context| {
            if let Some(ticket) = self.inside.ticket.lock().take() {
                return Poll::Ready(Ok(ticket));
            }
            let end = self.around.end(self.place, self.around.port.rank(), 0);
            end.map_or_else(|| next_turn(context), |error| Poll::Ready(Err(error)))
        });
        let ticket = Some(ticket.await?);
        Ok(Loan { claim: self, ticket })
    }
}

impl Loan<'_> {
    /// Waits for the body's turn, and has the slots from then on.
    ///
    /// # Errors
    /// As [`Claim::borrow`].
    pub(crate) async fn begin(&mut self) -> Result<HostCall<'_>> {
        let ticket =
            self.ticket.as_mut().unwrap_or_else(|| unreachable!("it goes back when the loan is dropped"));
        HostCall::begin(ticket, &self.claim.around, self.claim.place).await
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        *self.claim.inside.ticket.lock() = self.ticket.take();
    }
}
