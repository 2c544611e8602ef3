//! Collectives inside the bodies of calls, over the shared memory of ranks of one host. Ranks are threads,
//! each with its own mapping.

mod plans;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::{Duration, Instant};

use brevity::collectives::{
    Call, CallFuture, Chunk, Description, Error, Operation, Result, dense, engine::join,
};
use brevity::transport::Rank;
use brevity::{Group, Handle, ReduceOp, Settings};
use brevity_testing::only_when_woken;
use brevity_tests::suite::{self, HOST_COUNTS, WORLD_SIZES};
use brevity_tests::{on_host, oracle};

/// Long enough for several chunks.
const LENGTH: usize = 100_000;

fn hasty() -> Settings {
    Settings { timeout: Duration::from_millis(300), ..Settings::default() }
}

fn body() -> Description {
    Description::new(Operation::MESSAGE, 0, 0)
}

async fn sum<'env>(call: &Call<'_, 'env>, data: &'env mut [f32]) -> Result<()> {
    let call = call.describe(dense::describe_all_reduce::<f32>(data.len(), ReduceOp::Sum));
    dense::all_reduce(&call, Chunk::from(data), ReduceOp::Sum).await.map(drop)
}

/// The sum of all ranks' vectors, which every rank must get.
fn total(world_size: u32, count: usize) -> Vec<f32> {
    oracle::sum(&suite::vectors(world_size, count))
}

/// All collectives, those over slots mixed with those by messages.
#[test]
fn every_collective_matches_its_oracle() {
    for world_size in WORLD_SIZES {
        on_host(world_size, Settings::default(), |group| {
            for count in [0, 1, 10, 129, 1000, 16_385, 40_000] {
                group.run_in_order(suite::description(), async |call| suite::run(call, count).await);
            }
        });
    }
}

/// The collectives really use shared memory, whether the body blocks or not.
#[test]
fn no_message_is_sent() {
    let statistics = on_host(3, Settings::default(), |group| {
        for count in HOST_COUNTS {
            let mut data = oracle::vector(group.rank(), count);
            group.run_in_order(body(), async |call| all_dense(call, &mut data).await);
            let data = oracle::vector(group.rank(), count);
            group.start_in_order(body(), data, |call, data| Box::pin(all_dense(call, data))).wait();
        }
        group.statistics()
    });
    for statistics in statistics {
        assert_eq!((statistics.messages_sent, statistics.messages_received), (0, 0), "{statistics:?}");
        assert!(statistics.bytes_shared > 4 * HOST_COUNTS.iter().sum::<usize>() as u64, "{statistics:?}");
    }
}

/// Waits for slots wake the task that polls them.
#[test]
fn collectives_end_where_only_what_wakes_is_polled() {
    for world_size in [2, 5] {
        let sums = on_host(world_size, Settings::default(), |group| {
            let mut data = oracle::vector(group.rank(), LENGTH);
            group.run_in_order(body(), async |call| only_when_woken(sum(call, &mut data)).await).unwrap();
            data
        });
        assert!(sums.iter().all(|sum| *sum == total(world_size, LENGTH)));
    }
}

/// Every collective that goes over slots, one after the other.
async fn all_dense<'env>(call: &Call<'_, 'env>, data: &'env mut [f32]) {
    let (rank, world_size, count) = (call.rank(), call.world_size(), data.len());
    sum(call, data).await.unwrap();
    let gathering = call.describe(Description::new(Operation::ALL_GATHER, 0, count));
    let mut all = vec![0.0; count * world_size as usize];
    all[count * rank as usize..][..count].copy_from_slice(&oracle::vector(rank, count));
    let all = dense::all_gather(&gathering, Chunk::from(all)).await.unwrap().into_vec();
    assert_eq!(all, suite::vectors(world_size, count).concat());
    for root in 0..world_size {
        let broadcasting = call.describe(Description::new(Operation::BROADCAST, 0, count));
        let data =
            dense::broadcast(&broadcasting, Chunk::from(oracle::vector(rank, count)), root).await.unwrap();
        assert_eq!(data.into_vec(), oracle::vector(root, count));
    }
}

