//! Non-blocking calls that progress although no thread of the application polls the engine: by the progress
//! thread, and by an outside runtime that sleeps on the group's descriptor.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::read_to_string;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::collectives::{Call, Chunk, Description, Error, Operation, Result, dense};
use brevity::transport::bootstrap::Opened;
use brevity::transport::buffer::next_turn;
use brevity::transport::shm::LocalGroup;
use brevity::transport::tcp::Tcp;
use brevity::transport::ucx::Options;
use brevity::transport::{Rank, Transport, local};
use brevity::{GradientExchange, Group, Handle, Policy, ReduceOp, Settings};
use brevity_testing::worlds::{boxed, over_sockets, over_ucx, sockets};
use brevity_testing::{Wire, ucx_is_here};
use brevity_tests::{on_groups, oracle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const WORLD_SIZE: u32 = 3;
const LENGTH: usize = 20_000;

/// Generous: it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The connection between ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// A transport alone.
    Wire(Wire),
    /// Threads that share memory for collectives.
    Slots,
}

/// All that can be tested on this machine.
fn all() -> impl Iterator<Item = Between> {
    let wires = Wire::ALL.into_iter().filter(|wire| wire.is_here()).map(Between::Wire);
    wires.chain([Between::Slots])
}

fn groups(between: Between, progress_thread: bool) -> Vec<Group> {
    let settings = Settings { progress_thread, ..Settings::default() };
    match between {
        Between::Wire(wire) => over(wire.world(WORLD_SIZE), settings),
        Between::Slots => {
            let ranks =
                boxed(local::world(WORLD_SIZE)).into_iter().zip(LocalGroup::in_process(WORLD_SIZE).unwrap());
            ranks.map(|(transport, here)| beside(transport, here, settings)).collect()
        }
    }
}

/// The mask of blocked signals of each thread of this process with this name. A new thread names itself, so
/// this waits for the first.
fn blocked_by(name: &str) -> Vec<u64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let masks = blocked_now_by(name);
        if !masks.is_empty() || Instant::now() > deadline {
            return masks;
        }
        sleep(Duration::from_millis(1));
    }
}

