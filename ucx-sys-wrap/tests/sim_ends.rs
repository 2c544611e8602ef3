//! When ranks of a simulated network learn of each other's ends, to the nanosecond, and deadlines.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

use std::future::poll_fn;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Comm, Port, Task, TaskFuture};
use ucx_sys_wrap::sim::{Cluster, Fault, Links, Stuck, run};
use ucx_sys_wrap::{Envelope, Error, Mark, Rank, Result, Signature, Tag, Transport};

/// Latency and time per byte of most tests.
const ALPHA: Duration = Duration::from_micros(10);
const BETA: Duration = Duration::from_nanos(2);

/// All ranks are polled at least this often while some are busy.
const LOOK: Duration = Duration::from_millis(10);

fn links() -> Links {
    Links::new(ALPHA.as_secs_f64(), BETA.as_secs_f64())
}

fn transfer(bytes: u32) -> Duration {
    ALPHA + bytes * BETA
}

/// The program of one rank. After `deadline` its operations fail.
async fn program<R: Send + 'static>(
    transport: Box<dyn Transport>,
    deadline: Duration,
    body: impl for<'comm> FnOnce(&'comm Comm<'_>) -> TaskFuture<'comm, R>,
) -> R {
    let mut task = Task::new(&Port::new(transport), (), |comm, ()| body(comm));
    let ((), result) = poll_fn(move |context| {
        task.comm().port().progress();
        if task.comm().now() >= deadline {
            task.comm().expire();
        }
        task.poll(context)
    })
    .await;
    result
}

/// Runs the same program on every rank. Returns the results and when each rank ended.
fn run_all<R: Send + 'static>(
    cluster: Cluster,
    deadline: Duration,
    body: impl for<'comm> Fn(&'comm Comm<'_>) -> TaskFuture<'comm, R> + Clone + Send + 'static,
) -> std::result::Result<Vec<(R, Duration)>, Stuck> {
    run(cluster, |transport| timed(transport, deadline, body.clone()))
}

async fn timed<R: Send + 'static>(
    transport: Box<dyn Transport>,
    deadline: Duration,
    body: impl for<'comm> FnOnce(&'comm Comm<'_>) -> TaskFuture<'comm, R> + Send + 'static,
) -> (R, Duration) {
    program(transport, deadline, |comm| {
        let body = body(comm);
        Box::pin(async move { (body.await, comm.now()) })
    })
    .await
}

/// When each rank ended a program that must not fail.
fn end_times(
    cluster: Cluster,
    body: impl for<'comm> Fn(&'comm Comm<'_>) -> TaskFuture<'comm, Result<()>> + Clone + Send + 'static,
) -> Vec<Duration> {
    let ended = run_all(cluster, Duration::MAX, body).unwrap();
    ended.into_iter().map(|(result, time)| result.map(|()| time).unwrap()).collect()
}

/// The tag of `round`, sent by `source`.
fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, 0, round), signature: Signature::default(), mark: Mark::NONE }
}

async fn send(comm: &Comm<'_>, to: u32, round: u32, bytes: usize) -> Result<()> {
    let own = comm.port().rank();
    comm.send(Rank(to), envelope(own, round), vec![own.0 as u8; bytes]).await.map(|_| ())
}

async fn recv(comm: &Comm<'_>, from: u32, round: u32, bytes: usize) -> Result<()> {
    let (message, arrival) = comm.recv(Rank(from), envelope(Rank(from), round), vec![!0u8; bytes]).await?;
    assert_eq!(arrival.lengths[..], [bytes]);
    assert!(message.iter().all(|byte| *byte == from as u8));
    Ok(())
}

fn own_and_size(comm: &Comm<'_>) -> (u32, u32) {
    (comm.port().rank().0, comm.port().world_size())
}

/// `2 (P - 1)` rounds around the ring.
async fn ring(comm: &Comm<'_>, bytes: usize) -> Result<()> {
    let (own, world_size) = own_and_size(comm);
    for round in 0..2 * (world_size - 1) {
        send(comm, (own + 1) % world_size, round, bytes).await?;
        recv(comm, (own + world_size - 1) % world_size, round, bytes).await?;
    }
    Ok(())
}

fn is_lost<T>(result: &Result<T>, lost: u32) -> bool {
    matches!(result, Err(Error::PeerLost { rank }) if rank.0 == lost)
}

fn is_timeout<T>(result: &Result<T>, peer: u32) -> bool {
    matches!(result, Err(Error::Timeout { rank, .. }) if rank.0 == peer)
}

#[test]
fn a_busy_receiver_does_not_hold_up_the_senders_port() {
    let times = end_times(Cluster::new(4, links()), |comm| {
        Box::pin(async move {
            match comm.port().rank().0 {
                0 => send(comm, 2, 0, 5000).await,
                1 => {
                    send(comm, 2, 0, 1000).await?;
                    send(comm, 3, 0, 1000).await
                }
                _ => recv(comm, 1, 0, 1000).await,
            }
        })
    });
    assert_eq!(times[2..], [transfer(6000), transfer(2000)]);
}

