//! Calls over the shared memory of one host.

use std::ops::ControlFlow;
use std::sync::Arc;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::CallTime;
use ucx_sys_wrap::shm::Ticket;

use super::{DEFAULT_TIMEOUT, Group, Made};
use crate::buffers::Buffers;
use crate::call::Shared;
use crate::context::Context;
use crate::dense::{Collective, suits_slots};
use crate::description::Description;
use crate::difference::explain;
use crate::engine::Handle;
use crate::error::{CallSite, Result};
use crate::host::{Host, Inside, SlotTurn, Terms};
use crate::plan::{Algorithm, Work};

impl Group {
    /// The host of each rank, by rank, as a number: ranks with equal ones are on one host.
    #[must_use]
    pub fn host_numbers(&self) -> Vec<u32> {
        let Context { ranks, world, .. } = &*self.context;
        ranks.members.iter().map(|member| world.host(*member)).collect()
    }

    /// The right of a call's body to use the slots of this rank's host, if there are.
    pub(super) fn inside(&self, outer: Signature, spins: u32) -> Option<Inside> {
        self.context.ranks.host.as_ref().map(|host| Inside::new(host, outer, spins))
    }

    /// The slots of the host, if all ranks are on it, and a call of this work goes over them: because that is
    /// wished for, or the fastest way. All ranks agree.
    #[inline]
    pub(super) fn host_for<C: Collective>(
        &self,
        collective: &C,
        work: &Work,
        wish: Option<Algorithm>,
    ) -> Option<&Arc<Host>> {
        let host = self.context.ranks.only_host();
        host.filter(|_| suits_slots(collective)).filter(|_| match wish {
            Some(algorithm) => algorithm == Algorithm::Slots,
            None => self.context.ranks.plan().prefers_slots(C::OPERATION, C::ROWS, work),
        })
    }

    /// The algorithm of a call whose part inside this rank's host goes over slots.
    pub(super) fn levels<C: Collective>(
        &self,
        collective: &C,
        work: &Work,
        algorithm: Option<Algorithm>,
    ) -> Option<Algorithm> {
        let plan = self.context.ranks.plan();
        if self.context.ranks.host.is_none() || plan.places.is_none() {
            return None;
        }
        let algorithm = algorithm.unwrap_or_else(|| plan.choose(C::OPERATION, C::ROWS, work));
        let suits = algorithm == Algorithm::Hosts && suits_slots(collective);
        suits.then_some(algorithm)
    }

    /// Runs a call over slots to completion on this thread: as much as possible at once.
    pub(super) fn run_on_host<C: Collective>(
        &self,
        host: &Host,
        description: Description,
        collective: &C,
        memory: Buffers<'_>,
    ) -> Result<()> {
        self.engine().turn_for_others();
        let (made, shared) = (self.next_call_over_slots(description, 0), Shared::default());
        let result = self.run_over_slots(host, (made, &shared), collective, memory);
        if shared.has_differed() {
            self.explain();
        }
        result
    }

    /// Finds out what differs between the calls of ranks.
    #[cold]
    fn explain(&self) {
        let Context { ranks, status, .. } = &*self.context;
        self.engine().run_in(status, DEFAULT_TIMEOUT, async |comm| explain(comm, ranks, status).await);
    }

    fn run_over_slots<C: Collective>(
        &self,
        host: &Host,
        (made, shared): (Made, &Shared),
        collective: &C,
        mut memory: Buffers<'_>,
    ) -> Result<()> {
        let Made { description, numbered, signature, timeout } = made;
        let mut ticket = Ticket::take(&*host.slots);
        let difference = &self.context.ranks.difference;
        let site = CallSite { description, sequence: numbered.number, difference };
        let time = CallTime::default();
        let terms = Terms {
            host,
            port: self.port(),
            time: &time,
            site: &site,
            shared,
            signature,
            outer: signature,
            made: Some(numbered),
            spins: self.engine().spins(),
        };
        if let Some(mut turn) = SlotTurn::begin_at_once(&mut ticket, &terms) {
            return match collective.at_once(&mut turn, &mut memory) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => {
                    let body = async { collective.run_on_host(&mut turn, &mut memory, rest).await };
                    self.engine().run_without_scope(&host.status, timeout, &time, body)
                }
            };
        }
        self.engine().run_without_scope(&host.status, timeout, &time, async {
            let mut turn = SlotTurn::begin(&mut ticket, &terms).await?;
            turn.run(collective, &mut memory).await
        })
    }

    /// Starts a non-blocking call over slots on the memory that `lend` finds in `buffers`, which the handle
    /// returns.
    pub(super) fn start_on_host<C, B>(
        &self,
        host: &Arc<Host>,
        description: Description,
        (collective, buffers): (C, B),
        lend: impl for<'a> Fn(&'a mut B) -> Buffers<'a> + Send + 'static,
    ) -> Handle<(B, Result<()>)>
    where
        C: Collective,
        B: Send + 'static,
    {
        let Made { numbered, signature, timeout, .. } = self.next_call_over_slots(description, 0);
        let (host, ranks) = (Arc::clone(host), Arc::clone(&self.context.ranks));
        let mut ticket = Ticket::take(Arc::clone(&host.slots));
        let (status, kept) = (Arc::clone(&host.status), Arc::clone(&ranks));
        self.engine().spawn_in((status, Some(kept)), (timeout, None), buffers, move |comm, buffers| {
            Box::pin(async move {
                let site = CallSite { description, sequence: numbered.number, difference: &ranks.difference };
                let shared = Shared::default();
                let terms = Terms {
                    host: &host,
                    port: comm.port(),
                    time: comm.time(),
                    site: &site,
                    shared: &shared,
                    signature,
                    outer: signature,
                    made: Some(numbered),
                    spins: 0,
                };
                let result = match SlotTurn::begin(&mut ticket, &terms).await {
                    Ok(mut turn) => turn.run(&collective, &mut lend(buffers)).await,
                    Err(error) => Err(error),
                };
                if shared.has_differed() {
                    explain(comm, &ranks, &host.status).await;
                }
                result
            })
        })
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod slots_tests;
