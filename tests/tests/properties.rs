//! Properties over world size, length and kept entries, on ranks that are threads.

use brevity::{PutBack, ReduceOp};
use brevity_tests::suite::{sparse, vectors};
use brevity_tests::{on_local, oracle};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_all_reduce_is_the_sum_whatever_the_sizes(world_size in 1u32..12, count in 0usize..3000) {
        let results = on_local(world_size, move |group| {
            let mut data = oracle::vector(group.rank(), count);
            group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            data
        });
        let expected = oracle::sum(&vectors(world_size, count));
        prop_assert!(results.iter().all(|result| *result == expected));
    }

    #[test]
    fn gtopk_is_the_tree_and_loses_nothing(
        world_size in 1u32..12,
        count in 0usize..2000,
        share in 0.0f64..1.0,
    ) {
        let k = (count as f64 * share) as usize;
        let results = on_local(world_size, move |group| {
            let local = sparse(&oracle::vector(group.rank(), count), k);
            group.gtopk_all_reduce(local.view(), k, PutBack::Conserving).unwrap()
        });
        let all = vectors(world_size, count);
        let expected = oracle::gtopk(all.iter().map(|vector| oracle::top_k(vector, k)).collect(), k);
        prop_assert!(
            results.iter().all(|rank| rank.result.iter().eq(expected.iter().map(|(&i, &v)| (i, v))))
        );
        let mut parts: Vec<_> = results.iter().map(|rank| rank.put_back.to_dense()).collect();
        parts.push(results[0].result.to_dense());
        let sent: Vec<_> = all.iter().map(|vector| sparse(vector, k).to_dense()).collect();
        prop_assert_eq!(oracle::sum(&parts), oracle::sum(&sent));
    }

    #[test]
    fn ranks_may_keep_different_numbers_of_entries(
        world_size in 1u32..9,
        count in 1usize..500,
        limit in 1usize..100,
    ) {
        let kept = move |rank: u32| (rank as usize * 7) % (limit + 1);
        let results = on_local(world_size, move |group| {
            let local = sparse(&oracle::vector(group.rank(), count), kept(group.rank()));
            (
                group.sparse_all_gather(local.view(), limit).unwrap(),
                group.topk_all_reduce(local.view(), limit).unwrap(),
            )
        });
        let locals: Vec<_> =
            (0..world_size).map(|rank| sparse(&oracle::vector(rank, count), kept(rank))).collect();
        let total = oracle::sum(&locals.iter().map(|local| local.to_dense()).collect::<Vec<_>>());
        for (gathered, sum) in results {
            prop_assert_eq!(&gathered, &locals);
            prop_assert_eq!(sum.to_dense(), total.clone());
        }
    }
}
