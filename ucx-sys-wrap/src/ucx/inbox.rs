//! Matches messages with receives.
//!
//! UCX calls a handler for every message, inside `progress`. The handler finds the receive and copies an
//! eager payload straight to its place, or fetches the payload of an RTS there (`handler_context.rs`).
//! Unexpected messages are kept: eager payloads as a copy, bounded by the senders' credit (`flow.rs`), others
//! as their RTS.
//!
//! Messages of one sender are delivered in the order of their serial numbers, whatever order UCX delivers
//! them in. Fragments, the parts of a message that are UCX messages of their own, name the serial number of
//! their message.

use std::collections::{HashSet, VecDeque};

use super::flow::{CreditUpdate, Flow, cost};
use super::fragments::Awaited;
use super::header::{FIXED_BYTES, FragmentHeader, Header, Plain};
use super::incoming::{Finished, Incoming, plain_arrival};
use super::match_queues::MatchQueues;
use super::notice::Withdrawal;
use super::payload::{Kept, Payload, Rts};
use crate::table::Table;
use crate::transport::{Posted, RecvParts, Statistics, check_message, count_copy};
use crate::{Envelope, Error, Rank};

/// Messages that may have overtaken the next one of their sender: half of all serial numbers, so that their
/// order is known. A sender's credit allows fewer.
const MAX_AHEAD: u16 = 1 << 15;

const MORE_THAN_SENT: &str = "report that more was consumed than was sent";

pub(super) struct Inbox {
    own: Rank,
    pub(super) receives: Table<Incoming>,
    pub(super) match_queues: MatchQueues<KeptMessage>,
    pub(super) flows: Vec<Flow>,
    pub(super) ahead: Vec<KeptMessage>,
    /// Fragments whose message has not come.
    pub(super) fragments: Vec<(FragmentHeader, Kept)>,
    /// Fragments that have not come.
    pub(super) awaited: Vec<Awaited>,
    /// Messages that their senders want back and that have not come.
    pub(super) withdrawn: HashSet<Withdrawal>,
    /// Work for UCX, which the inbox does not call.
    pub(super) deferred: VecDeque<Deferred>,
    /// The peers that broke the protocol, each with the first violation.
    pub(super) violations: Vec<(Rank, Error)>,
    /// Peers that are lost, each with whether UCX answers it: what they send is dropped.
    pub(super) lost: Vec<(Rank, bool)>,
    pub(super) statistics: Statistics,
    /// The peers that have greeted, for the first and the second time.
    pub(super) greetings: [Vec<Rank>; 2],
    pub(super) is_closed: bool,
}

/// A message that came before its receive, or before one with a lower serial number.
pub(super) struct KeptMessage {
    pub(super) header: Header,
    inline: Box<[u8]>,
    pub(super) payload: Kept,
    pub(super) serial: u32,
}

pub(super) enum Deferred {
    Fetch {
        number: u64,
        part: usize,
        rts: Rts,
    },
    Release(Rts),
    /// Report to a peer what was consumed.
    SendCredit(Rank),
}

impl Inbox {
    pub(super) fn new(own: Rank, world_size: u32) -> Self {
        Self {
            own,
            receives: Table::default(),
            match_queues: MatchQueues::new(),
            flows: vec![Flow::default(); world_size as usize],
            ahead: Vec::new(),
            fragments: Vec::new(),
            awaited: Vec::new(),
            withdrawn: HashSet::new(),
            deferred: VecDeque::new(),
            violations: Vec::new(),
            lost: Vec::new(),
            statistics: Statistics::default(),
            greetings: [Vec::new(), Vec::new()],
            is_closed: false,
        }
    }

