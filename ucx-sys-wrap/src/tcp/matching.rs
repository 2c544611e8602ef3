//! The receives of one connection: those posted, and the messages that came before their receive was posted.
//!
//! Both are short lists in the order of posting and of arrival, searched from the front: what is asked for is
//! nearly always the first, and a hundred entries are searched in the time of a cache miss.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use slab::Slab;

use super::frame::Header;
use super::sizes::Sizes;
use crate::tag::{Posted, may_have_later, take_first};
use crate::transport::{RecvDone, RecvParts, check_message};
use crate::{Arrival, Envelope, Error, MAX_PARTS, Mark, Rank, Result, Statistics, Tag};

/// Places to read into: the parts of a message, and room for what comes before and after them.
pub(super) type Places<'a> = ArrayVec<IoSliceMut<'a>, { MAX_PARTS + 2 }>;

pub(super) struct Receives {
    peer: Rank,
    operations: Slab<Receive>,
    /// Posted and not matched, in the order of posting.
    waiting: VecDeque<(Tag, usize)>,
    /// Arrived and not matched, in the order of arrival; the last may still be arriving.
    unexpected: VecDeque<(Header, Body)>,
    /// Posted receives that have not ended.
    pending: usize,
    /// Receives posted so far.
    posted: u64,
}

/// A posted receive, until its parts are given back.
struct Receive {
    /// Which of all that were posted.
    number: u64,
    envelope: Envelope,
    parts: RecvParts,
    /// `None` while it goes on.
    outcome: Option<Outcome>,
}

/// How a receive has ended: the mark and the bytes of each part of what arrived.
pub(super) type Outcome = Result<(Mark, Sizes)>;

/// What there is of a message that came before its receive.
pub(super) enum Body {
    /// These bytes; all or, of the message that is arriving, the first.
    Bytes(Vec<u8>),
    /// An offer of this number.
    Offer(u32),
}

impl Receives {
    pub(super) fn new(peer: Rank) -> Self {
        Self {
            peer,
            operations: Slab::new(),
            waiting: VecDeque::new(),
            unexpected: VecDeque::new(),
            pending: 0,
            posted: 0,
        }
    }

    /// Gives a whole message to the receive that was posted first of those that wait, if it may have it.
    #[inline]
    pub(super) fn deliver_first(
        &mut self,
        header: &Header,
        payload: &[u8],
        statistics: &mut Statistics,
    ) -> bool {
        let Some(&(tag, key)) = self.waiting.front() else { return false };
        let Some(receive) = self.operations.get_mut(key) else { return false };
        let Receive { envelope, parts, outcome, .. } = receive;
        let lengths = &header.lengths;
        if tag != header.tag || envelope.signature != header.signature || parts.len() != lengths.len() {
            return false;
        }
        if let [part] = &mut parts[..] {
            let Some(place) = part.bytes_mut().get_mut(..payload.len()) else { return false };
            // A copy: a small message is read before it is known where it belongs.
            place.copy_from_slice(payload);
            statistics.copies += u64::from(!payload.is_empty());
        } else if !scatter_whole(parts, lengths, payload, statistics) {
            return false;
        }
        statistics.bytes_copied += payload.len() as u64;
        statistics.messages_received += 1;
        *outcome = Some(Ok((header.mark, *lengths)));
        self.pending -= 1;
        self.waiting.pop_front();
        true
    }

    /// Whether no message has come before its receive.
    #[inline]
    pub(super) fn has_nothing_kept(&self) -> bool {
        self.unexpected.is_empty()
    }

    /// Books a receive that waits for its message.
    pub(super) fn post(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        let key = self.post_matched(envelope, parts);
        self.waiting.push_back((envelope.tag, key));
        key
    }

    /// Books a receive whose message is arriving.
    pub(super) fn post_matched(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        self.pending += 1;
        self.posted += 1;
        self.operations.insert(Receive { number: self.posted, envelope, parts, outcome: None })
    }

    /// Takes the first waiting receive of `tag`.
    pub(super) fn take_waiting(&mut self, tag: Tag) -> Option<usize> {
        take_first(&mut self.waiting, tag)
    }

    /// Whether any receive has not ended.
    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// The receive that was posted first of those that wait.
    pub(super) fn first_waiting(&self) -> Option<(Tag, usize)> {
        self.waiting.front().copied()
    }

    /// How many bytes the parts of a posted receive have room for.
    pub(super) fn capacities(&self, key: usize) -> Sizes {
        match self.operations.get(key) {
            Some(receive) => receive.parts.iter().map(|part| part.len()).collect(),
            None => Sizes::default(),
        }
    }

    /// Whether the message of `header` may be received by the posted receive.
    pub(super) fn check(&self, key: usize, header: &Header) -> Result<()> {
        match self.operations.get(key) {
            Some(Receive { envelope, parts, outcome: None, .. }) => {
                check_message(self.peer, envelope.signature, parts, header.signature, &header.lengths)
            }
            _ => Err(Error::Canceled),
        }
    }

    /// Ends a posted receive. One that has ended already stays as it is.
    #[inline]
    pub(super) fn end(&mut self, key: usize, outcome: Outcome) {
        if let Some(receive) = self.operations.get_mut(key)
            && receive.outcome.is_none()
        {
            receive.outcome = Some(outcome);
            self.pending -= 1;
        }
    }

    /// Takes a receive that has ended.
    #[inline]
    pub(super) fn take_ended(&mut self, key: usize) -> Option<RecvDone> {
        self.operations.get(key)?.outcome.as_ref()?;
        let receive = self.operations.remove(key);
        let result = receive.outcome?.map(|(mark, sizes)| Arrival { mark, lengths: sizes.into() });
        Some(RecvDone { parts: receive.parts, result })
    }

