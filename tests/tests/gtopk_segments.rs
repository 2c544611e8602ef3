//! gTop-k all-reduces of long messages, which go in segments: the same bits as in one, estimates, and a death
//! at every message.

use std::time::Duration;

use brevity::collectives::sparse::{Coder, Gtopk, GtopkAllReduce, Wire};
use brevity::collectives::{Compressed, Error, Ground, Machine, Result, compressed_estimates};
use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, PutBack, Settings};
use brevity_tests::mixed::is_lost;
use brevity_tests::{oracle, suite};

const WORLD_SIZES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];
const RULES: [PutBack; 3] = [PutBack::Conserving, PutBack::Published, PutBack::MergerKeeps];

/// Bytes of a segment: 8 pairs.
const SEGMENT: usize = 64;
const ALPHA: f64 = 20e-6;
const BETA: f64 = 1e-8;

fn settings(segment_bytes: usize) -> Settings {
    let machine = Some(Machine::uniform(ALPHA, BETA));
    Settings { timeout: Duration::from_secs(100), segment_bytes, machine, ..Settings::default() }
}

fn wires() -> impl Iterator<Item = Wire> {
    [Wire::Pairs].into_iter().chain(Values::ALL.map(Wire::Coded))
}

/// Some entries less than `k`, of rank 1 none at all. Thirds, so that another order of sums has other bits.
fn entries(rank: u32, count: usize, k: usize) -> SparseVec {
    let vector: Vec<f32> = oracle::vector(rank, count).into_iter().map(|value| value / 3.0).collect();
    suite::sparse(&vector, if rank == 1 && count > 250 { 0 } else { k.saturating_sub(rank as usize % 4) })
}

/// What a rank has got, the messages that it has sent, and the seconds that passed.
type Ended = (Result<Gtopk>, u64, f64);

fn simulate(
    world_size: u32,
    segment_bytes: usize,
    fault: Option<Fault>,
    of_rank: impl Fn(u32) -> GtopkAllReduce,
) -> Vec<Ended> {
    let cluster = Cluster::new(world_size, Links::new(ALPHA, BETA)).with_faults(fault);
    let ended = run(cluster, |transport| {
        let group = Group::new(transport, settings(segment_bytes));
        let collective = of_rank(group.rank());
        async move {
            let begun = group.now();
            let result = group.start_compressed(collective).await.1;
            (result, group.statistics().messages_sent, (group.now() - begun).as_secs_f64())
        }
    });
    ended.unwrap()
}

fn gtopk(rank: u32, (count, k): (usize, usize), rule: PutBack, wire: Wire) -> GtopkAllReduce {
    GtopkAllReduce { local: entries(rank, count, k), k, rule, coder: Coder::new(wire) }
}

/// Indices and the bits of values, of the result and of what is put back.
fn bits(ended: &Ended) -> [Vec<(u32, u32)>; 2] {
    let outcome = ended.0.as_ref().unwrap();
    [&outcome.result, &outcome.put_back].map(|v| v.iter().map(|(i, value)| (i, value.to_bits())).collect())
}

/// With fewer entries than a segment has, as many, one more, and several segments with and without a rest.
#[test]
fn segments_change_no_bit() {
    let sizes = [0, 7, 8, 9, 24, 25, 300].map(|k| (300, k)).into_iter().chain([(0, 0), (1, 1), (5, 5)]);
    for (world_size, wire) in WORLD_SIZES.into_iter().flat_map(|size| wires().map(move |wire| (size, wire))) {
        for (size, rule) in sizes.clone().zip(RULES.into_iter().cycle()) {
            let call = |segment| simulate(world_size, segment, None, |rank| gtopk(rank, size, rule, wire));
            let whole: Vec<_> = call(1 << 20).iter().map(bits).collect();
            assert!(whole.iter().all(|rank| rank[0] == whole[0][0]));
            for segment in [SEGMENT, 100, 333] {
                let found: Vec<_> = call(segment).iter().map(bits).collect();
                assert_eq!(found, whole, "{wire:?}, {rule:?}, P = {world_size}, {size:?}, {segment} bytes");
            }
        }
    }
}

/// Up and down the tree, a message to each neighbour for each segment.
#[test]
fn a_segment_is_a_message_and_formats_with_a_common_scale_are_not_cut() {
    let size = (300, 20);
    for (wire, segment, each) in [
        (Wire::Pairs, SEGMENT, 3),
        (Wire::Pairs, 160, 1),
        (Wire::Pairs, 159, 2),
        // 40 bytes, a bitmap of 38, and 2 for each value.
        (Wire::Coded(Values::Bf16), SEGMENT, 2),
        (Wire::Coded(Values::EightBit), SEGMENT, 1),
    ] {
        for world_size in [2, 4, 5] {
            let of_rank = |rank| gtopk(rank, size, PutBack::Conserving, wire);
            let ended = simulate(world_size, segment, None, of_rank);
            let messages: u64 = ended.iter().map(|rank| rank.1).sum();
            assert_eq!(messages, 2 * each * u64::from(world_size - 1), "{wire:?}, P = {world_size}");
        }
    }
}

