//! What the collectives inside a call share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use ucx_sys_wrap::{Failure, Mark, Rank};

use super::traffic::Counters;
use crate::error::{CallSite, Error};
use crate::host::Inside;

/// The states of a call on this rank.
const WHOLE: u8 = 0;
const BROKEN: u8 = 1;
const DIFFERS: u8 = 2;

/// The mark of a call or of a part of one: the largest that was set or received.
#[derive(Default)]
pub(crate) struct Marked(AtomicU64);

impl Marked {
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.0.load(Ordering::Relaxed))
    }

    /// Merges the mark of this rank or of a peer.
    #[inline]
    pub(crate) fn hear(&self, mark: Mark) {
        if mark != Mark::NONE {
            self.0.fetch_max(mark.0, Ordering::Relaxed);
        }
    }
}

/// The state shared by all collectives inside a call.
#[derive(Default)]
pub(crate) struct Shared {
    /// Of collectives that are in no part.
    marked: Marked,
    /// Of each part. A rank may have heard of what poisons one when another has not: what a collective does
    /// must not depend on marks that did not come with its own messages.
    parts: Box<[Marked]>,
    /// Why this rank leaves the call early, if it does.
    broken: AtomicU8,
    /// Whether a peer has told that calls differ.
    is_told: AtomicBool,
    /// Set if the call's collectives may use the slots of the host.
    inside: Option<Inside>,
    counters: Counters,
}

impl Shared {
    /// For a call that may use the slots of the host if `inside` is set.
    pub(crate) fn new(inside: Option<Inside>) -> Self {
        Self { inside, ..Self::default() }
    }

    /// Likewise, with so many parts.
    pub(crate) fn with_parts(self, parts: u32) -> Self {
        Self { parts: (0..parts).map(|_| Marked::default()).collect(), ..self }
    }

    /// The mark of collectives that are in no part.
    pub(crate) fn marked(&self) -> &Marked {
        &self.marked
    }

    /// The mark of a part; `None` beyond those that the call was made with.
    pub(crate) fn part(&self, index: u32) -> Option<&Marked> {
        self.parts.get(index as usize)
    }

    /// The right to use the slots of the host, if the call's collectives have it.
    pub(crate) fn inside(&self) -> Option<&Inside> {
        self.inside.as_ref()
    }

    /// What this rank sends and receives.
    #[inline]
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The cause to close the context for, if this rank, `own`, leaves the call early.
    pub(crate) fn broken(&self, own: Rank) -> Option<Failure> {
        match self.broken.load(Ordering::Relaxed) {
            WHOLE => None,
            DIFFERS => Some(Failure::Differs(own)),
            _ => Some(Failure::Aborted(own)),
        }
    }

    /// Notes that this rank leaves the call early, because a peer has violated its protocol or for want of
    /// memory.
    pub(crate) fn set_broken(&self) {
        self.broken.fetch_max(BROKEN, Ordering::Relaxed);
    }

    /// Notes that a peer makes a different call.
    pub(crate) fn set_differs(&self) {
        self.broken.store(DIFFERS, Ordering::Relaxed);
    }

    /// Whether calls were found to differ.
    #[inline]
    pub(crate) fn has_differed(&self) -> bool {
        self.is_told.load(Ordering::Relaxed) || self.broken.load(Ordering::Relaxed) == DIFFERS
    }

    /// The error of a peer that has violated the call's protocol, which breaks the call.
    pub(crate) fn refuse(&self, rank: Rank, what: String) -> Error {
        self.set_broken();
        Error::Payload { rank, what }
    }

    /// Converts a transport's error to one of this call.
    pub(crate) fn error(&self, site: &CallSite<'_>, error: ucx_sys_wrap::Error) -> Error {
        use ucx_sys_wrap::Error as Transport;
        match error {
            Transport::Mismatch { .. } => self.set_differs(),
            Transport::Differs { .. } => self.is_told.store(true, Ordering::Relaxed),
            Transport::TooLong { .. } | Transport::Protocol { .. } => self.set_broken(),
            _ => {}
        }
        Error::at(site, error)
    }
}
