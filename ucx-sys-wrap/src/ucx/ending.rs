//! Operations and unexpected messages that end early: canceled, of a closed context, or of a lost peer.

use super::header::Header;
use super::inbox::{Deferred, Inbox, KeptMessage};
use super::notice::Withdrawal;
use super::payload::Payload;
use super::{GIVEN_BACK_AFTER_DEADLINE, GIVEN_BACK_PER_BYTE, GIVEN_BACK_WITHIN, Ucx};
use crate::transport::{Transport as _, Wanted, Which};
use crate::{Error, Failure, Rank};

/// Withdrawals of messages to come that are remembered: more than a rank has sends under way.
const MAX_WITHDRAWN: usize = 1 << 16;

impl Inbox {
    /// Cancels a receive whose message has not come.
    pub(super) fn cancel(&mut self, number: u64) {
        if let Some(incoming) = self.receives.get_mut(number).filter(|incoming| incoming.is_waiting()) {
            incoming.end(Error::Canceled);
            self.match_queues.cancel(incoming.tag, number);
        }
    }

    /// Ends a receive if none of its message has come. Returns whether it has not, or the receive had ended.
    pub(super) fn withdraw_recv(&mut self, number: u64) -> bool {
        self.cancel(number);
        self.receives.get_mut(number).is_none_or(|incoming| incoming.is_ended())
    }

    /// The first unexpected message that is wanted; of several senders, that of the one whose turn it is.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<&Header> {
        let messages = self.match_queues.unexpected();
        let is_wanted =
            |message: &&KeptMessage| wanted.includes(message.header.tag, message.header.signature);
        let world_size = self.flows.len() as u32;
        let place = |message: &&KeptMessage| {
            let source = message.header.tag.source();
            let taken = self.flows.get(source.index()).map_or(0, |flow| flow.taken_count);
            // Numbers wrap: the one that was taken first is the furthest from the next.
            (wanted.turn_of(source, world_size), std::cmp::Reverse(taken.wrapping_sub(message.serial)))
        };
        messages.filter(is_wanted).min_by_key(place).map(|message| &message.header)
    }

    /// Discards a message that its sender wants back, unless a receive has it. Returns whether it deferred
    /// work.
    pub(super) fn withdraw(&mut self, message: Withdrawal) -> bool {
        let Some(flow) = self.flows.get(message.tag.source().index()) else { return false };
        if message.serial.wrapping_sub(flow.taken_count) as i32 >= 0 {
            if self.withdrawn.len() < MAX_WITHDRAWN {
                self.withdrawn.insert(message);
            }
            return false;
        }
        let Some(found) =
            self.match_queues.take_unexpected_if(message.tag, |found| found.serial == message.serial)
        else {
            return false;
        };
        found.payload.with(|payload| self.discard(&found.header, payload, found.serial));
        true
    }

    /// Ends the receives of a context with `error`. One whose message is being fetched ends when it has come.
    pub(super) fn end_context(&mut self, context: u16, error: &Error) {
        for number in self.numbers() {
            if let Some(incoming) = self.receives.get_mut(number)
                && incoming.tag.group() == context
                && incoming.end_early(error)
            {
                self.match_queues.cancel(incoming.tag, number);
            }
        }
    }

    /// Discards some unexpected messages of a context. May defer work.
    pub(super) fn discard_context(&mut self, context: u16, which: Which) -> usize {
        let found = self.match_queues.extract_unexpected(|tag, message| {
            tag.group() == context && which.includes(message.header.tag, message.header.signature)
        });
        let count = found.len();
        for message in found {
            message.payload.with(|payload| self.discard(&message.header, payload, message.serial));
        }
        count
    }

    /// Ends the receives from a lost peer with `error`: those that UCX fetches for when it has done. Drops
    /// what the peer has sent, now and later. UCX answers its RTS if it `is_answered`; otherwise they are
    /// left to the worker's end.
    pub(super) fn lose(&mut self, peer: Rank, error: &Error, is_answered: bool) {
        self.lost.push((peer, is_answered));
        self.violations.retain(|(rank, _)| *rank != peer);
        for number in self.numbers() {
            if let Some(incoming) = self.receives.get_mut(number)
                && incoming.wait().0 == peer
                && incoming.cut(error)
            {
                self.match_queues.cancel(incoming.tag, number);
            }
        }
        let mut dropped = self.match_queues.extract_unexpected(|tag, _| tag.source() == peer);
        dropped.extend(self.ahead.extract_if(.., |message| message.header.tag.source() == peer));
        for message in dropped {
            message.payload.with(|payload| self.drop_of_lost(peer, payload));
        }
        self.awaited.retain(|awaited| awaited.from != peer);
        self.withdrawn.retain(|message| message.tag.source() != peer);
        let fragments: Vec<_> =
            self.fragments.extract_if(.., |(fragment, _)| fragment.from == peer).collect();
        for (_, payload) in fragments {
            payload.with(|payload| self.drop_of_lost(peer, payload));
        }
    }

    pub(super) fn is_lost(&self, peer: Rank) -> bool {
        self.lost.iter().any(|(lost, _)| *lost == peer)
    }

    /// Drops what a lost peer has sent.
    pub(super) fn drop_of_lost(&mut self, peer: Rank, payload: Payload<'_>) {
        if let Payload::Rendezvous(rts) = payload
            && self.lost.contains(&(peer, true))
        {
            self.deferred.push_back(Deferred::Release(rts));
        }
    }
}

impl Ucx {
    /// The peers of operations of a context that were ended and that UCX works on, each with the bytes.
    fn held(&self, context: u16) -> impl Iterator<Item = (Rank, usize)> {
        self.sends.held(context).chain(self.engine.handler_context_ref().inbox.held(context))
    }

    /// Sets peers a time for the memory of a context that is closed for `cause`.
    pub(super) fn reclaim_soon(&mut self, context: u16, cause: Failure) {
        let within = match cause {
            Failure::TimedOut(_) => GIVEN_BACK_AFTER_DEADLINE,
            _ => GIVEN_BACK_WITHIN,
        };
        let held: Vec<(Rank, usize)> = self.held(context).collect();
        for (peer, _) in &held {
            if !self.reclaiming.iter().any(|(known, of, _)| (known, *of) == (peer, context)) {
                let bytes: usize =
                    held.iter().filter(|(known, _)| known == peer).map(|(_, bytes)| bytes).sum();
                let end = within + GIVEN_BACK_PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
                self.reclaiming.push((*peer, context, self.now() + end));
            }
        }
    }

    /// Gives a peer up that does not give back the memory of a closed context: it may stand still for ever.
    pub(super) fn check_reclaiming(&mut self) {
        for (peer, context, end) in std::mem::take(&mut self.reclaiming) {
            match self.check_open(peer).is_ok() && self.held(context).any(|(held, _)| held == peer) {
                false => {}
                true if self.now() < end => self.reclaiming.push((peer, context, end)),
                true => self.lose_peer(peer, Error::PeerLost { rank: peer }, false),
            }
        }
    }
}
