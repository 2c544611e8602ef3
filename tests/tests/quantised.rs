//! Quantised all-reduce and vote.

use brevity::collectives::Error;
use brevity::compress::quantise::Values;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, Settings};
use brevity_tests::dense::in_order;
use brevity_tests::{on_local, oracle};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

/// Less than a slice, one and one more, and more slices than ranks.
const COUNTS: [usize; 6] = [0, 1, 511, 512, 513, 3000];

fn on_sim<R, F: Future<Output = R>>(world_size: u32, body: impl Fn(Group) -> F) -> Vec<R> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| body(Group::new(transport, Settings::default()))).unwrap()
}

fn vector(rank: u32, count: usize, scale: f32) -> Vec<f32> {
    oracle::vector(rank, count).into_iter().map(|value| scale * value).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The sum on each rank, and what it keeps.
fn quantised(world_size: u32, count: usize, scale: f32, values: Values) -> Vec<(Vec<f32>, Vec<f32>)> {
    on_sim(world_size, |group| async move {
        let own = vector(group.rank(), count, scale);
        let (given, kept) = group.start_quantised_all_reduce(own, values).await;
        (given.vector, kept.unwrap())
    })
}

/// Sums of integers stay integers where values are rounded to some bits; elsewhere mass is conserved but for
/// the rounding of f32.
#[test]
fn sums_and_what_is_kept_are_what_was_given() {
    for (world_size, values) in WORLD_SIZES.into_iter().flat_map(|size| Values::ALL.map(|v| (size, v))) {
        for count in COUNTS {
            let found = quantised(world_size, count, 251.0, values);
            let mut parts: Vec<_> = found.iter().map(|(_, kept)| kept.clone()).collect();
            parts.push(found[0].0.clone());
            let given: Vec<_> = (0..world_size).map(|rank| vector(rank, count, 251.0)).collect();
            let is_whole = [Values::F32, Values::F16, Values::Bf16].contains(&values);
            let most = if is_whole { 0.0 } else { 0.5 };
            for (found, given) in oracle::sum(&parts).iter().zip(oracle::sum(&given)) {
                let about = format!("{values}, P = {world_size}, n = {count}: {found} of {given}");
                assert!((found - given).abs() <= most, "{about}");
            }
            assert!(found.iter().all(|(sum, _)| bits(sum) == bits(&found[0].0)), "{values}: ranks differ");
        }
    }
}

#[test]
fn exact_values_have_the_bits_of_the_dense_sum() {
    for (world_size, count) in WORLD_SIZES.into_iter().flat_map(|size| COUNTS.map(|count| (size, count))) {
        let given: Vec<_> = (0..world_size).map(|rank| vector(rank, count, 1.0 / 3.0)).collect();
        let expected = in_order(given);
        for (sum, kept) in quantised(world_size, count, 1.0 / 3.0, Values::F32) {
            assert_eq!(bits(&sum), bits(&expected), "P = {world_size}, n = {count}");
            assert!(kept.iter().all(|value| *value == 0.0));
        }
    }
}

#[test]
fn the_majority_wins_and_zeros_do_not_vote() {
    // Zeros on some ranks alone, and on all.
    let sign = |rank: u32, index: usize| {
        let value = oracle::vector(rank, index + 1)[index];
        if (index + rank as usize).is_multiple_of(5) || index.is_multiple_of(17) { 0.0 } else { value }
    };
    for world_size in WORLD_SIZES {
        for count in [0, 1, 513, 1200] {
            let own = |rank| (0..count).map(|index| sign(rank, index)).collect::<Vec<f32>>();
            let all: Vec<Vec<f32>> = (0..world_size).map(own).collect();
            let majority = |index: usize| {
                let votes: i32 =
                    all.iter().map(|of| i32::from(of[index] > 0.0) - i32::from(of[index] < 0.0)).sum();
                votes.signum() as f32
            };
            let expected: Vec<f32> = (0..count).map(majority).collect();
            let found = on_sim(world_size, |group| {
                let own = own(group.rank());
                async move {
                    let (given, outcome) = group.start_vote_all_reduce(own).await;
                    outcome.unwrap();
                    given.vector
                }
            });
            assert!(found.iter().all(|found| *found == expected), "P = {world_size}, n = {count}");
        }
    }
}

type Call = fn(&Group, f32) -> Result<(), Error>;

#[test]
fn what_is_not_finite_is_the_same_error_everywhere() {
    let calls: [(&str, Call); 2] = [
        ("quantised", |group, value| group.quantised_all_reduce(&mut [1.0, value], Values::Bf16).map(drop)),
        ("vote", |group, value| group.vote_all_reduce(&mut [1.0, value])),
    ];
    for (name, call) in calls {
        for world_size in [1, 2, 5] {
            let errors = on_local(world_size, move |group| {
                let is_bad = group.rank() + 1 == group.world_size();
                let error = call(group, if is_bad { f32::NAN } else { 1.0 }).unwrap_err();
                call(group, 1.0).unwrap();
                error
            });
            let is_named =
                |error: &Error| matches!(error, Error::NonFinite { rank, .. } if rank.0 + 1 == world_size);
            assert!(errors.iter().all(is_named), "{name}, P = {world_size}: {errors:?}");
        }
    }
    let errors =
        on_local(3, |group| group.quantised_all_reduce(&mut vec![f32::MAX; 2000], Values::F32).unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, Error::NonFinite { .. })), "{errors:?}");
}

#[test]
fn another_format_is_a_mismatch_by_name() {
    let errors = on_local(3, |group| {
        let values = if group.rank() == 1 { Values::F16 } else { Values::EightBit };
        let result = group.quantised_all_reduce(&mut vec![1.0; 2000], values);
        result.and_then(|_| group.barrier()).unwrap_err()
    });
    let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
    assert!(errors.iter().all(is_told), "{errors:?}");
    let named = "quantised all-reduce of 2000 f32 (f16 values)";
    assert!(errors.iter().any(|error| error.to_string().contains(named)), "{errors:?}");
}
