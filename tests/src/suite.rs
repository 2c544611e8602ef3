//! Runs every collective once, inside one call, and checks each against its oracle; the same for every
//! transport.

mod coded;

use brevity::collectives::dense::{self, AllGather, AllReduce, Broadcast, Lengths};
use brevity::collectives::low_rank::low_rank_all_reduce;
use brevity::collectives::quantised::{describe as describe_quantised, quantised_all_reduce};
use brevity::collectives::sparse::{
    Coder, Draw, LeaderSum, RandomPlaces, Wire, block_all_reduce, describe_blocks, describe_gtopk,
    describe_hierarchical, describe_random_k, describe_topk, gtopk_all_reduce, hierarchical_all_reduce,
    random_k_all_reduce, sparse_all_gather, topk_all_reduce_by,
};
use brevity::collectives::vote::{describe as describe_vote, vote_all_reduce};
use brevity::collectives::{Algorithm, Call, Chunk, Description, Operation};
use brevity::compress::SparseVec;
use brevity::compress::low_rank::{Batch, LowRank};
use brevity::compress::quantise::Values;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::{Element, Group, PutBack, ReduceOp};

use crate::dense::{in_order, vector as rough_vector};
use crate::oracle;

/// The world sizes that every collective is tested with.
pub const WORLD_SIZES: [u32; 7] = [1, 2, 3, 4, 5, 7, 8];

/// The lengths that every collective is tested with.
pub const COUNTS: [usize; 3] = [0, 1, 1000];

/// The lengths that collectives over shared memory are tested with: one line and one element more, one block,
/// one chunk and one element more, several chunks.
pub const HOST_COUNTS: [usize; 10] = [0, 1, 10, 11, 128, 129, 1000, 16_385, 40_000, 300_001];

/// The matrices that low-rank collectives are tested with, and the rank of their factors.
const MATRICES: [(usize, usize); 3] = [(1, 1), (1, 7), (33, 65)];
const RANK: usize = 2;

/// The description of the call for programs that run the suite.
#[must_use]
pub fn description() -> Description {
    Description::new(Operation::MESSAGE, 0, 0)
}

/// Runs every collective on vectors of `count` elements.
///
/// # Panics
/// If a result differs from the oracle's.
pub async fn run(call: &Call<'_, '_>, count: usize) {
    dense_collectives(call, count).await;
    gathering(call, count).await;
    for k in [0, 1, count / 10, count] {
        sparse_collectives(call, count, k.min(count)).await;
    }
    // Larger groups run these on a simulated network.
    if call.world_size() <= 4 {
        coded::run(call, count, count / 10).await;
    }
    quantised(call, count).await;
    parts_of_vectors(call, count).await;
    by_hosts(call, count).await;
    low_rank(call).await;
}

/// Runs the collectives of a whole group, which ranks of one host do over shared memory; blocking, and
/// several at once.
///
/// # Panics
/// If a result differs from the oracle's.
pub fn run_on_group(group: &Group, count: usize) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let all = vectors(world_size, count);
    let sum = oracle::sum(&all);
    let mut data = oracle::vector(rank, count);
    ok(group.all_reduce(&mut data, ReduceOp::Sum));
    assert_eq!(data, sum, "all-reduce of {count}");

    let handles: Vec<_> =
        (0..3).map(|_| group.start_all_reduce(oracle::vector(rank, count), ReduceOp::Average)).collect();
    let mut gathered = vec![f32::NAN; count * world_size as usize];
    ok(group.all_gather(&all[rank as usize], &mut gathered));
    assert_eq!(gathered, all.concat(), "all-gather of {count}");
    for handle in handles.into_iter().rev() {
        let (data, result) = handle.wait();
        ok(result);
        assert!(
            data.iter().zip(&sum).all(|(average, sum)| *average == sum / world_size as f32),
            "average of {count}"
        );
    }
    for root in [0, world_size / 2, world_size - 1] {
        let mut data = oracle::vector(rank, count);
        ok(group.broadcast(&mut data, root));
        assert_eq!(data, all[root as usize], "broadcast of {count} from {root}");
        let own = if rank == root { &all[rank as usize][..] } else { &[] };
        data.fill(f32::NAN);
        ok(group.broadcast_to(own, &mut data, root));
        assert_eq!(data, all[root as usize], "broadcast of {count} from {root}, apart");
    }
}