#[test]
fn what_a_killed_rank_sent_is_received_and_then_it_is_lost() {
    let death = 10 * ALPHA;
    let cluster = Cluster::new(3, links()).with_faults([Fault::Kill { rank: Rank(2), at: death }]);
    let results = run_all(cluster, Duration::MAX, |comm| {
        Box::pin(async move {
            match comm.port().rank().0 {
                0 => {
                    recv(comm, 2, 0, 1000).await.unwrap();
                    recv(comm, 2, 1, 1000).await
                }
                1 => recv(comm, 0, 0, 1000).await,
                _ => {
                    send(comm, 0, 0, 1000).await.unwrap();
                    recv(comm, 0, 0, 1).await
                }
            }
        })
    });
    let results = results.unwrap();
    assert!(results.iter().all(|(result, _)| is_lost(result, 2)), "{results:?}");
    assert_eq!([0, 1, 2].map(|rank: usize| results[rank].1), [death + ALPHA, death + 2 * ALPHA, death]);
}

#[test]
fn what_a_rank_sent_before_it_left_is_received_and_then_it_is_lost() {
    let results = run_all(Cluster::new(3, links()), Duration::MAX, |comm| {
        Box::pin(async move {
            match comm.port().rank().0 {
                0 => {
                    send(comm, 1, 0, 1000).await?;
                    send(comm, 1, 1, 1000).await
                }
                1 => {
                    recv(comm, 0, 1, 1000).await.unwrap();
                    recv(comm, 0, 0, 1000).await.unwrap();
                    recv(comm, 0, 2, 1000).await
                }
                _ => recv(comm, 1, 0, 1).await,
            }
        })
    });
    let results = results.unwrap();
    assert!(is_lost(&results[1].0, 0) && is_lost(&results[2].0, 0), "{results:?}");
    assert_eq!((results[1].1, results[2].1), (transfer(2000), ALPHA + transfer(2000)));
}

#[test]
fn a_send_to_a_rank_that_is_known_to_be_gone_loses_it() {
    let results = run_all(Cluster::new(3, links()), Duration::MAX, |comm| {
        Box::pin(async move {
            match comm.port().rank().0 {
                0 => Ok(()),
                1 => send(comm, 2, 0, 100_000).await,
                _ => {
                    recv(comm, 1, 0, 100_000).await.unwrap();
                    send(comm, 0, 0, 1).await
                }
            }
        })
    });
    assert!(is_lost(&results.unwrap()[2].0, 0));
}

#[test]
fn a_cut_link_is_noticed_by_the_deadline_alone() {
    const DEADLINE: Duration = Duration::from_secs(3);
    let cut = Fault::Cut { a: Rank(0), b: Rank(1), at: ALPHA * 2 };
    let results = run_all(Cluster::new(3, links()).with_faults([cut]), DEADLINE, |comm| {
        Box::pin(async move {
            let own = comm.port().rank().0;
            for round in 0..10 {
                for peer in (0..3).filter(|peer| *peer != own) {
                    send(comm, peer, round, 1).await?;
                }
                for peer in (0..3).filter(|peer| *peer != own) {
                    recv(comm, peer, round, 1).await.map_err(|error| (comm.port().abort(0), error).1)?;
                }
            }
            Ok(())
        })
    });
    let results = results.unwrap();
    assert!(is_timeout(&results[0].0, 1) && is_timeout(&results[1].0, 0), "{results:?}");
    assert!(
        results.iter().all(|(_, time)| (DEADLINE..DEADLINE * 9 / 8 + LOOK).contains(time)),
        "{results:?}"
    );
}

#[test]
fn a_stall_longer_than_the_deadline_is_a_timeout() {
    let stall = Fault::Stall { rank: Rank(1), at: Duration::ZERO, lasting: Duration::from_secs(100) };
    let results = run_all(Cluster::new(2, links()).with_faults([stall]), Duration::from_secs(60), |comm| {
        Box::pin(async move {
            let result = ring(comm, 1).await;
            comm.port().abort(0);
            result
        })
    });
    let (error, at) = results.unwrap().swap_remove(0);
    assert!(is_timeout(&error, 1), "{error:?}");
    assert!((60..=68).contains(&at.as_secs()), "{at:?}");
}

#[test]
fn deadlines_pass_while_others_are_busy() {
    const DEADLINE: Duration = Duration::from_secs(2);
    let results = run(Cluster::new(3, Links::new(0.5e-3, 0.0)), |transport| {
        let deadline = if transport.rank() == Rank(2) { DEADLINE } else { Duration::MAX };
        timed(transport, deadline, |comm| {
            Box::pin(async move {
                let own = comm.port().rank().0;
                if own == 2 {
                    return recv(comm, 0, 4000, 1).await;
                }
                for round in 0..20_000 {
                    send(comm, 1 - own, round, 1).await?;
                    recv(comm, 1 - own, round, 1).await?;
                }
                Ok(())
            })
        })
    });
    let results = results.unwrap();
    assert!(is_timeout(&results[2].0, 0), "{results:?}");
    assert!(results[2].1 <= DEADLINE + LOOK, "{results:?}");
    assert_eq!(results[0].1, Duration::from_secs(10));
}

#[test]
fn an_abort_reaches_everyone_one_latency_later() {
    let results = run_all(Cluster::new(6, links()), Duration::MAX, |comm| {
        Box::pin(async move {
            let (own, world_size) = own_and_size(comm);
            if own == 4 {
                comm.port().abort(0);
            }
            recv(comm, (own + 1) % world_size, 0, 1).await
        })
    });
    for (rank, (result, time)) in results.unwrap().into_iter().enumerate() {
        assert!(matches!(result, Err(Error::Aborted { rank: Rank(4) })), "{result:?}");
        assert_eq!(time, if rank == 4 { Duration::ZERO } else { ALPHA });
    }
}
