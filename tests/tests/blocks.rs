//! Block-sparse all-reduce.

use brevity::collectives::Error;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::dense::{in_order, vector};
use brevity_tests::on_local;

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

/// No block, one that is not whole, whole ones, more than ranks.
const COUNTS: [usize; 6] = [0, 1, 15, 16, 17, 1000];
const BLOCKS: [usize; 4] = [1, 7, 16, 4096];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

/// Of each rank one block in `every`, and zeros of both signs among the values and in other blocks.
fn given(rank: u32, count: usize, block: usize, every: usize) -> Vec<f32> {
    let mut values = vector(rank, count);
    for (index, value) in values.iter_mut().enumerate() {
        let (place, rank) = (index / block, rank as usize);
        let is_there = (place * 5 + rank * 3).is_multiple_of(every);
        if !is_there || (index + rank).is_multiple_of(11) {
            *value = if index.is_multiple_of(2) { 0.0 } else { -0.0 };
        }
    }
    values
}

/// Zeros may have another sign.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| (value + 0.0).to_bits()).collect()
}

#[test]
fn sums_have_the_bits_of_dense_ones() {
    for (world_size, count) in WORLD_SIZES.into_iter().flat_map(|size| COUNTS.map(|count| (size, count))) {
        // All blocks, and few, of which ranks share some.
        for (block, every) in BLOCKS.into_iter().flat_map(|block| [1, 2, 9].map(|every| (block, every))) {
            let given = |rank| given(rank, count, block, every);
            let expected = bits(&in_order((0..world_size).map(given).collect()));
            let found = on_sim(world_size, |group| {
                let own = given(group.rank());
                async move {
                    let (given, outcome) = group.start_block_all_reduce(own, block).await;
                    outcome.unwrap();
                    given.vector
                }
            });
            for sum in &found {
                assert_eq!(bits(sum), expected, "P = {world_size}, n = {count}, b = {block}, 1 in {every}");
                let same = sum.iter().zip(&found[0]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "P = {world_size}, n = {count}, b = {block}: ranks differ");
            }
        }
    }
}

/// One block in eight travels, and its number.
#[test]
fn only_blocks_that_are_not_zero_travel() {
    let (count, block) = (1 << 16, 256);
    let sent = |every: usize| {
        let bytes = on_sim(4, |group| async move {
            let mut own = vec![0.0; count];
            for place in (0..count / block).step_by(every) {
                own[place * block..][..block].fill(1.0);
            }
            let before = group.statistics().bytes_sent;
            group.start_block_all_reduce(own, block).await.1.unwrap();
            group.statistics().bytes_sent - before
        });
        bytes.into_iter().max().unwrap() as f64
    };
    let (all, some) = (sent(1), sent(8));
    let expected = 2.0 * 0.75 * 4.0 * count as f64;
    assert!((all / expected - 1.0).abs() < 0.01, "{all} bytes, expected about {expected}");
    assert!((some / expected * 8.0 - 1.0).abs() < 0.02, "{some} bytes, expected an eighth of {expected}");
}

#[test]
fn a_value_that_is_not_finite_is_an_error_everywhere() {
    for world_size in [1, 2, 5] {
        let body = move |group: &Group| {
            let is_bad = group.rank() + 1 == group.world_size();
            let mut own = vec![0.0; 100];
            own[50] = if is_bad { f32::INFINITY } else { 1.0 };
            let error = group.block_all_reduce(&mut own, 16).unwrap_err();
            group.block_all_reduce(&mut [1.0; 100], 16).unwrap();
            error
        };
        let errors = on_local(world_size, body);
        let is_named =
            |error: &Error| matches!(error, Error::NonFinite { rank, .. } if rank.0 + 1 == world_size);
        assert!(errors.iter().all(is_named), "P = {world_size}: {errors:?}");
    }
    let errors = on_local(3, |group| {
        let error = group.block_all_reduce(&mut [f32::MAX; 100], 16).unwrap_err();
        group.barrier().unwrap();
        error
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Overflow { tensor: 0 })), "{errors:?}");
}

#[test]
fn blocks_are_equal_on_all_ranks_and_not_empty() {
    let errors = on_local(3, |group| {
        let refused = group.block_all_reduce(&mut [1.0; 100], 0).unwrap_err();
        assert!(matches!(refused, Error::Length { found: 0, expected: 1, .. }), "{refused}");
        let block = if group.rank() == 1 { 17 } else { 16 };
        let result = group.block_all_reduce(&mut [1.0; 100], block);
        result.and_then(|()| group.barrier()).unwrap_err()
    });
    let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
    assert!(errors.iter().all(is_told), "{errors:?}");
}
