//! One peer: its socket, what is read and written, and the operations with it.

mod ending;

use std::sync::Arc;

use super::QUOTA;
use super::frame::{Frame, Header};
use super::incoming::{Incoming, ReadOutcome, Response};
use super::matching::{Body, scatter};
use super::outgoing::Outgoing;
use super::reading::Target;
use super::remote::Accesses;
use super::wire::Wire;
use crate::buffer::ReadLease;
use crate::one_sided::{AccessParts, Regions};
use crate::transport::{Notice, Posted, RecvDone, RecvParts, SendDone, SendParts, Which, check_message};
use crate::{Arrival, Envelope, Error, Rank, RegionKey, Result, Statistics};
use parking_lot::Mutex;

/// The number of turns that only write, after a read that has found nothing.
const READS_SKIPPED: u32 = 3;

pub(super) struct Connection {
    peer: Rank,
    /// `None` once the peer has said bye or the connection was closed here.
    pub(super) wire: Option<Wire>,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    write_broken: bool,
    /// Whether what was read may have queued or released something to write.
    has_answers: bool,
    /// The next turns that do not read as long as there is something to write.
    reads_to_skip: u32,
    /// Whether each turn of the transport serves this connection.
    pub(super) is_listed: bool,
}

/// The state of a connection after a turn of reading and writing.
#[derive(Debug)]
pub(super) enum Status {
    /// The connection goes on.
    Open,
    /// The peer has sent its close frame.
    Closed,
    /// The connection ended without a close frame: the peer has died, or could not tell its failure.
    Lost,
    /// The peer has violated the protocol.
    Violation(Error),
}

impl Connection {
    pub(super) fn new(
        own: Rank,
        peer: Rank,
        world_size: u32,
        wire: Wire,
        regions: Arc<Mutex<Regions>>,
    ) -> Self {
        let accesses = Accesses::new(own, peer, regions);
        Self {
            peer,
            wire: Some(wire),
            incoming: Incoming::new(peer, world_size, accesses),
            outgoing: Outgoing::new(own, peer),
            write_broken: false,
            has_answers: false,
            reads_to_skip: 0,
            is_listed: false,
        }
    }