    /// As [`take_ended`](Self::take_ended), without the leases.
    #[inline]
    pub(super) fn take_outcome(&mut self, key: usize) -> Option<Result<Arrival>> {
        let outcome = self.operations.get_mut(key)?.outcome.take()?;
        self.operations.remove(key);
        Some(outcome.map(|(mark, sizes)| Arrival { mark, lengths: sizes.into() }))
    }

    /// Cancels a receive; its message, if one was matched, is the caller's to discard.
    pub(super) fn cancel(&mut self, key: usize) {
        self.waiting.retain(|(_, waiting)| *waiting != key);
        self.end(key, Err(Error::Canceled));
    }

    /// Ends every receive that has not ended, whether its message is arriving or not.
    pub(super) fn end_all(&mut self, error: &Error) {
        self.waiting.clear();
        for (_, receive) in &mut self.operations {
            receive.outcome.get_or_insert_with(|| Err(error.clone()));
        }
        self.pending = 0;
    }

    /// Of these receives, whose messages come no more, those that may have later ones of their tags.
    pub(super) fn may_have_later(&self, cut: &[usize]) -> Vec<Posted> {
        let pending = self.operations.iter().filter(|(_, receive)| receive.outcome.is_none());
        let posted = |(key, receive): (usize, &Receive)| Posted {
            key,
            number: receive.number,
            tag: receive.envelope.tag,
        };
        may_have_later(cut, pending.map(posted), self.posted)
    }

    /// Forgets the messages that nobody has received.
    pub(super) fn forget_unexpected(&mut self) {
        self.unexpected = VecDeque::new();
    }

    /// Where the rest of a message of `lengths` goes whose first `received` bytes are there, at most `limit`
    /// bytes of it.
    pub(super) fn places(
        &mut self,
        key: usize,
        lengths: &Sizes,
        received: usize,
        limit: usize,
    ) -> Places<'_> {
        let mut places = Places::new();
        let Some(Receive { parts, outcome: None, .. }) = self.operations.get_mut(key) else { return places };
        let (mut skip, mut room) = (received, limit);
        for (part, length) in parts.iter_mut().zip(&**lengths) {
            let start = skip.min(*length);
            let end = start + (length - start).min(room);
            skip -= start;
            room -= end - start;
            if end > start {
                places.push(IoSliceMut::new(&mut part.bytes_mut()[start..end]));
            }
        }
        places
    }

    /// Copies `bytes` to where they belong in a message whose first `received` bytes are there.
    pub(super) fn scatter(
        &mut self,
        key: usize,
        header: &Header,
        received: usize,
        bytes: &[u8],
        statistics: &mut Statistics,
    ) {
        if let Some(Receive { parts, outcome: None, .. }) = self.operations.get_mut(key) {
            scatter(parts, header, received, bytes, statistics);
        }
    }

    /// Keeps a message whose receive is not posted. No memory is taken for bytes that have not come.
    pub(super) fn keep(&mut self, header: Header, body: Body) {
        self.unexpected.push_back((header, body));
    }

    /// The bytes of the message that is kept while it arrives.
    pub(super) fn arriving_bytes(&mut self) -> Option<&mut Vec<u8>> {
        match self.unexpected.back_mut() {
            Some((_, Body::Bytes(bytes))) => Some(bytes),
            _ => None,
        }
    }

    /// Takes the first kept message of `tag`.
    pub(super) fn take_unexpected(&mut self, tag: Tag) -> Option<(Header, Body)> {
        let position = self.unexpected.iter().position(|(header, _)| header.tag == tag)?;
        self.unexpected.remove(position)
    }

    /// Forgets the messages that were offered and not sent.
    pub(super) fn forget_offers(&mut self) {
        self.unexpected.retain(|(_, body)| !matches!(body, Body::Offer(_)));
    }

    /// Bytes of memory that kept messages hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_capacity(&self) -> usize {
        let capacity = |body: &Body| if let Body::Bytes(bytes) = body { bytes.capacity() } else { 0 };
        self.unexpected.iter().map(|(_, body)| capacity(body)).sum()
    }
}

/// Copies a whole message of these lengths into the parts, if they have room for it; says whether they have.
fn scatter_whole(
    parts: &mut RecvParts,
    lengths: &Sizes,
    payload: &[u8],
    statistics: &mut Statistics,
) -> bool {
    if lengths.iter().zip(&*parts).any(|(length, part)| *length > part.len()) {
        return false;
    }
    let mut rest = payload;
    for (part, length) in parts.iter_mut().zip(lengths.iter().copied()).filter(|(_, length)| *length > 0) {
        let (now, later) = rest.split_at(length);
        // A copy: a small message was read before it was known where it belongs.
        part.bytes_mut()[..length].copy_from_slice(now);
        statistics.copies += 1;
        rest = later;
    }
    true
}

/// Copies `bytes`, which follow the first `received` bytes of the message, into the parts that they belong
/// to.
pub(super) fn scatter(
    parts: &mut RecvParts,
    header: &Header,
    received: usize,
    mut bytes: &[u8],
    statistics: &mut Statistics,
) {
    let mut skip = received;
    for (part, length) in parts.iter_mut().zip(&*header.lengths) {
        let start = skip.min(*length);
        let count = (length - start).min(bytes.len());
        skip -= start;
        if count > 0 {
            let (now, later) = bytes.split_at(count);
            // A copy: these bytes came before it was known where they belong.
            part.bytes_mut()[start..start + count].copy_from_slice(now);
            statistics.copies += 1;
            statistics.bytes_copied += count as u64;
            bytes = later;
        }
    }
}