fn blocked_now_by(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |task: std::fs::DirEntry| {
        let comm = read_to_string(task.path().join("comm")).ok()?;
        let status = read_to_string(task.path().join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        (comm.trim() == name).then(|| u64::from_str_radix(mask.trim(), 16).unwrap())
    };
    tasks.filter_map(of).collect()
}

/// An application that takes a signal by `sigwait`, or handles it on a thread of its own, still gets it.
#[test]
fn the_threads_of_a_group_take_no_signal_of_the_application() {
    const SIGTERM: u64 = 1 << 14;
    for (progress_thread, name) in [(false, "brv-abort"), (true, "brv-progress")] {
        let groups = groups(Between::Wire(Wire::Local), progress_thread);
        let masks = blocked_by(name);
        assert!(!masks.is_empty() && masks.iter().all(|mask| mask & SIGTERM != 0), "{name}: {masks:x?}");
        drop(groups);
    }
}

fn over(world: World, settings: Settings) -> Vec<Group> {
    world.into_iter().map(|transport| Group::new(transport, settings)).collect()
}

/// A group whose collectives use the shared memory of the ranks.
fn beside(transport: Box<dyn Transport>, here: Arc<LocalGroup>, settings: Settings) -> Group {
    Group::opened(Opened::in_process(transport, Some(here)), settings)
}

type Reduced = ((Vec<f32>, std::sync::mpsc::Sender<Result<()>>), ());

/// An all-reduce by messages whose end is observed without polling the engine.
fn start_seen(group: &Group) -> (Handle<Reduced>, Receiver<Result<()>>) {
    let (sender, receiver) = channel();
    let description = Description::new(Operation::ALL_REDUCE, 0, LENGTH);
    let buffers = (oracle::vector(group.rank(), LENGTH), sender);
    let handle = group.start(description, buffers, |call: &Call<'_, '_>, (data, ended)| {
        Box::pin(async move {
            let reduced = dense::all_reduce(call, Chunk::from(&mut data[..]), ReduceOp::Sum).await;
            ended.send(reduced.map(drop)).unwrap();
        })
    });
    (handle, receiver)
}

fn sum(length: usize) -> Vec<f32> {
    oracle::sum(&(0..WORLD_SIZE).map(|rank| oracle::vector(rank, length)).collect::<Vec<_>>())
}

#[test]
fn calls_end_while_nobody_turns() {
    for between in all() {
        let groups = groups(between, true);
        for _ in 0..20 {
            let calls: Vec<_> = groups.iter().map(start_seen).collect();
            for (handle, ended) in calls {
                ended.recv_timeout(PATIENCE).unwrap().unwrap();
                let ((reduced, _), ()) = handle.wait();
                assert!(reduced == sum(LENGTH), "{between:?}: a wrong sum");
            }
        }
    }
}

/// All data that this rank has sent and received; reading the counters polls nothing.
fn traffic(group: &Group) -> u64 {
    let statistics = group.statistics();
    statistics.messages_received + statistics.messages_sent + statistics.bytes_shared
}

/// A started average of dense, sparse and low-rank tensors completes like a blocking one.
#[test]
fn averages_end_while_nobody_turns() {
    for between in all() {
        on_groups(groups(between, true), move |group| {
            let build = || {
                GradientExchange::builder(group)
                    .tensor("dense", [LENGTH], Policy::dense())
                    .tensor("sparse", [LENGTH], Policy::gtopk(0.01))
                    .tensor("low rank", [40, 50], Policy::low_rank(2))
                    .build()
                    .unwrap()
            };
            let gradients =
                || [LENGTH, LENGTH, 2000].map(|count| oracle::vector(group.rank(), count)).to_vec();
            group.barrier().unwrap();
            let (before, mut expected) = (traffic(group), gradients());
            build().average(&mut expected).unwrap();
            let needed = traffic(group) - before;
            group.barrier().unwrap();
            for _ in 0..5 {
                let before = traffic(group);
                let averaging = build().start(gradients());
                let start = Instant::now();
                while traffic(group) - before < needed {
                    assert!(
                        start.elapsed() < PATIENCE,
                        "{between:?}: {} of {needed}",
                        traffic(group) - before
                    );
                    sleep(Duration::from_millis(1));
                }
                let ((_, averaged), result) = averaging.wait();
                result.unwrap();
                assert!(averaged == expected, "{between:?}: a wrong average");
                group.barrier().unwrap();
            }
        });
    }
}

/// The counterpart: shows that the other test depends on the thread.
#[test]
fn without_the_thread_calls_wait_for_somebody_who_turns() {
    for between in all() {
        let groups = groups(between, false);
        let calls: Vec<_> = groups.iter().map(start_seen).collect();
        // The first rank has started before the others sent anything.
        assert_eq!(
            calls[0].1.recv_timeout(Duration::from_millis(100)).unwrap_err(),
            RecvTimeoutError::Timeout
        );
        let start = Instant::now();
        while calls.iter().filter(|(handle, _)| !handle.test()).count() > 0 {
            assert!(start.elapsed() < PATIENCE, "{between:?}");
        }
        for (handle, _) in calls {
            assert!(handle.wait().0.0 == sum(LENGTH), "{between:?}: a wrong sum");
        }
    }
}

/// Blocking calls, and calls over slots, while others are pending.
#[test]
fn blocking_calls_and_the_thread_share_the_engine() {
    for between in all() {
        on_groups(groups(between, true), move |group| {
            for _ in 0..50 {
                let (pending, ended) = start_seen(group);
                let slots = group.start_all_reduce(oracle::vector(group.rank(), 1000), ReduceOp::Sum);
                let mut data = oracle::vector(group.rank(), 50);
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data == sum(50), "{between:?}: a wrong sum");
                ended.recv_timeout(PATIENCE).unwrap().unwrap();
                drop(pending);
                assert!(slots.wait().0 == sum(1000), "{between:?}: a wrong sum");
            }
        });
    }
}

