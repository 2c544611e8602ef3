//! Message tags.
//!
//! A tag is 64 bits, from the most significant down:
//!
//! | bits | field | wraps |
//! | --- | --- | --- |
//! | 20 | source rank | never: a world has at most 2^20 ranks |
//! | 10 | group | never: a world has at most 2^10 groups |
//! | 20 | sequence number of the call in its group | after 2^20 calls; no two calls so far apart are in flight together |
//! | 12 | round inside the call | after 2^12 rounds; messages of one tag arrive in order, so a wrapped round still finds its own message |
//! | 2 | kind: 0 for a message of a call, 1 for one that a rank of the group sends to another by itself | never |
//!
//! A message of kind 1 has a tag of the user's in the lower 31 of the 32 bits of sequence and round.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;

use crate::Rank;

const SOURCE_BITS: u32 = 20;
const GROUP_BITS: u32 = 10;
const SEQUENCE_BITS: u32 = 20;
const ROUND_BITS: u32 = 12;
const KIND_BITS: u32 = 2;

/// The kind of a message that belongs to no call.
const USER_KIND: u32 = 1;

/// The largest world: ranks must fit the source field of a [`Tag`].
pub const MAX_WORLD_SIZE: u32 = 1 << SOURCE_BITS;

/// The tag that a message is matched by. Messages of one tag between two ranks arrive in the order of
/// posting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// The tag of a message that `source` sends in `round` of call number `sequence` of `group`.
    ///
    /// Sequence and round wrap around as the module describes; source and group are cut to their widths.
    #[must_use]
    pub const fn new(source: Rank, group: u16, sequence: u32, round: u32) -> Self {
        let mut bits = field(source.0, SOURCE_BITS);
        bits = bits << GROUP_BITS | field(group as u32, GROUP_BITS);
        bits = bits << SEQUENCE_BITS | field(sequence, SEQUENCE_BITS);
        bits = bits << ROUND_BITS | field(round, ROUND_BITS);
        Self(bits << KIND_BITS)
    }

    /// The largest tag of a user's: it has 31 bits.
    pub const MAX_USER: u32 = (1 << 31) - 1;

    /// The tag of a message that `source` sends to another rank of `group` and that belongs to no call.
    ///
    /// `user` is cut to 31 bits.
    #[must_use]
    pub const fn of_user(source: Rank, group: u16, user: u32) -> Self {
        let user = user & Self::MAX_USER;
        Self::new(source, group, user >> ROUND_BITS, user).with_kind(USER_KIND)
    }

    /// The user's tag, of a message that belongs to no call.
    #[must_use]
    pub const fn user(self) -> Option<u32> {
        let tag = self.part(KIND_BITS, SEQUENCE_BITS + ROUND_BITS);
        if self.kind() == USER_KIND && tag <= Self::MAX_USER { Some(tag) } else { None }
    }

    /// The same tag with another kind (0 to 3).
    #[must_use]
    pub const fn with_kind(self, kind: u32) -> Self {
        Self(self.0 & !field(u32::MAX, KIND_BITS) | field(kind, KIND_BITS))
    }

    /// The rank that sent the message.
    #[must_use]
    pub const fn source(self) -> Rank {
        Rank(self.part(GROUP_BITS + SEQUENCE_BITS + ROUND_BITS + KIND_BITS, SOURCE_BITS))
    }

    /// The group of the call.
    #[must_use]
    pub const fn group(self) -> u16 {
        self.part(SEQUENCE_BITS + ROUND_BITS + KIND_BITS, GROUP_BITS) as u16
    }

    /// The sequence number of the call, modulo its width.
    #[must_use]
    pub const fn sequence(self) -> u32 {
        self.part(ROUND_BITS + KIND_BITS, SEQUENCE_BITS)
    }

    /// The round of the call, modulo its width.
    #[must_use]
    pub const fn round(self) -> u32 {
        self.part(KIND_BITS, ROUND_BITS)
    }

    /// The kind: 0 for a message of a call, 1 for another one. Others are invalid.
    #[must_use]
    pub const fn kind(self) -> u32 {
        self.part(0, KIND_BITS)
    }

    /// Whether messages from `source` can have this tag. A receiver treats any other as a protocol error.
    #[inline]
    pub(crate) const fn is_of(self, source: Rank) -> bool {
        self.source().0 == source.0 && self.kind() <= USER_KIND
    }

    const fn part(self, shift: u32, width: u32) -> u32 {
        (self.0 >> shift & ((1u64 << width) - 1)) as u32
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tag")
            .field("source", &self.source().0)
            .field("group", &self.group())
            .field("sequence", &self.sequence())
            .field("round", &self.round())
            .field("kind", &self.kind())
            .finish()
    }
}

