//! What follows from what a connection has shown: who has died, who has left, and who is told.

use super::connection::Verdict;
use super::incoming::Farewell;
use super::{Closed, Tcp};
use crate::told::later;
use crate::{Error, Failure, Rank};

/// How much is read a connection to find out who died first, in bytes: more than kernels keep.
const JUDGE_QUOTA: usize = 64 << 20;

impl Tcp {
    /// Draws the consequences of what a connection has shown.
    pub(super) fn draw(&mut self, index: usize, verdict: Verdict) {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        let peer = Rank(index as u32);
        match verdict {
            Verdict::Open => {}
            Verdict::Lost => {
                self.drain_link(peer);
                if !self.suspects.contains(&peer) {
                    self.suspects.push(peer);
                }
            }
            Verdict::Farewell(Farewell::Bye) => {
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
            Verdict::Farewell(Farewell::Failed(cause)) => {
                later!(INFO, %peer, ?cause, "a peer reports a failure");
                self.close_for(cause, cause.into());
            }
            Verdict::Violation(error) => {
                let told = error.clone();
                later!(INFO, error = %told, "closing the transport");
                self.close_for(Failure::PeerLost(peer), error);
            }
        }
    }

    /// Decides who died when connections have ended without a word.
    ///
    /// All that is left on the other sockets is read first: the cause that somebody names there comes before
    /// what can be concluded from an end.
    pub(super) fn judge(&mut self) {
        for index in 0..self.connections.len() {
            if !self.suspects.contains(&Rank(index as u32)) {
                self.service(index, JUDGE_QUOTA);
            }
        }
        let suspects = std::mem::take(&mut self.suspects);
        if let (None, Some(rank)) = (&self.closed, suspects.first()) {
            let rank = *rank;
            later!(INFO, %rank, "a connection ended without a word");
            self.lose(rank);
        }
    }

    /// Ends everything because a peer is gone.
    pub(super) fn lose(&mut self, rank: Rank) {
        self.close_for(Failure::PeerLost(rank), Error::PeerLost { rank });
    }

    /// Ends everything with `error` and tells all peers the cause. The first cause stays.
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

    /// One turn of a transport that is closed: peers are still told why.
    pub(super) fn wind_down(&mut self) -> bool {
        let before = self.statistics;
        for connection in self.connections.iter_mut().flatten() {
            connection.wind_down(&mut self.statistics);
        }
        self.statistics != before
    }
}
