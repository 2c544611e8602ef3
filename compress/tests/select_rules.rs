//! Selection rules other than top k, each compared with its definition.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod shapes;

use brevity_compress::generator::Generator;
use brevity_compress::select::{
    BLOCK_PLACES, Blocks, BySignScratch, SampledScratch, bin_maxima, fixed_threshold, non_zero_blocks,
    over_threshold, random_block, random_k, resampled_top_k, sampled_top_k, top_k_by_sign,
};
use brevity_compress::{Error, SparseVec, SparseView};
use proptest::prelude::*;
use shapes::{shape, shaped, total_order};

type Entries = Vec<(u32, f32)>;

fn entries(sparse: &SparseVec, values: &[f32]) -> Entries {
    // Validated again: `push` checks the order in debug builds only.
    assert_eq!(sparse.dim(), values.len());
    SparseView::new(sparse.dim(), sparse.indices(), sparse.values()).unwrap().iter().collect()
}

fn non_zero(values: &[f32]) -> Entries {
    (0..).zip(values.iter().copied()).filter(|entry| entry.1 != 0.0).collect()
}

/// The first `k` in the total order, by rising index.
fn first(mut all: Entries, k: usize) -> Entries {
    all.sort_by(total_order);
    all.truncate(k);
    all.sort_by_key(|entry| entry.0);
    all
}

/// Whether no unselected value is larger than a selected one, and values are unchanged.
fn is_upper_part(selected: &Entries, values: &[f32]) -> bool {
    let least = selected.iter().fold(f32::INFINITY, |least, entry| least.min(entry.1.abs()));
    let largest_left = non_zero(values).into_iter().filter(|entry| !selected.contains(entry));
    selected.iter().all(|&(index, value)| values[index as usize].to_bits() == value.to_bits())
        && largest_left.fold(0.0_f32, |most, entry| most.max(entry.1.abs())) <= least
}

fn sampled(values: &[f32], k: usize, limit: usize, seed: u64) -> Entries {
    let mut out = SparseVec::new(0);
    sampled_top_k(values, k, limit, &mut Generator::new(seed), &mut out, &mut SampledScratch::new()).unwrap();
    entries(&out, values)
}

fn resampled(values: &[f32], k: usize, seed: u64) -> Entries {
    let mut out = SparseVec::new(0);
    resampled_top_k(values, k, &mut Generator::new(seed), &mut out, &mut SampledScratch::new()).unwrap();
    entries(&out, values)
}

fn drawn(values: &[f32], k: usize, seed: u64) -> Entries {
    let mut out = SparseVec::new(0);
    random_k(values, k, &mut Generator::new(seed), &mut out, &mut Vec::new()).unwrap();
    entries(&out, values)
}

fn block(values: &[f32], k: usize, seed: u64) -> Entries {
    let mut out = SparseVec::new(0);
    random_block(values, k, &mut Generator::new(seed), &mut out).unwrap();
    entries(&out, values)
}

