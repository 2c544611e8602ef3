//! Averages are the same number under every policy that sends all entries.

use brevity::{GradientExchange, Policy, PutBack, Settings};
use brevity_tests::{dense, on_host, on_local};

const COUNT: usize = 2000;

/// Sums of small integers are exact in any order, so the division alone rounds.
fn gradient(rank: u32) -> Vec<f32> {
    (0..COUNT).map(|index| (index as f32 - 900.0) * if rank == 0 { 1.0 } else { 2.0 }).collect()
}

#[test]
fn whatever_sends_all_entries_has_the_bits_of_the_dense_average() {
    let policies = [
        Policy::dense(),
        Policy::topk(1.0),
        Policy::gtopk(1.0),
        Policy::gtopk(1.0).put_back(PutBack::Published),
        Policy::gtopk(1.0).put_back(PutBack::MergerKeeps),
    ];
    for world_size in [1, 2, 3, 5, 7] {
        let averages = move |group: &brevity::Group| {
            policies.map(|policy| {
                let exchange = GradientExchange::builder(group).tensor("weight", [COUNT], policy);
                let mut gradients = [gradient(group.rank())];
                exchange.build().unwrap().average(&mut gradients).unwrap();
                gradients[0].iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
            })
        };
        let ranks = [on_local(world_size, averages), on_host(world_size, Settings::default(), averages)];
        let expected = &ranks[0][0][0];
        for (policy, average) in ranks.iter().flatten().flat_map(|all| policies.iter().zip(all)) {
            let differ = expected.iter().zip(average).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{policy:?} on {world_size} ranks");
        }
    }
}

/// Sparse sums have the order of dense ones: for numbers, too, of which each order gives another sum.
#[test]
fn top_k_of_all_entries_has_the_bits_of_the_dense_average() {
    for world_size in [1, 2, 3, 5, 6, 7, 8, 9] {
        let averages = move |group: &brevity::Group| {
            [Policy::dense(), Policy::topk(1.0)].map(|policy| {
                let exchange = GradientExchange::builder(group).tensor("weight", [COUNT], policy);
                let mut gradients = [dense::vector(group.rank(), COUNT)];
                exchange.build().unwrap().average(&mut gradients).unwrap();
                // Zeros may differ in their sign.
                gradients[0].iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<u32>>()
            })
        };
        for [dense, topk] in
            [on_local(world_size, averages), on_host(world_size, Settings::default(), averages)].concat()
        {
            let differ = dense.iter().zip(&topk).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{world_size} ranks");
        }
    }
}
