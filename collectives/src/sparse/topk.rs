//! Top-k all-reduce: the sum of all ranks' sparse vectors, to all ranks.
//!
//! With `P` ranks and `k` entries each:
//!
//! | algorithm | rounds | entries sent per rank | entries merged per rank |
//! | --- | --- | --- | --- |
//! | Bruck: a sparse all-gather, then the sum | ceil(log2 P) | (P - 1) k | P k, ceil(log2 P) times |
//! | direct: a sparse reduce-scatter, then an all-gather of the sums | 1 + ceil(log2 P) | k and the others' sums | k, ceil(log2 P) times |
//! | doubling: sums of pairs, of blocks of four ranks and so on; dense where that is shorter | log2 m, and 2 more unless P = m | at most (m - 1) k, and m k to a guest | at most 2 (m - 1) k |
//!
//! The second and the third are SparCML's split and all-gather and its recursive doubling (Renggli et al., SC
//! 2019); `m` is the largest power of two up to `P`. Values that arrive as they are sent give the bits of the
//! dense sum in the fixed order, by all. Doubling is for such wires alone, because it would round sums anew
//! in each round.

use brevity_compress::merge::{OrderedScratch, sum_in_order};
use brevity_compress::{SparseVec, SparseView, in_standard_float_mode};

use super::all_gather::sparse_all_gather;
use super::doubling;
use super::reduce_scatter::{Scattered, owned, scatter};
use super::wire::{Coder, Wire, finite_or_poison, rounded_away};
use crate::call::Call;
use crate::data::Element;
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always};

/// The result of a top-k all-reduce.
#[derive(Clone, Debug)]
pub struct TopK {
    /// The sum of what all ranks have sent, undivided. All ranks get the same bits.
    pub sum: SparseVec,
    /// What rounding has taken away from this rank's entries, and from the sums that it has sent, for its
    /// residual. Empty on an [exact](Wire::is_exact) wire.
    pub kept: SparseVec,
}

/// What ranks of a top-k all-reduce must agree on.
#[must_use]
pub fn describe(dim: usize, limit: usize, wire: Wire) -> Description {
    wire.describe(Description::sparse(Operation::TOPK_ALL_REDUCE, f32::TYPE.number(), dim, limit))
}

/// The algorithms.
pub(crate) const ROWS: &[Row] = &[
    Row {
        algorithm: Algorithm::Bruck,
        fits: always,
        estimate: |work, ground| {
            let all = work.entries as f64 * ground.ranks();
            gather(work.bytes as f64, ground).computing(merging(all, ground))
        },
    },
    Row {
        algorithm: Algorithm::Direct,
        fits: always,
        estimate: |work, ground| {
            let (entries, bytes) = (work.entries as f64, work.bytes as f64);
            let of_sums = union(work, ground) / ground.ranks() * (bytes / entries.max(1.0));
            let scatter = ground.burst(bytes / ground.ranks()).computing(merging(entries, ground));
            scatter.then(gather(of_sums, ground))
        },
    },
    Row { algorithm: Algorithm::Doubling, fits: |work, _| work.is_exact, estimate: doubling::estimate },
];

/// What a top-k all-reduce has to do.
pub(crate) fn work(dim: usize, limit: usize, wire: Wire) -> Work {
    let (entries, bytes) = (limit.min(dim), wire.most_bytes(dim, limit));
    Work { bytes, wide_bytes: bytes, is_exact: wire.is_exact(), entries, dim, ..Work::default() }
}

/// An all-gather of messages of so many bytes.
fn gather(bytes: f64, ground: &Ground) -> Estimate {
    let waits = ground.message(0.0).times(ground.rounds().saturating_sub(1));
    waits.then(ground.message(bytes * (ground.ranks() - 1.0)))
}

/// Seconds to merge so many entries two by two until one vector is left: an entry of 8 bytes costs about as
/// much as 14 bytes of a dense sum.
fn merging(entries: f64, ground: &Ground) -> f64 {
    ground.combining(14.0 * entries) * f64::from(ground.rounds())
}

