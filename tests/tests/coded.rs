//! Sparse collectives whose entries are coded: packed indices and rounded values.

use brevity::collectives::Error;
use brevity::collectives::sparse::{
    Coder, Wire, describe_all_gather, describe_topk, sparse_all_gather, topk_all_reduce,
};
use brevity::compress::codec::{Choice, Encoder, decode};
use brevity::compress::feedback::Residual;
use brevity::compress::quantise::{Magnitude, Values};
use brevity::compress::select::TopKScratch;
use brevity::compress::{SparseVec, SparseView};
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::{on_local, oracle, suite};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

/// Integers up to this, which 8 significant bits do not hold.
const SCALE: f32 = 251.0;

fn on_sim<R, F>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn vector(rank: u32, count: usize) -> Vec<f32> {
    oracle::vector(rank, count).into_iter().map(|value| SCALE * value).collect()
}

/// The entries of a rank: as many as it has less than the others, so that messages have unequal lengths.
fn entries(rank: u32, count: usize, k: usize) -> SparseVec {
    suite::sparse(&vector(rank, count), k.saturating_sub(rank as usize % 4))
}

/// What every rank must read of a rank's entries.
fn said(entries: SparseView<'_>, values: Values) -> SparseVec {
    let (mut message, mut said) = (Vec::new(), SparseVec::new(0));
    Encoder::new().encode(entries, Choice::Fast, &mut *values.quantiser(), &mut message).unwrap();
    decode(&message, entries.dim(), entries.len(), &mut said).unwrap();
    said
}

#[test]
fn coded_gathers_are_what_ranks_decode() {
    for (world_size, values) in WORLD_SIZES.into_iter().flat_map(|size| Values::ALL.map(|v| (size, v))) {
        for (count, k) in [(0, 0), (1, 1), (999, 0), (999, 40), (999, 999)] {
            let wire = Wire::Coded(values);
            let expected: Vec<_> =
                (0..world_size).map(|rank| said(entries(rank, count, k).view(), values)).collect();
            let gathered = on_sim(world_size, |group| async move {
                let own = entries(group.rank(), count, k);
                let call = group.start(describe_all_gather(count, k, wire), own, move |call, own| {
                    Box::pin(
                        async move { sparse_all_gather(call, own.view(), k, &mut Coder::new(wire)).await },
                    )
                });
                call.await.1.unwrap()
            });
            for vectors in &gathered {
                assert_eq!(*vectors, expected, "{values}, P = {world_size}, n = {count}, k = {k}");
            }
        }
    }
}

const COUNT: usize = 600;
const K: usize = 30;
const STEPS: u32 = 6;

/// A rank's residual after some steps, and what they delivered, undivided.
fn account(world_size: u32, values: Values) -> Vec<(Residual, Vec<f32>)> {
    let wire = Wire::Coded(values);
    on_sim(world_size, |group| async move {
        let rank = group.rank();
        let kept = (Residual::new(COUNT), vec![0.0; COUNT]);
        let (kept, ()) = group
            .start(describe_topk(COUNT, K, wire), kept, move |call, (residual, delivered)| {
                Box::pin(async move {
                    let (mut selected, mut scratch) = (SparseVec::new(COUNT), TopKScratch::new());
                    let mut coder = Coder::new(wire);
                    for step in 0..STEPS {
                        let gradient = vector(rank + 1000 * step, COUNT);
                        residual.feed_top_k(&gradient[..], K, &mut selected, &mut scratch).unwrap();
                        let top = topk_all_reduce(call, selected.view(), K, &mut coder, 0).await.unwrap();
                        residual.put_back(top.kept.view()).unwrap();
                        top.sum.add_to(delivered);
                    }
                })
            })
            .await;
        kept
    })
}