proptest! {
    #[test]
    fn a_sampled_threshold_keeps_to_its_bounds(
        values in shaped(0..=400),
        share in 0.0..=1.0_f64,
        limit in 0_usize..450,
        seed: u64,
    ) {
        let k = (share * values.len() as f64).round() as usize;
        let found = sampled(&values, k, limit, seed);
        prop_assert!(found.len() <= limit, "{} of {}", found.len(), limit);
        prop_assert_eq!(found.is_empty(), k == 0 || limit == 0 || non_zero(&values).is_empty());
        prop_assert!(is_upper_part(&found, &values), "{:?} of {:?}", found, values);
        prop_assert_eq!(&found, &sampled(&values, k, limit, seed));
    }

    #[test]
    fn a_resampled_threshold_is_near_or_exact(values in shaped(0..=400), share in 0.0..=1.0_f64, seed: u64) {
        let k = (share * values.len() as f64).round() as usize;
        let found = resampled(&values, k, seed);
        let near = found.len() * 10 >= k * 8 && found.len() * 10 <= k * 13;
        prop_assert!(is_upper_part(&found, &values), "{:?} of {:?}", found, values);
        prop_assert!(near || found == first(non_zero(&values), k), "{} for {}", found.len(), k);
    }

    #[test]
    fn a_fixed_threshold_sends_itself(
        values in shaped(0..=200),
        tau in prop_oneof![0.01_f32..50.0, Just(0.25), Just(1e-42)],
    ) {
        let mut out = SparseVec::new(0);
        fixed_threshold(&values, tau, &mut out).unwrap();
        let passing = non_zero(&values).into_iter().filter(|entry| entry.1.abs() >= tau);
        prop_assert_eq!(
            entries(&out, &values),
            passing.map(|(i, v)| (i, tau * v.signum())).collect::<Entries>()
        );
    }

    #[test]
    fn what_reaches_a_threshold_is_selected_up_to_a_limit(
        values in shaped(0..=200),
        tau in prop_oneof![0.01_f32..50.0, Just(0.25), Just(1e-42)],
        limit in prop_oneof![0_usize..220, Just(usize::MAX)],
    ) {
        let mut out = SparseVec::new(0);
        let is_within = over_threshold(&values, tau, limit, &mut out).unwrap();
        let expected: Entries =
            non_zero(&values).into_iter().filter(|entry| entry.1.abs() >= tau).collect();
        prop_assert_eq!(is_within, expected.len() <= limit);
        prop_assert!(!is_within || entries(&out, &values) == expected);
    }

    #[test]
    fn signs_are_selected_apart(
        values in shaped(0..=200),
        positives in 0_usize..220,
        negatives in 0_usize..220,
    ) {
        let mut out = SparseVec::new(0);
        top_k_by_sign(&values, positives, negatives, &mut out, &mut BySignScratch::new()).unwrap();
        let of_sign = |sign: f32, k| -> Entries {
            let chosen =
                first(non_zero(&values).into_iter().filter(|entry| entry.1 * sign > 0.0).collect(), k);
            let sum: f64 = chosen.iter().map(|entry| f64::from(entry.1)).sum();
            let mean = (sum / chosen.len() as f64) as f32;
            chosen.into_iter().map(|entry| (entry.0, mean)).collect()
        };
        let mut expected = [of_sign(1.0, positives), of_sign(-1.0, negatives)].concat();
        expected.sort_by_key(|entry| entry.0);
        prop_assert_eq!(entries(&out, &values), expected);
    }

    #[test]
    fn random_places_are_as_many_as_asked_for(values in shaped(0..=200), share in 0.0..=1.0_f64, seed: u64) {
        let k = (share * values.len() as f64).round() as usize;
        let scattered = drawn(&values, k, seed);
        let row = block(&values, k, seed);
        for found in [&scattered, &row] {
            prop_assert_eq!(found.len(), k);
            prop_assert!(found.iter().all(|&(i, v)| v.to_bits() == values[i as usize].to_bits()));
        }
        // Other values, same places: another rank.
        let others: Vec<f32> = values.iter().map(|v| v + 1.0).collect();
        let places = |found: &Entries| found.iter().map(|entry| entry.0).collect::<Vec<_>>();
        prop_assert_eq!(places(&scattered), places(&drawn(&others, k, seed)));
        // A row has at most one beginning, with wrap-around.
        let begins = places(&row)
            .iter()
            .filter(|&&i| !places(&row).contains(&((i + values.len() as u32 - 1) % values.len() as u32)))
            .count();
        prop_assert!(begins <= 1, "{:?}", row);
    }

    #[test]
    fn bins_send_what_reaches_their_maximum(
        pairs in shaped(0..=200),
        bin in 1_usize..70,
        seed: u64,
        kind in 0_usize..9,
    ) {
        let gradient = shape(kind, pairs.len(), seed);
        let mut out = SparseVec::new(0);
        bin_maxima(&pairs, &gradient, bin, &mut out).unwrap();
        let chosen = |index: usize| {
            let start = index / bin * bin;
            let bin = &pairs[start..(start + bin).min(pairs.len())];
            bin.iter().all(|v| (pairs[index] + gradient[index]).abs() >= v.abs())
        };
        let expected: Entries =
            non_zero(&pairs).into_iter().filter(|entry| chosen(entry.0 as usize)).collect();
        prop_assert_eq!(entries(&out, &pairs), expected);
    }

    #[test]
    fn blocks_are_the_whole_vector(runs in prop::collection::vec((0_usize..600, 0_usize..300), 0..6)) {
        let mut values = vec![];
        for (zeros, ones) in runs {
            values.extend(std::iter::repeat_n(-0.0, zeros));
            values.extend(std::iter::repeat_n(1.5_f32, ones));
        }
        let mut out = Blocks::new();
        non_zero_blocks(&values, &mut out).unwrap();
        let expected: Vec<u32> = (0..)
            .zip(values.chunks(BLOCK_PLACES))
            .filter(|(_, block)| block.iter().any(|v| *v != 0.0))
            .map(|(b, _)| b)
            .collect();
        prop_assert_eq!(out.places(), expected);
        prop_assert!(out.values().len() <= BLOCK_PLACES * out.places().len());
        let mut rest = values.clone();
        out.add_scaled_to(-1.0, &mut rest).unwrap();
        prop_assert!(rest.iter().all(|v| *v == 0.0), "something was not sent");
        prop_assert!(out.add_scaled_to(1.0, &mut vec![0.0; values.len() + 1]).is_err());
    }

    /// What is sent plus what stays is the input: exactly, if values are integers and so is what is sent.
    #[test]
    fn nothing_is_lost(
        integers in prop::collection::vec(-1000_i16..1000, 0..300),
        k in 0_usize..320,
        seed: u64,
    ) {
        let values: Vec<f32> = integers.iter().map(|&v| f32::from(v)).collect();
        let gradient = shape(4, values.len(), seed);
        let (mut bins, mut strom) = (SparseVec::new(0), SparseVec::new(0));
        bin_maxima(&values, &gradient, 16, &mut bins).unwrap();
        fixed_threshold(&values, 7.0, &mut strom).unwrap();
        let sparse = [sampled(&values, k, k, seed), resampled(&values, k, seed), drawn(&values, k, seed),
            block(&values, k, seed), entries(&bins, &values), entries(&strom, &values)];
        for sent in sparse {
            let (indices, sent) = sent.into_iter().unzip();
            let sent = SparseVec::from_parts(values.len(), indices, sent).unwrap();
            let mut sum = values.clone();
            sent.view().add_scaled_to(-1.0, &mut sum);
            sent.add_to(&mut sum);
            prop_assert_eq!(&sum, &values);
        }
    }
}

