//! Messages that one rank of a group sends to another, beside the collectives.
//!
//! They have the context's number and epoch, and a kind of tag that calls do not have. They take no number of
//! a call, and all have the same signature, so they are no part of what ranks compare.
//!
//! A receive of one source and tag is posted, and its message goes straight to its place. Any other receive
//! looks for a message that has come, and posts its receive when there is one; the transport is entered once
//! for both, so that no two receives find the same. Messages of a rank to itself stay in a queue.

mod mail;
mod serving;
mod tried;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use ucx_sys_wrap::Rank;

use crate::data::Element;

pub(crate) use mail::Mail;
pub(crate) use serving::serve;
pub use serving::{Handler, Outbox};
pub(crate) use tried::{Tried, Turn};

/// The most bytes of messages of a rank to itself that wait for their receives, unless one alone is longer.
const OWN_BYTES: usize = 64 << 20;

/// What such a message costs beside its bytes, so that empty ones are bounded too.
const OVERHEAD_BYTES: usize = 128;

/// Receives of messages of any rank between two turns of the transport, if all find one at once.
const RECEIVES_PER_TURN: u32 = 16;

/// A message that was received, or that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank of the group that has sent it.
    pub source: u32,
    /// Its tag.
    pub tag: u32,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    /// The sender, as a rank of the group; any if it is `None`.
    pub(crate) source: Option<u32>,
    /// The tag; any if it is `None`.
    pub(crate) tag: Option<u32>,
}

impl Pick {
    fn takes(self, tag: u32) -> bool {
        self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// What a context keeps for messages.
#[derive(Default)]
pub(crate) struct Messages {
    own: Mutex<Own>,
    /// The sender of the message that was received last, by its number in the world.
    last: AtomicU32,
    /// The receives of messages of any rank so far, wrapping.
    of_any: AtomicU32,
}

/// Messages of this rank to itself, with their tags, in the order of sending.
#[derive(Default)]
struct Own {
    messages: VecDeque<(u32, Vec<u8>)>,
    /// Their cost.
    bytes: usize,
    /// The sends that wait for room, in order, and the number of the next one.
    waiting: VecDeque<u64>,
    next: u64,
}

/// A send of this rank to itself. Sends are done in the order in which they began.
struct ToSelf<'a> {
    messages: &'a Messages,
    number: u64,
}

impl ToSelf<'_> {
    /// Adds a message. Returns whether there was room.
    fn put(&self, tag: u32, bytes: &[u8]) -> bool {
        let mut own = self.messages.own.lock();
        let cost = bytes.len() + OVERHEAD_BYTES;
        let has_room = own.messages.is_empty() || own.bytes + cost <= OWN_BYTES;
        let may = has_room && own.waiting.front() == Some(&self.number);
        if may {
            own.bytes += cost;
            // A copy: the sender has its memory back at once.
            own.messages.push_back((tag, bytes.to_vec()));
        }
        may
    }
}

impl Drop for ToSelf<'_> {
    fn drop(&mut self) {
        self.messages.own.lock().waiting.retain(|number| *number != self.number);
    }
}

impl Messages {
    /// Begins to send a message of this rank to itself.
    fn to_self(&self) -> ToSelf<'_> {
        let mut own = self.own.lock();
        let number = own.next;
        own.next += 1;
        own.waiting.push_back(number);
        ToSelf { messages: self, number }
    }

    /// The tag and the length of the first message of this rank to itself.
    fn find(&self, pick: Pick) -> Option<(u32, usize)> {
        let own = self.own.lock();
        own.messages.iter().find(|(tag, _)| pick.takes(*tag)).map(|(tag, bytes)| (*tag, bytes.len()))
    }

    /// Takes the first message of this rank to itself, if there is a place for its bytes.
    fn take<P>(&self, pick: Pick, place: impl FnOnce(usize) -> Option<P>) -> Option<(u32, Vec<u8>, P)> {
        let mut own = self.own.lock();
        let position = own.messages.iter().position(|(tag, _)| pick.takes(*tag))?;
        let place = place(own.messages.get(position)?.1.len())?;
        let (tag, bytes) = own.messages.remove(position)?;
        own.bytes -= bytes.len() + OVERHEAD_BYTES;
        Some((tag, bytes, place))
    }

    /// Notes the sender of a message that was received, so that others have their turn.
    pub(crate) fn took(&self, source: Rank) {
        self.last.store(source.0, Ordering::Relaxed);
    }

    /// Counts a receive of a message of any rank. Returns whether to turn the transport before it: what has
    /// come from one rank must not keep this rank from looking what others have sent.
    fn is_turn_due(&self) -> bool {
        self.of_any.fetch_add(1, Ordering::Relaxed).is_multiple_of(RECEIVES_PER_TURN)
    }

    pub(crate) fn last(&self) -> Rank {
        Rank(self.last.load(Ordering::Relaxed))
    }
}

