//! Puts and gets: by UCX, or asked for in messages where it would do no better.
//!
//! UCX's own reach the owner's memory through hardware for RDMA or shared memory (`remote.rs`). Where nothing
//! but sockets join two ranks the owner carries them out (`requests.rs`).
//!
//! **What is promised.** An operation's own buffer is touched by this rank's worker and nobody else, so
//! tearing UCX down ends all access to it, as with messages. A region's memory is reached by peers that UCX
//! lets reach it, whether this rank is torn down or not, so it is kept until the process ends and is never
//! used for anything else ([`Region`](crate::buffer::Region)); where no peer can, it is given back. On the
//! wire a key holds, after what every key holds: the address, 8 bytes; the HMAC-SHA256 of all the rest under
//! the owner's token, 32 bytes; UCX's packed key, if its memory can be reached. UCX reads a packed key
//! without a length and trusts it, so only one that a rank of this job has made gets so far.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Ucx;
use super::failure_flag::Token;
use crate::buffer::RegionMemory;
use crate::one_sided::{AccessId, AccessParts, OneSided, PostedAccess, RegionKey, Remote};
use crate::transport::{Posted, join, split};
use crate::{Error, Rank, Result};

const MAC_BYTES: usize = 32;
const FIXED_BYTES: usize = 8 + MAC_BYTES;

/// What allocated memory is rounded up to.
const PAGE_BYTES: usize = 4096;

/// Marks the numbers of operations that peers are asked for.
const ASKED: u64 = 1 << 63;

impl OneSided for Ucx {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        if let Some(closed) = &self.closed {
            return Err(closed.error.clone());
        }
        let start = memory.open_to_the_outside();
        let mut key = self.engine.requests().regions.add(self.rank, memory.clone())?;
        let (mut address, mut packed) = (0, Vec::new());
        if self.is_open && key.length > 0 {
            match self.accesses.expose(&self.engine, key.number, start, memory) {
                Ok(mapped) => (address, packed) = (start.as_ptr() as u64, mapped),
                Err(error) => {
                    self.engine.requests().regions.remove(&key);
                    return Err(error);
                }
            }
        }
        seal(&mut key, address, &packed, &self.liveness.own_token());
        Ok(key)
    }

    fn allocate(&mut self, length: usize) -> Result<Option<(RegionMemory, RegionKey)>> {
        if let Some(closed) = &self.closed {
            return Err(closed.error.clone());
        }
        let Some(rounded) = length.max(1).checked_next_multiple_of(PAGE_BYTES).filter(|_| self.is_open)
        else {
            return Ok(None);
        };
        let allocated = self.accesses.allocate(&self.engine, rounded)?;
        let memory = allocated.memory.clone();
        let mut key = self.engine.requests().regions.add_first(self.rank, memory.clone(), length)?;
        seal(&mut key, allocated.address, &allocated.packed, &self.liveness.own_token());
        self.accesses.keep(key.number, rounded, allocated);
        Ok(Some((memory, key)))
    }

    /// Peers that reach the memory by themselves can't be kept from it.
    fn conceal(&mut self, key: &RegionKey) -> bool {
        if !self.owner.is_here() {
            return false;
        }
        self.engine.run_errands();
        let is_idle = self.engine.requests().conceal(key);
        !self.accesses.conceal(&self.engine, key.number) && is_idle
    }

    fn attach(&mut self, key: &RegionKey) -> Result<u64> {
        self.check_open(key.owner)?;
        let refuse =
            || Error::Protocol { rank: key.owner, what: "a key that no rank of this job has made".into() };
        let token = self.liveness.token(key.owner).ok_or_else(refuse)?;
        let (fixed, packed) = key.native.split_first_chunk::<FIXED_BYTES>().ok_or_else(refuse)?;
        proof(&token, key).verify_slice(&fixed[8..]).map_err(|_| refuse())?;
        let mut unpacked = None;
        if key.length > 0 && self.is_reached[key.owner.index()] {
            if packed.is_empty() {
                return Err(refuse());
            }
            // SAFETY: the HMAC under the owner's token, which the ranks of this job alone know, covers the
            // bytes.
            unpacked = Some(unsafe { self.engine.unpack(key.owner, packed) }?);
        }
        let address = bytemuck::pod_read_unaligned::<u64>(&fixed[..8]).to_le();
        Ok(self.accesses.attach(unpacked, address))
    }

    fn detach(&mut self, remote: &Remote) {
        self.accesses.detach(&self.engine, remote.number);
    }

    fn post_access(&mut self, remote: &Remote, offset: u64, parts: AccessParts) -> PostedAccess {
        let owner = remote.key.owner;
        match self.check_open(owner) {
            Err(error) => Posted::Done(Err(error)),
            Ok(()) if self.is_reached[owner.index()] => self.begin(remote, offset, parts),
            Ok(()) => {
                let number = self.engine.requests().begin(&remote.key, offset, parts, self.round);
                self.ask(owner, number)
            }
        }
    }

    fn post_flush(&mut self, to: Rank) -> PostedAccess {
        match self.check_open(to) {
            Err(error) => Posted::Done(Err(error)),
            Ok(()) if self.is_reached[to.index()] => self.begin_flush(to),
            Ok(()) => match self.engine.requests().begin_flush(to, self.round) {
                Posted::Done(result) => Posted::Done(result),
                Posted::Pending(number) => self.ask(to, number),
            },
        }
    }

    fn test_access(&mut self, id: AccessId) -> Option<Result<()>> {
        match id.0 & ASKED {
            0 => self.test_reached(id.0),
            _ => self.test_asked(id.0 & !ASKED),
        }
    }

    /// UCX can't take a put or get back, nor can the peer that was asked for one: it ends by itself. A flush
    /// ends at once.
    fn cancel_access(&mut self, id: AccessId) {
        match id.0 & ASKED {
            0 => self.accesses.cancel(id.0),
            _ => {
                let (peer, number) = split(id.0 & !ASKED);
                self.engine.requests().of(Rank(peer as u32)).cancel(number);
            }
        }
    }
}

