//! The collectives on sparse vectors, as calls of a group.

use std::borrow::BorrowMut;

use brevity_compress::{SparseVec, SparseView};

use super::all_gather::{TopK, describe_all_gather, describe_topk, sparse_all_gather, topk_all_reduce};
use super::gtopk::{self, Gtopk, PutBack, gtopk_all_reduce};
use super::wire::Coder;
use crate::call::Call;
use crate::compressed::Compressed;
use crate::description::Description;
use crate::error::{Error, Result};

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

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.limit)
    }

    fn description(&self) -> Description {
        describe_all_gather(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>) -> Result<Vec<SparseVec>> {
        sparse_all_gather(call, self.local.entries(), self.limit, self.coder.borrow_mut()).await
    }
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for TopkAllReduce<L, C> {
    type Output = TopK;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.limit)
    }

    fn description(&self) -> Description {
        describe_topk(self.local.entries().dim(), self.limit, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>) -> Result<TopK> {
        topk_all_reduce(call, self.local.entries(), self.limit, self.coder.borrow_mut(), 0).await
    }
}

impl<L: Entries, C: BorrowMut<Coder> + Send + Sync> Compressed for GtopkAllReduce<L, C> {
    type Output = Gtopk;

    fn check(&self) -> Result<()> {
        check_limit(self.local.entries(), self.k)
    }

    fn description(&self) -> Description {
        gtopk::describe(self.local.entries().dim(), self.k, self.rule, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>) -> Result<Gtopk> {
        let Self { local, k, rule, coder } = self;
        gtopk_all_reduce(call, local.entries(), *k, *rule, coder.borrow_mut(), 0).await
    }
}

fn check_limit(local: SparseView<'_>, limit: usize) -> Result<()> {
    if local.len() > limit {
        return Err(Error::Length { what: "the sparse vector", found: local.len(), expected: limit });
    }
    Ok(())
}
