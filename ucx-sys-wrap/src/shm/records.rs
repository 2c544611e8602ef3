//! The last calls of the ranks of one host, so that a rank that waits finds out that a peer calls something
//! else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::area::{LINE_BYTES, OwnArea, PeerArea};
use super::local_group::LocalGroup;
use super::slots::RECORDS_AT;
use crate::Signature;

const RECORDS: usize = 64;

const RECORDS_BYTES: usize = RECORDS * LINE_BYTES;

/// The last calls of every local rank, by number. Ranks are named by their places in the [`LocalGroup`].
pub struct Records {
    own: OwnArea,
    peers: Box<[Option<PeerArea>]>,
}

impl Records {
    /// The records of a local group.
    #[must_use]
    pub fn new(local_group: &Arc<LocalGroup>) -> Self {
        let range = RECORDS_AT..RECORDS_AT + RECORDS_BYTES;
        let peer = |place| local_group.peer_slots(place).map(|peer: PeerArea| peer.area(range.clone()));
        Self {
            own: local_group.own_slots().area(range.clone()),
            peers: (0..local_group.ranks().len()).map(peer).collect(),
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
        line[0].store(u64::from(number) + 1, Ordering::Release);
    }

    /// The signature of call number `number` of the rank at `place`, if it is one of that rank's last 64
    /// calls. `None` at this rank's own place.
    #[must_use]
    pub fn call(&self, place: usize, number: u32) -> Option<Signature> {
        let peer = self.peers.get(place)?.as_ref()?;
        let at = line_of(number);
        let expected = u64::from(number) + 1;
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
        let [own, peer] = [0, 1].map(|rank: usize| Records::new(&world[rank]));
        let signature = |number: u32| Signature([number as u8 + 1; 16]);
        assert_eq!(peer.call(0, 0), None);
        for number in 0..100 {
            own.record(number, signature(number));
        }
        assert_eq!(peer.call(0, 99), Some(signature(99)));
        assert_eq!(peer.call(0, 36), Some(signature(36)));
        assert_eq!((peer.call(0, 35), peer.call(0, 100)), (None, None));
        assert_eq!((peer.call(1, 99), peer.call(2, 99)), (None, None));
    }
}
