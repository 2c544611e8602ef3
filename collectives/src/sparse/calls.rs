//! The collectives on sparse vectors, as calls of a group.

use std::borrow::BorrowMut;

use brevity_compress::{SparseVec, SparseView};

use super::all_gather::{self, describe_all_gather, sparse_all_gather};
use super::gtopk::{self, Gtopk, PutBack, gtopk_all_reduce};
use super::reduce_scatter::{self, Scattered, sparse_reduce_scatter};
use super::topk::{self, TopK, topk_all_reduce, topk_all_reduce_by};
use super::wire::Coder;
use crate::call::Call;
use crate::compressed::Compressed;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Row, Work};

/// A sparse vector, owned or not.
pub trait Entries: Send + Sync {
    /// Its entries.
    fn entries(&self) -> SparseView<'_>;
}

impl Entries for SparseVec {
    fn entries(&self) -> SparseView<'_> {
        self.view()
    }
}

impl Entries for SparseView<'_> {
    fn entries(&self) -> SparseView<'_> {
        *self
    }
}

/// Gathers the sparse vectors of all ranks; see [`sparse_all_gather`].
#[derive(Clone, Debug)]
pub struct SparseAllGather<L = SparseVec, C = Coder> {
    /// The vector of this rank, with at most `limit` entries.
    pub local: L,
    /// Equal on all ranks.
    pub limit: usize,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

/// Sums the sparse vectors of all ranks; see [`topk_all_reduce`].
#[derive(Clone, Debug)]
pub struct TopkAllReduce<L = SparseVec, C = Coder> {
    /// The vector of this rank, with at most `limit` entries.
    pub local: L,
    /// Equal on all ranks.
    pub limit: usize,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

/// Sums the sparse vectors of all ranks, a range to each; see [`sparse_reduce_scatter`].
#[derive(Clone, Debug)]
pub struct SparseReduceScatter<L = SparseVec, C = Coder> {
    /// The vector of this rank, with at most `limit` entries.
    pub local: L,
    /// Equal on all ranks.
    pub limit: usize,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

/// The largest entries of the sum of all ranks' sparse vectors; see [`gtopk_all_reduce`].
#[derive(Clone, Debug)]
pub struct GtopkAllReduce<L = SparseVec, C = Coder> {
    /// The vector of this rank, with at most `k` entries.
    pub local: L,
    /// The entries of the result at most; equal on all ranks.
    pub k: usize,
    /// Equal on all ranks.
    pub rule: PutBack,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for SparseAllGather<L, C> {
    type Output = Vec<SparseVec>;

    const OPERATION: Operation = Operation::SPARSE_ALL_GATHER;
    const ROWS: &'static [Row] = all_gather::ROWS;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.limit)
    }

    fn description(&self) -> Description {
        describe_all_gather(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        topk::work(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<Vec<SparseVec>> {
        sparse_all_gather(call, self.local.entries(), self.limit, self.coder.borrow_mut()).await
    }
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for TopkAllReduce<L, C> {
    type Output = TopK;

    const OPERATION: Operation = Operation::TOPK_ALL_REDUCE;
    const ROWS: &'static [Row] = topk::ROWS;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.limit)
    }

    fn description(&self) -> Description {
        topk::describe(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        topk::work(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, algorithm: Option<Algorithm>) -> Result<TopK> {
        let (local, limit, coder) = (self.local.entries(), self.limit, self.coder.borrow_mut());
        match algorithm {
            Some(algorithm) => topk_all_reduce_by(call, algorithm, local, limit, coder, 0).await,
            None => topk_all_reduce(call, local, limit, coder, 0).await,
        }
    }
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for SparseReduceScatter<L, C> {
    type Output = Scattered;

    const OPERATION: Operation = Operation::SPARSE_REDUCE_SCATTER;
    const ROWS: &'static [Row] = reduce_scatter::ROWS;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.limit)
    }

    fn description(&self) -> Description {
        reduce_scatter::describe(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        topk::work(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<Scattered> {
        sparse_reduce_scatter(call, self.local.entries(), self.limit, self.coder.borrow_mut(), 0).await
    }
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for GtopkAllReduce<L, C> {
    type Output = Gtopk;

    const OPERATION: Operation = Operation::GTOPK_ALL_REDUCE;
    const ROWS: &'static [Row] = gtopk::ROWS;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.k)
    }

    fn description(&self) -> Description {
        gtopk::describe(self.local.entries().dim(), self.k, self.rule, self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        topk::work(self.local.entries().dim(), self.k, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<Gtopk> {
        let Self { local, k, rule, coder } = self;
        gtopk_all_reduce(call, local.entries(), *k, *rule, coder.borrow_mut(), 0).await
    }
}

/// Checks what this rank hands in, before others know of the call.
pub(super) fn check_limit(local: SparseView<'_>, limit: usize) -> Result<()> {
    // The length: no index is above 2^32.
    SparseView::new(local.dim(), &[], &[])?;
    if local.len() > limit {
        return Err(Error::Length { what: "the sparse vector", found: local.len(), expected: limit });
    }
    Ok(())
}
