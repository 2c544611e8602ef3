//! Credit: bounds the memory for unexpected messages.
//!
//! The receiver of an eager message copies it if no receive is posted. So eager messages count against a
//! credit of [`CREDIT_BYTES`] from one rank to another; a sender without credit uses rendezvous, and no
//! message waits for another. The receiver reports what it has consumed, in blocks of [`BLOCK_BYTES`]: in
//! every message modulo 256, which is more blocks than the credit has, or in full in a [`CreditUpdate`].
//!
//! UCX may reorder messages. A report in a message is ambiguous once a newer one was read: 128 blocks later
//! it would seem to report more, not less. So an update says how many messages were sent before it, and
//! reports in messages sent before the newest report read are ignored.
//!
//! Messages are taken in the order of sending, so a header omits a signature that equals that of the message
//! before.

use super::header::Header;
use crate::{Rank, Signature};

/// The credit from one rank to another, in bytes (1 MiB).
pub const CREDIT_BYTES: u64 = 1 << 20;

const BLOCK_BYTES: u64 = CREDIT_BYTES / 64;

/// A receiver sends an update after this many unreported blocks.
const REPORT_BLOCKS: u64 = 16;

/// What a message costs its receiver beside its payload.
const OVERHEAD_BYTES: u64 = 256;

pub(super) const CREDIT_UPDATE_BYTES: usize = 16;

/// A report of what a receiver has consumed, when no message carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreditUpdate {
    pub(super) from: Rank,
    /// Messages sent before it, modulo 2^32.
    pub(super) sent_count: u32,
    /// Blocks consumed.
    pub(super) consumed: u64,
}

impl CreditUpdate {
    /// Little-endian, one field after the other.
    pub(super) fn encode(&self) -> [u8; CREDIT_UPDATE_BYTES] {
        let head = u64::from(self.from.0) | u64::from(self.sent_count) << 32;
        bytemuck::cast([head.to_le(), self.consumed.to_le()])
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; CREDIT_UPDATE_BYTES] = bytes.try_into().ok()?;
        let [head, consumed] = bytemuck::cast::<_, [u64; 2]>(bytes).map(u64::from_le);
        Some(Self { from: Rank(head as u32), sent_count: (head >> 32) as u32, consumed })
    }
}

/// The state between this rank and one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) sent_count: u32,
    pub(super) taken_count: u32,
    /// How many of the messages to be taken next were sent before the newest report.
    pub(super) overtaken: u32,
    /// Counted bytes sent.
    sent: u64,
    /// Blocks of those that the peer has reported as consumed.
    credited: u64,
    /// Counted bytes of the peer that this rank has consumed.
    consumed: u64,
    /// Blocks of those that this rank has reported.
    reported: u64,
    /// The signatures of the last message sent, and of the last one taken.
    pub(super) sent_signature: Signature,
    pub(super) taken_signature: Signature,
}

/// What a message with `payload_bytes` costs.
#[inline]
pub(super) fn cost(payload_bytes: usize) -> u64 {
    payload_bytes as u64 + OVERHEAD_BYTES
}

impl Flow {
    #[inline]
    pub(super) fn next_sent(&mut self) -> u32 {
        let serial = self.sent_count;
        self.sent_count = serial.wrapping_add(1);
        serial
    }

    #[inline]
    pub(super) fn next_taken(&mut self) -> u32 {
        let serial = self.taken_count;
        self.taken_count = serial.wrapping_add(1);
        self.overtaken = self.overtaken.saturating_sub(1);
        serial
    }

    /// Decides whether the header of the next message contains the signature.
    #[inline]
    pub(super) fn sign(&mut self, header: &mut Header) {
        header.is_signed = self.sent_signature != header.signature;
        self.sent_signature = header.signature;
    }

    /// Restores the signature of the next message taken.
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

    /// Takes the report of a message that `distance` others precede. False if it exceeds what was sent.
    #[inline]
    pub(super) fn apply_credit(&mut self, distance: u16, consumed: u8) -> bool {
        let distance = distance.into();
        if distance < self.overtaken {
            return true;
        }
        self.overtaken = distance;
        self.credit(self.credited + u64::from(consumed.wrapping_sub(self.credited as u8)))
    }

    /// Takes an update. False if it exceeds what was sent.
    pub(super) fn apply_update(&mut self, update: &CreditUpdate) -> bool {
        // Negative for an update that was overtaken itself.
        let distance = update.sent_count.wrapping_sub(self.taken_count).cast_signed();
        self.overtaken = self.overtaken.max(distance.max(0).cast_unsigned());
        self.credit(update.consumed.max(self.credited))
    }

    #[inline]
    fn credit(&mut self, blocks: u64) -> bool {
        let is_right = blocks <= self.sent / BLOCK_BYTES;
        if is_right {
            self.credited = blocks;
        }
        is_right
    }

