//! The simulated network: its times compared with the formulas, its messages, its faults, and its
//! determinism.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Comm, Port, Task, TaskFuture};
use ucx_sys_wrap::sim::{Cluster, Fault, Links, Stuck, run};
use ucx_sys_wrap::{Arrival, Envelope, Error, Mark, Rank, Result, Signature, Tag};

/// A latency of 100 us and 1 ns a byte: exact in picoseconds.
const ALPHA: f64 = 100e-6;
const BETA: f64 = 1e-9;

/// How long an operation may take before its task gives up.
const TIMEOUT: Duration = Duration::from_secs(10);

fn links() -> Links {
    Links::new(ALPHA, BETA)
}

/// `alphas` latencies and the time of `bytes` bytes.
fn time(alphas: u32, bytes: usize) -> Duration {
    alphas * Duration::from_micros(100) + Duration::from_nanos(bytes as u64)
}

fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, 0, round), signature: Signature::default(), mark: Mark::NONE }
}

/// The task of a rank: it may send, receive, and read the clock.
type Body<R> = for<'comm> fn(&'comm Comm<'_>, Rank, u32) -> TaskFuture<'comm, R>;

/// Runs `body` on every rank. Returns every rank's result with the time at which it had it.
fn simulate<R: Send + 'static>(
    cluster: &Cluster,
    body: Body<R>,
) -> std::result::Result<Vec<(R, Duration)>, Stuck> {
    run(cluster.clone(), |transport| {
        let port = Port::new(transport);
        async move {
            let (rank, world_size) = (port.rank(), port.world_size());
            let mut task = Task::new(&port, (), move |comm, ()| body(comm, rank, world_size));
            let ((), result) = poll_fn(|context| {
                port.progress();
                if port.now() >= TIMEOUT {
                    task.comm().expire();
                }
                task.poll(context)
            })
            .await;
            (result, port.now())
        }
    })
}

/// When the last rank was done.
fn makespan(world_size: u32, links: Links, body: Body<()>) -> Duration {
    let done = simulate(&Cluster::new(world_size, links), body).unwrap();
    done.into_iter().map(|((), time)| time).max().unwrap()
}

async fn send(comm: &Comm<'_>, to: Rank, round: u32, bytes: Vec<u8>) {
    comm.send(to, envelope(comm.port().rank(), round), bytes).await.unwrap();
}

async fn recv(comm: &Comm<'_>, from: Rank, round: u32, length: usize) -> Vec<u8> {
    let (mut bytes, arrival) = comm.recv(from, envelope(from, round), vec![0u8; length]).await.unwrap();
    bytes.truncate(arrival.lengths[0]);
    bytes
}

async fn exchange(comm: &Comm<'_>, to: Rank, from: Rank, round: u32, bytes: usize) {
    send(comm, to, round, vec![1u8; bytes]).await;
    recv(comm, from, round, bytes).await;
}

/// `rounds` rounds of 1,000 bytes around the ring.
async fn ring(comm: &Comm<'_>, own: Rank, world_size: u32, rounds: u32) {
    let (next, previous) = (Rank((own.0 + 1) % world_size), Rank((own.0 + world_size - 1) % world_size));
    for round in 0..rounds {
        exchange(comm, next, previous, round, 1000).await;
    }
}

/// Rank 0's 1,000 bytes reach all ranks: the number of ranks that have them doubles every round.
async fn broadcast(comm: &Comm<'_>, own: Rank, world_size: u32) {
    let mut distance = 1;
    while distance < world_size {
        if own.0 < distance && own.0 + distance < world_size {
            send(comm, Rank(own.0 + distance), 0, vec![7u8; 1000]).await;
        } else if own.0 >= distance && own.0 < 2 * distance {
            assert_eq!(recv(comm, Rank(own.0 - distance), 0, 1000).await, [7u8; 1000]);
        }
        distance *= 2;
    }
}

#[test]
fn an_exchange_takes_alpha_and_beta_once() {
    let took = makespan(2, links(), |comm, own, _| {
        Box::pin(async move { exchange(comm, Rank(1 - own.0), Rank(1 - own.0), 0, 5000).await })
    });
    assert_eq!(took, time(1, 5000));
}

