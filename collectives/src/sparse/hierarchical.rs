//! Hierarchical all-reduce: dense sums inside the hosts, sparse ones between them.
//!
//! The ranks of a host sum their vectors to the first of them, the leader. The leaders select entries of
//! these sums, at most `k` each, sum them by gTop-k or top-k, and hand the result to their hosts. What is not
//! delivered stays with the leader, for the next call. With `H` hosts of at most `L` ranks and vectors of `n`
//! elements:
//!
//! | part | rounds | bytes sent |
//! | --- | --- | --- |
//! | to the leader, over slots or in a binomial tree | ceil(log2 L) | 4 n a rank, inside the host |
//! | gTop-k or top-k between the leaders | as among H ranks | as among H ranks |
//! | to the host, in a binomial tree, as pairs | ceil(log2 L) | at most 8 k ceil(log2 L), inside the host |
//!
//! So a host sends what a rank sends in a sparse sum, and `H` takes the place of `P`. Sums inside a host have
//! the [fixed order](crate::data::order) of its ranks, and sums between leaders that of the hosts: the result
//! depends on where ranks run, but not on whether slots or messages are used.

use std::borrow::BorrowMut;
use std::sync::Arc;

use brevity_compress::select::{TopKScratch, top_k};
use brevity_compress::{Error as Compress, SparseVec, SparseView, in_standard_float_mode};
use bytemuck::{cast_slice, cast_slice_mut};
use ucx_sys_wrap::buffer::Chunk;

use super::gtopk::{self, Gtopk, PutBack, gtopk_all_reduce_with_feedback};
use super::message::{finite_entries, invalid, receive_parts};
use super::tensors::Tensors;
use super::topk::{self, TopK};
use super::wire::{Coder, Wire};
use crate::buffers::Memory;
use crate::call::Call;
use crate::compressed::Compressed;
use crate::data::{Element, ReduceOp, Reduction};
use crate::dense::{Collective, Reduce, to_children};
use crate::description::{Description, Operation};
use crate::error::{Error, Result};
use crate::host::{self, SlotTurn};
use crate::pattern::Binomial;
use crate::plan::{Algorithm, Estimate, Ground, Row, Work};

/// How the leaders of hosts sum their entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderSum {
    /// All entries are delivered: [top-k](super::topk_all_reduce).
    Topk,
    /// The largest ones of the sum, with this rule: [gTop-k](super::gtopk_all_reduce).
    Gtopk(PutBack),
}

/// The result of a hierarchical all-reduce.
#[derive(Clone, Debug)]
pub struct HierarchicalSum {
    /// The sum, undivided. All ranks get the same bits.
    pub result: SparseVec,
    /// On the leader of a host, what the call has left of its host's vectors, for a later call. Nothing is
    /// left on other ranks.
    pub left: Option<Vec<f32>>,
}

impl LeaderSum {
    /// Its number in a description: 0 for top-k, else that of the rule.
    const fn number(self) -> u8 {
        match self {
            Self::Topk => 0,
            Self::Gtopk(rule) => rule.number(),
        }
    }
}

/// What ranks of a hierarchical all-reduce must agree on.
#[must_use]
pub fn describe(dim: usize, k: usize, by: LeaderSum, wire: Wire) -> Description {
    let sparse = Description::sparse(Operation::HIERARCHICAL_ALL_REDUCE, f32::TYPE.number(), dim, k);
    let description = wire.describe(sparse);
    Description { reduction: by.number() | description.reduction << gtopk::RULE_BITS, ..description }
}

/// The names of the leaders' sum and of the wire in the `reduction` of a description; none for pairs.
pub(crate) fn names(reduction: u8) -> (Option<&'static str>, Option<&'static str>) {
    let by = match reduction & ((1 << gtopk::RULE_BITS) - 1) {
        0 => "top-k",
        1 => "gtop-k, conserving",
        2 => "gtop-k, published",
        _ => "gtop-k, merger keeps",
    };
    (Some(by), Wire::name(reduction >> gtopk::RULE_BITS))
}

