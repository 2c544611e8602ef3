//! Every dense collective by every algorithm: on the simulated network, on every wire, and with a death at
//! every message.

use std::time::Duration;

use brevity::collectives::{Algorithm, Call, Description, Error, Operation, Topology};
use brevity::transport::Rank;
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::dense::{Only, all_algorithms, all_reduce_by, check_all, check_any_order, check_placed};
use brevity_tests::mixed::is_lost;
use brevity_tests::{block_on, on_groups, on_host, on_transports};

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

/// Between hosts, whatever is the fastest for them: trees where a message takes long, a direct exchange where
/// a byte does. Nothing else changes.
#[test]
fn between_hosts_any_algorithm_gives_the_same() {
    let hosts: Vec<u32> = (0..16).map(|rank| rank / 2).collect();
    let gather = Operation::GATHER;
    for operation in
        [Operation::REDUCE, Operation::BROADCAST, Operation::ALL_TO_ALL, Operation::SCATTER, gather]
    {
        let only = Some(Only(operation, Algorithm::Hosts));
        let sent = ["between:1000,1000,0", "between:0,0,1000"].map(|machine| {
            let machine = Some(machine.parse().unwrap());
            let settings = Settings { machine, ..in_segments(4096) };
            let ends = run(Cluster::new(16, Links::new(20e-6, 1e-9)), |transport| {
                let opened = Opened::in_process(transport, None).with_hosts(&hosts);
                let (group, topology) = (Group::opened(opened, settings), Topology::of(&hosts));
                async move {
                    check_placed(&group, topology, 3000, only).await.unwrap();
                    group.statistics().messages_sent
                }
            });
            ends.unwrap()
        });
        // A rank sends one message to a gather, wherever it goes.
        assert!(operation == gather || sent[0] != sent[1], "{operation}");
    }
}

/// Ring and levels of hosts that cut across the order of ranks, with floating-point numbers.
#[test]
fn sums_in_any_order_match_their_oracle() {
    let apart: Vec<Vec<u32>> = (3..=9).map(|world_size| (0..world_size).collect()).collect();
    let placed = PLACEMENTS[2..].iter().map(|hosts| hosts.to_vec());
    for hosts in apart.into_iter().chain(placed) {
        let topology = Topology::of(&hosts);
        let settings = Settings { any_order: true, ..in_segments(256) };
        for count in COUNTS {
            let cluster = Cluster::new(hosts.len() as u32, Links::new(20e-6, 1e-9));
            let results = run(cluster, |transport| {
                let opened = Opened::in_process(transport, None).with_hosts(&hosts);
                let group = Group::opened(opened, settings);
                async move { check_any_order(&group, topology, count).await }
            });
            results.unwrap().into_iter().for_each(Result::unwrap);
        }
    }
}

/// Threads that share memory, each taken for a rank of one of these hosts.
pub(crate) fn on_hosts_with_slots<R: Send + 'static>(
    hosts: &'static [u32],
    settings: Settings,
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let world_size = hosts.len() as u32;
    let ranks = local::world(world_size).into_iter().zip(LocalGroup::in_process(world_size).unwrap());
    let groups = ranks.map(|(rank, local_group)| {
        let opened = Opened::in_process(Box::new(rank), Some(local_group));
        Group::opened(opened.with_hosts(hosts), settings)
    });
    on_groups(groups.collect(), body)
}

/// So many bytes a segment.
pub(crate) fn in_segments(segment_bytes: usize) -> Settings {
    Settings { timeout: Duration::from_secs(100), segment_bytes, ..Settings::default() }
}

#[test]
fn levels_of_hosts_over_slots_match_their_oracle() {
    for hosts in PLACEMENTS.into_iter().chain([&[0, 0, 0, 1, 1, 1][..], &[0, 1, 1]]) {
        let topology = Topology::of(hosts);
        for (segment, counts) in [(256, &[0, 1, 7, 1000][..]), (64 << 10, &[100_001])] {
            on_hosts_with_slots(hosts, in_segments(segment), move |group| {
                for count in counts {
                    block_on(check_placed(group, topology, *count, None)).unwrap();
                }
            });
        }
    }
}