#[test]
fn a_ring_takes_its_rounds() {
    for world_size in [2, 3, 8, 13] {
        let took = makespan(world_size, links(), |comm, own, world_size| {
            Box::pin(ring(comm, own, world_size, 2 * (world_size - 1)))
        });
        let rounds = 2 * (world_size - 1);
        assert_eq!(took, time(rounds, 1000 * rounds as usize), "{world_size} ranks");
    }
}

#[test]
fn an_all_gather_by_recursive_doubling_takes_log_alpha_and_all_bytes() {
    let took = makespan(16, links(), |comm, own, world_size| {
        Box::pin(async move {
            for round in 0..world_size.ilog2() {
                let peer = Rank(own.0 ^ 1 << round);
                exchange(comm, peer, peer, round, 1000 << round).await;
            }
        })
    });
    assert_eq!(took, time(4, 15 * 1000));
}

#[test]
fn a_binomial_broadcast_takes_log_rounds() {
    for (world_size, rounds) in [(2, 1), (8, 3), (64, 6)] {
        let took =
            makespan(world_size, links(), |comm, own, world_size| Box::pin(broadcast(comm, own, world_size)));
        assert_eq!(took, time(rounds, 1000 * rounds as usize), "{world_size} ranks");
    }
}

#[test]
fn ports_are_shared() {
    let gather = makespan(9, links(), |comm, own, world_size| {
        Box::pin(async move {
            if own != Rank(0) {
                return send(comm, Rank(0), 0, vec![1u8; 1000]).await;
            }
            for from in 1..world_size {
                recv(comm, Rank(from), 0, 1000).await;
            }
        })
    });
    assert_eq!(gather, time(1, 8 * 1000), "eight senders, one port");
    let scatter = makespan(9, links(), |comm, own, world_size| {
        Box::pin(async move {
            if own != Rank(0) {
                recv(comm, Rank(0), 0, 1000).await;
                return;
            }
            for to in 1..world_size {
                send(comm, Rank(to), 0, vec![1u8; 1000]).await;
            }
        })
    });
    assert_eq!(scatter, time(1, 8 * 1000), "one port, eight receivers");
}

#[test]
fn links_may_differ_and_headers_may_count() {
    let body: Body<()> = |comm, own, _| {
        Box::pin(async move {
            if own == Rank(0) {
                send(comm, Rank(1), 0, vec![1u8; 1000]).await;
                send(comm, Rank(2), 0, vec![1u8; 1000]).await;
            } else {
                recv(comm, Rank(0), 0, 1000).await;
            }
        })
    };
    let slow = links().with_link(Rank(0), Rank(2), 10.0 * ALPHA, 4.0 * BETA);
    let times: Vec<_> =
        simulate(&Cluster::new(3, slow), body).unwrap().into_iter().map(|((), time)| time).collect();
    assert_eq!(times, [Duration::ZERO, time(1, 1000), time(10, 1000 + 4 * 1000)]);
    assert_eq!(makespan(3, links().with_header_bytes(50), body), time(1, 2 * 1050));
}

#[test]
fn messages_match_by_tag_and_order() {
    simulate(&Cluster::new(2, links()), |comm, own, _| {
        Box::pin(async move {
            if own == Rank(0) {
                for index in 0..300u32 {
                    send(comm, Rank(1), index % 3, index.to_ne_bytes().to_vec()).await;
                }
                return;
            }
            for tag in (0..3).rev() {
                for index in (0..300u32).filter(|index| index % 3 == tag) {
                    assert_eq!(recv(comm, Rank(0), tag, 4).await, index.to_ne_bytes());
                }
            }
        })
    })
    .unwrap();
}

