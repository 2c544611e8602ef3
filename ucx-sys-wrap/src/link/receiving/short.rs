//! Messages that lie as a whole in their cells, in the pocket or in the ring. Short and middling ones say of
//! themselves only what differs from the one before.

use super::super::cell::{
    Head, Kind, MESSAGE_AT, MESSAGE_BYTES, MIDDLING_BYTES, POCKETED_BYTES, SHORT_AT, SHORT_BYTES,
};
use super::super::payload::read_round;
use super::super::receives::Delivery;
use super::{HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::cost;
use crate::shm::{LINE_BYTES, PeerArea};
use crate::{Result, Statistics, Tag};

/// Where the payload of a message lies.
#[derive(Clone, Copy)]
enum Source {
    /// In its cell, from this offset on.
    Cell(usize),
    /// In the pocket, from this position on.
    Pocket(u64),
    /// In the ring, from this position on.
    Ring(u64),
}

impl Receiver {
    /// A message that says all of itself.
    pub(super) fn take_message(&mut self, at: usize, stamp: u64, counts: &mut Statistics) -> Result<()> {
        let head = self.decode(at, stamp, Kind::Message)?;
        let bytes = head.bytes();
        self.receive_eager(bytes)?;
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        let source = self.source(at + MESSAGE_AT, bytes, MESSAGE_BYTES);
        match self.matched(&head) {
            Target::Posted(key) => {
                let mut start = 0;
                for mut place in self.receives.places(key, &head, 0, bytes) {
                    source.read((&self.cells, &self.ring, &self.pocket), start, &mut place);
                    start += place.len();
                }
                count_copy(bytes, counts);
                counts.messages_received += 1;
                self.receives.end(key, Ok(head.arrival()));
            }
            Target::Kept(_) => {
                self.keep(head, source, counts);
                return Ok(());
            }
            Target::Discarded => {}
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    /// A short message of so many bytes.
    #[inline]
    pub(super) fn take_short(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes > POCKETED_BYTES {
            return Err(
                self.refusal(format!("a short message of {bytes} bytes, expected at most {POCKETED_BYTES}"))
            );
        }
        let source = self.source(at + SHORT_AT, bytes, SHORT_BYTES);
        self.take_like_the_last(at, bytes, source, counts)
    }

    /// A middling message of so many bytes.
    pub(super) fn take_middling(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes <= SHORT_BYTES || bytes > MIDDLING_BYTES {
            let expected = format!("expected {} to {MIDDLING_BYTES}", SHORT_BYTES + 1);
            return Err(self.refusal(format!("a middling message of {bytes} bytes, {expected}")));
        }
        let source = Source::Ring(self.ring_taken);
        self.ring_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        self.take_like_the_last(at, bytes, source, counts)
    }

    /// Where a message lies that has room for `room` bytes at `at` of its cell: there or in the pocket.
    #[inline]
    fn source(&mut self, at: usize, bytes: usize, room: usize) -> Source {
        if bytes <= room {
            return Source::Cell(at);
        }
        let position = self.pocket_taken;
        self.pocket_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        Source::Pocket(position)
    }

    /// A message of one part that has signature and mark of the last one that said them.
    #[inline(always)]
    fn take_like_the_last(
        &mut self,
        at: usize,
        bytes: usize,
        source: Source,
        counts: &mut Statistics,
    ) -> Result<()> {
        let tag = Tag(self.cells.load(at + 8));
        if tag.source() != self.peer {
            return Err(
                self.refusal(format!("a message of {bytes} bytes with the tag of rank {}", tag.source()))
            );
        }
        self.receive_eager(bytes)?;
        let (signature, mark) = self.last;
        let (cells, ring, pocket) = (&self.cells, &self.ring, &self.pocket);
        let fill = |place: &mut [u8]| source.read((cells, ring, pocket), 0, place);
        let delivery = self.receives.deliver((tag, signature, mark), bytes, fill);
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        match delivery {
            Delivery::Delivered => {
                count_copy(bytes, counts);
                counts.messages_received += 1;
            }
            Delivery::Refused => {}
            Delivery::Unexpected => {
                self.keep(Head { tag, signature, mark, parts: 1, lengths: [bytes, 0, 0] }, source, counts);
                return Ok(());
            }
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    /// Keeps a message whose receive is not posted yet.
    #[cold]
    fn keep(&mut self, head: Head, source: Source, counts: &mut Statistics) {
        let mut kept = vec![0; head.bytes()];
        source.read((&self.cells, &self.ring, &self.pocket), 0, &mut kept);
        count_copy(kept.len(), counts);
        self.receives.keep(head, kept);
    }
}

impl Source {
    /// Copies the payload of a message from byte `start` on.
    #[inline]
    fn read(self, (cells, ring, pocket): (&PeerArea, &PeerArea, &PeerArea), start: usize, into: &mut [u8]) {
        match self {
            Self::Cell(at) => cells.read_block(at + start, into),
            Self::Pocket(position) => read_round(pocket, position + start as u64, into),
            Self::Ring(position) => read_round(ring, position + start as u64, into),
        }
    }
}
