//! Long messages: which way they take, and how they are read from the sender's memory: piece by piece, a
//! piece a turn, so that others are not kept waiting.

use super::super::cell::{Head, Place};
use super::super::sending::{Reply, Sender};
use super::super::{OPEN_MESSAGES, PIPES_AT};
use super::offers::read_memory;
use super::ways::{Class, Trial, Way};
use super::{Granted, Receiver};
use crate::Statistics;
use crate::buffer::HUGE_PAGE_BYTES;

/// What is read in one turn, at most, in bytes: a message of another tag waits no longer than that takes, 0.2
/// ms. Pieces of 1 MiB took 1.05 of the time at 2 MiB, and 1.1 to 1.3 at 16 MiB.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// Longer messages are worth a choice of ways.
const LONG_BYTES: usize = 1 << 20;

/// A message of which `done` bytes are read, from memory or from pipes.
#[derive(Clone, Copy)]
pub(super) struct Reading {
    pub(super) head: Head,
    pub(super) place: Place,
    pub(super) done: usize,
    /// `None` once its receive has been canceled.
    pub(super) receive: Option<usize>,
    pub(super) trial: Trial,
}

impl Receiver {
    /// Whether a message is long: it may take another way than one that is read at once, and more than a
    /// turn.
    pub(super) fn is_long(&self, head: &Head) -> bool {
        head.bytes() > self.piece_bytes.min(LONG_BYTES)
    }

    /// Has an offered message come to the posted receive `key`, the way that is the fastest of those that are
    /// possible.
    pub(super) fn begin_read(
        &mut self,
        key: usize,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        if !self.may_read || place.word >= OPEN_MESSAGES {
            return self.settle(false, key, (head, place), sender, counts);
        }
        let into = self.receives.places(key, &head, 0, head.bytes());
        let theirs = place.addresses.into_iter().zip(head.lengths);
        let on_small_pages = on_small_pages(into.iter().map(|place| (place.as_ptr().addr(), place.len())));
        let class = Class::new(head.bytes(), on_small_pages.max(self::on_small_pages(theirs)));
        drop(into);
        let mut trial = self.ways.choose(class, head.bytes(), self.outlet.may_be_open());
        if trial.way == Way::Pipe && self.outlet.invite(&self.neighbourhood, self.place, PIPES_AT).is_none() {
            trial = self.ways.choose(class, head.bytes(), false);
        }
        let reading = Reading { head, place, done: 0, receive: Some(key), trial };
        match trial.way {
            Way::Read => self.reads.push_back(reading),
            Way::Pipe => {
                self.piped.push_back(reading);
                sender.answer(Reply::pipe(place.number), counts);
            }
            Way::Ring => {
                self.granted.insert(place.number, Granted { head, receive: Some(key), trial: Some(trial) });
                sender.answer(Reply::grant(place.number), counts);
            }
        }
    }

    /// Reads the next piece of the first of these messages, unless it could not be answered. Says whether
    /// anything moved.
    pub(in super::super) fn read_on(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        let Some(reading) = self.reads.front_mut() else { return false };
        if reading.done == 0 {
            reading.trial.begin();
        }
        let Reading { head, place, done, receive, trial } = *reading;
        let Some(key) = receive else {
            self.reads.pop_front();
            sender.answer(Reply::refusal(place.number), counts);
            return true;
        };
        if !sender.can_answer() {
            return false;
        }
        let end = head.bytes().min(done + self.piece_bytes);
        let mut into = self.receives.places(key, &head, done, end);
        let neighbour = (self.place, &self.theirs);
        let is_read =
            read_memory(true, &self.neighbourhood, neighbour, (&head, &place), done..end, &mut into);
        drop(into);
        counts.bytes_received += if is_read { (end - done) as u64 } else { 0 };
        match self.reads.front_mut() {
            Some(reading) if is_read && end < head.bytes() => reading.done = end,
            _ => {
                self.reads.pop_front();
                if is_read {
                    self.ways.learn(trial);
                }
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
