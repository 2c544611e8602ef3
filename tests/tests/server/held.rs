//! Answers that a shard holds back for a slow worker, on a simulated network: what the fast one learns
//! meanwhile, and how long it waits.

use std::future::Future;
use std::time::Duration;

use brevity::server::{Method, ServerBuilder, Servers};
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Error, Group, ParameterServer, Settings};

use brevity_tests::pushes::{builder, gradients, zeros};

/// Of the group: longer than any run.
const TIMEOUT: Duration = Duration::from_secs(1000);

/// How long the slow worker computes.
const SLOWNESS: Duration = Duration::from_secs(60);

/// When something fails.
const DEATH: Duration = Duration::from_secs(10);

/// A worker's parameters, and a clock.
struct Worker {
    server: ParameterServer,
    cluster: Cluster,
    parameters: Vec<Vec<f32>>,
}

impl Worker {
    async fn step(&mut self, step: u32) -> brevity::Result<()> {
        self.server.push(&gradients(0, step), 1.0)?;
        self.pull().await
    }

    async fn pull(&mut self) -> brevity::Result<()> {
        self.server.pull_async(&mut self.parameters).await.map(drop)
    }
}

/// Runs workers, of which rank 1 computes for a minute before its only step; rank 0 does `fast`, and others
/// serve, or do nothing for ten minutes.
fn simulate<F>(
    ranks: u32,
    build: impl Fn(ServerBuilder) -> ServerBuilder,
    faults: Vec<Fault>,
    fast: impl Fn(Worker) -> F + Copy + Send + Sync + 'static,
) where
    F: Future<Output = Worker> + Send,
{
    let cluster = Cluster::new(ranks, Links::new(100e-6, 8e-9)).with_faults(faults);
    let ended = run(cluster.clone(), |transport| {
        let (group, cluster) =
            (Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() }), cluster.clone());
        let server = build(builder(&group).staleness(0)).build_async(&zeros());
        async move {
            let mut server = server.await.unwrap();
            if !server.is_worker() {
                return drop(server.serve_async().await);
            }
            let mut parameters = zeros();
            server.fetch_async(&mut parameters).await.unwrap();
            let mut worker = Worker { server, cluster, parameters };
            match group.rank() {
                0 => worker = fast(worker).await,
                1 => {
                    group.compute(SLOWNESS).await;
                    // A server may be lost.
                    let _ = worker.step(0).await;
                }
                _ => group.compute(10 * SLOWNESS).await,
            }
            let _ = worker.server.leave_async().await;
        }
    });
    ended.unwrap();
}

/// Also if the shard that holds the answer is this rank's own.
#[test]
fn a_dead_server_is_noticed_behind_one_that_is_slow() {
    let death = |rank| vec![Fault::Kill { rank: Rank(rank), at: DEATH }];
    let two = |builder: ServerBuilder| builder.servers(Servers::Dedicated(2));
    simulate(4, two, death(3), |mut worker| async move {
        let ended = worker.step(0).await;
        assert!(matches!(ended, Err(Error::ServerLost { rank: 3, shard: 1 })), "{ended:?}");
        let after = worker.cluster.now() - DEATH;
        assert!(after < Duration::from_secs(1), "{after:?}");
        // The answer of the other server can still be had.
        worker.pull().await.unwrap();
        assert!(worker.cluster.now() >= SLOWNESS);
        worker
    });
    let all = |builder: ServerBuilder| builder.servers(Servers::EveryRank);
    simulate(3, all, death(2), |mut worker| async move {
        let ended = worker.step(0).await;
        assert!(matches!(ended, Err(Error::ServerLost { rank: 2, shard: 2 })), "{ended:?}");
        let after = worker.cluster.now() - DEATH;
        assert!(after < Duration::from_secs(1), "{after:?}");
        worker
    });
}

/// A worker computes for most of its timeout between push and pull.
#[test]
fn the_timeout_of_a_pull_begins_with_the_pull() {
    for servers in [Servers::Dedicated(1), Servers::EveryRank] {
        let ranks = if servers == Servers::EveryRank { 2 } else { 3 };
        let build = |builder: ServerBuilder| builder.servers(servers);
        simulate(ranks, build, Vec::new(), |mut worker| async move {
            worker.server.set_timeout(Duration::from_secs(50));
            worker.server.push(&gradients(0, 0), 1.0).unwrap();
            worker.server.group().compute(Duration::from_secs(45)).await;
            // Fifteen seconds later.
            worker.pull().await.unwrap();
            worker
        });
    }
}