    #[inline]
    pub(super) fn post_send(
        &mut self,
        envelope: Envelope,
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, SendDone> {
        let Some(wire) = &mut self.wire else {
            return Posted::Done(SendDone { parts, result: Err(self.lost()) });
        };
        let Envelope { tag, signature, mark } = envelope;
        let lengths = parts.iter().map(|part| part.len()).collect();
        statistics.messages_sent += 1;
        self.outgoing.post(wire, Header { tag, signature, mark, lengths }, parts, statistics)
    }

    /// Like [`post_send`](Self::post_send) with a message of one part, but drops the lease.
    #[inline]
    pub(super) fn send_one(
        &mut self,
        envelope: &Envelope,
        part: ReadLease,
        statistics: &mut Statistics,
    ) -> Posted<usize, Result<()>> {
        let Some(wire) = &mut self.wire else { return Posted::Done(Err(self.lost())) };
        statistics.messages_sent += 1;
        self.outgoing.post_one(wire, envelope, part, statistics)
    }

    #[inline]
    pub(super) fn post_recv(
        &mut self,
        envelope: Envelope,
        parts: RecvParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        if self.incoming.receives.unexpected.is_empty() && self.wire.is_some() {
            return Posted::Pending(self.incoming.receives.post(envelope, parts));
        }
        let posted = match self.incoming.take_unexpected(envelope.tag, envelope.signature) {
            Some((header, body)) => self.post_matched(envelope, parts, header, body, statistics),
            None if self.wire.is_some() => Posted::Pending(self.incoming.receives.post(envelope, parts)),
            None => Posted::Done(RecvDone { parts, result: Err(self.lost()) }),
        };
        self.reply(statistics);
        posted
    }

    /// Posts a receive whose message is there, is arriving, or is announced.
    fn post_matched(
        &mut self,
        envelope: Envelope,
        mut parts: RecvParts,
        header: Header,
        body: Body,
        statistics: &mut Statistics,
    ) -> Posted<usize, RecvDone> {
        let is_arriving = matches!(&body, Body::Bytes(bytes) if bytes.len() < header.payload_bytes());
        if let Err(error) =
            check_message(self.peer, envelope.signature, &parts, header.signature, &header.lengths)
        {
            match body {
                Body::Rts(number) => self.incoming.flow_control.answer(number, header, None),
                Body::Bytes(_) if is_arriving => self.incoming.redirect(Target::Discarded),
                Body::Bytes(_) => {}
            }
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        match body {
            Body::Rts(number) => {
                let key = self.incoming.receives.post_matched(envelope, parts);
                self.incoming.flow_control.answer(number, header, Some(key));
                return Posted::Pending(key);
            }
            Body::Bytes(bytes) => scatter(&mut parts, &header.lengths, 0, &bytes, statistics),
        }
        if is_arriving {
            let key = self.incoming.receives.post_matched(envelope, parts);
            self.incoming.redirect(Target::Posted(key));
            return Posted::Pending(key);
        }
        statistics.messages_received += 1;
        let arrival = Arrival { mark: header.mark, lengths: header.lengths.into() };
        Posted::Done(RecvDone { parts, result: Ok(arrival) })
    }

    pub(super) fn post_access(
        &mut self,
        key: &RegionKey,
        offset: u64,
        parts: AccessParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, Result<()>> {
        if self.wire.is_none() {
            return Posted::Done(Err(self.lost()));
        }
        let number = self.incoming.accesses.requests.post(key, offset, parts, 0);
        self.pump(statistics);
        Posted::Pending(number)
    }

    pub(super) fn post_flush(&mut self) -> Posted<usize, Result<()>> {
        if self.wire.is_none() {
            return Posted::Done(Err(self.lost()));
        }
        self.incoming.accesses.requests.post_flush(0)
    }

    pub(super) fn test_access(&mut self, number: usize) -> Option<Result<()>> {
        self.incoming.accesses.test(number, &mut self.outgoing)
    }

    pub(super) fn cancel_access(&mut self, number: usize, statistics: &mut Statistics) {
        self.incoming.accesses.cancel(number, &mut self.outgoing, statistics);
    }

    /// Ends all access to a region of this rank.
    pub(super) fn conceal(&mut self, region: u64) {
        self.incoming.accesses.conceal(region);
    }

    pub(super) fn cancel_recv(&mut self, key: usize, error: Error) {
        self.incoming.divert(key);
        self.incoming.receives.cancel(key, error);
    }

    /// Ends the sends and receives of a context with `error`.
    pub(super) fn end_context(&mut self, context: u16, error: &Error, statistics: &mut Statistics) {
        for key in self.incoming.receives.of_context(context) {
            self.cancel_recv(key, error.clone());
        }
        for key in self.outgoing.of_context(context) {
            self.outgoing.cancel(key, error.clone(), statistics);
        }
    }

    /// Drops some messages of a context that came before their receive.
    pub(super) fn discard(&mut self, context: u16, which: Which, statistics: &mut Statistics) -> usize {
        if self.incoming.receives.unexpected.is_empty() {
            return 0;
        }
        let count = self.incoming.discard(context, which);
        self.reply(statistics);
        count
    }

    /// Tells the peer that this rank has closed a context, unless the peer has left.
    pub(super) fn tell(&mut self, notice: Notice, statistics: &mut Statistics) {
        if let Some(wire) = &mut self.wire {
            self.outgoing.push_control(&Frame::Notice(notice));
            if !self.write_broken {
                // The next turn finds and handles an error.
                self.outgoing.flush(wire, QUOTA, statistics);
            }
        }
    }

    /// Whether each turn must serve this connection: an operation waits here, or a put or get at the peer.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        let is_attentive = self.incoming.accesses.is_attentive();
        self.wire.is_some()
            && (self.has_operations() || self.has_unsent() || self.has_unread() || is_attentive)
    }

    /// Counts a turn of the transport in which this connection was listed.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.incoming.accesses.end_turn();
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.incoming.receives.has_operations()
            || self.outgoing.has_operations()
            || self.incoming.accesses.requests.has_operations()
    }

    /// Whether the wire holds bytes that the poller does not know of.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::has_unread)
    }