/// The vectors of all ranks.
#[must_use]
pub fn vectors(world_size: u32, count: usize) -> Vec<Vec<f32>> {
    (0..world_size).map(|rank| oracle::vector(rank, count)).collect()
}

/// The `k` largest entries of `vector`.
///
/// # Panics
/// If a value is not finite.
#[must_use]
pub fn sparse(vector: &[f32], k: usize) -> SparseVec {
    let mut selected = SparseVec::new(vector.len());
    let outcome = top_k(vector, k, &mut selected, &mut TopKScratch::new());
    assert!(outcome.is_ok(), "{outcome:?}");
    selected
}

fn ok<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn of<T: Element>(operation: Operation, count: usize) -> Description {
    Description::new(operation, T::TYPE.number(), count)
}

async fn dense_collectives(call: &Call<'_, '_>, count: usize) {
    let (rank, world_size) = (call.rank(), call.world_size());
    let own = || Chunk::from(oracle::vector(rank, count));
    let sum = oracle::sum(&vectors(world_size, count));
    ok(dense::barrier(&call.describe(of::<u8>(Operation::BARRIER, 0))).await);

    let all_reduce = |op| ok(AllReduce::new::<f32>(op));
    let summing = call.describe(all_reduce(ReduceOp::Sum).describe(count));
    let found = ok(summing.run_in_place(&all_reduce(ReduceOp::Sum), own()).await);
    assert_eq!(found.into_vec(), sum, "sum");

    let averaging = call.describe(all_reduce(ReduceOp::Average).describe(count));
    let average = ok(averaging.run_in_place(&all_reduce(ReduceOp::Average), own()).await);
    assert!(average.iter().zip(&sum).all(|(average, sum)| *average == sum / world_size as f32), "average");

    for root in [0, world_size / 2, world_size - 1] {
        let mut data = vec![rank as u64; count];
        if rank == root {
            data = (0..count as u64).collect();
        }
        let call = call.describe(of::<u64>(Operation::BROADCAST, count));
        let received = ok(call.run_in_place(&Broadcast::new::<u64>(root), Chunk::from(data)).await);
        assert!(received.iter().copied().eq(0..count as u64), "broadcast from {root}");
    }
}

async fn gathering(call: &Call<'_, '_>, count: usize) {
    let (rank, world_size) = (call.rank(), call.world_size());
    let call = call.describe(of::<f32>(Operation::ALL_GATHER, count));
    let mut all = vec![f32::NAN; count * world_size as usize];
    all[rank as usize * count..][..count].copy_from_slice(&oracle::vector(rank, count));
    let gathered =
        ok(call.run_in_place(&AllGather::new::<f32>(Lengths::Equal), Chunk::from(all)).await).into_vec();
    assert_eq!(gathered, vectors(world_size, count).concat(), "all-gather");

    let length = |rank: u32| count * (rank as usize % 3);
    let varying = ok(dense::all_gather_varying(&call, oracle::vector(rank, length(rank))).await);
    let expected: Vec<_> = (0..world_size).map(|rank| oracle::vector(rank, length(rank))).collect();
    assert_eq!(varying, expected, "all-gather of varying lengths");
}

