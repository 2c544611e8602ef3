//! Memory that peers may read and write for as long as it is registered.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::Pod;
use parking_lot::Mutex;

use super::memory::RecvBuffer;
use super::pool::Pool;
use super::pooled::PoolBuffer;
use super::port::Port;
use crate::one_sided::RegionKey;
use crate::shm::copy_shared;
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

/// A region's memory as a transport has it: it copies in and out, and nothing else touches the bytes
/// meanwhile but what reaches them from outside: peers, or UCX on their behalf.
#[derive(Clone)]
pub struct RegionMemory(Arc<dyn Shareable>);

/// A buffer that several hold and nobody has a reference to.
///
/// Invariants: `pointer` is valid for reads and writes of `length` initialised bytes for as long as `raw`
/// lives, which is as long as this. Threads of this process touch the bytes only while they hold the lock of
/// `raw`, but by raw pointers, as peers do, once `is_reached_from_outside` is set. References to the bytes
/// are made under the lock, and never after that.
struct Shared<R> {
    pointer: NonNull<u8>,
    length: usize,
    raw: Mutex<R>,
    is_reached_from_outside: AtomicBool,
}

// SAFETY: the pointer is into memory that `raw` owns, which may move between threads (`R: Send`); what is
// shared is touched under a lock.
unsafe impl<R: Send> Send for Shared<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for Shared<R> {}

/// [`Shared`] without its type.
trait Shareable: Send + Sync {
    fn pointer(&self) -> NonNull<u8>;
    fn length(&self) -> usize;
    fn is_reached_from_outside(&self) -> &AtomicBool;
    /// Calls `body` while no other thread touches the bytes.
    fn locked(&self, body: &mut dyn FnMut());
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
        let is_reached_from_outside = AtomicBool::new(false);
        let shared = Arc::new(Shared { pointer, length, raw: Mutex::new(raw), is_reached_from_outside });
        let memory = RegionMemory(shared.clone());
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
        let raw = self.end()?.raw.into_inner();
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

impl RegionMemory {
    /// Memory that peers reach by themselves; makes it zero.
    ///
    /// # Safety
    /// `length` bytes from `pointer` on are valid for reads and writes until the process ends, and this
    /// process touches them through this and its clones alone.
    pub(crate) unsafe fn forever(pointer: NonNull<u8>, length: usize) -> Self {
        let is_reached_from_outside = AtomicBool::new(true);
        let memory = Self(Arc::new(Shared { pointer, length, raw: Mutex::new(()), is_reached_from_outside }));
        memory.clear();
        memory
    }

    /// No memory.
    fn none() -> Self {
        let is_reached_from_outside = AtomicBool::new(false);
        Self(Arc::new(Shared {
            pointer: NonNull::dangling(),
            length: 0,
            raw: Mutex::new(()),
            is_reached_from_outside,
        }))
    }

    /// Bytes of memory.
    pub(crate) fn len(&self) -> usize {
        self.0.length()
    }

    /// Where it lies; peers that are told reach it by themselves from now on.
    pub(crate) fn open_to_the_outside(&self) -> NonNull<u8> {
        // Whoever has a reference holds the lock.
        self.0.locked(&mut || self.0.is_reached_from_outside().store(true, Ordering::Relaxed));
        self.0.pointer()
    }

    /// Where so many bytes lie, of memory that is [open to the outside](Self::open_to_the_outside), for those
    /// who touch them by raw pointers alone; `None` unless they are there.
    pub(crate) fn outside(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        debug_assert!(self.0.is_reached_from_outside().load(Ordering::Relaxed), "there may be references");
        NonNull::new(self.place(offset, length)?)
    }

