//! Reads into place: the rest of an arriving message, or speculatively a header and its payload.
//!
//! A speculative read takes both in one system call, on the guess that the message is for the first waiting
//! receive. The header and what follows the message go to the staging area, the payload between them to the
//! parts of the receive. After a wrong guess that payload is moved to the staging area and processed as
//! usual; the receive still waits, so nobody looks at its parts.

use std::io::IoSliceMut;

use super::frame::{HEADER_BYTES, Header};
use super::matching::{Places, Receives};
use super::sizes::Sizes;
use super::staging::{STAGED_PAYLOAD, Staging};
use super::wire::Wire;
use crate::{Mark, Signature, Statistics, Tag};

/// The most that is read at once for a message that is kept, in bytes: memory grows as bytes come, not as the
/// header announces.
const KEEP_STEP: usize = 128 << 10;

/// The most payload of a speculative read, in bytes.
const GUESSED_PAYLOAD: usize = 256 << 10;

/// Reads without a guess after a wrong one; their number doubles with each further wrong guess.
const FEWEST_PAUSES: u32 = 16;
const MOST_PAUSES: u32 = 1024;

/// A message whose header and first `received` bytes of payload have come.
pub(super) struct Arriving {
    pub(super) header: Header,
    /// The end of the current frame, in bytes of payload.
    pub(super) end: usize,
    pub(super) received: usize,
    pub(super) target: Target,
    /// The number of its RTS, for a rendezvous message.
    pub(super) rts: Option<u32>,
}

impl Arriving {
    /// The payload of a put or get.
    pub(super) fn remote(payload_bytes: usize) -> Self {
        let (tag, signature, mark, lengths) = (Tag(0), Signature::default(), Mark::NONE, Sizes::default());
        let header = Header { tag, signature, mark, lengths };
        Self { header, end: payload_bytes, received: 0, target: Target::Remote, rts: None }
    }

    /// Whether more of it follows in another data frame.
    pub(super) fn is_continued(&self) -> bool {
        self.target != Target::Remote && self.end < self.header.payload_bytes()
    }
}

/// Where the payload of the arriving message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Into the parts of this receive.
    Posted(usize),
    /// To the heap, as the last unexpected message.
    Kept,
    /// To the region or the buffer of a put or get.
    Remote,
    /// Nowhere: its receive has ended.
    Discarded,
}

/// Reads the rest of a message into the parts of its receive, and what follows it into the staging area.
pub(super) fn read_in_place(
    wire: &mut Wire,
    key: usize,
    arriving: &mut Arriving,
    staging: &mut Staging,
    receives: &mut Receives,
    limit: usize,
    statistics: &mut Statistics,
) -> rustix::io::Result<(usize, usize)> {
    let missing = arriving.end - arriving.received;
    let mut places = receives.places(key, &arriving.header.lengths, arriving.received, missing.min(limit));
    if missing <= limit {
        let room = staging.room();
        // The next data frame goes to the parts as well: only its header is staged.
        let wanted = if arriving.is_continued() { room.len().min(HEADER_BYTES) } else { room.len() };
        places.push(IoSliceMut::new(&mut room[..wanted]));
    }
    let asked = places.iter().map(|place| place.len()).sum();
    let got = wire.read(&mut places, statistics)?;
    drop(places);
    let in_place = got.min(missing);
    arriving.received += in_place;
    staging.filled(got - in_place);
    Ok((asked, got))
}

/// Reads some of a message that is kept.
pub(super) fn read_kept(
    wire: &mut Wire,
    arriving: &mut Arriving,
    receives: &mut Receives,
    limit: usize,
    statistics: &mut Statistics,
) -> rustix::io::Result<(usize, usize)> {
    let asked = (arriving.end - arriving.received).min(KEEP_STEP).min(limit);
    let Some(bytes) = receives.arriving_bytes() else { return Ok((0, 0)) };
    let kept = bytes.len();
    if bytes.capacity() - kept < asked {
        bytes.reserve_exact((arriving.end - kept).min(kept.max(KEEP_STEP)));
    }
    bytes.resize(kept + asked, 0);
    let result = wire.read(&mut [IoSliceMut::new(&mut bytes[kept..])], statistics);
    let got = result.unwrap_or(0);
    bytes.truncate(kept + got);
    arriving.received += got;
    result.map(|got| (asked, got))
}

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

impl Confidence {
    /// The guessed receive, if its message may be too large for the staging area.
    #[inline]
    pub(super) fn guess(&mut self, staging: &Staging, receives: &Receives) -> Option<Guess> {
        if !staging.staged().is_empty() {
            return None;
        }
        let (tag, key) = receives.waiting.front().copied()?;
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
    /// Reads a header, the payload and what follows. Gives the bytes asked for, the bytes got, and how many
    /// of these are in the parts of the receive.
    pub(super) fn read(
        &self,
        wire: &mut Wire,
        staging: &mut Staging,
        receives: &mut Receives,
        limit: usize,
        statistics: &mut Statistics,
    ) -> rustix::io::Result<(usize, usize, usize)> {
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
        Ok((asked, got, in_place))
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
