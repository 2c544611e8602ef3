//! Groups of three ranks on every wire, whose handles and duplicates are dropped in mid-call, whose bodies
//! panic, whose futures are canceled and whose runtimes shut down, at random, beside collectives, messages
//! and one-sided access. Every result is right, or is the documented error; nothing hangs; and in the end no
//! task, buffer, descriptor or thread is left.
//!
//! `BREVITY_STRESS_SECONDS` sets the time on each wire (default 2), `BREVITY_STRESS_SEED` the plan (printed).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "stress/broken.rs"]
mod broken;
#[path = "stress/calls.rs"]
mod calls;
#[path = "stress/member.rs"]
mod member;
#[path = "stress/messages.rs"]
mod messages;
#[path = "stress/regions.rs"]
mod regions;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use brevity::transport::bootstrap::Opened;
use brevity::transport::shm::LocalGroup;
use brevity::transport::{Transport, local};
use brevity::{Group, Settings};
use brevity_testing::{Process, Wire, on_every_wire};
use brevity_tests::random::{Random, seconds_and_seed};
use member::{Live, Member, WRONG};

const RANKS: u32 = 3;

/// The deadline of calls; none comes near it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How long the ranks may take beyond the time of the plan.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long what is left may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The tests count what is open in their process.
static ALONE: Mutex<()> = Mutex::new(());

on_every_wire! {
    groups => |wire: Wire| stress(&format!("{wire:?}"), &|settings| {
        wire.world(RANKS).into_iter().map(|transport| Group::new(transport, settings)).collect()
    });
}

#[test]
fn groups_over_slots() {
    stress("slots", &|settings| {
        let local_groups = LocalGroup::in_process(RANKS).unwrap();
        let opened = local::world(RANKS).into_iter().zip(local_groups).map(|(rank, local_group)| {
            Opened::in_process(Box::new(rank) as Box<dyn Transport>, Some(local_group))
        });
        opened.map(|opened| Group::opened(opened, settings)).collect()
    });
}

/// Stresses groups that `make` makes, without progress threads and with them.
fn stress(name: &str, make: &dyn Fn(Settings) -> Vec<Group>) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (seconds, seed) = seconds_and_seed(name, 2);
    let settings = |progress_thread| Settings { timeout: TIMEOUT, progress_thread, ..Settings::default() };
    // What is set up once in a process, as by UCX, is no leak.
    run(make(settings(false)), seed, Duration::ZERO);
    until("threads", || Open::now().threads, Vec::is_empty);
    let before = Open::now();
    let mut rounds = 0;
    for progress_thread in [false, true] {
        rounds += run(make(settings(progress_thread)), seed, Duration::from_secs(seconds) / 2);
    }
    println!("{name}: {rounds} rounds");
    until(&format!("{before:?} before: what is open after"), Open::now, |after| *after == before);
}

/// Runs one plan with a rank on each thread; gives its rounds.
fn run(groups: Vec<Group>, seed: u64, time: Duration) -> usize {
    let (live, end) = (Live::default(), Instant::now() + time);
    let (sender, ended) = channel();
    let ranks: Vec<_> = groups
        .into_iter()
        .map(|group| {
            let (live, sender) = (live.clone(), sender.clone());
            thread::spawn(move || {
                let rounds = rank(group, seed, end, live);
                // The test may have given up already.
                let _ = sender.send(rounds);
            })
        })
        .collect();
    drop(sender);
    let mut rounds = 0;
    for _ in &ranks {
        rounds = ended.recv_timeout(time + PATIENCE).unwrap_or_else(|error| panic!("a rank: {error}"));
    }
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
    assert!(!WRONG.load(Ordering::Relaxed), "a task has a wrong result");
    until("buffers that are left", || live.count(), |count| *count == 0);
    rounds
}

/// The kinds of rounds. Each leaves the group as it was.
const ROUNDS: [fn(&mut Member); 8] = [
    calls::left,
    calls::in_a_runtime,
    calls::on_a_dropped_twin,
    messages::around,
    regions::around,
    broken::by_a_panic,
    broken::by_an_abort,
    broken::by_nobody,
];

fn rank(group: Group, seed: u64, end: Instant, live: Live) -> usize {
    let mut member = Member::new(group, seed, live);
    let mut rounds = 0;
    loop {
        // Each kind once, and then at random.
        let kind = if rounds < ROUNDS.len() { rounds } else { member.common.below(ROUNDS.len()) };
        ROUNDS[kind](&mut member);
        rounds += 1;
        // Rank 0 tells all whether there is another round.
        let mut goes_on = [u8::from(rounds < ROUNDS.len() || Instant::now() < end)];
        member.group.broadcast(&mut goes_on, 0).unwrap();
        if goes_on == [0] {
            break;
        }
    }
    let Member { group, mut own, region, opened, .. } = member;
    // Calls whose handles this rank has dropped: the others move theirs in the barrier.
    let has_pending = || {
        group.progress();
        group.has_pending()
    };
    until("calls that are pending", has_pending, |has_pending| !has_pending);
    group.barrier().unwrap();
    assert!(group.failure().is_none());
    drop((opened, region));
    match own.below(2) {
        0 => drop(group),
        _ => block_on(group.leave()).unwrap(),
    }
    rounds
}

/// What a process has open, but for the threads of others.
#[derive(Debug, PartialEq, Eq)]
struct Open {
    descriptors: usize,
    threads: Vec<String>,
}

impl Open {
    fn now() -> Self {
        let name = |thread: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(thread.ok()?.path().join("comm")).ok()
        };
        let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(name);
        let is_ours = |name: &String| ["brv-", "brevity", "tokio"].iter().any(|ours| name.starts_with(ours));
        let threads = names.filter(is_ours).collect();
        Self { descriptors: Process::own().descriptors(), threads }
    }
}

fn until<T: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let found = look();
        if is_right(&found) {
            return;
        }
        assert!(start.elapsed() < GONE_WITHIN, "{what}: {found:?}");
        thread::yield_now();
    }
}

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
    let (mut future, mut context, start) = (pin!(future), Context::from_waker(&waker), Instant::now());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        thread::park_timeout(PATIENCE);
        assert!(start.elapsed() < PATIENCE, "the task was not woken");
    }
}

/// Polls `future` some times, as a `select` does that another branch wins.
fn poll_some<T>(future: &mut (impl Future<Output = T> + Unpin), polls: usize) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    (0..polls).find_map(|_| match pin!(&mut *future).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// The seeds of a rank: one that all ranks have, and its own.
fn seeds(seed: u64, rank: u32) -> (Random, Random) {
    (Random::new(seed), Random::new(seed ^ u64::from(rank + 1) << 40))
}
