//! What is watched of a peer besides its connection: its process.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::process::PeerProcess;

/// The process of a peer.
pub(super) enum Process {
    /// It can't be seen, or nobody has told which it is.
    Unknown,
    /// It is watched once the peer is.
    Known(PeerProcess),
    Watched(PeerProcess),
    Ended,
}

impl Process {
    /// Begins to watch it, if it is known and not watched; `key` names it in `epoll`.
    pub(super) fn watch(&mut self, key: u64, epoll: &OwnedFd) {
        *self = match std::mem::replace(self, Self::Unknown) {
            Self::Known(process) => {
                // Without, its sockets are all that there is.
                let is_watched = epoll::add(epoll, &process, EventData::new_u64(key), EventFlags::IN).is_ok();
                if is_watched { Self::Watched(process) } else { Self::Known(process) }
            }
            other => other,
        };
    }

    /// Takes note that it has ended.
    pub(super) fn end(&mut self, epoll: &OwnedFd) {
        if let Self::Watched(process) = std::mem::replace(self, Self::Ended) {
            forget(epoll, &process);
        }
    }
}

/// Stops watching what is about to be closed: to close it is not enough where a child has it as well.
pub(super) fn forget(epoll: &OwnedFd, what: impl AsFd) {
    // Fails only for what is not watched.
    let _ = epoll::delete(epoll, what);
}
