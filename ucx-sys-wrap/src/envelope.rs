//! What travels with every message besides its payload.

use arrayvec::ArrayVec;

use crate::Tag;

/// A message has at most this many payload parts, each gathered from and scattered to its own place.
pub const MAX_PARTS: usize = 3;

/// What a call is, in 16 bytes that only the caller reads: ranks that make different calls find out by
/// comparing them.
///
/// The transport compares it for equality and reports a difference as
/// [`Error::Mismatch`](crate::Error::Mismatch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature(pub [u8; 16]);

impl Signature {
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

/// A word that spreads with the messages of a call: a rank sends the largest that it has set or received.
///
/// In a collective whose result depends on every rank, every rank ends with the largest mark that any rank
/// set, without a message of its own. [`Mark::NONE`] means that nobody has set one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

impl Mark {
    /// No mark.
    pub const NONE: Mark = Mark(0);
}

/// What a message is matched by and what it says about its call.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// What the message is matched by. A receive names the source in it too.
    pub tag: Tag,
    /// What the call is. A receive states what it expects.
    pub signature: Signature,
    /// The sender's mark. A receive leaves it at [`Mark::NONE`].
    pub mark: Mark,
}

/// How many bytes each part of a message has, in order.
pub type Lengths = ArrayVec<usize, MAX_PARTS>;

/// What a completed receive reports; the bytes are in the receiver's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender's mark.
    pub mark: Mark,
    /// Bytes of each part: at most the capacity that the receiver posted for it.
    pub lengths: Lengths,
}
