//! Posted receives of one link, and unexpected messages.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::ControlFlow;

use super::descriptor::{Header, Rts};
use super::payload::PartCursor;
use crate::on_end::OnEnd;
use crate::tag::{Posted, may_have_later, take_first};
use crate::transport::{Found, RecvDone, RecvParts, Wanted, check_message};
use crate::{Arrival, Envelope, Error, MAX_PARTS, Mark, Rank, Result, Signature, Tag};
use arrayvec::ArrayVec;

/// Where bytes of a message are to be written.
pub(super) type Slices<'a> = ArrayVec<IoSliceMut<'a>, MAX_PARTS>;

/// The number of an unexpected message that has arrived as a whole.
const NO_NUMBER: u64 = 0;

pub(super) struct Receives {
    peer: Rank,
    /// Posted receives by key, and free keys.
    operations: Vec<Receive>,
    free: Vec<usize>,
    /// Unmatched receives, in the order of posting.
    waiting: VecDeque<(Tag, usize)>,
    /// Unmatched messages, in the order of arrival.
    unexpected: VecDeque<Unexpected>,
    pending: usize,
    posted: u64,
    rts_count: usize,
    /// RTS that arrived in the last turn.
    new_rts: usize,
    next_number: u64,
}

struct Receive {
    number: u64,
    envelope: Envelope,
    parts: RecvParts,
    state: State,
    on_end: OnEnd,
}

enum State {
    Free,
    Pending,
    Ended(Result<Arrival>),
}

/// The outcome of matching a message that came as a whole.
pub(super) enum Delivery {
    Delivered,
    /// Its receive ended with an error.
    Rejected,
    Unexpected,
}

pub(super) struct Unexpected {
    pub(super) header: Header,
    pub(super) body: Body,
}

pub(super) enum Body {
    /// The bytes so far, under a number while more arrive, else under [`NO_NUMBER`].
    Bytes(u64, Vec<u8>),
    Rts(Rts),
    /// An RTS that came in the last turn: its receive may be posted in the next.
    NewRts(Rts),
}

impl Receives {
    pub(super) fn new(peer: Rank) -> Self {
        Self {
            peer,
            operations: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            unexpected: VecDeque::new(),
            pending: 0,
            posted: 0,
            rts_count: 0,
            new_rts: 0,
            next_number: NO_NUMBER,
        }
    }

    /// Adds a receive that waits for its message.
    #[inline]
    pub(super) fn post(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        let key = self.post_matched(envelope, parts);
        self.waiting.push_back((envelope.tag, key));
        key
    }

    /// Adds a receive whose message is known.
    #[inline]
    pub(super) fn post_matched(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        self.pending += 1;
        self.posted += 1;
        if let Some(key) = self.free.pop()
            && let Some(receive) = self.operations.get_mut(key)
        {
            // Field by field: this avoids a copy of the whole struct.
            receive.number = self.posted;
            receive.envelope = envelope;
            receive.parts = parts;
            receive.state = State::Pending;
            return key;
        }
        let (number, state, on_end) = (self.posted, State::Pending, OnEnd::default());
        self.operations.push(Receive { number, envelope, parts, state, on_end });
        self.operations.len() - 1
    }

