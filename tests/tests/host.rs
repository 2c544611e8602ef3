//! Collectives over the memory that ranks of one host share; ranks are threads, each with its own mapping.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use brevity::collectives::Error;
use brevity::transport::bootstrap::Opened;
use brevity::transport::buffer::Pool;
use brevity::transport::shm::{DEPTH, LocalGroup};
use brevity::transport::{Rank, local};
use brevity::{Element, Group, ReduceOp, Settings};
use brevity_tests::suite::{self, HOST_COUNTS, WORLD_SIZES};
use brevity_tests::{on_host, on_local, oracle};
use proptest::prelude::*;

/// A call on a group, with its result.
type Attempt = fn(&Group) -> Result<(), Error>;

fn hasty() -> Settings {
    Settings { timeout: Duration::from_millis(300), ..Settings::default() }
}

#[test]
fn every_collective_matches_its_oracle() {
    for world_size in WORLD_SIZES {
        on_host(world_size, Settings::default(), |group| {
            for count in HOST_COUNTS {
                suite::run_on_group(group, count);
            }
        });
    }
}

/// Nothing is sent: the calls really use shared memory.
#[test]
fn no_message_is_sent() {
    let statistics = on_host(3, Settings::default(), |group| {
        suite::run_on_group(group, 1000);
        group.statistics()
    });
    assert!(statistics.iter().all(|statistics| statistics.messages_sent == 0), "{statistics:?}");
}

/// Long enough for non-temporal stores, and not a multiple of anything.
#[test]
fn what_no_cache_holds_is_broadcast_too() {
    let count = (32 << 18) + 4099;
    let results = on_host(3, Settings::default(), move |group| {
        let value = |index: usize| (index % 8191) as f32;
        let mut data: Vec<f32> =
            if group.rank() == 1 { (0..count).map(value).collect() } else { vec![0.0; count] };
        group.broadcast(&mut data, 1).unwrap();
        (0..count).find(|&index| data[index] != value(index))
    });
    assert_eq!(results, [None; 3]);
}

/// Several chunks, which are at other places of the slots in each step; roots change, and lengths are not a
/// multiple of anything.
#[test]
fn chunks_are_broadcast_wherever_they_lie() {
    for world_size in 2..5 {
        on_host(world_size, Settings::default(), move |group| {
            for turn in 0..24 {
                let (root, count) =
                    (turn / 3 % world_size, [3, 5000, 16_384, 40_001, 270_000][turn as usize % 5]);
                let value = |index: usize| (index % 8191 + turn as usize) as f32;
                let mut data = vec![0.0; count + 1];
                if group.rank() == root {
                    (0..count).for_each(|index| data[1 + index] = value(index));
                }
                group.broadcast(&mut data[1..], root).unwrap();
                let wrong = (0..count).find(|&index| data[1 + index] != value(index));
                // The others may not have all of it yet when the root's call returns.
                data.fill(-1.0);
                assert_eq!(wrong, None, "turn {turn} at {}", group.rank());
            }
        });
    }
}

/// Each rank is late in turn, so that the others publish by every method and then wait by the slow path.
#[test]
fn who_comes_late_is_reduced_too() {
    for world_size in 2..5 {
        on_host(world_size, Settings::default(), move |group| {
            for (turn, count) in [1, 16, 100, 1000, 5000, 40_000].repeat(4).into_iter().enumerate() {
                let value = |rank: u32, index: usize| (rank as usize * 7 + index % 31 + turn) as f32;
                let mut data: Vec<f32> = (0..count).map(|index| value(group.rank(), index)).collect();
                if turn as u32 / 6 % world_size == group.rank() {
                    std::thread::sleep(Duration::from_millis(3));
                }
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                let sum = |index| (0..world_size).map(|rank| value(rank, index)).sum::<f32>();
                assert_eq!(
                    (0..count).find(|&index| data[index] != sum(index)),
                    None,
                    "turn {turn}, {count} elements"
                );
            }
        });
    }
}

