//! A frame on its way out.

use std::io::IoSlice;

use arrayvec::ArrayVec;

use super::frame::HEADER_BYTES;
use crate::transport::SendParts;
use crate::{MAX_PARTS, Statistics};

/// Frames that go into one system call at most.
pub(super) const FRAMES_PER_WRITE: usize = 16;

pub(super) type Slices<'a> = ArrayVec<IoSlice<'a>, { FRAMES_PER_WRITE * (1 + MAX_PARTS) }>;

/// A frame that is not written yet, or not to its end.
pub(super) struct Queued {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) payload: Payload,
    pub(super) frame_bytes: usize,
    /// The send that ends when this frame is written.
    pub(super) operation: Option<usize>,
    /// What a message that is sent without asking counts for.
    pub(super) credit: u64,
    /// The number of the offer that this is, or under which it is offered.
    pub(super) offer: Option<u32>,
}

pub(super) enum Payload {
    Leased(SendParts),
    /// The rest of a message whose send has ended early.
    Copied(Vec<u8>),
}

impl Queued {
    pub(super) fn new(header: [u8; HEADER_BYTES], payload: Payload) -> Self {
        let frame_bytes = HEADER_BYTES + payload.len();
        Self { header, payload, frame_bytes, operation: None, credit: 0, offer: None }
    }

    /// Adds what follows the first `skip` bytes of the frame, without empty slices.
    pub(super) fn slices<'a>(&'a self, mut skip: usize, slices: &mut Slices<'a>) {
        let mut add = |bytes: &'a [u8]| {
            let start = skip.min(bytes.len());
            skip -= start;
            if start < bytes.len() {
                slices.push(IoSlice::new(&bytes[start..]));
            }
        };
        add(&self.header);
        match &self.payload {
            Payload::Leased(parts) => parts.iter().for_each(|part| add(part.bytes())),
            Payload::Copied(rest) => add(rest),
        }
    }

    /// Leaves a copy of what follows the first `skip` bytes, at least the header, that no send waits for; gives the
    /// original.
    pub(super) fn detach(&mut self, skip: usize, statistics: &mut Statistics) -> Self {
        let mut rest = Slices::new();
        self.slices(skip, &mut rest);
        // A copy: the send has ended, its memory goes back, and the peer must still get the whole message.
        let copy: Vec<u8> = rest.iter().map(|slice| &slice[..]).collect::<Vec<_>>().concat();
        statistics.copies += rest.len() as u64;
        statistics.bytes_copied += copy.len() as u64;
        drop(rest);
        let detached = Self { offer: self.offer, ..Self::new(self.header, Payload::Copied(copy)) };
        std::mem::replace(self, detached)
    }

    pub(super) fn into_parts(self) -> SendParts {
        match self.payload {
            Payload::Leased(parts) => parts,
            Payload::Copied(_) => SendParts::new(),
        }
    }
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Self::Leased(parts) => parts.iter().map(|part| part.len()).sum(),
            Self::Copied(rest) => rest.len(),
        }
    }
}
