//! Puts, gets and flushes as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::comm::Comm;
use super::memory::{Buffer, RecvBuffer, SendBuffer};
use super::operation::{Direction, PostedOperation};
use super::port::{Inner, Port};
use crate::one_sided::{AccessId, AccessParts, RegionKey, Remote};
use crate::transport::{OperationId, Posted, RecvParts, SendParts, Transport, check_peer};
use crate::{Error, Rank, Result, Tag};

/// An opened [`Region`](super::Region) of a peer, or of this rank itself.
pub struct RemoteRegion {
    port: Arc<Port>,
    remote: Remote,
}

impl RemoteRegion {
    /// Opens the region of `peer` whose [key](RegionKey) is `key`. It may be of this rank itself.
    ///
    /// This does not contact the peer: the first operation finds out that a region is no longer registered.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the bytes are no key of the peer's memory on this transport. The transport's
    /// failure if it is closed.
    pub fn open(port: &Arc<Port>, peer: Rank, key: &[u8]) -> Result<Self> {
        let key = RegionKey::from_bytes(key, peer)?;
        let inner = port.enter();
        let mut transport = inner.transport.borrow_mut();
        let number = if peer == port.rank() {
            0
        } else {
            check_peer(peer, port.rank(), port.world_size())?;
            transport.one_sided().attach(&key)?
        };
        Ok(Self { port: Arc::clone(port), remote: Remote { key, number } })
    }

    /// The rank whose memory it is.
    #[must_use]
    pub fn owner(&self) -> Rank {
        self.remote.key.owner
    }

    /// Bytes of memory.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.remote.key.length
    }

    /// Whether it is of this rank, which the transport does not know of.
    fn is_own(&self) -> bool {
        self.owner() == self.port.rank()
    }
}

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteRegion({} bytes of rank {})", self.region_bytes(), self.owner())
    }
}

impl Drop for RemoteRegion {
    fn drop(&mut self) {
        if !self.is_own() {
            self.port.enter().transport.borrow_mut().one_sided().detach(&self.remote);
        }
    }
}

impl<'env> Comm<'env> {
    /// Writes a buffer's parts, concatenated, to a peer's region from byte `offset` on. The buffer comes back
    /// when it may be reused; only [`flush`](Self::flush) tells that the bytes have reached the peer's
    /// memory.
    ///
    /// Puts are not ordered with each other or with messages. A put that fails or is dropped may have written
    /// any part of its bytes, or may still do so. Whether the peer must make progress depends on the
    /// transport: not on `local`, and not on shared memory or RDMA under `ucx`. A put to this rank's own
    /// region is a copy, made at once.
    ///
    /// # Errors
    /// [`Error::OutOfRegion`] and [`Error::NoSuchRegion`]. If `ucx` accesses the memory directly, only the
    /// length in the key is checked. Errors as for sends.
    pub fn put<B: SendBuffer + 'env>(&self, to: &RemoteRegion, offset: usize, buffer: B) -> Put<'_, 'env, B> {
        let raw = buffer.into_raw();
        let mut parts = SendParts::new();
        // SAFETY: the `PostedOperation`, and after it the scope, keeps `raw` until the transport has dropped
        // the leases.
        unsafe { B::lend(&raw, &mut parts) };
        self.access(to, offset, raw, AccessParts::Put(parts))
    }

    /// Fills a buffer's parts, concatenated, from a peer's region from byte `offset` on.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn get<B: RecvBuffer + 'env>(
        &self,
        from: &RemoteRegion,
        offset: usize,
        buffer: B,
    ) -> Get<'_, 'env, B> {
        let mut raw = buffer.into_raw();
        let mut parts = RecvParts::new();
        // SAFETY: the `PostedOperation`, and after it the scope, keeps `raw` until the transport has dropped
        // the leases.
        unsafe { B::lend(&mut raw, &mut parts) };
        self.access(from, offset, raw, AccessParts::Get(parts))
    }

    /// Resolves when all earlier puts to `to` have reached its memory: a message sent afterwards finds them
    /// there. Costs a round trip if the peer carries out the puts, and nothing for this rank itself.
    ///
    /// # Errors
    /// Errors of the transport. A failed put reports its own error.
    pub fn flush(&self, to: Rank) -> Flush<'_, 'env> {
        let inner = self.port().enter();
        let posted = if to == self.port().rank() {
            Posted::Done(Ok(()))
        } else {
            inner.transport.borrow_mut().one_sided().post_flush(to)
        };
        Flush(PostedOperation::new(self, (to, tag(to)), (), self.note(&inner, None, posted)))
    }

    /// Posts a put or get of the leases of `raw`.
    fn access<B: Buffer + 'env>(
        &self,
        region: &RemoteRegion,
        offset: usize,
        raw: B::Raw,
        mut parts: AccessParts,
    ) -> PostedOperation<'_, 'env, B, AccessId> {
        let (key, offset) = (&region.remote.key, offset as u64);
        let inner = self.port().enter();
        // A region can only be accessed through the port that it was opened at.
        let checked = match Arc::ptr_eq(self.port(), &region.port) {
            true => key.check(offset, parts.bytes()),
            false => Err(Error::NoSuchRegion { rank: key.owner }),
        };
        let posted = match checked {
            Ok(()) if region.is_own() => Posted::Done(inner.copy_own(key, offset, &mut parts)),
            Ok(()) => inner.transport.borrow_mut().one_sided().post_access(&region.remote, offset, parts),
            Err(error) => Posted::Done(Err(error)),
        };
        PostedOperation::new(self, (key.owner, tag(key.owner)), raw, self.note(&inner, None, posted))
    }
}

impl Inner {
    /// Carries out a put or get of this rank on its own memory: one copy of each part, under the region's
    /// lock.
    fn copy_own(&self, key: &RegionKey, offset: u64, parts: &mut AccessParts) -> Result<()> {
        let regions = self.regions.borrow();
        let mut copies = self.own_copies.get();
        parts.copy(regions.find(key, offset, parts.bytes())?, &mut copies);
        self.own_copies.set(copies);
        Ok(())
    }
}

/// A put in flight; see [`Comm::put`].
pub type Put<'comm, 'env, B> = PostedOperation<'comm, 'env, B, AccessId>;

/// A get in flight; see [`Comm::get`].
pub type Get<'comm, 'env, B> = PostedOperation<'comm, 'env, B, AccessId>;

/// A flush under way; see [`Comm::flush`].
#[must_use = "a flush that is dropped says nothing"]
pub struct Flush<'comm, 'env>(PostedOperation<'comm, 'env, (), AccessId>);

impl Future for Flush<'_, '_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(ready!(Pin::new(&mut self.0).poll(context)).map(|_| ()))
    }
}

/// The tag for timeout errors: one-sided operations have none.
fn tag(peer: Rank) -> Tag {
    Tag::new(peer, 0, 0, 0)
}

impl Direction for AccessId {
    type Outcome = ();

    const HAS_CONTEXT: bool = false;

    fn operation(self) -> OperationId {
        OperationId::Access(self)
    }

    fn test(self, transport: &mut dyn Transport, _: u32) -> Option<Result<()>> {
        transport.one_sided().test_access(self)
    }

    fn cancel(self, transport: &mut dyn Transport) {
        transport.one_sided().cancel_access(self);
    }
}