/// The algorithm, with gTop-k between the leaders and messages inside the hosts.
pub(crate) const ROWS: &[Row] = &[Row {
    algorithm: Algorithm::Hosts,
    fits: |_, ground| ground.topology.has_levels(),
    estimate: |work, ground| {
        let (inside, across) = (ground.inside(ground.topology.most), ground.across(1));
        let bytes = work.dim.saturating_mul(size_of::<f32>());
        let dense = Work { bytes, wide_bytes: bytes, ..Work::default() };
        let up = to_leader(&dense, &inside);
        let between = (gtopk::ROWS[0].estimate)(work, &across);
        let down = inside.message(8.0 * work.entries as f64).times(inside.rounds());
        // Leaders do not send their vectors.
        let bytes = up.bytes.max(between.bytes + down.bytes);
        Estimate { bytes, ..up.then(between).then(down) }
    },
}];

fn to_leader(dense: &Work, inside: &Ground) -> Estimate {
    let binomial = Reduce::ROWS.iter().find(|row| row.algorithm == Algorithm::Binomial);
    binomial.map_or_else(Estimate::default, |row| (row.estimate)(dense, inside))
}

/// Sums the vectors of all ranks: densely inside each host, sparsely between the hosts.
///
/// On the leader of each host, which is its first rank, `select` gets the finite sum of the host's vectors,
/// and returns at most `limit` of its entries. These are summed between the leaders, with `limit` as `k`;
/// `limit`, `by` and the coder's wire are equal on all ranks. All vectors are together the result and what is
/// [left](HierarchicalSum::left), up to the rounding of sums, unless the [rule](PutBack) loses some.
///
/// A value of `vector` that is not finite poisons the call as its tensor's, and so does a sum inside a host
/// or in a merge, and one that what comes back would make so. Then what is left is unspecified.
///
/// # Errors
/// Errors of the transport; [`Error::Payload`] for an invalid message of a peer; [`Error::Overflow`] of a
/// tensor, on all ranks, for a sum of [top-k](LeaderSum::Topk) that is not finite.
pub async fn hierarchical_all_reduce(
    call: &Call<'_, '_>,
    mut vector: Vec<f32>,
    (limit, by): (usize, LeaderSum),
    select: impl FnOnce(&[f32]) -> std::result::Result<SparseVec, Compress>,
    coder: &mut Coder,
    tensors: impl Into<Tensors<'_>>,
) -> Result<HierarchicalSum> {
    call.check_open()?;
    let (tensors, dim) = (tensors.into(), vector.len());
    if !is_finite_or_poison(call, &vector, tensors) {
        vector.fill(0.0);
    }
    let (here, leaders) = levels(call);
    let most = by.most(dim, limit, leaders.len());
    let inside = call.among(here);
    let tree = Binomial::new(inside.rank(), 0, inside.world_size());
    let sums = sum_inside(call, &inside, vector).await?;
    let (told, left) = match (sums, tree.parent()) {
        (Some(sums), _) => {
            let leaders = Leaders { call: call.among(leaders), plan: call, limit, by, tensors };
            let (told, left) = leaders.sum(sums, select, coder).await?;
            (told, Some(left))
        }
        (None, Some((parent, round))) => {
            let parts = receive_parts(&inside, parent, round, (most.max(1), most)).await?;
            (Told::read(&inside, parent, dim, parts)?, None)
        }
        (None, None) => unreachable!("the root of a host's tree is its leader"),
    };
    let (indices, values) = told.into_parts();
    let parts = to_children(&inside, tree, 0, (Arc::new(indices), Arc::new(values))).await?;
    let parts = (Arc::unwrap_or_clone(parts.0), Arc::unwrap_or_clone(parts.1));
    match Told::read(&inside, 0, dim, parts)? {
        Told::Sum(result) => Ok(HierarchicalSum { result, left }),
        Told::Overflow(tensor) => Err(Error::Overflow { tensor }),
    }
}

