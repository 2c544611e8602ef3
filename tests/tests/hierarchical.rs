//! Hierarchical all-reduce: dense sums inside hosts, sparse ones between them.

mod exchange;
mod take_over;

use std::collections::BTreeMap;
use std::time::Duration;

use brevity::collectives::sparse::{Coder, HierarchicalAllReduce, LeaderSum, Wire};
use brevity::collectives::{Error, Result};
use brevity::compress::SparseVec;
use brevity::compress::quantise::Values;
use brevity::transport::Rank;
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, PutBack, Settings};
use brevity_tests::dense::{in_order, vector as rough_vector};
use brevity_tests::mixed::is_lost;
use brevity_tests::{on_groups, oracle};

const COUNT: usize = 300;

const SUMS: [LeaderSum; 4] = [
    LeaderSum::Topk,
    LeaderSum::Gtopk(PutBack::Conserving),
    LeaderSum::Gtopk(PutBack::Published),
    LeaderSum::Gtopk(PutBack::MergerKeeps),
];

/// So many ranks a host, one host after the other.
fn in_blocks(world_size: u32, ranks: u32) -> Vec<u32> {
    (0..world_size).map(|rank| rank / ranks).collect()
}

/// Ranks of hosts, by rank: 1, 2 and 3 a host, all on one, hosts that differ, and round robin.
fn placements(world_size: u32) -> Vec<Vec<u32>> {
    let blocks = [1, 2, 3, world_size].map(|ranks| in_blocks(world_size, ranks));
    let unequal = (0..world_size).map(|rank| (rank + 1).ilog2()).collect();
    let round_robin = (0..world_size).map(|rank| rank % 3).collect();
    blocks.into_iter().chain([unequal, round_robin]).collect()
}

fn settings() -> Settings {
    // Short segments, so that vectors have several.
    Settings { timeout: Duration::from_secs(100), segment_bytes: 256, ..Settings::default() }
}

fn on_hosts<R, F>(hosts: &[u32], fault: Option<Fault>, body: impl Fn(Group) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let cluster = Cluster::new(hosts.len() as u32, Links::new(20e-6, 1e-9)).with_faults(fault);
    run(cluster, |transport| {
        body(Group::opened(Opened::in_process(transport, None).with_hosts(hosts), settings()))
    })
    .unwrap()
}

/// Threads that share memory, each taken for a rank of one of these hosts.
fn on_hosts_with_slots<R: Send + 'static>(
    hosts: &[u32],
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let world_size = hosts.len() as u32;
    let ranks = local::world(world_size).into_iter().zip(LocalGroup::in_process(world_size).unwrap());
    let groups = ranks.map(|(rank, local_group)| {
        Group::opened(Opened::in_process(Box::new(rank), Some(local_group)).with_hosts(hosts), settings())
    });
    on_groups(groups.collect(), body)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The ranks of each host, in the order of their first ranks.
fn ranks_of(hosts: &[u32]) -> Vec<Vec<usize>> {
    let mut found: Vec<(u32, Vec<usize>)> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        match found.iter_mut().find(|(other, _)| other == host) {
            Some((_, ranks)) => ranks.push(rank),
            None => found.push((*host, vec![rank])),
        }
    }
    found.into_iter().map(|(_, ranks)| ranks).collect()
}

/// The sum and what is left on each rank; the latter only where no merge drops anything.
fn expected(
    hosts: &[u32],
    vectors: &[Vec<f32>],
    k: usize,
    by: LeaderSum,
) -> (BTreeMap<u32, f32>, Vec<Vec<f32>>) {
    let hosts = ranks_of(hosts);
    let of = |ranks: &Vec<usize>| in_order(ranks.iter().map(|rank| vectors[*rank].clone()).collect());
    let sums: Vec<_> = hosts.iter().map(of).collect();
    let selected: Vec<_> = sums.iter().map(|sum| oracle::top_k(sum, k)).collect();
    let count = vectors[0].len();
    let mut left = vec![vec![0.0; count]; vectors.len()];
    for (ranks, (sum, selected)) in hosts.iter().zip(sums.iter().zip(&selected)) {
        left[ranks[0]] = sum.clone();
        selected.keys().for_each(|index| left[ranks[0]][*index as usize] = 0.0);
    }
    if let LeaderSum::Gtopk(_) = by {
        return (oracle::gtopk(selected, k), left);
    }
    let dense = |entries: &BTreeMap<u32, f32>| {
        (0..count as u32).map(|index| entries.get(&index).copied().unwrap_or(0.0)).collect()
    };
    let sum = (0..).zip(in_order(selected.iter().map(dense).collect()));
    (sum.filter(|(_, sum)| *sum != 0.0).collect(), left)
}

