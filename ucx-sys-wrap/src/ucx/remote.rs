//! Puts and gets: UCX's own, on memory that is registered with its context.
//!
//! **What is promised.** An operation's own buffer is touched by this rank's worker and nobody else, so tearing UCX down
//! ends all access to it, as with messages. A region's memory is reached by peers (through shared memory, RDMA hardware, or
//! this rank's own UCX on behalf of a peer on tcp), whether this rank is torn down or not, so it is kept until the
//! process ends and is never used for anything else ([`Region`](crate::buffer::Region)). On the wire a key holds, after
//! what every key holds: the address, 8 bytes; the HMAC-SHA256 of all the rest under the owner's token, 32 bytes; UCX's
//! packed key. UCX reads a packed key without a length and trusts it, so only one that a rank of this job has made gets
//! so far.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Ucx;
use super::engine::Engine;
use super::flight::Flight;
use super::mapping::{Mapping, Unpacked};
use super::table::Table;
use super::word::Token;
use crate::buffer::RegionMemory;
use crate::one_sided::{GetId, OneSided, PutId, RegionKey, Remote};
use crate::transport::{Posted, RecvParts, SendParts};
use crate::{Error, MAX_PARTS, Rank, Result};

const MAC_BYTES: usize = 32;
const FIXED_BYTES: usize = 8 + MAC_BYTES;

/// What allocated memory is rounded up to.
const PAGE_BYTES: usize = 4096;

/// What one rank has registered, which keys of peers it holds, and what is under way.
pub(super) struct Accesses {
    /// By number. The memory is kept so that it outlives UCX.
    regions: HashMap<u64, Exposed>,
    /// Allocated memory of regions that were dropped, by its length.
    idle: HashMap<usize, Vec<Allocated>>,
    registered: u64,
    keys: Table<Key>,
    operations: Table<Access>,
    /// What UCX works on for flushes that nobody waits for any more; there is no memory to it.
    forgotten: Vec<Flight>,
}

struct Exposed {
    mapping: Option<Mapping>,
    /// For memory that UCX has allocated: its length, and what of the key does not change.
    allocated: Option<(usize, Allocated)>,
    _memory: RegionMemory,
}

/// Memory that UCX has allocated, which is used for regions alone, and never freed.
#[derive(Clone)]
struct Allocated {
    memory: RegionMemory,
    address: u64,
    packed: Vec<u8>,
}

/// A key that was opened. It is destroyed when it is not wanted and no operation uses it.
struct Key {
    /// `None` for a region without bytes.
    unpacked: Option<Unpacked>,
    address: u64,
    used: u32,
    is_wanted: bool,
}

/// A put, get or flush under way.
///
/// Invariants: `memory` stays here, and the key in the table, until every flight is reaped.
struct Access {
    peer: Rank,
    /// The key's number; none for a flush.
    key: Option<u64>,
    memory: Memory,
    flights: ArrayVec<Flight, MAX_PARTS>,
    posted_in: u32,
    is_canceled: bool,
    result: Result<()>,
}

enum Memory {
    Put(SendParts),
    Get(RecvParts),
    Flush,
}

impl Accesses {
    pub(super) fn new() -> Self {
        let (regions, idle, registered) = (HashMap::new(), HashMap::new(), 0);
        Self { regions, idle, registered, keys: Table::new(), operations: Table::new(), forgotten: Vec::new() }
    }

