//! UCX's own puts and gets, on memory that is registered with its context.

use std::collections::HashMap;
use std::ptr::NonNull;

use arrayvec::ArrayVec;

use super::Ucx;
use super::engine::Engine;
use super::mapping::{Direction, Mapping, Unpacked};
use super::ucp_request::UcpRequest;
use crate::buffer::{ReadLease, RegionMemory, WriteLease};
use crate::one_sided::{AccessId, AccessParts, PostedAccess, Remote};
use crate::table::Table;
use crate::transport::Posted;
use crate::{Error, MAX_PARTS, Rank, Result};

/// What one rank has registered with UCX, the keys of peers, and the operations under way.
#[derive(Default)]
pub(super) struct Accesses {
    /// By number. Keeps the memory until after UCX.
    regions: HashMap<u64, Exposed>,
    /// Allocated memory of regions that were dropped, by its length.
    idle: HashMap<usize, Vec<Allocated>>,
    keys: Table<Key>,
    operations: Table<Access>,
    /// Requests of canceled flushes, which use no memory.
    forgotten: Vec<UcpRequest>,
}

struct Exposed {
    mapping: Option<Mapping>,
    /// For memory that UCX has allocated: its length, and the constant fields of the key.
    allocated: Option<(usize, Allocated)>,
    _memory: RegionMemory,
}

/// Memory that UCX has allocated, which only regions use, and which is never freed.
#[derive(Clone)]
pub(super) struct Allocated {
    pub(super) memory: RegionMemory,
    pub(super) address: u64,
    /// The key that peers unpack.
    pub(super) packed: Vec<u8>,
}

/// An attached key. It is destroyed when it is detached and no operation uses it.
struct Key {
    /// `None` for a region without bytes, and for one that UCX does not reach.
    unpacked: Option<Unpacked>,
    address: u64,
    used: u32,
    is_wanted: bool,
}

/// A put, get or flush under way.
///
/// Invariants: `memory` stays here, and the key in the table, until every request is reaped.
struct Access {
    peer: Rank,
    /// The key's number; none for a flush.
    key: Option<u64>,
    /// None for a flush.
    memory: Option<AccessParts>,
    requests: ArrayVec<UcpRequest, MAX_PARTS>,
    posted_in: u32,
    is_canceled: bool,
    result: Result<()>,
}

impl Accesses {
    /// Registers the memory of a region, which lies at `start`; returns the key that peers unpack.
    pub(super) fn expose(
        &mut self,
        engine: &Engine,
        number: u64,
        start: NonNull<u8>,
        memory: RegionMemory,
    ) -> Result<Vec<u8>> {
        // SAFETY: `conceal` says that the memory is reached, so that it is never freed.
        let (mapped, packed) = unsafe { engine.map(start, memory.len()) }?;
        self.regions.insert(number, Exposed { mapping: Some(mapped), allocated: None, _memory: memory });
        Ok(packed)
    }

    /// Returns `bytes` bytes of unused memory that UCX has allocated.
    pub(super) fn allocate(&mut self, engine: &Engine, bytes: usize) -> Result<Allocated> {
        if let Some(allocated) = self.idle.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(allocated);
        }
        let (address, packed) = engine.allocate(bytes)?;
        // SAFETY: UCX has just allocated so many bytes, which are never unmapped, for nobody else.
        let memory = unsafe { RegionMemory::forever(address, bytes) };
        Ok(Allocated { memory, address: address.as_ptr() as u64, packed })
    }

    /// Gives allocated memory to a region.
    pub(super) fn keep(&mut self, number: u64, bytes: usize, allocated: Allocated) {
        let _memory = allocated.memory.clone();
        self.regions.insert(number, Exposed { mapping: None, allocated: Some((bytes, allocated)), _memory });
    }

    /// Ends a region. Returns whether peers may go on reaching its memory.
    pub(super) fn conceal(&mut self, engine: &Engine, number: u64) -> bool {
        let Some(Exposed { mapping, allocated, .. }) = self.regions.remove(&number) else { return false };
        if let Some((bytes, allocated)) = allocated {
            // Zeroes for the next region; a peer that still writes harms contents alone.
            allocated.memory.clear();
            self.idle.entry(bytes).or_default().push(allocated);
        }
        if let Some(mapping) = mapping {
            engine.unmap(mapping);
        }
        true
    }

    pub(super) fn attach(&mut self, unpacked: Option<Unpacked>, address: u64) -> u64 {
        self.keys.insert(Key { unpacked, address, used: 0, is_wanted: true })
    }

    pub(super) fn detach(&mut self, engine: &Engine, number: u64) {
        self.release_key(engine, number, |key| key.is_wanted = false);
    }

    /// Cancels an operation. UCX can't take one back, but a flush ends at once.
    pub(super) fn cancel(&mut self, number: u64) {
        let Some(access) = self.operations.get_mut(number) else { return };
        if access.memory.is_none() && access.result.is_ok() {
            self.forgotten.extend(access.requests.drain(..));
            access.result = Err(Error::Canceled);
        }
        access.is_canceled = true;
    }

    /// Ends the operations with a lost peer with `error`: puts and gets once UCX does not touch their memory
    /// any more.
    pub(super) fn lose(&mut self, peer: Rank, error: &Error) {
        for access in self.operations.iter_mut().filter(|access| access.peer == peer) {
            if access.requests.iter().all(UcpRequest::is_over) || access.result.is_err() {
                continue;
            }
            if access.memory.is_none() {
                self.forgotten.extend(access.requests.drain(..));
            }
            access.result = Err(error.clone());
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// The peers of operations that are not over, each with the round of its posting.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Rank, u32)> {
        self.operations
            .iter()
            .filter(|access| access.requests.iter().any(|request| !request.is_over()))
            .map(|access| (access.peer, access.posted_in))
    }

    /// Destroys unused keys before the tear-down.
    pub(super) fn release(&mut self, engine: &Engine) {
        for key in self.keys.iter_mut().filter(|key| key.used == 0) {
            if let Some(unpacked) = key.unpacked.take() {
                engine.destroy(unpacked);
            }
        }
    }

    /// Takes the registrations back, between worker and context.
    pub(super) fn unmap_all(&mut self, engine: &Engine) {
        for region in self.regions.values_mut() {
            if let Some(mapping) = region.mapping.take() {
                engine.unmap(mapping);
            }
        }
    }

    /// Ends every operation that had not succeeded with `error`, after the tear-down.
    pub(super) fn end_all(&mut self, error: &Error) {
        for access in self.operations.iter_mut() {
            if access.result.is_ok() && !access.requests.iter().all(UcpRequest::has_succeeded) {
                access.result = Err(error.clone());
            }
        }
    }

    /// Takes a use of a key back, and destroys the key after its last use.
    fn release_key(&mut self, engine: &Engine, number: u64, release: impl FnOnce(&mut Key)) {
        let Some(key) = self.keys.get_mut(number) else { return };
        release(key);
        if !key.is_wanted
            && key.used == 0
            && let Some(Key { unpacked: Some(unpacked), .. }) = self.keys.remove(number)
        {
            engine.destroy(unpacked);
        }
    }
}

