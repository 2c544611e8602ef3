//! One peer: its socket, what is read, what is written, and the operations that name it.

mod ending;
mod receiving;

use std::sync::Arc;

use super::QUOTA;
use super::frame::Header;
use super::incoming::{Farewell, Incoming, News, Turn};
use super::matching::Receives;
use super::outgoing::{Outgoing, Written};
use super::remote::Accesses;
use super::wire::Wire;
use crate::buffer::ReadLease;
use crate::one_sided::Regions;
use crate::transport::{Posted, RecvDone, RecvParts, SendDone, SendParts};
use crate::{Arrival, Envelope, Error, Rank, RegionKey, Result, Statistics};
use parking_lot::Mutex;

/// How many turns that write go by without a look for something to read, after a look that has found nothing.
const READS_SKIPPED: u32 = 3;

pub(super) struct Connection {
    peer: Rank,
    /// `None` once nothing more can come or go.
    wire: Option<Wire>,
    incoming: Incoming,
    outgoing: Outgoing,
    receives: Receives,
    write_broken: bool,
    /// Whether what was read asks for something to be written.
    has_answers: bool,
    /// Turns that do not look for something to read while there is something to write.
    reads_to_skip: u32,
    /// Whether this connection is in the list of those that are polled in each turn.
    pub(super) is_listed: bool,
}

/// What a turn of reading and writing has shown.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The connection goes on.
    Open,
    /// The peer has said its last word.
    Farewell(Farewell),
    /// The connection ended without a word: the peer has died, or its failure could not be told.
    Lost,
    /// The peer sent what is no frame.
    Violation(Error),
}

