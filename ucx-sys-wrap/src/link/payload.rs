//! The payload of a message on its way out, and the ring that it goes through.

use std::time::Instant;

use crate::shm::{LINE_BYTES, OwnArea, PeerArea, blocks};
use crate::transport::SendParts;

/// Nanoseconds a line above which an ordinary copy into the ring is slow: the lines come from the other
/// processor's cache at that price, which stores past the caches do not pay.
const SLOW_LINE: u64 = 14;

/// Pieces that are timed before it is decided how the next are copied.
const TIMED: u32 = 4;
const DECIDED: u32 = 256;

/// A piece of fewer bytes says little about the price of a line.
const LEAST_TIMED: usize = 8 << 10;

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

/// Copies into this rank's ring, the way that is faster now.
pub(super) struct RingWriter {
    ring: OwnArea,
    /// Bytes of ordinary copies that say nothing yet: once round the ring, whose lines lie in memory after
    /// stores past the caches, and whose pages are not there at first.
    untold: usize,
    /// Pieces until the next decision, and how they are copied.
    left: u32,
    is_streaming: bool,
    /// The least price of a line in the pieces that were timed, in nanoseconds.
    cheapest: u64,
}

impl RingWriter {
    pub(super) fn new(ring: OwnArea) -> Self {
        let untold = ring.bytes();
        Self { ring, untold, left: TIMED, is_streaming: false, cheapest: u64::MAX }
    }

    pub(super) fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Copies bytes `start..end` of the payload to `position` of the ring, which counts on.
    pub(super) fn write(&mut self, position: u64, payload: &Payload, start: usize, end: usize) {
        let begun = self.begin(end - start);
        let mut position = position;
        payload.stretches(start, end, |stretch| {
            self.copy(position, stretch, self.is_streaming, |ring, offset, bytes| {
                blocks::write(ring, offset, bytes, false)
            });
            position += stretch.len() as u64;
        });
        self.end(end - start, begun);
    }

    /// As [`write`](Self::write), for up to 32 KiB. No lines are asked for ahead: on an EPYC that takes
    /// longer than it spares.
    #[inline]
    pub(super) fn write_little(&mut self, position: u64, bytes: &[u8]) {
        if bytes.len() < LEAST_TIMED {
            self.copy(position, bytes, false, OwnArea::write_wide);
            return;
        }
        let begun = self.begin(bytes.len());
        self.copy(position, bytes, self.is_streaming, OwnArea::write_wide);
        self.end(bytes.len(), begun);
    }

    /// When a piece begins, if it is to be timed.
    #[inline]
    fn begin(&self, bytes: usize) -> Option<Instant> {
        let is_telling = self.untold == 0 && bytes >= LEAST_TIMED;
        (is_telling && !self.is_streaming && self.left <= TIMED).then(Instant::now)
    }

    /// A piece was copied.
    fn end(&mut self, bytes: usize, begun: Option<Instant>) {
        if !self.is_streaming && self.untold > 0 {
            self.untold = self.untold.saturating_sub(bytes);
        } else if bytes >= LEAST_TIMED {
            self.learn(begun.map(|begun| begun.elapsed().as_nanos() as u64 / (bytes / LINE_BYTES) as u64));
        }
    }

    /// Copies `bytes`, of which there are not more than the ring has, to `position`: past the caches, or by
    /// `copy`.
    #[inline]
    fn copy(&self, position: u64, bytes: &[u8], streams: bool, copy: impl Fn(&OwnArea, usize, &[u8])) {
        let offset = (position % self.ring.bytes() as u64) as usize;
        let (now, later) = bytes.split_at(bytes.len().min(self.ring.bytes() - offset));
        for (offset, bytes) in [(offset, now), (0, later)] {
            if streams && !bytes.is_empty() {
                self.ring.stream(offset, bytes);
            } else {
                copy(&self.ring, offset, bytes);
            }
        }
    }

    /// Takes note of a piece, and of the price of its lines if it was timed.
    fn learn(&mut self, price: Option<u64>) {
        self.cheapest = self.cheapest.min(price.unwrap_or(u64::MAX));
        self.left = self.left.saturating_sub(1);
        if self.left > 0 {
            return;
        }
        if self.is_streaming {
            // Time ordinary copies again.
            (self.is_streaming, self.left, self.untold) = (false, TIMED, self.ring.bytes());
        } else {
            self.is_streaming = self.cheapest != u64::MAX && self.cheapest > SLOW_LINE;
            self.left = DECIDED;
        }
        self.cheapest = u64::MAX;
    }
}

