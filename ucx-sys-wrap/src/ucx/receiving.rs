//! Receives: a small state machine from the header to the parts.
//!
//! The header of a message travels under the message's tag, its parts under the same tag with kinds 1 to 3. UCX matches
//! receives to messages of one tag in the order in which both were posted, so parts meet their header's receive if
//! both sides keep one order:
//!
//! - The sender posts a message's header and parts together, messages of one tag in the order of posting, and no UCX
//!   message for an empty part.
//! - The receiver has at most one header receive of a tag posted: the receives of one tag stand in a *line*, and only
//!   the first has its header receive posted. When the header comes, receives for exactly the parts that it announces
//!   are posted, and only then the next in line posts its header receive. So part receives are posted in the order of
//!   headers, whatever order UCX reports completions in.
//! - Parts that have no place (the message does not fit, or its receive was canceled between) are received into no
//!   memory at all: UCX discards what is too long, the sender's operation completes, and the line goes on unharmed.
//! - A message that its sender wants back is discarded in the same way when its header is first in line. A header that
//!   was taken in search of such a message is kept, and goes to the next receive of its tag before any other.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::aside::{Aside, DISCARDED};
use super::engine::Engine;
use super::incoming::{Finished, Incoming, Means, Taken};
use super::sending::Withdrawal;
use super::table::Table;
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Rank, Tag};

/// The receives of one rank, until they are tested.
pub(super) struct Receives {
    operations: Table<Incoming>,
    lines: HashMap<Tag, Line, BuildHasherDefault<TagHasher>>,
    pub(super) aside: Aside,
}

/// The receives of one tag that have no header yet.
struct Line {
    first: u64,
    last: u64,
}

impl Receives {
    pub(super) fn new() -> Self {
        Self { operations: Table::new(), lines: HashMap::default(), aside: Aside::default() }
    }

    #[inline]
    pub(super) fn post(
        &mut self,
        mut means: Means<'_>,
        from: Rank,
        envelope: &Envelope,
        parts: RecvParts,
        posted_in: u32,
    ) -> Posted<u64, Finished> {
        let tag = envelope.tag;
        let mut incoming = Incoming::new(from, envelope, parts, posted_in);
        if let Some(line) = self.lines.get_mut(&tag) {
            let number = self.operations.insert(incoming);
            if let Some(last) = self.operations.get_mut(line.last) {
                last.next = Some(number);
            }
            line.last = number;
            return Posted::Pending(number);
        }
        let number = self.operations.next_number();
        if let Some(header) = self.aside.take_early(tag) {
            if let Taken::Unwanted(header) = incoming.accept(header, &[], &mut means) {
                self.aside.discard(&mut means, &header);
            }
        } else if !incoming.open(&mut means, number) || !settle(&mut incoming, &mut means, &mut self.aside, number) {
            self.lines.insert(tag, Line { first: number, last: number });
        }
        match incoming.finish(&mut means, &mut self.aside.violation) {
            true => Posted::Done(incoming.finished()),
            false => Posted::Pending(self.operations.insert(incoming)),
        }
    }

    /// Draws the consequences of headers that have come. Says whether there were any.
    #[inline]
    pub(super) fn settle(&mut self, mut means: Means<'_>) -> bool {
        let mut moved = false;
        while let Some(number) = means.engine.flights.next_announced() {
            moved = true;
            if number == DISCARDED {
                self.aside.reap_discarded(means.engine);
            } else {
                self.header_has_come(&mut means, number);
            }
        }
        moved
    }

    /// Takes the header of the first in a line, and lets those behind it move up.
    #[inline]
    fn header_has_come(&mut self, means: &mut Means<'_>, number: u64) {
        let mut first = number;
        loop {
            let Some(incoming) = self.operations.get_mut(first) else { return };
            let (tag, next) = (incoming.tag, incoming.next.take());
            if !settle(incoming, means, &mut self.aside, first) {
                incoming.next = next;
                return;
            }
            let Some(next) = next else {
                self.lines.remove(&tag);
                return;
            };
            let Some(line) = self.lines.get_mut(&tag) else { return };
            line.first = next;
            first = next;
            if !self.operations.get_mut(first).is_some_and(|incoming| incoming.open(means, first)) {
                return;
            }
        }
    }

    /// A sender wants a message back. It is discarded as soon as it is found; what was matched goes on.
    pub(super) fn withdraw(&mut self, message: Withdrawal) {
        self.aside.remember(message);
    }

    /// Looks for messages that are wanted back where no receive will find them. Says whether there was one.
    pub(super) fn seek_withdrawn(&mut self, mut means: Means<'_>) -> bool {
        let (mut found, mut position) = (false, 0);
        while let Some(tag) = self.aside.withdrawn_tag(position) {
            found |= !self.lines.contains_key(&tag) && self.aside.seek_withdrawn(&mut means, tag);
            position += 1;
        }
        found
    }

    /// Gives a receive back that is over.
    #[inline]
    pub(super) fn test(&mut self, mut means: Means<'_>, number: u64) -> Option<Finished> {
        if !self.operations.get_mut(number)?.finish(&mut means, &mut self.aside.violation) {
            return None;
        }
        self.operations.remove(number).map(Incoming::finished)
    }

    /// Asks a receive to end; [`settle`](Self::settle) must follow. One whose parts are on the way goes on.
    pub(super) fn cancel(&mut self, engine: &Engine, number: u64) {
        let Some(incoming) = self.operations.get_mut(number) else { return };
        if incoming.cancel(engine) {
            self.leave_line(number);
        }
    }

    /// Takes a receive that is not the first out of its line, and ends it.
    fn leave_line(&mut self, number: u64) {
        let Some(incoming) = self.operations.get_mut(number) else { return };
        incoming.end(Error::Canceled);
        let (tag, next) = (incoming.tag, incoming.next.take());
        let Some(line) = self.lines.get_mut(&tag) else { return };
        let mut before = line.first;
        while let Some(incoming) = self.operations.get_mut(before) {
            match incoming.next {
                Some(behind) if behind == number => {
                    incoming.next = next;
                    if line.last == number {
                        line.last = before;
                    }
                    return;
                }
                Some(behind) => before = behind,
                None => return,
            }
        }
    }

    /// Ends every receive with `error` but those whose parts UCX may still write; all of them once it is torn down.
    pub(super) fn end_all(&mut self, means: &mut Means<'_>, error: &Error) {
        self.lines.clear();
        for incoming in self.operations.iter_mut() {
            incoming.next = None;
            if incoming.give_up(means) {
                incoming.end(error.clone());
            }
        }
        while means.engine.flights.next_announced().is_some() {}
        self.aside.reap_discarded(means.engine);
    }

    /// The peers of receives that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations.iter().filter(|incoming| !incoming.is_over()).map(Incoming::wait)
    }
}

/// Draws the consequences of a header receive that is over; false if another one had to be posted.
#[inline]
fn settle(incoming: &mut Incoming, means: &mut Means<'_>, aside: &mut Aside, number: u64) -> bool {
    loop {
        match incoming.take_header(means, aside) {
            Taken::Settled => return true,
            Taken::Unwanted(header) => {
                aside.discard(means, &header);
                return true;
            }
            Taken::Withdrawn(header) => aside.discard(means, &header),
        }
        if !incoming.open(means, number) {
            return false;
        }
    }
}

/// Spreads tags, which this rank's own callers choose, over the table.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The golden ratio; the table uses the high bits and, folded in, the low ones.
        let spread = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}
