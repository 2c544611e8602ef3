//! The [`Transport`] of this rank: posting, testing, canceling and closing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::failure_flag::Closed;
use super::incoming::{Ended, Finished};
use super::local_peers::linked;
use super::{TURNS_PER_CLOCK, Ucx};
use crate::buffer::ReadLease;
use crate::on_end::OnEnd;
use crate::transport::{
    Found, News, Notice, OperationId, Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts,
    Statistics, Transport, Wanted, Which, check_peer, one, split,
};
use crate::{Arrival, Envelope, Error, Failure, OneSided, Rank, Result};

/// A turn of UCX takes as long as so many looks at shared memory.
const SPINS_PER_TURN: u32 = 8;

impl crate::transport::sealed::Sealed for Ucx {}

impl Transport for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone> {
        if let Err(error) = self.check_open(to) {
            return Posted::Done(SendDone { parts, result: Err(error) });
        }
        debug_assert_eq!(envelope.tag.source(), self.rank, "a tag names the rank that sends");
        if self.is_linked(to) {
            return self.post_send_linked(to, envelope, parts);
        }
        self.sends.post(&mut self.engine, to, &envelope, parts, self.round)
    }

    #[inline]
    fn send_one(&mut self, to: Rank, envelope: &Envelope, part: ReadLease) -> Posted<SendId, Result<()>> {
        debug_assert_eq!(envelope.tag.source(), self.rank, "a tag names the rank that sends");
        if self.closed.is_none() && self.send_linked_at_once(to, envelope, part.bytes()) {
            return Posted::Done(Ok(()));
        }
        if self.closed.is_some() || self.is_linked(to) || !self.engine.has_endpoint(to) {
            return self.post_send(to, *envelope, one(part)).map(|done| done.result);
        }
        self.sends.post_one(&mut self.engine, to, envelope, part, self.round)
    }

    fn post_recv(&mut self, from: Rank, envelope: Envelope, parts: RecvParts) -> Posted<RecvId, RecvDone> {
        if let Err(error) = self.check_open(from) {
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        debug_assert_eq!(envelope.tag.source(), from, "a tag names the rank that sends");
        if self.is_linked(from) {
            return self.post_recv_linked(from, envelope, parts);
        }
        match self.engine.post_recv(from, &envelope, parts, self.round) {
            Posted::Done(finished) => Posted::Done(self.finish_recv(finished)),
            Posted::Pending(number) => Posted::Pending(RecvId(number)),
        }
    }

    /// A send that is ended early does not say whether the peer has the message.
    fn test_send(&mut self, id: SendId) -> Option<SendDone> {
        if let Some((links, number)) = self.linked(id.0) {
            return links.test_send(SendId(number));
        }
        self.sends.test(&mut self.engine, id.0)
    }

    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone> {
        if let Some((links, number)) = self.linked(id.0) {
            return links.test_recv(RecvId(number));
        }
        let finished = self.engine.test_recv(id.0)?;
        Some(self.finish_recv(finished))
    }

    fn recv_outcome(&mut self, id: RecvId, spins: u32) -> Option<Result<Arrival>> {
        if let Some((links, number)) = self.linked(id.0) {
            let outcome = links.recv_outcome(RecvId(number))?;
            let (peer, _) = split(number);
            if outcome.is_some() || spins == 0 || !self.look_for_linked(Rank(peer as u32), spins) {
                return outcome;
            }
            return self.links.as_mut()?.recv_outcome(RecvId(number))?;
        }
        // With sockets only, each turn of UCX is a system call.
        let turns = if self.engine.has_sockets_only { 0 } else { spins / SPINS_PER_TURN };
        for _ in 0..turns {
            if !self.engine.inbox().receive(id.0)?.is_waiting() {
                break;
            }
            self.has_moved |= self.progress_ucx();
        }
        let inbox = self.engine.inbox();
        let incoming = inbox.receive(id.0)?;
        if incoming.is_waiting() {
            return None;
        }
        if let Some(arrival) = incoming.plain() {
            inbox.receives.free(id.0);
            return Some(Ok(arrival));
        }
        self.test_recv(id).map(|done| done.result)
    }

    /// UCX itself tells of no end: only a receive whose message has not come waits for something that this
    /// rank is told of. Then it is fetched, or has ended.
    fn on_end(&mut self, operation: OperationId) -> Option<&mut OnEnd> {
        match operation {
            OperationId::Send(id) => {
                let (links, number) = self.linked(id.0)?;
                links.on_end(OperationId::Send(SendId(number)))
            }
            OperationId::Recv(id) => {
                if linked(id.0).is_none() {
                    return self.engine.inbox().receive(id.0)?.on_end();
                }
                let (links, number) = self.linked(id.0)?;
                links.on_end(OperationId::Recv(RecvId(number)))
            }
            OperationId::Access(_) => None,
        }
    }

    /// Asks the peer to discard a rendezvous message that it has not matched: UCX itself can't take one back.
    /// A peer that makes progress does so within some 20 ms. Eager messages end by themselves.
    fn cancel_send(&mut self, id: SendId) {
        if let Some(number) = linked(id.0) {
            if let Some(links) = &mut self.links {
                links.cancel_send(SendId(number), &mut self.engine.inbox().statistics);
            }
        } else if let Some((to, message)) = self.sends.withdraw(id.0, &Error::Canceled) {
            self.liveness.withdraw(to, message);
        }
    }

    fn cancel_recv(&mut self, id: RecvId) {
        if let Some((links, number)) = self.linked(id.0) {
            return links.cancel_recv(RecvId(number));
        }
        self.engine.inbox().cancel(id.0);
    }

    fn withdraw_recv(&mut self, id: RecvId) -> bool {
        if let Some((links, number)) = self.linked(id.0) {
            return links.withdraw_recv(RecvId(number));
        }
        self.engine.inbox().withdraw_recv(id.0)
    }

    fn probe(&mut self, wanted: &Wanted) -> Option<Found> {
        let world_size = self.world_size;
        let of_ucx = self.engine.inbox().find(wanted);
        let of_ucx = of_ucx.map(|header| Found { tag: header.tag, lengths: header.lengths.clone() });
        let links = self.links.as_ref();
        let linked = wanted.sources(world_size).find_map(|peer| links?.find(peer, wanted));
        let turn = |found: &Found| wanted.turn_of(found.tag.source(), world_size);
        let found = of_ucx.into_iter().chain(linked).min_by_key(turn);
        // No operation makes a turn serve the peers that may send one.
        self.is_listening |= found.is_none() || wanted.source.is_none();
        found
    }

    fn progress(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        let mut moved = self.turn_links();
        moved |= self.turn_ucx();
        self.is_listening = false;
        if std::mem::take(&mut self.may_have_slept)
            || self.turns.is_multiple_of(TURNS_PER_CLOCK) && self.now() >= self.next_check
        {
            moved |= self.check_peers(false);
        }
        self.has_moved |= moved;
        moved
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn arm(&mut self) -> Option<Arc<OwnedFd>> {
        self.may_have_slept = true;
        if std::mem::take(&mut self.has_moved)
            || self.check_peers(true)
            || self.closed.is_some()
            || !self.cut_off.is_empty()
            || !self.reclaiming.is_empty()
            || !self.engine.arm()
        {
            return None;
        }
        // The check may have taken messages of a peer that is gone.
        if std::mem::take(&mut self.has_moved) || self.begin_sleep() {
            return None;
        }
        Some(Arc::clone(&self.epoll))
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.epoll))
    }

    fn watch(&mut self, peer: Rank) -> bool {
        self.watch_peer(peer)
    }

    fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn lose(&mut self, peer: Rank, error: Error) {
        self.lose_peer(peer, error, false);
    }

    fn tell(&mut self, peer: Rank, notice: Notice) {
        if self.check_open(peer).is_ok() && !self.gone.contains(&peer) {
            self.liveness.tell(peer, notice);
        }
    }

    fn end_context(&mut self, context: u16, cause: Failure, error: &Error) {
        if self.closed.is_some() {
            return;
        }
        let inbox = self.engine.inbox();
        inbox.end_context(context, error);
        if let Some(links) = &mut self.links {
            links.end_context(context, error, &mut inbox.statistics);
        }
        for (to, message) in self.sends.end_context(context, error) {
            self.liveness.withdraw(to, message);
        }
        self.reclaim_soon(context, cause);
    }

    fn discard(&mut self, context: u16, which: Which) -> usize {
        if self.closed.is_some() {
            return 0;
        }
        let inbox = self.engine.inbox();
        let mut count = inbox.discard_context(context, which);
        if let Some(links) = &mut self.links {
            count += links.discard(context, which, &mut inbox.statistics);
        }
        self.engine.run_deferred();
        count
    }

    /// Tells the peers and tears UCX down. This ends all access unless the user's `UCX_RNDV_SCHEME` lets
    /// peers write this rank's memory, or the peers of this host can't be told.
    fn abandon(&mut self) -> Result<()> {
        self.close_as(Closed::Abandoned, &Error::Closed);
        if self.engine.is_torn_down() && !self.engine.is_left_open {
            return Ok(());
        }
        let why = "peers may still use this rank's memory: unset UCX_RNDV_SCHEME".into();
        Err(Error::Unavailable { name: "ucx", why })
    }

    fn stands_on_library(&self) -> bool {
        true
    }

    fn leave_with_process(&mut self, is_library_there: bool) {
        self.leave_at_exit(is_library_there);
    }

    fn statistics(&self) -> Statistics {
        self.engine.handler_context_ref().inbox.statistics
    }

    fn one_sided(&mut self) -> &mut dyn OneSided {
        self
    }
}

impl Ucx {
    #[inline]
    pub(super) fn check_open(&self, peer: Rank) -> Result<()> {
        if self.is_troubled {
            self.check_trouble(peer)?;
        }
        check_peer(peer, self.rank, self.world_size)
    }

    #[cold]
    fn check_trouble(&self, peer: Rank) -> Result<()> {
        let closed = self.closed.as_ref().map(|closed| &closed.error);
        let lost = || self.lost.iter().find(|(rank, _)| *rank == peer).map(|(_, error)| error);
        closed.or_else(lost).map_or(Ok(()), |error| Err(error.clone()))
    }

    #[inline]
    fn finish_recv(&mut self, (parts, ended): Finished) -> RecvDone {
        self.handle_violation();
        let result =
            if ended.is_fetched || ended.result.is_err() { self.check_ended(ended) } else { ended.result };
        RecvDone { parts, result }
    }

    /// Rejects a fetched message whose sender had taken the memory back.
    #[inline(never)]
    fn check_ended(&mut self, ended: Ended) -> Result<Arrival> {
        if ended.is_fetched
            && ended.result.is_ok()
            && let Some(error) = self.has_taken_back(ended.from)
        {
            return Err(error);
        }
        ended.result
    }
}