    /// Whether none is under way.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The peers of operations that are not over, each with the round that it was posted in.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations
            .iter()
            .filter(|access| access.flights.iter().any(|flight| !flight.is_over()))
            .map(|access| (access.peer, access.posted_in))
    }

    /// Gives back to UCX what no operation uses, before UCX is torn down.
    pub(super) fn release(&mut self, engine: &Engine) {
        for key in self.keys.iter_mut().filter(|key| key.used == 0) {
            if let Some(unpacked) = key.unpacked.take() {
                engine.destroy(unpacked);
            }
        }
    }

    /// Takes the registrations back, between the end of the worker and that of the context.
    pub(super) fn unmap_all(&mut self, engine: &Engine) {
        for region in self.regions.values_mut() {
            if let Some(mapping) = region.mapping.take() {
                engine.unmap(mapping);
            }
        }
    }

    /// Once UCX is torn down: every operation that had not ended before has ended with `error`.
    pub(super) fn end_all(&mut self, error: &Error) {
        let is_done = |flight: &Flight| flight.is_over() && flight.record().status.get() == ucs_status_t::UCS_OK;
        for access in self.operations.iter_mut() {
            if access.result.is_ok() && !access.flights.iter().all(is_done) {
                access.result = Err(error.clone());
            }
        }
    }

    fn key(&mut self, number: u64) -> Result<&mut Key> {
        // A number is given out by `attach` and taken back when its region is dropped.
        self.keys.get_mut(number).ok_or(Error::Closed)
    }

    /// An operation no longer uses its key.
    fn put_key_back(&mut self, engine: &Engine, number: u64) {
        if let Some(key) = self.keys.get_mut(number) {
            key.used -= 1;
        }
        self.drop_unused(engine, number);
    }

    fn drop_unused(&mut self, engine: &Engine, number: u64) {
        if self.keys.get_mut(number).is_some_and(|key| !key.is_wanted && key.used == 0)
            && let Some(Key { unpacked: Some(unpacked), .. }) = self.keys.remove(number)
        {
            engine.destroy(unpacked);
        }
    }
}

impl OneSided for Ucx {
    fn expose(&mut self, memory: RegionMemory) -> Result<RegionKey> {
        if let Some(closed) = &self.closed {
            return Err(closed.error.clone());
        }
        let mut key = RegionKey::new(self.rank, self.accesses.registered, memory.len())?;
        let mut mapping = None;
        if memory.len() > 0 {
            let address = memory.open_to_the_outside();
            // SAFETY: `conceal` says that the memory is not quiet, so that it is never freed.
            let (mapped, packed) = unsafe { self.engine.map(address, memory.len()) }?;
            mapping = Some(mapped);
            seal(&mut key, address.as_ptr() as u64, &packed, &self.liveness.own_token());
        }
        self.accesses.registered += 1;
        self.accesses.regions.insert(key.number, Exposed { mapping, allocated: None, _memory: memory });
        Ok(key)
    }

    fn allocate(&mut self, length: usize) -> Result<Option<(RegionMemory, RegionKey)>> {
        if let Some(closed) = &self.closed {
            return Err(closed.error.clone());
        }
        let Some(rounded) = length.max(1).checked_next_multiple_of(PAGE_BYTES) else { return Ok(None) };
        let mut key = RegionKey::new(self.rank, self.accesses.registered, length)?;
        let allocated = match self.accesses.idle.get_mut(&rounded).and_then(Vec::pop) {
            Some(allocated) => allocated,
            None => {
                let (address, packed) = self.engine.allocate(rounded)?;
                // SAFETY: UCX has just allocated so many bytes, which are never unmapped, for nobody else.
                let memory = unsafe { RegionMemory::forever(address, rounded) };
                Allocated { memory, address: address.as_ptr() as u64, packed }
            }
        };
        seal(&mut key, allocated.address, &allocated.packed, &self.liveness.own_token());
        self.accesses.registered += 1;
        let memory = allocated.memory.clone();
        let exposed = Exposed { mapping: None, allocated: Some((rounded, allocated)), _memory: memory.clone() };
        self.accesses.regions.insert(key.number, exposed);
        Ok(Some((memory, key)))
    }

    /// Peers can't be kept from the memory.
    fn conceal(&mut self, key: &RegionKey) -> bool {
        match self.accesses.regions.remove(&key.number) {
            Some(Exposed { allocated: Some((length, allocated)), .. }) => {
                // Zeroes for the next region; a peer that still writes harms contents alone.
                allocated.memory.clear();
                self.accesses.idle.entry(length).or_default().push(allocated);
            }
            Some(Exposed { mapping: Some(mapping), .. }) => self.engine.unmap(mapping),
            _ => {}
        }
        key.length == 0
    }

