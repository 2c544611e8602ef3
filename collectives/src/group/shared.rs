//! Calls on frozen shared buffers: data of one peer is sent on to others from the same memory.

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::{PoolBuffer, SharedBuffer};

use super::Group;
use crate::data::Element;
use crate::dense;
use crate::description::{Description, Operation};
use crate::error::Result;

impl Group {
    /// Broadcasts the buffer of rank `root`: every rank gets its elements in the memory that it passed in,
    /// frozen.
    ///
    /// All ranks pass equally many elements; those of ranks other than the root are overwritten. The call
    /// owns the buffer meanwhile. All its sends have ended when it returns, so the result can be thawed and
    /// written again ([`SharedBuffer::thaw`]), sliced, and sent on by other calls without a copy.
    ///
    /// Always a binomial tree of messages: `ceil(log2 P)` rounds of `n` bytes. A rank receives `n` bytes and
    /// sends `n` to each of at most `ceil(log2 P)` children, all from one buffer. This call copies nothing;
    /// copies by the transport are in [`statistics`](Self::statistics). Among ranks of one host,
    /// [`broadcast`](Self::broadcast) needs no messages and is often faster.
    ///
    /// # Errors
    /// As for [`broadcast`](Self::broadcast); [`Mismatch`](crate::Error::Mismatch) also if lengths differ.
    /// The buffer is dropped: its memory goes back to its pool when the transport has released it.
    pub fn broadcast_shared<T: Element>(&self, buffer: PoolBuffer<T>, root: u32) -> Result<SharedBuffer<T>> {
        self.check_process()?;
        dense::check_root(root, self.place())?;
        let description = describe::<T>(buffer.len(), root);
        self.run(description, async |call| dense::broadcast_shared(call, buffer, root).await)
    }

    /// The root's alternative to [`broadcast_shared`](Self::broadcast_shared) for a buffer that is already
    /// frozen, or part of one. Others may read the buffer meanwhile, and keep it.
    ///
    /// # Errors
    /// As for [`broadcast_shared`](Self::broadcast_shared); the buffer is unchanged.
    pub fn broadcast_frozen<T: Element>(&self, buffer: &SharedBuffer<T>) -> Result<()> {
        self.check_process()?;
        let description = describe::<T>(buffer.len(), self.rank());
        self.run(description, async |call| dense::broadcast_frozen(call, buffer.clone()).await.map(drop))
    }
}

fn describe<T: Element>(count: usize, root: u32) -> Description {
    Description {
        root: Some(Rank(root)),
        ..Description::new(Operation::SHARED_BROADCAST, T::TYPE.number(), count)
    }
}
