//! The collectives of a group on plain slices.

use std::ops::ControlFlow;

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::{SparseVec, SparseView};
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::Chunk;

use super::Group;
use crate::description::{Description, Operation};
use crate::element::{Element, Reduction};
use crate::engine::Handle;
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
        if root >= self.world_size() {
            return Err(Error::NoSuchRoot { root: Rank(root), world_size: self.world_size() });
        }
        let description = Description::new(Operation::BROADCAST, T::NUMBER, data.len());
        let description = Description { root: Some(Rank(root)), ..description };
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
    pub fn all_reduce<T: Element>(&self, data: &mut [T], reduction: Reduction) -> Result<()> {
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

    /// Starts an [`all_reduce`](Self::all_reduce) of a vector that the call owns meanwhile. The handle
    /// returns it with the result, whose errors are as there. An average of integers starts nothing.
    pub fn start_all_reduce<T: Element>(
        &self,
        data: Vec<T>,
        reduction: Reduction,
    ) -> Handle<(Vec<T>, Result<()>)> {
        if let Err(error) = reduction.check::<T>().and_then(|()| self.check_process()) {
            return self.ended((data, Err(error)));
        }
        let description = dense::describe_all_reduce::<T>(data.len(), reduction);
        let cost = self.settings().cost;
        if let Some(host) = self.host_for(size_of_val(&data[..])) {
            return self.start_on_host(host, description, data, move |call, data| {
                Box::pin(host::all_reduce(call, data, reduction))
            });
        }
        self.start(description, data, move |call, data| {
            Box::pin(async move {
                dense::all_reduce(call, Chunk::from(&mut data[..]), reduction, &cost).await.map(drop)
            })
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
        let description = Description::new(Operation::ALL_GATHER, T::NUMBER, own.len());
        if let Some(host) = self.host_for(size_of_val(own)) {
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

#[cfg(test)]
#[path = "refused_tests.rs"]
mod refused_tests;
