//! The payload of a message: eager bytes, or the RTS of bytes that UCX has not transferred.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::header::Header;
use crate::transport::{Statistics, count_copy};

/// A payload that UCX has not transferred: to be fetched or released, once.
pub(super) struct Rts {
    pub(super) pointer: NonNull<c_void>,
    pub(super) bytes: usize,
}

// SAFETY: the sole handle of a descriptor of the worker, which moves between threads with it.
unsafe impl Send for Rts {}

/// A payload: borrowed in the handler, owned ([`Kept`]) after it.
pub(super) enum Payload<'a> {
    Eager(&'a [u8]),
    Rendezvous(Rts),
}

pub(super) enum Kept {
    Eager(Box<[u8]>),
    Rendezvous(Rts),
}

impl Payload<'_> {
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Eager(bytes) => bytes.len(),
            Self::Rendezvous(rts) => rts.bytes,
        }
    }

    /// Whether it is what the header announces.
    #[inline]
    pub(super) fn is_of(&self, header: &Header) -> bool {
        match self {
            Self::Eager(bytes) => bytes.len() == header.payload_bytes() && !header.is_padded,
            // UCX fetches into one place.
            Self::Rendezvous(_) if header.lengths.len() > 1 && !header.is_fragmented => false,
            Self::Rendezvous(rts) => rts.bytes == header.payload_bytes() + usize::from(header.is_padded),
        }
    }

    pub(super) fn keep(self, statistics: &mut Statistics) -> Kept {
        match self {
            Self::Eager(bytes) => {
                count_copy(statistics, bytes.len());
                // A copy: UCX's memory is valid during the handler only.
                Kept::Eager(bytes.into())
            }
            Self::Rendezvous(rts) => Kept::Rendezvous(rts),
        }
    }
}

impl Kept {
    pub(super) fn with<T>(self, take: impl FnOnce(Payload<'_>) -> T) -> T {
        match self {
            Self::Eager(bytes) => take(Payload::Eager(&bytes)),
            Self::Rendezvous(rts) => take(Payload::Rendezvous(rts)),
        }
    }
}
