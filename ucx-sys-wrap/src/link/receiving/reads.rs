//! Long messages that are read from the sender's memory: piece by piece, a piece a turn, so that others are not kept waiting.

use super::super::cell::{Head, Place};
use super::super::sending::{Reply, Sender};
use super::super::{MOST_ON_SMALL_PAGES, OPEN_MESSAGES, on_small_pages};
use super::Receiver;
use super::offers::read_memory;
use crate::Statistics;

/// What is read in one turn, at most, in bytes: a message of another tag waits no longer than that takes.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// A message of which `done` bytes are read.
pub(super) struct Reading {
    head: Head,
    place: Place,
    done: usize,
    /// `None` once its receive has been canceled.
    pub(super) receive: Option<usize>,
}

impl Receiver {
    /// Whether a message takes more than a turn to read.
    pub(super) fn is_long(&self, head: &Head) -> bool {
        head.bytes() > self.piece_bytes
    }

    /// Has an offered message read in this turn and the next ones, to the posted receive `key`; or asks for its bytes, if it
    /// may not be read or would arrive later so.
    pub(super) fn begin_read(
        &mut self,
        key: usize,
        (head, place): (Head, Place),
        sender: &mut Sender,
        counts: &mut Statistics,
    ) {
        let may_read = self.may_read && place.word < OPEN_MESSAGES;
        let into = self.receives.places(key, &head, 0, head.bytes());
        let on_small_pages = on_small_pages(into.iter().map(|place| &place[..]));
        drop(into);
        if may_read && on_small_pages <= MOST_ON_SMALL_PAGES {
            self.reads.push_back(Reading { head, place, done: 0, receive: Some(key) });
        } else {
            self.settle(false, key, (head, place), sender, counts);
        }
    }

    /// Reads the next piece of the first of these messages, unless it could not be answered. Says whether anything moved.
    pub(in super::super) fn read_on(&mut self, sender: &mut Sender, counts: &mut Statistics) -> bool {
        let Some(&Reading { head, place, done, receive }) = self.reads.front() else { return false };
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
        let is_read = read_memory(true, &self.neighbourhood, neighbour, (&head, &place), done..end, &mut into);
        drop(into);
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
