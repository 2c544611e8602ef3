//! The collectives of a group on plain slices.

use std::ops::ControlFlow;

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::{SparseVec, SparseView};
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::Group;
use crate::description::{Description, Operation};
use crate::element::{Element, ReduceOp};
use crate::error::{Error, Result};
use crate::host::{self, SlotTurn};
use crate::sparse::{Gtopk, PutBack};
use crate::{dense, low_rank, sparse};

impl Group {
    /// Waits until all ranks have called this.
    ///
    /// # Errors
    /// When a rank is lost, aborts, makes a different call, or does not call in time; [`Error::Forked`].
    pub fn barrier(&self) -> Result<()> {
        self.check_process()?;
        self.run(Description::new(Operation::BARRIER, 0, 0), async |call| dense::barrier(call).await)
    }

    /// Copies `data` of rank `root` to all ranks. The lengths must be equal.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::NoSuchRoot`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: u32) -> Result<()> {
        self.check_process()?;
        self.check_root(root)?;
        let description = describe_broadcast::<T>(data.len(), root);
        if let Some(host) = self.host_for(size_of_val(data)) {
            return self.run_on_host(host, description, data, nothing_at_once, async |call, data, ()| {
                host::broadcast(call, data, root).await
            });
        }
        self.run(description, async |call| dense::broadcast(call, Chunk::from(data), root).await.map(drop))
    }

    /// Reduces `data` over all ranks, in place. All ranks get the same bits, except for NaN payloads of sums.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier), and for lack of memory to receive into; `data` is then unspecified.
    /// [`Error::Reduction`] for an average of integers, before anything is done.
    pub fn all_reduce<T: Element>(&self, data: &mut [T], reduction: ReduceOp) -> Result<()> {
        reduction.check::<T>()?;
        self.check_process()?;
        let description = dense::describe_all_reduce::<T>(data.len(), reduction);
        let cost = self.settings().cost;
        if let Some(host) = self.host_for(size_of_val(data)) {
            let at_once = |call: &mut SlotTurn<'_>, data: &mut [T]| host::at_once(call, data, reduction);
            return self.run_on_host(host, description, data, at_once, async |call, data, rest| {
                host::all_reduce_rest(call, data, reduction, rest).await
            });
        }
        self.run(description, async |call| {
            dense::all_reduce(call, Chunk::from(data), reduction, &cost).await.map(drop)
        })
    }

    /// Gathers vectors of equal length: `all` gets rank 0's `own`, then rank 1's, and so on.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] unless `all` is `P` times as long as `own`.
    pub fn all_gather<T: Element>(&self, own: &[T], all: &mut [T]) -> Result<()> {
        self.check_process()?;
        let expected = own.len() * self.world_size() as usize;
        if all.len() != expected {
            return Err(Error::Length { what: "the gathered vector", found: all.len(), expected });
        }
        let start = own.len() * self.rank() as usize;
        // Copy: this rank's own part, the only copy of gathering in place.
        all[start..start + own.len()].copy_from_slice(own);
        self.gather_in_place(all, own.len())
    }

    /// Like [`all_gather`](Self::all_gather), without a copy: this rank's part is in its place in `all`,
    /// which has `P` parts of equal length.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if the length is no multiple of `P`.
    pub fn all_gather_in_place<T: Element>(&self, all: &mut [T]) -> Result<()> {
        self.check_process()?;
        let (parts, found) = (self.world_size() as usize, all.len());
        if !found.is_multiple_of(parts) {
            let expected = found.next_multiple_of(parts);
            return Err(Error::Length { what: "the gathered vector", found, expected });
        }
        self.gather_in_place(all, found / parts)
    }

    fn gather_in_place<T: Element>(&self, all: &mut [T], length: usize) -> Result<()> {
        let description = describe_all_gather::<T>(length);
        if let Some(host) = self.host_for(length * size_of::<T>()) {
            return self.run_on_host(host, description, all, nothing_at_once, async |call, all, ()| {
                host::all_gather(call, all).await
            });
        }
        self.run(description, async |call| dense::all_gather(call, Chunk::from(all)).await.map(drop))
    }

    /// Gathers vectors of any lengths, in rank order.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier).
    pub fn all_gather_varying<T: Element>(&self, own: Vec<T>) -> Result<Vec<Vec<T>>> {
        self.check_process()?;
        let description = Description::new(Operation::ALL_GATHER, T::NUMBER, 0);
        self.run(description, async |call| dense::all_gather_varying(call, own).await)
    }

    /// Gathers the sparse vectors of all ranks, in rank order, whatever their values are. `local` has at most
    /// `limit` entries, and `limit` is equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if `local` has more.
    pub fn sparse_all_gather(&self, local: SparseView<'_>, limit: usize) -> Result<Vec<SparseVec>> {
        check_limit(local, limit)?;
        self.check_process()?;
        let description = sparse::describe_all_gather(local.dim(), limit);
        self.run(description, async |call| sparse::sparse_all_gather(call, local, limit).await)
    }

    /// Sums the sparse vectors of all ranks. `local` has at most `limit` entries, and `limit` is equal on all
    /// ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if `local` has more; [`Error::NonFinite`] on all
    /// ranks if a value is not finite, and [`Error::Overflow`] if a sum is not.
    pub fn topk_all_reduce(&self, local: SparseView<'_>, limit: usize) -> Result<SparseVec> {
        check_limit(local, limit)?;
        self.check_process()?;
        let description = sparse::describe_topk(local.dim(), limit);
        self.run(description, async |call| {
            let sum = sparse::topk_all_reduce(call, local, limit, 0).await?;
            call.check_poison().map(|()| sum)
        })
    }

    /// Sums the sparse vectors of all ranks and keeps the `k` largest entries. Also returns what goes back to
    /// the residual.
    ///
    /// `local` has at most `k` entries. `k` and `rule` are equal on all ranks; other ones are a mismatch.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if `local` has more; [`Error::NonFinite`] on all
    /// ranks if a value or a sum is not finite.
    pub fn gtopk_all_reduce(&self, local: SparseView<'_>, k: usize, rule: PutBack) -> Result<Gtopk> {
        check_limit(local, k)?;
        self.check_process()?;
        let description = sparse::describe_gtopk(local.dim(), k, rule);
        self.run(description, async |call| {
            let outcome = sparse::gtopk_all_reduce(call, local, k, rule, 0).await?;
            call.check_poison().map(|()| outcome)
        })
    }

    /// Computes the low-rank factors of the mean of all ranks' matrices, one for each state of the batch.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if a matrix does not fit its state.
    pub fn low_rank_all_reduce(&self, batch: &mut Batch, matrices: &[&[f32]]) -> Result<Factors> {
        low_rank::check(batch, matrices)?;
        self.check_process()?;
        let cost = self.settings().cost;
        let description = low_rank::describe(batch);
        let tensors: Vec<u32> = (0..matrices.len() as u32).collect();
        self.run(description, async |call| {
            low_rank::low_rank_all_reduce(call, batch, matrices, &tensors, &cost).await
        })
    }
}

/// For calls over slots that have no fast path around the engine.
fn nothing_at_once<T>(_: &mut SlotTurn<'_>, _: &mut [T]) -> ControlFlow<Result<()>, ()> {
    ControlFlow::Continue(())
}

fn check_limit(local: SparseView<'_>, limit: usize) -> Result<()> {
    if local.len() > limit {
        return Err(Error::Length { what: "the sparse vector", found: local.len(), expected: limit });
    }
    Ok(())
}

/// The description of a broadcast of `count` elements.
pub(super) fn describe_broadcast<T: Element>(count: usize, root: u32) -> Description {
    Description { root: Some(Rank(root)), ..Description::new(Operation::BROADCAST, T::NUMBER, count) }
}

/// The description of an all-gather of `count` elements of each rank.
pub(super) fn describe_all_gather<T: Element>(count: usize) -> Description {
    Description::new(Operation::ALL_GATHER, T::NUMBER, count)
}

#[cfg(test)]
#[path = "refused_tests.rs"]
mod refused_tests;
