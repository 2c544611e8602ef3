//! Flow control: room in the channel, and credit.

use super::super::descriptor::{DESCRIPTORS, FAST_BOX_BYTES, INLINE_BYTES, MAX_FAST_BOX_BYTES};
use super::super::{
    CAN_READ_AT, DESCRIPTORS_TAKEN_AT, EAGER_TAKEN_AT, FAST_BOX_TAKEN_AT, MIN_READABLE_BYTES, RING_TAKEN_AT,
};
use super::Sender;
use crate::Result;
use crate::limits::{CREDIT_BYTES, MAX_EAGER_BYTES, cost};
use crate::shm::LINE_BYTES;

/// Up to so many bytes, an RTS never pays.
const ALWAYS_EAGER_BYTES: usize = 8 << 10;

/// Descriptors that are written before a full fast box is checked again.
const DESCRIPTORS_UNTIL_RETRY: u64 = 16;

impl Sender {
    #[inline]
    pub(super) fn has_descriptor(&mut self) -> bool {
        self.has_after_update(|sender| sender.position - sender.descriptors_taken < DESCRIPTORS)
    }

    #[inline]
    pub(super) fn has_ring(&mut self, bytes: usize) -> bool {
        let bytes = bytes.next_multiple_of(LINE_BYTES) as u64;
        self.has_after_update(|sender| {
            sender.ring_written - sender.ring_taken + bytes <= sender.ring.bytes() as u64
        })
    }

    /// Whether a message with a header finds room in its descriptor or in the fast box.
    #[inline]
    pub(super) fn fits_eagerly(&mut self, bytes: usize) -> bool {
        bytes <= INLINE_BYTES || self.has_fast_box(bytes)
    }

    /// Whether a message may go to the fast box and finds room there. As there are other ways, a full fast
    /// box is not checked each time.
    #[inline]
    pub(super) fn has_fast_box(&mut self, bytes: usize) -> bool {
        let has = |sender: &Self| {
            let used = sender.fast_box_written - sender.fast_box_taken;
            used + bytes.next_multiple_of(LINE_BYTES) as u64 <= FAST_BOX_BYTES as u64
        };
        if bytes > MAX_FAST_BOX_BYTES || has(self) {
            return bytes <= MAX_FAST_BOX_BYTES;
        }
        if self.position < self.fast_box_full_until {
            return false;
        }
        let has_room = self.read_acknowledgements().is_ok() && has(self);
        if !has_room {
            self.fast_box_full_until = self.position + DESCRIPTORS_UNTIL_RETRY;
        }
        has_room
    }

    #[inline]
    pub(super) fn has_credit(&mut self, bytes: usize) -> bool {
        let has = |sender: &Self| sender.eager_sent - sender.eager_taken + cost(bytes) <= CREDIT_BYTES;
        self.has_after_update(has)
    }

    /// Whether to send so many bytes eagerly: they are few, or likely to be expected, or can't be read in
    /// place. An unexpected eager message costs the receiver one extra copy; a rendezvous message does not.
    #[inline]
    pub(super) fn should_send_eagerly(&mut self, bytes: usize) -> bool {
        let is_better = bytes <= ALWAYS_EAGER_BYTES || self.peer_has_caught_up() || !self.is_readable(bytes);
        is_better && bytes <= MAX_EAGER_BYTES && self.has_credit(bytes)
    }

    /// Whether the peer can read a message of so many bytes after an RTS.
    pub(super) fn is_readable(&self, bytes: usize) -> bool {
        bytes >= MIN_READABLE_BYTES && self.guards != u64::MAX && self.theirs.load(CAN_READ_AT) != 0
    }

    /// Whether the peer has received everything that was sent.
    fn peer_has_caught_up(&mut self) -> bool {
        let has = |sender: &Self| sender.eager_sent == sender.eager_taken;
        let is_idle = self.queue.is_empty() && self.streams.is_empty() && self.rendezvous.is_empty();
        is_idle && self.has_after_update(has)
    }

    /// Whether this rank has something by the acknowledgements read so far, or by new ones.
    #[inline]
    fn has_after_update(&mut self, has: impl Fn(&Self) -> bool) -> bool {
        has(self) || (self.read_acknowledgements().is_ok() && has(self))
    }

    /// Reads and checks what the peer has acknowledged.
    pub(super) fn read_acknowledgements(&mut self) -> Result<()> {
        let descriptors = self.theirs.load(DESCRIPTORS_TAKEN_AT);
        let ring = self.theirs.load(RING_TAKEN_AT);
        let eager = self.theirs.load(EAGER_TAKEN_AT);
        let fast_box = self.theirs.load(FAST_BOX_TAKEN_AT);
        let is_true = (self.descriptors_taken..=self.position).contains(&descriptors)
            && (self.ring_taken..=self.ring_written).contains(&ring)
            && (self.eager_taken..=self.eager_sent).contains(&eager)
            && (self.fast_box_taken..=self.fast_box_written).contains(&fast_box);
        if !is_true {
            let what = format!(
                "{descriptors} descriptors, {ring}, {fast_box} and {eager} bytes taken, of {}, {}, {} and {}",
                self.position, self.ring_written, self.fast_box_written, self.eager_sent
            );
            return Err(self.protocol_error(what));
        }
        (self.descriptors_taken, self.eager_taken) = (descriptors, eager);
        (self.ring_taken, self.fast_box_taken) = (ring, fast_box);
        Ok(())
    }
}