fn reduce_all<T: Element>(value: fn(u32, usize) -> T, combine: fn(T, T) -> T, reduction: ReduceOp) {
    for count in [3, 100, 3000, 100_000] {
        let results = on_host(4, Settings::default(), move |group| {
            let mut data: Vec<T> = (0..count).map(|index| value(group.rank(), index)).collect();
            group.all_reduce(&mut data, reduction).unwrap();
            data
        });
        let expected: Vec<T> =
            (0..count).map(|index| (0..4).map(|rank| value(rank, index)).reduce(combine).unwrap()).collect();
        assert!(
            results.iter().all(|result| *result == expected),
            "{reduction:?} of {count} {}",
            T::TYPE.name()
        );
    }
}

#[test]
fn every_element_type_and_reduction() {
    reduce_all::<u8>(
        |rank, index| (index as u8).wrapping_mul(rank as u8 + 7),
        u8::wrapping_add,
        ReduceOp::Sum,
    );
    reduce_all::<i64>(|rank, index| index as i64 - 50 * i64::from(rank), i64::max, ReduceOp::Max);
    reduce_all::<u32>(|rank, index| index as u32 ^ rank, u32::min, ReduceOp::Min);
    reduce_all::<f64>(|rank, index| f64::from(oracle::value(rank, index)), |a, b| a + b, ReduceOp::Sum);
}

/// Neither call begins: the ranks' next calls still match, whichever of the two each rank has made.
#[test]
fn an_average_of_integers_begins_no_call() {
    let body = |group: &Group| {
        let refused = if group.rank() == 0 {
            group.all_reduce(&mut [1i32], ReduceOp::Average)
        } else {
            let (data, result) = group.start_all_reduce(vec![1i32], ReduceOp::Average).wait();
            assert_eq!(data, [1]);
            result
        };
        assert!(
            matches!(refused, Err(Error::Reduction { reduction: "average", element: "i32" })),
            "{refused:?}"
        );
        let mut data = [1i32];
        group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
        data
    };
    assert_eq!(on_host(2, Settings::default(), body), [[2], [2]]);
    assert_eq!(on_local(2, body), [[2], [2]]);
}

/// Floats whose sum depends on the order of addition: in the fixed order, the same bits everywhere.
#[test]
fn sums_are_in_the_fixed_order_on_every_rank() {
    let value =
        |rank: u32, index: usize| oracle::value(rank, index) / 3.0 + 1e-3 * oracle::value(rank + 9, index);
    for world_size in [2u32, 3, 4, 5] {
        for count in [7, 1000, 200_000] {
            let results = on_host(world_size, Settings::default(), move |group| {
                let mut data: Vec<f32> = (0..count).map(|index| value(group.rank(), index)).collect();
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                data
            });
            let members = 1 << world_size.ilog2();
            let sum = |index: usize| {
                let guest = |rank: u32| (rank + members < world_size).then(|| value(rank + members, index));
                let mut sums: Vec<f32> = (0..members)
                    .map(|rank| guest(rank).map_or(value(rank, index), |guest| value(rank, index) + guest))
                    .collect();
                while sums.len() > 1 {
                    sums = sums.chunks(2).map(|pair| pair[0] + pair[1]).collect();
                }
                sums[0]
            };
            let expected: Vec<f32> = (0..count).map(sum).collect();
            assert!(results.iter().all(|result| *result == expected), "P = {world_size}, n = {count}");
        }
    }
}

/// The errors of all ranks except the last, which does `other` and drops its group.
fn errors(settings: Settings, other: fn(&Group)) -> Vec<Error> {
    let mut results = on_host(3, settings, move |group| {
        if group.rank() == 2 {
            other(group);
            return None;
        }
        group.all_reduce(&mut vec![1.0f32; 100_000], ReduceOp::Sum).err()
    });
    assert!(results.pop().is_some());
    results.into_iter().map(Option::unwrap).collect()
}

