//! Sums of what compression leaves of vectors.

use brevity::collectives::sparse::{Coder, Draw, LeaderSum, OkTopk, RandomPlaces, Wire, owned};
use brevity::collectives::{Algorithm, Result};
use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::{Group, PutBack};

use super::{COUNT, Inputs, K};
use crate::oracle;

/// Zeros in every second block of so many values.
const BLOCK: usize = 4;

/// The values of the vectors are whole, and exact on every wire.
const CODED: Wire = Wire::Coded(Values::F16);

impl Inputs {
    /// The sum of the largest entries of all ranks.
    fn sparse_sum(&self) -> Vec<f32> {
        oracle::sum(&self.sparse().iter().map(SparseVec::to_dense).collect::<Vec<_>>())
    }
}

/// By the cheapest algorithm, or one that is named.
pub(super) async fn topk(
    group: &Group,
    inputs: &Inputs,
    by: Option<Algorithm>,
    is_coded: bool,
) -> Result<()> {
    let group = group.with_algorithm(by.filter(|_| group.world_size() > 1));
    let coder = if is_coded { Coder::new(CODED) } else { Coder::pairs() };
    let found = group.start_topk_all_reduce(inputs.own_sparse(), K, coder).await.1?;
    assert_eq!(found.sum.to_dense(), inputs.sparse_sum(), "{by:?}");
    assert!(found.kept.is_empty());
    Ok(())
}

pub(super) async fn gtopk(group: &Group, inputs: &Inputs, rule: PutBack, is_coded: bool) -> Result<()> {
    let coder = if is_coded { Coder::new(CODED) } else { Coder::pairs() };
    let found = group.start_gtopk_all_reduce(inputs.own_sparse(), K, rule, coder).await.1?;
    let tops = inputs.all().iter().map(|vector| oracle::top_k(vector, K)).collect();
    assert!(found.result.iter().eq(oracle::gtopk(tops, K).iter().map(|(&i, &v)| (i, v))), "{rule:?}");
    Ok(())
}

pub(super) async fn reduce_scatter(group: &Group, inputs: &Inputs, is_coded: bool) -> Result<()> {
    let coder = if is_coded { Coder::new(CODED) } else { Coder::pairs() };
    let found = group.start_sparse_reduce_scatter(inputs.own_sparse(), K, coder).await.1?;
    let (own, mut expected) = (owned(COUNT, inputs.size, inputs.rank), inputs.sparse_sum());
    expected.iter_mut().enumerate().filter(|(at, _)| !own.contains(at)).for_each(|(_, sum)| *sum = 0.0);
    assert_eq!(found.sum.to_dense(), expected);
    Ok(())
}

/// Of an index in the result all is delivered, of others what each rank has given goes back to it.
pub(super) async fn ok_topk(group: &Group, inputs: &Inputs) -> Result<()> {
    let (mut state, mut local) = (OkTopk::new(COUNT, K, inputs.size), SparseVec::new(COUNT));
    let selected = state.select(&inputs.own(), &mut local);
    assert!(selected.is_ok(), "{selected:?}");
    let own = local.to_dense();
    let found = group.start_ok_topk_all_reduce(local, state, Coder::pairs()).await.1?;
    // In the first step each rank selects exactly so many.
    let (sum, result) = (inputs.sparse_sum(), found.result.to_dense());
    assert!((K / 2..=2 * K).contains(&found.result.len()), "{result:?}");
    for (at, back) in found.put_back.to_dense().into_iter().enumerate() {
        let is_in = found.result.indices().contains(&(at as u32));
        let expected = if is_in { (sum[at], 0.0) } else { (0.0, own[at]) };
        assert_eq!((result[at], back), expected, "at {at}");
    }
    Ok(())
}

pub(super) async fn random_k(group: &Group, inputs: &Inputs) -> Result<()> {
    let places = RandomPlaces { draw: Draw::Scattered, k: K, seed: 7, step: inputs.turn.into() };
    let found = group.start_random_k_all_reduce(inputs.own(), places).await.1?;
    let sum = inputs.sum();
    assert!(found.len() == K && found.iter().all(|(index, value)| value == sum[index as usize]), "{found:?}");
    Ok(())
}

pub(super) async fn blocks(group: &Group, inputs: &Inputs) -> Result<()> {
    let sparse = |mut vector: Vec<f32>| {
        vector.chunks_mut(2 * BLOCK).for_each(|pair| pair[..BLOCK].fill(0.0));
        vector
    };
    let (given, result) = group.start_block_all_reduce(sparse(inputs.own()), BLOCK).await;
    result.map(|()| assert_eq!(given.vector, sparse(inputs.sum())))
}

/// Each rank is a host of its own.
pub(super) async fn hierarchical(group: &Group, inputs: &Inputs) -> Result<()> {
    let call = group.start_hierarchical_all_reduce(inputs.own(), K, LeaderSum::Topk, Coder::pairs());
    let (given, found) = call.await;
    assert_eq!(found?.to_dense(), inputs.sparse_sum());
    let sent = inputs.own_sparse().to_dense();
    assert!(given.vector.iter().zip(sent).zip(inputs.own()).all(|((left, sent), own)| left + sent == own));
    Ok(())
}

pub(super) async fn quantised(group: &Group, inputs: &Inputs) -> Result<()> {
    let (given, kept) = group.start_quantised_all_reduce(inputs.own(), Values::F16).await;
    assert!(kept?.iter().all(|kept| *kept == 0.0));
    assert_eq!(given.vector, inputs.sum());
    Ok(())
}

pub(super) async fn vote(group: &Group, inputs: &Inputs) -> Result<()> {
    let (given, result) = group.start_vote_all_reduce(inputs.own()).await;
    let sign = |value: f32| if value == 0.0 { 0 } else { value.signum() as i32 };
    let votes = |at: usize| inputs.all().iter().map(|vector| sign(vector[at])).sum::<i32>().signum() as f32;
    result.map(|()| assert!(given.vector.iter().enumerate().all(|(at, vote)| *vote == votes(at))))
}
