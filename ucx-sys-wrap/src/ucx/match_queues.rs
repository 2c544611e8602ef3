//! Posted receives and unexpected messages, by tag.

use std::collections::VecDeque;

use crate::Tag;
use crate::tag::take_first;

const BUCKETS: usize = 64;

/// Two queues a bucket of tags, in the order of posting and of arrival.
///
/// A tag has posted receives or unexpected messages, never both. Queues keep their memory. Cost: searches the
/// bucket from the front, where the match nearly always is.
pub(super) struct MatchQueues<Message> {
    buckets: Vec<Bucket<Message>>,
}

struct Bucket<Message> {
    posted: VecDeque<(Tag, u64)>,
    unexpected: VecDeque<(Tag, Message)>,
}

/// The first posted receive of a bucket.
pub(super) struct FirstPosted<'queues> {
    pub(super) number: u64,
    posted: &'queues mut VecDeque<(Tag, u64)>,
}

impl FirstPosted<'_> {
    /// Takes it from the queue; returns its number.
    #[inline]
    pub(super) fn take(self) -> u64 {
        self.posted.pop_front();
        self.number
    }
}

impl<Message> MatchQueues<Message> {
    pub(super) fn new() -> Self {
        let bucket = || Bucket { posted: VecDeque::new(), unexpected: VecDeque::new() };
        Self { buckets: (0..BUCKETS).map(|_| bucket()).collect() }
    }

    #[inline]
    pub(super) fn post(&mut self, tag: Tag, number: u64) {
        self.bucket(tag).posted.push_back((tag, number));
    }

    /// Posts a receive before all others.
    pub(super) fn post_first(&mut self, tag: Tag, number: u64) {
        self.bucket(tag).posted.push_front((tag, number));
    }

    /// The first receive for `tag`, if it is the first of its bucket.
    #[inline(always)]
    pub(super) fn first_posted(&mut self, tag: Tag) -> Option<FirstPosted<'_>> {
        let posted = &mut self.bucket(tag).posted;
        match posted.front() {
            Some(&(first, number)) if first == tag => Some(FirstPosted { number, posted }),
            _ => None,
        }
    }

    /// Takes the first receive for `tag`.
    #[inline]
    pub(super) fn take_posted(&mut self, tag: Tag) -> Option<u64> {
        take_first(&mut self.bucket(tag).posted, tag)
    }

    /// Takes a receive from the queue. Returns whether it was in it.
    pub(super) fn cancel(&mut self, tag: Tag, number: u64) -> bool {
        let posted = &mut self.bucket(tag).posted;
        let position = posted.iter().position(|(_, waits)| *waits == number);
        position.and_then(|position| posted.remove(position)).is_some()
    }

    pub(super) fn keep_unexpected(&mut self, tag: Tag, message: Message) {
        self.bucket(tag).unexpected.push_back((tag, message));
    }

    /// Takes the first unexpected message of `tag`.
    #[inline]
    pub(super) fn take_unexpected(&mut self, tag: Tag) -> Option<Message> {
        take_first(&mut self.bucket(tag).unexpected, tag)
    }

    /// Takes the unexpected message of `tag` that `is_meant` accepts.
    pub(super) fn take_unexpected_if(
        &mut self,
        tag: Tag,
        is_meant: impl Fn(&Message) -> bool,
    ) -> Option<Message> {
        let unexpected = &mut self.bucket(tag).unexpected;
        let position = unexpected.iter().position(|(found, message)| *found == tag && is_meant(message))?;
        unexpected.remove(position).map(|(_, message)| message)
    }

    /// Takes all unexpected messages that `is_meant` accepts, in the order of arrival for each tag.
    pub(super) fn extract_unexpected(&mut self, is_meant: impl Fn(Tag, &Message) -> bool) -> Vec<Message> {
        let mut found = Vec::new();
        for bucket in &mut self.buckets {
            for (tag, message) in std::mem::take(&mut bucket.unexpected) {
                match is_meant(tag, &message) {
                    true => found.push(message),
                    false => bucket.unexpected.push_back((tag, message)),
                }
            }
        }
        found
    }

    /// All unexpected messages, in the order of arrival for each tag.
    pub(super) fn unexpected(&self) -> impl Iterator<Item = &Message> {
        self.buckets.iter().flat_map(|bucket| bucket.unexpected.iter().map(|(_, message)| message))
    }

    pub(super) fn clear(&mut self) {
        for bucket in &mut self.buckets {
            bucket.posted.clear();
            bucket.unexpected.clear();
        }
    }

    #[inline]
    fn bucket(&mut self, tag: Tag) -> &mut Bucket<Message> {
        // The golden ratio: tags differ in a few bits anywhere.
        let spread = tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &mut self.buckets[spread as usize % BUCKETS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rank;

    #[test]
    fn the_first_of_a_tag_comes_first() {
        let mut queues = MatchQueues::<char>::new();
        let tag = |round| Tag::new(Rank(1), 0, 0, round);
        // More tags than buckets, so that some share one.
        for number in 0..3 {
            (0..100).for_each(|round| queues.post(tag(round), u64::from(round) * 10 + number));
        }
        assert!(queues.cancel(tag(7), 71));
        assert!(!queues.cancel(tag(7), 71));
        for round in (0..100).rev() {
            let first = u64::from(round) * 10;
            assert_eq!(queues.take_posted(tag(round)), Some(first));
            assert_eq!(queues.take_posted(tag(round)), (round != 7).then_some(first + 1).or(Some(first + 2)));
        }
        assert_eq!(queues.take_posted(tag(7)), None);
        for (round, message) in [(1, 'a'), (2, 'b'), (1, 'c'), (1, 'd')] {
            queues.keep_unexpected(tag(round), message);
        }
        assert_eq!(queues.take_unexpected_if(tag(1), |message| *message == 'c'), Some('c'));
        assert_eq!(queues.take_unexpected_if(tag(2), |message| *message == 'a'), None);
        assert_eq!([(); 3].map(|()| queues.take_unexpected(tag(1))), [Some('a'), Some('d'), None]);
        queues.clear();
        assert_eq!((queues.take_unexpected(tag(2)), queues.take_posted(tag(0))), (None, None));
    }
}
