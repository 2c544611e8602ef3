//! The last calls of the ranks of one host, so that a rank that waits finds out that a peer calls something
//! else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::local_group::LocalGroup;
use super::slots::{RECORDS_AT, SlotSet};
use crate::Signature;

const RECORDS: usize = 64;

const RECORDS_BYTES: usize = RECORDS * LINE_BYTES;

/// The last calls of the members of a group on one host, by number; named as those of
/// [`Slots`](super::Slots).
pub struct Records {
    own: OwnArea,
    peers: Box<[Option<PeerArea>]>,
    /// What the numbers of this generation are above.
    start: u64,
}

impl Records {
    /// The records of these members, places in the local group.
    #[must_use]
    pub fn over(local_group: &Arc<LocalGroup>, set: SlotSet, members: &[usize]) -> Self {
        let range = RECORDS_AT..RECORDS_AT + RECORDS_BYTES;
        let peer = |place: &usize| {
            local_group.peer_slots(*place, set.index).map(|peer: PeerArea| peer.area(range.clone()))
        };
        Self {
            own: local_group.own_slots(set.index).area(range.clone()),
            peers: members.iter().map(peer).collect(),
            start: set.start(),
        }
    }

    /// Records this rank's call number `number`. Costs four stores.
    #[inline]
    pub fn record(&self, number: u32, signature: Signature) {
        let [low, high] = signature.words();
        let line = self.own.line(line_of(number));
        // A reader that sees a part of this does not see the number that it looks for.
        line[0].store(0, Ordering::Release);
        line[1].store(low, Ordering::Release);
        line[2].store(high, Ordering::Release);
        line[0].store(self.start + u64::from(number) + 1, Ordering::Release);
    }

    /// The signature of call number `number` of the rank at `place`, if it is one of that rank's last 64
    /// calls. `None` at this rank's own place.
    #[must_use]
    pub fn call(&self, place: usize, number: u32) -> Option<Signature> {
        let peer = self.peers.get(place)?.as_ref()?;
        let at = line_of(number);
        let expected = self.start + u64::from(number) + 1;
        if peer.load(at) != expected {
            return None;
        }
        let signature = Signature::from_words([peer.load(at + 8), peer.load(at + 16)]);
        (peer.load(at) == expected).then_some(signature)
    }
}

const fn line_of(number: u32) -> usize {
    number as usize % RECORDS * LINE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_calls_are_found_by_number() {
        let world = LocalGroup::in_process(2).unwrap();
        let over =
            |rank: usize, generation| Records::over(&world[rank], SlotSet { index: 1, generation }, &[0, 1]);
        let [own, peer] = [0, 1].map(|rank| over(rank, 0));
        let signature = |number: u32| Signature([number as u8 + 1; 16]);
        assert_eq!(peer.call(0, 0), None);
        for number in 0..100 {
            own.record(number, signature(number));
        }
        assert_eq!(peer.call(0, 99), Some(signature(99)));
        assert_eq!(peer.call(0, 36), Some(signature(36)));
        assert_eq!((peer.call(0, 35), peer.call(0, 100)), (None, None));
        assert_eq!((peer.call(1, 99), peer.call(2, 99)), (None, None));
        assert_eq!(over(1, 1).call(0, 99), None, "it is of an earlier group");
    }
}