impl Ucx {
    /// Begins a put or get: one UCX operation a part.
    pub(super) fn begin(&mut self, remote: &Remote, offset: u64, memory: AccessParts) -> PostedAccess {
        // `attach` made the number, which is valid until its region is dropped.
        let Some(key) = self.accesses.keys.get_mut(remote.number) else {
            return Posted::Done(Err(Error::Closed));
        };
        let mut access = Access::new(remote.key.owner, Some(remote.number), Some(memory), self.round);
        if let Some(unpacked) = &key.unpacked {
            // SAFETY: `access` keeps the memory and uses the key from here on, and the offset was checked
            // against the key's length, which the key's maker vouches for.
            unsafe { access.start(&mut self.engine, unpacked, key.address.wrapping_add(offset)) };
        }
        key.used += 1;
        self.track(access)
    }

    pub(super) fn begin_flush(&mut self, to: Rank) -> PostedAccess {
        let request = self.engine.ucp_requests().take();
        self.engine.flush(to, &request);
        let mut access = Access::new(to, None, None, self.round);
        access.requests.push(request);
        self.track(access)
    }

    /// Keeps an operation unless it is over already.
    fn track(&mut self, mut access: Access) -> PostedAccess {
        if access.is_over(&mut self.engine) {
            return Posted::Done(self.finish(access));
        }
        Posted::Pending(AccessId(self.accesses.operations.insert(access)))
    }

    pub(super) fn test_reached(&mut self, number: u64) -> Option<Result<()>> {
        if !self.accesses.operations.get_mut(number)?.is_over(&mut self.engine) {
            return None;
        }
        let access = self.accesses.operations.remove(number)?;
        Some(self.finish(access))
    }

    fn finish(&mut self, access: Access) -> Result<()> {
        if let Some(number) = access.key {
            self.accesses.release_key(&self.engine, number, |key| key.used -= 1);
        }
        self.engine.reap_finished(&mut self.accesses.forgotten);
        let canceled = if access.is_canceled { Err(Error::Canceled) } else { Ok(()) };
        self.judge_access(access.peer, access.result.and(canceled))
    }
}

impl Access {
    fn new(peer: Rank, key: Option<u64>, memory: Option<AccessParts>, posted_in: u32) -> Self {
        let (requests, is_canceled, result) = (ArrayVec::new(), false, Ok(()));
        Self { peer, key, memory, requests, posted_in, is_canceled, result }
    }

    /// Begins one UCX operation for each part that is not empty.
    ///
    /// # Safety
    /// `self`, and with it the memory and the key's number, is kept until [`is_over`](Self::is_over); the
    /// bytes from `address` on lie in the memory of the key.
    unsafe fn start(&mut self, engine: &mut Engine, key: &Unpacked, mut address: u64) {
        let (direction, parts): (_, ArrayVec<_, MAX_PARTS>) = match &mut self.memory {
            Some(AccessParts::Put(parts)) => {
                let range = |part: &ReadLease| (part.bytes().as_ptr().cast_mut(), part.len());
                (Direction::Put, parts.iter().map(range).collect())
            }
            Some(AccessParts::Get(parts)) => {
                let range = |part: &mut WriteLease| (part.bytes_mut().as_mut_ptr(), part.len());
                (Direction::Get, parts.iter_mut().map(range).collect())
            }
            None => return,
        };
        for (start, length) in parts.into_iter().filter(|(_, length)| *length > 0) {
            let request = engine.ucp_requests().take();
            // SAFETY: the maker of the lease keeps the bytes until it is dropped, after the request is
            // reaped.
            unsafe { engine.access(direction, self.peer, (key, address), (start, length), &request) };
            address = address.wrapping_add(length as u64);
            self.requests.push(request);
        }
    }

    /// Whether UCX touches none of the memory any more; records the outcome.
    fn is_over(&mut self, engine: &mut Engine) -> bool {
        let Self { requests, memory, result, peer, .. } = self;
        engine.reap_all(requests, |engine, status| {
            let call = match memory {
                Some(AccessParts::Put(_)) => "ucp_put_nbx",
                Some(AccessParts::Get(_)) => "ucp_get_nbx",
                None => "ucp_ep_flush_nbx",
            };
            if result.is_ok() {
                *result = Err(engine.error(*peer, call, status));
            }
        })
    }
}
