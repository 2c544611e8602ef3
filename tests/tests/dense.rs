//! Every dense collective by every algorithm: on the simulated network, on every wire, and with a death at
//! every message.

use std::time::Duration;

use brevity::collectives::{Algorithm, Topology};
use brevity::transport::Rank;
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::dense::{Only, all_algorithms, check_all, check_placed};
use brevity_tests::mixed::is_lost;
use brevity_tests::{block_on, on_host, on_transports};

const COUNTS: [usize; 4] = [0, 1, 7, 1000];

/// So many elements that parts of them are sent when they are received, not before.
const LONG: usize = 20_000;

/// The elements of a slice of a segment.
const SLICE: usize = (512 << 10) / 4;

fn on_sim<R, F>(world_size: u32, fault: Option<Fault>, body: impl Fn(Group) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let cluster = Cluster::new(world_size, Links::new(20e-6, 1e-9)).with_faults(fault);
    let settings = Settings { timeout: Duration::from_secs(100), ..Settings::default() };
    run(cluster, |transport| body(Group::new(transport, settings))).unwrap()
}

#[test]
fn every_algorithm_matches_its_oracle() {
    for world_size in (1..=9).chain([16, 33]) {
        for count in COUNTS {
            for result in
                on_sim(world_size, None, |group| async move { check_all(&group, count, None).await })
            {
                result.unwrap();
            }
        }
    }
}

/// Ranks of hosts, by rank: two of two, two of four, three of two, three that differ, and round robin.
const PLACEMENTS: [&[u32]; 5] =
    [&[0, 0, 1, 1], &[0, 0, 0, 0, 1, 1, 1, 1], &[0, 0, 1, 1, 2, 2], &[0, 0, 0, 1, 2, 2], &[0, 1, 0, 1]];

fn on_hosts<R, F>(hosts: &[u32], fault: Option<Fault>, body: impl Fn(Group) -> F) -> Vec<R>
where
    F: Future<Output = R>,
{
    let cluster = Cluster::new(hosts.len() as u32, Links::new(20e-6, 1e-9)).with_faults(fault);
    // Short segments, so that vectors have several.
    let settings = Settings { timeout: Duration::from_secs(100), segment_bytes: 256, ..Settings::default() };
    run(cluster, |transport| {
        body(Group::opened(Opened::in_process(transport, None).with_hosts(hosts), settings))
    })
    .unwrap()
}

#[test]
fn levels_of_hosts_match_their_oracle() {
    for hosts in PLACEMENTS {
        for count in COUNTS {
            let topology = Topology::of(hosts);
            let results =
                on_hosts(
                    hosts,
                    None,
                    |group| async move { check_placed(&group, topology, count, None).await },
                );
            results.into_iter().for_each(Result::unwrap);
        }
    }
}

/// The fixed order admits sums by hosts only where it is theirs too.
#[test]
fn levels_of_hosts_keep_the_order_or_are_refused() {
    for hosts in PLACEMENTS {
        let is_aligned = Topology::of(hosts).is_aligned;
        let refused = on_hosts(hosts, None, |group| async move {
            let by_hosts = group.with_algorithm(Some(Algorithm::Hosts));
            by_hosts.start_all_reduce(vec![1f32; 10], ReduceOp::Sum).await.1
        });
        assert!(refused.iter().all(|result| result.is_ok() == is_aligned), "{hosts:?}: {refused:?}");
    }
    assert!(Topology::of(PLACEMENTS[0]).is_aligned && !Topology::of(PLACEMENTS[2]).is_aligned);
}

#[test]
fn segments_change_nothing() {
    for world_size in [2, 3] {
        for slices in [1, 2, 3] {
            for count in [slices * SLICE - 1, slices * SLICE, slices * SLICE + 1] {
                for result in
                    on_sim(world_size, None, |group| async move { check_all(&group, count, None).await })
                {
                    result.unwrap();
                }
            }
        }
    }
}

on_every_wire! {
    every_collective => |wire: Wire| {
        for world_size in [2, 3, 4] {
            on_transports(wire.world(world_size), |group| {
                for count in COUNTS.into_iter().chain([LONG]) {
                    block_on(check_all(group, count, None)).unwrap();
                }
            });
        }
    };
}

#[test]
fn over_the_slots_of_a_host() {
    for world_size in 2..=5 {
        on_host(world_size, Settings::default(), |group| {
            for count in COUNTS.into_iter().chain([100_001]) {
                block_on(check_all(group, count, None)).unwrap();
            }
        });
    }
}

/// Each survivor has the right result, or an error that names the dead. `work` runs an algorithm on each rank
/// with a fault, and returns how that ended, and the messages that were sent.
fn check_deaths(
    (world_size, victim): (u32, u32),
    only: Only,
    work: impl Fn(Option<Fault>) -> Vec<(brevity::collectives::Result<()>, u64)>,
) {
    let calm = work(None);
    assert!(calm.iter().all(|(result, _)| result.is_ok()), "{only:?}");
    for messages in 1..=calm[victim as usize].1 {
        let fault = Fault::KillAfter { rank: Rank(victim), messages };
        for (rank, (result, _)) in work(Some(fault)).iter().enumerate() {
            let is_right = rank == victim as usize || result.is_ok() || is_lost(result, victim);
            assert!(is_right, "rank {rank} of {world_size}, {only:?}, {fault:?}: {result:?}");
        }
    }
}

#[test]
fn a_death_at_any_message_is_told() {
    const COUNT: usize = 13;
    for (world_size, victim) in [(2, 1), (3, 0), (4, 3), (5, 4), (5, 1)] {
        for only in all_algorithms() {
            check_deaths((world_size, victim), only, |fault| {
                on_sim(world_size, fault, |group| async move {
                    let result = check_all(&group, COUNT, Some(only)).await;
                    (result, group.statistics().messages_sent)
                })
            });
        }
    }
}

#[test]
fn a_death_at_any_message_between_hosts_is_told() {
    const COUNT: usize = 13;
    for (hosts, victim) in [(&[0, 0, 1, 1][..], 3), (&[0, 0, 1, 1], 0), (&[0, 1, 0, 1, 1], 2)] {
        let topology = Topology::of(hosts);
        for only in all_algorithms().into_iter().filter(|Only(_, algorithm)| *algorithm == Algorithm::Hosts) {
            check_deaths((hosts.len() as u32, victim), only, |fault| {
                on_hosts(hosts, fault, |group| async move {
                    let result = check_placed(&group, topology, COUNT, Some(only)).await;
                    (result, group.statistics().messages_sent)
                })
            });
        }
    }
}