/// Inside the hosts nothing is sent, whether a call blocks, is started or is in the body of another.
#[test]
fn levels_of_hosts_use_slots_inside() {
    const COUNT: usize = 5000;
    let body = || Description::new(Operation::MESSAGE, 0, 0);
    let sent = on_hosts_with_slots(PLACEMENTS[0], in_segments(4096), move |group| {
        let by_hosts = group.with_algorithm(Some(Algorithm::Hosts));
        let count = |work: &dyn Fn()| {
            let before = group.statistics();
            work();
            let after = group.statistics();
            (after.messages_sent - before.messages_sent, after.bytes_shared - before.bytes_shared)
        };
        let own = || vec![1f32; COUNT];
        let sum = |data: &[f32]| assert!(data.iter().all(|sum| *sum == 4.0));
        let blocking = count(&|| {
            let mut data = own();
            by_hosts.all_reduce(&mut data, ReduceOp::Sum).unwrap();
            sum(&data);
        });
        let started = count(&|| {
            let (data, result) = by_hosts.start_all_reduce(own(), ReduceOp::Sum).wait();
            result.unwrap();
            sum(&data);
        });
        let inside = count(&|| {
            let call =
                async |call: &Call<'_, '_>| all_reduce_by(call, Algorithm::Hosts, own(), ReduceOp::Sum).await;
            sum(&group.run_in_order(body(), call).unwrap());
        });
        let by_messages = count(&|| {
            let call =
                async |call: &Call<'_, '_>| all_reduce_by(call, Algorithm::Hosts, own(), ReduceOp::Sum).await;
            sum(&group.run(body(), call).unwrap());
        });
        let barrier = count(&|| by_hosts.barrier().unwrap());
        (blocking, started, inside, by_messages, barrier)
    });
    // Both ranks of a host exchange their half with one of the other host, in 3 segments: sums and results.
    for (rank, (blocking, started, inside, by_messages, barrier)) in sent.into_iter().enumerate() {
        assert_eq!(blocking.0, by_messages.0 - 2 * 3, "rank {rank}");
        assert!(blocking.1 >= 4 * COUNT as u64 && by_messages.1 == 0, "{blocking:?}, {by_messages:?}");
        assert_eq!((started, inside), (blocking, blocking), "rank {rank}");
        assert_eq!(barrier.0, u64::from(rank % 2 == 0), "the first of each host");
    }
}

/// Calls use the slots one after the other, although many are in progress.
#[test]
fn calls_by_hosts_do_not_get_in_each_others_way() {
    on_hosts_with_slots(PLACEMENTS[0], in_segments(4096), |group| {
        let by_hosts = group.with_algorithm(Some(Algorithm::Hosts));
        let part = group.split(Some(group.rank() % 2), 0).unwrap().unwrap();
        let pair = group.split(Some(group.rank() / 2), 0).unwrap().unwrap();
        for round in 0..10 {
            let counts = [5000, 7, 3000, 0, 20_000];
            let start = |count: &usize| by_hosts.start_all_reduce(vec![1f32; *count], ReduceOp::Sum);
            let sums: Vec<_> = counts.iter().map(start).collect();
            let barrier = by_hosts.start_barrier();
            let others = [&part, &pair].map(|other| other.start_all_reduce(vec![1f32; 500], ReduceOp::Sum));
            if round % 2 == 0 {
                barrier.wait().1.unwrap();
            }
            for sum in sums.into_iter().rev() {
                let (data, result) = sum.wait();
                result.unwrap();
                assert!(data.iter().all(|sum| *sum == 4.0));
            }
            for other in others {
                let (data, result) = other.wait();
                result.unwrap();
                assert!(data.iter().all(|sum| *sum == 2.0));
            }
        }
    });
}

/// A host's part of a group that is split has slots of its own.
#[test]
fn parts_of_a_group_have_slots_on_each_host() {
    let shared = on_hosts_with_slots(PLACEMENTS[1], in_segments(4096), |group| {
        // Two ranks of each host.
        let part = group.split(Some(group.rank() % 2), group.rank()).unwrap().unwrap();
        for _ in 0..3 {
            let mut data = vec![1f32; 5000];
            part.with_algorithm(Some(Algorithm::Hosts)).all_reduce(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|sum| *sum == 4.0));
        }
        part.statistics().bytes_shared
    });
    assert!(shared.iter().all(|bytes| *bytes > 4 * 5000), "{shared:?}");
}

/// One rank stays away: the others' deadline ends their calls, wherever these wait, and names a rank.
#[test]
fn a_rank_that_does_not_come_ends_calls_by_hosts() {
    let late = Settings { timeout: Duration::from_millis(300), ..in_segments(4096) };
    for away in [0, 1, 3] {
        let ends = on_hosts_with_slots(PLACEMENTS[0], late, move |group| {
            let by_hosts = group.with_algorithm(Some(Algorithm::Hosts));
            if group.rank() == away {
                // It sees the group closed by the others.
                while !group.is_closed() {
                    std::thread::yield_now();
                }
                return by_hosts.barrier();
            }
            by_hosts.all_reduce(&mut vec![1f32; 5000], ReduceOp::Sum)
        });
        for end in ends {
            assert!(matches!(end, Err(Error::Timeout { .. } | Error::Aborted { .. })), "{away}: {end:?}");
        }
    }
}

