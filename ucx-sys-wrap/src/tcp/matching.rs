//! Tag matching of one connection: posted receives, and messages that came before their receive.
//!
//! Both are short lists in order of posting and of arrival, searched from the front: the first entry nearly
//! always matches.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use slab::Slab;

use super::frame::Header;
use super::sizes::Sizes;
use crate::on_end::OnEnd;
use crate::tag::{Posted, may_have_later, take_first};
use crate::transport::{Found, RecvDone, RecvParts, Wanted, check_message};
use crate::{Arrival, Envelope, Error, MAX_PARTS, Mark, Rank, Result, Signature, Statistics, Tag};

/// Places to read into: the parts of a message, and room before and behind them.
pub(super) type Places<'a> = ArrayVec<IoSliceMut<'a>, { MAX_PARTS + 2 }>;

pub(super) struct Receives {
    peer: Rank,
    operations: Slab<Receive>,
    /// Posted receives without a message, in order of posting.
    pub(super) waiting: VecDeque<(Tag, usize)>,
    /// Messages without a receive, in order of arrival; the last may still be arriving. No memory is taken
    /// for bytes that have not come.
    pub(super) unexpected: VecDeque<(Header, Body)>,
    /// Receives that have not ended.
    pending: usize,
    /// Receives posted so far.
    posted: u64,
}

/// A posted receive, until its parts are given back.
struct Receive {
    /// Its position in the order of all posted receives.
    number: u64,
    envelope: Envelope,
    parts: RecvParts,
    /// `None` while it goes on.
    outcome: Option<Outcome>,
    on_end: OnEnd,
}

/// The outcome of a receive: the mark and the bytes of each part of the message.
pub(super) type Outcome = Result<(Mark, Sizes)>;

/// A message that came before its receive.
pub(super) enum Body {
    /// Its bytes, or the first of them while it is arriving.
    Bytes(Vec<u8>),
    /// The number of its RTS.
    Rts(u32),
}

impl Receives {
    pub(super) fn new(peer: Rank) -> Self {
        let (waiting, unexpected) = Default::default();
        Self { peer, operations: Slab::new(), waiting, unexpected, pending: 0, posted: 0 }
    }

    /// Delivers a whole message to the receive that was posted first, if it matches and has room.
    #[inline]
    pub(super) fn deliver_first(
        &mut self,
        header: &Header,
        payload: &[u8],
        statistics: &mut Statistics,
    ) -> bool {
        let Some(&(tag, key)) = self.waiting.front() else { return false };
        let Some(receive) = self.operations.get_mut(key) else { return false };
        let Receive { envelope, parts, outcome, on_end, .. } = receive;
        let lengths = &header.lengths;
        if tag != header.tag || envelope.signature != header.signature || parts.len() != lengths.len() {
            return false;
        }
        if let [part] = &mut parts[..] {
            let Some(place) = part.bytes_mut().get_mut(..payload.len()) else { return false };
            // A copy: a small message is read before it is known where it belongs.
            place.copy_from_slice(payload);
            statistics.copies += u64::from(!payload.is_empty());
            statistics.bytes_copied += payload.len() as u64;
        } else if lengths.iter().zip(&*parts).all(|(length, part)| *length <= part.len()) {
            scatter(parts, lengths, 0, payload, statistics);
        } else {
            return false;
        }
        statistics.messages_received += 1;
        *outcome = Some(Ok((header.mark, *lengths)));
        on_end.tell();
        self.pending -= 1;
        self.waiting.pop_front();
        true
    }

    /// Registers a receive that waits for its message.
    pub(super) fn post(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        let key = self.post_matched(envelope, parts);
        self.waiting.push_back((envelope.tag, key));
        key
    }

    /// Registers a receive that is matched already.
    pub(super) fn post_matched(&mut self, envelope: Envelope, parts: RecvParts) -> usize {
        self.pending += 1;
        self.posted += 1;
        let (number, on_end) = (self.posted, OnEnd::default());
        self.operations.insert(Receive { number, envelope, parts, outcome: None, on_end })
    }

    pub(super) fn take_waiting(&mut self, tag: Tag) -> Option<usize> {
        take_first(&mut self.waiting, tag)
    }

    pub(super) fn has_operations(&self) -> bool {
        self.pending > 0
    }

    /// The bytes that each part of a receive has room for.
    pub(super) fn capacities(&self, key: usize) -> Sizes {
        match self.operations.get(key) {
            Some(receive) => receive.parts.iter().map(|part| part.len()).collect(),
            None => Sizes::default(),
        }
    }

    /// Fails unless the receive can take the message of `header`.
    pub(super) fn check(&self, key: usize, header: &Header) -> Result<()> {
        match self.operations.get(key) {
            Some(Receive { envelope, parts, outcome: None, .. }) => {
                check_message(self.peer, envelope.signature, parts, header.signature, &header.lengths)
            }
            _ => Err(Error::Canceled),
        }
    }

    /// Ends a receive, unless it has ended.
    #[inline]
    pub(super) fn end(&mut self, key: usize, outcome: Outcome) {
        if let Some(receive) = self.operations.get_mut(key)
            && receive.outcome.is_none()
        {
            receive.outcome = Some(outcome);
            receive.on_end.tell();
            self.pending -= 1;
        }
    }

    /// The place for the waker of the task that waits for a receive.
    pub(super) fn on_end(&mut self, key: usize) -> Option<&mut OnEnd> {
        Some(&mut self.operations.get_mut(key)?.on_end)
    }