/// Copies `into.len()` bytes at `position` of a neighbour's ring, which counts on.
#[inline]
pub(super) fn read_ring(ring: &PeerArea, position: u64, into: &mut [u8]) {
    copy_out(ring, position, into, blocks::read);
}

/// As [`read_ring`], for up to 32 KiB.
#[inline]
pub(super) fn read_little(ring: &PeerArea, position: u64, into: &mut [u8]) {
    copy_out(ring, position, into, PeerArea::read_wide);
}

#[inline]
fn copy_out(ring: &PeerArea, position: u64, into: &mut [u8], copy: impl Fn(&PeerArea, usize, &mut [u8])) {
    let offset = (position % ring.bytes() as u64) as usize;
    let (now, later) = into.split_at_mut(into.len().min(ring.bytes() - offset));
    copy(ring, offset, now);
    copy(ring, 0, later);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::Neighbourhood;

    #[test]
    fn slow_lines_are_streamed_and_tried_again() {
        let world = Neighbourhood::in_process(2).unwrap();
        let mut writer = RingWriter::new(world[0].own_slots());
        for _ in 0..TIMED {
            assert!(!writer.is_streaming);
            writer.learn(Some(SLOW_LINE + 1));
        }
        for _ in 0..DECIDED {
            assert!(writer.is_streaming);
            writer.learn(None);
        }
        // Too little to say anything.
        writer.write_little(0, &[0; LEAST_TIMED - 1]);
        assert_eq!(writer.left, TIMED);
        writer.learn(Some(100));
        writer.learn(Some(3));
        (0..TIMED - 2).for_each(|_| writer.learn(Some(50)));
        assert!(!writer.is_streaming, "the cheapest counts");
    }

    #[test]
    fn a_ring_goes_round() {
        let world = Neighbourhood::in_process(2).unwrap();
        let ring = world[0].own_slots().area(0..4096);
        let theirs = world[1].peer_slots(0).unwrap().area(0..4096);
        for is_streaming in [false, true] {
            let mut writer = RingWriter::new(ring.clone());
            writer.is_streaming = is_streaming;
            for position in [0, 64, 4032, 4096 + 4032, u64::from(u32::MAX) * 4096 + 64] {
                let bytes: Vec<u8> = (0..4000u32).map(|index| (index ^ position as u32) as u8).collect();
                writer.write(position, &Payload::Copied(100, bytes.clone()), 100, 4100);
                let mut found = vec![0; 4000];
                read_ring(&theirs, position, &mut found);
                assert_eq!(found, bytes, "at {position}");
                writer.write_little(position, &bytes[..3000]);
                read_little(&theirs, position, &mut found[1000..]);
                assert_eq!(found[1000..], bytes[..3000], "at {position}");
            }
        }
    }

    /// Pages that are not there yet, and lines that stores past the caches have sent to memory, are slow
    /// once.
    #[test]
    fn nothing_is_told_by_the_first_way_round_the_ring() {
        let world = Neighbourhood::in_process(2).unwrap();
        let mut writer = RingWriter::new(world[0].own_slots().area(0..4 * LEAST_TIMED));
        let theirs = world[1].peer_slots(0).unwrap().area(0..4 * LEAST_TIMED);
        let mut position = 0;
        let mut write = |writer: &mut RingWriter, count: u32| {
            for turn in 0..count {
                let bytes = vec![turn as u8; LEAST_TIMED + 64 * (turn as usize % 8)];
                writer.write_little(position, &bytes);
                let mut found = vec![0; bytes.len()];
                read_little(&theirs, position, &mut found);
                assert_eq!(found, bytes);
                position += bytes.len() as u64;
            }
        };
        for _ in 0..2 {
            write(&mut writer, 4);
            assert!(!writer.is_streaming && writer.left == TIMED && writer.cheapest == u64::MAX);
            write(&mut writer, TIMED);
            assert_eq!(writer.left, DECIDED);
            writer.is_streaming = true;
            write(&mut writer, DECIDED);
            assert!(!writer.is_streaming, "ordinary copies are timed again");
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
