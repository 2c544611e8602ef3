//! Sums of entries on coded wires, reduce-scatter, Ok-Topk, and vectors in few bits: equal on all ranks, and
//! nothing is lost.

use brevity::collectives::Call;
use brevity::collectives::dense::{self, AllReduce};
use brevity::collectives::quantised::{describe as describe_quantised, quantised_all_reduce};
use brevity::collectives::sparse::{
    Coder, OkTopk, Wire, describe_all_gather, describe_gtopk, describe_ok_topk, describe_reduce_scatter,
    describe_topk, gtopk_all_reduce, ok_topk_all_reduce, owned, sparse_all_gather, sparse_reduce_scatter,
    topk_all_reduce,
};
use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::{PutBack, ReduceOp};

use super::{bits, ok, sparse, vectors};
use crate::dense::{in_order, vector as rough_vector};
use crate::oracle;

/// Every wire that there is.
fn wires() -> impl Iterator<Item = Wire> {
    [Wire::Pairs].into_iter().chain(Values::ALL.map(Wire::Coded))
}

/// How far a sum of integers and what is kept of it may be from what was given: what is rounded to some bits
/// stays an integer.
fn slack(wire: Wire) -> f32 {
    let is_whole = wire.is_exact() || [Values::F16, Values::Bf16].map(Wire::Coded).contains(&wire);
    if is_whole { 0.0 } else { 0.5 }
}

/// Runs the collectives on `k` entries of vectors of `count` elements.
pub(super) async fn run(call: &Call<'_, '_>, count: usize, k: usize) {
    for wire in wires() {
        gathered(call, count, k, wire).await;
        summed(call, count, k, wire).await;
        scattered(call, count, k, wire).await;
        by_ok_topk(call, count, k, wire).await;
    }
    for values in Values::ALL {
        quantised(call, count, values).await;
    }
}

/// What each rank has after a call, and what it keeps: all have the same, and together it is what was given.
async fn check(
    call: &Call<'_, '_>,
    (result, kept): (&[f32], Vec<f32>),
    given: &[Vec<f32>],
    most: f32,
    what: &str,
) {
    let all = ok(dense::all_gather_varying(call, result.to_vec()).await);
    assert!(all.iter().all(|other| bits(other) == bits(result)), "{what}: ranks differ");
    mass(call, (result, kept), given, most, what).await;
}

/// Whether a sum and what all ranks keep are what was given.
async fn mass(
    call: &Call<'_, '_>,
    (result, kept): (&[f32], Vec<f32>),
    given: &[Vec<f32>],
    most: f32,
    what: &str,
) {
    let sum = ok(AllReduce::new::<f32>(ReduceOp::Sum));
    let summing = call.describe(sum.describe(kept.len()));
    let kept = ok(summing.run_in_place(&sum, kept.into()).await).into_vec();
    for ((kept, result), given) in kept.iter().zip(result).zip(oracle::sum(given)) {
        assert!((kept + result - given).abs() <= most, "{what}: {kept} and {result} of {given}");
    }
}

fn of_all(call: &Call<'_, '_>, count: usize, k: usize) -> Vec<SparseVec> {
    vectors(call.world_size(), count).iter().map(|vector| sparse(vector, k)).collect()
}

fn dense_of(all: &[SparseVec]) -> Vec<Vec<f32>> {
    all.iter().map(SparseVec::to_dense).collect()
}

async fn gathered(call: &Call<'_, '_>, count: usize, k: usize, wire: Wire) {
    let (locals, mut coder) = (of_all(call, count, k), Coder::new(wire));
    let own = locals[call.rank() as usize].view();
    let describing = call.describe(describe_all_gather(count, k, wire));
    let found = ok(sparse_all_gather(&describing, own, k, &mut coder).await);
    for (found, local) in found.iter().zip(&locals) {
        let what = format!("sparse all-gather, {wire}, n = {count}, k = {k}");
        assert!(found.indices() == local.indices() && (!wire.is_exact() || found == local), "{what}");
    }
}

