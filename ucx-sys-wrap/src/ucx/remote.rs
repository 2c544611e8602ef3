//! UCX's own puts and gets, on memory that is registered with its context.

use std::collections::HashMap;
use std::ptr::NonNull;

use arrayvec::ArrayVec;
use brevity_ucx_sys::ucs_status_t;

use super::Ucx;
use super::engine::Engine;
use super::mapping::{Mapping, Unpacked};
use super::table::Table;
use super::ucp_request::UcpRequest;
use crate::buffer::RegionMemory;
use crate::one_sided::Remote;
use crate::transport::{Posted, RecvParts, SendParts};
use crate::{Error, MAX_PARTS, Rank, Result};

/// What one rank has registered with UCX, which keys of peers it holds, and what is under way.
pub(super) struct Accesses {
    /// By number. The memory is kept so that it outlives UCX.
    regions: HashMap<u64, Exposed>,
    /// Allocated memory of regions that were dropped, by its length.
    idle: HashMap<usize, Vec<Allocated>>,
    keys: Table<Key>,
    operations: Table<Access>,
    /// What UCX works on for flushes that nobody waits for any more; there is no memory to it.
    forgotten: Vec<UcpRequest>,
}

struct Exposed {
    mapping: Option<Mapping>,
    /// For memory that UCX has allocated: its length, and what of the key does not change.
    allocated: Option<(usize, Allocated)>,
    _memory: RegionMemory,
}

/// Memory that UCX has allocated, which is used for regions alone, and never freed.
#[derive(Clone)]
pub(super) struct Allocated {
    pub(super) memory: RegionMemory,
    pub(super) address: u64,
    /// What peers unpack.
    pub(super) packed: Vec<u8>,
}

/// A key that was opened. It is destroyed when it is not wanted and no operation uses it.
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
    memory: Memory,
    requests: ArrayVec<UcpRequest, MAX_PARTS>,
    posted_in: u32,
    is_canceled: bool,
    result: Result<()>,
}

pub(super) enum Memory {
    Put(SendParts),
    Get(RecvParts),
    Flush,
}

impl Accesses {
    pub(super) fn new() -> Self {
        let (regions, idle) = (HashMap::new(), HashMap::new());
        Self { regions, idle, keys: Table::new(), operations: Table::new(), forgotten: Vec::new() }
    }

    /// Registers the memory of a region, which lies at `start`; gives what peers unpack.
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

    /// Memory that UCX has allocated and nobody uses, of so many bytes.
    pub(super) fn allocate(&mut self, engine: &Engine, bytes: usize) -> Result<Allocated> {
        if let Some(allocated) = self.idle.get_mut(&bytes).and_then(Vec::pop) {
            return Ok(allocated);
        }
        let (address, packed) = engine.allocate(bytes)?;
        // SAFETY: UCX has just allocated so many bytes, which are never unmapped, for nobody else.
        let memory = unsafe { RegionMemory::forever(address, bytes) };
        Ok(Allocated { memory, address: address.as_ptr() as u64, packed })
    }

    /// Allocated memory of so many bytes becomes that of a region.
    pub(super) fn keep(&mut self, number: u64, bytes: usize, allocated: Allocated) {
        let _memory = allocated.memory.clone();
        self.regions.insert(number, Exposed { mapping: None, allocated: Some((bytes, allocated)), _memory });
    }

    /// A region ends. Says whether peers may go on reaching its memory.
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

    /// Keeps a peer's key; gives its number.
    pub(super) fn attach(&mut self, unpacked: Option<Unpacked>, address: u64) -> u64 {
        self.keys.insert(Key { unpacked, address, used: 0, is_wanted: true })
    }

    /// Lets go of a peer's key, once no operation uses it.
    pub(super) fn detach(&mut self, engine: &Engine, number: u64) {
        if let Some(key) = self.keys.get_mut(number) {
            key.is_wanted = false;
        }
        self.drop_unused(engine, number);
    }