impl LeaderSum {
    /// The most entries of a result.
    fn most(self, dim: usize, limit: usize, hosts: usize) -> usize {
        let limit = limit.min(dim);
        match self {
            Self::Topk => limit.saturating_mul(hosts).min(dim),
            Self::Gtopk(_) => limit,
        }
    }
}

/// Whether all values are finite. If not, the call is poisoned.
fn is_finite_or_poison(call: &Call<'_, '_>, values: &[f32], tensors: Tensors<'_>) -> bool {
    let bad = values.iter().position(|value| !value.is_finite());
    bad.inspect(|index| call.set_poison(tensors.at(*index))).is_none()
}

/// The ranks of this rank's host, and the first ranks of all hosts.
fn levels(call: &Call<'_, '_>) -> (Arc<[u32]>, Arc<[u32]>) {
    let (plan, own) = (call.plan(), call.rank());
    match &plan.places {
        Some(places) => (Arc::clone(places.here(own)), places.across(0)),
        None if plan.ground.topology.hosts > 1 => ([own].into(), (0..call.world_size()).collect()),
        None => ((0..call.world_size()).collect(), [0].into()),
    }
}

/// The sum over the ranks of this host, on its leader.
async fn sum_inside(
    call: &Call<'_, '_>,
    inside: &Call<'_, '_>,
    vector: Vec<f32>,
) -> Result<Option<Vec<f32>>> {
    if inside.world_size() == 1 {
        return Ok(Some(vector));
    }
    let (is_leader, reducer) = (inside.rank() == 0, Reduction::<f32>::from(ReduceOp::Sum).reducer()?);
    if let Some((mut place, terms)) = call.host_turn() {
        let mut sums = call.zeros::<f32>(if is_leader { vector.len() } else { 0 })?;
        let mut turn = SlotTurn::begin(&mut place, &terms).await?;
        let (given, sum) = (cast_slice(&vector), cast_slice_mut(&mut sums));
        host::reduce(&mut turn, &reducer, Some(given), sum, 0).await?;
        return Ok(is_leader.then_some(sums));
    }
    let memory = Memory { input: None, output: Chunk::from(vector).cast() };
    let reduce = Reduce::of(reducer, 0);
    let sums = inside.run_checked(&reduce, memory, Some(Algorithm::Binomial)).await?;
    Ok(is_leader.then(|| sums.cast::<f32>().into_vec()))
}

/// The leaders' part.
struct Leaders<'a, 'call, 'env> {
    /// The call as they see it.
    call: Call<'call, 'env>,
    /// The call as all ranks see it.
    plan: &'a Call<'call, 'env>,
    limit: usize,
    by: LeaderSum,
    tensors: Tensors<'a>,
}