#[test]
fn large_samples_come_near() {
    let values = shape(0, 300_000, 1);
    for (k, seed) in [(3000, 1), (30_000, 2), (150_000, 3)] {
        let found = sampled(&values, k, values.len(), seed).len();
        // 1,024 drawn: a deviation of sqrt(k / n / 1024), five of them.
        let (share, deviation) = (k as f64 / 3e5, (k as f64 / 3e5 / 1024.0).sqrt());
        assert!((found as f64 / 3e5 - share).abs() < 5.0 * deviation + 1.0 / 1024.0, "{found} for {k}");
    }
    assert_eq!(sampled(&vec![0.25; 5000], 5, 7, 1), (0..7).map(|i| (i, 0.25)).collect::<Entries>());
    let mut lonely = vec![0.0; 100_000];
    lonely[77_777] = -1e-40;
    assert_eq!(sampled(&lonely, 10, 10, 1), [(77_777, -1e-40)]);
    assert_eq!(resampled(&lonely, 10, 1), [(77_777, -1e-40)]);
}

#[test]
fn random_places_are_even() {
    let values = vec![1.0; 10];
    for k in [3, 5, 8] {
        let (mut scattered, mut in_rows) = ([0_u32; 10], [0_u32; 10]);
        for seed in 0..20_000 {
            drawn(&values, k, seed).iter().for_each(|entry| scattered[entry.0 as usize] += 1);
            block(&values, k, seed).iter().for_each(|entry| in_rows[entry.0 as usize] += 1);
        }
        let share = k as f64 / 10.0;
        let error = 5.0 * (20_000.0 * share * (1.0 - share)).sqrt();
        for counts in [scattered, in_rows] {
            assert!(
                counts.iter().all(|&c| (f64::from(c) - 20_000.0 * share).abs() < error),
                "k {k}: {counts:?}"
            );
        }
    }
}

