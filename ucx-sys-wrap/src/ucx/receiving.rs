//! Receives: the part that calls UCX.

use brevity_ucx_sys::ucs_status_t;

use super::NO_BYTES;
use super::engine::{Engine, Protocol};
use super::flow::CREDIT_UPDATE_BYTES;
use super::handler::CREDIT_UPDATE;
use super::inbox::Deferred;
use super::incoming::Finished;
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Rank};

impl Engine {
    #[inline]
    pub(super) fn post_recv(
        &mut self,
        from: Rank,
        envelope: &Envelope,
        parts: RecvParts,
        posted_in: u32,
    ) -> Posted<u64, Finished> {
        let posted = self.inbox().post(from, envelope, parts, posted_in);
        self.run_deferred();
        posted
    }

    /// Does what the handlers have deferred. Returns whether there was anything.
    #[inline]
    pub(super) fn run_deferred(&mut self) -> bool {
        let has_deferred = !self.inbox().deferred.is_empty();
        if has_deferred {
            self.run_all_deferred();
        }
        has_deferred
    }

    #[inline(never)]
    fn run_all_deferred(&mut self) {
        while let Some(work) = self.inbox().deferred.pop_front() {
            match work {
                Deferred::Release(rts) => self.release(rts),
                Deferred::Fetch { number, part, rts } => {
                    if let Some(rts) = self.handler_context().fetch(number, part, rts) {
                        self.release(rts);
                    }
                }
                Deferred::SendCredit(rank) => self.send_credit(rank),
            }
        }
    }

    #[inline]
    pub(super) fn test_recv(&mut self, number: u64) -> Option<Finished> {
        let is_left_open = self.is_left_open;
        let incoming = self.inbox().receive(number)?;
        if incoming.is_waiting() || is_left_open && !incoming.is_over() {
            return None;
        }
        if !incoming.is_ended() {
            self.complete_recv(number);
        }
        self.inbox().take_ended(number)
    }

    /// Ends receives with `error`: all after the tear-down, before it those whose parts UCX does not write.
    pub(super) fn end_receives(&mut self, error: &Error) {
        self.inbox().close(error);
        if !self.is_torn_down() || self.is_left_open {
            return;
        }
        for number in self.inbox().numbers() {
            let Some(incoming) = self.inbox().receive(number) else { continue };
            if let Some(fetches) = incoming.take_fetches() {
                // The message is not whole, whatever parts have come.
                incoming.end(error.clone());
                fetches.into_iter().for_each(|(request, _)| self.ucp_requests().put(request));
            }
        }
        for request in std::mem::take(&mut self.credit_updates) {
            self.ucp_requests().put(request);
        }
    }

    /// Reports to a peer what was consumed, unless a message has done so meanwhile.
    fn send_credit(&mut self, rank: Rank) {
        let mut updates = std::mem::take(&mut self.credit_updates);
        self.reap_finished(&mut updates);
        self.credit_updates = updates;
        let own = self.handler_context().own;
        let Some(flow) = self.inbox().flow(rank).filter(|flow| flow.must_report()) else { return };
        let update = flow.credit_update(own).encode();
        let mut request = self.ucp_requests().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { request.header_mut() };
        room[..CREDIT_UPDATE_BYTES].copy_from_slice(&update);
        // SAFETY: there is no payload; the header is the request's own.
        unsafe {
            self.send(rank, (CREDIT_UPDATE, Protocol::Auto), CREDIT_UPDATE_BYTES, NO_BYTES, &request);
        }
        self.credit_updates.push(request);
    }

    /// Ends a receive whose parts have all come.
    #[inline(never)]
    fn complete_recv(&mut self, number: u64) {
        let Some(incoming) = self.inbox().receive(number) else { return };
        let (from, _) = incoming.wait();
        let Some(fetches) = incoming.completed_fetches() else { return };
        let mut wrong = None;
        for (request, expected) in fetches {
            let (status, bytes) = self.reap(&request).unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
            self.ucp_requests().put(request);
            if status != ucs_status_t::UCS_OK {
                wrong = Some(self.error(from, "ucp_am_recv_data_nbx", status));
            } else if bytes != expected {
                let what = format!("{bytes} bytes of a part announced with {expected}");
                wrong = Some(Error::Protocol { rank: from, what });
            }
        }
        let inbox = self.inbox();
        if let Some(error) = &wrong {
            inbox.violated(from, error.clone());
        }
        if let Some(incoming) = inbox.receive(number) {
            incoming.complete(wrong.is_some());
        }
    }
}