async fn summed(call: &Call<'_, '_>, count: usize, k: usize, wire: Wire) {
    let locals = of_all(call, count, k);
    let (own, given) = (locals[call.rank() as usize].view(), dense_of(&locals));
    let describing = call.describe(describe_topk(count, k, wire));
    let top = ok(topk_all_reduce(&describing, own, k, &mut Coder::new(wire), 0).await);
    let what = format!("top-k, {wire}, n = {count}, k = {k}");
    check(call, (&top.sum.to_dense(), top.kept.to_dense()), &given, slack(wire), &what).await;

    let rule = PutBack::Conserving;
    let describing = call.describe(describe_gtopk(count, k, rule, wire));
    let top = ok(gtopk_all_reduce(&describing, own, k, rule, &mut Coder::new(wire), 0).await);
    let what = format!("gtop-k, {wire}, n = {count}, k = {k}");
    check(call, (&top.result.to_dense(), top.put_back.to_dense()), &given, slack(wire), &what).await;
}

async fn scattered(call: &Call<'_, '_>, count: usize, k: usize, wire: Wire) {
    let locals = of_all(call, count, k);
    let (own, given) = (locals[call.rank() as usize].view(), dense_of(&locals));
    let describing = call.describe(describe_reduce_scatter(count, k, wire));
    let found = ok(sparse_reduce_scatter(&describing, own, k, &mut Coder::new(wire), 0).await);
    let what = format!("sparse reduce-scatter, {wire}, n = {count}, k = {k}");
    let place = owned(count, call.world_size(), call.rank());
    assert!(found.sum.indices().iter().all(|index| place.contains(&(*index as usize))), "{what}");
    if wire.is_exact() {
        assert_eq!(found.sum.to_dense()[place.clone()], oracle::sum(&given)[place], "{what}");
    }
    // The ranges of all ranks are the whole sum.
    let sum = ok(AllReduce::new::<f32>(ReduceOp::Sum));
    let summing = call.describe(sum.describe(count));
    let whole = ok(summing.run_in_place(&sum, found.sum.to_dense().into()).await).into_vec();
    mass(call, (&whole, found.kept.to_dense()), &given, slack(wire), &what).await;
}

/// Two steps, of which the second uses the thresholds of the first.
async fn by_ok_topk(call: &Call<'_, '_>, count: usize, k: usize, wire: Wire) {
    let mut state = OkTopk::new(count, k, call.world_size());
    for step in 0..2 {
        let given: Vec<_> =
            (0..call.world_size()).map(|rank| sparse(&oracle::vector(rank + 50 * step, count), k)).collect();
        let mut own = SparseVec::new(count);
        ok(state.select(&oracle::vector(call.rank() + 50 * step, count), &mut own));
        let describing = call.describe(describe_ok_topk(&state, wire));
        let coder = &mut Coder::new(wire);
        let found = ok(ok_topk_all_reduce(&describing, own.view(), &mut state, coder, 0).await);
        let what = format!("Ok-Topk, {wire}, n = {count}, k = {k}, step {step}");
        assert!(found.result.len() <= state.limit(), "{what}");
        let selected = ok(dense::all_gather_varying(call, own.to_dense()).await);
        if step == 0 {
            assert_eq!(selected, dense_of(&given), "{what}");
        }
        check(call, (&found.result.to_dense(), found.put_back.to_dense()), &selected, slack(wire), &what)
            .await;
    }
}

async fn quantised(call: &Call<'_, '_>, count: usize, values: Values) {
    let describing = call.describe(describe_quantised(count, values));
    let what = format!("quantised, {values}, n = {count}");
    if values.is_exact() {
        let given: Vec<_> = (0..call.world_size()).map(|rank| rough_vector(rank, count)).collect();
        let (mut vector, mut kept) = (given[call.rank() as usize].clone(), Vec::new());
        ok(quantised_all_reduce(&describing, &mut vector, values, &mut kept, 0).await);
        assert_eq!(bits(&vector), bits(&in_order(given)), "{what}");
    }
    let given = vectors(call.world_size(), count);
    let (mut vector, mut kept) = (given[call.rank() as usize].clone(), Vec::new());
    ok(quantised_all_reduce(&describing, &mut vector, values, &mut kept, 0).await);
    kept.resize(count, 0.0);
    let most = slack(Wire::Coded(values));
    check(call, (&vector, kept), &given, most, &what).await;
}
