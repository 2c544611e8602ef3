//! The payload of a message on its way out, and the ring that it goes through.

use crate::shm::{OwnArea, PeerArea, Regime, TELLING_BYTES, blocks};
use crate::transport::SendParts;

/// The payload of a message that is being sent.
pub(super) enum Payload {
    Leased(SendParts),
    /// What was left of a message whose send has ended early, from this byte on.
    Copied(usize, Vec<u8>),
}

impl Payload {
    /// Calls `each` with the stretches that bytes `start..end` of the payload consist of.
    #[inline]
    pub(super) fn stretches(&self, start: usize, end: usize, mut each: impl FnMut(&[u8])) {
        match self {
            Self::Leased(parts) => {
                let (mut skip, mut left) = (start, end.saturating_sub(start));
                for part in parts {
                    let from = skip.min(part.len());
                    let count = (part.len() - from).min(left);
                    skip -= from;
                    left -= count;
                    if count > 0 {
                        each(&part.bytes()[from..from + count]);
                    }
                }
            }
            Self::Copied(first, bytes) => {
                let place = start.saturating_sub(*first)..end.saturating_sub(*first);
                each(bytes.get(place).unwrap_or_default());
            }
        }
    }

    /// Leaves a copy of what follows the first `start` bytes, of `bytes` in all; gives the parts back.
    pub(super) fn detach(&mut self, start: usize, bytes: usize) -> SendParts {
        let mut copy = Vec::with_capacity(bytes.saturating_sub(start));
        self.stretches(start, bytes, |stretch| copy.extend_from_slice(stretch));
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
    regime: Regime,
}

impl RingWriter {
    pub(super) fn new(ring: OwnArea) -> Self {
        let regime = Regime::new(ring.bytes());
        Self { ring, regime }
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Copies bytes `start..end` of the payload to `position` of the ring, which counts on.
    pub(super) fn write(&mut self, position: u64, payload: &Payload, start: usize, end: usize) {
        let Self { ring, regime } = self;
        regime.time(end - start, |streams| {
            let mut position = position;
            payload.stretches(start, end, |stretch| {
                put(ring, position, stretch, |offset, bytes| blocks::write(ring, offset, bytes, streams));
                position += stretch.len() as u64;
            });
            if streams {
                blocks::fence();
            }
        });
    }

    /// As [`write`](Self::write), for up to 32 KiB, whose lines are not worth asking for ahead.
    #[inline]
    pub(super) fn write_whole(&mut self, position: u64, bytes: &[u8]) {
        let Self { ring, regime } = self;
        if bytes.len() < TELLING_BYTES {
            return write_round(ring, position, bytes);
        }
        regime.time(bytes.len(), |streams| {
            if streams {
                put(ring, position, bytes, |offset, bytes| ring.stream(offset, bytes));
            } else {
                write_round(ring, position, bytes);
            }
        });
    }
}

/// Copies `bytes` to `position` of an area that is written round and round; the position counts on.
#[inline]
pub(super) fn write_round(area: &OwnArea, position: u64, bytes: &[u8]) {
    put(area, position, bytes, |offset, bytes| area.write_block(offset, bytes));
}

/// Has `copy` copy the stretches of `bytes`, of which there are not more than the area has, to their offsets.
#[inline]
fn put(area: &OwnArea, position: u64, bytes: &[u8], copy: impl Fn(usize, &[u8])) {
    let offset = (position % area.bytes() as u64) as usize;
    let (now, later) = bytes.split_at(bytes.len().min(area.bytes() - offset));
    copy(offset, now);
    if !later.is_empty() {
        copy(0, later);
    }
}

/// Copies `into.len()` bytes at `position` of a neighbour's ring, which counts on.
#[inline]
pub(super) fn read_ring(ring: &PeerArea, position: u64, into: &mut [u8]) {
    copy_out(ring, position, into, blocks::read);
}

/// As [`read_ring`], for up to 32 KiB of any area.
#[inline]
pub(super) fn read_round(area: &PeerArea, position: u64, into: &mut [u8]) {
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
    use crate::shm::Neighbourhood;

    #[test]
    fn a_ring_goes_round() {
        let world = Neighbourhood::in_process(2).unwrap();
        let ring = world[0].own_slots().area(0..16384);
        let theirs = world[1].peer_slots(0).unwrap().area(0..16384);
        for is_slow in [false, true] {
            let regime = if is_slow { Regime::slow() } else { Regime::new(0) };
            let mut writer = RingWriter { ring: ring.clone(), regime };
            for position in [0, 64, 16320, 16384 + 16320, u64::from(u32::MAX) * 16384 + 64] {
                let bytes: Vec<u8> = (0..16000u32).map(|index| (index ^ position as u32) as u8).collect();
                writer.write(position, &Payload::Copied(100, bytes.clone()), 100, 16100);
                let mut found = vec![0; 16000];
                read_ring(&theirs, position, &mut found);
                assert_eq!(found, bytes, "at {position}");
                for length in [3000, TELLING_BYTES, 15000] {
                    let mut found = vec![0; length];
                    writer.write_whole(position, &bytes[16000 - length..]);
                    read_round(&theirs, position, &mut found);
                    assert_eq!(found, bytes[16000 - length..], "at {position}");
                }
            }
        }
    }

    #[test]
    fn a_copy_of_the_rest_is_the_rest() {
        let mut payload = Payload::Copied(10, vec![1, 2, 3, 4]);
        payload.detach(12, 14);
        let mut rest = Vec::new();
        payload.stretches(12, 14, |stretch| rest.extend_from_slice(stretch));
        assert_eq!(rest, [3, 4]);
    }
}
