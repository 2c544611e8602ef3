//! Ranks that are threads of the test's own process.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use brevity::transport::Transport;
use brevity::transport::bootstrap::Opened;
use brevity::transport::local;
use brevity::transport::shm::LocalGroup;
use brevity::{Group, Settings};

/// The limit for all ranks of one test; generous, since it only has to distinguish slow from stuck.
/// `BREVITY_TEST_PATIENCE` multiplies it, for slow builds and long tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` when it is woken, and never else.
///
/// # Panics
/// If it does not end.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
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

/// Runs `body` on `world_size` ranks of the local transport. Returns the results in rank order.
///
/// # Panics
/// If a rank panics or does not end.
pub fn on_local<R: Send + 'static>(
    world_size: u32,
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let world = local::world(world_size).into_iter();
    on_transports(world.map(|rank| Box::new(rank) as Box<dyn Transport>).collect(), body)
}

/// Runs `body` on `world_size` ranks of the local transport that share memory like ranks of one host. Returns
/// the results in rank order.
///
/// # Panics
/// If a rank panics or does not end.
pub fn on_host<R: Send + 'static>(
    world_size: u32,
    settings: Settings,
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let local_groups = LocalGroup::in_process(world_size).unwrap_or_else(|error| panic!("{error}"));
    let ranks = local::world(world_size).into_iter().zip(local_groups);
    let groups = ranks.map(|(rank, local_group)| {
        Group::opened(Opened::in_process(Box::new(rank), Some(local_group)), settings)
    });
    on_groups(groups.collect(), body)
}

/// Runs `body` on one rank for each transport, each in its own thread. Returns the results in rank order.
///
/// # Panics
/// If a rank panics or does not end.
pub fn on_transports<R: Send + 'static>(
    transports: Vec<Box<dyn Transport>>,
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    on_groups(
        transports.into_iter().map(|transport| Group::new(transport, Settings::default())).collect(),
        body,
    )
}

/// Runs `body` on one rank for each group, each in its own thread. Returns the results in rank order.
///
/// # Panics
/// If a rank panics or does not end.
pub fn on_groups<R: Send + 'static>(
    groups: Vec<Group>,
    body: impl Fn(&Group) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let times = std::env::var("BREVITY_TEST_PATIENCE").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let world_size = groups.len();
    let (sender, receiver) = mpsc::channel();
    let mut threads = Vec::new();
    for (rank, group) in groups.into_iter().enumerate() {
        let (body, sender) = (body.clone(), sender.clone());
        threads.push(thread::spawn(move || {
            let result = body(&group);
            // The test may have given up already.
            let _ = sender.send((rank, result));
        }));
    }
    drop(sender);
    let mut results: Vec<Option<R>> = (0..world_size).map(|_| None).collect();
    for _ in 0..world_size {
        let missing = || {
            results.iter().enumerate().filter(|(_, r)| r.is_none()).map(|(rank, _)| rank).collect::<Vec<_>>()
        };
        match receiver.recv_timeout(PATIENCE * times) {
            Ok((rank, result)) => results[rank] = Some(result),
            Err(error) => panic!("ranks {:?} did not end: {error}", missing()),
        }
    }
    // A group must not go while the process does.
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap_or_else(|_| panic!("a rank panicked when it left")));
    results.into_iter().flatten().collect()
}
