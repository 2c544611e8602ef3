//! Eager messages that lie as a whole in descriptors, the fast box or the ring.

use super::super::descriptor::{
    Header, INLINE_AT, INLINE_BYTES, Kind, MAX_FAST_BOX_BYTES, MAX_IN_RING_BYTES, SHORT_INLINE_AT,
    SHORT_INLINE_BYTES,
};
use super::super::payload::read_ring_block;
use super::super::receives::Delivery;
use super::{HEADER_BYTES, Receiver, Target, count_copy};
use crate::limits::cost;
use crate::shm::{LINE_BYTES, PeerArea};
use crate::{Result, Statistics, Tag};

#[derive(Clone, Copy)]
enum Source {
    /// In its descriptor, from this offset on.
    Descriptor(usize),
    /// In the fast box, from this position on.
    FastBox(u64),
    Ring(u64),
}

impl Receiver {
    pub(super) fn take_eager(&mut self, at: usize, stamp: u64, counts: &mut Statistics) -> Result<()> {
        let header = self.decode(at, stamp, Kind::Eager)?;
        let bytes = header.bytes();
        self.take_credit(bytes)?;
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        let source = self.source(at + INLINE_AT, bytes, INLINE_BYTES);
        match self.match_receive(&header) {
            Target::Posted(key) => {
                let mut start = 0;
                for mut slice in self.receives.slices(key, &header, 0, bytes) {
                    source.read((&self.descriptors, &self.ring, &self.fast_box), start, &mut slice);
                    start += slice.len();
                }
                count_copy(bytes, counts);
                counts.messages_received += 1;
                self.receives.end(key, Ok(header.arrival()));
            }
            Target::Unexpected(_) => {
                self.keep(header, source, counts);
                return Ok(());
            }
            Target::Discarded => {}
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    #[inline]
    pub(super) fn take_short(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes > MAX_FAST_BOX_BYTES {
            return Err(self.protocol_error(format!(
                "a short message of {bytes} bytes, expected at most {MAX_FAST_BOX_BYTES}"
            )));
        }
        let source = self.source(at + SHORT_INLINE_AT, bytes, SHORT_INLINE_BYTES);
        self.take_repeating(at, bytes, source, counts)
    }

    pub(super) fn take_in_ring(&mut self, at: usize, bytes: usize, counts: &mut Statistics) -> Result<()> {
        if bytes <= SHORT_INLINE_BYTES || bytes > MAX_IN_RING_BYTES {
            let expected = format!("expected {} to {MAX_IN_RING_BYTES}", SHORT_INLINE_BYTES + 1);
            return Err(self.protocol_error(format!("a message of {bytes} bytes in the ring, {expected}")));
        }
        let source = Source::Ring(self.ring_taken);
        self.ring_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        self.take_repeating(at, bytes, source, counts)
    }

    /// The source of a message that fits its descriptor up to `room` bytes at `at`, else the fast box.
    #[inline]
    fn source(&mut self, at: usize, bytes: usize, room: usize) -> Source {
        if bytes <= room {
            return Source::Descriptor(at);
        }
        let position = self.fast_box_taken;
        self.fast_box_taken += bytes.next_multiple_of(LINE_BYTES) as u64;
        Source::FastBox(position)
    }

    /// Takes a message of one part that repeats signature and mark.
    #[inline(always)]
    fn take_repeating(
        &mut self,
        at: usize,
        bytes: usize,
        source: Source,
        counts: &mut Statistics,
    ) -> Result<()> {
        let tag = Tag(self.descriptors.load(at + 8));
        if tag.source() != self.peer {
            return Err(self.protocol_error(format!(
                "a message of {bytes} bytes with the tag of rank {}",
                tag.source()
            )));
        }
        self.take_credit(bytes)?;
        let (signature, mark) = self.last;
        let (descriptors, ring, fast_box) = (&self.descriptors, &self.ring, &self.fast_box);
        let fill = |part: &mut [u8]| source.read((descriptors, ring, fast_box), 0, part);
        let delivery = self.receives.deliver((tag, signature, mark), bytes, fill);
        counts.bytes_received += HEADER_BYTES + bytes as u64;
        match delivery {
            Delivery::Delivered => {
                count_copy(bytes, counts);
                counts.messages_received += 1;
            }
            Delivery::Rejected => {}
            Delivery::Unexpected => {
                self.keep(Header { tag, signature, mark, parts: 1, lengths: [bytes, 0, 0] }, source, counts);
                return Ok(());
            }
        }
        self.eager_taken += cost(bytes);
        Ok(())
    }

    #[cold]
    fn keep(&mut self, header: Header, source: Source, counts: &mut Statistics) {
        let mut bytes = vec![0; header.bytes()];
        source.read((&self.descriptors, &self.ring, &self.fast_box), 0, &mut bytes);
        count_copy(bytes.len(), counts);
        self.receives.keep(header, bytes);
    }
}

impl Source {
    /// Copies the payload from byte `start` on.
    #[inline]
    fn read(
        self,
        (descriptors, ring, fast_box): (&PeerArea, &PeerArea, &PeerArea),
        start: usize,
        into: &mut [u8],
    ) {
        match self {
            Self::Descriptor(at) => descriptors.read_block(at + start, into),
            Self::FastBox(position) => read_ring_block(fast_box, position + start as u64, into),
            Self::Ring(position) => read_ring_block(ring, position + start as u64, into),
        }
    }
}