impl Ucx {
    /// Asks the peer for what has just begun.
    fn ask(&mut self, peer: Rank, number: usize) -> PostedAccess {
        let id = join(peer, number);
        match self.test_asked(id) {
            Some(result) => Posted::Done(result),
            None => Posted::Pending(AccessId(id | ASKED)),
        }
    }

    fn test_asked(&mut self, id: u64) -> Option<Result<()>> {
        let (index, number) = split(id);
        let peer = Rank(index as u32);
        self.has_moved |= self.engine.run_errands();
        let (mut result, is_fetched) = self.engine.requests().take_ended(peer, number)?;
        if is_fetched
            && result.is_ok()
            && let Some(error) = self.has_taken_back(peer)
        {
            result = Err(error);
        }
        Some(self.judge_access(peer, result))
    }

    /// An operation that failed may have moved any part of its bytes: the peer is given up. A refusal fails
    /// nothing else.
    pub(super) fn judge_access(&mut self, peer: Rank, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Canceled | Error::NoSuchRegion { .. } | Error::OutOfRegion { .. }) => result,
            Err(error) => {
                self.lose_peer(peer, error.clone(), false);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Adds to a key what this transport adds.
fn seal(key: &mut RegionKey, address: u64, packed: &[u8], token: &Token) {
    key.native = address.to_le_bytes().to_vec();
    key.native.resize(FIXED_BYTES, 0);
    key.native.extend_from_slice(packed);
    let mac = proof(token, key).finalize().into_bytes();
    key.native[8..FIXED_BYTES].copy_from_slice(&mac);
}

/// The code that proves a key to be of the job, not yet finished.
fn proof(token: &Token, key: &RegionKey) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(token).expect("a key of any length");
    let (address, packed) = (&key.native[..8], &key.native[FIXED_BYTES..]);
    for bytes in
        [&key.owner.0.to_le_bytes()[..], &key.number.to_le_bytes(), &key.nonce, &key.length.to_le_bytes()]
    {
        mac.update(bytes);
    }
    mac.update(address);
    mac.update(packed);
    mac
}
