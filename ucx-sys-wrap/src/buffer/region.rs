//! Registered memory, which peers may read and write.

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::memory::RecvBuffer;
use super::pool::Pool;
use super::pooled::PoolBuffer;
use super::port::Port;
use crate::memory::{RegionMemory, Shared};
use crate::one_sided::RegionKey;
use crate::transport::RecvParts;
use crate::{Error, Result};

/// Memory of this rank that peers put to and get from, given its [key](Self::key).
///
/// The region owns its buffer, of one part: a `Vec`, or a buffer of a [`Pool`](super::Pool). Peers write it
/// at any time, so nobody has a reference to it while it is registered: this rank copies with
/// [`write`](Self::write) and [`read`](Self::read). Messages provide the order: the peer flushes and sends a
/// message, and then this rank reads. Concurrent accesses may tear.
///
/// **When peers may still access it.** On `local`, `sim` and `tcp`, and on `ucx` if this rank reaches all
/// others only over sockets, this process carries out the peers' accesses. Then
/// [`unregister`](Self::unregister) gives the buffer back (on `ucx` unless UCX is moving its bytes), and
/// later accesses fail with [`Error::NoSuchRegion`]. Otherwise on `ucx`, peers and RDMA hardware access the
/// memory directly and can't be stopped: the transport keeps it until the process ends and never reuses it.
/// So register long-lived memory, once, or [`allocate`](Self::allocate) it. Dropping a region unregisters it.
///
/// ```
/// use ucx_sys_wrap::buffer::{Port, Region, RemoteRegion, scope};
/// use ucx_sys_wrap::local;
///
/// let [owner, peer] = <[_; 2]>::try_from(local::world(2)).ok().unwrap();
/// let (owner, peer) = (Port::new(Box::new(owner)), Port::new(Box::new(peer)));
/// let region = Region::register(&owner, vec![0.0f32; 8])?;
/// // In real programs, the key travels in a message.
/// let remote = RemoteRegion::open(&peer, owner.rank(), &region.key().to_bytes())?;
/// scope(&peer, |comm| drop(comm.port().progress()), async |comm| {
///     comm.put(&remote, 4, &[1.0f32, 2.0][..]).await?;
///     comm.flush(remote.owner()).await
/// })?;
/// let mut seen = [0.0f32; 3];
/// region.read(0, &mut seen)?;
/// assert_eq!(seen, [0.0, 1.0, 2.0]);
/// assert_eq!(region.unregister().unwrap()[1], 1.0);
/// # Ok::<(), ucx_sys_wrap::Error>(())
/// ```
pub struct Region<B: RecvBuffer + 'static> {
    port: Arc<Port>,
    key: RegionKey,
    memory: RegionMemory,
    /// `None` after `unregister`, and for memory of the transport.
    shared: Option<Arc<Shared<B::Raw>>>,
    is_over: bool,
    buffer: PhantomData<B>,
}

impl<B: RecvBuffer + 'static> Region<B> {
    /// Registers a buffer. If `ucx` lets peers access it directly, its pages become resident, which takes
    /// time.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a buffer that is not of one part, and for memory that can't be registered.
    /// The transport's failure if it is closed. The buffer is dropped.
    pub fn register(port: &Arc<Port>, buffer: B) -> Result<Self> {
        let mut raw = buffer.into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: `raw` is kept in `Shared`, with all users of the memory; the lease is dropped here.
        unsafe { B::lend(&mut raw, &mut parts) };
        let [part] = &parts[..] else {
            let why = format!("a region is one part, and this buffer has {}", parts.len());
            return Err(Error::Unavailable { name: port.name(), why });
        };
        let (pointer, length) = (part.pointer(), part.len());
        // SAFETY: `raw` owns or borrows the bytes of its lease, which is dropped here, and has no other
        // holder.
        let shared = unsafe { Shared::new(pointer, length, raw) };
        let memory = RegionMemory::from(shared.clone());
        let key = port.enter().transport.borrow_mut().one_sided().expose(memory.clone())?;
        Ok(Self::made(port, key, memory, Some(shared)))
    }

    fn made(
        port: &Arc<Port>,
        key: RegionKey,
        memory: RegionMemory,
        shared: Option<Arc<Shared<B::Raw>>>,
    ) -> Self {
        port.enter().regions.borrow_mut().insert(key.clone(), memory.clone());
        Self { port: Arc::clone(port), key, memory, shared, is_over: false, buffer: PhantomData }
    }

    /// What peers need to access the region.
    #[must_use]
    pub fn key(&self) -> &RegionKey {
        &self.key
    }

    /// Bytes of memory.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.key.length as usize
    }

    /// Copies out of the region, from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] if the range is not inside the region; nothing is copied.
    pub fn read<T: Pod>(&self, offset: usize, into: &mut [T]) -> Result<()> {
        let into: &mut [u8] = bytemuck::cast_slice_mut(into);
        self.key.check(offset as u64, into.len() as u64)?;
        self.memory.read(offset, into);
        Ok(())
    }

    /// Copies into the region, from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] if the range is not inside the region; nothing is copied.
    pub fn write<T: Pod>(&self, offset: usize, from: &[T]) -> Result<()> {
        let from: &[u8] = bytemuck::cast_slice(from);
        self.key.check(offset as u64, from.len() as u64)?;
        self.memory.write(offset, from);
        Ok(())
    }

    /// Ends all access and gives the buffer back; `None` if peers can still access it (see [`Region`]). A put
    /// that is arriving may fail at the peer, with part of it in the buffer.
    #[must_use]
    pub fn unregister(mut self) -> Option<B> {
        let raw = self.end()?.into_raw();
        // SAFETY: the raw parts come from `register` and have no other holder, and the transport guarantees
        // that nothing accesses the memory.
        Some(unsafe { B::from_raw(raw) })
    }

    /// Unregisters once. Returns the memory if it has no other holder.
    fn end(&mut self) -> Option<Shared<B::Raw>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let inner = self.port.enter();
        inner.regions.borrow_mut().remove(&self.key);
        let is_quiet = inner.transport.borrow_mut().one_sided().conceal(&self.key);
        drop(inner);
        let shared = self.shared.take()?;
        if !is_quiet {
            // Peers can still access it, so it is never freed.
            std::mem::forget(shared);
            return None;
        }
        self.memory = RegionMemory::none();
        Arc::into_inner(shared)
    }
}

impl Region<PoolBuffer<u8>> {
    /// Registers `length` zeroed bytes in the best memory for peers: `ucx` uses shared memory, which peers of
    /// this host access directly; other transports use memory of the pool.
    ///
    /// `ucx` keeps such memory when the region is dropped and reuses it for later regions.
    ///
    /// # Errors
    /// [`Error::System`] if there is no memory; else as for [`register`](Self::register).
    pub fn allocate(port: &Arc<Port>, pool: &Pool, length: usize) -> Result<Self> {
        let allocated = port.enter().transport.borrow_mut().one_sided().allocate(length)?;
        let Some((memory, key)) = allocated else { return Self::register(port, pool.take_zeroed(length)?) };
        Ok(Self::made(port, key, memory, None))
    }
}

impl<B: RecvBuffer + 'static> Drop for Region<B> {
    fn drop(&mut self) {
        self.end();
    }
}
