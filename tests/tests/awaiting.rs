//! Handles that are awaited by an executor that sleeps until it is woken, as those of runtimes do.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use brevity::collectives::engine::Next;
use brevity::collectives::{Chunk, Error, dense};
use brevity::{Driver, Group, Handle, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::{on_groups, on_host, on_local};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

/// How long a rank comes late, and the processor time that another may use meanwhile.
const LATE: Duration = Duration::from_secs(2);
const USED: Duration = Duration::from_millis(200);

/// Far more than anything takes, and less than a deadline.
const PATIENCE: Duration = Duration::from_secs(60);

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` when it is woken, and never else.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "the task was not woken");
    }
}

/// Polls all, until all have ended.
async fn join_all<T>(handles: Vec<Handle<T>>) -> Vec<T> {
    let mut handles: Vec<_> = handles.into_iter().map(|handle| (handle, None)).collect();
    poll_fn(|context| {
        for (handle, value) in handles.iter_mut().filter(|(_, value)| value.is_none()) {
            if let Poll::Ready(ready) = Pin::new(handle).poll(context) {
                *value = Some(ready);
            }
        }
        if handles.iter().all(|(_, value)| value.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    handles.into_iter().filter_map(|(_, value)| value).collect()
}

fn sum(group: &Group, value: f32) -> Handle<(Vec<f32>, brevity::collectives::Result<()>)> {
    group.start_all_reduce(vec![value; 8], ReduceOp::Sum)
}

fn assert_sum(outcome: (Vec<f32>, brevity::collectives::Result<()>), expected: f32) {
    outcome.1.unwrap();
    assert_eq!(outcome.0, [expected; 8]);
}

/// The processor time of this process.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap()
}

on_every_wire! {
    awaited_calls_end => |wire: Wire| {
        for progress_thread in [false, true] {
            let settings = Settings { progress_thread, ..Settings::default() };
            let groups = wire.world(3).into_iter().map(|transport| Group::new(transport, settings));
            on_groups(groups.collect(), many);
        }
    };
    waiting_for_a_late_rank_takes_no_processor => |wire: Wire| {
        let groups = wire.world(2).into_iter().map(|rank| Group::new(rank, Settings::default()));
        on_groups(groups.collect(), late);
    };
}

fn many(group: &Group) {
    block_on(async {
        for call in 0..200 {
            assert_sum(sum(group, call as f32).await, 3.0 * call as f32);
        }
        for _ in 0..3 {
            let handles = (0..100).map(|call| sum(group, call as f32)).collect();
            for (call, outcome) in join_all(handles).await.into_iter().enumerate() {
                assert_sum(outcome, 3.0 * call as f32);
            }
        }
    });
}

fn late(group: &Group) {
    late_in(group, || block_on(async { assert_sum(sum(group, 1.0).await, 2.0) }));
}

/// Rank 1 comes late to a call, for which rank 0 sleeps.
fn late_in(group: &Group, call: impl Fn()) {
    call();
    let before = processor_time();
    let begun = Instant::now();
    if group.rank() == 1 {
        thread::sleep(LATE);
    }
    call();
    // What the other rank, which sleeps, does is counted too, but it does nothing.
    if group.rank() == 0 {
        let used = processor_time() - before;
        assert!(begun.elapsed() >= LATE / 2 && used < USED, "{used:?}");
    }
    group.barrier().unwrap();
}

#[test]
fn awaited_calls_end_over_slots() {
    for progress_thread in [false, true] {
        on_host(3, Settings { progress_thread, ..Settings::default() }, many);
    }
}

#[test]
fn waiting_for_a_late_rank_takes_no_processor_over_slots() {
    on_host(2, Settings::default(), late);
}

#[test]
fn waiting_in_a_barrier_over_slots_takes_no_processor() {
    on_host(2, Settings::default(), |group| {
        late_in(group, || block_on(async { group.start_barrier().await.1.unwrap() }));
    });
}

/// A rank may wait longer than a millisecond for several calls in several tasks, of which one is not polled
/// any more after it was woken once.
#[test]
fn a_handle_that_is_held_unpolled_keeps_no_other_from_its_end() {
    on_local(2, |group| {
        let first = sum(group, 1.0);
        let second = sum(group, 2.0);
        if group.rank() == 1 {
            thread::sleep(Duration::from_millis(300));
        }
        let mut first = pin!(first);
        block_on(async {
            let (mut polls, mut is_ready) = (0, false);
            // As in a select that the second wins.
            poll_fn(|context| {
                polls += 1;
                is_ready = is_ready || first.as_mut().poll(context).is_ready();
                if is_ready || polls > 100 {
                    Poll::Ready(())
                } else {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
            .await;
            assert_sum(second.await, 4.0);
        });
        group.barrier().unwrap();
    });
}

/// The thread that watches for parked handles ends with the group.
#[test]
fn a_handle_that_outlives_its_group_ends() {
    let arrived = Arc::new(AtomicU32::new(0));
    let groups = brevity::transport::local::world(2).into_iter();
    let groups = groups.map(|rank| Group::new(Box::new(rank), Settings::default())).collect();
    on_groups(groups, move |group| {
        let part = group.duplicate().unwrap();
        let handle = sum(&part, 1.0);
        drop(part);
        if group.rank() == 1 {
            thread::sleep(Duration::from_millis(100));
        }
        arrived.fetch_add(1, Ordering::Relaxed);
        block_on(async { assert_sum(handle.await, 2.0) });
        group.barrier().unwrap();
    });
}

/// A blocking call of another thread takes what would wake the task.
#[test]
fn blocking_calls_beside_a_parked_task_wake_it() {
    on_local(2, |group| {
        let other = group.duplicate().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            threads.spawn(|| {
                for call in 0.. {
                    let mut ends = [i32::from(is_over.load(Ordering::Relaxed)); 2];
                    other.all_reduce(&mut ends, ReduceOp::Sum).unwrap();
                    if ends[0] == 2 {
                        break;
                    }
                    if call % 3 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
            for call in 0..50 {
                if call % 2 == group.rank() {
                    thread::sleep(Duration::from_millis(4));
                }
                block_on(async { assert_sum(sum(group, 1.0).await, 2.0) });
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// Moves the calls of `group` until it is dropped, as an event loop does.
fn drive(mut driver: Driver) {
    let descriptor = driver.descriptor();
    loop {
        match driver.turn() {
            Next::Again => {}
            Next::Sleep(longest) => {
                let longest = Timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
                poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&longest)).unwrap();
            }
            Next::Idle(Some(longest)) => thread::sleep(longest),
            Next::Idle(None) if block_on(poll_fn(|context| driver.poll_wanted(context))) => {}
            Next::Idle(None) | Next::Ended => return,
        }
    }
}

#[test]
fn a_driver_moves_calls_until_the_job_has_ended() {
    for (on_host, late_by) in [(false, 0), (true, 0), (false, 200), (true, 200)] {
        let body = move |group: &Group| {
            let driver = group.driver().unwrap();
            assert!(matches!(group.driver(), Err(Error::AlreadyDriven)));
            let driving = thread::spawn(move || drive(driver));
            many(group);
            if group.rank() == 1 {
                thread::sleep(Duration::from_millis(late_by));
            }
            // Nobody polls it, and it ends.
            let ended = Arc::new(());
            let (watched, sum) =
                (Arc::downgrade(&ended), dense::describe_all_reduce::<f32>(1, ReduceOp::Sum));
            drop(group.start(sum, ended, |call, _| {
                Box::pin(async move {
                    let ones = Chunk::from(vec![1.0f32]);
                    dense::all_reduce(call, ones, ReduceOp::Sum).await.map(drop)
                })
            }));
            let begun = Instant::now();
            while watched.upgrade().is_some() {
                assert!(begun.elapsed() < PATIENCE, "nobody moves the call");
                thread::sleep(Duration::from_millis(1));
            }
            driving
        };
        let settings = Settings::default();
        let drivers = if on_host { self::on_host(3, settings, body) } else { on_local(3, body) };
        drivers.into_iter().for_each(|driver| driver.join().unwrap());
    }
}

/// The group's thread takes over from a driver that is dropped while handles are parked with it.
#[test]
fn a_driver_that_is_dropped_leaves_nobody_asleep() {
    on_local(2, |group| {
        for round in 0..20 {
            let mut driver = group.driver().unwrap();
            let dropping = thread::spawn(move || {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(round) {
                    driver.turn();
                }
            });
            if group.rank() == 1 {
                thread::sleep(Duration::from_millis(5));
            }
            block_on(async { assert_sum(sum(group, 1.0).await, 2.0) });
            dropping.join().unwrap();
        }
        group.barrier().unwrap();
    });
}

/// Tasks of other runtimes go on although nobody turns the driver.
#[test]
fn a_driver_that_is_never_turned_keeps_nobody_waiting() {
    on_local(2, |group| {
        let driver = (group.rank() == 0).then(|| group.driver().unwrap());
        for _ in 0..3 {
            if group.rank() == 1 {
                thread::sleep(Duration::from_millis(50));
            }
            block_on(async { assert_sum(sum(group, 1.0).await, 2.0) });
        }
        drop(driver);
        group.barrier().unwrap();
    });
}

/// A job may end for a rank, with its threads, while a task sleeps.
#[test]
fn a_job_that_ends_wakes_those_who_sleep() {
    for progress_thread in [false, true] {
        let mut world = brevity::transport::local::world(2).into_iter();
        let mut next = || {
            let settings = Settings { progress_thread, ..Settings::default() };
            Group::new(Box::new(world.next().unwrap()), settings)
        };
        let (own, peer) = (next(), next());
        let handle = sum(&own, 1.0);
        let waiting = thread::spawn(move || block_on(handle));
        // It sleeps by then, mostly.
        thread::sleep(Duration::from_millis(30));
        drop(own);
        let begun = Instant::now();
        let outcome = block_on(sum(&peer, 1.0));
        drop(peer);
        // The call goes on for as long as its handle does, or its peer finds this rank gone.
        let ended = waiting.join().unwrap();
        assert!(
            ended.1.is_ok() == outcome.1.is_ok() && begun.elapsed() < PATIENCE / 2,
            "{ended:?} {outcome:?}"
        );
    }
}
