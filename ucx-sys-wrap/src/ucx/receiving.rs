//! Receives, as the transport sees them: what the inbox has no hands for is done here.

use brevity_ucx_sys::ucs_status_t;

use super::engine::{Engine, Protocol};
use super::flow::CREDIT_UPDATE_BYTES;
use super::handler::CREDIT_UPDATE;
use super::inbox::Deferred;
use super::incoming::Finished;
use super::{NO_BYTES, UcpRequest};
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Rank};

/// The hands of an inbox.
pub(super) struct Receives {
    own: Rank,
    /// Words to peers that UCX has not sent yet.
    updates: Vec<UcpRequest>,
    /// Whether peers may go on writing the parts that are being fetched, although UCX is left to the process
    /// that exits: those receives never end.
    pub(super) are_left_open: bool,
}

impl Receives {
    pub(super) fn new(own: Rank) -> Self {
        Self { own, updates: Vec::new(), are_left_open: false }
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        engine: &mut Engine,
        from: Rank,
        envelope: &Envelope,
        parts: RecvParts,
        posted_in: u32,
    ) -> Posted<u64, Finished> {
        let posted = engine.inbox().post(from, envelope, parts, posted_in);
        self.work(engine);
        posted
    }

    /// Does what the handlers have left to do. Says whether there was anything.
    #[inline]
    pub(super) fn work(&mut self, engine: &mut Engine) -> bool {
        let has_work = !engine.inbox().deferred.is_empty();
        if has_work {
            self.run_all(engine);
        }
        has_work
    }

    #[inline(never)]
    fn run_all(&mut self, engine: &mut Engine) {
        while let Some(work) = engine.inbox().next_deferred() {
            self.run(engine, work);
        }
    }

    /// Gives a receive back that has ended.
    #[inline]
    pub(super) fn test(&mut self, engine: &mut Engine, number: u64) -> Option<Finished> {
        let incoming = engine.inbox().receive(number)?;
        if incoming.is_waiting() || self.are_left_open && !incoming.is_over() {
            return None;
        }
        if !incoming.is_ended() {
            complete(engine, number);
        }
        engine.inbox().take_ended(number)
    }

    /// Ends every receive with `error` but those whose parts UCX may still write; all of them once it is torn
    /// down.
    pub(super) fn end_all(&mut self, engine: &mut Engine, error: &Error) {
        engine.inbox().close(error);
        if !engine.is_torn_down() || self.are_left_open {
            return;
        }
        for number in engine.inbox().numbers() {
            let Some(incoming) = engine.inbox().receive(number) else { continue };
            if let Some(requests) = incoming.take_fetches() {
                // Parts that had come before are of a message that is not whole.
                incoming.end(error.clone());
                requests.into_iter().for_each(|(request, _)| engine.ucp_requests().put(request));
            }
        }
        self.updates.drain(..).for_each(|request| engine.ucp_requests().put(request));
    }

    fn run(&mut self, engine: &mut Engine, work: Deferred) {
        match work {
            Deferred::Release(rts) => engine.release(rts),
            Deferred::Fetch { number, part, rts } => engine.fetch(number, part, rts),
            Deferred::SendCredit(rank) => self.send_credit(engine, rank),
        }
    }

    /// Tells a peer what was consumed, unless a message has told it meanwhile.
    fn send_credit(&mut self, engine: &mut Engine, rank: Rank) {
        for position in (0..self.updates.len()).rev() {
            if engine.reap(&self.updates[position]).is_some() {
                engine.ucp_requests().put(self.updates.swap_remove(position));
            }
        }
        let Some(flow) = engine.inbox().flow(rank).filter(|flow| flow.must_report()) else { return };
        let update = flow.credit_update(self.own).encode();
        let mut request = engine.ucp_requests().take();
        // SAFETY: just taken: it is in no use.
        let room = unsafe { request.header_mut() };
        room[..CREDIT_UPDATE_BYTES].copy_from_slice(&update);
        // SAFETY: there is no payload; the header is the request's own.
        unsafe {
            engine.send(rank, (CREDIT_UPDATE, Protocol::Auto), CREDIT_UPDATE_BYTES, NO_BYTES, &request)
        };
        self.updates.push(request);
    }
}

/// Ends a receive whose parts have all come.
#[inline(never)]
fn complete(engine: &mut Engine, number: u64) {
    let Some(incoming) = engine.inbox().receive(number) else { return };
    let (from, _) = incoming.wait();
    let Some(requests) = incoming.completed_fetches() else { return };
    let mut wrong = None;
    for (request, expected) in requests {
        let (status, bytes) = engine.reap(&request).unwrap_or((ucs_status_t::UCS_ERR_CANCELED, 0));
        engine.ucp_requests().put(request);
        if status != ucs_status_t::UCS_OK {
            wrong = Some(engine.error(from, "ucp_am_recv_data_nbx", status));
        } else if bytes != expected {
            let what = format!("{bytes} bytes of a part announced with {expected}");
            wrong = Some(Error::Protocol { rank: from, what });
        }
    }
    let inbox = engine.inbox();
    if let Some(error) = &wrong {
        inbox.violation.get_or_insert((from, error.clone()));
    }
    if let Some(incoming) = inbox.receive(number) {
        incoming.complete(wrong);
    }
}