    /// Takes a message. Its RTS, if any, is kept, and later fetched or released.
    pub(super) fn message(&mut self, header: &[u8], payload: Payload<'_>) {
        let payload = match payload {
            Payload::Eager(bytes) if self.take_plain(header, bytes) => return,
            Payload::Rendezvous(rts) => match self.take_plain_rts(header, rts) {
                None => return,
                Some(rts) => Payload::Rendezvous(rts),
            },
            payload => payload,
        };
        if self.is_closed {
            return;
        }
        let (decoded, inline) = match Header::decode(header, payload.bytes()) {
            Ok(decoded) => decoded,
            Err(Error::Protocol { rank, what }) => return self.refuse(rank, what),
            Err(error) => return self.refuse(Rank(u32::MAX), error.to_string()),
        };
        let from = decoded.tag.source();
        if self.is_lost(from) {
            return self.drop_of_lost(from, payload);
        }
        if !payload.is_of(&decoded) {
            return self.refuse(from, format!("a payload of {} bytes behind {decoded:?}", payload.bytes()));
        }
        let Some(flow) = self.flows.get_mut(from.index()).filter(|_| from != self.own) else {
            return self.refuse(from, "a message that names no peer as its source".into());
        };
        let distance = decoded.serial.wrapping_sub(flow.taken_count as u16);
        if distance >= MAX_AHEAD {
            return self.refuse(from, format!("message {} out of order", decoded.serial));
        }
        if !flow.apply_credit(distance, decoded.consumed) {
            return self.refuse(from, MORE_THAN_SENT.into());
        }
        if distance == 0 {
            self.take_next(decoded, inline, payload);
            if !self.ahead.is_empty() {
                self.catch_up(from);
            }
        } else {
            let payload = payload.keep(&mut self.statistics);
            // A copy: the inline parts are valid during the handler only.
            count_copy(&mut self.statistics, inline.len());
            let serial = decoded.serial.into();
            self.ahead.push(KeptMessage { header: decoded, inline: inline.into(), payload, serial });
        }
    }

    /// Takes a plain, eager message that comes in order, for a posted receive. Otherwise returns false and
    /// does nothing.
    // Inlined always: nearly every message takes this path of the handler.
    #[inline(always)]
    pub(super) fn take_plain(&mut self, header: &[u8], payload: &[u8]) -> bool {
        let Some((plain, number)) = self.match_plain(header, payload.len()) else { return false };
        if let Some(incoming) = self.receives.get_mut(number) {
            incoming.take_one(payload, &mut self.statistics);
        }
        self.count_plain(plain, payload.len());
        true
    }

    /// Like [`take_plain`](Self::take_plain), for an RTS; returns it otherwise.
    fn take_plain_rts(&mut self, header: &[u8], rts: Rts) -> Option<Rts> {
        let bytes = rts.bytes;
        let Some((plain, number)) = self.match_plain(header, bytes) else { return Some(rts) };
        if let Some(incoming) = self.receives.get_mut(number) {
            incoming.fetch(plain_arrival(bytes), 1, true);
        }
        self.deferred.push_back(Deferred::Fetch { number, part: 0, rts });
        self.count_plain(plain, bytes);
        None
    }

    /// The posted receive for a plain message of so many bytes that comes in order; takes it from its queue.
    #[inline(always)]
    fn match_plain(&mut self, header: &[u8], bytes: usize) -> Option<(Plain, u64)> {
        let plain = Plain::decode(header)?;
        let from = plain.tag.source();
        let flow = self.flows.get_mut(from.index())?;
        let is_next = plain.serial == flow.taken_count as u16 && from != self.own && !self.is_closed;
        // No message is kept in `ahead` while none was overtaken.
        if !is_next
            || flow.overtaken > 0
            || !flow.apply_credit(0, plain.consumed)
            || !self.withdrawn.is_empty()
        {
            return None;
        }
        let first = self.match_queues.first_posted(plain.tag)?;
        let incoming = self.receives.get_mut(first.number)?;
        let fits = incoming.signature == flow.taken_signature
            && incoming.parts.len() == 1
            && incoming.parts.first().is_some_and(|part| bytes <= part.len());
        fits.then(|| (plain, first.take()))
    }

    #[inline(always)]
    fn count_plain(&mut self, Plain { tag, is_counted, .. }: Plain, bytes: usize) {
        if let Some(flow) = self.flows.get_mut(tag.source().index()) {
            flow.next_taken();
            if is_counted && flow.consume(cost(bytes)) {
                self.deferred.push_back(Deferred::SendCredit(tag.source()));
            }
        }
        self.statistics.messages_received += 1;
        self.statistics.bytes_received += (FIXED_BYTES + bytes) as u64;
    }

