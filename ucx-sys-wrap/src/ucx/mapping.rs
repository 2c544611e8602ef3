//! Registered memory, the keys of peers' memory, and UCX's puts and gets.

use std::ptr::{NonNull, null_mut};

use brevity_ucx_sys::*;

use super::engine::Engine;
use super::ucp_request::UcpRequest;
use crate::{Error, Rank, Result};

/// Memory registered with a context.
///
/// Invariant: made by `ucp_mem_map` of the engine's context; meaningless after the tear-down.
pub(super) struct Mapping(ucp_mem_h);

/// A peer's key, unpacked for the endpoint to it.
///
/// Invariant: made by `ucp_ep_rkey_unpack` on an endpoint of the engine; meaningless after the tear-down.
pub(super) struct Unpacked(ucp_rkey_h);

// SAFETY: handles that are used through the engine only, which owns what they name and moves with them, in
// `Ucx`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Send for Unpacked {}

impl Engine {
    /// Registers memory; returns it with the key that peers unpack.
    ///
    /// # Safety
    /// The memory is valid for as long as anything may access it: until the process ends.
    pub(super) unsafe fn map(&self, memory: NonNull<u8>, length: usize) -> Result<(Mapping, Vec<u8>)> {
        let params = ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
            address: memory.as_ptr().cast(),
            length,
            ..Default::default()
        };
        // SAFETY: the caller vouches for the memory.
        let mapping = unsafe { self.map_as(&params) }?;
        match self.pack(&mapping) {
            Ok(key) => Ok((mapping, key)),
            Err(error) => {
                self.unmap(mapping);
                Err(error)
            }
        }
    }

    /// Allocates and registers memory that UCX can share; returns its address and the key that peers unpack.
    /// The memory stays until the process ends, whatever becomes of the context.
    pub(super) fn allocate(&self, length: usize) -> Result<(NonNull<u8>, Vec<u8>)> {
        let params = ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
            length,
            flags: UCP_MEM_MAP_ALLOCATE,
            ..Default::default()
        };
        // SAFETY: UCX allocates the memory itself.
        let mapping = unsafe { self.map_as(&params) }?;
        self.has_allocated.set(true);
        let mut attributes = ucp_mem_attr_t {
            field_mask: UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH,
            ..Default::default()
        };
        // SAFETY: just made; the attributes are ours.
        let status = unsafe { self.ucp.ucp_mem_query(mapping.0, &mut attributes) };
        let queried = self.check("ucp_mem_query", status).and_then(|()| self.pack(&mapping));
        match (queried, NonNull::new(attributes.address.cast::<u8>())) {
            // Never unmapped: the mapping has no owner from here on.
            (Ok(key), Some(address)) if attributes.length >= length => Ok((address, key)),
            (result, _) => {
                self.unmap(mapping);
                let status = "less memory than was asked for".to_owned();
                Err(result.err().unwrap_or(Error::Ucx { call: "ucp_mem_query", status }))
            }
        }
    }

    /// # Safety
    /// Memory that the parameters name is valid as for [`map`](Self::map).
    unsafe fn map_as(&self, params: &ucp_mem_map_params_t) -> Result<Mapping> {
        if self.is_torn_down() {
            return Err(Error::Closed);
        }
        let mut handle = null_mut();
        // SAFETY: the context lives; the caller vouches for the memory; the result goes to a local.
        let status = unsafe { self.ucp.ucp_mem_map(self.context, params, &mut handle) };
        self.check("ucp_mem_map", status)?;
        Ok(Mapping(handle))
    }

    fn pack(&self, mapping: &Mapping) -> Result<Vec<u8>> {
        let (mut packed, mut packed_bytes) = (null_mut(), 0);
        // SAFETY: registered with this context, which lives; the results go to locals.
        let status =
            unsafe { self.ucp.ucp_rkey_pack(self.context, mapping.0, &mut packed, &mut packed_bytes) };
        self.check("ucp_rkey_pack", status)?;
        // SAFETY: UCX returned so many bytes, released below.
        let key = unsafe { std::slice::from_raw_parts(packed.cast::<u8>(), packed_bytes) }.to_vec();
        // SAFETY: from `ucp_rkey_pack`, used no more.
        unsafe { self.ucp.ucp_rkey_buffer_release(packed) };
        Ok(key)
    }

    /// Takes a registration back, unless the context is gone. Peers may still try to use it.
    pub(super) fn unmap(&self, mapping: Mapping) {
        if !self.context.is_null() {
            // SAFETY: registered with this context, which lives, and given up by its only holder. UCX logs
            // failures itself.
            unsafe { self.ucp.ucp_mem_unmap(self.context, mapping.0) };
        }
    }

    /// Unpacks a peer's key.
    ///
    /// # Safety
    /// The bytes are what [`map`](Self::map) gave to that peer: UCX reads them without a length.
    pub(super) unsafe fn unpack(&self, peer: Rank, key: &[u8]) -> Result<Unpacked> {
        if self.is_torn_down() {
            return Err(Error::Closed);
        }
        let mut unpacked = null_mut();
        // SAFETY: the endpoint lives as the worker does; the caller vouches for the bytes; the result is a
        // local.
        let status = unsafe {
            self.ucp.ucp_ep_rkey_unpack(self.endpoints[peer.index()], key.as_ptr().cast(), &mut unpacked)
        };
        self.check("ucp_ep_rkey_unpack", status)?;
        Ok(Unpacked(unpacked))
    }

    /// Destroys an unpacked key that no operation uses.
    pub(super) fn destroy(&self, key: Unpacked) {
        if !self.is_torn_down() {
            // SAFETY: unpacked for an endpoint that lives as the worker does, and given up by its only
            // holder.
            unsafe { self.ucp.ucp_rkey_destroy(key.0) };
        }
    }

    /// Begins to put or get the bytes at `start`; they may be used again when the request is over.
    ///
    /// # Safety
    /// As for [`send`](Self::send); nobody has a reference to what a get writes; as many bytes from the
    /// address on lie in the memory of the key.
    pub(super) unsafe fn access(
        &mut self,
        direction: Direction,
        peer: Rank,
        (key, address): (&Unpacked, u64),
        (start, length): (*mut u8, usize),
        request: &UcpRequest,
    ) {
        let start = start.cast();
        self.submit(peer, request, 0, |ucp, endpoint, param| match direction {
            // SAFETY: endpoint and key live as the worker does; the caller keeps the bytes; the record
            // outlives the worker.
            Direction::Put => unsafe { ucp.ucp_put_nbx(endpoint, start, length, address, key.0, param) },
            // SAFETY: as above.
            Direction::Get => unsafe { ucp.ucp_get_nbx(endpoint, start, length, address, key.0, param) },
        });
    }
}

#[derive(Clone, Copy)]
pub(super) enum Direction {
    Put,
    Get,
}
