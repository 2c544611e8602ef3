//! Puts and gets: which connection they are for.

use super::Tcp;
use crate::buffer::RegionMemory;
use crate::one_sided::{AccessId, AccessParts, OneSided, PostedAccess, RegionKey, Remote};
use crate::transport::{Posted, split};
use crate::{Rank, Result};

impl OneSided for Tcp {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        match &self.closed {
            Some(error) => Err(error.clone()),
            None => self.regions.lock().add(self.rank, memory),
        }
    }

    /// What is arriving for the region goes nowhere, and what is to be sent of it is not.
    fn conceal(&mut self, key: &RegionKey) -> bool {
        self.regions.lock().remove(key);
        for connection in self.connections.iter_mut().flatten() {
            connection.conceal(key.number);
        }
        true
    }

    fn post_access(&mut self, remote: &Remote, offset: u64, parts: AccessParts) -> PostedAccess {
        let peer = remote.key.owner;
        let posted = match self.connection(peer) {
            Ok((connection, statistics)) => connection.post_access(&remote.key, offset, parts, statistics),
            Err(error) => Posted::Done(Err(error)),
        };
        self.begun(peer, posted, AccessId, |result| result)
    }

    fn post_flush(&mut self, to: Rank) -> PostedAccess {
        let posted = match self.connection(to) {
            Ok((connection, _)) => connection.post_flush(),
            Err(error) => Posted::Done(Err(error)),
        };
        self.begun(to, posted, AccessId, |result| result)
    }

    fn test_access(&mut self, id: AccessId) -> Option<Result<()>> {
        let (index, number) = split(id.0);
        self.connections.get_mut(index)?.as_mut()?.test_access(number)
    }

    fn cancel_access(&mut self, id: AccessId) {
        let (index, number) = split(id.0);
        if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.cancel_access(number, &mut self.statistics);
        }
    }
}
