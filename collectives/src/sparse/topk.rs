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

use brevity_compress::merge::{self, OrderedScratch, sum_in_order};
use brevity_compress::{Error as Compress, SparseVec, SparseView, in_standard_float_mode};

use super::all_gather::{gathering, gathering_entries, sparse_all_gather};
use super::doubling;
use super::message::invalid;
use super::reduce_scatter::{Scattered, owned, scatter, scattering};
use super::tensors::Tensors;
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

/// Whether sums are finite.
type Added = std::result::Result<(), Compress>;

/// The algorithms.
pub(crate) const ROWS: &[Row] = &[
    Row {
        algorithm: Algorithm::Bruck,
        fits: always,
        estimate: |work, ground| {
            let all = work.entries as f64 * ground.ranks();
            gathering_entries(work, ground).computing(ground.merging(all))
        },
    },
    Row {
        algorithm: Algorithm::Direct,
        fits: always,
        estimate: |work, ground| {
            let sums = union(work, ground);
            scattering(work, ground).then(gathering_sums(work, sums, ground))
        },
    },
    Row { algorithm: Algorithm::Doubling, fits: |work, _| work.is_exact, estimate: doubling::estimate },
];

/// What an all-reduce or an all-gather of sparse vectors has to do.
pub(crate) fn work(dim: usize, limit: usize, wire: Wire) -> Work {
    let (entries, bytes) = (limit.min(dim), wire.usual_bytes(dim, limit));
    let sums = wire.of_sums();
    let (wide_bytes, in_segments) = (sums.usual_bytes(dim, limit), sums.can_be_cut());
    let work = Work { bytes, wide_bytes, in_segments, entries, dim, wire, ..Work::default() };
    Work { is_exact: wire.is_exact(), ..work }
}

/// An all-gather of sums, so many in all, of which each rank has those in its range.
pub(super) fn gathering_sums(work: &Work, sums: f64, ground: &Ground) -> Estimate {
    let (wire, each) = (work.wire.of_sums(), sums / ground.ranks());
    let bytes = match wire {
        Wire::Pairs => 8.0 * each,
        Wire::Coded(_) => wire.usual_bytes_of_part(work.dim, each.ceil() as usize, ground.world_size) as f64,
    };
    let coding = ground.encoding(each, wire) + ground.decoding(sums, wire);
    gathering(bytes, ground).computing(coding)
}

/// The entries of the sum, if those of each rank are anywhere.
pub(crate) fn union(work: &Work, ground: &Ground) -> f64 {
    let dim = work.dim.max(1) as f64;
    let absent = 1.0 - work.entries as f64 / dim;
    dim * (1.0 - (0..ground.world_size).fold(1.0, |all, _| all * absent))
}

/// Sums the sparse vectors of all ranks in the fixed order of dense sums, by the algorithm that [is wished
/// for](crate::Wishes), or else the one that is estimated to be the fastest. Every rank gets the whole sum.
///
/// `local` has at most `limit` entries; `limit` and the coder's wire are equal on all ranks. A value of
/// `local` that is not finite poisons the call as its tensor's.
///
/// # Errors
/// As for [`sparse_all_gather`]; [`Error::Overflow`] of a tensor, on all ranks, unless the call is
/// poisoned for that. `local` is unchanged.
pub async fn topk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
) -> Result<TopK> {
    topk_all_reduce_with_feedback(call, local, limit, coder, tensors, |_| Ok(())).await
}

/// Like [`topk_all_reduce`], for entries that were selected from a residual and are zero there.
///
/// Poisons the call also if the residual has no room for what this rank's messages round away, because a sum
/// would not be finite: `check_room` says so
/// ([`Residual::check_put_back`](brevity_compress::feedback::Residual::check_put_back)). By
/// [`Direct`](Algorithm::Direct) a rank rounds sums of its range, where it may have selected nothing; no
/// other algorithm calls `check_room`. So if no rank has poisoned the call, the residual can take all that
/// [comes back](TopK::kept).
///
/// # Errors
/// As for [`topk_all_reduce`].
pub async fn topk_all_reduce_with_feedback(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<TopK> {
    let work = work(local.dim(), limit, coder.wire());
    let (operation, plan) = (Operation::TOPK_ALL_REDUCE, call.plan());
    let fits = |by: &Algorithm| plan.check(operation, ROWS, (&work, false), *by).is_ok();
    let wish = plan.wishes.of(operation).filter(fits);
    let algorithm = wish.unwrap_or_else(|| plan.choose(operation, ROWS, &work));
    reduce(call, algorithm, local, limit, coder, tensors.into(), check_room).await
}

/// [`topk_all_reduce`] by an algorithm of the caller's choice, which is equal on all ranks:
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
    tensors: impl Into<Tensors<'_>>,
) -> Result<TopK> {
    reduce(call, algorithm, local, limit, coder, tensors.into(), |_| Ok(())).await
}

