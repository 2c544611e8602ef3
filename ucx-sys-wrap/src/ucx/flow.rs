//! How much may be on its way to a peer that it has not asked for.
//!
//! A message whose payload is sent at once is copied by its receiver if no receive waits for it. So that this memory is
//! bounded, such messages count against a credit of [`CREDIT_BYTES`] from one rank to another; a sender without credit
//! only offers its payload, which the receiver fetches when it is wanted. So no message has to wait for another.
//! The receiver says in every message, or in one for that purpose, how much it has consumed: in blocks of
//! [`BLOCK_BYTES`], modulo 256, which is more than the credit has blocks.
//!
//! Messages are taken in the order in which they were sent, so a message need not say what the one before has said: its
//! signature.

use super::header::Header;
use crate::Signature;

/// What may be on its way from one rank to another, in bytes (1 MiB).
pub const CREDIT_BYTES: u64 = 1 << 20;

const BLOCK_BYTES: u64 = CREDIT_BYTES / 64;

/// After this many blocks that a receiver had no other occasion to tell, it sends word.
const TELL_BLOCKS: u64 = 16;

/// What a message costs its receiver beside its payload.
const OVERHEAD_BYTES: u64 = 256;

/// What passes between this rank and one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Messages sent.
    pub(super) sent_count: u32,
    /// Messages taken.
    pub(super) taken_count: u32,
    /// Bytes sent that counted.
    sent: u64,
    /// Blocks of those that the peer has consumed, as far as this rank knows.
    credited: u64,
    /// Bytes consumed of those that the peer has sent.
    consumed: u64,
    /// Blocks of those that the peer was told of.
    told: u64,
    /// The signatures of the last message sent, and of the last one taken.
    pub(super) sent_signature: Signature,
    pub(super) taken_signature: Signature,
}

/// What a message with `payload_bytes` counts.
#[inline]
pub(super) fn cost(payload_bytes: usize) -> u64 {
    payload_bytes as u64 + OVERHEAD_BYTES
}

impl Flow {
    /// Numbers a message that is sent now.
    #[inline]
    pub(super) fn next_sent(&mut self) -> u32 {
        let serial = self.sent_count;
        self.sent_count = serial.wrapping_add(1);
        serial
    }

    /// Numbers a message that is taken now.
    #[inline]
    pub(super) fn next_taken(&mut self) -> u32 {
        let serial = self.taken_count;
        self.taken_count = serial.wrapping_add(1);
        serial
    }

    /// Has a message that is sent now say its signature if it must.
    #[inline]
    pub(super) fn sign(&mut self, header: &mut Header) {
        header.is_signed = self.sent_signature != header.signature;
        self.sent_signature = header.signature;
    }

    /// Gives a message that is taken now its signature if it does not say it.
    #[inline]
    pub(super) fn read_signature(&mut self, header: &mut Header) {
        if header.is_signed {
            self.taken_signature = header.signature;
        }
        header.signature = self.taken_signature;
    }

    /// Takes `cost` out of the credit; false if there is not enough.
    #[inline]
    pub(super) fn spend(&mut self, cost: u64) -> bool {
        if self.sent + cost > self.credited * BLOCK_BYTES + CREDIT_BYTES {
            return false;
        }
        self.sent += cost;
        true
    }

    /// The peer has said what it has consumed, perhaps before it said more. False if that is more than was sent.
    #[inline]
    pub(super) fn credit(&mut self, consumed: u8) -> bool {
        let more = consumed.wrapping_sub(self.credited as u8) as i8;
        self.credited += u64::from(more.max(0).unsigned_abs());
        self.credited * BLOCK_BYTES <= self.sent
    }

    /// A message that counts was consumed. True if the peer should be told, unless that is due already.
    #[inline]
    pub(super) fn consume(&mut self, cost: u64) -> bool {
        let before = self.owed();
        self.consumed += cost;
        before < TELL_BLOCKS && self.owed() >= TELL_BLOCKS
    }

    fn owed(&self) -> u64 {
        self.consumed / BLOCK_BYTES - self.told
    }

    /// Whether the peer should be told.
    pub(super) fn owes(&self) -> bool {
        self.owed() >= TELL_BLOCKS
    }

    /// What the peer is told.
    #[inline]
    pub(super) fn tell(&mut self) -> u8 {
        self.told = self.consumed / BLOCK_BYTES;
        self.told as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_consumed_stays_within_the_credit() {
        let (mut sender, mut receiver) = (Flow::default(), Flow::default());
        let mut stalls = 0;
        let mut waiting = Vec::new();
        for message in 0..200_000usize {
            let bytes = cost(message * 37 % 4000);
            while !sender.spend(bytes) {
                stalls += 1;
                // The receiver takes all, and says so.
                waiting.drain(..).for_each(|bytes| {
                    receiver.consume(bytes);
                });
                assert!(receiver.owes());
                assert!(sender.credit(receiver.tell()));
                assert!(!receiver.owes());
            }
            waiting.push(bytes);
            assert!(waiting.iter().sum::<u64>() <= CREDIT_BYTES);
        }
        assert!(stalls > 100);
    }

    #[test]
    fn the_peer_is_told_once_in_time() {
        let mut flow = Flow::default();
        let told = (0..10_000).filter(|_| flow.consume(BLOCK_BYTES / 4)).count();
        assert_eq!(told, 1, "until it was told");
        flow.tell();
        assert_eq!((0..64).filter(|_| flow.consume(BLOCK_BYTES / 4)).count(), 1);
    }

    #[test]
    fn a_peer_that_consumes_what_was_not_sent_is_found_out() {
        let mut flow = Flow::default();
        assert!(flow.spend(BLOCK_BYTES));
        assert!(flow.credit(0));
        assert!(flow.credit(1));
        assert!(flow.credit(0), "an older message that comes late");
        assert!(!flow.credit(2));
    }
}
