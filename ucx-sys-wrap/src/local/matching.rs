//! Posted receives and their matching with messages.

use std::collections::BTreeMap;

use crate::on_end::OnEnd;
use crate::table::Table;
use crate::transport::{
    Found, RecvDone, RecvId, RecvParts, SendParts, Statistics, Wanted, check_message, count_copy,
};
use crate::{Arrival, Envelope, Error, Lengths, Mark, Rank, Result, Signature, Tag};

/// The header bytes that statistics count per message: tag, signature and mark.
pub(crate) const HEADER_BYTES: u64 = 32;

/// The position of a message or receive in the queue of its source and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) source: Rank,
    pub(crate) tag: Tag,
    /// Increases with every message of the source, or every receive.
    pub(crate) sequence: u64,
}

/// The metadata of a message.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) signature: Signature,
    pub(crate) mark: Mark,
    pub(crate) lengths: Lengths,
}

impl Header {
    pub(crate) fn new(envelope: &Envelope, parts: &SendParts) -> Self {
        let lengths = parts.iter().map(|part| part.len()).collect();
        Self { signature: envelope.signature, mark: envelope.mark, lengths }
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.lengths.iter().sum()
    }
}

/// The first entry in the queue of a source and tag.
pub(crate) fn first_of<T>(line: &BTreeMap<Key, T>, source: Rank, tag: Tag) -> Option<Key> {
    let (key, _) = line.range(Key { source, tag, sequence: 0 }..).next()?;
    (key.source == source && key.tag == tag).then_some(*key)
}

/// The first message of a source that `wanted` names and no receive waits for, in the order of sending.
/// `about` gives the header of a message.
pub(crate) fn find<T>(
    line: &BTreeMap<Key, T>,
    receives: &Receives,
    wanted: &Wanted,
    world_size: u32,
    about: impl Fn(&T) -> &Header,
) -> Option<(Key, Found)> {
    wanted.sources(world_size).find_map(|source| {
        let of_source = |tag, sequence| Key { source, tag, sequence };
        line.range(of_source(Tag(0), 0)..=of_source(Tag(u64::MAX), u64::MAX))
            .filter(|(key, message)| wanted.includes(key.tag, about(message).signature))
            .filter(|(key, _)| !receives.expects(source, key.tag))
            .min_by_key(|(key, _)| key.sequence)
            .map(|(key, message)| (*key, Found { tag: key.tag, lengths: about(message).lengths.clone() }))
    })
}

/// The receives of one rank, until they are tested.
#[derive(Default)]
pub(crate) struct Receives {
    slots: Table<Slot>,
    waiting: BTreeMap<Key, RecvId>,
    posted: u64,
}

struct Slot {
    key: Key,
    signature: Signature,
    parts: RecvParts,
    result: Option<Result<Arrival>>,
    on_end: OnEnd,
}

impl Receives {
    /// Adds a receive at the end of its queue.
    pub(crate) fn post(&mut self, from: Rank, envelope: &Envelope, parts: RecvParts) -> RecvId {
        self.posted += 1;
        let key = Key { source: from, tag: envelope.tag, sequence: self.posted };
        let (signature, result, on_end) = (envelope.signature, None, OnEnd::default());
        let id = RecvId(self.slots.insert(Slot { key, signature, parts, result, on_end }));
        self.waiting.insert(key, id);
        id
    }

    /// Whether a receive waits for this source and tag.
    pub(crate) fn expects(&self, from: Rank, tag: Tag) -> bool {
        first_of(&self.waiting, from, tag).is_some()
    }

    /// Whether a receive waits for anything from this source.
    pub(crate) fn waits_for(&self, from: Rank) -> bool {
        let start = Key { source: from, tag: Tag(0), sequence: 0 };
        self.waiting.range(start..).next().is_some_and(|(key, _)| key.source == from)
    }

    /// The epoch of the oldest receive of this source and tag that waits.
    pub(crate) fn epoch(&mut self, from: Rank, tag: Tag) -> Option<u8> {
        let id = self.waiting[&first_of(&self.waiting, from, tag)?];
        Some(self.slots.get_mut(id.0)?.signature.epoch())
    }

    /// Removes the oldest receive of this source and tag from its queue. Call [`deliver`](Self::deliver)
    /// next.
    pub(crate) fn claim(&mut self, from: Rank, tag: Tag) -> Option<RecvId> {
        let key = first_of(&self.waiting, from, tag)?;
        self.waiting.remove(&key)
    }

    /// Completes a claimed receive with its message.
    pub(crate) fn deliver<'a>(
        &mut self,
        id: RecvId,
        header: &Header,
        payload: impl Iterator<Item = &'a [u8]>,
        statistics: &mut Statistics,
    ) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            let from = slot.key.source;
            let result = accept(from, slot.signature, &mut slot.parts, header, payload, statistics);
            slot.end(result);
        }
    }

    /// The place for the waker of the task that waits for a receive.
    pub(crate) fn on_end(&mut self, id: RecvId) -> Option<&mut OnEnd> {
        Some(&mut self.slots.get_mut(id.0)?.on_end)
    }

    /// Removes a receive that has ended.
    pub(crate) fn test(&mut self, id: RecvId) -> Option<RecvDone> {
        let slot = self.slots.remove_if(id.0, |slot| slot.result.is_some())?;
        Some(RecvDone { parts: slot.parts, result: slot.result? })
    }

    /// Ends a receive that is still pending.
    pub(crate) fn cancel(&mut self, id: RecvId) {
        if let Some(slot) = self.slots.get_mut(id.0)
            && slot.result.is_none()
        {
            slot.end(Err(Error::Canceled));
            self.waiting.remove(&slot.key);
        }
    }

    /// Ends a receive that waits for its message. Returns whether no message is on its way to it.
    pub(crate) fn withdraw(&mut self, id: RecvId) -> bool {
        // A message is copied as soon as it is matched.
        self.cancel(id);
        true
    }

    /// Ends the pending receives that `is_meant` names by source and tag. Returns whether there were any.
    pub(crate) fn end_if(&mut self, error: &Error, is_meant: impl Fn(Rank, Tag) -> bool) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|key, id| {
            let is_over = is_meant(key.source, key.tag);
            if is_over && let Some(slot) = self.slots.get_mut(id.0) {
                slot.end(Err(error.clone()));
            }
            !is_over
        });
        self.waiting.len() < before
    }
}

impl Slot {
    fn end(&mut self, result: Result<Arrival>) {
        self.result = Some(result);
        self.on_end.tell();
    }
}

/// Copies a message into `places`, or returns why it does not fit. Either way the message is consumed.
pub(crate) fn accept<'a>(
    from: Rank,
    expected: Signature,
    places: &mut RecvParts,
    header: &Header,
    payload: impl Iterator<Item = &'a [u8]>,
    statistics: &mut Statistics,
) -> Result<Arrival> {
    statistics.messages_received += 1;
    statistics.bytes_received += HEADER_BYTES + header.payload_bytes() as u64;
    check_message(from, expected, places, header.signature, &header.lengths)?;
    count_copy(statistics, header.payload_bytes());
    for (place, bytes) in places.iter_mut().zip(payload) {
        // Copy: from the sender's memory to the receiver's.
        place.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    }
    Ok(Arrival { mark: header.mark, lengths: header.lengths.clone() })
}

/// Copies the parts of a message or put into one vector, so that it ends now, independent of its receiver.
pub(crate) fn copy_parts(parts: &SendParts, statistics: &mut Statistics) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
    count_copy(statistics, bytes.len());
    bytes
}
