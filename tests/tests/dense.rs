//! Every dense collective by every algorithm: on the simulated network, on every wire, and with a death at
//! every message.

use std::time::Duration;

use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::dense::{all_algorithms, check_all};
use brevity_tests::mixed::is_lost;
use brevity_tests::{block_on, on_host, on_transports};

const COUNTS: [usize; 4] = [0, 1, 7, 1000];

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
                COUNTS.iter().for_each(|count| block_on(check_all(group, *count, None)).unwrap());
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

/// Each survivor has the right result, or an error that names the dead.
#[test]
fn a_death_at_any_message_is_told() {
    const COUNT: usize = 13;
    for (world_size, victim) in [(2, 1), (3, 0), (4, 3), (5, 4), (5, 1)] {
        for only in all_algorithms() {
            let work = |fault| {
                on_sim(world_size, fault, |group| async move {
                    let result = check_all(&group, COUNT, Some(only)).await;
                    (result, group.statistics().messages_sent)
                })
            };
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
    }
}