/// [`topk_all_reduce_by`]; by direct sums it poisons the call unless there is room for what comes back.
pub(super) async fn reduce(
    call: &Call<'_, '_>,
    algorithm: Algorithm,
    local: SparseView<'_>,
    limit: usize,
    coder: &mut Coder,
    tensors: Tensors<'_>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<TopK> {
    let local = finite_or_poison(call, local, tensors);
    if algorithm == Algorithm::Direct && call.world_size() > 1 {
        return direct(call, local, limit, coder, tensors, check_room).await;
    }
    if algorithm == Algorithm::Doubling && coder.wire().is_exact() && call.world_size() > 1 {
        let sum = doubling::all_reduce(call, local, limit, coder, tensors).await?;
        return Ok(TopK { sum, kept: SparseVec::new(local.dim()) });
    }
    let gathered = sparse_all_gather(call, local, limit, coder).await?;
    let views: Vec<_> = gathered.iter().map(SparseVec::view).collect();
    let mut sum = SparseVec::new(local.dim());
    let summed = in_standard_float_mode(|| sum_in_order(&views, &mut sum, &mut OrderedScratch::new()));
    summed.map_err(|error| Error::Overflow { tensor: tensors.of(&error) })?;
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
    tensors: Tensors<'_>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<TopK> {
    let (dim, world_size) = (local.dim(), call.world_size());
    let place = |rank| owned(dim, world_size, rank);
    let Scattered { sum, kept } = scatter(call, local, limit, place, coder, tensors).await?;
    let mut of_sums = Coder::new(coder.wire().of_sums());
    let wire = of_sums.wire();
    let kept = if wire.is_exact() {
        kept
    } else {
        // Before the messages that tell all ranks of poison. They will say the same.
        let (_, rounded) = call.computed(of_sums.message(sum.clone(), wire))?;
        let mut both = SparseVec::new(dim);
        let added = in_standard_float_mode(|| {
            merge::add(kept.view(), rounded.view(), &mut both).and_then(|()| check_room(both.view()))
        });
        if let Err(error) = added {
            call.set_poison(tensors.of(&error));
        }
        both
    };
    let most = limit.min(dim).saturating_mul(world_size as usize).min(owned(dim, world_size, 0).len());
    let gathered = sparse_all_gather(call, sum.view(), most, &mut of_sums).await?;
    let mut all = SparseVec::with_capacity(dim, gathered.iter().map(SparseVec::len).sum());
    for (owner, part) in (0..).zip(&gathered) {
        let place = place(owner);
        if part.view().within(place.clone()).len() < part.len() {
            return Err(call.refuse(owner, format!("a sum with indices outside of {place:?}")));
        }
        part.view().check_finite().map_err(|error| invalid(call, owner, error))?;
        all.append(part.view());
    }
    // Sums that rounding has made 0 are not there, on any rank.
    all.drop_zeros();
    Ok(TopK { sum: all, kept })
}

#[cfg(test)]
mod tests {
    use ucx_sys_wrap::Rank;
    use ucx_sys_wrap::sim::{Cluster, Links, run};

    use super::*;
    use crate::group::{Group, Settings, wished};

    /// What rank 0 gets by direct sums where rank 1 says that its sum is this value.
    fn outcome(value: f32) -> Result<TopK> {
        let ranks = run(Cluster::new(2, Links::new(1e-6, 1e-9)), |transport| {
            let group = Group::new(transport, Settings::default()).with_algorithm(Some(Algorithm::Direct));
            let local = SparseVec::from_parts(10, vec![1, 7], vec![1.0, 2.0]).unwrap();
            async move {
                if group.rank() == 0 {
                    return Some(group.start_topk_all_reduce(local, 2, Coder::pairs()).await.1);
                }
                let description = wished(describe(10, 2, Wire::Pairs), Algorithm::Direct);
                let lying = group.start_in_order(description, local, move |call, local| {
                    Box::pin(async move {
                        let (local, mut coder) = (local.view(), Coder::pairs());
                        scatter(call, local, 2, |rank| owned(10, 2, rank), &mut coder, 0.into()).await?;
                        let sum = SparseVec::from_parts(10, vec![7], vec![value])?;
                        sparse_all_gather(call, sum.view(), 4, &mut coder).await.map(drop)
                    })
                });
                drop(lying.await);
                None
            }
        });
        ranks.unwrap().into_iter().flatten().next().unwrap()
    }

    #[test]
    fn sums_of_a_peer_are_finite() {
        let sum = outcome(-3.0).unwrap().sum;
        assert_eq!((sum.indices(), sum.values()), (&[1, 7][..], &[2.0, -3.0][..]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = outcome(bad).unwrap_err();
            assert!(matches!(error, Error::Payload { rank: Rank(1), .. }), "{error}");
        }
    }
}
