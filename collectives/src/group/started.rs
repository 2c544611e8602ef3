//! Dense collectives that do not block.

use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::Group;
use super::collectives::{describe_all_gather, describe_broadcast};
use crate::description::{Description, Operation};
use crate::element::{Element, ReduceOp};
use crate::engine::Handle;
use crate::error::{Error, Result};
use crate::{dense, host};

/// # Collectives that do not block
///
/// A call that is started owns its buffer meanwhile, a `Vec` or another owner of elements, and its handle
/// returns the buffer with the result. The call gets its number when it is started, so all ranks start their
/// calls in the same order, in one order with the blocking ones. Errors are those of the blocking forms; of a
/// call that was refused nothing is sent.
impl Group {
    /// Starts a [`barrier`](Self::barrier).
    pub fn start_barrier(&self) -> Handle<((), Result<()>)> {
        if let Err(error) = self.check_process() {
            return self.ended(((), Err(error)));
        }
        let description = Description::new(Operation::BARRIER, 0, 0);
        self.start(description, (), |call, ()| Box::pin(dense::barrier(call)))
    }

    /// Starts a [`broadcast`](Self::broadcast).
    pub fn start_broadcast<T, B>(&self, mut data: B, root: u32) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        let elements = data.as_mut();
        let (count, bytes) = (elements.len(), size_of_val(elements));
        if let Err(error) = self.check_process().and_then(|()| self.check_root(root)) {
            return self.ended((data, Err(error)));
        }
        let description = describe_broadcast::<T>(count, root);
        if let Some(host) = self.host_for(bytes) {
            return self.start_on_host(host, description, data, move |call, data: &mut [T]| {
                Box::pin(host::broadcast(call, data, root))
            });
        }
        self.start(description, data, move |call, data| {
            Box::pin(async move { dense::broadcast(call, Chunk::from(data.as_mut()), root).await.map(drop) })
        })
    }

    /// Starts an [`all_reduce`](Self::all_reduce), in place.
    pub fn start_all_reduce<T, B>(&self, mut data: B, reduction: ReduceOp) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        if let Err(error) = reduction.check::<T>().and_then(|()| self.check_process()) {
            return self.ended((data, Err(error)));
        }
        let elements = data.as_mut();
        let (count, bytes) = (elements.len(), size_of_val(elements));
        let description = dense::describe_all_reduce::<T>(count, reduction);
        let cost = self.settings().cost;
        if let Some(host) = self.host_for(bytes) {
            return self.start_on_host(host, description, data, move |call, data: &mut [T]| {
                Box::pin(host::all_reduce(call, data, reduction))
            });
        }
        self.start(description, data, move |call, data| {
            Box::pin(async move {
                dense::all_reduce(call, Chunk::from(data.as_mut()), reduction, &cost).await.map(drop)
            })
        })
    }

    /// Starts an [`all_gather`](Self::all_gather) in place: this rank's elements are in its place of `all`
    /// already, the `rank`-th of `P` equal parts.
    pub fn start_all_gather<T, B>(&self, mut all: B) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        let (total, size) = (all.as_mut().len(), self.world_size() as usize);
        let own = total / size;
        let fits = || match total % size {
            0 => Ok(()),
            _ => Err(Error::Length { what: "the gathered vector", found: total, expected: own * size }),
        };
        if let Err(error) = self.check_process().and_then(|()| fits()) {
            return self.ended((all, Err(error)));
        }
        let description = describe_all_gather::<T>(own);
        if let Some(host) = self.host_for(size_of::<T>() * own) {
            return self.start_on_host(host, description, all, move |call, all: &mut [T]| {
                Box::pin(host::all_gather(call, all))
            });
        }
        self.start(description, all, move |call, all| {
            Box::pin(async move { dense::all_gather(call, Chunk::from(all.as_mut())).await.map(drop) })
        })
    }

    pub(super) fn check_root(&self, root: u32) -> Result<()> {
        let world_size = self.world_size();
        if root < world_size { Ok(()) } else { Err(Error::NoSuchRoot { root: Rank(root), world_size }) }
    }
}