impl Leaders<'_, '_, '_> {
    /// Selects entries of the sums of this host, and sums them over the hosts. Returns what there is to tell,
    /// and what is left.
    async fn sum(
        &self,
        mut sums: Vec<f32>,
        select: impl FnOnce(&[f32]) -> std::result::Result<SparseVec, Compress>,
        coder: &mut Coder,
    ) -> Result<(Told, Vec<f32>)> {
        let Self { call, limit, tensors, .. } = self;
        let selected = if is_finite_or_poison(call, &sums, *tensors) {
            call.computed(selected(&sums, select, *limit))?
        } else {
            SparseVec::new(sums.len())
        };
        selected.indices().iter().for_each(|index| sums[*index as usize] = 0.0);
        // Asked before the messages that tell all leaders how the call ends.
        let room =
            |entries: SparseView<'_>| entries.iter().try_for_each(|entry| sum_with(&sums, entry).map(drop));
        let (told, back) = match self.by {
            LeaderSum::Gtopk(rule) => {
                let (local, tensors) = (selected.view(), *tensors);
                let summed = gtopk_all_reduce_with_feedback(call, local, *limit, rule, coder, tensors, room);
                let Gtopk { result, put_back } = summed.await?;
                (Told::Sum(result), put_back)
            }
            LeaderSum::Topk => self.topk(selected.view(), coder, room).await?,
        };
        // What is left of a call that is left out is of no use.
        if call.poison().is_none() && matches!(told, Told::Sum(_)) {
            let put_back = || {
                back.iter()
                    .try_for_each(|entry| sum_with(&sums, entry).map(|sum| sums[entry.0 as usize] = sum))
            };
            call.computed(in_standard_float_mode(put_back).map_err(Error::from))?;
        }
        Ok((told, sums))
    }

    /// Sums the entries by top-k. Returns also what rounding has taken away.
    async fn topk(
        &self,
        local: SparseView<'_>,
        coder: &mut Coder,
        room: impl FnOnce(SparseView<'_>) -> std::result::Result<(), Compress>,
    ) -> Result<(Told, SparseVec)> {
        let plan = self.plan.plan().leaders().unwrap_or_else(|| self.plan.plan());
        let work = topk::work(local.dim(), self.limit, coder.wire());
        let algorithm = plan.choose(Operation::TOPK_ALL_REDUCE, topk::ROWS, &work);
        match topk::reduce(&self.call, algorithm, local, self.limit, coder, self.tensors, room).await {
            Ok(TopK { sum, kept }) => Ok((Told::Sum(sum), kept)),
            // Of all leaders; their hosts must hear of it.
            Err(Error::Overflow { tensor }) => Ok((Told::Overflow(tensor), SparseVec::new(local.dim()))),
            Err(error) => Err(error),
        }
    }
}

/// The sum of an entry and what is left at its place, if it is finite.
fn sum_with(left: &[f32], (index, value): (u32, f32)) -> std::result::Result<f32, Compress> {
    let index = index as usize;
    let sum = left[index] + value;
    if sum.is_finite() { Ok(sum) } else { Err(Compress::NonFinite { index, value: sum }) }
}

/// What a leader selects.
fn selected(
    sums: &[f32],
    select: impl FnOnce(&[f32]) -> std::result::Result<SparseVec, Compress>,
    limit: usize,
) -> Result<SparseVec> {
    let selected = in_standard_float_mode(|| select(sums))?;
    for (what, found, expected, is_right) in [
        ("the selection", selected.len(), limit, selected.len() <= limit),
        ("the vector of the selection", selected.dim(), sums.len(), selected.dim() == sums.len()),
    ] {
        if !is_right {
            return Err(Error::Length { what, found, expected });
        }
    }
    Ok(selected)
}

/// What a leader tells its host.
enum Told {
    Sum(SparseVec),
    /// The sum of this tensor is not finite. As a message, one index without a value.
    Overflow(u32),
}

impl Told {
    fn into_parts(self) -> (Vec<u32>, Vec<f32>) {
        match self {
            Self::Sum(entries) => entries.into_parts(),
            Self::Overflow(tensor) => (vec![tensor], Vec::new()),
        }
    }

    fn read(
        inside: &Call<'_, '_>,
        from: u32,
        dim: usize,
        (indices, values): (Vec<u32>, Vec<f32>),
    ) -> Result<Self> {
        if let ([tensor], []) = (&indices[..], &values[..]) {
            return Ok(Self::Overflow(*tensor));
        }
        let entries = finite_entries(dim, indices, values);
        entries.map(Self::Sum).map_err(|error| invalid(inside, from, error))
    }
}

/// The sum of all ranks' vectors, dense inside the hosts and sparse between them, as a call of a group; see
/// [`hierarchical_all_reduce`].
#[derive(Clone, Debug)]
pub struct HierarchicalAllReduce<V = Vec<f32>, C = Coder> {
    /// The vector of this rank. It becomes what is left: on the leader of a host of all its ranks' vectors,
    /// on other ranks zeros. If the call fails it stays as it is.
    pub vector: V,
    /// The entries that a leader selects: those of largest magnitude. Equal on all ranks.
    pub k: usize,
    /// Equal on all ranks.
    pub by: LeaderSum,
    /// Its wire is equal on all ranks.
    pub coder: C,
}

