//! The numbers and the digest of the calls of a context.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ucx_sys_wrap::buffer::CallLog;
use ucx_sys_wrap::{CallDigest, Rank};

use crate::description::{Description, Operation, digest};

/// The calls of this rank on one context.
///
/// A call's number and the digest of all calls up to it are taken in one step, so that ranks whose calls
/// differ, in anything that must be equal or in their order, have other digests from that call on.
pub(crate) struct Calls {
    /// The number of the next call above the digest of the calls so far.
    next: AtomicU64,
    /// What peers that wait compare their last call with.
    log: Arc<CallLog>,
    /// The last calls, to tell what differs.
    last: Box<[Place; PastCall::KEPT]>,
}

/// A call that was made: its number, the digest of all calls up to it, and what it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PastCall {
    pub(crate) number: u32,
    pub(crate) digest: u32,
    pub(crate) description: Description,
}

/// The words of a [`PastCall`]. A call is noted without a lock, and read only when calls were found to
/// differ.
#[derive(Default)]
struct Place([AtomicU64; 4]);

impl PastCall {
    /// The last calls of a context that are kept.
    pub(crate) const KEPT: usize = 64;

    /// The bytes of each.
    pub(crate) const BYTES: usize = 32;

    fn words(&self) -> [u64; 4] {
        let Description { operation, element, reduction, root, count, detail } = self.description;
        let root = root.map_or(0, |root| root.0 + 1);
        let kind = u32::from_le_bytes([operation.0, element, reduction, 1]);
        [
            u64::from(self.number) | u64::from(self.digest) << 32,
            u64::from(kind) | u64::from(root) << 32,
            count,
            detail,
        ]
    }

    /// `None` for a place that was never used.
    fn from_words([first, second, count, detail]: [u64; 4]) -> Option<Self> {
        let [operation, element, reduction, is_used] = (second as u32).to_le_bytes();
        let root = ((second >> 32) as u32).checked_sub(1).map(Rank);
        let description =
            Description { operation: Operation(operation), element, reduction, root, count, detail };
        (is_used == 1).then_some(Self { number: first as u32, digest: (first >> 32) as u32, description })
    }

    pub(crate) fn encode(&self) -> impl Iterator<Item = u8> + use<> {
        self.words().into_iter().flat_map(u64::to_le_bytes)
    }

    /// The calls in a peer's bytes. Any bytes are valid.
    pub(crate) fn decode_all(bytes: &[u8]) -> Vec<Self> {
        let words = |bytes: &[u8; Self::BYTES]| {
            let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            Self::from_words(std::array::from_fn(|_| words.next().unwrap_or_default()))
        };
        bytes.as_chunks::<{ Self::BYTES }>().0.iter().filter_map(words).collect()
    }
}

/// A call's number, and the digest of the calls up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbered {
    pub(crate) number: u32,
    pub(crate) digest: u32,
}

/// The digest before the first call: of the context, and of the plan by which algorithms are chosen.
pub(crate) fn seed(context: u16, epoch: u8, plan: u64) -> u32 {
    let context = Description::new(Operation::SPLIT, epoch, usize::from(context));
    digest(0, context.with_detail(plan).hash())
}

impl Calls {
    pub(crate) fn new(log: Arc<CallLog>) -> Self {
        Self { next: AtomicU64::new(0), log, last: Box::new(std::array::from_fn(|_| Place::default())) }
    }

    /// Sets the digest before the first call.
    pub(crate) fn begin(&self, seed: u32) {
        self.next.store(u64::from(seed), Ordering::Relaxed);
    }

    /// Takes the number of the next call, and those of its `parts`, which follow.
    #[inline]
    pub(crate) fn take(&self, description: &Description, parts: u32) -> Numbered {
        let hash = description.hash();
        let mut state = self.next.load(Ordering::Relaxed);
        loop {
            let number = (state >> 32) as u32;
            let digest = digest(state as u32, hash).wrapping_add(parts);
            let next = u64::from(number.wrapping_add(parts).wrapping_add(1)) << 32 | u64::from(digest);
            match self.next.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Numbered { number, digest },
                Err(found) => state = found,
            }
        }
    }

    /// Notes a call that has its number, before it begins to wait.
    #[inline]
    pub(crate) fn note(&self, made: Numbered, description: &Description, parts: u32) {
        let Numbered { number, digest } = made;
        self.log.note(CallDigest { number: number.wrapping_add(parts), digest });
        if parts > 0 {
            // For a peer that makes the call with other parts.
            self.log.note(CallDigest { number, digest });
        }
        let place = &self.last[number as usize % PastCall::KEPT];
        let words = PastCall { number, digest, description: *description }.words();
        place.0.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
    }

    /// The last calls that were made, in order.
    pub(crate) fn last_calls(&self) -> Vec<PastCall> {
        let read =
            |place: &Place| PastCall::from_words(place.0.each_ref().map(|word| word.load(Ordering::Relaxed)));
        let mut calls: Vec<PastCall> = self.last.iter().filter_map(read).collect();
        let next = self.last().number.wrapping_add(1);
        calls.sort_unstable_by_key(|made| std::cmp::Reverse(next.wrapping_sub(made.number)));
        calls
    }

    /// The last call, or the number before the first one.
    pub(crate) fn last(&self) -> CallDigest {
        let state = self.next.load(Ordering::Relaxed);
        CallDigest { number: ((state >> 32) as u32).wrapping_sub(1), digest: state as u32 }
    }
}

#[cfg(test)]
impl Calls {
    /// Makes a call.
    pub(crate) fn make(&self, description: &Description, parts: u32) -> Numbered {
        let made = self.take(description, parts);
        self.note(made, description, parts);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_differ_have_other_digests_from_then_on() {
        let [own, peer] = [0, 0].map(|_| Calls::new(Arc::default()));
        let call = |count| Description::new(Operation::ALL_REDUCE, 1, count);
        for number in 0..200 {
            let odd = usize::from(number == 100);
            let (mine, theirs) = (own.make(&call(7), 0), peer.make(&call(7 + odd), 0));
            assert_eq!((mine.number, theirs.number), (number, number));
            assert_eq!(mine.digest == theirs.digest, number < 100, "call {number}");
        }
    }

    #[test]
    fn parts_have_numbers_of_their_own() {
        let calls = Calls::new(Arc::default());
        let call = Description::new(Operation::BARRIER, 0, 0);
        assert_eq!([calls.make(&call, 3), calls.make(&call, 0)].map(|taken| taken.number), [0, 4]);
    }

    #[test]
    fn other_parts_are_found_by_a_rank_that_has_made_the_call() {
        let logs: [Arc<CallLog>; 2] = Default::default();
        let [own, peer] = logs.clone().map(Calls::new);
        let call = Description::new(Operation::BARRIER, 0, 0);
        own.make(&call, 3);
        peer.make(&call, 0);
        assert!(logs[0].differs(peer.last()));
    }

    #[test]
    fn ranks_with_other_plans_find_out_in_the_first_call() {
        let others = [seed(1, 0, 7), seed(0, 1, 7), seed(0, 0, 8)];
        assert!(others.iter().all(|other| *other != seed(0, 0, 7)));
    }
}
