//! Puts and gets: the calling rank copies between its memory and the region.
//!
//! It looks the region up and copies under a read lock of the region table. Unregistering takes the write
//! lock, so no copy is under way after it.

use parking_lot::RwLock;

use super::Local;
use crate::buffer::RegionMemory;
use crate::one_sided::{AccessId, AccessParts, OneSided, PostedAccess, RegionKey, Regions, Remote};
use crate::transport::Posted;
use crate::{Rank, Result};

/// The regions of all ranks of a world.
pub(super) type Tables = Box<[RwLock<Regions>]>;

impl OneSided for Local {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        self.world.regions[self.rank.index()].write().add(self.rank, memory)
    }

    fn conceal(&mut self, key: &RegionKey) -> bool {
        self.world.regions[self.rank.index()].write().remove(key);
        true
    }

    fn post_access(&mut self, remote: &Remote, offset: u64, mut parts: AccessParts) -> PostedAccess {
        Posted::Done(self.access(&remote.key, offset, &mut parts))
    }

    /// A put has reached the peer's memory when it is posted.
    fn post_flush(&mut self, to: Rank) -> PostedAccess {
        Posted::Done(self.check_owner(to))
    }

    fn test_access(&mut self, _: AccessId) -> Option<Result<()>> {
        None
    }

    fn cancel_access(&mut self, _: AccessId) {}
}

impl Local {
    fn access(&mut self, key: &RegionKey, offset: u64, parts: &mut AccessParts) -> Result<()> {
        self.check_owner(key.owner)?;
        let regions = self.world.regions[key.owner.index()].read();
        parts.copy(regions.find(key, offset, parts.bytes())?, &mut self.statistics);
        Ok(())
    }

    /// Refuses an invalid peer, and gives up one that has left.
    fn check_owner(&mut self, peer: Rank) -> Result<()> {
        self.check_open(peer)?;
        if self.world.mailboxes[peer.index()].is_closed() {
            return Err(self.lose_left(peer));
        }
        Ok(())
    }
}