#[test]
fn who_leaves_is_named() {
    for error in errors(Settings::default(), |_| {}) {
        assert!(matches!(error, Error::PeerLost { rank: Rank(2) }), "{error}");
    }
}

#[test]
fn who_aborts_is_named() {
    for error in errors(Settings::default(), Group::abort) {
        assert!(matches!(error, Error::Aborted { rank: Rank(2) }), "{error}");
    }
}

/// A root waits for no rank until the slots are full, and then in the first round of its call.
#[test]
fn a_timeout_names_the_call_and_its_round() {
    let errors = on_host(2, hasty(), |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_secs(2));
            return None;
        }
        for _ in 0..DEPTH {
            group.broadcast(&mut [1.0f32; 2], 0).unwrap();
        }
        group.all_reduce(&mut [1.0f32; 2], ReduceOp::Sum).err()
    });
    let error = errors.into_iter().flatten().next().unwrap();
    let Error::Timeout { sequence, round, rank, .. } = error else { panic!("{error:?}") };
    assert_eq!((u64::from(sequence), round, rank), (DEPTH, 0, Rank(1)));
}

#[test]
fn a_rank_that_sleeps_is_a_timeout() {
    let errors = errors(hasty(), |_| std::thread::sleep(Duration::from_secs(2)));
    assert!(errors.iter().any(|error| matches!(error, Error::Timeout { rank: Rank(2), .. })), "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error, Error::Timeout { .. })), "{errors:?}");
}

#[test]
fn who_calls_something_else_is_named() {
    let others: [Attempt; 5] = [
        |group| group.all_reduce(&mut vec![1.0f32; 99_999], ReduceOp::Sum),
        |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum),
        |group| group.broadcast(&mut vec![1.0f32; 100_000], 2),
        |group| group.broadcast_shared(Pool::new().take::<f32>(100_000).unwrap(), 0).map(drop),
        |group| group.barrier(),
    ];
    for other in others {
        let errors = on_host(3, Settings::default(), move |group| match group.rank() {
            2 => other(group).unwrap_err(),
            _ => group.all_reduce(&mut vec![1.0f32; 100_000], ReduceOp::Sum).unwrap_err(),
        });
        // The first rank to notice reports it and closes the group before the others have seen it. That may
        // be rank 2 itself.
        let names = |rank: usize| matches!(errors[rank], Error::Mismatch { rank: Rank(2), .. });
        assert!(names(0) || names(1) || matches!(errors[2], Error::Mismatch { .. }), "{errors:?}");
        let is_end = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_end), "{errors:?}");
    }
}

/// Ranks learn of a loss one after the other. To a rank that does not know yet, what a rank with a closed
/// group calls would be a mismatch: these two share memory, but send no messages, so rank 0 never learns.
#[test]
fn a_closed_group_says_nothing_to_those_who_have_not_heard() {
    let others: [Attempt; 4] = [
        |group| group.barrier(),
        |group| group.all_reduce(&mut [1.0f32], ReduceOp::Sum),
        |group| group.start_all_reduce(vec![1.0f32], ReduceOp::Sum).wait().1,
        |group| group.broadcast(&mut [1.0f32], 1),
    ];
    for other in others {
        let mut worlds = [local::world(2), local::world(2)];
        let local_groups = LocalGroup::in_process(2).unwrap().into_iter().enumerate();
        let groups: Vec<_> = local_groups
            .map(|(rank, local_group)| {
                let transport = Box::new(worlds[rank].swap_remove(rank));
                Group::opened(Opened::in_process(transport, Some(local_group)), Settings::default())
            })
            .collect();
        let pending = groups[0].start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum);
        groups[1].abort();
        assert!(matches!(other(&groups[1]), Err(Error::Aborted { rank: Rank(1) })));
        for _ in 0..1000 {
            groups[0].progress();
        }
        assert!(!pending.test(), "{:?}", pending.wait().1);
    }
}

