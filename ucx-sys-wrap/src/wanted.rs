//! What a probe looks for, and what it finds.

use crate::{Lengths, Rank, Signature, Tag};

/// Which messages a [probe](crate::Transport::probe) looks for: those of users, of one context.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The context's number.
    pub context: u16,
    /// The context's epoch.
    pub epoch: u8,
    /// The sender; any rank if it is `None`.
    pub source: Option<Rank>,
    /// The user's tag; any if it is `None`.
    pub tag: Option<u32>,
    /// Of the messages of several ranks, that of the first one behind this rank is found, where rank 0 is
    /// behind the last. With the rank of the message found last, every rank gets its turn.
    pub after: Rank,
}

impl Wanted {
    /// Whether a message of this tag and signature is one of them.
    pub(crate) fn includes(&self, tag: Tag, signature: Signature) -> bool {
        let Some(user) = tag.user() else { return false };
        tag.group() == self.context
            && signature.epoch() == self.epoch
            && self.tag.is_none_or(|wanted| wanted == user)
            && self.source.is_none_or(|wanted| wanted == tag.source())
    }

    /// The ranks of a world to look at, in this order.
    pub(crate) fn sources(&self, world_size: u32) -> impl Iterator<Item = Rank> + use<> {
        let (first, count) = match self.source {
            Some(source) => (source.0, 1),
            None => (self.after.0.wrapping_add(1), world_size),
        };
        let is_all = self.source.is_none();
        (0..count).map(move |turn| {
            let rank = u64::from(first) + u64::from(turn);
            Rank(if is_all { (rank % u64::from(world_size)) as u32 } else { first })
        })
    }

    /// How late the turn of a rank comes.
    pub(crate) fn turn_of(&self, source: Rank, world_size: u32) -> u32 {
        let behind = u64::from(source.0) + u64::from(world_size) - u64::from(self.after.0) - 1;
        (behind % u64::from(world_size)) as u32
    }
}

/// A message that has come, at least its header, and was not received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its tag, by which it can be received.
    pub tag: Tag,
    /// Bytes of each part.
    pub lengths: Lengths,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(source: Option<u32>, tag: Option<u32>, after: u32) -> Wanted {
        Wanted { context: 3, epoch: 7, source: source.map(Rank), tag, after: Rank(after) }
    }

    #[test]
    fn every_rank_has_its_turn() {
        for world_size in 1..=9 {
            for after in 0..world_size {
                let wanted = wanted(None, None, after);
                let sources: Vec<_> = wanted.sources(world_size).collect();
                assert_eq!(sources.last(), Some(&Rank(after)));
                for (turn, source) in (0..).zip(&sources) {
                    assert_eq!(wanted.turn_of(*source, world_size), turn);
                }
                let mut sorted = sources;
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(Rank::all(world_size)));
            }
        }
        assert!(wanted(Some(4), None, 2).sources(9).eq([Rank(4)]));
        assert!(wanted(Some(u32::MAX), None, 2).sources(9).eq([Rank(u32::MAX)]));
    }

    #[test]
    fn messages_of_calls_other_epochs_and_other_groups_are_not_wanted() {
        let signature = |epoch| {
            let mut signature = Signature::default();
            signature.0[Signature::EPOCH_AT] = epoch;
            signature
        };
        let tag = Tag::of_user(Rank(4), 3, 5);
        for (source, user) in [(None, None), (Some(4), None), (None, Some(5)), (Some(4), Some(5))] {
            let wanted = wanted(source, user, 0);
            assert!(wanted.includes(tag, signature(7)));
            assert!(!wanted.includes(tag, signature(8)));
            assert!(!wanted.includes(tag.with_kind(0), signature(7)));
            assert!(!wanted.includes(Tag::of_user(Rank(4), 4, 5), signature(7)));
        }
        assert!(!wanted(Some(3), None, 0).includes(tag, signature(7)));
        assert!(!wanted(None, Some(4), 0).includes(tag, signature(7)));
    }
}
