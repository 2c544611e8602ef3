//! Ok-Topk all-reduce: about `k` of the largest entries of the sum of all ranks' sparse vectors.
//!
//! Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022. With `P` ranks:
//!
//! 1. A rank [selects](OkTopk::select) the values that reach its threshold, which it uses for some steps.
//! 2. Each rank owns a region of the indices. Every rank sends each owner its entries there, in rotated
//!    order, and the owner sums them in the fixed order: at most `2 k` entries a rank.
//! 3. The sums that reach the threshold of the sum are the result. If an owner has over four times its share
//!    of them, entries move to other ranks until all have the same number: at most `2 k` entries in all.
//! 4. All gather them: at most `2 k` entries, less those of the rank.
//!
//! With `k` entries a rank and in the result, a rank sends `2 k (P - 1) / P` entries of 8 bytes on average,
//! and `k / P` if entries move, whatever `P` is; never more than `4 k`. The paper's bound is
//! `6 k (P - 1) / P` words. Rounds: one of `P - 1` messages, `2 ceil(log2 P)`, and one more if entries move.
//! Beside the entries, 24 bytes for each rank. At the ends of [`Periods`] also 8 bytes for each rank for the
//! partition, and 256 bytes for each of at most 8 rounds in which the threshold is searched by counts at a
//! [ladder](brevity_compress::select::ladder_counts).
//!
//! The result has `k / 2` to `2 k` entries, or all if there are fewer: where a threshold keeps more or fewer,
//! it is estimated anew in the same step, and of equal magnitudes only as many are kept as make `k`. Exactly
//! `k` are not promised. An index has one owner, so either all contributions to it are delivered, or they go
//! back to the residuals of their ranks: nothing is lost. So does what rounding takes away: to the rank that
//! has written the message, if the index is in the result.

mod balance;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod lies;
mod partition;
mod state;
mod threshold;

use std::borrow::BorrowMut;

use brevity_compress::{Error as Compress, SparseVec, SparseView, in_standard_float_mode, merge};

use self::balance::Holdings;
use self::state::{Agreed, Regions};
pub use self::state::{OkTopk, Periods};
use self::threshold::{SHARE_BYTES, Shares};
use super::all_gather::sparse_all_gather;
use super::calls::{Entries, check_limit};
use super::gtopk::{Kept, PutBack};
use super::message::invalid;
use super::reduce_scatter::{Scattered, scatter, scattering};
use super::tensors::Tensors;
use super::topk;
use super::wire::{Coder, Wire, finite_or_poison};
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::Element;
use crate::dense::{AllGather, Collective};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::plan::{Algorithm, Estimate, Ground, Row, Work, always, fastest};

/// The algorithm.
pub(crate) const ROWS: &[Row] = &[Row { algorithm: Algorithm::Direct, fits: always, estimate }];

/// What a step takes that reuses its thresholds and its partition, as most do, with `k` entries on each rank
/// and in the result, which are anywhere.
fn estimate(work: &Work, ground: &Ground) -> Estimate {
    let shares = Work { bytes: SHARE_BYTES, wide_bytes: SHARE_BYTES, ..Work::default() };
    let (_, shares) = fastest(AllGather::ROWS, &shares, ground);
    let sums = topk::gathering_sums(work, work.entries as f64, ground);
    scattering(work, ground).then(shares).then(sums)
}

/// The result of an Ok-Topk all-reduce.
#[derive(Clone, Debug)]
pub struct OkTopkSum {
    /// Entries of the sum, undivided. All ranks get the same bits.
    pub result: SparseVec,
    /// What this rank must add to its residual.
    pub put_back: SparseVec,
}

/// What ranks of an Ok-Topk all-reduce must agree on.
#[must_use]
pub fn describe(state: &OkTopk, wire: Wire) -> Description {
    let (dim, limit) = (state.dim(), state.limit());
    let operation = Operation::OK_TOPK_ALL_REDUCE;
    wire.describe(Description::sparse(operation, f32::TYPE.number(), dim, limit)).with_detail(state.digest())
}

/// Sums the sparse vectors of all ranks and keeps the entries that reach the threshold of the sum.
///
/// `local` has at most [`limit`](OkTopk::limit) entries. The coder's wire and all of the state but a rank's
/// own threshold are equal on all ranks. The state takes a step, unless the call fails or is poisoned. A
/// value of `local` that is not finite poisons the call as its tensor's, and so does a sum.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`] for an invalid message of a peer; [`Error::Length`] if the
/// state is of another number of ranks. `local` and the state are unchanged.
pub async fn ok_topk_all_reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    state: &mut OkTopk,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
) -> Result<OkTopkSum> {
    reduce(call, local, state, coder, tensors.into(), |_| Ok(())).await
}