/// It waits no longer, also for the shard of its own rank, and the answer can be pulled later.
#[test]
fn an_answer_that_does_not_come_is_given_up() {
    for servers in [Servers::Dedicated(1), Servers::EveryRank] {
        let ranks = if servers == Servers::EveryRank { 2 } else { 3 };
        let build = |builder: ServerBuilder| builder.servers(servers);
        simulate(ranks, build, Vec::new(), |mut worker| async move {
            worker.server.set_timeout(Duration::from_secs(5));
            let begun = worker.cluster.now();
            let ended = worker.step(0).await;
            assert!(matches!(ended, Err(Error::ServerSilent { shard: 0, .. })), "{ended:?}");
            let waited = (worker.cluster.now() - begun).as_secs_f64();
            assert!((5.0..6.0).contains(&waited), "{waited} s");
            worker.server.set_timeout(TIMEOUT);
            worker.pull().await.unwrap();
            assert!(worker.cluster.now() >= SLOWNESS);
            worker
        });
    }
}

/// A worker is stopped: nobody waits for it any longer than for the patience, also if no message comes then.
#[test]
fn a_worker_that_hangs_is_waited_for_until_the_patience() {
    // The other worker is heard of again after a minute.
    for patience in [SLOWNESS / 3, SLOWNESS * 3 / 2] {
        let stall = Fault::Stall { rank: Rank(2), at: Duration::from_secs(5), lasting: 10 * SLOWNESS };
        let build = move |builder: ServerBuilder| builder.servers(Servers::Dedicated(1)).patience(patience);
        simulate(4, build, vec![stall], move |mut worker| async move {
            worker.step(0).await.unwrap();
            let waited = worker.cluster.now();
            assert!(waited >= patience && waited < patience * 5 / 4, "{waited:?}");
            worker
        });
    }
}

/// Where every rank serves: the shards of both ranks hold back an answer to rank 0.
#[test]
fn a_worker_that_waits_for_something_else_is_waited_for_until_the_patience() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let cluster = Cluster::new(2, Links::new(100e-6, 8e-9));
    let ended = run(cluster.clone(), |transport| {
        let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
        let server = builder(&group).staleness(0).patience(PATIENCE).build_async(&zeros());
        let cluster = cluster.clone();
        async move {
            let (mut server, mut parameters) = (server.await.unwrap(), zeros());
            server.fetch_async(&mut parameters).await.unwrap();
            if group.rank() == 0 {
                server.step_async(&gradients(0, 0), 1.0, &mut parameters).await.unwrap();
                let waited = cluster.now();
                assert!(waited >= PATIENCE && waited < PATIENCE * 5 / 4, "{waited:?}");
            }
            group.start_barrier().await.1.unwrap();
            server.leave_async().await.unwrap();
        }
    });
    ended.unwrap();
}

/// One shard has answered the push, and the other not: its answer is in no parameters, so a pull would miss
/// it for good.
#[test]
fn a_fetch_that_fails_is_made_again() {
    let stall = Fault::Stall { rank: Rank(3), at: Duration::from_secs(1), lasting: SLOWNESS / 3 };
    let two = |builder: ServerBuilder| {
        builder.servers(Servers::Dedicated(2)).staleness(1).method(Method::gradient_dropping(1.0))
    };
    simulate(4, two, vec![stall], |mut worker| async move {
        worker.server.set_timeout(Duration::from_secs(5));
        worker.server.group().compute(Duration::from_secs(2)).await;
        worker.server.push(&gradients(0, 0), 1.0).unwrap();
        let ended = worker.server.fetch_async(&mut worker.parameters).await;
        assert!(matches!(ended, Err(Error::ServerSilent { shard: 1, .. })), "{ended:?}");
        let pulled = worker.pull().await;
        assert!(matches!(pulled, Err(Error::Order { .. })), "{pulled:?}");
        worker.server.set_timeout(TIMEOUT);
        worker.server.fetch_async(&mut worker.parameters).await.unwrap();
        let fetched = worker.parameters.concat();
        assert!(fetched.iter().zip(gradients(0, 0).concat()).all(|(model, g)| *model == -g), "{fetched:?}");
        worker
    });
}