/// A plain call uses messages only.
#[test]
fn other_bodies_send_messages() {
    let statistics = on_host(2, Settings::default(), |group| {
        let mut data = oracle::vector(group.rank(), 10);
        group.run(body(), async |call| sum(call, &mut data).await).unwrap();
        assert_eq!(data, total(2, 10));
        group.statistics()
    });
    assert!(statistics.iter().all(|statistics| statistics.messages_sent > 0), "{statistics:?}");
}

/// They run one after the other in program order, although all are in progress at once.
#[test]
fn collectives_that_are_joined_have_the_slots_one_after_the_other() {
    on_host(3, Settings::default(), |group| {
        let own = |count| oracle::vector(group.rank(), count);
        for _ in 0..20 {
            let (mut a, mut b, mut c) = (own(LENGTH), own(5), own(3000));
            let results = group.run_in_order(body(), async |call| {
                join(sum(call, &mut a), join(sum(call, &mut b), sum(call, &mut c))).await
            });
            assert!(matches!(results, (Ok(()), (Ok(()), Ok(())))), "{results:?}");
            assert!(a == total(3, LENGTH) && b == total(3, 5) && c == total(3, 3000));
        }
    });
}

/// Ranks of two jobs at once, with calls of both in progress.
#[test]
fn groups_do_not_get_in_each_others_way() {
    on_host(3, Settings::default(), |_| {});
    let others: Vec<_> = on_host(3, Settings::default(), Group::clone);
    on_host(3, Settings::default(), move |group| {
        let other = &others[group.rank() as usize];
        for round in 0..20 {
            let count = [7, 3000, LENGTH][round % 3];
            let handles = [group, other, group].map(|group| start_sum(group, count));
            let mut data = oracle::vector(group.rank(), count);
            other.run_in_order(body(), async |call| sum(call, &mut data).await).unwrap();
            assert!(data == total(3, count));
            for handle in handles {
                let (data, result) = handle.wait();
                result.unwrap();
                assert!(data == total(3, count));
            }
        }
    });
}

type Summed = Handle<(Vec<f32>, Result<()>)>;

/// A sum over slots, a barrier by messages, and a sum over slots of a part.
fn start_sum(group: &Group, count: usize) -> Summed {
    group.start_in_order(body(), oracle::vector(group.rank(), count), |call, data| {
        Box::pin(sum_twice(call, data))
    })
}

async fn sum_twice<'env>(call: &Call<'_, 'env>, data: &'env mut [f32]) -> Result<()> {
    sum(call, data).await?;
    dense::barrier(&call.describe(Description::new(Operation::BARRIER, 0, 0))).await?;
    let again = call.describe(dense::describe_all_reduce::<u64>(3, ReduceOp::Max));
    let ranks = Chunk::from(vec![u64::from(call.rank()); 3]);
    let last = dense::all_reduce(&again, ranks, ReduceOp::Max).await?.into_vec();
    assert_eq!(last, [u64::from(call.world_size()) - 1; 3]);
    Ok(())
}

#[test]
fn bodies_end_while_nobody_turns() {
    on_host(3, Settings { progress_thread: true, ..Settings::default() }, |group| {
        for round in 0..30 {
            let count = [7, 3000, LENGTH][round % 3];
            let (sender, ended) = channel();
            let buffers = (oracle::vector(group.rank(), count), sender);
            let handle = group.start_in_order(body(), buffers, |call, (data, sender)| {
                Box::pin(async move {
                    sender.send(sum_twice(call, data).await).unwrap();
                })
            });
            ended.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
            assert!(handle.wait().0.0 == total(3, count));
        }
    });
}

