//! Memory that peers may read and write for as long as it is registered.

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

/// Memory of this rank that peers with its [key](Self::key) put to and get from.
///
/// The region owns its buffer, of one part: a `Vec`, or a buffer of a [`Pool`](super::Pool). While it is
/// registered nobody has a reference to the memory, which peers write at any time: this rank copies in and
/// out with [`write`](Self::write) and [`read`](Self::read), and what order that has with a peer's puts and
/// gets is for messages to say (the peer flushes, sends a message, and this rank then reads). An access that
/// meets a peer's may be torn.
///
/// **When peers may still access it.** On `local`, `sim` and `tcp`, and on `ucx` where nothing but sockets
/// join this rank and all others, peers' accesses are carried out here, so [`unregister`](Self::unregister)
/// gives the buffer back (on `ucx` unless UCX is just moving bytes to or from it), and a peer's later access
/// fails with [`Error::NoSuchRegion`]. Elsewhere on `ucx` peers (and RDMA hardware) reach the memory by
/// themselves and can't be kept from it: the transport then keeps the memory until the process ends, and
/// never uses it for anything else. So register long-lived memory, once, or [`allocate`](Self::allocate) it.
/// On all transports a region is unregistered when it is dropped.
///
/// ```
/// use ucx_sys_wrap::buffer::{Port, Region, RemoteRegion, scope};
/// use ucx_sys_wrap::local;
///
/// let [owner, peer] = <[_; 2]>::try_from(local::world(2)).ok().unwrap();
/// let (owner, peer) = (Port::new(Box::new(owner)), Port::new(Box::new(peer)));
/// let region = Region::register(&owner, vec![0.0f32; 8])?;
/// // In life, the key travels in a message.
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
    /// `None` once it is unregistered, and for memory of the transport.
    shared: Option<Arc<Shared<B::Raw>>>,
    is_over: bool,
    buffer: PhantomData<B>,
}

impl<B: RecvBuffer + 'static> Region<B> {
    /// Registers a buffer. Where `ucx` lets peers reach it, its pages become resident, which takes
    /// microseconds and more.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a buffer of no or several parts, and for memory that can't be registered;
    /// the transport's failure if it is closed. The buffer is dropped then.
    pub fn register(port: &Arc<Port>, buffer: B) -> Result<Self> {
        let mut raw = buffer.into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: `raw` is kept in `Shared`, with whatever uses the memory; the lease is dropped here.
        unsafe { B::lend(&mut raw, &mut parts) };
        let [part] = &parts[..] else {
            let why = format!("a region is one part, and this buffer has {}", parts.len());
            return Err(Error::Unavailable { name: port.name(), why });
        };
        let (pointer, length) = (part.pointer(), part.len());
        // SAFETY: `raw` owns or borrows the bytes of its lease, which is dropped here, and nobody else has it.
        let shared = unsafe { Shared::new(pointer, length, raw) };
        let memory = RegionMemory::from(shared.clone());
        let key = port.enter().transport.borrow_mut().one_sided().expose(memory.clone())?;
        Ok(Self {
            port: Arc::clone(port),
            key,
            memory,
            shared: Some(shared),
            is_over: false,
            buffer: PhantomData,
        })
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

    /// Copies from the region, from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] when it is shorter; nothing is copied then.
    pub fn read<T: Pod>(&self, offset: usize, into: &mut [T]) -> Result<()> {
        let into: &mut [u8] = bytemuck::cast_slice_mut(into);
        self.key.check(offset as u64, into.len() as u64)?;
        self.memory.read(offset, into);
        Ok(())
    }

    /// Copies into the region, from byte `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] when it is shorter; nothing is copied then.
    pub fn write<T: Pod>(&self, offset: usize, from: &[T]) -> Result<()> {
        let from: &[u8] = bytemuck::cast_slice(from);
        self.key.check(offset as u64, from.len() as u64)?;
        self.memory.write(offset, from);
        Ok(())
    }

    /// Ends all access and gives the buffer back; `None` when peers can't be kept from it (see [`Region`]). A
    /// put that is arriving may end with an error at the peer, and part of it may be in the buffer.
    #[must_use]
    pub fn unregister(mut self) -> Option<B> {
        let raw = self.end()?.into_raw();
        // SAFETY: the raw parts of a buffer that was taken apart in `register`; nobody else has them, and the
        // transport has promised that nothing touches the memory.
        Some(unsafe { B::from_raw(raw) })
    }

    /// Unregisters, the first time; gives the memory if nobody else has it.
    fn end(&mut self) -> Option<Shared<B::Raw>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let is_quiet = self.port.enter().transport.borrow_mut().one_sided().conceal(&self.key);
        let shared = self.shared.take()?;
        if !is_quiet {
            // Peers go on reaching it: whatever the transport keeps, it is not freed.
            std::mem::forget(shared);
            return None;
        }
        self.memory = RegionMemory::none();
        Arc::into_inner(shared)
    }
}

impl Region<PoolBuffer<u8>> {
    /// Registers `length` bytes of zeroes where peers reach them best: memory that `ucx` shares between
    /// processes, which peers of this host then write and read by themselves; else memory of the pool.
    ///
    /// `ucx` keeps such memory when the region is dropped, and uses it for later regions.
    ///
    /// # Errors
    /// [`Error::System`] without memory; else as for [`register`](Self::register).
    pub fn allocate(port: &Arc<Port>, pool: &Pool, length: usize) -> Result<Self> {
        let allocated = port.enter().transport.borrow_mut().one_sided().allocate(length)?;
        let Some((memory, key)) = allocated else { return Self::register(port, pool.take_zeroed(length)?) };
        Ok(Self { port: Arc::clone(port), key, memory, shared: None, is_over: false, buffer: PhantomData })
    }
}

impl<B: RecvBuffer + 'static> Drop for Region<B> {
    fn drop(&mut self) {
        self.end();
    }
}