impl Connection {
    /// Takes what leads to `peer`.
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
            receives: Receives::new(peer),
            write_broken: false,
            has_answers: false,
            reads_to_skip: 0,
            is_listed: false,
        }
    }

    /// What leads to the peer, while the connection is open.
    pub(super) fn wire(&self) -> Option<&Wire> {
        self.wire.as_ref()
    }

    /// As [`wire`](Self::wire).
    pub(super) fn wire_mut(&mut self) -> Option<&mut Wire> {
        self.wire.as_mut()
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

    /// As [`post_send`](Self::post_send) of a message of one part, for who has no use for the lease.
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

    pub(super) fn post_put(
        &mut self,
        key: &RegionKey,
        offset: u64,
        parts: SendParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, Result<()>> {
        if self.wire.is_none() {
            return Posted::Done(Err(self.lost()));
        }
        let number = self.incoming.accesses.post_put(key, offset, parts);
        self.pump(statistics);
        Posted::Pending(number)
    }

    pub(super) fn post_get(
        &mut self,
        key: &RegionKey,
        offset: u64,
        parts: RecvParts,
        statistics: &mut Statistics,
    ) -> Posted<usize, Result<()>> {
        if self.wire.is_none() {
            return Posted::Done(Err(self.lost()));
        }
        let number = self.incoming.accesses.post_get(key, offset, parts);
        self.pump(statistics);
        Posted::Pending(number)
    }

    pub(super) fn post_flush(&mut self) -> Posted<usize, Result<()>> {
        if self.wire.is_none() {
            return Posted::Done(Err(self.lost()));
        }
        self.incoming.accesses.post_flush()
    }

    pub(super) fn test_access(&mut self, number: usize) -> Option<Result<()>> {
        self.incoming.accesses.test(number, &mut self.outgoing)
    }

    pub(super) fn cancel_access(&mut self, number: usize, statistics: &mut Statistics) {
        self.incoming.accesses.cancel(number, &mut self.outgoing, statistics);
    }

    /// Touches a region of this rank no more.
    pub(super) fn conceal(&mut self, region: u64) {
        self.incoming.accesses.conceal(region);
    }

    #[inline]
    pub(super) fn test_send(&mut self, key: usize) -> Option<SendDone> {
        self.outgoing.take_ended(key)
    }

    #[inline]
    pub(super) fn test_recv(&mut self, key: usize) -> Option<RecvDone> {
        self.receives.take_ended(key)
    }

    /// As [`test_recv`](Self::test_recv), without the leases.
    #[inline]
    pub(super) fn recv_outcome(&mut self, key: usize) -> Option<Result<Arrival>> {
        self.receives.take_outcome(key)
    }

    pub(super) fn cancel_send(&mut self, key: usize, statistics: &mut Statistics) {
        self.outgoing.cancel(key, Error::Canceled, statistics);
    }

    pub(super) fn cancel_recv(&mut self, key: usize) {
        self.incoming.divert(key);
        self.receives.cancel(key);
    }

    /// Whether this connection has something to do that somebody waits for, here or, after a put or get, at
    /// its peer.
    #[inline]
    pub(super) fn is_awaited(&self) -> bool {
        let is_attentive = self.incoming.accesses.is_attentive();
        self.wire.is_some()
            && (self.has_operations() || self.has_unsent() || self.has_unread() || is_attentive)
    }

    /// A turn of the transport in which this connection was listed is over.
    #[inline]
    pub(super) fn end_turn(&mut self) {
        self.incoming.accesses.end_turn();
    }

    /// Whether an operation has not ended.
    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.receives.has_operations()
            || self.outgoing.has_operations()
            || self.incoming.accesses.has_operations()
    }

    /// Whether the next turn has something of which no poller knows.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::has_unread)
    }

    /// Writes and reads about `quota` bytes each. Says whether anything moved, and how the connection stands.
    ///
    /// While there is more to write than the kernel takes and nothing to read, only some turns look for
    /// something to read: every look takes the lock that the kernel needs to send.
    pub(super) fn service(&mut self, quota: usize, statistics: &mut Statistics) -> (bool, Verdict) {
        let Some(wire) = &mut self.wire else { return (false, Verdict::Open) };
        let before = (statistics.bytes_sent, statistics.bytes_received);
        if !self.outgoing.is_idle() && !self.write_broken {
            // Why it is broken may still be unread.
            self.write_broken = self.outgoing.flush(wire, quota, statistics) == Written::Broken;
            let is_full = !self.outgoing.is_idle() && !self.write_broken;
            if is_full && self.reads_to_skip > 0 && quota <= QUOTA {
                self.reads_to_skip -= 1;
                return (statistics.bytes_sent != before.0, Verdict::Open);
            }
        }
        let turn = self.incoming.read(wire, &mut self.receives, quota, statistics);
        self.reads_to_skip = if statistics.bytes_received == before.1 { READS_SKIPPED } else { 0 };
        if self.incoming.has_more_to_say()
            && let Err(error) = self.take_news()
        {
            return (true, Verdict::Violation(error));
        }
        let verdict = match turn {
            Ok(Turn::Farewell(farewell)) => Verdict::Farewell(farewell),
            Ok(Turn::Broken) => Verdict::Lost,
            Ok(Turn::Drained) if self.write_broken => Verdict::Lost,
            Ok(Turn::Drained | Turn::Stopped) => Verdict::Open,
            Err(error) => Verdict::Violation(error),
        };
        self.reply(statistics);
        ((statistics.bytes_sent, statistics.bytes_received) != before, verdict)
    }

    /// Whether the peer has said bye, or the connection was closed here.
    pub(super) fn is_finished(&self) -> bool {
        self.wire.is_none()
    }

    /// Whether something still has to be written.
    pub(super) fn has_queued(&self) -> bool {
        self.wire.is_some() && self.has_unsent()
    }

    /// Bytes of memory that kept messages hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_capacity(&self) -> usize {
        self.receives.kept_capacity()
    }

    /// Takes up what the peer says about what was sent to it.
    fn take_news(&mut self) -> Result<()> {
        while let Some(news) = self.incoming.take_news() {
            self.has_answers = true;
            match news {
                News::Granted(number) => self.outgoing.grant(number)?,
                News::Refused(number) => self.outgoing.refuse(number)?,
                News::Credited(total) => self.outgoing.credit(total)?,
            }
        }
        Ok(())
    }

    /// Sends what is to be sent for what was read.
    #[inline]
    fn reply(&mut self, statistics: &mut Statistics) {
        if self.has_answers || self.incoming.has_more_to_say() {
            self.reply_now(statistics);
        }
        self.pump(statistics);
    }

    fn reply_now(&mut self, statistics: &mut Statistics) {
        while let Some(frame) = self.incoming.take_reply() {
            self.has_answers = true;
            self.outgoing.push_control(&frame);
        }
        if let Some(wire) = &mut self.wire
            && std::mem::take(&mut self.has_answers)
            && !self.write_broken
        {
            // An error is found again, and judged, in the next turn.
            self.outgoing.flush(wire, QUOTA, statistics);
        }
    }

    /// Sends what there is to send of puts and gets.
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