    fn attach(&mut self, key: &RegionKey) -> Result<u64> {
        self.check_open(key.owner)?;
        let (mut unpacked, mut address) = (None, 0);
        if key.length > 0 {
            let what = || "a key that no rank of this job has made".into();
            let token = self.liveness.token(key.owner);
            let (Some((fixed, packed)), Some(token)) = (key.native.split_first_chunk::<FIXED_BYTES>(), token) else {
                return Err(Error::Protocol { rank: key.owner, what: what() });
            };
            if proof(&token, key).verify_slice(&fixed[8..]).is_err() {
                return Err(Error::Protocol { rank: key.owner, what: what() });
            }
            address = bytemuck::pod_read_unaligned::<u64>(&fixed[..8]).to_le();
            // SAFETY: the HMAC under the owner's token, which the ranks of this job alone know, covers the bytes.
            unpacked = Some(unsafe { self.engine.unpack(key.owner, packed) }?);
        }
        Ok(self.accesses.keys.insert(Key { unpacked, address, used: 0, is_wanted: true }))
    }

    fn detach(&mut self, remote: &Remote) {
        if let Some(key) = self.accesses.keys.get_mut(remote.number) {
            key.is_wanted = false;
        }
        self.accesses.drop_unused(&self.engine, remote.number);
    }

    fn post_put(&mut self, remote: &Remote, offset: u64, parts: SendParts) -> Posted<PutId, Result<()>> {
        match self.begin(remote, offset, Memory::Put(parts)) {
            Posted::Done(result) => Posted::Done(result),
            Posted::Pending(number) => Posted::Pending(PutId(number)),
        }
    }

    fn post_get(&mut self, remote: &Remote, offset: u64, parts: RecvParts) -> Posted<GetId, Result<()>> {
        match self.begin(remote, offset, Memory::Get(parts)) {
            Posted::Done(result) => Posted::Done(result),
            Posted::Pending(number) => Posted::Pending(GetId(number)),
        }
    }

    fn post_flush(&mut self, to: Rank) -> Posted<PutId, Result<()>> {
        if let Err(error) = self.check_open(to) {
            return Posted::Done(Err(error));
        }
        let flight = self.engine.flights().take();
        self.engine.flush(to, &flight);
        let mut access = Access::new(to, None, Memory::Flush, self.round);
        access.flights.push(flight);
        match self.fly(access) {
            Posted::Done(result) => Posted::Done(result),
            Posted::Pending(number) => Posted::Pending(PutId(number)),
        }
    }

    fn test_put(&mut self, id: PutId) -> Option<Result<()>> {
        self.test_access(id.0)
    }

    fn test_get(&mut self, id: GetId) -> Option<Result<()>> {
        self.test_access(id.0)
    }

    /// UCX can't take a put back, which ends by itself. A flush ends at once.
    fn cancel_put(&mut self, id: PutId) {
        let Some(access) = self.accesses.operations.get_mut(id.0) else { return };
        if matches!(access.memory, Memory::Flush) && access.result.is_ok() {
            self.accesses.forgotten.extend(access.flights.drain(..));
            access.result = Err(Error::Canceled);
        }
        access.is_canceled = true;
    }

    /// UCX can't take a get back, which ends when the peer's bytes have come.
    fn cancel_get(&mut self, id: GetId) {
        if let Some(access) = self.accesses.operations.get_mut(id.0) {
            access.is_canceled = true;
        }
    }
}

impl Ucx {
    /// Begins a put or get: one UCX operation a part.
    fn begin(&mut self, remote: &Remote, offset: u64, memory: Memory) -> Posted<u64, Result<()>> {
        let peer = remote.key.owner;
        let begun = self.check_open(peer).and_then(|()| self.accesses.key(remote.number));
        let key = match begun {
            Ok(key) => key,
            Err(error) => return Posted::Done(Err(error)),
        };
        let mut access = Access::new(peer, Some(remote.number), memory, self.round);
        if let Some(unpacked) = &key.unpacked {
            // SAFETY: `access` keeps the memory and uses the key from here on, and the offset was checked against the
            // key's length, which the key's maker vouches for.
            unsafe { access.start(&mut self.engine, unpacked, key.address.wrapping_add(offset)) };
        }
        key.used += 1;
        self.fly(access)
    }