/// A blocking body waits for earlier ones, which its own thread progresses, and calls over slots wait for it.
#[test]
fn a_dropped_body_goes_on() {
    for progress_thread in [false, true] {
        on_host(3, Settings { progress_thread, ..Settings::default() }, |group| {
            for round in 0..20 {
                let count = [7, 3000, LENGTH][round % 3];
                drop(start_sum(group, count));
                let kept = start_sum(group, 50);
                let mut data = oracle::vector(group.rank(), count);
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data == total(3, count));
                assert!(kept.test(), "it had the slots before");
                assert!(kept.wait().0 == total(3, 50));
            }
            group.barrier().unwrap();
        });
    }
}

/// The errors of the first two ranks in a body that begins with a sum and continues with another, when the
/// last rank does `other` instead and drops its group.
fn errors(settings: Settings, other: fn(&Group)) -> Vec<Error> {
    let mut results = on_host(3, settings, move |group| {
        if group.rank() == 2 {
            other(group);
            return None;
        }
        Some(two_sums(group))
    });
    assert!(results.pop().unwrap().is_none());
    results.into_iter().flatten().collect()
}

/// The error that ends a body that begins with a sum and continues with another.
fn two_sums(group: &Group) -> Error {
    let (mut first, mut second) = (vec![1.0; 10], vec![1.0; LENGTH]);
    let error = group.run_in_order(body(), async |call| match sum(call, &mut first).await {
        Ok(()) => sum(call, &mut second).await.err(),
        Err(error) => Some(error),
    });
    error.unwrap()
}

/// Takes part in the first sum, then does something else inside the body.
fn after_the_first<R>(group: &Group, and_then: impl AsyncFnOnce(&Call<'_, 'static>) -> R) -> R {
    group.run_in_order(body(), async |call| {
        let first = call.describe(dense::AllReduce::new::<f32>(ReduceOp::Sum).unwrap().describe(10));
        dense::all_reduce(&first, Chunk::from(vec![1.0f32; 10]), ReduceOp::Sum).await.unwrap();
        and_then(call).await
    })
}

#[test]
fn who_leaves_is_named() {
    let ends: [fn(&Group); 2] = [|_| {}, |group| after_the_first(group, async |_| {})];
    for error in ends.into_iter().flat_map(|end| errors(Settings::default(), end)) {
        assert!(matches!(error, Error::PeerLost { rank: Rank(2) }), "{error}");
    }
}

#[test]
fn who_aborts_is_named() {
    let aborts: [fn(&Group); 2] =
        [Group::abort, |group| after_the_first(group, async |_| group.clone().abort())];
    for error in aborts.into_iter().flat_map(|abort| errors(Settings::default(), abort)) {
        assert!(matches!(error, Error::Aborted { rank: Rank(2) }), "{error}");
    }
}

#[test]
fn a_rank_that_sleeps_inside_is_a_timeout() {
    let sleeps = |group: &Group| {
        after_the_first(group, async |_| std::thread::sleep(Duration::from_secs(2)));
    };
    let errors = errors(hasty(), sleeps);
    assert!(errors.iter().any(|error| matches!(error, Error::Timeout { rank: Rank(2), .. })), "{errors:?}");
    assert!(errors.iter().all(|error| matches!(error, Error::Timeout { .. })), "{errors:?}");
}

/// Another collective inside, another call, and the same collective of another call.
#[test]
fn who_calls_something_else_is_named() {
    let others: [fn(&Group) -> Error; 5] = [
        |group| {
            after_the_first(group, async |call| {
                let other = call.describe(dense::describe_all_reduce::<f32>(11, ReduceOp::Sum));
                let data = Chunk::from(vec![1.0f32; 11]);
                dense::all_reduce(&other, data, ReduceOp::Sum).await.map(drop).unwrap_err()
            })
        },
        |group| {
            after_the_first(group, async |_| {});
            group.all_reduce(&mut vec![1.0f32; LENGTH], ReduceOp::Sum).unwrap_err()
        },
        |group| {
            after_the_first(group, async |_| {});
            let mut data = vec![1.0f32; LENGTH];
            group.run_in_order(body(), async |call| sum(call, &mut data).await).unwrap_err()
        },
        |group| group.all_reduce(&mut [1.0f32; 10], ReduceOp::Sum).unwrap_err(),
        |group| group.barrier().unwrap_err(),
    ];
    for (which, other) in others.into_iter().enumerate() {
        let errors = on_host(3, Settings::default(), move |group| match group.rank() {
            2 => other(group),
            _ => two_sums(group),
        });
        // The first rank to notice reports it and closes the group before the others have seen it. That may
        // be rank 2 itself.
        let names = |rank: usize| matches!(errors[rank], Error::Mismatch { rank: Rank(2), .. });
        assert!(names(0) || names(1) || matches!(errors[2], Error::Mismatch { .. }), "{which}: {errors:?}");
        let is_end = |error: &Error| matches!(error, Error::Mismatch { .. } | Error::Differs { .. });
        assert!(errors.iter().all(is_end), "{which}: {errors:?}");
    }
}

