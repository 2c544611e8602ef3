//! Long messages: whether they are read from the sender's memory or come through the ring, and how they are
//! read: piece by piece, a piece a turn, so that others are not kept waiting.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::super::cell::{Head, Place};
use super::super::receives::Places;
use super::super::sending::Sender;
use super::super::{News, OPEN_AT, OPEN_MESSAGES};
use super::Receiver;
use crate::Statistics;
use crate::buffer::HUGE_PAGE_BYTES;
use crate::shm::{Neighbourhood, PeerArea, blocks};

/// What is read in one turn, at most, in bytes: a message of another tag waits no longer than that takes, 0.2
/// ms. Pieces of 1 MiB took 1.05 of the time at 2 MiB, and 1.1 to 1.3 at 16 MiB.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// Longer messages are read in more than one turn, or come through the ring. Others are read at once.
const LONG_BYTES: usize = 1 << 20;

/// A message on ordinary pages comes through the ring unless it is longer than so many rings. The kernel looks
/// such pages up one by one, which takes longer than the second copy. But through a small ring the two ranks
/// wait for each other too often.
const MOST_RINGS: usize = 8;

/// A message of which `done` bytes are read.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) head: Head,
    pub(super) place: Place,
    pub(super) done: usize,
    /// `None` once its receive has been canceled.
    pub(super) receive: Option<usize>,
}

/// The neighbour's memory, from which messages are read that it offers.
pub(super) struct PeerMemory {
    pub(super) neighbourhood: Arc<Neighbourhood>,
    /// The neighbour's place there, and its block for this rank.
    pub(super) place: usize,
    pub(super) theirs: PeerArea,
    pub(super) is_open: bool,
}

impl PeerMemory {
    /// Whether an offered message may be read.
    fn may_be_read(&self, offer: &Place) -> bool {
        self.is_open && offer.word < OPEN_MESSAGES
    }

    /// Reads `bytes` of an offered message, if it may be read; says whether it has, and they are its bytes.
    pub(super) fn read(
        &self,
        head: &Head,
        offer: &Place,
        bytes: Range<usize>,
        into: &mut Places<'_>,
    ) -> bool {
        if !self.may_be_read(offer) {
            return false;
        }
        let word = OPEN_AT + 8 * offer.word;
        // It is looked at below, and comes from the neighbour's cache while the kernel copies.
        blocks::ask_to_read(&self.theirs, word, 8);
        let is_read = self.neighbourhood.read_memory(self.place, offer.spans(head, bytes), into);
        // The sender takes the word away before it lets go of the memory.
        fence(Ordering::SeqCst);
        is_read && self.theirs.load(word) == offer.serial
    }

    /// Reads an offered message to the heap, if it may be read.
    pub(super) fn fetch(&self, head: &Head, offer: &Place) -> Option<Vec<u8>> {
        if !self.may_be_read(offer) {
            return None;
        }
        let mut bytes = vec![0; head.bytes()];
        let mut into = Places::from_iter([IoSliceMut::new(&mut bytes)]);
        let is_read = self.read(head, offer, 0..head.bytes(), &mut into);
        drop(into);
        is_read.then_some(bytes)
    }
}

impl Receiver {
    /// Whether a message is long: it is not read at once, in the turn in which it is matched.
    pub(super) fn is_long(&self, head: &Head) -> bool {
        head.bytes() > self.piece_bytes.min(LONG_BYTES)
    }

    /// Has a long message that is offered come to the posted receive `key`.
    pub(super) fn begin_read(
        &mut self,
        key: usize,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        if self.memory.may_be_read(&place) && self.is_faster_read(key, &head, &place) {
            self.reads.push_back(Reading { head, place, done: 0, receive: Some(key) });
        } else {
            self.settle(false, key, (head, place), sender, counts);
        }
    }

    /// Whether it is faster to read a message than to have it come through the ring.
    fn is_faster_read(&mut self, key: usize, head: &Head, place: &Place) -> bool {
        let bytes = head.bytes();
        let into = self.receives.places(key, head, 0, bytes);
        let ours = on_small_pages(into.iter().map(|place| (place.as_ptr().addr(), place.len())));
        let theirs = on_small_pages(place.addresses.into_iter().zip(head.lengths));
        bytes <= LONG_BYTES || bytes / MOST_RINGS > self.ring.bytes() || 2 * ours.max(theirs) <= bytes
    }

    /// Reads the next piece of the first of these messages, unless it could not be answered. Says whether
    /// anything moved.
    pub(in super::super) fn read_on(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        let Some(reading) = self.reads.front() else { return false };
        let Reading { head, place, done, receive } = *reading;
        let Some(key) = receive else {
            self.reads.pop_front();
            sender.answer(News::Refused(place.number), counts);
            return true;
        };
        if !sender.can_answer() {
            return false;
        }
        let end = head.bytes().min(done + self.piece_bytes);
        let mut into = self.receives.places(key, &head, done, end);
        let is_read = self.memory.read(&head, &place, done..end, &mut into);
        drop(into);
        counts.bytes_received += if is_read { (end - done) as u64 } else { 0 };
        match self.reads.front_mut() {
            Some(reading) if is_read && end < head.bytes() => reading.done = end,
            _ => {
                self.reads.pop_front();
                self.settle(is_read, key, (head, place), sender, counts);
            }
        }
        true
    }
}

/// How many bytes of these stretches (address and bytes) lie on ordinary pages. Nothing says so cheaply: what
/// begins where a huge page does lies on such ones mostly, as buffers of a [`Pool`](crate::buffer::Pool) do.
fn on_small_pages(stretches: impl Iterator<Item = (usize, usize)>) -> usize {
    stretches.filter(|(address, _)| !address.is_multiple_of(HUGE_PAGE_BYTES)).map(|(_, bytes)| bytes).sum()
}
