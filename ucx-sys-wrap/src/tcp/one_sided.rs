//! Puts and gets: which connection they are for.

use super::Tcp;
use crate::buffer::RegionMemory;
use crate::one_sided::{GetId, OneSided, PutId, RegionKey, Remote};
use crate::transport::{Posted, RecvParts, SendParts, check_peer, split};
use crate::{Rank, Result};

impl OneSided for Tcp {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        match &self.closed {
            Some(closed) => Err(closed.error.clone()),
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

    fn attach(&mut self, key: &RegionKey) -> Result<u64> {
        check_peer(key.owner, self.rank, self.world_size)?;
        key.check_plain()?;
        Ok(0)
    }

    fn detach(&mut self, _: &Remote) {}

    fn post_put(&mut self, remote: &Remote, offset: u64, parts: SendParts) -> Posted<PutId, Result<()>> {
        let to = remote.key.owner;
        let posted = match self.connection(to) {
            Ok((connection, statistics)) => connection.post_put(&remote.key, offset, parts, statistics),
            Err(error) => Posted::Done(Err(error)),
        };
        self.begun(to, posted, PutId, |result| result)
    }

    fn post_get(&mut self, remote: &Remote, offset: u64, parts: RecvParts) -> Posted<GetId, Result<()>> {
        let from = remote.key.owner;
        let posted = match self.connection(from) {
            Ok((connection, statistics)) => connection.post_get(&remote.key, offset, parts, statistics),
            Err(error) => Posted::Done(Err(error)),
        };
        self.begun(from, posted, GetId, |result| result)
    }

    fn post_flush(&mut self, to: Rank) -> Posted<PutId, Result<()>> {
        let posted = match self.connection(to) {
            Ok((connection, _)) => connection.post_flush(),
            Err(error) => Posted::Done(Err(error)),
        };
        self.begun(to, posted, PutId, |result| result)
    }

    fn test_put(&mut self, id: PutId) -> Option<Result<()>> {
        self.test_access(id.0)
    }

    fn test_get(&mut self, id: GetId) -> Option<Result<()>> {
        self.test_access(id.0)
    }

    fn cancel_put(&mut self, id: PutId) {
        self.cancel_access(id.0);
    }

    fn cancel_get(&mut self, id: GetId) {
        self.cancel_access(id.0);
    }
}

impl Tcp {
    fn test_access(&mut self, id: u64) -> Option<Result<()>> {
        let (index, number) = split(id);
        self.connections.get_mut(index)?.as_mut()?.test_access(number)
    }

    fn cancel_access(&mut self, id: u64) {
        let (index, number) = split(id);
        if let Some(Some(connection)) = self.connections.get_mut(index) {
            connection.cancel_access(number, &mut self.statistics);
        }
    }
}
