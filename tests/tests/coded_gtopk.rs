//! gTop-k all-reduces whose entries are coded: contributions in the wire's format, sums in its format of
//! sums.

use std::collections::BTreeMap;

use brevity::collectives::Error;
use brevity::collectives::sparse::{Coder, Gtopk, Wire};
use brevity::compress::SparseVec;
use brevity::compress::codec::{Choice, Encoder, decode};
use brevity::compress::quantise::Values;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, PutBack, Settings};
use brevity_tests::{on_local, oracle, suite};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
const RULES: [PutBack; 3] = [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps];
const COUNT: usize = 300;
const K: usize = 20;

/// Integers up to this, which 8 significant bits do not hold.
const SCALE: f32 = 251.0;

type Sum = BTreeMap<u32, f32>;

/// The entries of a rank: as many as it has less than the others, so that messages have unequal lengths.
fn entries(rank: u32, count: usize, k: usize) -> SparseVec {
    let vector: Vec<f32> = oracle::vector(rank, count).into_iter().map(|value| SCALE * value).collect();
    suite::sparse(&vector, k.saturating_sub(rank as usize % 4))
}

/// What is read of these entries: those that rounding makes 0 are not there.
fn said(sum: &Sum, count: usize, values: Values) -> Sum {
    let entries =
        SparseVec::from_parts(count, sum.keys().copied().collect(), sum.values().copied().collect());
    let (mut message, mut said) = (Vec::new(), SparseVec::new(0));
    let quantiser = &mut *values.quantiser();
    Encoder::new().encode(entries.unwrap().view(), Choice::Fast, quantiser, &mut message).unwrap();
    decode(&message, count, sum.len(), &mut said).unwrap();
    said.iter().filter(|(_, value)| *value != 0.0).collect()
}

/// The result by the definition: a tree of merges, in which each message is rounded.
fn expected(world_size: u32, count: usize, k: usize, values: Values) -> Sum {
    let mut sums: Vec<Sum> = (0..world_size).map(|rank| entries(rank, count, k).iter().collect()).collect();
    let mut format = vec![values; sums.len()];
    let mut distance = 1;
    while distance < sums.len() {
        for rank in (0..sums.len() - distance).step_by(2 * distance) {
            let incoming = said(&sums[rank + distance], count, format[rank + distance]);
            sums[rank] = oracle::largest(&oracle::add(&sums[rank], &incoming), k);
            format[rank] = values.of_sums();
        }
        distance *= 2;
    }
    said(&sums[0], count, format[0])
}

fn gtopk(world_size: u32, count: usize, k: usize, rule: PutBack, values: Values) -> Vec<Gtopk> {
    let cluster = Cluster::new(world_size, Links::new(1e-5, 1e-9));
    run(cluster, |transport| async move {
        let group = Group::new(transport, Settings::default());
        let own = entries(group.rank(), count, k);
        group.start_gtopk_all_reduce(own, k, rule, Coder::new(Wire::Coded(values))).await.1.unwrap()
    })
    .unwrap()
}

#[test]
fn results_are_those_of_a_tree_of_rounded_merges() {
    for (world_size, values) in WORLD_SIZES.into_iter().flat_map(|size| Values::ALL.map(|v| (size, v))) {
        for (count, k) in [(0, 0), (1, 1), (COUNT, 0), (COUNT, K), (COUNT, COUNT)] {
            let expected = expected(world_size, count, k, values);
            for outcome in gtopk(world_size, count, k, PutBack::Conserving, values) {
                let found: Sum = outcome.result.iter().collect();
                assert_eq!(found, expected, "{values}, P = {world_size}, n = {count}, k = {k}");
            }
        }
    }
}

/// What ranks gave is the result and what they put back, exactly where rounded integers are integers. As
/// published, what merges drop is lost at the indices of the result alone.
#[test]
fn mass_is_conserved_by_the_rules_that_say_so() {
    for (world_size, values) in WORLD_SIZES.into_iter().flat_map(|size| Values::ALL.map(|v| (size, v))) {
        let given: Vec<_> = (0..world_size).map(|rank| entries(rank, COUNT, K).to_dense()).collect();
        let given = oracle::sum(&given);
        for rule in RULES {
            let outcomes = gtopk(world_size, COUNT, K, rule, values);
            let result = &outcomes[0].result;
            let mut parts: Vec<_> = outcomes.iter().map(|outcome| outcome.put_back.to_dense()).collect();
            parts.push(result.to_dense());
            let is_whole = [Values::F32, Values::F16, Values::Bf16].contains(&values);
            let most = if is_whole { 0.0 } else { 0.5 };
            let mut lost = 0;
            for (index, (found, given)) in (0..).zip(oracle::sum(&parts).iter().zip(&given)) {
                let is_lost = (found - given).abs() > most;
                let may_be = rule == PutBack::Published && result.indices().contains(&index);
                assert!(
                    !is_lost || may_be,
                    "{rule:?}, {values}, P = {world_size}, {index}: {found} for {given}"
                );
                lost += usize::from(is_lost);
            }
            // Of several merges, some drop what the result has from others.
            assert!(rule != PutBack::Published || world_size < 16 || lost > 0, "{values}: nothing is lost");
        }
    }
}

#[test]
fn another_wire_or_rule_is_a_mismatch_by_name() {
    let coded = |values| (PutBack::Conserving, Wire::Coded(values));
    let cases = [
        (coded(Values::Bf16), coded(Values::F16), "(conserving; packed, f16 values)"),
        (coded(Values::Bf16), (PutBack::Published, Wire::Coded(Values::Bf16)), "(published; packed, bf16"),
        ((PutBack::Conserving, Wire::Pairs), coded(Values::F32), "(conserving; packed, f32 values)"),
    ];
    for (these, other, named) in cases {
        let errors = on_local(3, move |group| {
            let (rule, wire) = if group.rank() == 1 { other } else { these };
            let own = entries(group.rank(), COUNT, K);
            let result = group.gtopk_all_reduce_by(own.view(), K, rule, &mut Coder::new(wire));
            result.and_then(|_| group.barrier()).unwrap_err()
        });
        let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_told), "{errors:?}");
        assert!(errors.iter().any(|error| error.to_string().contains(named)), "{named}: {errors:?}");
    }
}

#[test]
fn a_value_that_is_not_finite_is_the_same_error_everywhere() {
    for world_size in [1, 2, 5] {
        let errors = on_local(world_size, move |group| {
            let value = if group.rank() + 1 == group.world_size() { f32::INFINITY } else { 1.0 };
            let own = SparseVec::from_parts(9, vec![3], vec![value]).unwrap();
            let mut coder = Coder::new(Wire::Coded(Values::Bf16));
            group.gtopk_all_reduce_by(own.view(), 1, PutBack::default(), &mut coder).unwrap_err()
        });
        for error in &errors {
            let is_named = matches!(error, Error::NonFinite { rank, tensor: 0 } if rank.0 + 1 == world_size);
            assert!(is_named, "{error}");
        }
    }
}
