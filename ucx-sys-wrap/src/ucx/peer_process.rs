//! Watching the process of a peer.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::process::PeerProcess;

pub(super) enum Process {
    /// It is invisible or unknown.
    Unknown,
    /// It will be watched with the peer.
    Known(PeerProcess),
    Watched(PeerProcess),
    Ended,
}

impl Process {
    /// Begins to watch a known process; `key` names it in `epoll`.
    pub(super) fn watch(&mut self, key: u64, epoll: &OwnedFd) {
        *self = match std::mem::replace(self, Self::Unknown) {
            Self::Known(process) => {
                // Otherwise its sockets have to do.
                let is_watched = epoll::add(epoll, &process, EventData::new_u64(key), EventFlags::IN).is_ok();
                if is_watched { Self::Watched(process) } else { Self::Known(process) }
            }
            other => other,
        };
    }

    pub(super) fn end(&mut self, epoll: &OwnedFd) {
        if let Self::Watched(process) = std::mem::replace(self, Self::Ended) {
            forget(epoll, &process);
        }
    }
}

/// Stops watching what is about to be closed: closing is not enough where a child holds it as well.
pub(super) fn forget(epoll: &OwnedFd, what: impl AsFd) {
    // Fails only for what is not watched.
    let _ = epoll::delete(epoll, what);
}