/// A poll takes long when ranks share processors or sleep: after a while the rank checks its peer, however
/// few polls there were.
#[test]
fn who_has_waited_for_a_while_looks_whether_its_peer_is_there() {
    let ranks = local::world(2).into_iter().zip(LocalGroup::in_process(2).unwrap());
    let mut groups: Vec<_> = ranks
        .map(|(rank, local_group)| {
            let opened = Opened::in_process(Box::new(rank), Some(local_group));
            Group::opened(opened, Settings::default())
        })
        .collect();
    let pending = groups[0].start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum);
    drop(groups.pop());
    groups[0].progress();
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..3 {
        groups[0].progress();
    }
    assert!(pending.test(), "it is not looked for");
    assert!(matches!(pending.wait().1, Err(Error::PeerLost { rank: Rank(1) })));
}

/// A rank that writes arbitrary bytes into its segment: the others end with an error or with wrong numbers.
#[test]
fn garbage_in_a_segment_does_no_harm() {
    for seed in 1..6u64 {
        let results = on_host(3, hasty(), move |group| {
            if group.rank() < 2 {
                let mut outcome = Ok(());
                for count in [1, 1000, 100_000].into_iter().cycle().take(300) {
                    outcome =
                        outcome.and_then(|()| group.all_reduce(&mut vec![1.0f32; count], ReduceOp::Sum));
                }
                return outcome.is_err();
            }
            let slots = group.local_group().unwrap().own_slots(0);
            let mut state = seed;
            let end = Instant::now() + Duration::from_millis(600);
            while Instant::now() < end {
                for at in (0..8192).step_by(8) {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                    let shift = (state >> 58) as u32;
                    slots.word(at).store(state >> shift, Ordering::Relaxed);
                }
            }
            true
        });
        assert!(results.iter().all(|ended| *ended), "garbage was taken for three hundred calls");
    }
}

/// Calls of every kind, started in the same order and waited for in another.
#[derive(Clone, Debug)]
enum Step {
    AllReduce(usize),
    Start(usize),
    Broadcast(usize, u32),
    AllGather(usize),
    Barrier,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let count = || prop_oneof![0..200usize, 0..3000usize, 0..70_000usize];
    let step = prop_oneof![
        count().prop_map(Step::AllReduce),
        count().prop_map(Step::Start),
        (count(), 0..8u32).prop_map(|(count, root)| Step::Broadcast(count, root)),
        count().prop_map(Step::AllGather),
        Just(Step::Barrier),
    ];
    prop::collection::vec(step, 1..20)
}

fn play(group: &Group, steps: &[Step]) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let all = |count| suite::vectors(world_size, count);
    let mut handles = Vec::new();
    for step in steps {
        match *step {
            Step::AllReduce(count) => {
                let mut data = oracle::vector(rank, count);
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert_eq!(data, oracle::sum(&all(count)), "{step:?}");
            }
            Step::Start(count) => {
                handles.push(group.start_all_reduce(oracle::vector(rank, count), ReduceOp::Sum))
            }
            Step::Broadcast(count, root) => {
                let mut data = oracle::vector(rank, count);
                group.broadcast(&mut data, root % world_size).unwrap();
                assert_eq!(data, oracle::vector(root % world_size, count), "{step:?}");
            }
            Step::AllGather(count) => {
                let mut data = vec![0.0; count * world_size as usize];
                group.all_gather(&oracle::vector(rank, count), &mut data).unwrap();
                assert_eq!(data, all(count).concat(), "{step:?}");
            }
            Step::Barrier => group.barrier().unwrap(),
        }
    }
    if rank % 2 == 1 {
        handles.reverse();
    }
    for handle in handles {
        let (data, result) = handle.wait();
        result.unwrap();
        assert_eq!(data, oracle::sum(&all(data.len())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_in_any_order(world_size in 1..6u32, steps in steps()) {
        on_host(world_size, Settings::default(), move |group| play(group, &steps));
    }
}
