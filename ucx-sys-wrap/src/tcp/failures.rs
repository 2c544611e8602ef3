//! Decides what the status of a connection means: a peer that has died or left, and what the others are told.

use super::connection::Status;
use super::incoming::CloseFrame;
use super::{Closed, Tcp};
use crate::told::later;
use crate::{Error, Failure, Rank};

/// The most that is read from a connection to find out who died first, in bytes: more than kernels buffer.
const SUSPECT_QUOTA: usize = 64 << 20;

impl Tcp {
    /// Handles the new status of a connection.
    pub(super) fn handle_status(&mut self, index: usize, status: Status) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let peer = Rank(index as u32);
        match status {
            Status::Open => {}
            Status::Lost => {
                self.drain_link(peer);
                if !self.suspects.contains(&peer) {
                    self.suspects.push(peer);
                }
            }
            Status::Closed(CloseFrame::Bye) => {
                self.poller.remove(connection);
                let mut is_missed = connection.finish(&mut self.statistics);
                self.drain_link(peer);
                if let Some(links) = &mut self.links {
                    is_missed |= links.finish(peer, true, &mut self.statistics);
                }
                if is_missed {
                    self.lose(peer);
                }
            }
            Status::Closed(CloseFrame::Failed(cause)) => {
                later!(INFO, %peer, ?cause, "a peer reports a failure");
                self.close_for(cause, cause.into());
            }
            Status::Violation(error) => {
                let told = error.clone();
                later!(INFO, error = %told, "closing the transport");
                self.close_for(Failure::PeerLost(peer), error);
            }
        }
    }

    /// Decides which peer died when connections have ended without a close frame.
    ///
    /// The other sockets are read first: a cause that a peer reports comes before what the end of a connection
    /// suggests.
    pub(super) fn find_dead_peer(&mut self) {
        for index in 0..self.connections.len() {
            if !self.suspects.contains(&Rank(index as u32)) {
                self.service(index, SUSPECT_QUOTA);
            }
        }
        let suspects = std::mem::take(&mut self.suspects);
        if let (None, Some(&rank)) = (&self.closed, suspects.first()) {
            later!(INFO, %rank, "a connection ended without a word");
            self.lose(rank);
        }
    }

    /// Closes the transport because a peer is gone.
    pub(super) fn lose(&mut self, rank: Rank) {
        self.close_for(Failure::PeerLost(rank), Error::PeerLost { rank });
    }

    /// Ends every operation with `error` and tells all peers the cause. Only the first cause counts.
    pub(super) fn close_for(&mut self, cause: Failure, error: Error) {
        if self.closed.is_some() {
            return;
        }
        for connection in self.connections.iter_mut().flatten() {
            connection.fail(&error, cause, &mut self.statistics);
        }
        if let Some(links) = &mut self.links {
            links.close(&error);
        }
        self.awaited.clear();
        self.closed = Some(Closed { error, cause: Some(cause) });
        self.has_moved = true;
    }

    /// One turn of a closed transport, which still tells its peers why.
    pub(super) fn wind_down(&mut self) -> bool {
        let before = self.statistics;
        for connection in self.connections.iter_mut().flatten() {
            connection.wind_down(&mut self.statistics);
        }
        self.statistics != before
    }
}
