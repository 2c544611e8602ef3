//! Calls over the shared memory of one host.

use std::ops::ControlFlow;
use std::sync::Arc;

use ucx_sys_wrap::Signature;
use ucx_sys_wrap::buffer::CallTime;
use ucx_sys_wrap::shm::Ticket;

use super::{CallFuture, Group};
use crate::call::Shared;
use crate::description::Description;
use crate::element::Element;
use crate::engine::Handle;
use crate::error::{CallSite, Result};
use crate::host::{Host, HostCall, Inside, Surroundings};

impl Group {
    /// The right of a call's body to use the slots, if all ranks are on one host.
    pub(super) fn inside(&self, outer: Signature, spins: u32) -> Option<Inside> {
        self.0.host.as_ref().map(|host| Inside::new(host, outer, spins, self.0.settings.cost))
    }

    /// The slots of the host, if all ranks are on it and calls of `bytes` should use them. All ranks agree.
    #[inline]
    pub(super) fn host_for(&self, bytes: usize) -> Option<&Arc<Host>> {
        self.0
            .host
            .as_ref()
            .filter(|host| host.is_always || self.0.settings.cost.prefers_slots(self.world_size(), bytes))
    }

    /// Runs a call over slots to completion on this thread: as much as possible `at_once`, and the rest in
    /// `body`.
    pub(super) fn run_on_host<T, S>(
        &self,
        host: &Host,
        description: Description,
        data: &mut [T],
        at_once: impl FnOnce(&mut HostCall<'_>, &mut [T]) -> ControlFlow<Result<()>, S>,
        body: impl AsyncFnOnce(&mut HostCall<'_>, &mut [T], S) -> Result<()>,
    ) -> Result<()> {
        let (identity, signature) = self.next_call(&description);
        let mut ticket = Ticket::take(&*host.slots);
        let site = CallSite { description, sequence: identity.sequence };
        let (shared, time) = (Shared::default(), CallTime::default());
        let around = Surroundings {
            port: self.port(),
            time: &time,
            records: &host.records,
            course: &host.course,
            signature,
            outer: signature,
            shared: &shared,
            spins: self.0.engine.spins(),
        };
        if let Some(mut call) = HostCall::begin_at_once(&mut ticket, &around, &site) {
            return match at_once(&mut call, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => {
                    let body = async { body(&mut call, data, rest).await };
                    self.0.engine.run_without_scope(identity.timeout, &time, body)
                }
            };
        }
        self.0.engine.run_without_scope(identity.timeout, &time, async {
            let mut call = HostCall::begin(&mut ticket, &around, &site).await?;
            match at_once(&mut call, data) {
                ControlFlow::Break(result) => result,
                ControlFlow::Continue(rest) => body(&mut call, data, rest).await,
            }
        })
    }

    /// Starts a non-blocking call over slots on `data`, which the handle returns.
    pub(super) fn start_on_host<T, F>(
        &self,
        host: &Arc<Host>,
        description: Description,
        data: Vec<T>,
        body: F,
    ) -> Handle<(Vec<T>, Result<()>)>
    where
        T: Element,
        F: for<'a, 'b> FnOnce(&'a mut HostCall<'b>, &'a mut [T]) -> CallFuture<'a, Result<()>>
            + Send
            + 'static,
    {
        let (identity, signature) = self.next_call(&description);
        let host = Arc::clone(host);
        let mut ticket = Ticket::take(Arc::clone(&host.slots));
        self.0.engine.spawn(identity.timeout, data, move |comm, data| {
            Box::pin(async move {
                let site = CallSite { description, sequence: identity.sequence };
                let shared = Shared::default();
                let around = Surroundings {
                    port: comm.port(),
                    time: comm.time(),
                    records: &host.records,
                    course: &host.course,
                    signature,
                    outer: signature,
                    shared: &shared,
                    spins: 0,
                };
                let mut call = HostCall::begin(&mut ticket, &around, &site).await?;
                body(&mut call, data).await
            })
        })
    }
}
