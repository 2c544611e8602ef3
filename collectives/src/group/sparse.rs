//! The collectives of a group on sparse vectors and matrices.

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::{SparseVec, SparseView};

use super::Group;
use crate::error::{Error, Result};
use crate::sparse::{Gtopk, PutBack};
use crate::{low_rank, sparse};

impl Group {
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
        let description = low_rank::describe(batch);
        let tensors: Vec<u32> = (0..matrices.len() as u32).collect();
        self.run(description, async |call| {
            low_rank::low_rank_all_reduce(call, batch, matrices, &tensors).await
        })
    }
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
