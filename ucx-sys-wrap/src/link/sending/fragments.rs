//! Fragments: messages above the fast box's limit go through the ring fragment by fragment.

use super::super::descriptor::{DESCRIPTORS, Header, Kind};
use super::{Sender, Stream};
use crate::Statistics;
use crate::shm::LINE_BYTES;

/// A fragment has about a quarter of its message, within these bytes.
const MIN_FRAGMENT_BYTES: usize = 2 << 10;
const MAX_FRAGMENT_BYTES: usize = 64 << 10;

/// Descriptors that fragments leave to messages.
const DESCRIPTORS_FOR_MESSAGES: u64 = 16;

/// After so many descriptors, a waiting fragment goes before the next message.
const DESCRIPTORS_BEFORE_FRAGMENT: u64 = 16;

impl Sender {
    /// Writes the header of a message that goes through the ring, with the first fragment if no other message
    /// is on its way.
    pub(super) fn write_first(&mut self, header: &Header, message: Stream, counts: &mut Statistics) {
        counts.bytes_sent += LINE_BYTES as u64;
        let is_first = self.streams.is_empty();
        self.streams.push_back(message);
        let first = if is_first { self.copy_fragment(counts).unwrap_or(0) } else { 0 };
        self.publish_header(Kind::First, header, first.div_ceil(LINE_BYTES) as u16, header.wide_words());
        self.advance(first);
    }

    /// Writes the next fragment of the first message, if there is room; returns whether it did.
    pub(super) fn write_fragment(&mut self, counts: &mut Statistics) -> bool {
        let Some(count) = self.copy_fragment(counts) else { return false };
        self.publish(Kind::Fragment, 0, 0, [count as u64]);
        self.advance(count);
        true
    }

    /// Copies the next fragment of the first message into the ring, if there is room; returns its bytes.
    fn copy_fragment(&mut self, counts: &mut Statistics) -> Option<usize> {
        let stream = self.streams.front()?;
        let wanted = (stream.bytes / 4)
            .next_power_of_two()
            .clamp(MIN_FRAGMENT_BYTES, MAX_FRAGMENT_BYTES.min(self.ring.bytes() / 8));
        let count = wanted.min(stream.bytes - stream.sent);
        let room = self.ring.bytes() as u64 - (self.ring_written - self.ring_taken);
        if count as u64 > room {
            return None;
        }
        // A copy: through the ring.
        self.ring.write(self.ring_written, &stream.payload, stream.sent, stream.sent + count);
        self.ring_written += count.next_multiple_of(LINE_BYTES) as u64;
        counts.copies += 1;
        counts.bytes_copied += count as u64;
        counts.bytes_sent += count as u64;
        Some(count)
    }

    fn advance(&mut self, count: usize) {
        self.defer_fragment();
        if let Some(stream) = self.streams.front_mut() {
            stream.sent += count;
            if stream.sent == stream.bytes
                && let Some(stream) = self.streams.pop_front()
            {
                self.end(stream, Ok(()));
            }
        }
    }

    #[inline]
    pub(super) fn may_bypass_queue(&mut self) -> bool {
        self.queue.is_empty() && !self.is_fragment_due()
    }

    /// Whether a fragment must go before the next message, so that small messages without end do not starve a
    /// large one.
    #[inline]
    pub(super) fn is_fragment_due(&mut self) -> bool {
        if self.position < self.fragment_due {
            return false;
        }
        let waits = !self.streams.is_empty();
        if !waits {
            self.defer_fragment();
        }
        waits
    }

    #[inline]
    pub(super) fn defer_fragment(&mut self) {
        self.fragment_due = self.position + DESCRIPTORS_BEFORE_FRAGMENT;
    }

    pub(super) fn has_descriptor_for_fragment(&self) -> bool {
        self.position - self.descriptors_taken < DESCRIPTORS - DESCRIPTORS_FOR_MESSAGES
    }
}