impl<V, C> Compressed for HierarchicalAllReduce<V, C>
where
    V: AsRef<[f32]> + AsMut<[f32]> + Send + Sync,
    C: BorrowMut<Coder> + Send + Sync,
{
    type Output = SparseVec;

    const OPERATION: Operation = Operation::HIERARCHICAL_ALL_REDUCE;
    const ROWS: &'static [Row] = ROWS;
    const USES_SLOTS: bool = true;

    fn check(&self) -> Result<()> {
        SparseView::new(self.vector.as_ref().len(), &[], &[])?;
        Ok(())
    }

    fn description(&self) -> Description {
        describe(self.vector.as_ref().len(), self.k, self.by, self.coder.borrow().wire())
    }

    fn work(&self) -> Work {
        topk::work(self.vector.as_ref().len(), self.k, self.coder.borrow().wire())
    }

    async fn run(&mut self, call: &Call<'_, '_>, _: Option<Algorithm>) -> Result<SparseVec> {
        let Self { vector, k, by, coder } = self;
        let (k, vector) = (*k, vector.as_mut());
        let mut own = Vec::new();
        call.resize(&mut own, vector.len())?;
        own.copy_from_slice(vector);
        let select = |sums: &[f32]| {
            let mut largest = SparseVec::new(sums.len());
            top_k(sums, k, &mut largest, &mut TopKScratch::new()).map(|()| largest)
        };
        let sum = hierarchical_all_reduce(call, own, (k, *by), select, coder.borrow_mut(), 0).await?;
        // Otherwise the vector stays.
        call.check_poison()?;
        match sum.left {
            Some(left) => vector.copy_from_slice(&left),
            None => vector.fill(0.0),
        }
        Ok(sum.result)
    }
}

#[cfg(test)]
mod tests {
    use ucx_sys_wrap::Rank;
    use ucx_sys_wrap::bootstrap::Opened;
    use ucx_sys_wrap::sim::{Cluster, Links, run};

    use super::*;
    use crate::group::{Group, Settings};

    /// What a rank of a host makes of the parts that its leader sends as the result.
    fn told(indices: &[u32], values: &[f32]) -> Result<SparseVec> {
        let ranks = run(Cluster::new(2, Links::new(1e-6, 1e-9)), |transport| {
            let opened = Opened::in_process(transport, None).with_hosts(&[0, 0]);
            let group = Group::opened(opened, Settings::default());
            let (parts, by) = ((indices.to_vec(), values.to_vec()), LeaderSum::Topk);
            async move {
                if group.rank() == 1 {
                    let honest =
                        HierarchicalAllReduce { vector: vec![1.0; 4], k: 2, by, coder: Coder::pairs() };
                    return Some(group.start_compressed(honest).await.1);
                }
                let lying = group.start_in_order(describe(4, 2, by, Wire::Pairs), parts, |call, parts| {
                    Box::pin(async move { call.send(1, 0, std::mem::take(parts)).await.map(drop) })
                });
                drop(lying.await);
                None
            }
        });
        ranks.unwrap().into_iter().flatten().next().unwrap()
    }

    #[test]
    fn what_a_leader_sends_is_checked() {
        assert_eq!(told(&[0, 3], &[1.0, -2.0]).unwrap().values(), [1.0, -2.0]);
        assert!(matches!(told(&[5], &[]), Err(Error::Overflow { tensor: 5 })));
        for (indices, values) in [
            (&[1, 0][..], &[1.0, 2.0][..]),
            (&[4], &[1.0]),
            (&[0, 1], &[1.0]),
            (&[], &[1.0]),
            (&[0, 2], &[1.0, f32::NAN]),
            (&[3], &[f32::NEG_INFINITY]),
        ] {
            let error = told(indices, values).unwrap_err();
            assert!(matches!(error, Error::Payload { rank: Rank(0), .. }), "{indices:?}: {error}");
        }
        assert!(told(&[0, 1, 2], &[1.0; 3]).is_err(), "more than there may be");
    }
}