    #[inline]
    pub(super) fn take_ended(&mut self, key: usize) -> Option<RecvDone> {
        self.operations.get(key)?.outcome.as_ref()?;
        let receive = self.operations.remove(key);
        let result = receive.outcome?.map(|(mark, sizes)| Arrival { mark, lengths: sizes.into() });
        Some(RecvDone { parts: receive.parts, result })
    }

    /// Like [`take_ended`](Self::take_ended), but drops the leases.
    #[inline]
    pub(super) fn take_outcome(&mut self, key: usize) -> Option<Result<Arrival>> {
        let outcome = self.operations.get_mut(key)?.outcome.take()?;
        self.operations.remove(key);
        Some(outcome.map(|(mark, sizes)| Arrival { mark, lengths: sizes.into() }))
    }

    /// Cancels a receive. The caller must discard its message if one was matched.
    pub(super) fn cancel(&mut self, key: usize, error: Error) {
        self.waiting.retain(|(_, waiting)| *waiting != key);
        self.end(key, Err(error));
    }

    /// The signature that a receive expects.
    pub(super) fn signature(&self, key: usize) -> Signature {
        self.operations.get(key).map_or_else(Signature::default, |receive| receive.envelope.signature)
    }

    /// The receives of a context that have not ended.
    pub(super) fn of_context(&self, context: u16) -> Vec<usize> {
        let is_meant = |(_, receive): &(usize, &Receive)| {
            receive.envelope.tag.group() == context && receive.outcome.is_none()
        };
        self.operations.iter().filter(is_meant).map(|(key, _)| key).collect()
    }

    pub(super) fn end_all(&mut self, error: &Error) {
        self.waiting.clear();
        for (_, receive) in &mut self.operations {
            receive.outcome.get_or_insert_with(|| Err(error.clone()));
            receive.on_end.tell();
        }
        self.pending = 0;
    }

    /// Those of the receives `cut`, whose messages do not come, that may get later messages of their tags.
    pub(super) fn may_have_later(&self, cut: &[usize]) -> Vec<Posted> {
        let pending = self.operations.iter().filter(|(_, receive)| receive.outcome.is_none());
        let posted = |(key, receive): (usize, &Receive)| Posted {
            key,
            number: receive.number,
            tag: receive.envelope.tag,
        };
        may_have_later(cut, pending.map(posted), self.posted)
    }

    /// The places in the receive's parts for at most `limit` bytes of a message of `lengths`, behind its
    /// first `received` bytes.
    pub(super) fn places(
        &mut self,
        key: usize,
        lengths: &Sizes,
        received: usize,
        limit: usize,
    ) -> Places<'_> {
        match self.operations.get_mut(key) {
            Some(Receive { parts, outcome: None, .. }) => places(parts, lengths, received, limit),
            _ => Places::new(),
        }
    }
    /// Copies `bytes`, which follow the first `received` bytes of the message, into the receive's parts.
    pub(super) fn scatter(
        &mut self,
        key: usize,
        header: &Header,
        received: usize,
        bytes: &[u8],
        statistics: &mut Statistics,
    ) {
        if let Some(Receive { parts, outcome: None, .. }) = self.operations.get_mut(key) {
            scatter(parts, &header.lengths, received, bytes, statistics);
        }
    }

    /// The bytes of the unexpected message that is arriving.
    pub(super) fn arriving_bytes(&mut self) -> Option<&mut Vec<u8>> {
        match self.unexpected.back_mut() {
            Some((_, Body::Bytes(bytes))) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn take_unexpected(&mut self, tag: Tag) -> Option<(Header, Body)> {
        let position = self.unexpected.iter().position(|(header, _)| header.tag == tag)?;
        self.unexpected.remove(position)
    }

    /// The first unexpected message that is wanted.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Found> {
        let mut unexpected = self.unexpected.iter();
        let (header, _) = unexpected.find(|(header, _)| wanted.includes(header.tag, header.signature))?;
        Some(Found { tag: header.tag, lengths: header.lengths.into() })
    }

    /// Whether a receive waits for a message of which nothing has come.
    pub(super) fn is_waiting(&self, key: usize) -> bool {
        self.waiting.iter().any(|(_, waiting)| *waiting == key)
    }

    /// Whether a receive has ended.
    pub(super) fn has_ended(&self, key: usize) -> bool {
        self.operations.get(key).is_none_or(|receive| receive.outcome.is_some())
    }

    /// Drops the unexpected messages that were only announced by an RTS.
    pub(super) fn forget_announced(&mut self) {
        self.unexpected.retain(|(_, body)| !matches!(body, Body::Rts(_)));
    }

    /// Bytes of memory that unexpected messages hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn kept_capacity(&self) -> usize {
        let capacity = |body: &Body| if let Body::Bytes(bytes) = body { bytes.capacity() } else { 0 };
        self.unexpected.iter().map(|(_, body)| capacity(body)).sum()
    }
}

/// The places in `parts` for at most `limit` bytes of a message of `lengths`, behind its first `received`
/// bytes.
fn places<'a>(parts: &'a mut RecvParts, lengths: &Sizes, received: usize, limit: usize) -> Places<'a> {
    let mut places = Places::new();
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

/// Copies `bytes`, which follow the first `received` bytes of the message, into the parts.
pub(super) fn scatter(
    parts: &mut RecvParts,
    lengths: &Sizes,
    received: usize,
    mut bytes: &[u8],
    statistics: &mut Statistics,
) {
    statistics.bytes_copied += bytes.len() as u64;
    for mut place in places(parts, lengths, received, bytes.len()) {
        let (now, later) = bytes.split_at(place.len());
        // A copy: these bytes were read before it was known where they belong.
        place.copy_from_slice(now);
        statistics.copies += 1;
        bytes = later;
    }
}
