//! gTop-k all-reduce: the `k` largest entries of the sum of all ranks' sparse vectors.
//!
//! Shi et al., "A distributed synchronous SGD algorithm with global top-k sparsification for low bandwidth
//! networks", ICDCS 2019. A binomial tree merges towards rank 0, where the merge of `a` and `b` is the `k`
//! largest entries of `a + b`; then follows a broadcast: `2 ceil(log2 P)` rounds of at most `8 k` bytes each.
//!
//! An index that one subtree drops can survive through another. A [`PutBack`] rule determines which rank
//! keeps the dropped part.

use std::mem;
use std::sync::Arc;

use brevity_compress::feedback::Residual;
use brevity_compress::merge::{self, MergeScratch};
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};

use super::message::{EntryBuffers, receive};
use super::wire::finite_or_poison;
use crate::call::Call;
use crate::data::Element;
use crate::dense::to_children;
use crate::description::{Description, Operation};
use crate::error::Result;
use crate::pattern::{Binomial, doubling_rounds};

/// Which part of a rank's contribution and merges goes back to its residual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PutBack {
    /// A contributor gets back its entries that are not in the result. A merging rank keeps what its merges
    /// dropped at indices that are in the result. Nothing is lost, and residuals stay with the ranks of their
    /// gradients.
    #[default]
    Conserving,
    /// As published: a contributor gets back its entries that are not in the result. What a merge drops at an
    /// index in the result is lost.
    Published,
    /// A merging rank keeps all that its merges drop, and contributors get nothing back. Nothing is lost, but
    /// residuals gather at merging ranks.
    MergerKeeps,
}

impl PutBack {
    /// The rule's number on the wire. Ranks with different rules would put some entries back twice and lose
    /// others.
    const fn number(self) -> u8 {
        match self {
            Self::Conserving => 1,
            Self::Published => 2,
            Self::MergerKeeps => 3,
        }
    }
}

/// The result of a gTop-k all-reduce.
#[derive(Clone, Debug)]
pub struct Gtopk {
    /// The `k` largest entries of the sum, undivided. All ranks get the same bits.
    pub result: SparseVec,
    /// What this rank must add to its residual.
    pub put_back: SparseVec,
}

/// What ranks of a gTop-k all-reduce must agree on.
#[must_use]
pub fn describe(dim: usize, k: usize, rule: PutBack) -> Description {
    let description = Description::sparse(Operation::GTOPK_ALL_REDUCE, f32::TYPE.number(), dim, k);
    Description { reduction: rule.number(), ..description }
}

/// Sums the sparse vectors of all ranks and keeps the `k` entries of largest magnitude; on ties, the lower
/// index.
///
/// `local` has at most `k` entries. `k` and `rule` are equal on all ranks. The order of merges depends only
/// on the number of ranks. A value of `local` that is not finite poisons the call, as tensor `tensor`, and so
/// does a merge with such a sum.
///
/// # Errors
/// Errors of the transport; `local` is unchanged.
pub async fn gtopk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    k: usize,
    rule: PutBack,
    tensor: u32,
) -> Result<Gtopk> {
    reduce(call, local, k, rule, tensor, |_| true).await
}

/// Like [`gtopk_all_reduce`], for entries that were selected from `residual` and are zero there.
///
/// Poisons the call also if the residual has no room for what this rank's merges drop, because a sum would
/// not be finite. Later, when the result shows which of it [comes back](Gtopk::put_back), the other ranks
/// could not be told any more. So if no rank has poisoned the call, the residual can take all that comes
/// back.
///
/// # Errors
/// As for [`gtopk_all_reduce`].
pub async fn gtopk_all_reduce_with_feedback(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    residual: &Residual,
    k: usize,
    rule: PutBack,
    tensor: u32,
) -> Result<Gtopk> {
    let has_room =
        |dropped: SparseView<'_>| rule == PutBack::Published || residual.check_put_back(dropped).is_ok();
    reduce(call, local, k, rule, tensor, has_room).await
}

