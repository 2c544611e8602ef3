//! One long vector: indices above 2^24, which an `f32` can't represent exactly, are kept.

use brevity::collectives::{Algorithm, dense};
use brevity::{PutBack, ReduceOp};
use brevity_tests::dense::all_reduce_by;
use brevity_tests::suite::sparse;
use brevity_tests::{on_local, oracle};

const COUNT: usize = (1 << 24) + 5;
const K: usize = 1000;

/// A vector whose largest entries lie at its end.
fn vector(rank: u32) -> Vec<f32> {
    let mut vector = oracle::vector(rank, COUNT);
    for (offset, value) in vector.iter_mut().rev().take(4).enumerate() {
        *value = (1000 * (rank as usize + 1) + offset) as f32;
    }
    vector
}

#[test]
fn indices_above_two_to_the_24_are_kept() {
    let results = on_local(3, |group| {
        let own = vector(group.rank());
        let local = sparse(&own, K);
        let gathered = group.sparse_all_gather(local.view(), K).unwrap();
        let total = group.topk_all_reduce(local.view(), K).unwrap();
        let gtopk = group.gtopk_all_reduce(local.view(), K, PutBack::Conserving).unwrap().result;
        let mut sum = own;
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        let mut from_last = if group.rank() == 2 { sum.clone() } else { vec![0.0; COUNT] };
        group.broadcast(&mut from_last, 2).unwrap();
        assert!(from_last == sum, "the broadcast differs");
        (gathered, total, gtopk, sum)
    });
    let vectors: Vec<_> = (0..3).map(vector).collect();
    let tops: Vec<_> = vectors.iter().map(|vector| oracle::top_k(vector, K)).collect();
    let union = tops.iter().fold(Default::default(), |sum, top| oracle::add(&sum, top));
    let expected_sum = oracle::sum(&vectors);
    let expected = oracle::gtopk(tops.clone(), K);
    assert!(expected.contains_key(&(COUNT as u32 - 1)));
    for (gathered, total, gtopk, sum) in results {
        assert!(gathered.iter().zip(&tops).all(|(a, b)| a.iter().eq(b.iter().map(|(&i, &v)| (i, v)))));
        assert!(total.iter().eq(union.iter().map(|(&i, &v)| (i, v))));
        assert!(gtopk.iter().eq(expected.iter().map(|(&i, &v)| (i, v))));
        assert!(sum == expected_sum, "the sums differ");
    }
}

#[test]
fn all_reduces_and_gathers_take_long_vectors() {
    let expected = oracle::sum(&(0..3).map(vector).collect::<Vec<_>>());
    let checked = on_local(3, move |group| {
        let description = dense::describe_all_reduce::<f32>(COUNT, ReduceOp::Sum);
        let own = || vector(group.rank());
        for algorithm in [Algorithm::Direct, Algorithm::Halving, Algorithm::Doubling] {
            let reduced = group
                .run(description, async |call| all_reduce_by(call, algorithm, own(), ReduceOp::Sum).await);
            assert!(reduced.unwrap() == expected, "{algorithm} differs");
        }

        let mut all = vec![0.0; 3 * COUNT];
        group.all_gather(&vector(group.rank()), &mut all).unwrap();
        let varying = group.all_gather_varying(vector(group.rank())).unwrap();
        for (rank, gathered) in varying.iter().enumerate() {
            assert!(
                *gathered == vector(rank as u32) && *gathered == all[rank * COUNT..][..COUNT],
                "gathers differ"
            );
        }
        true
    });
    assert_eq!(checked, [true; 3]);
}