    /// Takes a peer's report of what it has consumed.
    pub(super) fn credit_update(&mut self, bytes: &[u8]) {
        let Some(update) = CreditUpdate::decode(bytes) else {
            return self.refuse(Rank(u32::MAX), format!("{} bytes that are no credit update", bytes.len()));
        };
        let is_lost = self.is_lost(update.from);
        let is_right = match self.flows.get_mut(update.from.index()) {
            _ if is_lost => true,
            Some(flow) if update.from != self.own => flow.apply_update(&update),
            _ => false,
        };
        if !is_right {
            self.refuse(update.from, MORE_THAN_SENT.into());
        }
    }

    /// Takes a peer's first or second greeting.
    pub(super) fn greeting(&mut self, from: Rank, time: u8) {
        let is_peer = self.is_peer(from);
        match self.greetings.get_mut(usize::from(time)) {
            Some(heard) if is_peer => heard.push(from),
            _ => self.refuse(from, format!("greeting {time}")),
        }
    }

    #[inline]
    pub(super) fn flow(&mut self, peer: Rank) -> Option<&mut Flow> {
        self.flows.get_mut(peer.index())
    }

    /// Takes the next work if it is a fetch: receive, part and RTS.
    #[inline]
    pub(super) fn next_fetch(&mut self) -> Option<(u64, usize, Rts)> {
        match self.deferred.pop_front()? {
            Deferred::Fetch { number, part, rts } => Some((number, part, rts)),
            work => {
                self.deferred.push_front(work);
                None
            }
        }
    }

    #[inline]
    pub(super) fn receive(&mut self, number: u64) -> Option<&mut Incoming> {
        self.receives.get_mut(number)
    }

    /// Posts a receive; may defer work.
    #[inline]
    pub(super) fn post(
        &mut self,
        from: Rank,
        envelope: &Envelope,
        parts: RecvParts,
        posted_in: u32,
    ) -> Posted<u64, Finished> {
        let tag = envelope.tag;
        let number = self.receives.insert(Incoming::new(from, envelope, parts, posted_in));
        loop {
            let Some(KeptMessage { header, inline, payload, serial }) =
                self.match_queues.take_unexpected(tag)
            else {
                self.match_queues.post(tag, number);
                break;
            };
            payload.with(|payload| self.deliver(number, &header, &inline, payload, serial));
            if let Some(finished) = self.take_ended(number) {
                return Posted::Done(finished);
            }
            // Otherwise the message was of another epoch, and the receive is in the queue again.
            if !self.match_queues.cancel(tag, number) {
                break;
            }
        }
        Posted::Pending(number)
    }

    #[inline]
    pub(super) fn take_ended(&mut self, number: u64) -> Option<Finished> {
        self.receives.remove_if(number, Incoming::is_ended).map(Incoming::finished)
    }

    /// Closes the inbox. Receives whose messages have not come end with `error`.
    pub(super) fn close(&mut self, error: &Error) {
        self.is_closed = true;
        self.violations.clear();
        self.match_queues.clear();
        self.deferred.clear();
        self.ahead.clear();
        self.fragments.clear();
        self.awaited.clear();
        for incoming in self.receives.iter_mut() {
            incoming.cut(error);
        }
    }

    pub(super) fn numbers(&self) -> Vec<u64> {
        self.receives.numbers().collect()
    }