/// Poisons the call unless this rank `has_room` for what its merges drop.
async fn reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    k: usize,
    rule: PutBack,
    tensor: u32,
    has_room: impl FnOnce(SparseView<'_>) -> bool,
) -> Result<Gtopk> {
    call.check_open()?;
    let local = finite_or_poison(call, local, tensor);
    let dim = local.dim();
    // No vector has more entries than elements.
    let k = k.min(dim);
    let tree = Binomial::new(call.rank(), 0, call.world_size());
    let mut merger = Merger::new(local, k);
    for (child, round) in tree.children() {
        let incoming = receive(call, child, round, dim, k, merger.take_spare()).await?;
        if in_standard_float_mode(|| merger.merge(incoming)).is_err() {
            call.set_poison(tensor);
        }
    }
    if !in_standard_float_mode(|| has_room(merger.dropped.view())) {
        call.set_poison(tensor);
    }
    let rounds = doubling_rounds(call.world_size());
    let result = match tree.parent() {
        None => merger.kept.into_parts(),
        Some((parent, round)) => {
            let parts = call.send(parent, round, merger.kept.into_parts()).await?;
            receive(call, parent, rounds + round, dim, k, parts).await?.into_parts()
        }
    };
    let shared = to_children(call, tree, rounds, (Arc::new(result.0), Arc::new(result.1))).await?;
    let (indices, values) = (Arc::unwrap_or_clone(shared.0), Arc::unwrap_or_clone(shared.1));
    let result = SparseVec::from_parts(dim, indices, values)?;
    let put_back = in_standard_float_mode(|| put_back(rule, local, &merger.dropped, &result))?;
    Ok(Gtopk { result, put_back })
}

/// The running merge of one rank.
struct Merger {
    k: usize,
    kept: SparseVec,
    /// All that this rank's merges have dropped.
    dropped: SparseVec,
    next_kept: SparseVec,
    next_dropped: SparseVec,
    spare: EntryBuffers,
    scratch: MergeScratch,
}

impl Merger {
    fn new(local: SparseView<'_>, k: usize) -> Self {
        let empty = || SparseVec::new(local.dim());
        Self {
            k,
            kept: local.to_owned(),
            dropped: empty(),
            next_kept: empty(),
            next_dropped: empty(),
            spare: EntryBuffers::default(),
            scratch: MergeScratch::new(),
        }
    }

    /// Takes the buffers of an earlier message, to receive the next into.
    fn take_spare(&mut self) -> EntryBuffers {
        mem::take(&mut self.spare)
    }

    fn merge(&mut self, incoming: SparseVec) -> Result<()> {
        let Self { k, kept, dropped, next_kept, next_dropped, spare, scratch } = self;
        merge::top_k_sum(kept.view(), incoming.view(), *k, next_kept, next_dropped, scratch)?;
        mem::swap(kept, next_kept);
        if dropped.is_empty() {
            mem::swap(dropped, next_dropped);
        } else if !next_dropped.is_empty() {
            merge::add(dropped.view(), next_dropped.view(), next_kept)?;
            mem::swap(dropped, next_kept);
        }
        *spare = incoming.into_parts();
        Ok(())
    }
}

fn put_back(
    rule: PutBack,
    local: SparseView<'_>,
    dropped: &SparseVec,
    result: &SparseVec,
) -> Result<SparseVec> {
    let dim = local.dim();
    let (mut among, mut others) = (SparseVec::new(dim), SparseVec::new(dim));
    if rule == PutBack::MergerKeeps {
        return Ok(dropped.clone());
    }
    merge::split_by(local, result.indices(), &mut among, &mut others);
    if rule == PutBack::Published {
        return Ok(others);
    }
    merge::split_by(dropped.view(), result.indices(), &mut among, &mut SparseVec::new(dim));
    // The two parts are disjoint: indices outside and inside the result.
    let mut sum = SparseVec::new(dim);
    merge::add(others.view(), among.view(), &mut sum)?;
    Ok(sum)
}
