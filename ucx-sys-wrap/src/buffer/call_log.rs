//! The last calls of a rank on a context, by which peers whose calls differ are found.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::transport::CallDigest;

/// The digests of the last calls of this rank on a context.
pub struct CallLog(Box<[AtomicU64; LOGGED_CALLS]>);

/// The calls whose digest is kept: more than a rank can be ahead of another that does not receive.
const LOGGED_CALLS: usize = 1 << 10;

impl Default for CallLog {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; LOGGED_CALLS]))
    }
}

impl CallLog {
    /// Notes a call.
    #[inline]
    pub fn note(&self, call: CallDigest) {
        // 0 is no call.
        let number = u64::from(call.number) & 0xff_ffff | 1 << 24;
        self.place(call.number).store(number << 32 | u64::from(call.digest), Ordering::Relaxed);
    }

    /// Whether this rank has made another call of this number, or others before it, as far as is known.
    #[must_use]
    pub fn differs(&self, call: CallDigest) -> bool {
        let own = self.place(call.number).load(Ordering::Relaxed);
        own >> 32 == u64::from(call.number) & 0xff_ffff | 1 << 24 && own as u32 != call.digest
    }

    fn place(&self, number: u32) -> &AtomicU64 {
        &self.0[number as usize % LOGGED_CALLS]
    }
}
