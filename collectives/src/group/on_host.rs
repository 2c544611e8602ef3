//! Calls over the shared memory of one host.

use std::ops::ControlFlow;
use std::sync::Arc;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::CallTime;
use ucx_sys_wrap::shm::Ticket;

use super::{CallFuture, DEFAULT_TIMEOUT, Group, Made};
use crate::call::Shared;
use crate::context::Context;
use crate::description::Description;
use crate::difference::explain;
use crate::element::Element;
use crate::engine::Handle;
use crate::error::{CallSite, Result};
use crate::host::{Host, Inside, SlotTurn, Terms};

impl Group {
    /// The right of a call's body to use the slots, if all ranks are on one host.
    pub(super) fn inside(&self, outer: Signature, spins: u32) -> Option<Inside> {
        self.context.ranks.host.as_ref().map(|host| Inside::new(host, outer, spins, self.settings().cost))
    }

    /// The slots of the host, if all ranks are on it and calls of `bytes` should use them. All ranks agree.
    #[inline]
    pub(super) fn host_for(&self, bytes: usize) -> Option<&Arc<Host>> {
        let host = self.context.ranks.host.as_ref();
        host.filter(|host| host.is_always || self.settings().cost.prefers_slots(self.world_size(), bytes))
    }

    /// Runs a call over slots to completion on this thread: as much as possible `at_once`, and the rest in
    /// `body`.
    pub(super) fn run_on_host<T, S>(
        &self,
        host: &Host,
        description: Description,
        data: &mut [T],
        at_once: impl FnOnce(&mut SlotTurn<'_>, &mut [T]) -> ControlFlow<Result<()>, S>,
        body: impl AsyncFnOnce(&mut SlotTurn<'_>, &mut [T], S) -> Result<()>,
    ) -> Result<()> {
        self.engine().turn_for_others();
        let (made, shared) = (self.next_call_over_slots(description, 0), Shared::default());
        let result = self.run_over_slots(host, (made, &shared), data, at_once, body);
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

    fn run_over_slots<T, S>(
        &self,
        host: &Host,
        (made, shared): (Made, &Shared),
        data: &mut [T],
        at_once: impl FnOnce(&mut SlotTurn<'_>, &mut [T]) -> ControlFlow<Result<()>, S>,
        body: impl AsyncFnOnce(&mut SlotTurn<'_>, &mut [T], S) -> Result<()>,
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
            return match at_once(&mut turn, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => {
                    let body = async { body(&mut turn, data, rest).await };
                    self.engine().run_without_scope(&host.status, timeout, &time, body)
                }
            };
        }
        self.engine().run_without_scope(&host.status, timeout, &time, async {
            let mut turn = SlotTurn::begin(&mut ticket, &terms).await?;
            match at_once(&mut turn, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => body(&mut turn, data, rest).await,
            }
        })
    }

    /// Starts a non-blocking call over slots on `data`, which the handle returns.
    pub(super) fn start_on_host<T, B, F>(
        &self,
        host: &Arc<Host>,
        description: Description,
        data: B,
        body: F,
    ) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
        F: for<'a, 'b> FnOnce(&'a mut SlotTurn<'b>, &'a mut [T]) -> CallFuture<'a, Result<()>>
            + Send
            + 'static,
    {
        let Made { numbered, signature, timeout, .. } = self.next_call_over_slots(description, 0);
        let (host, ranks) = (Arc::clone(host), Arc::clone(&self.context.ranks));
        let mut ticket = Ticket::take(Arc::clone(&host.slots));
        let (status, kept) = (Arc::clone(&host.status), Arc::clone(&ranks));
        self.engine().spawn_in((status, Some(kept)), (timeout, None), data, move |comm, data| {
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
                    Ok(mut turn) => body(&mut turn, data.as_mut()).await,
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