#[test]
fn parts_marks_and_refusals() {
    simulate(&Cluster::new(2, links()), |comm, own, _| {
        Box::pin(async move {
            let tag = envelope(Rank(0), 0);
            let marked = Envelope { mark: Mark(9), ..tag };
            let strange = Envelope { signature: Signature(7u128.to_le_bytes()), ..tag };
            if own == Rank(0) {
                comm.send(Rank(1), marked, ((vec![1u8; 3], Vec::<u8>::new()), vec![2u8; 2])).await.unwrap();
                comm.send(Rank(1), strange, vec![3u8; 4]).await.unwrap();
                comm.send(Rank(1), tag, vec![4u8; 5]).await.unwrap();
                comm.send(Rank(1), tag, ()).await.unwrap();
                send(comm, Rank(1), 0, vec![5u8; 4]).await;
                return;
            }
            let places = ((vec![0u8; 3], vec![0u8; 9]), vec![0u8; 3]);
            let (((first, _), third), arrival) = comm.recv(Rank(0), tag, places).await.unwrap();
            assert_eq!(arrival, Arrival { mark: Mark(9), lengths: [3, 0, 2].into_iter().collect() });
            assert_eq!((first, third), (vec![1; 3], vec![2, 2, 0]));
            let mismatch = comm.recv(Rank(0), tag, vec![0u8; 4]).await.unwrap_err();
            assert!(
                matches!(mismatch, Error::Mismatch { rank: Rank(0), found, .. } if found == strange.signature)
            );
            let too_long = comm.recv(Rank(0), tag, vec![0u8; 4]).await.unwrap_err();
            assert!(
                matches!(too_long, Error::TooLong { rank: Rank(0), part: 0, sent: 5, capacity: 4 }),
                "{too_long}"
            );
            let too_few = comm.recv(Rank(0), tag, vec![0u8; 4]).await.unwrap_err();
            assert!(matches!(too_few, Error::TooLong { rank: Rank(0), part: 0, sent: 0, .. }), "{too_few}");
            drop(comm.recv(Rank(0), tag, vec![0u8; 1]));
            assert_eq!(recv(comm, Rank(0), 0, 4).await, [5u8; 4]);
            let error = comm.send(Rank(1), tag, ()).await.unwrap_err();
            assert!(matches!(error, Error::NoSuchPeer { rank: Rank(1), .. }), "{error}");
        })
    })
    .unwrap();
}

#[test]
fn all_to_all() {
    for world_size in [1, 2, 3, 5, 8] {
        simulate(&Cluster::new(world_size, links()), |comm, own, world_size| {
            Box::pin(async move {
                let peers = || Rank::all(world_size).filter(|peer| *peer != own);
                for to in peers() {
                    send(comm, to, 0, vec![own.0 as u8; 100 * (1 + to.index())]).await;
                }
                for from in peers() {
                    assert_eq!(recv(comm, from, 0, 1000).await, vec![from.0 as u8; 100 * (1 + own.index())]);
                }
            })
        })
        .unwrap();
    }
}

/// Rounds of the ring that may fail.
fn fallible_ring<'comm>(comm: &'comm Comm<'_>, own: Rank, world_size: u32) -> TaskFuture<'comm, Result<()>> {
    Box::pin(async move {
        let (next, previous) = (Rank((own.0 + 1) % world_size), Rank((own.0 + world_size - 1) % world_size));
        for round in 0..100 {
            comm.send(next, envelope(own, round), vec![1u8; 1000]).await?;
            comm.recv(previous, envelope(previous, round), vec![0u8; 1000]).await?;
        }
        Ok(())
    })
}

#[test]
fn everyone_names_the_rank_that_was_killed() {
    let kill = Fault::Kill { rank: Rank(2), at: Duration::from_millis(2) };
    for (result, time) in simulate(&Cluster::new(7, links()).with_faults([kill]), fallible_ring).unwrap() {
        assert!(matches!(result, Err(Error::PeerLost { rank: Rank(2) })), "{result:?}");
        assert!(time <= Duration::from_millis(3), "{time:?}");
    }
}

#[test]
fn what_a_rank_sent_before_it_left_arrives() {
    let results = simulate(&Cluster::new(2, links()), |comm, own, _| {
        Box::pin(async move {
            if own == Rank(0) {
                send(comm, Rank(1), 0, vec![1u8; 100_000_000]).await;
                return Ok(());
            }
            assert_eq!(recv(comm, Rank(0), 0, 100_000_000).await.len(), 100_000_000);
            comm.recv(Rank(0), envelope(Rank(0), 1), vec![0u8]).await.map(|_| ())
        })
    })
    .unwrap();
    assert!(matches!(results[1].0, Err(Error::PeerLost { rank: Rank(0) })), "{:?}", results[1]);
}

#[test]
fn an_abort_reaches_all() {
    let results = simulate(&Cluster::new(5, links()), |comm, own, _| {
        Box::pin(async move {
            if own == Rank(3) {
                recv(comm, Rank(4), 0, 1).await;
                comm.port().abort(0);
            } else if own == Rank(4) {
                send(comm, Rank(3), 0, vec![1]).await;
            }
            let from = Rank(u32::from(own == Rank(0)));
            comm.recv(from, envelope(from, 1), vec![0u8]).await.map(|_| ())
        })
    })
    .unwrap();
    for (result, _) in results {
        assert!(matches!(result, Err(Error::Aborted { rank: Rank(3) })), "{result:?}");
    }
}

