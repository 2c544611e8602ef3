//! Calls on buffers that are frozen and shared: what came from one peer goes on to others out of the same
//! memory.

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::{PoolBuffer, SharedBuffer};

use super::Group;
use crate::dense;
use crate::description::{Description, Operation};
use crate::element::Element;
use crate::error::{Error, Result};

impl Group {
    /// Broadcasts the buffer of rank `root`: every rank gets those elements, in the memory that it handed in,
    /// frozen.
    ///
    /// All ranks hand in equally many elements; those of other ranks than the root are overwritten. The call
    /// owns the buffer meanwhile. All of its sends have ended when it returns, so the result can be thawed
    /// and written again ([`SharedBuffer::thaw`]), sliced, and sent on by other calls, none of which copies.
    ///
    /// A binomial tree of messages, whatever the ranks share: `ceil(log2 P)` rounds of `n` bytes. A rank
    /// receives `n` bytes and sends `n` to each child, at most `ceil(log2 P)` of them, all out of the one
    /// buffer. This call copies nothing; what the transport copies is in [`statistics`](Self::statistics).
    /// Among ranks of one host, where [`broadcast`](Self::broadcast) needs no messages, that one is often
    /// faster.
    ///
    /// # Errors
    /// As [`barrier`](Self::barrier), [`Error::Mismatch`] also where lengths differ; [`Error::NoSuchRoot`].
    /// The buffer is then dropped: its memory goes back to its pool when the transport has let go of it.
    pub fn broadcast_shared<T: Element>(&self, buffer: PoolBuffer<T>, root: u32) -> Result<SharedBuffer<T>> {
        if root >= self.world_size() {
            return Err(Error::NoSuchRoot { root: Rank(root), world_size: self.world_size() });
        }
        let description = describe::<T>(buffer.len(), root);
        self.run(description, async |call| dense::broadcast_shared(call, buffer, root).await)
    }

    /// What the root may call in place of [`broadcast_shared`](Self::broadcast_shared) when its buffer is
    /// frozen already, or is a piece of one: this rank is the root. Others may read the buffer meanwhile, and
    /// keep it.
    ///
    /// # Errors
    /// As [`broadcast_shared`](Self::broadcast_shared); the buffer stays as it is.
    pub fn broadcast_frozen<T: Element>(&self, buffer: &SharedBuffer<T>) -> Result<()> {
        let description = describe::<T>(buffer.len(), self.rank());
        self.run(description, async |call| dense::broadcast_frozen(call, buffer.clone()).await.map(drop))
    }
}

fn describe<T: Element>(count: usize, root: u32) -> Description {
    Description { root: Some(Rank(root)), ..Description::new(Operation::SHARED_BROADCAST, T::NUMBER, count) }
}
