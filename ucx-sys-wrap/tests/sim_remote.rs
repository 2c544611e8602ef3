//! Puts and gets on the simulated network: what they move and when, what is refused, and what ends them.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

use std::future::poll_fn;
use std::mem::forget;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Comm, Port, Region, RemoteRegion, Task, TaskFuture};
use ucx_sys_wrap::sim::{Cluster, Fault, Links, run};
use ucx_sys_wrap::{Envelope, Error, Mark, Rank, Result, Signature, Tag};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// The contents of memory before anything is put there.
const UNTOUCHED: u8 = 0xa5;

/// How long an operation may take before its task gives up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The task of a rank. A is rank 0, which accesses the memory of B, rank 1.
type Body<R> = for<'comm> fn(&'comm Comm<'_>, Rank) -> TaskFuture<'comm, R>;

/// A latency of 100 us and 1 ns a byte.
fn cluster() -> Cluster {
    Cluster::new(2, Links::new(100e-6, 1e-9))
}

/// `alphas` latencies and the time of `bytes` bytes.
fn time(alphas: u32, bytes: usize) -> Duration {
    alphas * Duration::from_micros(100) + Duration::from_nanos(bytes as u64)
}

/// Runs `body` on both ranks; returns their results.
fn simulate<R: Send + 'static>(cluster: Cluster, body: Body<R>) -> Vec<R> {
    let ended = run(cluster, |transport| {
        let port = Port::new(transport);
        async move {
            let rank = port.rank();
            let mut task = Task::new(&port, (), move |comm, ()| body(comm, rank));
            let ((), result) = poll_fn(|context| {
                port.progress();
                if port.now() >= TIMEOUT {
                    task.comm().expire();
                }
                task.poll(context)
            })
            .await;
            result
        }
    });
    ended.unwrap()
}

fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, 0, round), signature: Signature::default(), mark: Mark::NONE }
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ at >> 9 ^ seed.wrapping_mul(97)) as u8).collect()
}

/// B registers memory and tells A.
async fn share(comm: &Comm<'_>, round: u32, memory: Vec<u8>) -> Region<Vec<u8>> {
    let region = Region::register(comm.port(), memory).unwrap();
    comm.send(A, envelope(B, round), region.key().to_bytes()).await.unwrap();
    region
}

/// A receives the key.
async fn open(comm: &Comm<'_>, round: u32) -> RemoteRegion {
    let (bytes, arrival) = comm.recv(B, envelope(B, round), vec![0u8; 1000]).await.unwrap();
    RemoteRegion::open(comm.port(), B, &bytes[..arrival.lengths[0]]).unwrap()
}

async fn say(comm: &Comm<'_>, round: u32) {
    let own = comm.port().rank();
    comm.send(Rank(1 - own.0), envelope(own, round), ()).await.unwrap();
}

async fn hear(comm: &Comm<'_>, round: u32) {
    let peer = Rank(1 - comm.port().rank().0);
    comm.recv(peer, envelope(peer, round), ()).await.unwrap();
}