/// Sums of integers stay integers where values are rounded to some bits; elsewhere mass is conserved but for
/// the rounding of f32.
#[test]
fn topk_with_rounding_keeps_its_mass() {
    for (world_size, values) in WORLD_SIZES.into_iter().flat_map(|size| Values::ALL.map(|v| (size, v))) {
        let accounts = account(world_size, values);
        let put_in: Vec<_> = (0..world_size)
            .flat_map(|rank| (0..STEPS).map(move |step| vector(rank + 1000 * step, COUNT)))
            .collect();
        let mut parts: Vec<_> = accounts.iter().map(|(residual, _)| residual.values().to_vec()).collect();
        parts.push(accounts[0].1.clone());
        let (found, expected) = (oracle::sum(&parts), oracle::sum(&put_in));
        let is_whole = [Values::F32, Values::F16, Values::Bf16].contains(&values);
        let most = if is_whole { 0.0 } else { 0.5 };
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= most, "{values}, P = {world_size}: {found} for {expected}");
        }
        let bits = |delivered: &[f32]| delivered.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for (_, delivered) in &accounts {
            assert_eq!(bits(delivered), bits(&accounts[0].1), "{values}, P = {world_size}: ranks differ");
        }
    }
}

/// What is kept of a call is what rounding took away, and no more.
#[test]
fn what_is_kept_is_what_was_rounded_away() {
    for values in Values::ALL {
        let kept = on_local(3, move |group| {
            let own = entries(group.rank(), COUNT, K);
            let top = group.topk_all_reduce_by(own.view(), K, &mut Coder::new(Wire::Coded(values))).unwrap();
            (own, top.kept)
        });
        for (own, kept) in kept {
            let said = said(own.view(), values);
            let (mut sum, dense) = (kept.to_dense(), own.to_dense());
            said.add_to(&mut sum);
            for (sum, own) in sum.iter().zip(&dense) {
                assert!((sum - own).abs() <= 0.01, "{values}: {sum} of {own}");
            }
            assert_eq!(kept.is_empty(), values.is_exact() || own == said, "{values}");
        }
    }
}

/// Pairs among packed values, another format, another magnitude in one format: by name, where there is one.
#[test]
fn another_format_is_a_mismatch() {
    let coded = Wire::Coded;
    let pairs = [
        (Wire::Pairs, coded(Values::F32), "(packed, f32 values)"),
        (coded(Values::F16), coded(Values::Bf16), "(packed, bf16 values)"),
        (coded(Values::OneBit(Magnitude::Mean)), coded(Values::OneBit(Magnitude::Min)), "settings"),
    ];
    for ((these, other, named), sums) in pairs.into_iter().flat_map(|pair| [(pair, false), (pair, true)]) {
        let errors = on_local(3, move |group| {
            let mut coder = Coder::new(if group.rank() == 1 { other } else { these });
            let own = entries(group.rank(), COUNT, K);
            let result = if sums {
                group.topk_all_reduce_by(own.view(), K, &mut coder).map(drop)
            } else {
                group.sparse_all_gather_by(own.view(), K, &mut coder).map(drop)
            };
            // A rank may have had what it needs before the others found out.
            result.and_then(|()| group.barrier()).unwrap_err()
        });
        let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_told), "{errors:?}");
        assert!(errors.iter().any(|error| error.to_string().contains(named)), "{named}: {errors:?}");
    }
}

/// Coded values are finite; pairs of an all-gather may be anything.
#[test]
fn a_value_that_is_not_finite_is_the_same_error_everywhere() {
    for sums in [false, true] {
        let errors = on_local(4, move |group| {
            let value = if group.rank() == 2 { f32::NAN } else { 1.0 };
            let own = SparseVec::from_parts(9, vec![3], vec![value]).unwrap();
            let mut coder = Coder::new(Wire::Coded(Values::Bf16));
            if sums {
                group.topk_all_reduce_by(own.view(), 1, &mut coder).map(drop).unwrap_err()
            } else {
                group.sparse_all_gather_by(own.view(), 1, &mut coder).map(drop).unwrap_err()
            }
        });
        for error in &errors {
            assert!(matches!(error, Error::NonFinite { rank, tensor: 0 } if rank.0 == 2), "{error}");
        }
    }
}