/// The entries of the sum, if those of each rank are anywhere.
pub(super) fn union(work: &Work, ground: &Ground) -> f64 {
    let dim = work.dim.max(1) as f64;
    let absent = 1.0 - work.entries as f64 / dim;
    dim * (1.0 - (0..ground.world_size).fold(1.0, |all, _| all * absent))
}

/// Sums the sparse vectors of all ranks in the fixed order of dense sums, by the algorithm that is estimated
/// to be the fastest. Every rank gets the whole sum.
///
/// `local` has at most `limit` entries; `limit` and the coder's wire are equal on all ranks. A value of
/// `local` that is not finite poisons the call, as tensor `tensor`.
///
/// # Errors
/// As for [`sparse_all_gather`]; [`Error::Overflow`] of tensor `tensor`, on all ranks, unless the call is
/// poisoned for that. `local` is unchanged.
pub async fn topk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensor: u32,
) -> Result<TopK> {
    let work = work(local.dim(), limit, coder.wire());
    let algorithm = call.plan().choose(Operation::TOPK_ALL_REDUCE, ROWS, &work);
    topk_all_reduce_by(call, algorithm, local, limit, coder, tensor).await
}

/// Likewise, by an algorithm of the caller's choice, which is equal on all ranks:
/// [`Direct`](Algorithm::Direct), [`Doubling`](Algorithm::Doubling) on an [exact](Wire::is_exact) wire, or
/// else [`Bruck`](Algorithm::Bruck).
///
/// # Errors
/// As for [`topk_all_reduce`].
pub async fn topk_all_reduce_by(
    call: &Call<'_, '_>,
    algorithm: Algorithm,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensor: u32,
) -> Result<TopK> {
    let local = finite_or_poison(call, local, tensor);
    if algorithm == Algorithm::Direct && call.world_size() > 1 {
        return direct(call, local, limit, coder, tensor).await;
    }
    if algorithm == Algorithm::Doubling && coder.wire().is_exact() && call.world_size() > 1 {
        let sum = doubling::all_reduce(call, local, limit, coder, tensor).await?;
        return Ok(TopK { sum, kept: SparseVec::new(local.dim()) });
    }
    let gathered = sparse_all_gather(call, local, limit, coder).await?;
    let views: Vec<_> = gathered.iter().map(SparseVec::view).collect();
    let mut sum = SparseVec::new(local.dim());
    let summed = in_standard_float_mode(|| sum_in_order(&views, &mut sum, &mut OrderedScratch::new()));
    summed.map_err(|_| Error::Overflow { tensor })?;
    let kept = match views.get(call.rank() as usize) {
        Some(own) if !coder.wire().is_exact() => rounded_away(local, *own)?,
        _ => SparseVec::new(local.dim()),
    };
    Ok(TopK { sum, kept })
}

/// Each rank sums a range of the indices, and all get the sums.
async fn direct(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensor: u32,
) -> Result<TopK> {
    let (dim, world_size, rank) = (local.dim(), call.world_size(), call.rank());
    let Scattered { sum, kept } = scatter(call, local, limit, coder, tensor).await?;
    let mut of_sums = Coder::new(coder.wire().of_sums());
    let most = limit.min(dim).saturating_mul(world_size as usize).min(owned(dim, world_size, 0).len());
    let gathered = sparse_all_gather(call, sum.view(), most, &mut of_sums).await?;
    let mut all = SparseVec::with_capacity(dim, gathered.iter().map(SparseVec::len).sum());
    for (owner, part) in (0..).zip(&gathered) {
        let place = owned(dim, world_size, owner);
        if part.view().within(place.clone()).len() < part.len() {
            return Err(call.refuse(owner, format!("a sum with indices outside of {place:?}")));
        }
        all.append(part.view());
    }
    // Sums that rounding has made 0 are not there, on any rank.
    all.drop_zeros();
    let kept = match gathered.get(rank as usize) {
        Some(own) if !of_sums.wire().is_exact() => {
            let rounded = rounded_away(sum.view(), own.view())?;
            let mut both = SparseVec::new(dim);
            in_standard_float_mode(|| brevity_compress::merge::add(kept.view(), rounded.view(), &mut both))?;
            both
        }
        _ => kept,
    };
    Ok(TopK { sum: all, kept })
}