#[test]
fn what_is_not_finite_is_an_error_of_every_rule() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 1500, 2999] {
            let mut values = shape(0, 3000, 5);
            values[place] = bad;
            values[2999] = bad;
            let good = vec![1.0; 3000];
            let mut out = SparseVec::from_parts(3, vec![1], vec![1.0]).unwrap();
            let check = |rule: &str, found: Result<(), Error>, left: usize| {
                let right = matches!(&found, Err(Error::NonFinite { index, .. }) if *index == place);
                assert!(right && left == 0, "{rule}, {bad} at {place}: {found:?}, {left} left");
            };
            let (mut generator, mut scratch) = (Generator::new(1), SampledScratch::new());
            for k in [0, 30, 3000] {
                let found = sampled_top_k(&values, k, k, &mut generator, &mut out, &mut scratch);
                check("sampled", found, out.len());
                let found = resampled_top_k(&values, k, &mut generator, &mut out, &mut scratch);
                check("resampled", found, out.len());
                let found = random_k(&values, k, &mut generator, &mut out, &mut Vec::new());
                check("random", found, out.len());
                check("block", random_block(&values, k, &mut generator, &mut out), out.len());
                let found = top_k_by_sign(&values, k, k, &mut out, &mut BySignScratch::new());
                check("by sign", found, out.len());
            }
            check("fixed", fixed_threshold(&values, 0.5, &mut out), out.len());
            check("fixed, high", fixed_threshold(&values, f32::MAX, &mut out), out.len());
            let found = over_threshold(&values, 0.5, usize::MAX, &mut out).map(drop);
            check("over", found, out.len());
            check("bins", bin_maxima(&values, &good, 50, &mut out), out.len());
            check("bins, gradient", bin_maxima(&good, &values, 50, &mut out), out.len());
            let mut blocks = Blocks::new();
            check("blocks", non_zero_blocks(&values, &mut blocks), blocks.places().len());
        }
    }
    let mut out = SparseVec::new(0);
    for tau in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(fixed_threshold(&[1.0], tau, &mut out), Err(Error::InvalidThreshold(_))), "{tau}");
        let found = over_threshold(&[1.0], tau, 1, &mut out);
        assert!(matches!(found, Err(Error::InvalidThreshold(_))), "{tau}");
    }
    assert_eq!(bin_maxima(&[1.0], &[], 1, &mut out), Err(Error::LengthMismatch { expected: 1, found: 0 }));
}

/// The mean of many selections. One with the rank `j` of a sample deviates by `k / sqrt(j)`.
#[test]
fn sampled_top_k_keeps_k_on_average() {
    let mut generator = Generator::new(17);
    for (n, k, times, bound) in [
        (100_000, 100, 1000, 0.13),
        (100_000, 150, 1000, 0.11),
        (100_000, 1000, 1000, 0.05),
        (100_000, 20_000, 1000, 0.01),
        (1_000_000, 1000, 400, 0.2),
    ] {
        let values: Vec<f32> = (0..n).map(|_| generator.normal()).collect();
        let (mut out, mut scratch) = (SparseVec::new(n), SampledScratch::new());
        let mut kept = 0;
        for _ in 0..times {
            sampled_top_k(&values, k, n, &mut generator, &mut out, &mut scratch).unwrap();
            kept += out.len();
        }
        let share = kept as f64 / f64::from(times) / k as f64;
        assert!((share - 1.0).abs() < bound, "{share} of {k}, n = {n}");
        sampled_top_k(&values, usize::MAX, n, &mut generator, &mut out, &mut scratch).unwrap();
        assert_eq!(out.len(), n);
    }
}

/// A sample with the rank 102 keeps from 0.8 to 1.3 `k` in 97 of 100 cases. Otherwise the selection is exact.
#[test]
fn resampled_top_k_seldom_selects_again() {
    let (n, k) = (100_000, 10_000);
    let mut generator = Generator::new(19);
    let values: Vec<f32> = (0..n).map(|_| generator.normal()).collect();
    let (mut out, mut scratch) = (SparseVec::new(n), SampledScratch::new());
    let mut exact = 0;
    for _ in 0..1000 {
        resampled_top_k(&values, k, &mut generator, &mut out, &mut scratch).unwrap();
        exact += u32::from(out.len() == k);
    }
    assert!(exact < 60, "{exact} of 1000");
}

/// Where a sample would have to be larger, what one of its draws stands for is kept.
#[test]
fn sampled_top_k_keeps_what_a_draw_stands_for() {
    let n = 100_000;
    let mut generator = Generator::new(18);
    let values: Vec<f32> = (0..n).map(|_| generator.normal()).collect();
    let (mut out, mut scratch) = (SparseVec::new(n), SampledScratch::new());
    let mut kept = 0;
    for _ in 0..1000 {
        sampled_top_k(&values, 5, n, &mut generator, &mut out, &mut scratch).unwrap();
        kept += out.len();
    }
    let share = kept as f64 / 1000.0 / (n as f64 / 1025.0);
    assert!((share - 1.0).abs() < 0.13, "{share}");
}
