//! The [`Transport`] trait: posting, testing and canceling, and closing.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::Tcp;
use super::connection::Connection;
use crate::buffer::ReadLease;
use crate::limits::{MAX_MESSAGE_BYTES, check_length};
use crate::link::Links;
use crate::on_end::OnEnd;
use crate::transport::{
    Found, News, Notice, OperationId, Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts,
    Statistics, Transport, Wanted, Which, join, one, split,
};
use crate::{Arrival, Envelope, Error, Failure, OneSided, Rank, Result};

impl crate::transport::sealed::Sealed for Tcp {}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone> {
        debug_assert_eq!(envelope.tag.source(), self.rank, "a tag names the rank that sends");
        if let Err(error) = check_length(self.rank, &parts) {
            return Posted::Done(SendDone { parts, result: Err(error) });
        }
        if self.closed.is_none()
            && let Some(links) = self.links.as_mut().filter(|links| links.has(to))
        {
            let posted = links.post_send(to, envelope, parts, &mut self.statistics);
            return self.posted_on_link(posted, |done| &done.result);
        }
        let posted = match self.connection(to) {
            Ok((connection, statistics)) => connection.post_send(envelope, parts, statistics),
            Err(error) => return Posted::Done(SendDone { parts, result: Err(error) }),
        };
        self.begun(to, posted, SendId, |done| &done.result)
    }

    #[inline]
    fn send_one(&mut self, to: Rank, envelope: &Envelope, part: ReadLease) -> Posted<SendId, Result<()>> {
        debug_assert_eq!(envelope.tag.source(), self.rank, "a tag names the rank that sends");
        if let Some(links) = self.links.as_mut().filter(|_| self.closed.is_none())
            && links.send_at_once(to, envelope, part.bytes(), &mut self.statistics)
        {
            return Posted::Done(Ok(()));
        }
        if self.links_of(to.index()).is_some() || part.len() as u64 > MAX_MESSAGE_BYTES {
            return self.post_send(to, *envelope, one(part)).map(|done| done.result);
        }
        let posted = match self.connection(to) {
            Ok((connection, statistics)) => connection.send_one(envelope, part, statistics),
            Err(error) => return Posted::Done(Err(error)),
        };
        self.begun(to, posted, SendId, |result| result)
    }

    fn post_recv(&mut self, from: Rank, envelope: Envelope, parts: RecvParts) -> Posted<RecvId, RecvDone> {
        if self.closed.is_none()
            && let Some(links) = self.links.as_mut().filter(|links| links.has(from))
        {
            let posted = links.post_recv(from, envelope, parts, &mut self.statistics);
            return self.posted_on_link(posted, |done| &done.result);
        }
        let posted = match self.connection(from) {
            Ok((connection, statistics)) => connection.post_recv(envelope, parts, statistics),
            Err(error) => return Posted::Done(RecvDone { parts, result: Err(error) }),
        };
        self.begun(from, posted, RecvId, |done| &done.result)
    }

    fn test_send(&mut self, id: SendId) -> Option<SendDone> {
        let (index, key) = split(id.0);
        match self.links_of(index) {
            Some(links) => links.test_send(id),
            None => self.connections.get_mut(index)?.as_mut()?.outgoing.take_ended(key),
        }
    }

    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone> {
        let (index, key) = split(id.0);
        match self.links_of(index) {
            Some(links) => links.test_recv(id),
            None => self.connections.get_mut(index)?.as_mut()?.incoming.receives.take_ended(key),
        }
    }

    fn recv_outcome(&mut self, id: RecvId, spins: u32) -> Option<Result<Arrival>> {
        if let Some(links) = &mut self.links
            && let Some(outcome) = links.recv_outcome(id)
        {
            if outcome.is_some() || spins == 0 {
                return outcome;
            }
            let (index, _) = split(id.0);
            let turn = links.look_for(Rank(index as u32), spins, &mut self.statistics);
            if !self.handle_link_result(turn) {
                return None;
            }
            self.has_moved = true;
            return self.links.as_mut()?.recv_outcome(id)?;
        }
        let (index, key) = split(id.0);
        self.connections.get_mut(index)?.as_mut()?.incoming.receives.take_outcome(key)
    }

    fn on_end(&mut self, operation: OperationId) -> Option<&mut OnEnd> {
        let (OperationId::Send(SendId(number)) | OperationId::Recv(RecvId(number))) = operation else {
            return None;
        };
        let (index, key) = split(number);
        if self.links_of(index).is_some() {
            return self.links.as_mut()?.on_end(operation);
        }
        let connection = self.connections.get_mut(index)?.as_mut()?;
        match operation {
            OperationId::Send(_) => connection.outgoing.on_end(key),
            _ => connection.incoming.receives.on_end(key),
        }
    }

    fn cancel_send(&mut self, id: SendId) {
        let (index, key) = split(id.0);
        if let Some(links) = self.links.as_mut().filter(|links| links.has(Rank(index as u32))) {
            links.cancel_send(id, &mut self.statistics);
        } else if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.outgoing.cancel(key, Error::Canceled, &mut self.statistics);
        }
    }

    fn cancel_recv(&mut self, id: RecvId) {
        let (index, key) = split(id.0);
        if let Some(links) = self.links_of(index) {
            links.cancel_recv(id);
        } else if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.cancel_recv(key, Error::Canceled);
        }
    }

    fn withdraw_recv(&mut self, id: RecvId) -> bool {
        let (index, key) = split(id.0);
        if let Some(links) = self.links_of(index) {
            return links.withdraw_recv(id);
        }
        let Some(Some(connection)) = self.connections.get_mut(index) else { return true };
        if connection.incoming.receives.is_waiting(key) {
            connection.cancel_recv(key, Error::Canceled);
            return true;
        }
        connection.incoming.receives.has_ended(key)
    }

    fn probe(&mut self, wanted: &Wanted) -> Option<Found> {
        let found =
            wanted.sources(self.world_size).find_map(|peer| match self.connections.get(peer.index()) {
                Some(Some(connection)) => {
                    let linked = || self.links.as_ref()?.find(peer, wanted);
                    connection.incoming.receives.find(wanted).or_else(linked)
                }
                _ => None,
            });
        // No operation makes a turn serve the peers that may send one.
        self.is_listening |= found.is_none() || wanted.source.is_none();
        found
    }

    fn progress(&mut self) -> bool {
        let moved = self.closed.is_none() && self.turn();
        self.has_moved |= moved;
        moved
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn arm(&mut self) -> Option<Arc<OwnedFd>> {
        self.sweep_next = true;
        let is_unread = |index: &usize| self.connections[*index].as_ref().is_some_and(Connection::has_unread);
        if std::mem::take(&mut self.has_moved)
            || self.closed.is_some()
            || !self.news.is_empty()
            || self.awaited.iter().any(is_unread)
        {
            return None;
        }
        if let Some(links) = &mut self.links {
            let turn = links.begin_sleep(&mut self.statistics);
            if self.handle_link_result(turn) {
                return None;
            }
        }
        self.watch_all();
        Some(Arc::clone(&self.poller.epoll))
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.poller.epoll))
    }

    /// Nothing to start: every sweep and every sleep looks at the connection, which shows the death of the
    /// peer.
    fn watch(&mut self, peer: Rank) -> bool {
        let connection = self.connections.get(peer.index()).and_then(Option::as_ref);
        self.closed.is_none() && connection.is_some_and(|connection| connection.wire.is_none())
    }

    fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn lose(&mut self, peer: Rank, error: Error) {
        self.give_up(peer, error);
    }

    fn tell(&mut self, peer: Rank, notice: Notice) {
        if let Some(Some(connection)) = self.connections.get_mut(peer.index()) {
            connection.tell(notice, &mut self.statistics);
            self.list(peer.index());
        }
    }

    fn end_context(&mut self, context: u16, _: Failure, error: &Error) {
        for connection in self.connections.iter_mut().flatten() {
            connection.end_context(context, error, &mut self.statistics);
        }
        if let Some(links) = &mut self.links {
            links.end_context(context, error, &mut self.statistics);
        }
        self.has_moved = true;
    }

    fn discard(&mut self, context: u16, which: Which) -> usize {
        let mut count = 0;
        for index in 0..self.connections.len() {
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                count += connection.discard(context, which, &mut self.statistics);
                if connection.has_queued() {
                    self.list(index);
                }
            }
        }
        let links = self.links.as_mut();
        count + links.map_or(0, |links| links.discard(context, which, &mut self.statistics))
    }

    fn abandon(&mut self) -> Result<()> {
        let error = self.closed.get_or_insert(Error::Closed);
        if let Some(links) = &mut self.links {
            links.close(error);
        }
        for connection in self.connections.iter_mut().flatten() {
            self.poller.remove(connection);
            connection.close(error, &mut self.statistics);
        }
        self.awaited.clear();
        self.has_moved = true;
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn one_sided(&mut self) -> &mut dyn OneSided {
        self
    }
}

