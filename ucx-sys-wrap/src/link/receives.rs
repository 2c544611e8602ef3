//! Posted receives of one link, and the messages that came before theirs was posted.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::ControlFlow;

use super::cell::{Head, Place};
use crate::tag::{Posted, may_have_later, take_first};
use crate::transport::{RecvDone, RecvParts, check_message};
use crate::{Arrival, Envelope, Error, MAX_PARTS, Mark, Rank, Result, Signature, Tag};
use arrayvec::ArrayVec;

/// Where bytes of a message go.
pub(super) type Places<'a> = ArrayVec<IoSliceMut<'a>, MAX_PARTS>;

/// What no message has that is kept while it arrives.
const NO_NUMBER: u64 = 0;

pub(super) struct Receives {
    peer: Rank,
    /// Posted receives by their keys, and the keys that are free: what has ended leaves its place to the
    /// next.
    operations: Vec<Receive>,
    free: Vec<usize>,
    /// Posted and not matched, in the order of posting.
    waiting: VecDeque<(Tag, usize)>,
    /// Arrived and not matched, in the order of arrival.
    unexpected: VecDeque<Unexpected>,
    /// Posted receives that have not ended.
    pending: usize,
    /// Receives posted so far.
    posted: u64,
    offers: usize,
    /// Those of the last turn.
    new_offers: usize,
    next_number: u64,
}

struct Receive {
    /// Which of all that were posted.
    number: u64,
    envelope: Envelope,
    parts: RecvParts,
    state: State,
}

/// How far a receive is.
enum State {
    Free,
    Pending,
    Ended(Result<Arrival>),
}

/// What became of a message that came in one piece.
pub(super) enum Delivery {
    Delivered,
    /// Its receive has ended with an error.
    Refused,
    /// Nobody has asked for it yet.
    Unexpected,
}

/// A message that nobody has asked for yet.
pub(super) struct Unexpected {
    pub(super) head: Head,
    pub(super) body: Body,
}

