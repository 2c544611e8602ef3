//! Reading a header and its payload in one system call, on the guess that they belong to the first waiting
//! receive.
//!
//! The read goes to three places: the header and what follows the message to the staging area, the payload
//! between them to the parts of the receive. When the guess was wrong, what has landed there is staged again
//! and read as usual; the receive still waits, so nobody looks at its parts.

use std::io::IoSliceMut;

use super::frame::HEADER_BYTES;
use super::matching::{Places, Receives};
use super::sizes::Sizes;
use super::staging::{STAGED_PAYLOAD, Staging};
use super::wire::Wire;
use crate::{Statistics, Tag};

/// How much is read on a guess, in bytes.
const GUESSED_PAYLOAD: usize = 256 << 10;

/// After a wrong guess so many reads are made without, twice as many after the next, up to the most.
const FEWEST_PAUSES: u32 = 16;
const MOST_PAUSES: u32 = 1024;

/// When to guess.
#[derive(Default)]
pub(super) struct Confidence {
    pauses: u32,
    pauses_left: u32,
}

/// A receive that the next message is guessed to be for.
pub(super) struct Guess {
    pub(super) tag: Tag,
    pub(super) key: usize,
    capacities: Sizes,
}

/// What a read on a guess has brought.
pub(super) struct Guessed {
    pub(super) asked: usize,
    pub(super) got: usize,
    /// Bytes that are in the parts of the receive.
    pub(super) landed: usize,
}

impl Confidence {
    /// The receive to guess, if its message would be too large for the staging area.
    #[inline]
    pub(super) fn guess(&mut self, staging: &Staging, receives: &Receives) -> Option<Guess> {
        if !staging.is_empty() {
            return None;
        }
        let (tag, key) = receives.first_waiting()?;
        let capacities = receives.capacities(key);
        if capacities.total() <= STAGED_PAYLOAD {
            return None;
        }
        if self.pauses_left > 0 {
            self.pauses_left -= 1;
            return None;
        }
        Some(Guess { tag, key, capacities })
    }

    /// Takes note of how a guess has turned out.
    pub(super) fn learn(&mut self, was_right: bool) {
        self.pauses = if was_right { 0 } else { (self.pauses * 2).clamp(FEWEST_PAUSES, MOST_PAUSES) };
        self.pauses_left = self.pauses;
    }
}

impl Guess {
    /// Reads a header, the payload and what follows.
    pub(super) fn read(
        &self,
        wire: &mut Wire,
        staging: &mut Staging,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<Guessed> {
        let capacity: usize = self.capacities.total();
        let payload = capacity.min(GUESSED_PAYLOAD).min(limit);
        let (header, rest) = staging.room().split_at_mut(HEADER_BYTES);
        let mut places = Places::new();
        places.push(IoSliceMut::new(header));
        places.extend(receives.places(self.key, &self.capacities, 0, payload));
        if payload == capacity {
            places.push(IoSliceMut::new(rest));
        }
        let asked = places.iter().map(|place| place.len()).sum();
        let got = wire.read(&mut places, statistics)?;
        drop(places);
        let landed = got.saturating_sub(HEADER_BYTES).min(payload);
        staging.filled(got - landed);
        Ok(Guessed { asked, got, landed })
    }

    /// Whether the first `count` bytes of payload lie where a message of these lengths wants them.
    pub(super) fn is_in_place(&self, lengths: &Sizes, count: usize) -> bool {
        let mut aligned = 0;
        for (length, capacity) in lengths.iter().zip(&*self.capacities) {
            aligned += length;
            if length < capacity {
                return count <= aligned;
            }
        }
        true
    }

    /// Stages what has landed in the wrong place, between the header and what follows.
    pub(super) fn take_back(
        &self,
        landed: usize,
        staging: &mut Staging,
        receives: &mut Receives,
        statistics: &mut Statistics,
    ) {
        let (header, rest) = staging.staged().split_at(HEADER_BYTES);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + landed + rest.len());
        bytes.extend_from_slice(header);
        for place in receives.places(self.key, &self.capacities, 0, landed) {
            // A copy: the guess was wrong, and these bytes belong elsewhere.
            bytes.extend_from_slice(&place);
            statistics.copies += 1;
        }
        statistics.bytes_copied += landed as u64;
        bytes.extend_from_slice(rest);
        staging.replace(bytes);
    }
}