    /// Writes and reads about `quota` bytes each; says whether any byte moved, and the new status.
    ///
    /// While the kernel does not take all there is to write and nothing comes, only some turns read: a read
    /// takes the lock that the kernel needs to send.
    pub(super) fn service(&mut self, quota: usize, statistics: &mut Statistics) -> (bool, Status) {
        let Some(wire) = &mut self.wire else { return (false, Status::Open) };
        let before = (statistics.bytes_sent, statistics.bytes_received);
        if !self.outgoing.is_idle() && !self.write_broken {
            // The reason for a failure may still be unread.
            self.write_broken = !self.outgoing.flush(wire, quota, statistics);
            let is_full = !self.outgoing.is_idle() && !self.write_broken;
            if is_full && self.reads_to_skip > 0 && quota <= QUOTA {
                self.reads_to_skip -= 1;
                return (statistics.bytes_sent != before.0, Status::Open);
            }
        }
        let turn = self.incoming.read(wire, quota, statistics);
        self.reads_to_skip = if statistics.bytes_received == before.1 { READS_SKIPPED } else { 0 };
        if self.incoming.has_responses()
            && let Err(error) = self.handle_responses()
        {
            return (true, Status::Violation(error));
        }
        let status = match turn {
            Ok(ReadOutcome::Closed) => Status::Closed,
            Ok(ReadOutcome::Broken) => Status::Lost,
            Ok(ReadOutcome::Drained) if self.write_broken => Status::Lost,
            Ok(ReadOutcome::Drained | ReadOutcome::Stopped) => Status::Open,
            Err(error) => Status::Violation(error),
        };
        self.reply(statistics);
        ((statistics.bytes_sent, statistics.bytes_received) != before, status)
    }

    /// Whether an open connection has something to write.
    pub(super) fn has_queued(&self) -> bool {
        self.wire.is_some() && self.has_unsent()
    }

    fn handle_responses(&mut self) -> Result<()> {
        while let Some(response) = self.incoming.responses.pop_front() {
            self.has_answers = true;
            match response {
                Response::Cts(number) => self.outgoing.handle_cts(number)?,
                Response::Nack(number) => self.outgoing.handle_nack(number)?,
                Response::Credit(total) => self.outgoing.handle_credit(total)?,
            }
        }
        Ok(())
    }

    /// Sends the replies to what was read.
    #[inline]
    fn reply(&mut self, statistics: &mut Statistics) {
        if self.has_answers || self.incoming.has_responses() {
            self.reply_now(statistics);
        }
        self.pump(statistics);
    }

    fn reply_now(&mut self, statistics: &mut Statistics) {
        while let Some(frame) = self.incoming.flow_control.replies.pop_front() {
            self.has_answers = true;
            self.outgoing.push_control(&frame);
        }
        if let Some(wire) = &mut self.wire
            && std::mem::take(&mut self.has_answers)
            && !self.write_broken
        {
            // The next turn finds and handles an error.
            self.outgoing.flush(wire, QUOTA, statistics);
        }
    }

    /// Sends frames of puts and gets.
    #[inline]
    fn pump(&mut self, statistics: &mut Statistics) {
        if let Some(wire) = &mut self.wire
            && self.incoming.accesses.has_unsent()
            && !self.write_broken
        {
            self.incoming.accesses.pump(&mut self.outgoing, wire, QUOTA, statistics);
        }
    }

    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.outgoing.is_idle() || self.incoming.accesses.has_unsent()
    }

    fn lost(&self) -> Error {
        Error::PeerLost { rank: self.peer }
    }
}