/// A collective that is abandoned in the middle leaves slots that no rank can use: the group is closed.
#[test]
fn a_collective_that_is_given_up_closes_the_group() {
    let ends = on_host(3, Settings::default(), |group| {
        let mut data = vec![1.0; LENGTH];
        if group.rank() < 2 {
            return group.run_in_order(body(), async |call| sum(call, &mut data).await).unwrap_err();
        }
        group.run_in_order(body(), async |call| {
            let mut sum = pin!(sum(call, &mut data));
            // Polled once; the other ranks may or may not have arrived.
            let polled = poll_fn(|context| Poll::Ready(sum.as_mut().poll(context))).await;
            assert!(polled.is_pending());
        });
        group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err()
    });
    assert!(ends.iter().all(|error| matches!(error, Error::Aborted { rank: Rank(2) })), "{ends:?}");
}

/// Also after it has used the slots: the group is closed, and no later call waits for them.
#[test]
fn a_body_that_panics_gives_the_slots_back() {
    let ends = on_host(3, Settings::default(), |group| {
        let panics: fn(&Call<'_, '_>) = |_| panic!("on purpose");
        let handle = group.start_in_order(body(), (), move |call, ()| -> CallFuture<'_, ()> {
            Box::pin(async move {
                let mut data = vec![1.0f32; 10];
                data = dense::all_reduce(call, Chunk::from(data), ReduceOp::Sum).await.unwrap().into_vec();
                assert_eq!(data, [3.0; 10]);
                panics(call);
            })
        });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| handle.wait())).is_err());
        group.all_reduce(&mut oracle::vector(group.rank(), 1000), ReduceOp::Sum).unwrap_err()
    });
    assert!(ends.iter().all(|error| matches!(error, Error::Aborted { .. })), "{ends:?}");
}

/// A value that is not finite is passed on with the published data.
#[test]
fn poison_spreads_over_slots() {
    for count in [1, 1000, LENGTH] {
        let heard = on_host(3, Settings::default(), move |group| {
            let (mut data, rank) = (vec![0.0; count], group.rank());
            group.run_in_order(body(), async |call| {
                if rank == 1 {
                    call.set_poison(4);
                }
                sum(call, &mut data).await.unwrap();
                call.check_poison().unwrap_err()
            })
        });
        let is_told = |error: &Error| matches!(error, Error::NonFinite { rank: Rank(1), tensor: 4 });
        assert!(heard.iter().all(is_told), "{count}: {heard:?}");
    }
}

/// A call that only uses messages may wait for a later call over slots.
#[test]
fn a_plain_body_does_not_hold_the_slots() {
    on_host(2, Settings::default(), |group| {
        let later = Arc::new(AtomicBool::new(false));
        let (seen, start) = (Arc::clone(&later), Instant::now());
        let waiting = group.start(body(), (), move |_, ()| {
            Box::pin(poll_fn(move |_| {
                match seen.load(Ordering::Relaxed) || start.elapsed() > Duration::from_secs(30) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            }))
        });
        group.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
        later.store(true, Ordering::Relaxed);
        waiting.wait();
    });
}
