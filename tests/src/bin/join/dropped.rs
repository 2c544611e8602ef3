//! Joins that are awaited and dropped: their threads end long before their deadlines, and a rank whose join
//! was given up may join again.

use std::fs;
use std::future::Future;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, sleep};
use std::time::{Duration, Instant};

use brevity::collectives::{Error, Result};
use brevity::transport::Error as Transport;
use brevity::{Group, JobId, Join, Joining, ReduceOp};
use brevity_testing::Process;

/// Of joins that are given up: they end before, or the test fails.
const NEVER: Duration = Duration::from_secs(3600);

/// The limit for what must happen soon.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn run() -> ExitCode {
    // The first time, the process takes what it keeps.
    all_ways(1);
    let before = Process::own().descriptors();
    all_ways(5);
    assert_eq!(Process::own().descriptors(), before, "descriptors");
    ExitCode::SUCCESS
}

/// Each leaves only this thread.
fn all_ways(times: u64) {
    for time in 0..times {
        alone(Duration::from_millis(time));
        await_threads(0);
        a_rank_comes_again(Duration::from_millis(20 * time));
        await_threads(0);
        without_rank_0(Duration::from_millis(20 * time));
        await_threads(0);
        when_they_have_joined();
        await_threads(0);
    }
}

/// Ranks that nobody comes to meet.
fn alone(after: Duration) {
    let id = make_id();
    let joins = [join(0, 2, &id), join(1, 3, &id)];
    sleep(after);
    drop(joins);
    id.forget();
}

/// Rank 1 gives up, before or after it was at rank 0, and comes again.
fn a_rank_comes_again(after: Duration) {
    let id = make_id();
    let [first, second] = [join(0, 3, &id), join(1, 3, &id)];
    sleep(after);
    drop(second);
    await_threads(1);
    let third = join(2, 3, &id);
    let groups =
        [first, join(1, 3, &id), third].map(|join| wait(join).unwrap_or_else(|error| panic!("{error}")));
    thread::scope(|threads| {
        for group in &groups {
            threads.spawn(|| {
                let mut sum = [group.rank()];
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(sum, [3]);
            });
        }
    });
}

/// Rank 0 gives up: a rank that has come finds it lost, another one misses it.
fn without_rank_0(after: Duration) {
    let id = make_id();
    let first = join(0, 3, &id);
    let second = Join::new(1, 3).id(id.clone()).timeout(Duration::from_secs(1)).join_async();
    sleep(after);
    drop(first);
    match wait(second).map(|_| ()) {
        Err(Error::Transport(Transport::PeerLost { rank })) => assert_eq!(rank.0, 0),
        Err(Error::Transport(Transport::MissingRanks { missing, .. })) => {
            assert!(missing.iter().any(|rank| rank.0 != 1), "{missing:?}");
        }
        other => panic!("{other:?}"),
    }
    id.forget();
}

/// The groups of joins that have ended are left, if nobody takes them.
fn when_they_have_joined() {
    let id = make_id();
    let mut joins = [join(0, 2, &id), join(1, 2, &id)];
    let ended = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&ended));
    let mut context = Context::from_waker(&waker);
    let taken = joins.iter_mut().map(|join| Pin::new(join).poll(&mut context)).filter(Poll::is_ready).count();
    await_that("groups", || ended.0.load(Ordering::Acquire) + taken == 2);
    drop(joins);
}

/// Counts the tasks that were woken.
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

fn make_id() -> JobId {
    Join::new(0, 2).interface("127.0.0.1").make_id().unwrap_or_else(|error| panic!("{error}"))
}

fn join(rank: u32, world_size: u32, id: &JobId) -> Joining {
    Join::new(rank, world_size).id(id.clone()).timeout(NEVER).join_async()
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Waits until there are so many beside this one.
fn await_threads(count: usize) {
    await_that("threads", || threads() == count + 1);
}

fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Wakes a thread that polls.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait(join: Joining) -> Result<Group> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut join, start) = (pin!(join), Instant::now());
    loop {
        if let Poll::Ready(joined) = join.as_mut().poll(&mut Context::from_waker(&waker)) {
            return joined;
        }
        assert!(start.elapsed() < PATIENCE, "a join does not wake its task");
        thread::park_timeout(PATIENCE);
    }
}