/// What there is of it.
pub(super) enum Body {
    /// These bytes, the first of the message whose number among those kept is this, or all of one that was
    /// read from its sender's memory.
    Bytes(u64, Vec<u8>),
    /// It is offered, and lies there.
    Offer(Place),
    /// Likewise, and has come in the last turn: its receive may be posted in the next.
    NewOffer(Place),
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
            offers: 0,
            new_offers: 0,
            next_number: NO_NUMBER,
        }
    }

    /// Books a receive that waits for its message.
    #[inline]
    pub(super) fn post(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        let key = self.post_matched(envelope, parts);
        self.waiting.push_back((envelope.tag, key));
        key
    }

    /// Books a receive whose message is known.
    #[inline]
    pub(super) fn post_matched(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        self.pending += 1;
        self.posted += 1;
        if let Some(key) = self.free.pop()
            && let Some(place) = self.operations.get_mut(key)
        {
            // Field by field, which spares a copy of the whole.
            place.number = self.posted;
            place.envelope = envelope;
            place.parts = parts;
            place.state = State::Pending;
            return key;
        }
        self.operations.push(Receive { number: self.posted, envelope, parts, state: State::Pending });
        self.operations.len() - 1
    }

    /// Takes the first waiting receive of a tag.
    #[inline]
    pub(super) fn take_waiting(&mut self, tag: Tag) -> Option<usize> {
        take_first(&mut self.waiting, tag)
    }

    #[inline]
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// Whether the message of `head` may be received by a posted receive.
    #[inline]
    pub(super) fn check(&self, key: usize, head: &Head) -> Result<()> {
        match self.operations.get(key) {
            Some(Receive { envelope, parts, state: State::Pending | State::Ended(_), .. }) => {
                check_message(self.peer, envelope.signature, parts, head.signature, head.lengths())
            }
            _ => Err(Error::Canceled),
        }
    }

    /// Delivers a message of one part to the receive that waits for it: `fill` writes the part, of `bytes`
    /// bytes.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        (tag, signature, mark): (Tag, Signature, Mark),
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Delivery {
        let Some(key) = self.take_waiting(tag) else { return Delivery::Unexpected };
        let Some(receive) = self.operations.get_mut(key) else { return Delivery::Refused };
        if receive.envelope.signature == signature
            && let [part] = &mut receive.parts[..]
            && let Some(place) = part.bytes_mut().get_mut(..bytes)
        {
            fill(place);
            let lengths = ArrayVec::from_iter([bytes]);
            receive.state = State::Ended(Ok(Arrival { mark, lengths }));
            self.pending -= 1;
            return Delivery::Delivered;
        }
        let checked =
            check_message(self.peer, receive.envelope.signature, &receive.parts, signature, &[bytes]);
        self.end(key, checked.and(Err(Error::Canceled)));
        Delivery::Refused
    }

    /// Ends a posted receive. One that has ended already stays as it is.
    #[inline]
    pub(super) fn end(&mut self, key: usize, result: Result<Arrival>) {
        if let Some(receive) = self.operations.get_mut(key)
            && matches!(receive.state, State::Pending)
        {
            receive.state = State::Ended(result);
            self.pending -= 1;
        }
    }

    /// Takes a receive that has ended.
    #[inline]
    pub(super) fn take_ended(&mut self, key: usize) -> Option<RecvDone> {
        let receive = self.operations.get_mut(key)?;
        if !matches!(receive.state, State::Ended(_)) {
            return None;
        }
        let parts = std::mem::take(&mut receive.parts);
        self.take_outcome(key).map(|result| RecvDone { parts, result })
    }

    /// As [`take_ended`](Self::take_ended), without the leases.
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

    pub(super) fn cancel(&mut self, key: usize) {
        self.waiting.retain(|(_, waiting)| *waiting != key);
        self.end(key, Err(Error::Canceled));
    }

    /// Ends every receive that has not ended.
    pub(super) fn end_all(&mut self, error: &Error) {
        self.waiting.clear();
        for receive in &mut self.operations {
            if matches!(receive.state, State::Pending) {
                receive.state = State::Ended(Err(error.clone()));
            }
        }
        self.pending = 0;
    }

    /// Where bytes `start..end` of a message go; nowhere if its receive has ended.
    #[inline]
    pub(super) fn places(&mut self, key: usize, head: &Head, start: usize, end: usize) -> Places<'_> {
        match self.operations.get_mut(key) {
            Some(Receive { parts, state: State::Pending, .. }) => places(parts, head, start, end),
            _ => Places::new(),
        }
    }

    /// Keeps the first bytes of a message; gives its number among those kept.
    pub(super) fn keep(&mut self, head: Head, bytes: Vec<u8>) -> u64 {
        self.next_number += 1;
        self.unexpected.push_back(Unexpected { head, body: Body::Bytes(self.next_number, bytes) });
        self.next_number
    }

    pub(super) fn keep_offer(&mut self, head: Head, place: Place) {
        self.offers += 1;
        self.new_offers += 1;
        self.unexpected.push_back(Unexpected { head, body: Body::NewOffer(place) });
    }

    /// Whether offers have come in the last turn that nobody has taken.
    #[inline]
    pub(super) fn has_new_offers(&self) -> bool {
        self.new_offers > 0
    }

    /// New offers are new no more: `fetch` gets them, and may give the bytes of the message. Where it breaks
    /// off, what is left stays new. Says whether there was one that is no more.
    pub(super) fn age_offers(
        &mut self,
        mut fetch: impl FnMut(&Head, &Place) -> ControlFlow<(), Option<Vec<u8>>>,
    ) -> bool {
        let before = self.new_offers;
        for message in &mut self.unexpected {
            if let Body::NewOffer(place) = message.body {
                let ControlFlow::Continue(bytes) = fetch(&message.head, &place) else { break };
                self.new_offers -= 1;
                self.offers -= usize::from(bytes.is_some());
                message.body = bytes.map_or(Body::Offer(place), |bytes| Body::Bytes(NO_NUMBER, bytes));
            }
        }
        self.new_offers != before
    }

    /// Offers that wait for their receive.
    pub(super) fn offers(&self) -> usize {
        self.offers
    }

    /// The bytes of a message that is kept while it arrives.
    pub(super) fn kept(&mut self, number: u64) -> Option<&mut Vec<u8>> {
        self.unexpected.iter_mut().rev().find_map(|message| match &mut message.body {
            Body::Bytes(found, bytes) if *found == number => Some(bytes),
            _ => None,
        })
    }

    /// Bytes of memory that kept messages hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_bytes(&self) -> usize {
        let bytes = |message: &Unexpected| match &message.body {
            Body::Bytes(_, bytes) => bytes.len(),
            Body::Offer(_) | Body::NewOffer(_) => 0,
        };
        self.unexpected.iter().map(bytes).sum()
    }

    /// Takes the first kept message of a tag.
    #[inline]
    pub(super) fn take_unexpected(&mut self, tag: Tag) -> Option<Unexpected> {
        if self.unexpected.is_empty() {
            return None;
        }
        let position = self.unexpected.iter().position(|message| message.head.tag == tag)?;
        let taken = self.unexpected.remove(position)?;
        self.offers -= usize::from(matches!(taken.body, Body::Offer(_) | Body::NewOffer(_)));
        self.new_offers -= usize::from(matches!(taken.body, Body::NewOffer(_)));
        Some(taken)
    }

    /// Of these receives, whose messages come no more, those that may have later ones of their tags.
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

    /// Forgets what nobody can get any more: offers, and messages of which only a part has come.
    pub(super) fn forget_incomplete(&mut self) {
        self.unexpected.retain(|message| match &message.body {
            Body::Bytes(_, bytes) => bytes.len() == message.head.bytes(),
            Body::Offer(_) | Body::NewOffer(_) => false,
        });
        (self.offers, self.new_offers) = (0, 0);
    }

    /// Forgets all that was kept.
    pub(super) fn forget_all(&mut self) {
        self.unexpected = VecDeque::new();
        (self.offers, self.new_offers) = (0, 0);
    }
}

/// Where bytes `start..end` of a message go.
#[inline]
pub(super) fn places<'a>(parts: &'a mut RecvParts, head: &Head, start: usize, end: usize) -> Places<'a> {
    let mut places = Places::new();
    let (mut skip, mut left) = (start, end.saturating_sub(start));
    for (part, length) in parts.iter_mut().zip(head.lengths()) {
        let from = skip.min(*length);
        let count = (length - from).min(left);
        skip -= from;
        left -= count;
        if count > 0
            && let Some(place) = part.bytes_mut().get_mut(from..from + count)
        {
            places.push(IoSliceMut::new(place));
        }
    }
    places
}