async fn sparse_collectives(call: &Call<'_, '_>, count: usize, k: usize) {
    let (rank, world_size) = (call.rank(), call.world_size());
    let all = vectors(world_size, count);
    let locals: Vec<_> = all.iter().map(|vector| sparse(vector, k)).collect();
    let own = locals[rank as usize].view();

    let mut coder = Coder::pairs();
    let gathered = ok(sparse_all_gather(call, own, k, &mut coder).await);
    assert_eq!(gathered, locals, "sparse all-gather, n = {count}, k = {k}");
    sums_of_entries(call, count, k).await;

    let total = oracle::sum(&locals.iter().map(SparseVec::to_dense).collect::<Vec<_>>());
    let expected = oracle::gtopk(all.iter().map(|vector| oracle::top_k(vector, k)).collect(), k);
    for rule in [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps] {
        let call = call.describe(describe_gtopk(count, k, rule, Wire::Pairs));
        let outcome = ok(gtopk_all_reduce(&call, own, k, rule, &mut Coder::pairs(), 0).await);
        assert!(
            outcome.result.iter().eq(expected.iter().map(|(&i, &v)| (i, v))),
            "gtop-k, n = {count}, k = {k}"
        );
        if rule != PutBack::Published {
            let sum = ok(AllReduce::new::<f32>(ReduceOp::Sum));
            let back = ok(call.run_in_place(&sum, Chunk::from(outcome.put_back.to_dense())).await);
            let mass = oracle::sum(&[back.into_vec(), outcome.result.to_dense()]);
            assert_eq!(mass, total, "mass under {rule:?}, n = {count}, k = {k}");
        }
    }
}