/// The thread that starts a call may be inside the transport, while the progress thread waits for it in the
/// middle of its tasks.
#[test]
fn a_call_can_be_started_inside_another() {
    on_groups(groups(Between::Wire(Wire::Local), true), |group| {
        for _ in 0..200 {
            let (pending, ended) = start_seen(group);
            let description = Description::new(Operation::BARRIER, 0, 0);
            let mut inner = None;
            let met = group.run(description, async |call| {
                inner = Some(group.start_all_reduce(oracle::vector(group.rank(), 100), ReduceOp::Sum));
                dense::barrier(call).await
            });
            met.unwrap();
            assert!(inner.unwrap().wait().0 == sum(100), "a wrong sum");
            ended.recv_timeout(PATIENCE).unwrap().unwrap();
            drop(pending);
        }
    });
}

#[test]
fn an_abort_ends_a_call_while_nobody_turns() {
    for between in all() {
        let groups = groups(between, true);
        let calls: Vec<_> = groups[..2].iter().map(start_seen).collect();
        groups[2].abort();
        for (_handle, ended) in calls {
            let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
            assert!(matches!(error, Error::Aborted { rank: Rank(2), .. }), "{between:?}: {error}");
        }
    }
}

/// The third rank consists of sockets alone, which close like those of a killed process.
#[test]
fn a_lost_rank_ends_a_call_while_nobody_turns() {
    let mut rows = sockets(WORLD_SIZE);
    let killed = rows.pop();
    let settings = Settings { progress_thread: true, ..Settings::default() };
    let rank = |(rank, row)| Tcp::new(Rank(rank), WORLD_SIZE, row).unwrap();
    let groups = over(boxed((0..).zip(rows).map(rank).collect()), settings);
    let calls: Vec<_> = groups.iter().map(start_seen).collect();
    drop(killed);
    for (_handle, ended) in calls {
        let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
        assert!(matches!(error, Error::PeerLost { rank: Rank(2), .. }), "{error}");
    }
}