/// Ranks that make different calls are told so, over slots as between hosts.
#[test]
fn calls_by_hosts_that_differ_are_told() {
    for odd in 0..4 {
        let ends = on_hosts_with_slots(PLACEMENTS[0], in_segments(4096), move |group| {
            let by_hosts = group.with_algorithm(Some(Algorithm::Hosts));
            let count = if group.rank() == odd { 5001 } else { 5000 };
            by_hosts.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
        });
        for end in ends {
            assert!(matches!(end, Err(Error::Mismatch { .. } | Error::Differs { .. })), "{odd}: {end:?}");
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

/// Blocks are so long that senders wait for receivers.
#[test]
fn each_rank_chooses_whether_it_exchanges_in_place() {
    for world_size in 2..=5 {
        on_transports(Wire::Tcp.world(world_size), move |group| {
            for algorithm in [Algorithm::Pairwise, Algorithm::Direct, Algorithm::Bruck] {
                for choice in 1..(1 << world_size) - 1 {
                    let is_in_place = choice >> group.rank() & 1 == 1;
                    let is_right = exchange(&group.with_algorithm(Some(algorithm)), is_in_place);
                    assert!(is_right, "{algorithm} of {world_size} ranks, {choice:b} in place");
                }
            }
        });
    }
}

/// Makes an all-to-all, and returns whether its result is right.
fn exchange(group: &Group, is_in_place: bool) -> bool {
    let (rank, world_size) = (group.rank(), group.world_size());
    let blocks = |of: &dyn Fn(u32) -> u32| -> Vec<u32> {
        (0..world_size).flat_map(|peer| vec![of(peer); LONG]).collect()
    };
    let mut data = blocks(&|to| rank * world_size + to);
    if is_in_place {
        group.all_to_all_in_place(&mut data).unwrap();
    } else {
        let input = data.clone();
        group.all_to_all(&input, &mut data).unwrap();
    }
    data == blocks(&|from| from * world_size + rank)
}

/// Each survivor has the right result, or an error that names the dead. `work` runs an algorithm on each rank
/// with a fault, and returns how that ended, and the messages that were sent.
///
/// Returns whether the victim sends any, and so dies.
fn check_deaths(
    (world_size, victim): (u32, u32),
    only: Only,
    work: impl Fn(Option<Fault>) -> Vec<(brevity::collectives::Result<()>, u64)>,
) -> bool {
    let calm = work(None);
    assert!(calm.iter().all(|(result, _)| result.is_ok()), "{only:?}");
    for messages in 1..=calm[victim as usize].1 {
        let fault = Fault::KillAfter { rank: Rank(victim), messages };
        for (rank, (result, _)) in work(Some(fault)).iter().enumerate() {
            let is_right = rank == victim as usize || result.is_ok() || is_lost(result, victim);
            assert!(is_right, "rank {rank} of {world_size}, {only:?}, {fault:?}: {result:?}");
        }
    }
    calm[victim as usize].1 > 0
}

#[test]
fn a_death_at_any_message_is_told() {
    const COUNT: usize = 13;
    let mut untried = all_algorithms();
    // No two ranks have a host, or memory to share.
    untried.retain(|Only(_, algorithm)| !matches!(algorithm, Algorithm::Hosts | Algorithm::Slots));
    for (world_size, victim) in [(2, 1), (3, 0), (4, 3), (5, 4), (5, 1)] {
        for only in all_algorithms() {
            let has_died = check_deaths((world_size, victim), only, |fault| {
                on_sim(world_size, fault, |group| async move {
                    let result = check_all(&group, COUNT, Some(only)).await;
                    (result, group.statistics().messages_sent)
                })
            });
            untried.retain(|untried| *untried != only || world_size < 3 || !has_died);
        }
    }
    assert!(untried.is_empty(), "nobody dies in {untried:?} of three ranks and more");
}

#[test]
fn a_death_at_any_message_between_hosts_is_told() {
    const COUNT: usize = 13;
    let by_hosts =
        || all_algorithms().into_iter().filter(|Only(_, algorithm)| *algorithm == Algorithm::Hosts);
    let mut untried: Vec<Only> = by_hosts().collect();
    for (hosts, victim) in
        [(&[0, 0, 1, 1][..], 3), (&[0, 0, 1, 1], 0), (&[0, 1, 0, 1, 1], 2), (&[0, 1, 0, 1], 1)]
    {
        let topology = Topology::of(hosts);
        for only in by_hosts() {
            let has_died = check_deaths((hosts.len() as u32, victim), only, |fault| {
                on_hosts(hosts, fault, |group| async move {
                    let result = check_placed(&group, topology, COUNT, Some(only)).await;
                    (result, group.statistics().messages_sent)
                })
            });
            untried.retain(|untried| *untried != only || !has_died);
        }
    }
    assert!(untried.is_empty(), "nobody dies in {untried:?}");
}
