//! Memory that other ranks of a group write and read.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Comm, RecvBuffer, Region, RemoteRegion};
use ucx_sys_wrap::{Error as Fault, Rank};

use super::Group;
use crate::data::Element;
use crate::error::{Error, Result};

/// # Memory that other ranks write and read
///
/// A rank [registers](Self::register) memory and sends the [key](Region::key) to others, for instance as a
/// message. They [open](Self::open_region) it, and then [put](Self::put) to and [get](Self::get) from that
/// memory without its owner's taking part. Where the transport has no such access, the owner carries it out
/// while it makes progress: in any call, or by the progress thread. See [`Region`].
///
/// **Timeouts** are those of the handle ([`with_timeout`](Self::with_timeout)), and close nothing
/// ([`Error::OneSidedTimeout`]). Over UCX, a put or get that has begun can't be taken back: the call returns
/// when UCX has let go of the caller's memory. Where the owner carries it out, that is when the owner turns
/// its transport, or is lost; where memory is accessed directly, it needs no turn of the owner.
///
/// **A group that closes** while a call waits ends the call in the same way, with the errors of collectives.
/// If UCX still has the caller's memory 10 s later, because the owner stands still, UCX is torn down and all
/// groups of this job are closed for this rank.
///
/// **Errors** of a closed group are those of collectives. In addition [`Error::Transport`] with
/// [`OutOfRegion`](Fault::OutOfRegion) for a range outside of the region, and with
/// [`NoSuchRegion`](Fault::NoSuchRegion) for a region that is not, or no longer, registered.
impl Group {
    /// Lets ranks that have its key access `buffer`, until the region is dropped. Sends nothing.
    ///
    /// ```
    /// let group = brevity_collectives::Group::solo();
    /// let region = group.register(vec![0.0f32; 8])?;
    /// assert_eq!(region.byte_count(), 32);
    /// assert_eq!(region.unregister(), Some(vec![0.0; 8]));
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Transport`] if the memory can't be registered; those of a closed group.
    pub fn register<B: RecvBuffer + 'static>(&self, buffer: B) -> Result<Region<B>> {
        self.check_open()?;
        Region::register(self.port(), buffer).map_err(|fault| self.context.ranks.error(fault))
    }

    /// Opens the region of rank `owner` of the group, which may be this rank, with this key, as [`to_bytes`]
    /// gave it. Does not contact the owner. Puts and gets on this rank's own region are copies.
    ///
    /// [`to_bytes`]: ucx_sys_wrap::RegionKey::to_bytes
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]. [`Error::Transport`] with [`Protocol`](Fault::Protocol) if the bytes are no key
    /// of that rank's memory. Those of a closed group.
    pub fn open_region(&self, owner: u32, key: &[u8]) -> Result<RemoteRegion> {
        let member = self.member(owner)?;
        self.check_open()?;
        RemoteRegion::open(self.port(), member, key).map_err(|fault| self.context.ranks.error(fault))
    }

    /// Writes `data` to a region from byte `offset` on. Returns when `data` may be used again: only
    /// [`flush`](Self::flush) tells that the elements have reached the owner's memory. Puts are not ordered.
    ///
    /// # Errors
    /// As above. After an error any part of the elements may have been written, or may yet be.
    pub fn put<T: Element>(&self, data: &[T], to: &RemoteRegion, offset: usize) -> Result<()> {
        self.run_one_sided(("a put to", to.owner()), async move |comm| {
            comm.put(to, offset, data).await.map(drop)
        })
    }

    /// Reads `data.len()` elements of a region from byte `offset` on.
    ///
    /// # Errors
    /// As above. After an error `data` is unspecified.
    pub fn get<T: Element>(&self, data: &mut [T], from: &RemoteRegion, offset: usize) -> Result<()> {
        self.run_one_sided(("a get from", from.owner()), async move |comm| {
            comm.get(from, offset, data).await.map(drop)
        })
    }

    /// Waits until all earlier puts of this rank to rank `to` have reached its memory: a message that is sent
    /// afterwards finds them there. Those to this rank itself already have. A put that has failed has
    /// reported its own error.
    ///
    /// # Errors
    /// As above; [`Error::NoSuchRank`].
    pub fn flush(&self, to: u32) -> Result<()> {
        let member = self.member(to)?;
        self.run_one_sided(("a flush to", member), async move |comm| comm.flush(member).await)
    }

    /// Fails in a forked child, and if this rank knows that the group is closed. Calls that end at once turn
    /// no transport, so this does, once in a millisecond.
    fn check_open(&self) -> Result<()> {
        self.check_process()?;
        let (port, status) = (self.port(), &*self.context.status);
        let is_closed = self.engine().is_late(port.now(), status) || status.look(port);
        if is_closed { self.failure().map_or(Ok(()), Err) } else { Ok(()) }
    }

    /// The rank in the world of a rank of the group.
    fn member(&self, rank: u32) -> Result<Rank> {
        let (members, world_size) = (self.members(), self.world_size());
        members.get(rank as usize).copied().ok_or(Error::NoSuchRank { rank, world_size })
    }

    fn run_one_sided<'env>(
        &self,
        (what, peer): (&'static str, Rank),
        body: impl AsyncFnOnce(&Comm<'env>) -> std::result::Result<(), Fault>,
    ) -> Result<()> {
        self.check_open()?;
        let (ranks, status) = (&*self.context.ranks, &*self.context.status);
        let ended = self.engine().run_one_sided(status, self.timeout(), async |comm: &Comm<'env>| {
            unless_closed(comm, ranks.number, body(comm)).await
        });
        ended.map_err(|fault| match fault {
            Fault::Timeout { waited: after, .. } => Error::OneSidedTimeout { what, rank: peer, after },
            fault => ranks.error(fault),
        })
    }
}

/// How long an operation may take to end once the context is closed, before the end of its scope abandons the
/// transport.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Waits for an operation, which has no context. When the context is closed, the operation is given up, and
/// its end is waited for: leaving it to the end of the scope would cost the transport, and all other groups
/// with it, if it takes some seconds.
async fn unless_closed(
    comm: &Comm<'_>,
    context: u16,
    operation: impl Future<Output = std::result::Result<(), Fault>>,
) -> std::result::Result<(), Fault> {
    let port = comm.port();
    let mut operation = pin!(operation);
    let mut closed = None;
    poll_fn(|task| {
        let polled = operation.as_mut().poll(task);
        match closed {
            Some((cause, end)) if polled.is_ready() || port.now() >= end => Poll::Ready(Err(cause)),
            None if polled.is_pending() && (port.has_closed() || port.is_abort_wanted()) => {
                if let Some(cause) = port.failure(context) {
                    closed = Some((cause, port.now().saturating_add(ENDS_WITHIN)));
                    // The next poll, after a turn of the transport, cancels the operation.
                    comm.expire();
                }
                Poll::Pending
            }
            _ => polled.map(Ok),
        }
    })
    .await
    .unwrap_or_else(|cause| Err(cause.into()))
}