#[test]
fn a_deadline_ends_a_call_while_nobody_turns() {
    let settings =
        Settings { progress_thread: true, timeout: Duration::from_millis(200), ..Settings::default() };
    let world = local::world(WORLD_SIZE).into_iter();
    let groups: Vec<_> = world.map(|rank| Group::new(Box::new(rank), settings)).collect();
    let (_handle, ended) = start_seen(&groups[0]);
    let error = ended.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

/// The descriptor alone must end every sleep: none may last until its timeout.
#[test]
fn a_runtime_can_sleep_on_the_descriptor() {
    const LONG: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
    for between in all() {
        let sleeps = on_groups(groups(between, false), move |group| {
            let mut sleeps = 0;
            for round in 0..48 {
                let length = [10, 5000, LENGTH, 300_000][round % 4];
                let handle = group.start_all_reduce(oracle::vector(group.rank(), length), ReduceOp::Sum);
                if round % 3 == group.rank() as usize {
                    sleep(Duration::from_millis(2));
                }
                while !handle.test() {
                    let Some(quiet) = group.prepare_sleep() else { continue };
                    assert!(!quiet.longest().is_zero());
                    let ready = poll(&mut [PollFd::new(&quiet, PollFlags::IN)], Some(&LONG)).unwrap();
                    assert!(ready > 0, "{between:?}: rank {} was not woken in round {round}", group.rank());
                    sleeps += 1;
                }
                assert!(handle.wait().0 == sum(length), "{between:?}: a wrong sum");
            }
            // A rank that has ended polls no more, and no other rank may wait for that.
            group.barrier().unwrap();
            sleeps
        });
        println!("{between:?}: {sleeps:?} sleeps");
        assert!(sleeps.iter().all(|count| *count > 0), "{between:?}: nobody has slept");
    }
}

type World = Vec<Box<dyn Transport>>;

/// Two ranks of one host over each transport, and their shared memory.
fn local_peers() -> Vec<(World, Vec<Arc<LocalGroup>>)> {
    let here = || LocalGroup::in_process(2).unwrap();
    let (of_threads, of_tcp, of_ucx) = (here(), here(), here());
    let mut tcp = over_sockets(2);
    tcp.iter_mut().zip(&of_tcp).for_each(|(rank, here)| rank.share_memory(here, true).unwrap());
    let mut all = vec![(boxed(local::world(2)), of_threads), (boxed(tcp), of_tcp)];
    if ucx_is_here() {
        let mut ucx = over_ucx(2, &Options::default());
        ucx.iter_mut().zip(&of_ucx).for_each(|(rank, here)| rank.share_memory(here, true).unwrap());
        all.push((boxed(ucx), of_ucx));
    }
    all
}

/// Slots are checked before the transport is armed, which does not check them: what a local peer publishes in
/// between must wake the sleeper.
#[test]
fn what_is_published_after_the_last_look_ends_the_sleep() {
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    for (transports, here) in local_peers() {
        let name = transports[0].name();
        let ranks = transports.into_iter().zip(&here);
        let groups: Vec<_> =
            ranks.map(|(transport, here)| beside(transport, Arc::clone(here), Settings::default())).collect();
        let description = Description::new(Operation::BARRIER, 0, 0);
        // A call that finds nothing, and whose peer publishes something right after the check.
        let pending = groups[0].start(description, Arc::clone(&here[1]), |_: &Call<'_, '_>, peer| {
            Box::pin(poll_fn(|context| {
                peer.wake(0);
                next_turn::<()>(context)
            }))
        });
        for sleeps in 0..3 {
            let start = Instant::now();
            let sleep = loop {
                match groups[0].prepare_sleep() {
                    Some(sleep) => break sleep,
                    None => assert!(start.elapsed() < PATIENCE, "{name}: it never comes to rest"),
                }
            };
            let ready = poll(&mut [PollFd::new(&sleep, PollFlags::IN)], Some(&NOW)).unwrap();
            assert!(ready > 0, "{name}: the ring was heard away before sleep {sleeps}");
        }
        drop(pending);
    }
}

/// In a separate process, because it counts the process's threads.
#[test]
fn the_thread_is_idle_with_nothing_pending_and_ends_with_its_group() {
    const ALONE: &str = "BREVITY_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "the_thread_is_idle_with_nothing_pending_and_ends_with_its_group";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        assert!(again.args([name, "--exact"]).env(ALONE, "1").status().unwrap().success());
        return;
    }
    for between in all() {
        assert_eq!(switches().len(), 0);
        let groups = groups(between, true);
        let calls: Vec<_> = groups.iter().map(start_seen).collect();
        calls.iter().for_each(|(_, ended)| ended.recv_timeout(PATIENCE).unwrap().unwrap());
        sleep(Duration::from_millis(50));
        let before = switches();
        assert_eq!(before.len(), WORLD_SIZE as usize, "{between:?}: {before:?}");
        sleep(Duration::from_millis(100));
        assert_eq!(switches(), before, "{between:?}: a thread with nothing to do has run");
        // Neither handles nor pending calls keep a thread alive.
        let pending = start_seen(&groups[0]);
        drop(groups);
        // The kernel lists a thread slightly longer than joining it takes.
        let dropped = Instant::now();
        while !switches().is_empty() {
            assert!(dropped.elapsed() < PATIENCE, "{between:?}: a thread outlived its group");
            sleep(Duration::from_millis(1));
        }
        drop((calls, pending));
    }
}

/// How often each progress thread of this process has gone to sleep.
fn switches() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let mine = tasks
        .filter(|task| read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "brv-progress"));
    let count =
        |status: String| status.lines().find(|line| line.starts_with("voluntary")).unwrap().to_owned();
    // A thread that ends meanwhile has no status.
    mine.filter_map(|task| Some(count(read_to_string(task.join("status")).ok()?))).collect()
}