    /// Keeps an operation unless it is over already.
    fn fly(&mut self, mut access: Access) -> Posted<u64, Result<()>> {
        if access.is_over(&mut self.engine) {
            return Posted::Done(self.finish(access));
        }
        Posted::Pending(self.accesses.operations.insert(access))
    }

    fn test_access(&mut self, number: u64) -> Option<Result<()>> {
        if !self.accesses.operations.get_mut(number)?.is_over(&mut self.engine) {
            return None;
        }
        let access = self.accesses.operations.remove(number)?;
        Some(self.finish(access))
    }

    /// An operation that failed may have moved any part of its bytes: the transport is closed.
    fn finish(&mut self, access: Access) -> Result<()> {
        if let Some(number) = access.key {
            self.accesses.put_key_back(&self.engine, number);
        }
        self.reap_forgotten();
        match access.result {
            Err(error) if self.closed.is_none() && !matches!(error, Error::Canceled) => {
                self.close_for_peer(access.peer, error);
                self.check_open(access.peer)
            }
            Ok(()) if access.is_canceled => Err(Error::Canceled),
            result => result,
        }
    }

    fn reap_forgotten(&mut self) {
        for index in (0..self.accesses.forgotten.len()).rev() {
            if self.engine.reap(&self.accesses.forgotten[index]).is_some() {
                let flight = self.accesses.forgotten.swap_remove(index);
                self.engine.flights().put(flight);
            }
        }
    }
}

impl Access {
    fn new(peer: Rank, key: Option<u64>, memory: Memory, posted_in: u32) -> Self {
        let (flights, is_canceled, result) = (ArrayVec::new(), false, Ok(()));
        Self { peer, key, memory, flights, posted_in, is_canceled, result }
    }

    /// Begins one UCX operation for each part that is not empty.
    ///
    /// # Safety
    /// `self`, and with it the memory and the key's number, is kept until [`is_over`](Self::is_over); the bytes from
    /// `address` on lie in the memory of the key.
    unsafe fn start(&mut self, engine: &mut Engine, key: &Unpacked, mut address: u64) {
        match &mut self.memory {
            Memory::Put(parts) => {
                for part in parts.iter().filter(|part| !part.is_empty()) {
                    let flight = engine.flights().take();
                    // SAFETY: whoever made the lease keeps the bytes until it is dropped, after the flight is reaped.
                    unsafe { engine.put(self.peer, key, address, part.bytes(), &flight) };
                    address = address.wrapping_add(part.len() as u64);
                    self.flights.push(flight);
                }
            }
            Memory::Get(parts) => {
                for part in parts.iter_mut().filter(|part| !part.is_empty()) {
                    let (flight, length) = (engine.flights().take(), part.len());
                    // SAFETY: as for puts.
                    unsafe { engine.get(self.peer, key, address, part.bytes_mut(), &flight) };
                    address = address.wrapping_add(length as u64);
                    self.flights.push(flight);
                }
            }
            Memory::Flush => {}
        }
    }

    /// Whether UCX touches none of the memory any more; takes the outcome down.
    fn is_over(&mut self, engine: &mut Engine) -> bool {
        while let Some(flight) = self.flights.pop() {
            let Some((status, _)) = engine.reap(&flight) else {
                self.flights.push(flight);
                return false;
            };
            engine.flights().put(flight);
            if status != ucs_status_t::UCS_OK && self.result.is_ok() {
                let call = match self.memory {
                    Memory::Put(_) => "ucp_put_nbx",
                    Memory::Get(_) => "ucp_get_nbx",
                    Memory::Flush => "ucp_ep_flush_nbx",
                };
                self.result = Err(engine.error(self.peer, call, status));
            }
        }
        true
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
    for bytes in [&key.owner.0.to_le_bytes()[..], &key.number.to_le_bytes(), &key.nonce, &key.length.to_le_bytes()] {
        mac.update(bytes);
    }
    mac.update(address);
    mac.update(packed);
    mac
}