/// One call, which must give back its memory.
async fn summed(group: &Group, vector: Vec<f32>, k: usize, by: LeaderSum) -> (Vec<f32>, Result<SparseVec>) {
    let (given, sum) = group.start_hierarchical_all_reduce(vector, k, by, Coder::pairs()).await;
    (given.vector, sum)
}

/// The result on all ranks, and no lost mass; integers.
fn check(hosts: &[u32], by: LeaderSum, k: usize, vectors: &[Vec<f32>], found: &[(Vec<f32>, SparseVec)]) {
    let about = format!("{by:?}, k = {k}, hosts {hosts:?}");
    let (sum, left) = expected(hosts, vectors, k, by);
    for (rank, (vector, result)) in found.iter().enumerate() {
        assert!(result.iter().eq(sum.iter().map(|(index, value)| (*index, *value))), "{about}, rank {rank}");
        assert_eq!(result.dim(), vector.len(), "{about}");
        let is_leader = !hosts[..rank].contains(&hosts[rank]);
        assert!(is_leader || vector.iter().all(|left| *left == 0.0), "{about}, rank {rank}");
        assert!(by != LeaderSum::Topk || *vector == left[rank], "{about}, rank {rank}");
    }
    if by != LeaderSum::Gtopk(PutBack::Published) {
        let mut parts: Vec<_> = found.iter().map(|(vector, _)| vector.clone()).collect();
        parts.push(found[0].1.to_dense());
        assert_eq!(oracle::sum(&parts), oracle::sum(vectors), "mass, {about}");
    }
}

#[test]
fn sums_match_their_oracle_wherever_ranks_are() {
    for world_size in (1..=9).chain([16, 33]) {
        for hosts in placements(world_size) {
            for (count, k) in [(0, 3), (1, 1), (COUNT, 0), (COUNT, 20), (COUNT, COUNT + 1)] {
                let vectors: Vec<_> = (0..world_size).map(|rank| oracle::vector(rank, count)).collect();
                for by in SUMS {
                    let found = on_hosts(&hosts, None, |group| {
                        let own = vectors[group.rank() as usize].clone();
                        async move {
                            let (vector, sum) = summed(&group, own, k, by).await;
                            (vector, sum.unwrap())
                        }
                    });
                    check(&hosts, by, k, &vectors, &found);
                }
            }
        }
    }
}

/// Long vectors too, which go through the slots in parts.
#[test]
fn sums_over_slots_match_their_oracle() {
    for hosts in [&[0, 0][..], &[0, 0, 1, 1], &[0, 0, 0, 1, 2, 2], &[0, 1, 0, 1, 1], &[0, 0, 0]] {
        for (count, k) in [(0, 3), (1, 1), (COUNT, 20), (100_001, 500)] {
            let world_size = hosts.len() as u32;
            let vectors: Vec<_> = (0..world_size).map(|rank| oracle::vector(rank, count)).collect();
            for by in SUMS {
                let found = on_hosts_with_slots(hosts, move |group| {
                    let mut vector = oracle::vector(group.rank(), count);
                    let before = group.statistics();
                    let sum = group.hierarchical_all_reduce(&mut vector, k, by, &mut Coder::pairs()).unwrap();
                    let after = group.statistics();
                    // Only entries are sent.
                    let bytes = after.bytes_sent - before.bytes_sent;
                    assert!(bytes <= 120 * k as u64 || count <= COUNT, "{bytes} bytes");
                    (vector, sum, after.bytes_shared - before.bytes_shared)
                });
                for (ranks, host) in ranks_of(hosts).into_iter().zip(0..) {
                    let shared: u64 = ranks.iter().map(|rank| found[*rank].2).sum();
                    assert!(ranks.len() == 1 || count == 0 || shared > 0, "host {host} of {hosts:?}");
                }
                let found: Vec<_> = found.into_iter().map(|(vector, sum, _)| (vector, sum)).collect();
                check(hosts, by, k, &vectors, &found);
            }
        }
    }
}

