//! Speculative reads: a header and its payload in one system call, on the guess that the message is for the
//! first waiting receive.
//!
//! The header and what follows the message go to the staging area, the payload between them to the parts of
//! the receive. After a wrong guess that payload is moved to the staging area and processed as usual; the
//! receive still waits, so nobody looks at its parts.

use std::io::IoSliceMut;

use super::frame::HEADER_BYTES;
use super::matching::{Places, Receives};
use super::sizes::Sizes;
use super::staging::{STAGED_PAYLOAD, Staging};
use super::wire::Wire;
use crate::{Statistics, Tag};

/// The most payload of a speculative read, in bytes.
const GUESSED_PAYLOAD: usize = 256 << 10;

/// Reads without a guess after a wrong one; their number doubles with each further wrong guess.
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

/// The outcome of a speculative read.
pub(super) struct Guessed {
    pub(super) asked: usize,
    pub(super) got: usize,
    /// Bytes of payload in the parts of the receive.
    pub(super) in_place: usize,
}

impl Confidence {
    /// The guessed receive, if its message may be too large for the staging area.
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

    /// Adapts to the outcome of a guess.
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
        let in_place = got.saturating_sub(HEADER_BYTES).min(payload);
        staging.filled(got - in_place);
        Ok(Guessed { asked, got, in_place })
    }

    /// Whether the first `count` bytes of payload lie where a message of these lengths needs them.
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

    /// Moves payload of another message from the parts to the staging area, behind its header.
    pub(super) fn take_back(
        &self,
        in_place: usize,
        staging: &mut Staging,
        receives: &mut Receives,
        statistics: &mut Statistics,
    ) {
        let (header, rest) = staging.staged().split_at(HEADER_BYTES);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + in_place + rest.len());
        bytes.extend_from_slice(header);
        for place in receives.places(self.key, &self.capacities, 0, in_place) {
            // A copy: the guess was wrong.
            bytes.extend_from_slice(&place);
            statistics.copies += 1;
        }
        statistics.bytes_copied += in_place as u64;
        bytes.extend_from_slice(rest);
        staging.replace(bytes);
    }
}
