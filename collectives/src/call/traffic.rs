//! What a call sends and receives on one rank.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of one call on one rank; see [`Call::traffic`](super::Call::traffic).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Of the messages posted, without headers.
    pub bytes_sent: u64,
    /// Of the messages received, without headers.
    pub bytes_received: u64,
    /// Written to memory that the ranks of a host share, for others to read.
    pub bytes_shared: u64,
}

impl Traffic {
    /// What has been added since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent.wrapping_sub(earlier.bytes_sent),
            bytes_received: self.bytes_received.wrapping_sub(earlier.bytes_received),
            bytes_shared: self.bytes_shared.wrapping_sub(earlier.bytes_shared),
        }
    }
}

/// The counters of a call.
#[derive(Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    shared: AtomicU64,
}

impl Counters {
    #[inline]
    pub(crate) fn count_sent(&self, bytes: usize) {
        add(&self.sent, bytes as u64);
    }

    #[inline]
    pub(crate) fn count_received(&self, bytes: usize) {
        add(&self.received, bytes as u64);
    }

    #[inline]
    pub(crate) fn count_shared(&self, bytes: u64) {
        add(&self.shared, bytes);
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            bytes_sent: of(&self.sent),
            bytes_received: of(&self.received),
            bytes_shared: of(&self.shared),
        }
    }
}

/// One thread at a time polls a call, so an addition needs no locked instruction.
#[inline]
fn add(counter: &AtomicU64, bytes: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(bytes), Ordering::Relaxed);
}
