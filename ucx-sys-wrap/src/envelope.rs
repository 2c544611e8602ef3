//! The metadata that travels with every message.

use arrayvec::ArrayVec;

use crate::Tag;

/// The most payload parts of a message.
pub const MAX_PARTS: usize = 3;

/// An identification of a call, in 16 bytes that the caller defines.
///
/// The transport compares those of sender and receiver, and reports a difference as
/// [`Error::Mismatch`](crate::Error::Mismatch): the ranks make different calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature(pub [u8; 16]);

impl Signature {
    /// The byte that holds the epoch of the call's context. Messages of another epoch are dropped.
    pub const EPOCH_AT: usize = 3;

    /// The epoch of the call's context.
    #[inline]
    #[must_use]
    pub const fn epoch(self) -> u8 {
        self.0[Self::EPOCH_AT]
    }

    /// As two words, little-endian.
    #[inline]
    pub(crate) fn words(self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }

    /// From its two words.
    #[inline]
    pub(crate) fn from_words([low, high]: [u64; 2]) -> Self {
        Self((u128::from(low) | u128::from(high) << 64).to_le_bytes())
    }
}

/// A word that spreads with the messages of a call: a rank sends the largest mark that it has set or
/// received.
///
/// In a collective whose result depends on every rank, all ranks end with the largest mark that any rank set,
/// at no extra message. [`Mark::NONE`] means that no rank set one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

impl Mark {
    /// No mark.
    pub const NONE: Mark = Mark(0);
}

/// The metadata of a message.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// What the message is matched by. Contains the source, also for receives.
    pub tag: Tag,
    /// The sender's call, or the call that a receive expects.
    pub signature: Signature,
    /// The sender's mark; [`Mark::NONE`] for a receive.
    pub mark: Mark,
}

/// The bytes of each part of a message, in order.
pub type Lengths = ArrayVec<usize, MAX_PARTS>;

/// The result of a receive; the bytes are in the posted buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's mark.
    pub mark: Mark,
    /// Bytes of each part: at most the capacity that the receiver posted for it.
    pub lengths: Lengths,
}
