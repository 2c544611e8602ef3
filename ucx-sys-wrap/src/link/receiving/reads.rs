//! Messages that are read from the sender's memory. Long ones are read in fragments, one a turn, so that
//! others are not kept waiting, or come through the ring where that is faster.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::super::descriptor::{Header, Rts};
use super::super::receives::Slices;
use super::super::sending::Sender;
use super::super::{GUARDS, GUARDS_AT, Reply};
use super::Receiver;
use crate::Statistics;
use crate::buffer::{HUGE_PAGE_BYTES, HugePages};
use crate::shm::{LocalGroup, PeerArea, blocks};

/// Bytes that are read in one turn, at most. This bounds how long a message of another tag waits.
pub(super) const READ_BYTES: usize = 4 << 20;

/// Longer messages are not read in the turn in which they are matched.
const LONG_BYTES: usize = 1 << 20;

/// A message on ordinary pages comes through the ring unless it is longer than so many rings: the kernel
/// looks such pages up one by one, which takes longer than the second copy. Through a small ring, however,
/// the ranks wait for each other too often.
const MAX_RINGS: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) rts: Rts,
    pub(super) done: usize,
    /// `None` once its receive is canceled.
    pub(super) receive: Option<usize>,
}

/// The peer's memory.
pub(super) struct PeerMemory {
    pub(super) local_group: Arc<LocalGroup>,
    /// The peer's place there, and its channel for this rank.
    pub(super) place: usize,
    pub(super) theirs: PeerArea,
    pub(super) is_open: bool,
}

impl PeerMemory {
    fn is_readable(&self, rts: &Rts) -> bool {
        self.is_open && rts.guard < GUARDS
    }

    /// Reads `bytes` of a message after its RTS. Returns whether they were read and are valid.
    pub(super) fn read(&self, rts: &Rts, bytes: Range<usize>, mut into: Slices<'_>) -> bool {
        if !self.is_readable(rts) {
            return false;
        }
        let guard = GUARDS_AT + 8 * rts.guard;
        // The check below needs this word: prefetch it while the kernel copies.
        blocks::prefetch_to_read(&self.theirs, guard, 8);
        let is_read = self.local_group.read_memory(self.place, rts.spans(bytes), &mut into);
        // The sender clears the word before it releases the memory.
        fence(Ordering::SeqCst);
        is_read && self.theirs.load(guard) == rts.serial
    }

    /// Reads a message to the heap.
    pub(super) fn fetch(&self, rts: &Rts) -> Option<Vec<u8>> {
        if !self.is_readable(rts) {
            return None;
        }
        let mut bytes = vec![0; rts.header.bytes()];
        let into = Slices::from_iter([IoSliceMut::new(&mut bytes)]);
        self.read(rts, 0..rts.header.bytes(), into).then_some(bytes)
    }
}

impl Receiver {
    /// Whether a message is too long to be read in the turn in which it is matched.
    pub(super) fn is_long(&self, header: &Header) -> bool {
        header.bytes() > self.read_bytes.min(LONG_BYTES)
    }

    /// Starts to read a long message for the posted receive `key`, or asks for it.
    pub(super) fn begin_read(&mut self, key: usize, rts: &Rts, sender: &mut Sender, counts: &mut Statistics) {
        if self.memory.is_readable(rts) && self.should_read(key, rts) {
            self.reads.push_back(Reading { rts: *rts, done: 0, receive: Some(key) });
        } else {
            self.send_cts(key, rts, sender, counts);
        }
    }

    fn should_read(&mut self, key: usize, rts: &Rts) -> bool {
        let header = &rts.header;
        let bytes = header.bytes();
        let into = self.receives.slices(key, header, 0, bytes);
        let may_be_huge = HugePages::were_found();
        let ours = into.iter().map(|slice| (slice.as_ptr().addr(), slice.len()));
        let ours = on_small_pages(ours, may_be_huge);
        let theirs = on_small_pages(rts.addresses.into_iter().zip(header.lengths), may_be_huge);
        bytes <= LONG_BYTES || bytes / MAX_RINGS > self.ring.bytes() || 2 * ours.max(theirs) <= bytes
    }

    /// Reads the next fragment of the first message, unless it could not be answered. Returns whether
    /// anything moved.
    pub(in super::super) fn continue_read(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        let Some(reading) = self.reads.front() else { return false };
        let Reading { rts, done, receive } = *reading;
        let Some(key) = receive else {
            self.reads.pop_front();
            sender.reply(Reply::Nack(rts.number), counts);
            return true;
        };
        if !sender.can_reply() {
            return false;
        }
        let end = rts.header.bytes().min(done + self.read_bytes);
        let into = self.receives.slices(key, &rts.header, done, end);
        let is_read = self.memory.read(&rts, done..end, into);
        counts.bytes_received += if is_read { (end - done) as u64 } else { 0 };
        match self.reads.front_mut() {
            Some(reading) if is_read && end < rts.header.bytes() => reading.done = end,
            _ => {
                self.reads.pop_front();
                match is_read {
                    true => self.finish_read(key, &rts, sender, counts),
                    false => self.send_cts(key, &rts, sender, counts),
                }
            }
        }
        true
    }
}

/// Bytes of these slices (address and length) that lie on ordinary pages. There is no cheap way to know:
/// where pages may be huge, a slice that begins at the start of a huge page, as buffers of a
/// [`Pool`](crate::buffer::Pool) do, is taken to lie on huge pages.
fn on_small_pages(slices: impl Iterator<Item = (usize, usize)>, may_be_huge: bool) -> usize {
    let is_small = |address: usize| !may_be_huge || !address.is_multiple_of(HUGE_PAGE_BYTES);
    slices.filter(|(address, _)| is_small(*address)).map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_for_huge_ones_where_there_are_any() {
        let slices = [(3 * HUGE_PAGE_BYTES, 100), (64, 10), (4096, 1)];
        assert_eq!(on_small_pages(slices.into_iter(), true), 11);
        assert_eq!(on_small_pages(slices.into_iter(), false), 111);
    }
}
