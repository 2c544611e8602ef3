//! A frame that waits to be written.

use std::io::IoSlice;

use arrayvec::ArrayVec;

use super::sizes::HEADER_BYTES;
use crate::transport::SendParts;
use crate::{MAX_PARTS, Statistics};

/// The most frames in one system call.
pub(super) const FRAMES_PER_WRITE: usize = 16;

pub(super) type Slices<'a> = ArrayVec<IoSlice<'a>, { FRAMES_PER_WRITE * (1 + MAX_PARTS) }>;

/// A frame that is not written, or not to its end. The data of a rendezvous message is one such frame, which
/// is queued again with each fragment.
pub(super) struct Queued {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) payload: Payload,
    /// The range of the payload that this frame carries.
    pub(super) start: usize,
    pub(super) end: usize,
    /// The send that ends when this frame and the later fragments are written.
    pub(super) operation: Option<usize>,
    /// What an eager message takes of the credit.
    pub(super) credit: u64,
    /// The number of the RTS that this is, or by which the message is announced.
    pub(super) rts: Option<u32>,
    /// The number of the RTS of the message whose data this is.
    pub(super) data: Option<u32>,
    /// Whether it belongs to a put or get.
    pub(super) is_one_sided: bool,
}

pub(super) enum Payload {
    Leased(SendParts),
    /// The rest of a message whose send has ended early.
    Copied(Vec<u8>),
}

impl Queued {
    pub(super) fn new(header: [u8; HEADER_BYTES], payload: Payload) -> Self {
        let end = payload.len();
        let (operation, rts, data) = (None, None, None);
        Self { header, payload, start: 0, end, operation, credit: 0, rts, data, is_one_sided: false }
    }

    pub(super) fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.end - self.start
    }

    /// Whether later frames carry more of the payload.
    pub(super) fn has_more(&self) -> bool {
        self.end < self.payload.len()
    }

    /// Adds what follows the first `skip` bytes of the frame, without empty slices.
    pub(super) fn slices<'a>(&'a self, skip: usize, slices: &mut Slices<'a>) {
        if let Some(header) = self.header.get(skip..).filter(|header| !header.is_empty()) {
            slices.push(IoSlice::new(header));
        }
        self.payload_slices(self.start + skip.saturating_sub(HEADER_BYTES), self.end, slices);
    }

    /// Replaces the frame by a copy of what follows the first `skip` bytes, at least the header, that no send
    /// waits for; gives the original. Unless `is_last`, the copy has the payload of the later fragments too.
    pub(super) fn detach(&mut self, skip: usize, is_last: bool, statistics: &mut Statistics) -> Self {
        let start = self.start + skip - HEADER_BYTES;
        let end = if is_last { self.end } else { self.payload.len() };
        let mut rest = Slices::new();
        self.payload_slices(start, end, &mut rest);
        // A copy: the send has ended and gives its memory back, but the peer must get the whole message.
        let copy: Vec<u8> = rest.iter().map(|slice| &slice[..]).collect::<Vec<_>>().concat();
        statistics.copies += rest.len() as u64;
        statistics.bytes_copied += copy.len() as u64;
        drop(rest);
        let Self { rts, data, is_one_sided, .. } = *self;
        let mut detached = Self { rts, data, is_one_sided, ..Self::new(self.header, Payload::Copied(copy)) };
        detached.end = self.end - start;
        std::mem::replace(self, detached)
    }

    /// Adds the bytes of the payload from `start` to `end`.
    fn payload_slices<'a>(&'a self, start: usize, end: usize, slices: &mut Slices<'a>) {
        let (mut skip, mut left) = (start, end - start);
        let mut add = |bytes: &'a [u8]| {
            let from = skip.min(bytes.len());
            let count = left.min(bytes.len() - from);
            skip -= from;
            left -= count;
            if count > 0 {
                slices.push(IoSlice::new(&bytes[from..from + count]));
            }
        };
        match &self.payload {
            Payload::Leased(parts) => parts.iter().for_each(|part| add(part.bytes())),
            Payload::Copied(rest) => add(rest),
        }
    }

    pub(super) fn into_parts(self) -> SendParts {
        match self.payload {
            Payload::Leased(parts) => parts,
            Payload::Copied(_) => SendParts::new(),
        }
    }
}

impl Payload {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leased(parts) => parts.iter().map(|part| part.len()).sum(),
            Self::Copied(rest) => rest.len(),
        }
    }
}