    #[inline]
    pub(super) fn take_waiting(&mut self, tag: Tag) -> Option<usize> {
        take_first(&mut self.waiting, tag)
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// Whether the message fits the posted receive.
    #[inline]
    pub(super) fn check(&self, key: usize, header: &Header) -> Result<()> {
        match self.operations.get(key) {
            Some(Receive { envelope, parts, state: State::Pending | State::Ended(_), .. }) => {
                check_message(self.peer, envelope.signature, parts, header.signature, header.lengths())
            }
            _ => Err(Error::Canceled),
        }
    }

    /// Delivers a message of one part to the receive that waits for it: `fill` writes its `bytes` bytes.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        (tag, signature, mark): (Tag, Signature, Mark),
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Delivery {
        let Some(key) = self.take_waiting(tag) else { return Delivery::Unexpected };
        let Some(receive) = self.operations.get_mut(key) else { return Delivery::Rejected };
        if receive.envelope.signature == signature
            && let [part] = &mut receive.parts[..]
            && let Some(slice) = part.bytes_mut().get_mut(..bytes)
        {
            fill(slice);
            let lengths = ArrayVec::from_iter([bytes]);
            receive.state = State::Ended(Ok(Arrival { mark, lengths }));
            receive.on_end.tell();
            self.pending -= 1;
            return Delivery::Delivered;
        }
        let expected = receive.envelope.signature;
        if expected.epoch() != signature.epoch() {
            self.wait_on(tag, key);
            return Delivery::Rejected;
        }
        let checked = check_message(self.peer, expected, &receive.parts, signature, &[bytes]);
        self.end(key, checked.and(Err(Error::Canceled)));
        Delivery::Rejected
    }

    /// Ends a receive if it is pending.
    #[inline]
    pub(super) fn end(&mut self, key: usize, result: Result<Arrival>) {
        if let Some(receive) = self.operations.get_mut(key)
            && matches!(receive.state, State::Pending)
        {
            receive.state = State::Ended(result);
            receive.on_end.tell();
            self.pending -= 1;
        }
    }

    /// The place for the waker of the task that waits for a receive.
    pub(super) fn on_end(&mut self, key: usize) -> Option<&mut OnEnd> {
        let receive = self.operations.get_mut(key)?;
        matches!(receive.state, State::Pending).then_some(&mut receive.on_end)
    }

    #[inline]
    pub(super) fn take_ended(&mut self, key: usize) -> Option<RecvDone> {
        let receive = self.operations.get_mut(key)?;
        if !matches!(receive.state, State::Ended(_)) {
            return None;
        }
        let parts = std::mem::take(&mut receive.parts);
        self.take_outcome(key).map(|result| RecvDone { parts, result })
    }

    /// Like [`take_ended`](Self::take_ended), but drops the leases.
    #[inline]
    pub(super) fn take_outcome(&mut self, key: usize) -> Option<Result<Arrival>> {
        let receive = self.operations.get_mut(key)?;
        if !matches!(receive.state, State::Ended(_)) {
            return None;
        }
        let State::Ended(result) = std::mem::replace(&mut receive.state, State::Free) else { return None };
        receive.parts.clear();
        self.free.push(key);
        Some(result)
    }

    pub(super) fn cancel(&mut self, key: usize, error: Error) {
        self.waiting.retain(|(_, waiting)| *waiting != key);
        self.end(key, Err(error));
    }

    /// The receives of a context that have not ended.
    pub(super) fn of_context(&self, context: u16) -> Vec<usize> {
        let is_meant = |(_, receive): &(usize, &Receive)| {
            receive.envelope.tag.group() == context && matches!(receive.state, State::Pending)
        };
        self.operations.iter().enumerate().filter(is_meant).map(|(key, _)| key).collect()
    }

    /// The signature that a receive expects.
    pub(super) fn signature(&self, key: usize) -> Signature {
        self.operations.get(key).map_or_else(Signature::default, |receive| receive.envelope.signature)
    }

    /// Lets a receive wait on that was taken for a message of an earlier context.
    #[cold]
    pub(super) fn wait_on(&mut self, tag: Tag, key: usize) {
        self.waiting.push_front((tag, key));
    }

    pub(super) fn end_all(&mut self, error: &Error) {
        self.waiting.clear();
        for receive in &mut self.operations {
            if matches!(receive.state, State::Pending) {
                receive.state = State::Ended(Err(error.clone()));
                receive.on_end.tell();
            }
        }
        self.pending = 0;
    }

    /// Where bytes `start..end` of a message go; nowhere if its receive is no longer pending.
    #[inline]
    pub(super) fn slices(&mut self, key: usize, header: &Header, start: usize, end: usize) -> Slices<'_> {
        match self.operations.get_mut(key) {
            Some(Receive { parts, state: State::Pending, .. }) => slices(parts, header, start, end),
            _ => Slices::new(),
        }
    }

    /// Keeps the first bytes of an unexpected message; returns its number.
    pub(super) fn keep(&mut self, header: Header, bytes: Vec<u8>) -> u64 {
        self.next_number += 1;
        self.unexpected.push_back(Unexpected { header, body: Body::Bytes(self.next_number, bytes) });
        self.next_number
    }

    pub(super) fn keep_rts(&mut self, rts: Rts) {
        self.rts_count += 1;
        self.new_rts += 1;
        self.unexpected.push_back(Unexpected { header: rts.header, body: Body::NewRts(rts) });
    }

    #[inline]
    pub(super) fn has_new_rts(&self) -> bool {
        self.new_rts > 0
    }