/// Values of which each order of a sum has other bits.
#[test]
fn sums_have_the_fixed_order_by_messages_and_over_slots() {
    for hosts in [&[0, 0, 0, 1, 1][..], &[0, 0, 0, 0, 0], &[0, 1, 2, 0, 1, 2, 3], &[0, 1, 2]] {
        let vectors: Vec<_> = (0..hosts.len() as u32).map(|rank| rough_vector(rank, COUNT)).collect();
        for by in [LeaderSum::Topk, LeaderSum::Gtopk(PutBack::Conserving)] {
            let by_messages = on_hosts(hosts, None, |group| {
                let own = vectors[group.rank() as usize].clone();
                async move {
                    let (vector, sum) = summed(&group, own, 30, by).await;
                    (vector, sum.unwrap())
                }
            });
            let over_slots = on_hosts_with_slots(hosts, move |group| {
                let mut vector = rough_vector(group.rank(), COUNT);
                let sum = group.hierarchical_all_reduce(&mut vector, 30, by, &mut Coder::pairs()).unwrap();
                (vector, sum)
            });
            let (sum, left) = expected(hosts, &vectors, 30, by);
            for (rank, (a, b)) in by_messages.iter().zip(&over_slots).enumerate() {
                assert_eq!((bits(&a.0), bits(a.1.values())), (bits(&b.0), bits(b.1.values())), "rank {rank}");
                let expected: Vec<_> = sum.iter().map(|(index, value)| (*index, value.to_bits())).collect();
                let found: Vec<_> = a.1.iter().map(|(index, value)| (index, value.to_bits())).collect();
                assert_eq!(found, expected, "{by:?}, rank {rank} of {hosts:?}");
                assert!(by != LeaderSum::Topk || a.0 == left[rank], "{hosts:?}");
            }
        }
    }
}

/// What rounding takes away stays with the leaders. Integers, whose parts are exact.
#[test]
fn rounded_values_lose_nothing() {
    for world_size in [2, 5, 8] {
        for hosts in placements(world_size) {
            for by in [SUMS[0], SUMS[1], SUMS[3]] {
                for values in [Values::F32, Values::Bf16] {
                    let found = on_hosts(&hosts, None, |group| async move {
                        let vector = oracle::vector(group.rank(), COUNT);
                        let coder = Coder::new(Wire::Coded(values));
                        let (given, sum) = group.start_hierarchical_all_reduce(vector, 25, by, coder).await;
                        (given.vector, sum.unwrap())
                    });
                    assert!(found.iter().all(|(_, sum)| *sum == found[0].1), "{by:?}, {hosts:?}");
                    let mut parts: Vec<_> = found.iter().map(|(vector, _)| vector.clone()).collect();
                    parts.push(found[0].1.to_dense());
                    let given: Vec<_> = (0..world_size).map(|rank| oracle::vector(rank, COUNT)).collect();
                    assert_eq!(oracle::sum(&parts), oracle::sum(&given), "{by:?}, {values}, {hosts:?}");
                }
            }
        }
    }
}

const HOSTS: [u32; 5] = [0, 1, 1, 0, 1];

/// Calls that must fail alike on all ranks, and leave the vectors; the group goes on.
fn refused(vector: impl Fn(u32) -> Vec<f32> + Clone + Send + 'static, by: LeaderSum) -> Vec<Error> {
    let over_slots = on_hosts_with_slots(&HOSTS, {
        let vector = vector.clone();
        move |group| {
            let mut own = vector(group.rank());
            let call = |own: &mut [f32]| group.hierarchical_all_reduce(own, 2, by, &mut Coder::pairs());
            let error = call(&mut own).unwrap_err();
            assert_eq!(bits(&own), bits(&vector(group.rank())), "the vector has changed");
            assert_eq!(call(&mut [1.0; 4]).unwrap().len(), 2);
            error
        }
    });
    let by_messages = on_hosts(&HOSTS, None, |group| {
        let own = vector(group.rank());
        async move {
            let (vector, sum) = summed(&group, own.clone(), 2, by).await;
            assert_eq!(bits(&vector), bits(&own), "the vector has changed");
            assert_eq!(summed(&group, vec![1.0; 4], 2, by).await.1.unwrap().len(), 2);
            sum.unwrap_err()
        }
    });
    over_slots.into_iter().chain(by_messages).collect()
}

#[test]
fn values_that_are_not_finite_are_an_error_everywhere() {
    for by in SUMS {
        for bad in 0..HOSTS.len() as u32 {
            let vector = move |rank| vec![1.0, if rank == bad { f32::NAN } else { 2.0 }, 0.0, 4.0];
            let errors = refused(vector, by);
            let is_named = |error: &Error| matches!(error, Error::NonFinite { rank, .. } if rank.0 == bad);
            assert!(errors.iter().all(is_named), "{by:?}, rank {bad}: {errors:?}");
        }
        // The sum of the second host, whose leader is rank 1.
        let vector = |rank: u32| vec![if HOSTS[rank as usize] == 1 { f32::MAX } else { 0.0 }; 4];
        let errors = refused(vector, by);
        let is_named = |error: &Error| matches!(error, Error::NonFinite { rank: Rank(1), .. });
        assert!(errors.iter().all(is_named), "{by:?}: {errors:?}");
    }
}

