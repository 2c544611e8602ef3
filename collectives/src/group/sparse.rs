//! The collectives of a group on sparse vectors and matrices.

use brevity_compress::low_rank::{Batch, Factors};
use brevity_compress::{SparseVec, SparseView};

use super::Group;
use crate::error::{Error, Result};
use crate::sparse::{Coder, Gtopk, PutBack, TopK};
use crate::{low_rank, sparse};

impl Group {
    /// Gathers the sparse vectors of all ranks, in rank order, whatever their values are. `local` has at most
    /// `limit` entries, and `limit` is equal on all ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if `local` has more.
    pub fn sparse_all_gather(&self, local: SparseView<'_>, limit: usize) -> Result<Vec<SparseVec>> {
        self.sparse_all_gather_by(local, limit, &mut Coder::pairs())
    }

    /// Likewise, on the coder's wire, which is equal on all ranks: every rank gets the rounded values, those
    /// of its own vector too.
    ///
    /// # Errors
    /// As for [`sparse_all_gather`](Self::sparse_all_gather); [`Error::NonFinite`] on all ranks if a value is
    /// not finite, unless the wire is [`Wire::Pairs`](sparse::Wire::Pairs).
    pub fn sparse_all_gather_by(
        &self,
        local: SparseView<'_>,
        limit: usize,
        coder: &mut Coder,
    ) -> Result<Vec<SparseVec>> {
        check_limit(local, limit)?;
        self.check_process()?;
        let description = sparse::describe_all_gather(local.dim(), limit, coder.wire());
        self.run(description, async |call| {
            let gathered = sparse::sparse_all_gather(call, local, limit, coder).await?;
            call.check_poison().map(|()| gathered)
        })
    }

    /// Sums the sparse vectors of all ranks. `local` has at most `limit` entries, and `limit` is equal on all
    /// ranks.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier); [`Error::Length`] if `local` has more; [`Error::NonFinite`] on all
    /// ranks if a value is not finite, and [`Error::Overflow`] if a sum is not.
    pub fn topk_all_reduce(&self, local: SparseView<'_>, limit: usize) -> Result<SparseVec> {
        self.topk_all_reduce_by(local, limit, &mut Coder::pairs()).map(|outcome| outcome.sum)
    }

    /// Likewise, on the coder's wire, which is equal on all ranks. Also returns what its rounding takes away.
    ///
    /// # Errors
    /// As for [`topk_all_reduce`](Self::topk_all_reduce).
    pub fn topk_all_reduce_by(&self, local: SparseView<'_>, limit: usize, coder: &mut Coder) -> Result<TopK> {
        check_limit(local, limit)?;
        self.check_process()?;
        let description = sparse::describe_topk(local.dim(), limit, coder.wire());
        self.run(description, async |call| {
            let outcome = sparse::topk_all_reduce(call, local, limit, coder, 0).await?;
            call.check_poison().map(|()| outcome)
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
