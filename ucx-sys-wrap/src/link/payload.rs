//! The payload of a message on its way out, and the rings that it goes through.

use std::ops::Range;

use crate::shm::{MIN_TIMED_BYTES, OwnArea, PeerArea, StorePolicy, blocks};
use crate::transport::SendParts;

/// Splits a range of a message's bytes into ranges of its parts.
pub(crate) struct PartCursor {
    skip: usize,
    left: usize,
}

impl PartCursor {
    #[inline]
    pub(crate) fn new(bytes: Range<usize>) -> Self {
        Self { skip: bytes.start, left: bytes.len() }
    }

    /// What lies in the range of the next part, which has `length` bytes.
    #[inline]
    pub(crate) fn next(&mut self, length: usize) -> Range<usize> {
        let start = self.skip.min(length);
        let count = (length - start).min(self.left);
        self.skip -= start;
        self.left -= count;
        start..start + count
    }
}

/// The payload of a message that is being sent.
pub(super) enum Payload {
    Leased(SendParts),
    /// A copy of what was unsent when the send ended early, from this byte on.
    Copied(usize, Vec<u8>),
}

impl Payload {
    /// Calls `each` with the slices that bytes `start..end` consist of.
    #[inline]
    pub(super) fn for_each_slice(&self, start: usize, end: usize, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Leased(parts) => {
                let mut cursor = PartCursor::new(start..end);
                for part in parts {
                    let bytes = cursor.next(part.len());
                    if !bytes.is_empty() {
                        each(&part.bytes()[bytes]);
                    }
                }
            }
            Self::Copied(first, bytes) => {
                let range = start.saturating_sub(*first)..end.saturating_sub(*first);
                each(bytes.get(range).unwrap_or_default());
            }
        }
    }

    /// Leaves a copy of bytes `start..bytes`; gives the parts back.
    pub(super) fn detach(&mut self, start: usize, bytes: usize) -> SendParts {
        let mut copy = Vec::with_capacity(bytes.saturating_sub(start));
        self.for_each_slice(start, bytes, |slice| copy.extend_from_slice(slice));
        std::mem::replace(self, Self::Copied(start, copy)).into_parts()
    }

    pub(super) fn into_parts(self) -> SendParts {
        match self {
            Self::Leased(parts) => parts,
            Self::Copied(..) => SendParts::new(),
        }
    }
}

/// Copies into this rank's ring, past the caches where that is faster.
pub(super) struct RingWriter {
    ring: OwnArea,
    store_policy: StorePolicy,
}

impl RingWriter {
    pub(super) fn new(ring: OwnArea) -> Self {
        let store_policy = StorePolicy::new(ring.bytes());
        Self { ring, store_policy }
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Copies bytes `start..end` of the payload to `position`, which counts on past the ring's end.
    pub(super) fn write(&mut self, position: u64, payload: &Payload, start: usize, end: usize) {
        let Self { ring, store_policy } = self;
        store_policy.write_timed(end - start, |streams| {
            let mut position = position;
            payload.for_each_slice(start, end, |slice| {
                put(ring, position, slice, |offset, bytes| blocks::write(ring, offset, bytes, streams));
                position += slice.len() as u64;
            });
            if streams {
                blocks::fence();
            }
        });
    }

    /// Like [`write`](Self::write), for up to 32 KiB: prefetching does not pay for so few lines.
    #[inline]
    pub(super) fn write_block(&mut self, position: u64, bytes: &[u8]) {
        let Self { ring, store_policy } = self;
        if bytes.len() < MIN_TIMED_BYTES {
            return write_ring_block(ring, position, bytes);
        }
        store_policy.write_timed(bytes.len(), |streams| {
            if streams {
                put(ring, position, bytes, |offset, bytes| ring.stream(offset, bytes));
            } else {
                write_ring_block(ring, position, bytes);
            }
        });
    }
}

/// Copies `bytes` to `position` of a ring; the position counts on past its end.
#[inline]
pub(super) fn write_ring_block(area: &OwnArea, position: u64, bytes: &[u8]) {
    put(area, position, bytes, |offset, bytes| area.write_block(offset, bytes));
}

/// Calls `copy` with the one or two slices of `bytes`, which fit the area, and their offsets.
#[inline]
fn put(area: &OwnArea, position: u64, bytes: &[u8], copy: impl Fn(usize, &[u8])) {
    let offset = (position % area.bytes() as u64) as usize;
    let (now, later) = bytes.split_at(bytes.len().min(area.bytes() - offset));
    copy(offset, now);
    if !later.is_empty() {
        copy(0, later);
    }
}

/// Copies `into.len()` bytes at `position` of a peer's ring.
#[inline]
pub(super) fn read_ring(ring: &PeerArea, position: u64, into: &mut [u8]) {
    copy_out(ring, position, into, blocks::read);
}

/// Like [`read_ring`], for up to 32 KiB.
#[inline]
pub(super) fn read_ring_block(area: &PeerArea, position: u64, into: &mut [u8]) {
    copy_out(area, position, into, PeerArea::read_block);
}

#[inline]
fn copy_out(area: &PeerArea, position: u64, into: &mut [u8], copy: impl Fn(&PeerArea, usize, &mut [u8])) {
    let offset = (position % area.bytes() as u64) as usize;
    let (now, later) = into.split_at_mut(into.len().min(area.bytes() - offset));
    copy(area, offset, now);
    if !later.is_empty() {
        copy(area, 0, later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::LocalGroup;

    #[test]
    fn a_ring_wraps_around() {
        let world = LocalGroup::in_process(2).unwrap();
        let ring = world[0].own_slots(0).area(0..16384);
        let theirs = world[1].peer_slots(0, 0).unwrap().area(0..16384);
        for is_slow in [false, true] {
            let store_policy = if is_slow { StorePolicy::slow() } else { StorePolicy::new(0) };
            let mut writer = RingWriter { ring: ring.clone(), store_policy };
            for position in [0, 64, 16320, 16384 + 16320, u64::from(u32::MAX) * 16384 + 64] {
                let bytes: Vec<u8> = (0..16000u32).map(|index| (index ^ position as u32) as u8).collect();
                writer.write(position, &Payload::Copied(100, bytes.clone()), 100, 16100);
                let mut found = vec![0; 16000];
                read_ring(&theirs, position, &mut found);
                assert_eq!(found, bytes, "at {position}");
                for length in [3000, MIN_TIMED_BYTES, 15000] {
                    let mut found = vec![0; length];
                    writer.write_block(position, &bytes[16000 - length..]);
                    read_ring_block(&theirs, position, &mut found);
                    assert_eq!(found, bytes[16000 - length..], "at {position}");
                }
            }
        }
    }

    #[test]
    fn detaching_copies_the_unsent_bytes() {
        let mut payload = Payload::Copied(10, vec![1, 2, 3, 4]);
        payload.detach(12, 14);
        let mut rest = Vec::new();
        payload.for_each_slice(12, 14, |slice| rest.extend_from_slice(slice));
        assert_eq!(rest, [3, 4]);
    }
}
