//! What is kept beside the receives: messages that nobody wants, that are wanted back, or that came before their receive.

use std::collections::VecDeque;
use std::ptr::NonNull;

use super::engine::Engine;
use super::flight::Flight;
use super::header::{HEADER_BYTES, Header};
use super::incoming::Means;
use super::sending::Withdrawal;
use crate::{Error, Rank, Tag};

/// The owner of flights that discard parts.
pub(super) const DISCARDED: u64 = u64::MAX;

/// So many withdrawals are remembered.
const MAX_WITHDRAWN: usize = 256;

#[derive(Default)]
pub(super) struct Aside {
    /// The first peer that sent what is no message of ours.
    pub(super) violation: Option<(Rank, Error)>,
    /// Parts that are being discarded.
    discarded: Vec<Flight>,
    /// Messages that their senders want back. Those that were received before are never found; the oldest are forgotten.
    withdrawn: VecDeque<Withdrawal>,
    /// Headers taken in the search for a withdrawn message behind them: at most one of a tag, before all others of it.
    early: Vec<Header>,
}

impl Aside {
    /// Whether the sender wants this message back; forgets it then.
    #[inline]
    pub(super) fn is_withdrawn(&mut self, header: &Header) -> bool {
        let message = Withdrawal { tag: header.tag, serial: header.serial };
        let position = self.withdrawn.iter().position(|withdrawn| *withdrawn == message);
        position.and_then(|position| self.withdrawn.remove(position)).is_some()
    }

    pub(super) fn remember(&mut self, message: Withdrawal) {
        if self.withdrawn.len() == MAX_WITHDRAWN {
            self.withdrawn.pop_front();
        }
        self.withdrawn.push_back(message);
    }

    /// Tags with messages that are wanted back.
    pub(super) fn withdrawn_tag(&self, position: usize) -> Option<Tag> {
        self.withdrawn.get(position).map(|message| message.tag)
    }

    /// The header that was taken before a receive of its tag was posted.
    #[inline]
    pub(super) fn take_early(&mut self, tag: Tag) -> Option<Header> {
        let position = self.early.iter().position(|header| header.tag == tag)?;
        Some(self.early.swap_remove(position))
    }

    /// Looks among the messages of `tag` that have come and that no receive waits for, and discards the first of them
    /// for as long as they are withdrawn. Says whether there was one.
    pub(super) fn seek_withdrawn(&mut self, means: &mut Means<'_>, tag: Tag) -> bool {
        let mut found = false;
        while self.early.iter().all(|header| header.tag != tag)
            && let Some(header) = self.take_unexpected(means, tag)
        {
            if self.is_withdrawn(&header) {
                self.discard(means, &header);
                found = true;
            } else {
                self.early.push(header);
            }
        }
        found
    }

    /// The first message of `tag` that has come without a receive, if it is a header by itself.
    fn take_unexpected(&mut self, means: &mut Means<'_>, tag: Tag) -> Option<Header> {
        let message = means.engine.probe(tag.0, HEADER_BYTES)?;
        let (flight, bounce) = (means.engine.flights.take(), means.bounces.take());
        // SAFETY: the bounce memory is put back below, when the flight is reaped.
        unsafe { means.engine.recv_probed(message, bounce.as_ptr(), HEADER_BYTES, &flight) };
        let (status, bytes) = loop {
            // It has come: this ends in the call itself, or after a turn or two.
            match means.engine.reap(&flight) {
                Some(outcome) => break outcome,
                None => means.engine.progress(),
            };
        };
        means.engine.flights.put(flight);
        // SAFETY: the only operation on this memory has just been reaped.
        let decoded = means
            .engine
            .check("ucp_tag_msg_recv_nbx", status)
            .and_then(|()| Header::decode(unsafe { bounce.bytes(bytes) }, tag.source(), tag).map(|(header, _)| header));
        means.bounces.put(bounce);
        decoded.map_err(|error| self.violation.get_or_insert((tag.source(), error))).ok()
    }

    /// Receives the parts of a message into no memory.
    pub(super) fn discard(&mut self, means: &mut Means<'_>, header: &Header) {
        for (length, kind) in header.lengths.iter().zip(1..) {
            if *length == 0 {
                continue;
            }
            let flight = means.engine.flights.take();
            let nowhere = NonNull::<u8>::dangling().as_ptr();
            // SAFETY: nothing is written to zero bytes.
            let is_over =
                unsafe { means.engine.recv(header.tag.with_kind(kind).0, nowhere, 0, &flight, Some(DISCARDED)) };
            if is_over {
                means.engine.reap(&flight);
                means.engine.flights.put(flight);
            } else {
                self.discarded.push(flight);
            }
        }
    }

    pub(super) fn reap_discarded(&mut self, engine: &mut Engine) {
        let mut position = 0;
        while let Some(flight) = self.discarded.get(position) {
            if engine.reap(flight).is_none() {
                position += 1;
                continue;
            }
            let flight = self.discarded.swap_remove(position);
            engine.flights.put(flight);
        }
    }
}