fn contents(region: &Region<Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![0; region.byte_count()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_put_is_there_and_what_is_there_is_got() {
    simulate(cluster(), |comm, own| {
        Box::pin(async move {
            for (round, length) in (0..).step_by(10).zip([0, 1, 8, 4097, 100_000, (1 << 20) + 3]) {
                let offset = length % 13;
                if own == A {
                    let remote = open(comm, round).await;
                    assert_eq!((remote.owner(), remote.region_bytes()), (B, length as u64 + 20));
                    let (sent, ()) = comm.put(&remote, offset, pattern(1, length)).await.unwrap();
                    assert!(sent == pattern(1, length));
                    comm.flush(B).await.unwrap();
                    say(comm, round + 1).await;
                    hear(comm, round + 2).await;
                    let places = ((vec![0u8; length / 3], vec![0u8; 0]), vec![0u8; length - length / 3]);
                    let (((first, _), second), ()) = comm.get(&remote, offset, places).await.unwrap();
                    assert!([first, second].concat() == pattern(2, length), "{length} bytes");
                    say(comm, round + 3).await;
                    continue;
                }
                let region = share(comm, round, vec![UNTOUCHED; length + 20]).await;
                hear(comm, round + 1).await;
                let found = contents(&region);
                assert!(found[offset..offset + length] == pattern(1, length), "{length} bytes");
                assert_eq!([&found[..offset], &found[offset + length..]].concat(), [UNTOUCHED; 20]);
                region.write(offset, &pattern(2, length)).unwrap();
                say(comm, round + 2).await;
                hear(comm, round + 3).await;
            }
        })
    });
}

/// A put is carried out when its last byte has arrived and completes one latency later; a get sends a
/// request, and its bytes come back.
#[test]
fn puts_and_gets_take_the_time_of_their_messages() {
    let times = simulate(cluster(), |comm, own| {
        Box::pin(async move {
            if own == B {
                let _region = share(comm, 0, vec![0; 5000]).await;
                hear(comm, 1).await;
                return [Duration::ZERO; 3];
            }
            let remote = open(comm, 0).await;
            let start = comm.now();
            let put = comm.put(&remote, 0, vec![1u8; 5000]);
            comm.flush(B).await.unwrap();
            let flushed = comm.now() - start;
            put.await.unwrap();
            let put = comm.now() - start;
            let start = comm.now();
            comm.get(&remote, 0, vec![0u8; 5000]).await.unwrap();
            let got = comm.now() - start;
            say(comm, 1).await;
            [put, flushed, got]
        })
    });
    assert_eq!(times[0], [time(2, 5000); 3]);
}

#[test]
fn what_is_not_in_a_region_is_refused() {
    simulate(cluster(), |comm, own| {
        Box::pin(async move {
            if own == B {
                let region = share(comm, 0, vec![UNTOUCHED; 100]).await;
                hear(comm, 1).await;
                assert_eq!(contents(&region), [UNTOUCHED; 100]);
                assert_eq!(region.unregister(), Some(vec![UNTOUCHED; 100]));
                say(comm, 2).await;
                hear(comm, 3).await;
                return;
            }
            let remote = open(comm, 0).await;
            for (offset, length) in [(0, 101), (100, 1), (101, 0), (usize::MAX, 2), (1 << 40, 8)] {
                let put = comm.put(&remote, offset, vec![1u8; length]).await.map(|_| ());
                let get = comm.get(&remote, offset, vec![1u8; length]).await.map(|_| ());
                for result in [put, get] {
                    let is_refused =
                        matches!(result, Err(Error::OutOfRegion { rank: B, region_bytes: 100, .. }));
                    assert!(is_refused, "{length} bytes at {offset}: {result:?}");
                }
            }
            say(comm, 1).await;
            hear(comm, 2).await;
            let put = comm.put(&remote, 0, vec![1u8; 8]).await.map(|_| ());
            let get = comm.get(&remote, 0, vec![1u8; 8]).await.map(|_| ());
            for result in [put, get] {
                assert!(matches!(result, Err(Error::NoSuchRegion { rank: B })), "{result:?}");
            }
            comm.flush(B).await.unwrap();
            say(comm, 3).await;
        })
    });
}

/// Whatever happens to the futures, a put is carried out whole or not at all, and later operations go on.
#[test]
fn what_is_dropped_or_forgotten_does_no_harm() {
    simulate(cluster(), |comm, own| Box::pin(leave(comm, own, false)));
    simulate(cluster(), |comm, own| Box::pin(leave(comm, own, true)));
}

async fn leave(comm: &Comm<'_>, own: Rank, forgets: bool) {
    if own == B {
        let region = share(comm, 0, pattern(3, 10_000)).await;
        hear(comm, 1).await;
        let found = contents(&region);
        assert!(found == pattern(3, 10_000) || found == pattern(4, 10_000), "a part of a put");
        say(comm, 2).await;
        hear(comm, 3).await;
        return;
    }
    let remote = open(comm, 0).await;
    let put = comm.put(&remote, 0, pattern(4, 10_000));
    let get = comm.get(&remote, 0, vec![0u8; 10_000]);
    if forgets {
        forget((put, get))
    } else {
        drop((put, get))
    }
    say(comm, 1).await;
    hear(comm, 2).await;
    comm.put(&remote, 0, pattern(5, 10_000)).await.unwrap();
    let (found, ()) = comm.get(&remote, 0, vec![0u8; 10_000]).await.unwrap();
    assert!(found == pattern(5, 10_000));
    say(comm, 3).await;
}

/// How A's accesses end when a fault happens to B in the middle of them.
fn ended_by(fault: Option<Fault>) -> Vec<Result<()>> {
    let cluster = fault.map_or_else(cluster, |fault| cluster().with_faults([fault]));
    let ended = simulate(cluster, |comm, own| {
        Box::pin(async move {
            if own == B {
                let region = share(comm, 0, vec![1; 1 << 20]).await;
                // Dead, cut off or gone by then.
                let end = comm.recv(A, envelope(A, 1), ()).await.map(|_| ());
                drop(region);
                return vec![end];
            }
            let remote = open(comm, 0).await;
            // A millisecond each.
            let put = comm.put(&remote, 0, vec![2u8; 1 << 20]);
            let get = comm.get(&remote, 0, vec![0u8; 1 << 20]);
            let flush = comm.flush(B);
            vec![put.await.map(|_| ()), get.await.map(|_| ()), flush.await]
        })
    });
    ended.into_iter().next().unwrap()
}

#[test]
fn a_death_in_the_middle_ends_them() {
    for result in ended_by(Some(Fault::Kill { rank: B, at: Duration::from_micros(600) })) {
        assert!(matches!(result, Err(Error::PeerLost { rank: B })), "{result:?}");
    }
}

#[test]
fn a_cut_in_the_middle_ends_them_by_their_deadline() {
    for result in ended_by(Some(Fault::Cut { a: A, b: B, at: Duration::from_micros(600) })) {
        assert!(matches!(result, Err(Error::Timeout { rank: B, .. })), "{result:?}");
    }
}