#[test]
fn a_stalled_rank_delays_the_others() {
    let lasting = Duration::from_millis(50);
    let stall = Fault::Stall { rank: Rank(1), at: Duration::from_millis(1), lasting };
    let calm = simulate(&Cluster::new(4, links()), fallible_ring).unwrap();
    let stalled = simulate(&Cluster::new(4, links()).with_faults([stall]), fallible_ring).unwrap();
    let end = |results: &[(Result<()>, Duration)]| results.iter().map(|(_, time)| *time).max().unwrap();
    assert!(stalled.iter().all(|(result, _)| result.is_ok()), "{stalled:?}");
    let delay = end(&stalled) - end(&calm);
    assert!(delay <= lasting && delay > lasting - time(1, 1000), "{delay:?}");
}

#[test]
fn deadlines_pass_while_a_rank_stands_still_and_behind_a_cut() {
    let at = Duration::from_millis(1);
    let stall = Fault::Stall { rank: Rank(1), at, lasting: Duration::from_secs(1000) };
    let cut = Fault::Cut { a: Rank(0), b: Rank(1), at };
    for fault in [stall, cut] {
        let results = simulate(&Cluster::new(3, links()).with_faults([fault]), fallible_ring).unwrap();
        let timeouts = results.iter().filter(|(result, _)| matches!(result, Err(Error::Timeout { .. })));
        assert!(timeouts.clone().count() >= 1, "{fault:?}: {results:?}");
        for (_, time) in timeouts.filter(|(_, time)| *time < Duration::from_secs(1000)) {
            assert!(*time >= TIMEOUT && *time <= TIMEOUT + TIMEOUT / 8, "{fault:?}: {time:?}");
        }
    }
}

#[test]
fn who_waits_for_ever_is_named() {
    let cluster = Cluster::new(3, links());
    let stuck = run(cluster, |transport| {
        let port = Port::new(transport);
        async move {
            if port.rank() != Rank(1) {
                std::future::pending::<()>().await;
            }
        }
    })
    .unwrap_err();
    assert_eq!(stuck.waiting, [Rank(0), Rank(2)]);
    assert!(stuck.since < Duration::from_millis(1), "{stuck}");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed: u64| {
        let faults = Fault::random(seed, 6, 3, Duration::from_millis(5));
        let cluster = Cluster::new(6, links()).with_faults(faults);
        let results = simulate(&cluster, fallible_ring).unwrap();
        (cluster.trace_hash(), format!("{results:?}"))
    };
    let traces: Vec<_> = (0..50).map(trace).collect();
    assert_eq!(traces, (0..50).map(trace).collect::<Vec<_>>());
    let different: std::collections::BTreeSet<_> = traces.iter().map(|(hash, _)| hash).collect();
    assert_eq!(different.len(), traces.len());
}

#[test]
fn bytes_messages_and_copies_are_counted() {
    let counted = run(Cluster::new(2, links()), |transport| {
        let port: Arc<Port> = Port::new(transport);
        async move {
            let own = port.rank();
            let mut task = Task::new(&port, (), move |comm, ()| {
                Box::pin(async move { exchange(comm, Rank(1 - own.0), Rank(1 - own.0), 0, 1000).await })
            });
            poll_fn(|context| task.poll(context)).await;
            port.statistics()
        }
    })
    .unwrap();
    for counts in counted {
        assert_eq!((counts.messages_sent, counts.messages_received), (1, 1));
        assert_eq!((counts.copies, counts.bytes_copied), (2, 2000));
        assert_eq!((counts.bytes_sent, counts.bytes_received), (1032, 1032));
    }
}

#[test]
fn many_ranks_are_fast() {
    let start = Instant::now();
    let took = makespan(1024, links(), |comm, own, world_size| Box::pin(broadcast(comm, own, world_size)));
    println!("broadcast among 1,024 ranks: {:?}", start.elapsed());
    assert_eq!(took, time(10, 10 * 1000));
    let start = Instant::now();
    let took = makespan(256, links(), |comm, own, world_size| Box::pin(ring(comm, own, world_size, 510)));
    println!("510 rounds of a ring of 256 ranks: {:?}", start.elapsed());
    assert_eq!(took, time(510, 510 * 1000));
}