    /// The peers of receives that are not over, each with the round of its posting.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.receives.iter().filter(|incoming| !incoming.is_over()).map(Incoming::wait)
    }

    /// The senders of messages that UCX fetches for receives of a context that were ended, each with the
    /// bytes.
    pub(super) fn held(&self, context: u16) -> impl Iterator<Item = (Rank, usize)> {
        let of_context = self.receives.iter().filter(move |incoming| incoming.tag.group() == context);
        of_context.filter_map(Incoming::held)
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.receives.is_empty() && self.deferred.is_empty()
    }

    pub(super) fn is_peer(&self, rank: Rank) -> bool {
        rank != self.own && rank.index() < self.flows.len()
    }

    /// Takes the next message of its sender.
    #[inline]
    fn take_next(&mut self, mut header: Header, inline: &[u8], payload: Payload<'_>) {
        let Some(flow) = self.flows.get_mut(header.tag.source().index()) else { return };
        let serial = flow.next_taken();
        flow.read_signature(&mut header);
        self.take(&header, inline, payload, serial);
    }

    /// Takes a message by its full serial number.
    #[inline]
    fn take(&mut self, header: &Header, inline: &[u8], payload: Payload<'_>, serial: u32) {
        if !self.withdrawn.is_empty() && self.withdrawn.remove(&Withdrawal { tag: header.tag, serial }) {
            return self.discard(header, payload, serial);
        }
        match self.match_queues.take_posted(header.tag) {
            Some(number) => self.deliver(number, header, inline, payload, serial),
            None => {
                // A copy: the inline parts are valid during the handler only.
                count_copy(&mut self.statistics, inline.len());
                let payload = payload.keep(&mut self.statistics);
                let (header, inline) = (header.clone(), inline.into());
                self.match_queues
                    .keep_unexpected(header.tag, KeptMessage { header, inline, payload, serial });
            }
        }
    }

    /// Takes the messages that had overtaken the one just taken.
    fn catch_up(&mut self, from: Rank) {
        loop {
            let Some(serial) = self.flows.get(from.index()).map(|flow| flow.taken_count as u16) else {
                return;
            };
            let is_next =
                |ahead: &KeptMessage| ahead.header.tag.source() == from && ahead.header.serial == serial;
            let Some(position) = self.ahead.iter().position(is_next) else { return };
            let KeptMessage { header, inline, payload, .. } = self.ahead.swap_remove(position);
            payload.with(|payload| self.take_next(header, &inline, payload));
        }
    }

    #[inline]
    fn deliver(&mut self, number: u64, header: &Header, inline: &[u8], payload: Payload<'_>, serial: u32) {
        let Some(incoming) = self.receives.get_mut(number) else {
            return self.discard(header, payload, serial);
        };
        self.statistics.messages_received += 1;
        self.statistics.bytes_received += header.wire_bytes();
        if let Err(error) = check_message(
            header.tag.source(),
            incoming.signature,
            &incoming.parts,
            header.signature,
            &header.lengths,
        ) {
            if incoming.signature.epoch() == header.signature.epoch() {
                incoming.end(error);
            } else {
                // It belongs to an earlier context, and the receive goes on waiting.
                self.match_queues.post_first(header.tag, number);
            }
            return self.discard(header, payload, serial);
        }
        match payload {
            Payload::Eager(bytes) if !header.is_fragmented => {
                incoming.unpack(header, bytes, &mut self.statistics);
                self.consume(header.tag.source(), header.is_counted, bytes.len());
            }
            payload => self.deliver_fragmented(number, header, inline, payload, serial),
        }
    }

    /// A counted message has left this rank's memory.
    #[inline]
    pub(super) fn consume(&mut self, from: Rank, is_counted: bool, bytes: usize) {
        if is_counted && self.flows.get_mut(from.index()).is_some_and(|flow| flow.consume(cost(bytes))) {
            self.deferred.push_back(Deferred::SendCredit(from));
        }
    }

    /// Records that a peer has broken the protocol, or that an operation with it has failed.
    pub(super) fn violated(&mut self, rank: Rank, error: Error) {
        if !self.is_lost(rank) && !self.violations.iter().any(|(known, _)| *known == rank) {
            self.violations.push((rank, error));
        }
    }

    /// Records a violation of the protocol. An RTS that came with it ends with the worker.
    pub(super) fn refuse(&mut self, rank: Rank, what: String) {
        // The message names no peer: any rank may have sent it.
        let rank = if self.is_peer(rank) { rank } else { Rank(u32::from(self.own == Rank(0))) };
        self.violated(rank, Error::Protocol { rank, what });
    }
}