/// A sum that is not finite in any segment, or a value, is the same error everywhere.
#[test]
fn what_is_not_finite_in_a_segment_is_told_to_all() {
    let sizes = [2, 4, 5, 7];
    for (world_size, wire) in sizes.into_iter().flat_map(|size| wires().map(move |wire| (size, wire))) {
        for bad in [0, 9, 19] {
            for value in [f32::MAX, f32::INFINITY] {
                let of_rank = |rank: u32| {
                    let is_bad = |index| index == bad && rank + 2 >= world_size;
                    let values = (0..20).map(|index| if is_bad(index) { value } else { 1.0 }).collect();
                    let local = SparseVec::from_parts(90, (0..20).collect(), values).unwrap();
                    let coder = Coder::new(wire);
                    GtopkAllReduce { local, k: 20, rule: PutBack::Conserving, coder }
                };
                let ended = simulate(world_size, SEGMENT, None, of_rank);
                // Other formats make less of the largest value.
                let must_be = !value.is_finite() || matches!(wire, Wire::Pairs | Wire::Coded(Values::F32));
                let is_told = |rank: &Ended| matches!(rank.0, Err(Error::NonFinite { tensor: 0, .. }));
                let told = ended.iter().filter(|rank| is_told(rank)).count();
                let is_right = told == ended.len() || !must_be && told == 0;
                assert!(is_right, "{wire:?}, P = {world_size}: {ended:?}");
            }
        }
    }
}

#[test]
fn estimates_of_segments_are_what_the_simulated_network_takes() {
    const K: usize = 6400;
    let mut found = Vec::new();
    for (world_size, segment_bytes) in
        [2, 4, 7, 8, 16, 64].into_iter().flat_map(|size| [4096, 25_600, 40_000].map(|bytes| (size, bytes)))
    {
        let of_rank = |rank: u32| {
            let place = |number: u32| 500 * number + (7 * number + rank) % 500;
            let indices: Vec<u32> = (0..K as u32).map(place).collect();
            let values = indices.iter().map(|index| 1.0 + (index % 977) as f32).collect();
            let local = SparseVec::from_parts(500 * K, indices, values).unwrap();
            GtopkAllReduce { local, k: K, rule: PutBack::default(), coder: Coder::pairs() }
        };
        let ended = simulate(world_size, segment_bytes, None, of_rank);
        let measured = ended.iter().fold(0.0, |last, rank| f64::max(last, rank.2));
        let ground = Ground::new(Machine::uniform(ALPHA, BETA), world_size);
        let ground = Ground { slice_bytes: segment_bytes, ..ground };
        let work = of_rank(0).work();
        let whole = Ground { slice_bytes: 1 << 20, ..ground };
        let [estimate, of_whole] =
            [ground, whole].map(|ground| compressed_estimates::<GtopkAllReduce>(&work, &ground)[0].1.seconds);
        assert!(estimate <= of_whole, "{world_size} ranks, {segment_bytes} bytes");
        let ratio = estimate / measured;
        let text = format!("{world_size} ranks, {segment_bytes} bytes: {measured} s, {ratio:.3} estimated");
        println!("{text}");
        if !(0.95..=1.05).contains(&ratio) {
            found.push(text);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_death_at_any_message_of_any_segment_is_told() {
    let size = (300, 20);
    for world_size in 2..=5 {
        for (victim, wire) in (0..world_size).flat_map(|victim| {
            [Wire::Pairs, Wire::Coded(Values::F32), Wire::Coded(Values::Bf16)].map(|wire| (victim, wire))
        }) {
            let call = |fault| {
                simulate(world_size, SEGMENT, fault, |rank| gtopk(rank, size, PutBack::Conserving, wire))
            };
            let calm = call(None);
            let expected: Vec<_> = calm.iter().map(bits).collect();
            let (rank, sent) = (Rank(victim), calm[victim as usize].1);
            let faults = (1..=sent).map(|messages| Fault::KillAfter { rank, messages });
            for fault in faults.chain([Fault::Kill { rank, at: Duration::ZERO }]) {
                for (rank, ended) in call(Some(fault)).iter().enumerate() {
                    if rank == victim as usize {
                        continue;
                    }
                    let is_right = match &ended.0 {
                        Ok(_) => bits(ended) == expected[rank],
                        failed => is_lost(failed, victim),
                    };
                    assert!(is_right, "rank {rank} of {world_size}, {wire:?}, {fault:?}: {ended:?}");
                }
            }
        }
    }
}
