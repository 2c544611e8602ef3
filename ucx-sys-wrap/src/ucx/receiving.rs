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

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::NonNull;

use super::engine::Engine;
use super::flight::Flight;
use super::header::Header;
use super::incoming::{Finished, Incoming, Means};
use super::table::Table;
use crate::transport::{Posted, RecvParts};
use crate::{Envelope, Error, Rank, Tag};

/// The owner of flights that discard parts.
const DISCARDED: u64 = u64::MAX;

/// The receives of one rank, until they are tested.
pub(super) struct Receives {
    operations: Table<Incoming>,
    lines: HashMap<Tag, Line, BuildHasherDefault<TagHasher>>,
    /// Parts that are being discarded.
    discarded: Vec<Flight>,
    /// The first peer that sent what is no message of ours.
    pub(super) violation: Option<(Rank, Error)>,
}

/// The receives of one tag that have no header yet.
struct Line {
    first: u64,
    last: u64,
}

impl Receives {
    pub(super) fn new() -> Self {
        Self { operations: Table::new(), lines: HashMap::default(), discarded: Vec::new(), violation: None }
    }

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
        if incoming.open(&mut means, number) {
            if let Some(header) = incoming.take_header(&mut means, &mut self.violation) {
                self.discard(&mut means, &header);
            }
        } else {
            self.lines.insert(tag, Line { first: number, last: number });
        }
        match incoming.finish(&mut means, &mut self.violation) {
            true => Posted::Done(incoming.finished()),
            false => Posted::Pending(self.operations.insert(incoming)),
        }
    }

    /// Draws the consequences of headers that have come. Says whether there were any.
    pub(super) fn settle(&mut self, mut means: Means<'_>) -> bool {
        let mut moved = false;
        while let Some(number) = means.engine.flights.next_announced() {
            moved = true;
            if number == DISCARDED {
                self.reap_discarded(means.engine);
            } else {
                self.header_has_come(&mut means, number);
            }
        }
        moved
    }

    /// Takes the header of the first in a line, and lets those behind it move up.
    fn header_has_come(&mut self, means: &mut Means<'_>, number: u64) {
        let mut first = number;
        loop {
            let Some(incoming) = self.operations.get_mut(first) else { return };
            let (tag, next) = (incoming.tag, incoming.next.take());
            if let Some(header) = incoming.take_header(means, &mut self.violation) {
                self.discard(means, &header);
            }
            match (next, self.lines.get_mut(&tag)) {
                (Some(next), Some(line)) => {
                    line.first = next;
                    first = next;
                }
                _ => {
                    self.lines.remove(&tag);
                    return;
                }
            }
            if !self.operations.get_mut(first).is_some_and(|incoming| incoming.open(means, first)) {
                return;
            }
        }
    }

    /// Receives the parts of a message into no memory.
    fn discard(&mut self, means: &mut Means<'_>, header: &Header) {
        for (length, kind) in header.lengths.iter().zip(1..) {
            if *length == 0 {
                continue;
            }
            let flight = means.engine.flights.take();
            let nowhere = NonNull::<u8>::dangling().as_ptr();
            // SAFETY: nothing is written to zero bytes.
            let is_over =
                unsafe { means.engine.recv(header.tag.with_kind(kind).0, nowhere, 0, &flight, Some(DISCARDED)) };
            if is_over {
                means.engine.reap(&flight);
                means.engine.flights.put(flight);
            } else {
                self.discarded.push(flight);
            }
        }
    }

    fn reap_discarded(&mut self, engine: &mut Engine) {
        let mut position = 0;
        while let Some(flight) = self.discarded.get(position) {
            if engine.reap(flight).is_none() {
                position += 1;
                continue;
            }
            let flight = self.discarded.swap_remove(position);
            engine.flights.put(flight);
        }
    }

    /// Gives a receive back that is over.
    pub(super) fn test(&mut self, mut means: Means<'_>, number: u64) -> Option<Finished> {
        if !self.operations.get_mut(number)?.finish(&mut means, &mut self.violation) {
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
        self.reap_discarded(means.engine);
    }

    /// The peers of receives that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations.iter().filter(|incoming| !incoming.is_over()).map(Incoming::wait)
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

    fn write_u64(&mut self, word: u64) {
        // The golden ratio; the table uses the high bits and, folded in, the low ones.
        let spread = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}
