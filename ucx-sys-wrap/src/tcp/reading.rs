//! The message that is arriving, and the read that continues it.

use std::io::IoSliceMut;

use super::frame::{HEADER_BYTES, Header};
use super::matching::Receives;
use super::remote::Accesses;
use super::sizes::Sizes;
use super::staging::Staging;
use super::wire::Wire;
use crate::{Mark, Signature, Statistics, Tag};

/// The most that is read at once for a message that is kept, in bytes: memory grows as bytes come, not as the
/// header announces.
const KEEP_STEP: usize = 128 << 10;

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

/// Reads some of the payload of a put or get.
pub(super) fn read_remote(
    wire: &mut Wire,
    arriving: &mut Arriving,
    accesses: &mut Accesses,
    staging: &mut Staging,
    limit: usize,
    statistics: &mut Statistics,
) -> rustix::io::Result<(usize, usize)> {
    let asked = (arriving.end - arriving.received).min(limit);
    let Some(read) = accesses.read(wire, arriving.received, asked, statistics) else {
        return staging.fill(wire, statistics);
    };
    let got = read?;
    arriving.received += got;
    Ok((asked, got))
}

/// Appends staged bytes to the message that is kept.
pub(super) fn keep(bytes: &[u8], receives: &mut Receives, statistics: &mut Statistics) {
    if bytes.is_empty() {
        return;
    }
    if let Some(kept) = receives.arriving_bytes() {
        // A copy: the staging area is needed for what follows.
        kept.extend_from_slice(bytes);
        statistics.copies += 1;
        statistics.bytes_copied += bytes.len() as u64;
    }
}