    /// Passes each new RTS to `fetch`, which may return the message's bytes; then it is new no more. Stops
    /// where `fetch` breaks. Returns whether any was handled.
    pub(super) fn age_rts(
        &mut self,
        mut fetch: impl FnMut(&Rts) -> ControlFlow<(), Option<Vec<u8>>>,
    ) -> bool {
        let before = self.new_rts;
        for message in &mut self.unexpected {
            if let Body::NewRts(rts) = message.body {
                let ControlFlow::Continue(bytes) = fetch(&rts) else { break };
                self.new_rts -= 1;
                self.rts_count -= usize::from(bytes.is_some());
                message.body = bytes.map_or(Body::Rts(rts), |bytes| Body::Bytes(NO_NUMBER, bytes));
            }
        }
        self.new_rts != before
    }

    /// RTS that wait for their receive.
    pub(super) fn rts_count(&self) -> usize {
        self.rts_count
    }

    /// The bytes of an unexpected message that is still arriving.
    pub(super) fn arriving(&mut self, number: u64) -> Option<&mut Vec<u8>> {
        self.unexpected.iter_mut().rev().find_map(|message| match &mut message.body {
            Body::Bytes(found, bytes) if *found == number => Some(bytes),
            _ => None,
        })
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_bytes(&self) -> usize {
        let bytes = |message: &Unexpected| match &message.body {
            Body::Bytes(_, bytes) => bytes.len(),
            Body::Rts(_) | Body::NewRts(_) => 0,
        };
        self.unexpected.iter().map(bytes).sum()
    }

    /// Takes the first unexpected message of a tag.
    #[inline]
    pub(super) fn take_unexpected(&mut self, tag: Tag) -> Option<Unexpected> {
        if self.unexpected.is_empty() {
            return None;
        }
        self.take_unexpected_if(|message| message.header.tag == tag)
    }

    /// Takes the first unexpected message that `is_meant` names.
    pub(super) fn take_unexpected_if(
        &mut self,
        is_meant: impl Fn(&Unexpected) -> bool,
    ) -> Option<Unexpected> {
        let position = self.unexpected.iter().position(is_meant)?;
        let taken = self.unexpected.remove(position)?;
        self.rts_count -= usize::from(matches!(taken.body, Body::Rts(_) | Body::NewRts(_)));
        self.new_rts -= usize::from(matches!(taken.body, Body::NewRts(_)));
        Some(taken)
    }

    /// The first unexpected message that is wanted.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Found> {
        let mut unexpected = self.unexpected.iter().map(|message| &message.header);
        let header = unexpected.find(|header| wanted.includes(header.tag, header.signature))?;
        Some(Found { tag: header.tag, lengths: header.lengths().iter().copied().collect() })
    }

    /// Whether a receive waits for a message of which nothing has come.
    pub(super) fn is_waiting(&self, key: usize) -> bool {
        self.waiting.iter().any(|(_, waiting)| *waiting == key)
    }

    /// Whether a receive has ended.
    pub(super) fn has_ended(&self, key: usize) -> bool {
        self.operations.get(key).is_none_or(|receive| !matches!(receive.state, State::Pending))
    }

    /// Of the receives `cut`, whose messages do not come, those that may have later messages of their tags.
    pub(super) fn may_have_later(&self, cut: &[usize]) -> Vec<Posted> {
        let pending =
            self.operations.iter().enumerate().filter(|(_, receive)| matches!(receive.state, State::Pending));
        let posted = |(key, receive): (usize, &Receive)| Posted {
            key,
            number: receive.number,
            tag: receive.envelope.tag,
        };
        may_have_later(cut, pending.map(posted), self.posted)
    }

    /// Drops every RTS, and messages that have arrived only in part.
    pub(super) fn forget_incomplete(&mut self) {
        self.unexpected.retain(|message| match &message.body {
            Body::Bytes(_, bytes) => bytes.len() == message.header.bytes(),
            Body::Rts(_) | Body::NewRts(_) => false,
        });
        (self.rts_count, self.new_rts) = (0, 0);
    }

    pub(super) fn forget_all(&mut self) {
        self.unexpected = VecDeque::new();
        (self.rts_count, self.new_rts) = (0, 0);
    }
}

#[inline]
pub(super) fn slices<'a>(parts: &'a mut RecvParts, header: &Header, start: usize, end: usize) -> Slices<'a> {
    let mut slices = Slices::new();
    let mut cursor = PartCursor::new(start..end);
    for (part, length) in parts.iter_mut().zip(header.lengths()) {
        let bytes = cursor.next(*length);
        if !bytes.is_empty()
            && let Some(slice) = part.bytes_mut().get_mut(bytes)
        {
            slices.push(IoSliceMut::new(slice));
        }
    }
    slices
}
