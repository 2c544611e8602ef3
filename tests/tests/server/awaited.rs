//! Workers and a server as tasks of one thread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use brevity::server::{Method, Servers};
use brevity::{Error, Group, Settings};
use brevity_testing::{Wire, on_every_wire};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use brevity_tests::pushes::{Record, builder, check_mass, zeros};

on_every_wire! {
    dedicated_servers => |wire: Wire| train(wire, 3, Servers::Dedicated(1));
    every_rank_serves => |wire: Wire| train(wire, 3, Servers::EveryRank);
    a_server_that_is_dropped => |wire: Wire| give_up(wire);
}

const STEPS: u32 = 20;

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long the server waits before the workers begin, and the polls of its task that this may take.
const SILENCE: Duration = Duration::from_millis(300);
const FEW_POLLS: u32 = 10;

/// Runs the ranks as tasks of one thread.
fn on_one_thread<F>(wire: Wire, ranks: u32, body: impl Fn(Group) -> F) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let groups: Vec<Group> =
        wire.world(ranks).into_iter().map(|rank| Group::new(rank, Settings::default())).collect();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<JoinHandle<_>> = groups.into_iter().map(|group| tokio::spawn(body(group))).collect();
        let mut outputs = Vec::new();
        for task in tasks {
            outputs.push(ended("a rank does not end", task).await.unwrap());
        }
        outputs
    })
}

async fn ended<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Counts the polls of a future.
struct Counted<F>(F, Arc<AtomicU32>);

impl<F: Future + Unpin> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll(context)
    }
}

fn train(wire: Wire, ranks: u32, servers: Servers) {
    let shards = if servers == Servers::EveryRank { ranks } else { 1 };
    let seen = on_one_thread(wire, ranks, move |group| async move {
        let server = builder(&group).method(Method::gradient_dropping(0.1)).servers(servers);
        let mut server = server.build_async(&zeros()).await.unwrap();
        let rank = group.rank();
        if !server.is_worker() {
            let (polls, barrier) = (Arc::<AtomicU32>::default(), group.start_barrier());
            let served = Counted(pin!(server.serve_async()), Arc::clone(&polls)).await.unwrap();
            assert_eq!(served.unwrap().pushes, u64::from((ranks - 1) * STEPS));
            // It sleeps until the last worker has left.
            let polls = polls.load(Ordering::Relaxed);
            assert!(polls <= FEW_POLLS, "{polls} polls");
            assert_eq!(server.serve_async().await.unwrap(), served, "nobody is left");
            barrier.await.1.unwrap();
            drop(server);
            group.leave().await.unwrap();
            return None;
        }
        sleep(SILENCE).await;
        let (mut parameters, mut record) = (zeros(), Record::default());
        server.fetch_async(&mut parameters).await.unwrap();
        for step in 0..STEPS {
            record.push(&mut server, rank, step).unwrap();
            server.pull_async(&mut parameters).await.unwrap();
        }
        // All pushes are applied then.
        group.start_barrier().await.1.unwrap();
        server.fetch_async(&mut parameters).await.unwrap();
        let served = server.leave_async().await.unwrap();
        assert_eq!(served.map(|served| served.pushes), (shards == ranks).then_some((ranks * STEPS).into()));
        group.leave().await.unwrap();
        Some((parameters.concat(), record))
    });
    let (models, records): (Vec<_>, Vec<_>) = seen.into_iter().flatten().unzip();
    assert_eq!(models.len() as u32, if shards == ranks { ranks } else { ranks - 1 });
    for model in &models {
        check_mass(model, shards as usize, &records, &[]);
    }
}

/// The server's task gives up while it serves: its drop blocks the thread for a moment alone, and the workers
/// hear of it.
fn give_up(wire: Wire) {
    on_one_thread(wire, 3, |group| async move {
        let server = builder(&group).servers(Servers::Dedicated(1)).build_async(&zeros());
        let mut server = server.await.unwrap();
        if !server.is_worker() {
            let served = timeout(SILENCE, server.serve_async()).await;
            assert!(served.is_err(), "workers are there");
            assert!(server.served().unwrap().refused == 0);
            let begun = Instant::now();
            drop(server);
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{took:?}");
        } else {
            let mut parameters = zeros();
            // It answers what comes before its end.
            let lost = async {
                loop {
                    if let Err(error) = server.fetch_async(&mut parameters).await {
                        break error;
                    }
                }
            };
            let lost = ended("the loss of the server is not noticed", lost).await;
            assert!(matches!(lost, Error::ServerLost { rank: 2, shard: 0 }), "{lost:?}");
            ended("it waits for a server that is gone", server.leave_async()).await.unwrap();
        }
        group.start_barrier().await.1.unwrap();
        group.leave().await.unwrap();
    });
}

/// Replies come while a worker polls for them: without a rest of its own, nothing else would run.
#[test]
fn a_worker_whose_replies_come_at_once_lets_other_tasks_run() {
    const FETCHES: u32 = 400;
    on_one_thread(Wire::Tcp, 2, |group| async move {
        let server = builder(&group).servers(Servers::Dedicated(1)).build_async(&zeros());
        let mut server = server.await.unwrap();
        if !server.is_worker() {
            server.serve_async().await.unwrap();
        } else {
            let turns = Arc::<AtomicU32>::default();
            let counter = Arc::clone(&turns);
            // Not by `yield_now`, which waits until tokio looks at its sockets.
            let other = tokio::spawn(poll_fn(move |context| {
                counter.fetch_add(1, Ordering::Relaxed);
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            }));
            let mut parameters = zeros();
            for _ in 0..FETCHES {
                server.fetch_async(&mut parameters).await.unwrap();
            }
            other.abort();
            let turns = turns.load(Ordering::Relaxed);
            assert!(turns >= FETCHES / 20, "{turns} turns of another task");
            server.leave_async().await.unwrap();
        }
        group.leave().await.unwrap();
    });
}
