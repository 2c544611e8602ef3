//! Short and middling messages: they say of themselves only what differs from the one before, and lie in
//! their cells, in the pocket or, as a whole, in the ring.

use super::super::cell::{Head, INLINE_BYTES, MIDDLING_BYTES, POCKETED_BYTES, SHORT_AT};
use super::super::payload::read_little;
use super::super::receives::Delivery;
use super::{HEADER_BYTES, Receiver, count_copy};
use crate::limits::cost;
use crate::shm::{LINE_BYTES, PeerArea};
use crate::{Result, Statistics, Tag};

/// Where the payload of a message lies.
#[derive(Clone, Copy)]
enum Source {
    /// In the cell at this offset.
    Cell(usize),
    /// In the pocket, from this position on.
    Pocket(u64),
    /// In the ring, from this position on.
    Ring(u64),
}

impl Receiver {
    /// A short message of so many bytes, by its word.
    #[inline]
    pub(super) fn take_short(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes > INLINE_BYTES {
            return Err(
                self.refusal(format!("a short message of {bytes} bytes, expected at most {INLINE_BYTES}"))
            );
        }
        self.take_like_the_last(at, bytes, Source::Cell(at), counts)
    }

    /// A message of so many bytes in the pocket, likewise.
    #[inline]
    pub(super) fn take_pocketed(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes > POCKETED_BYTES {
            return Err(
                self.refusal(format!("{bytes} bytes in the pocket, expected at most {POCKETED_BYTES}"))
            );
        }
        let source = Source::Pocket(self.pocket_taken);
        self.pocket_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        self.take_like_the_last(at, bytes, source, counts)
    }

    /// A middling message of so many bytes, likewise.
    pub(super) fn take_middling(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes <= INLINE_BYTES || bytes > MIDDLING_BYTES {
            let expected = format!("expected {} to {MIDDLING_BYTES}", INLINE_BYTES + 1);
            return Err(self.refusal(format!("a middling message of {bytes} bytes, {expected}")));
        }
        let source = Source::Ring(self.ring_taken);
        self.ring_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        self.take_like_the_last(at, bytes, source, counts)
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
        let fill = |place: &mut [u8]| source.read((cells, ring, pocket), place);
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
        source.read((&self.cells, &self.ring, &self.pocket), &mut kept);
        count_copy(kept.len(), counts);
        self.receives.keep(head, kept);
    }
}

impl Source {
    /// Copies the payload of a message.
    #[inline]
    fn read(self, (cells, ring, pocket): (&PeerArea, &PeerArea, &PeerArea), into: &mut [u8]) {
        match self {
            Self::Cell(at) => cells.read_block(at + SHORT_AT, into),
            Self::Pocket(position) => read_little(pocket, position, into),
            Self::Ring(position) => read_little(ring, position, into),
        }
    }
}