    /// Consumes a counted message. True if a report becomes due.
    #[inline]
    pub(super) fn consume(&mut self, cost: u64) -> bool {
        let before = self.unreported();
        self.consumed += cost;
        before < REPORT_BLOCKS && self.unreported() >= REPORT_BLOCKS
    }

    fn unreported(&self) -> u64 {
        self.consumed / BLOCK_BYTES - self.reported
    }

    pub(super) fn must_report(&self) -> bool {
        self.unreported() >= REPORT_BLOCKS
    }

    /// The report in a message.
    #[inline]
    pub(super) fn report(&mut self) -> u8 {
        self.reported = self.consumed / BLOCK_BYTES;
        self.reported as u8
    }

    pub(super) fn credit_update(&mut self, own: Rank) -> CreditUpdate {
        self.report();
        CreditUpdate { from: own, sent_count: self.sent_count, consumed: self.reported }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unconsumed_bytes_stay_within_the_credit() {
        let (mut sender, mut receiver) = (Flow::default(), Flow::default());
        let mut stalls = 0;
        let mut waiting = Vec::new();
        for message in 0..200_000usize {
            let bytes = cost(message * 37 % 4000);
            while !sender.spend(bytes) {
                stalls += 1;
                // The receiver takes all, and reports it.
                waiting.drain(..).for_each(|bytes| {
                    receiver.consume(bytes);
                });
                assert!(receiver.must_report());
                assert!(sender.apply_credit(0, receiver.report()));
                assert!(!receiver.must_report());
            }
            waiting.push(bytes);
            assert!(waiting.iter().sum::<u64>() <= CREDIT_BYTES);
        }
        assert!(stalls > 100);
    }

    #[test]
    fn the_peer_gets_one_report_in_time() {
        let mut flow = Flow::default();
        let reported = (0..10_000).filter(|_| flow.consume(BLOCK_BYTES / 4)).count();
        assert_eq!(reported, 1, "until it was reported");
        flow.report();
        assert_eq!((0..64).filter(|_| flow.consume(BLOCK_BYTES / 4)).count(), 1);
    }

    #[test]
    fn a_report_of_more_than_was_sent_is_refused() {
        let mut flow = Flow::default();
        assert!(flow.spend(BLOCK_BYTES));
        assert!(flow.apply_credit(0, 0));
        assert!(flow.apply_credit(0, 1));
        assert!(!flow.apply_credit(0, 2));
        assert!(!flow.apply_credit(0, 0), "less than before, or 256 more");
        let update = |consumed| CreditUpdate { from: Rank(1), sent_count: 0, consumed };
        assert!(flow.apply_update(&update(0)), "an older update that comes late");
        assert!(!flow.apply_update(&update(2)) && !flow.apply_update(&update(u64::MAX)));
        assert!(flow.apply_update(&update(1)));
    }

    /// Reports come in any order within a window of some hundred; the receiver consumes far more meanwhile
    /// than a message can count.
    #[test]
    fn no_order_of_arrival_makes_credit_up() {
        enum Report {
            Message(u32, u8),
            Update(CreditUpdate),
        }
        let mut random = 1u64;
        let mut draw = move |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let (mut sender, mut receiver) = (Flow::default(), Flow::default());
        let (mut under_way, mut ahead) = (Vec::new(), Vec::new());
        for _ in 0..20_000 {
            while sender.spend(BLOCK_BYTES) {
                receiver.consume(BLOCK_BYTES);
            }
            under_way.push(match draw(2) {
                0 => Report::Message(receiver.next_sent(), receiver.report()),
                _ => Report::Update(receiver.credit_update(Rank(1))),
            });
            while under_way.len() > draw(600) {
                match under_way.swap_remove(draw(under_way.len())) {
                    Report::Update(update) => {
                        assert!(sender.apply_update(&update) && sender.credited >= update.consumed)
                    }
                    Report::Message(serial, consumed) => {
                        let distance = serial.wrapping_sub(sender.taken_count) as u16;
                        assert!(sender.apply_credit(distance, consumed), "message {serial}: {sender:?}");
                        ahead.push(serial);
                    }
                }
                while let Some(position) = ahead.iter().position(|serial| *serial == sender.taken_count) {
                    ahead.swap_remove(position);
                    sender.next_taken();
                }
                assert!(sender.credited <= receiver.consumed / BLOCK_BYTES, "{sender:?} {receiver:?}");
            }
        }
        assert!(sender.credited > 10_000 && sender.overtaken > 0, "{sender:?}");
    }

    #[test]
    fn updates_round_trip() {
        let update = CreditUpdate { from: Rank(3), sent_count: u32::MAX - 1, consumed: 1 << 40 };
        assert_eq!(CreditUpdate::decode(&update.encode()), Some(update));
        for length in [0, 3, 15, 17] {
            assert_eq!(CreditUpdate::decode(&[0; 17][..length]), None);
        }
    }
}