const fn field(value: u32, width: u32) -> u64 {
    value as u64 & ((1 << width) - 1)
}

/// Takes the first entry of a tag out of a queue; it is nearly always the first of all.
#[inline]
pub(crate) fn take_first<T>(queue: &mut VecDeque<(Tag, T)>, tag: Tag) -> Option<T> {
    if queue.front().is_some_and(|(first, _)| *first == tag) {
        return queue.pop_front().map(|(_, value)| value);
    }
    let position = queue.iter().position(|(found, _)| *found == tag)?;
    queue.remove(position).map(|(_, value)| value)
}

/// A pending receive: its key, its number in the order of posting (from 1 on), and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) key: usize,
    pub(crate) number: u64,
    pub(crate) tag: Tag,
}

/// Those of the receives `cut`, whose messages will not come, that may receive later messages of their tags,
/// in the order of posting.
///
/// `pending` are all pending receives, and `posted` is the number of the last. A receive may not if a later
/// one has ended, since that may have got a later message already.
pub(crate) fn may_have_later(
    cut: &[usize],
    pending: impl Iterator<Item = Posted>,
    posted: u64,
) -> Vec<Posted> {
    let mut pending: Vec<Posted> = pending.collect();
    pending.sort_unstable_by_key(|receive| Reverse(receive.number));
    let without_a_gap =
        pending.iter().zip((0..=posted).rev()).take_while(|(receive, number)| receive.number == *number);
    let mut found: Vec<Posted> =
        without_a_gap.map(|(receive, _)| *receive).filter(|receive| cut.contains(&receive.key)).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_receive_has_a_later_message_than_one_that_was_posted_after_it() {
        let tag = Tag(7);
        // By keys that are used again, in the order of keys.
        let pending = [(0, 9), (3, 6), (5, 8), (8, 7)].map(|(key, number)| Posted { key, number, tag });
        let found = |cut: &[usize], posted| {
            may_have_later(cut, pending.into_iter(), posted)
                .iter()
                .map(|receive| receive.number)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[0, 5, 3], 9), [6, 8, 9]);
        assert_eq!(found(&[8], 9), [7]);
        // The tenth has ended.
        assert!(found(&[0, 3, 5, 8], 10).is_empty());
        let gap = pending.into_iter().filter(|receive| receive.number != 8);
        assert_eq!(may_have_later(&[0, 3, 8], gap, 9), [pending[0]]);
        assert!(may_have_later(&[1], [].into_iter(), 0).is_empty());
    }

    #[test]
    fn fields_come_back() {
        let tag = Tag::new(Rank(1_048_575), 1023, 1_048_574, 4095).with_kind(3);
        assert_eq!(tag.source(), Rank(1_048_575));
        assert_eq!((tag.group(), tag.sequence(), tag.round(), tag.kind()), (1023, 1_048_574, 4095, 3));
        assert_eq!(tag.with_kind(0).kind(), 0);
        assert_eq!(tag.with_kind(0).round(), 4095);
    }

    #[test]
    fn sequence_and_round_wrap_without_touching_their_neighbours() {
        let tag = Tag::new(Rank(7), 5, 1 << 20, 1 << 12);
        assert_eq!(tag, Tag::new(Rank(7), 5, 0, 0));
    }

    #[test]
    fn a_tag_of_a_user_comes_back_and_is_none_of_a_call() {
        for user in [0, 1, 4095, 4096, 1 << 20, Tag::MAX_USER] {
            let tag = Tag::of_user(Rank(9), 1007, user);
            assert_eq!((tag.source(), tag.group(), tag.user()), (Rank(9), 1007, Some(user)));
            assert!(tag.is_of(Rank(9)) && tag.with_kind(0).user().is_none());
            assert_ne!(tag, Tag::new(Rank(9), 1007, user >> ROUND_BITS, user));
        }
        // No rank makes one of 32 bits, but bytes from the network may be one.
        assert_eq!(Tag::new(Rank(0), 0, u32::MAX, 0).with_kind(USER_KIND).user(), None);
        assert!(!Tag(2).is_of(Rank(0)) && !Tag(3).is_of(Rank(0)));
    }

    #[test]
    fn widths_fill_the_word() {
        assert_eq!(SOURCE_BITS + GROUP_BITS + SEQUENCE_BITS + ROUND_BITS + KIND_BITS, u64::BITS);
    }
}