impl Tcp {
    /// The links, if messages of this peer go through them.
    #[inline]
    fn links_of(&mut self, index: usize) -> Option<&mut Links> {
        self.links.as_mut().filter(|links| links.has(Rank(index as u32)))
    }

    /// Handles a posted operation of a connection, which every turn serves from now on if it is pending.
    #[inline]
    pub(super) fn begun<D, T, Id>(
        &mut self,
        peer: Rank,
        posted: Posted<usize, D>,
        id: impl FnOnce(u64) -> Id,
        result: impl FnOnce(&D) -> &Result<T>,
    ) -> Posted<Id, D> {
        match posted {
            Posted::Done(done) => {
                if self.closed.is_none() {
                    self.close_if_lost(result(&done));
                }
                Posted::Done(done)
            }
            Posted::Pending(key) => {
                self.list(peer.index());
                Posted::Pending(id(join(peer, key)))
            }
        }
    }

    fn posted_on_link<D, Id, T>(
        &mut self,
        posted: Posted<Id, D>,
        result: impl FnOnce(&D) -> &Result<T>,
    ) -> Posted<Id, D> {
        if let Posted::Done(done) = &posted {
            self.close_if_lost(result(done));
        }
        posted
    }

    /// Gives up a peer when an operation shows that it has left.
    pub(super) fn close_if_lost<T>(&mut self, result: &Result<T>) {
        if let Err(Error::PeerLost { rank }) = result {
            self.lose_left(*rank);
        }
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        // A forked child shares its connections and links with the process that made them.
        if !self.owner.is_here() {
            return;
        }
        self.shut_down();
        for connection in self.connections.iter_mut().flatten() {
            connection.close(&Error::Closed, &mut self.statistics);
        }
    }
}