/// Sums whose bits depend on their order have those of the dense sum.
async fn sums_of_entries(call: &Call<'_, '_>, count: usize, k: usize) {
    let locals: Vec<_> = (0..call.world_size()).map(|rank| sparse(&rough_vector(rank, count), k)).collect();
    let own = locals[call.rank() as usize].view();
    let total = in_order(locals.iter().map(SparseVec::to_dense).collect());
    for algorithm in [Algorithm::Bruck, Algorithm::Direct, Algorithm::Doubling] {
        let call = call.describe(describe_topk(count, k, Wire::Pairs));
        let top = ok(topk_all_reduce_by(&call, algorithm, own, k, &mut Coder::pairs(), 0).await);
        assert_eq!(bits(&top.sum.to_dense()), bits(&total), "top-k by {algorithm}, n = {count}, k = {k}");
        assert!(top.kept.is_empty(), "pairs are exact");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Quantised sums with exact values, and votes.
async fn quantised(call: &Call<'_, '_>, count: usize) {
    let all: Vec<_> = (0..call.world_size()).map(|rank| rough_vector(rank, count)).collect();
    let (mut vector, mut kept) = (all[call.rank() as usize].clone(), Vec::new());
    let describing = call.describe(describe_quantised(count, Values::F32));
    ok(quantised_all_reduce(&describing, &mut vector, Values::F32, &mut kept, 0).await);
    assert_eq!(bits(&vector), bits(&in_order(all.clone())), "quantised, n = {count}");

    let mut signs = all[call.rank() as usize].clone();
    ok(vote_all_reduce(&call.describe(describe_vote(count)), &mut signs, 0).await);
    let votes = |index: usize| -> i32 { all.iter().map(|of| if of[index] < 0.0 { -1 } else { 1 }).sum() };
    assert!(signs.iter().enumerate().all(|(index, sign)| *sign == votes(index).signum() as f32), "vote");
}

/// Sums of parts of dense vectors.
async fn parts_of_vectors(call: &Call<'_, '_>, count: usize) {
    // Integers: where sums may have any order, so may these.
    let own = oracle::vector(call.rank(), count);
    let total = in_order((0..call.world_size()).map(|rank| oracle::vector(rank, count)).collect());
    let places = RandomPlaces { draw: Draw::Scattered, k: count / 3, seed: 7, step: count as u64 };
    let sum =
        ok(random_k_all_reduce(&call.describe(describe_random_k(count, &places)), &own, &places, 0).await);
    assert_eq!(sum.len(), count / 3, "random k, n = {count}");
    assert!(sum.iter().all(|(index, sum)| sum.to_bits() == total[index as usize].to_bits()), "random k");

    let own = rough_vector(call.rank(), count);
    let total = in_order((0..call.world_size()).map(|rank| rough_vector(rank, count)).collect());
    // Every third block is zero.
    let (block, zero) = (16, |index: usize| (index / 16).is_multiple_of(3));
    let sparse = |vector: &[f32]| {
        let values = vector.iter().enumerate();
        values.map(|(index, value)| if zero(index) { 0.0 } else { *value }).collect::<Vec<_>>()
    };
    let mut vector = sparse(&own);
    ok(block_all_reduce(&call.describe(describe_blocks(count, block)), &mut vector, block, 0).await);
    assert_eq!(bits(&vector), bits(&sparse(&total)), "blocks, n = {count}");
}

/// Sums by hosts, wherever the ranks are: all ranks get the same, and nothing is lost.
async fn by_hosts(call: &Call<'_, '_>, count: usize) {
    let (rank, world_size, k) = (call.rank(), call.world_size(), count / 10);
    let total = oracle::sum(&vectors(world_size, count));
    for by in [LeaderSum::Topk, LeaderSum::Gtopk(PutBack::Conserving)] {
        let own = oracle::vector(rank, count);
        let (call, coder) =
            (call.describe(describe_hierarchical(count, k, by, Wire::Pairs)), &mut Coder::pairs());
        let select = |sums: &[f32]| Ok(sparse(sums, k));
        let sum = ok(hierarchical_all_reduce(&call, own, (k, by), select, coder, 0).await);
        let result = sum.result.to_dense();
        let all = ok(dense::all_gather_varying(&call, result.clone()).await);
        assert!(all.iter().all(|other| *other == result), "{by:?}, n = {count}: ranks differ");
        let left = Chunk::from(sum.left.unwrap_or_else(|| vec![0.0; count]));
        let left = ok(call.run_in_place(&ok(AllReduce::new::<f32>(ReduceOp::Sum)), left).await);
        assert_eq!(oracle::sum(&[left.into_vec(), result]), total, "mass by {by:?}, n = {count}");
    }
}

async fn low_rank(call: &Call<'_, '_>) {
    let (rank, world_size) = (call.rank(), call.world_size());
    let states = MATRICES.iter().map(|&(rows, cols)| ok(LowRank::new(rows, cols, RANK, 7))).collect();
    let mut batch = Batch::new(states);
    let matrix = |rank: u32, position: usize| {
        let (rows, cols) = MATRICES[position];
        oracle::vector(rank + 10 * position as u32, rows * cols)
    };
    let own: Vec<_> = (0..MATRICES.len()).map(|position| matrix(rank, position)).collect();
    let slices: Vec<&[f32]> = own.iter().map(Vec::as_slice).collect();
    let factors = ok(low_rank_all_reduce(call, &mut batch, &slices, &[0, 1, 2]).await);

    let bits: Vec<u32> = factors.p.iter().chain(&factors.q).map(|value| value.to_bits()).collect();
    let all_bits = ok(dense::all_gather_varying(call, bits.clone()).await);
    assert!(all_bits.iter().all(|other| *other == bits), "the factors differ between ranks");

    for (position, (rows, cols)) in MATRICES.into_iter().enumerate() {
        let mut found = vec![0.0; rows * cols];
        ok(batch.reconstruct(position, &factors, &mut found));
        let all: Vec<_> = (0..world_size).map(|rank| matrix(rank, position)).collect();
        let mean: Vec<f64> =
            oracle::sum(&all).iter().map(|sum| f64::from(*sum) / f64::from(world_size)).collect();
        let expected = oracle::power_iteration(&mean, rows, cols, batch.states()[position].q());
        let scale = mean.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-3 * scale,
                "{rows} x {cols}: {found} {expected}"
            );
        }
    }
}