#[test]
fn sums_between_hosts_that_overflow_are_an_error_everywhere() {
    let vector = |rank: u32| vec![if rank < 2 { f32::MAX } else { 0.0 }, 1.0, 0.0, 0.0];
    for by in SUMS {
        let errors = refused(vector, by);
        let is_told = |error: &Error| match by {
            LeaderSum::Topk => matches!(error, Error::Overflow { tensor: 0 }),
            LeaderSum::Gtopk(_) => matches!(error, Error::NonFinite { .. }),
        };
        assert!(errors.iter().all(is_told), "{by:?}: {errors:?}");
    }
}

#[test]
fn ranks_that_call_otherwise_are_told() {
    let by = LeaderSum::Gtopk(PutBack::Conserving);
    for (k, other, named) in [
        (21, by, "at most 21 entries a rank (gtop-k, conserving)"),
        (20, LeaderSum::Topk, "hierarchical all-reduce of 300 f32, at most 20 entries a rank (top-k)"),
        (20, LeaderSum::Gtopk(PutBack::Published), "(gtop-k, published)"),
    ] {
        let errors = on_hosts_with_slots(&[0, 0, 1], move |group| {
            let (k, by) = if group.rank() == 1 { (k, other) } else { (20, by) };
            let result = group.hierarchical_all_reduce(&mut [1.0; COUNT], k, by, &mut Coder::pairs());
            result.and_then(|_| group.barrier()).unwrap_err()
        });
        let is_told = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_told), "{errors:?}");
        assert!(errors.iter().any(|error| error.to_string().contains(named)), "{named}: {errors:?}");
    }
}

/// Each survivor has the result, or an error that names the dead and its vector as it was.
#[test]
fn a_death_at_any_message_is_told() {
    let mut kills = 0;
    let three = [&[0, 0, 1][..], &[0, 1, 0], &[0, 0, 0]];
    let four = [&[0, 0, 1, 1][..], &[0, 1, 0, 1], &[0, 0, 0, 1]];
    for hosts in [&[0, 0][..], &[0, 1]].into_iter().chain(three).chain(four) {
        for (victim, by) in (0..hosts.len()).flat_map(|victim| SUMS.map(|by| (victim, by))) {
            let ranks = |fault| {
                on_hosts(hosts, fault, |group| async move {
                    let own = oracle::vector(group.rank(), COUNT);
                    let (vector, result) = summed(&group, own.clone(), 9, by).await;
                    (vector == own, result, group.statistics().messages_sent)
                })
            };
            let calm = ranks(None);
            let sum = calm[0].1.as_ref().unwrap();
            for messages in 1..=calm[victim].2 {
                let fault = Fault::KillAfter { rank: Rank(victim as u32), messages };
                for (rank, (is_unchanged, result, _)) in ranks(Some(fault)).iter().enumerate() {
                    let is_right = match result {
                        Ok(found) => found == sum,
                        Err(_) => *is_unchanged && is_lost(result, victim as u32),
                    };
                    let about = format!("rank {rank} of {hosts:?}, {by:?}, {fault:?}");
                    assert!(is_right || rank == victim, "{about}: {result:?}");
                }
                kills += 1;
            }
        }
    }
    assert!(kills > 60, "{kills} kills");
}

/// A call that others make at the same time on other groups, and twice at once on one.
#[test]
fn several_calls_are_pending_at_once() {
    let by = LeaderSum::Gtopk(PutBack::Conserving);
    let found = on_hosts_with_slots(&[0, 0, 1, 1], move |group| {
        let start = |shift| {
            let vector = oracle::vector(group.rank() + shift, COUNT);
            group.start_compressed(HierarchicalAllReduce { vector, k: 20, by, coder: Coder::pairs() })
        };
        let handles = [start(0), start(10), start(20)];
        handles.map(|handle| handle.wait()).map(|(given, sum)| (given.vector, sum.unwrap()))
    });
    for (place, shift) in [0, 10, 20].into_iter().enumerate() {
        let vectors: Vec<_> = (0..4).map(|rank| oracle::vector(rank + shift, COUNT)).collect();
        let found: Vec<_> = found.iter().map(|calls| calls[place].clone()).collect();
        check(&[0, 0, 1, 1], by, 20, &vectors, &found);
    }
}
