//! What a message carries: bytes that UCX has received, or an offer of bytes that it has not.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::header::Header;
use super::incoming::count_copy;
use crate::transport::Statistics;

/// A payload that UCX has not transferred: to be fetched or released, once.
pub(super) struct Offer {
    pub(super) pointer: NonNull<c_void>,
    pub(super) bytes: usize,
}

// SAFETY: the sole handle of a descriptor of the worker, which moves between threads with it.
unsafe impl Send for Offer {}

/// A payload in the handler.
pub(super) enum Payload<'a> {
    Here(&'a [u8]),
    Offered(Offer),
}

/// A payload that outlives the handler.
pub(super) enum Kept {
    Here(Box<[u8]>),
    Offered(Offer),
}

impl Payload<'_> {
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Offered(offer) => offer.bytes,
        }
    }

    /// Whether it is what a header announces.
    #[inline]
    pub(super) fn is_of(&self, header: &Header) -> bool {
        match self {
            Self::Here(bytes) => bytes.len() == header.payload_bytes() && !header.is_hollow,
            // What is fetched goes to one place.
            Self::Offered(_) if header.lengths.len() > 1 && !header.is_spread => false,
            Self::Offered(offer) => offer.bytes == header.payload_bytes() + usize::from(header.is_hollow),
        }
    }

    pub(super) fn keep(self, statistics: &mut Statistics) -> Kept {
        match self {
            Self::Here(bytes) => {
                count_copy(statistics, bytes.len());
                // A copy: UCX's memory is only there during the handler.
                Kept::Here(bytes.into())
            }
            Self::Offered(offer) => Kept::Offered(offer),
        }
    }
}

impl Kept {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::Offered(offer) => offer.bytes,
        }
    }

    pub(super) fn with(self, take: impl FnOnce(Payload<'_>)) {
        match self {
            Self::Here(bytes) => take(Payload::Here(&bytes)),
            Self::Offered(offer) => take(Payload::Offered(offer)),
        }
    }
}