/// Where the elements of a message go.
pub(crate) enum Place<'env, T> {
    /// Here, at most as many as there are.
    Fixed(&'env mut [T]),
    /// To a vector that gets the length of the message, of at most so many elements.
    Growing(&'env mut Vec<T>, usize),
}

impl<'env, T: Element> Place<'env, T> {
    /// The bytes of the longest message.
    fn limit(&self) -> u64 {
        let count = match self {
            Self::Fixed(elements) => elements.len(),
            Self::Growing(_, limit) => *limit,
        };
        (count as u64).saturating_mul(size_of::<T>() as u64)
    }

    /// The place for a message of so many bytes; too short a one if it does not fit. `None` without memory.
    fn open(self, bytes: usize) -> Option<&'env mut [u8]> {
        let (count, rest) = (bytes / size_of::<T>(), bytes % size_of::<T>());
        match self {
            Self::Fixed(elements) => Some(bytemuck::cast_slice_mut(elements)),
            Self::Growing(_, limit) if count > limit || rest > 0 => Some(&mut []),
            Self::Growing(vector, _) => {
                vector.try_reserve_exact(count.saturating_sub(vector.len())).ok()?;
                vector.resize(count, T::zeroed());
                Some(bytemuck::cast_slice_mut(vector))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Pick = Pick { source: None, tag: None };

    fn take(messages: &Messages, pick: Pick) -> Option<(u32, Vec<u8>)> {
        messages.take(pick, |_| Some(())).map(|(tag, bytes, ())| (tag, bytes))
    }

    #[test]
    fn messages_to_oneself_are_received_in_the_order_of_sending() {
        let messages = Messages::default();
        for (tag, byte) in [(1, 10), (2, 20), (1, 11)] {
            assert!(messages.to_self().put(tag, &[byte]));
        }
        assert_eq!(messages.find(Pick { tag: Some(2), ..ANY }), Some((2, 1)));
        assert!(messages.take(ANY, |_| None::<()>).is_none(), "without a place it stays");
        assert_eq!(take(&messages, Pick { tag: Some(2), ..ANY }), Some((2, vec![20])));
        assert_eq!(take(&messages, Pick { tag: Some(3), ..ANY }), None);
        assert_eq!(
            [(); 3].map(|()| take(&messages, ANY).map(|(_, bytes)| bytes[0])),
            [Some(10), Some(11), None]
        );
    }

    #[test]
    fn messages_to_oneself_are_bounded() {
        let messages = Messages::default();
        let put = |bytes: &[u8]| messages.to_self().put(0, bytes);
        let half = vec![0; OWN_BYTES / 2 - OVERHEAD_BYTES];
        assert!(put(&half) && put(&half));
        assert!(!put(&[1]) && !put(&[]), "there is no room");
        assert!(take(&messages, ANY).is_some() && put(&half));
        while take(&messages, ANY).is_some() {}
        assert_eq!((0..).take_while(|_| put(&[])).count(), OWN_BYTES / OVERHEAD_BYTES);
        while take(&messages, ANY).is_some() {}
        assert!(put(&vec![0; OWN_BYTES + 1]), "one alone may be longer");
        assert!(!put(&[1]));
    }

    #[test]
    fn a_send_to_oneself_does_not_overtake_one_that_waits_for_room() {
        let messages = Messages::default();
        assert!(messages.to_self().put(0, &[0]));
        let (long, short) = (messages.to_self(), messages.to_self());
        let bytes = vec![1; OWN_BYTES];
        assert!(!long.put(0, &bytes) && !short.put(0, &[2]));
        assert!(take(&messages, ANY).is_some() && !short.put(0, &[2]) && long.put(0, &bytes));
        drop(long);
        assert!(take(&messages, ANY).is_some() && short.put(0, &[2]));
        // One that is given up is in nobody's way.
        drop((messages.to_self(), short));
        assert!(messages.to_self().put(0, &[3]));
    }

    #[test]
    fn a_vector_gets_the_length_of_its_message() {
        let mut vector = vec![7u32; 5];
        let mut open = |bytes| Place::Growing(&mut vector, 6).open(bytes).map(|place| place.len());
        assert_eq!([24, 8, 0].map(&mut open), [Some(24), Some(8), Some(0)]);
        assert_eq!([25, 28, 3].map(&mut open), [Some(0); 3], "these do not fit");
        let mut huge = Vec::<u64>::new();
        assert!(Place::Growing(&mut huge, usize::MAX).open(1 << 60).is_none(), "there is no such memory");
    }
}