    /// Asks an operation to end early. UCX can't take one back, but a flush can end.
    pub(super) fn cancel(&mut self, number: u64) {
        let Some(access) = self.operations.get_mut(number) else { return };
        if matches!(access.memory, Memory::Flush) && access.result.is_ok() {
            self.forgotten.extend(access.requests.drain(..));
            access.result = Err(Error::Canceled);
        }
        access.is_canceled = true;
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
            .filter(|access| access.requests.iter().any(|request| !request.is_over()))
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
        for access in self.operations.iter_mut() {
            if access.result.is_ok() && !access.requests.iter().all(UcpRequest::has_succeeded) {
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

impl Ucx {
    /// Begins a put or get: one UCX operation a part.
    pub(super) fn begin(&mut self, remote: &Remote, offset: u64, memory: Memory) -> Posted<u64, Result<()>> {
        let key = match self.accesses.key(remote.number) {
            Ok(key) => key,
            Err(error) => return Posted::Done(Err(error)),
        };
        let mut access = Access::new(remote.key.owner, Some(remote.number), memory, self.round);
        if let Some(unpacked) = &key.unpacked {
            // SAFETY: `access` keeps the memory and uses the key from here on, and the offset was checked
            // against the key's length, which the key's maker vouches for.
            unsafe { access.start(&mut self.engine, unpacked, key.address.wrapping_add(offset)) };
        }
        key.used += 1;
        self.track(access)
    }

    /// Begins to flush the puts to a peer.
    pub(super) fn begin_flush(&mut self, to: Rank) -> Posted<u64, Result<()>> {
        let request = self.engine.ucp_requests().take();
        self.engine.flush(to, &request);
        let mut access = Access::new(to, None, Memory::Flush, self.round);
        access.requests.push(request);
        self.track(access)
    }

    /// Keeps an operation unless it is over already.
    fn track(&mut self, mut access: Access) -> Posted<u64, Result<()>> {
        if access.is_over(&mut self.engine) {
            return Posted::Done(self.finish(access));
        }
        Posted::Pending(self.accesses.operations.insert(access))
    }

    pub(super) fn test_access(&mut self, number: u64) -> Option<Result<()>> {
        if !self.accesses.operations.get_mut(number)?.is_over(&mut self.engine) {
            return None;
        }
        let access = self.accesses.operations.remove(number)?;
        Some(self.finish(access))
    }

    /// The end of an operation.
    fn finish(&mut self, access: Access) -> Result<()> {
        if let Some(number) = access.key {
            self.accesses.put_key_back(&self.engine, number);
        }
        self.reap_forgotten();
        let canceled = if access.is_canceled { Err(Error::Canceled) } else { Ok(()) };
        self.judge_access(access.peer, access.result.and(canceled))
    }

    fn reap_forgotten(&mut self) {
        for index in (0..self.accesses.forgotten.len()).rev() {
            if self.engine.reap(&self.accesses.forgotten[index]).is_some() {
                let request = self.accesses.forgotten.swap_remove(index);
                self.engine.ucp_requests().put(request);
            }
        }
    }
}

impl Access {
    fn new(peer: Rank, key: Option<u64>, memory: Memory, posted_in: u32) -> Self {
        let (requests, is_canceled, result) = (ArrayVec::new(), false, Ok(()));
        Self { peer, key, memory, requests, posted_in, is_canceled, result }
    }

    /// Begins one UCX operation for each part that is not empty.
    ///
    /// # Safety
    /// `self`, and with it the memory and the key's number, is kept until [`is_over`](Self::is_over); the
    /// bytes from `address` on lie in the memory of the key.
    unsafe fn start(&mut self, engine: &mut Engine, key: &Unpacked, mut address: u64) {
        match &mut self.memory {
            Memory::Put(parts) => {
                for part in parts.iter().filter(|part| !part.is_empty()) {
                    let request = engine.ucp_requests().take();
                    // SAFETY: whoever made the lease keeps the bytes until it is dropped, after the request is
                    // reaped.
                    unsafe { engine.put(self.peer, key, address, part.bytes(), &request) };
                    address = address.wrapping_add(part.len() as u64);
                    self.requests.push(request);
                }
            }
            Memory::Get(parts) => {
                for part in parts.iter_mut().filter(|part| !part.is_empty()) {
                    let (request, length) = (engine.ucp_requests().take(), part.len());
                    // SAFETY: as for puts.
                    unsafe { engine.get(self.peer, key, address, part.bytes_mut(), &request) };
                    address = address.wrapping_add(length as u64);
                    self.requests.push(request);
                }
            }
            Memory::Flush => {}
        }
    }

    /// Whether UCX touches none of the memory any more; takes the outcome down.
    fn is_over(&mut self, engine: &mut Engine) -> bool {
        while let Some(request) = self.requests.pop() {
            let Some((status, _)) = engine.reap(&request) else {
                self.requests.push(request);
                return false;
            };
            engine.ucp_requests().put(request);
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
