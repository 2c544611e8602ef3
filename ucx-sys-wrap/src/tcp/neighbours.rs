//! What the transport does with its links to the ranks of this host.

use std::sync::Arc;

use super::link::Links;
use super::{SWEEP_EVERY, SWEEP_LINKED_EVERY, Tcp};
use crate::shm::Neighbourhood;
use crate::{Error, Failure, Rank, Result};

impl Tcp {
    /// Sends messages to the ranks of this host through the memory that they share with this rank; their sockets stay for
    /// signs of life and for what is not a message. Must be called before anything is posted, by all of them.
    ///
    /// `may_read` says whether messages may be read from the memory of another process, where the system allows it:
    /// messages of 6 KiB to 1 MiB are faster so.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it is another rank's neighbourhood; [`Error::System`] when its bell can't be watched.
    pub fn share_memory(&mut self, neighbourhood: &Arc<Neighbourhood>, may_read: bool) -> Result<()> {
        if neighbourhood.ranks().get(neighbourhood.own_place()) != Some(&self.rank) {
            let why = format!("rank {} was given the neighbourhood of another", self.rank);
            return Err(Error::Unavailable { name: "tcp", why });
        }
        let links = Links::new(neighbourhood, self.world_size, may_read)?;
        self.poller.add_bell(links.bell())?;
        self.links = Some(links);
        Ok(())
    }

    /// Whether it is time to look at what is not awaited. Where all peers are neighbours, sockets only say who has died:
    /// they are looked at seldom while this rank is busy, and at once when it sleeps.
    #[inline]
    pub(super) fn is_sweep_due(&self) -> bool {
        let is_all_seen = self.awaited.len() + 1 >= self.connections.len();
        let every = match &self.links {
            None if is_all_seen => return false,
            Some(links) if links.count() + 1 >= self.connections.len() && self.awaited.is_empty() => SWEEP_LINKED_EVERY,
            _ => SWEEP_EVERY,
        };
        self.turns.is_multiple_of(every)
    }

    /// What a turn of the links has come to; closes the transport when a neighbour has written what can't be.
    #[inline]
    pub(super) fn judge_link(&mut self, turn: std::result::Result<bool, (Rank, Error)>) -> bool {
        turn.unwrap_or_else(|(peer, error)| {
            tracing::info!(%error, "closing the transport");
            self.close_for(Failure::PeerLost(peer), error);
            true
        })
    }

    /// Takes what a neighbour that has ended has sent before.
    pub(super) fn drain_link(&mut self, peer: Rank) {
        if let Some(links) = &mut self.links
            && let Err(error) = links.drain(peer, &mut self.statistics)
        {
            self.judge_link(Err((peer, error)));
        }
    }
}
