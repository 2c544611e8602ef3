//! The memory that a rank has registered.

use std::collections::HashMap;

use super::RegionKey;
use super::frame::{Outcome, Place};
use crate::memory::RegionMemory;
use crate::{Error, Rank, Result};

/// The registered memory of one rank.
#[derive(Default)]
pub(crate) struct Regions {
    by_number: HashMap<u64, (RegionKey, RegionMemory)>,
    registered: u64,
}

impl Regions {
    /// Adds a region of `owner`: all of this memory.
    pub(crate) fn add(&mut self, owner: Rank, memory: RegionMemory) -> Result<RegionKey> {
        let length = memory.len();
        self.add_first(owner, memory, length)
    }

    /// Adds a region of `owner`: the first `length` bytes of this memory.
    pub(crate) fn add_first(
        &mut self,
        owner: Rank,
        memory: RegionMemory,
        length: usize,
    ) -> Result<RegionKey> {
        let key = RegionKey::new(owner, self.registered, length)?;
        self.registered += 1;
        self.insert(key.clone(), memory);
        Ok(key)
    }

    /// Adds a region that has its key.
    pub(crate) fn insert(&mut self, key: RegionKey, memory: RegionMemory) {
        self.by_number.insert(key.number, (key, memory));
    }

    /// Takes a region out.
    pub(crate) fn remove(&mut self, key: &RegionKey) {
        self.by_number.remove(&key.number);
    }

    /// The memory for an access of `bytes` bytes at `offset`, with the offset as this machine counts.
    ///
    /// # Errors
    /// [`Error::NoSuchRegion`] for a key that names no region here, [`Error::OutOfRegion`] for an access
    /// outside of it.
    pub(crate) fn find(&self, key: &RegionKey, offset: u64, bytes: u64) -> Result<(&RegionMemory, usize)> {
        let missing = Error::NoSuchRegion { rank: key.owner };
        let (own, memory) = self.by_number.get(&key.number).ok_or(missing.clone())?;
        if own.nonce != key.nonce {
            return Err(missing);
        }
        own.check(offset, bytes)?;
        let offset = usize::try_from(offset).map_err(|_| missing)?;
        Ok((memory, offset))
    }

    /// The memory for what a peer asks of `owner`, or what the peer is told.
    pub(crate) fn look_up(
        &self,
        owner: Rank,
        place: &Place,
        bytes: u64,
    ) -> std::result::Result<(RegionMemory, usize), Outcome> {
        let Place { region: number, nonce, offset } = *place;
        let key = RegionKey { owner, number, nonce, length: 0, native: Vec::new() };
        match self.find(&key, offset, bytes) {
            Ok((memory, offset)) => Ok((memory.clone(), offset)),
            Err(Error::OutOfRegion { .. }) => Err(Outcome::OutOfRegion),
            Err(_) => Err(Outcome::NoSuchRegion),
        }
    }
}