/// Like [`ok_topk_all_reduce`], for entries that were selected from a residual and are zero there.
///
/// Poisons the call also if the residual has no room for what this rank's messages round away, because a sum
/// would not be finite: `check_room` says so
/// ([`Residual::check_put_back`](brevity_compress::feedback::Residual::check_put_back)). A rank rounds sums
/// of its region, where it may have selected nothing. So if no rank has poisoned the call, the residual can
/// take all that [comes back](OkTopkSum::put_back). On an [exact](Wire::is_exact) wire nothing is rounded,
/// and `check_room` is not called.
///
/// # Errors
/// As for [`ok_topk_all_reduce`].
pub async fn ok_topk_all_reduce_with_feedback(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    state: &mut OkTopk,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<OkTopkSum> {
    reduce(call, local, state, coder, tensors.into(), check_room).await
}

async fn reduce(
    call: &Call<'_, '_>,
    local: SparseView<'_>,
    state: &mut OkTopk,
    coder: &mut Coder,
    tensors: Tensors<'_>,
    check_room: impl FnOnce(SparseView<'_>) -> Added,
) -> Result<OkTopkSum> {
    call.check_open()?;
    call.computed(state.check_world_size(call.world_size()))?;
    let local = finite_or_poison(call, local, tensors);
    let mut agreed = state.agreed.clone();
    if state.partition_is_due() {
        agreed.regions = partition::agree(call, local).await?;
    }
    let region = |rank| agreed.regions.of(rank);
    let Scattered { sum, kept } = scatter(call, local, state.limit(), region, coder, tensors).await?;
    let shares = shares(call, state, &mut agreed, sum.values()).await?;
    let quotas = shares.quotas(state.k());
    let chosen = quotas[call.rank() as usize].choose(&sum, agreed.threshold);
    let holdings = Holdings::new(quotas.iter().map(|quota| quota.entries()));
    let mut sums = Sums { coder: Coder::new(coder.wire().of_sums()), rounded: kept, tensors };
    let held = match &holdings.moves {
        Some(moves) => balance::balance(call, &chosen, moves, &agreed.regions, &mut sums).await?,
        None => chosen,
    };
    let result = sums.gather(call, held, &holdings, &agreed.regions, check_room).await?;
    let kept = Kept { rule: PutBack::Conserving, most: sums.rounded };
    let put_back = in_standard_float_mode(|| kept.put_back(local, &result))?;
    if call.poison().is_none() {
        state.agreed = Agreed { step: agreed.step.wrapping_add(1), is_uneven: shares.are_uneven(), ..agreed };
    }
    Ok(OkTopkSum { result, put_back })
}

/// How the sums of all ranks lie to the threshold, which is estimated anew if it is time or it does not fit.
async fn shares(call: &Call<'_, '_>, state: &OkTopk, agreed: &mut Agreed, sums: &[f32]) -> Result<Shares> {
    if !state.global_threshold_is_due() {
        let shares = threshold::share(call, sums, agreed.threshold, &agreed.regions).await?;
        if shares.fit(state.k()) {
            return Ok(shares);
        }
    }
    agreed.threshold = threshold::search(call, sums, state.k(), agreed.threshold).await?;
    threshold::share(call, sums, agreed.threshold, &agreed.regions).await
}

/// Whether sums are finite.
type Added = std::result::Result<(), Compress>;

/// How sums are sent.
struct Sums<'a> {
    coder: Coder,
    /// What this rank's messages have rounded away.
    rounded: SparseVec,
    tensors: Tensors<'a>,
}

impl Sums<'_> {
    /// Keeps what a message rounds away.
    fn keep(&mut self, call: &Call<'_, '_>, rounded: &SparseVec) {
        if rounded.is_empty() {
            return;
        }
        let mut both = SparseVec::new(rounded.dim());
        match in_standard_float_mode(|| merge::add(self.rounded.view(), rounded.view(), &mut both)) {
            Ok(()) => self.rounded = both,
            Err(error) => call.set_poison(self.tensors.of(&error)),
        }
    }

    /// Gathers what all ranks hold, unless there is no room for what has been rounded away.
    async fn gather(
        &mut self,
        call: &Call<'_, '_>,
        held: SparseVec,
        holdings: &Holdings,
        regions: &Regions,
        check_room: impl FnOnce(SparseView<'_>) -> Added,
    ) -> Result<SparseVec> {
        let wire = self.coder.wire();
        if !wire.is_exact() {
            // Before the messages that tell all ranks of poison. They will say the same.
            let (_, rounded) = call.computed(self.coder.message(held.clone(), wire))?;
            self.keep(call, &rounded);
        }
        if !self.rounded.is_empty()
            && let Err(error) = in_standard_float_mode(|| check_room(self.rounded.view()))
        {
            call.set_poison(self.tensors.of(&error));
        }
        let gathered = sparse_all_gather(call, held.view(), holdings.most(), &mut self.coder).await?;
        let mut all = SparseVec::with_capacity(held.dim(), gathered.iter().map(SparseVec::len).sum());
        for (rank, part) in (0..).zip(&gathered) {
            let place = holdings.indices(rank, regions);
            if part.len() > holdings.of(rank) || part.view().within(place.clone()).len() < part.len() {
                let (found, most) = (part.len(), holdings.of(rank));
                let what = format!("{found} sums, expected at most {most} with indices in {place:?}");
                return Err(call.refuse(rank, what));
            }
            part.view().check_finite().map_err(|error| invalid(call, rank, error))?;
            // Where sums have moved, two ranks may have parts of one region.
            if part.indices().first().is_some_and(|first| all.indices().last() >= Some(first)) {
                let before = rank.saturating_sub(1);
                return Err(call.refuse(rank, format!("sums that do not follow those of rank {before}")));
            }
            all.append(part.view());
        }
        // Sums that rounding has made 0 are not there, on any rank.
        all.drop_zeros();
        Ok(all)
    }
}

/// About `k` of the largest entries of the sum of all ranks' sparse vectors; see [`ok_topk_all_reduce`].
#[derive(Clone, Debug)]
pub struct OkTopkAllReduce<L = SparseVec, S = OkTopk, C = Coder> {
    /// The vector of this rank, with at most [`limit`](OkTopk::limit) entries.
    pub local: L,
    /// Equal on all ranks but for a rank's own threshold. It takes a step.
    pub state: S,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

impl<L, S, C> Compressed for OkTopkAllReduce<L, S, C>
where
    L: Entries,
    S: BorrowMut<OkTopk> + Send + Sync,
    C: BorrowMut<Coder> + Send + Sync,
{
    type Output = OkTopkSum;

    const OPERATION: Operation = Operation::OK_TOPK_ALL_REDUCE;
    const ROWS: &'static [Row] = ROWS;

    fn check(&self) -> Result<()> {
        let (found, state) = (self.local.entries().dim(), self.state.borrow());
        if found != state.dim() {
            let expected = state.dim();
            return Err(Error::Length { what: "the dense length of the sparse vector", found, expected });
        }
        check_limit(self.local.entries(), state.limit())
    }

    fn description(&self) -> Description {
        describe(self.state.borrow(), self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        let state = self.state.borrow();
        topk::work(state.dim(), state.k(), self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<OkTopkSum> {
        let Self { local, state, coder } = self;
        ok_topk_all_reduce(call, local.entries(), state.borrow_mut(), coder.borrow_mut(), 0).await
    }
}

#[cfg(test)]
mod tests {
    use ucx_sys_wrap::Rank;
    use ucx_sys_wrap::sim::{Cluster, Links, run};

    use super::*;
    use crate::group::{Group, Settings};

    /// What rank 0 gathers where rank 1 says that its sum is this value.
    fn gathered(value: f32) -> Result<SparseVec> {
        let ranks = run(Cluster::new(2, Links::new(1e-6, 1e-9)), |transport| {
            let group = Group::new(transport, Settings::default());
            async move {
                let held = SparseVec::from_parts(10, vec![5 * group.rank()], vec![value]).unwrap();
                let held = if group.rank() == 0 { SparseVec::new(10) } else { held };
                let description = describe(&OkTopk::new(10, 2, 2), Wire::Pairs);
                let gathering = group.start_in_order(description, held, |call, held| {
                    Box::pin(async move {
                        let (holdings, regions) =
                            (Holdings::new([0, 1].into_iter()), Regions::new(10, vec![5]));
                        let (coder, rounded) = (Coder::pairs(), SparseVec::new(10));
                        let mut sums = Sums { coder, rounded, tensors: 0.into() };
                        sums.gather(call, held.clone(), &holdings, &regions, |_| Ok(())).await
                    })
                });
                gathering.await.1
            }
        });
        ranks.unwrap().swap_remove(0)
    }

    #[test]
    fn sums_of_a_peer_are_finite() {
        assert_eq!(gathered(-3.0).unwrap().values(), [-3.0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = gathered(bad).unwrap_err();
            assert!(matches!(error, Error::Payload { rank: Rank(1), .. }), "{error}");
        }
    }
}