    /// Copies bytes in. Does nothing unless they fit.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        if let Some(place) = self.place(offset, from.len()) {
            // SAFETY: `place` points at as many bytes of this memory, and `from` is no part of them: nobody
            // has a reference to them.
            self.0.locked(&mut || unsafe { self.copy(from.as_ptr(), place, from.len()) });
        }
    }

    /// Makes all bytes zero.
    pub(crate) fn clear(&self) {
        const ZEROES: [u8; 4096] = [0; 4096];
        for offset in (0..self.len()).step_by(ZEROES.len()) {
            self.write(offset, &ZEROES[..ZEROES.len().min(self.len() - offset)]);
        }
    }

    /// Copies bytes out. Does nothing unless they are there.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        if let Some(place) = self.place(offset, into.len()) {
            // SAFETY: as in `write`.
            self.0.locked(&mut || unsafe { self.copy(place, into.as_mut_ptr(), into.len()) });
        }
    }

    /// Copies into or out of the memory. Once it is reached from outside, other processes write it meanwhile:
    /// the compiler must not see that race, so the copy is one that it knows nothing about.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `bytes` bytes; one of them lies in this memory, the other
    /// outside of it. Other threads stay out of both: the caller has the lock.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        if self.0.is_reached_from_outside().load(Ordering::Relaxed) {
            // SAFETY: the caller guarantees both ranges.
            unsafe { copy_shared(from, to, bytes) };
        } else {
            // SAFETY: as above, and nobody else touches them.
            unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }

    /// Gives the bytes at `offset` to `body`; `None` unless they are there, and for memory that is reached
    /// from outside.
    pub(crate) fn with<T>(
        &self,
        offset: usize,
        length: usize,
        body: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let place = self.place(offset, length)?;
        let (mut body, mut result) = (Some(body), None);
        self.0.locked(&mut || {
            if self.0.is_reached_from_outside().load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: valid initialised bytes that other threads stay out of (the lock) and nobody else
            // reaches.
            let bytes = unsafe { std::slice::from_raw_parts_mut(place, length) };
            result = body.take().map(|body| body(bytes));
        });
        result
    }

    fn place(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let end = offset.checked_add(length)?;
        // SAFETY: at most the length, so it lies inside the memory or one past its end.
        (end <= self.len()).then(|| unsafe { self.0.pointer().as_ptr().add(offset) })
    }
}

impl<R: Send> Shareable for Shared<R> {
    fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    fn length(&self) -> usize {
        self.length
    }

    fn is_reached_from_outside(&self) -> &AtomicBool {
        &self.is_reached_from_outside
    }

    fn locked(&self, body: &mut dyn FnMut()) {
        let _guard = self.raw.lock();
        body();
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Buffer;
    use super::*;

    impl RegionMemory {
        /// Memory that nobody else has.
        pub(crate) fn of_zeroes(length: usize) -> Self {
            let mut raw = vec![0u8; length].into_raw();
            let mut parts = RecvParts::new();
            // SAFETY: `raw` is kept with the pointer.
            unsafe { <Vec<u8> as RecvBuffer>::lend(&mut raw, &mut parts) };
            let pointer = parts[0].pointer();
            let is_reached_from_outside = AtomicBool::new(false);
            Self(Arc::new(Shared { pointer, length, raw: Mutex::new(raw), is_reached_from_outside }))
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies from a shared slice through atomics, which are assembly elsewhere")]
    fn copies_stay_inside_memory_that_is_open() {
        let memory = RegionMemory::of_zeroes(8);
        memory.open_to_the_outside();
        check_copies(&memory);
    }

    #[test]
    fn copies_stay_inside() {
        let memory = RegionMemory::of_zeroes(8);
        check_copies(&memory);
        assert_eq!(memory.with(8, 0, |bytes| bytes.len()), Some(0));
        assert_eq!(memory.with(8, 1, |bytes| bytes.len()), None);
    }

    fn check_copies(memory: &RegionMemory) {
        memory.write(2, &[1, 2, 3]);
        memory.write(6, &[9, 9, 9]);
        memory.write(usize::MAX, &[9, 9]);
        let mut seen = [7; 8];
        memory.read(0, &mut seen);
        assert_eq!(seen, [0, 0, 1, 2, 3, 0, 0, 0]);
        memory.read(1, &mut seen);
        assert_eq!(seen[0], 0, "nothing is read where not all is there");
        memory.clear();
        memory.read(0, &mut seen);
        assert_eq!(seen, [0; 8]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "copies from a shared slice through atomics, which are assembly elsewhere")]
    fn memory_of_any_length_becomes_zero() {
        for length in [0, 1, 4095, 4096, 4097, 10_000] {
            let memory = RegionMemory::of_zeroes(length);
            memory.write(0, &vec![7; length]);
            memory.open_to_the_outside();
            memory.clear();
            let mut seen = vec![7; length];
            memory.read(0, &mut seen);
            assert!(seen.iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn nobody_has_a_reference_to_what_is_reached_from_outside() {
        let memory = RegionMemory::of_zeroes(8);
        assert_eq!(memory.with(0, 8, |bytes| bytes.len()), Some(8));
        memory.open_to_the_outside();
        assert_eq!(memory.with(0, 8, |bytes| bytes.len()), None);
    }
}
