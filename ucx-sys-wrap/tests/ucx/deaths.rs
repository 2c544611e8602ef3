//! Deaths of processes: operations with the dead rank end, and other contexts go on.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity_testing::ucx_is_here;
use rustix::process::{Signal, getpid, kill_process};
use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, Region, RemoteRegion};
use ucx_sys_wrap::ucx::{Options, Ucx};
use ucx_sys_wrap::{Envelope, Error, Failure, Mark, Rank, Result, Signature, Tag};

use super::{DEADLINE, envelope, pattern, run};

const RANK: &str = "BREVITY_TEST_RANK";
const FOLDER: &str = "BREVITY_TEST_FOLDER";
const LANES: &str = "BREVITY_TEST_LANES";
const DYING: Rank = Rank(1);
const LONG: usize = 4 << 20;

/// The context of ranks 0 and 2.
const PAIR: u16 = 5;
const EPOCH: u8 = 7;

#[test]
fn a_death_ends_what_waits_for_the_dead_rank_and_nothing_else_over_shared_memory() {
    among_processes("all");
}

#[test]
fn a_death_ends_what_waits_for_the_dead_rank_and_nothing_else_over_sockets() {
    among_processes("tcp,self");
}

fn among_processes(lanes: &str) {
    if let Ok(rank) = std::env::var(RANK) {
        return in_process(Rank(rank.parse().unwrap()));
    }
    if !ucx_is_here() {
        return;
    }
    let name = std::thread::current().name().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let spawn = |rank: u32| {
        Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(FOLDER, folder.path())
            .env(LANES, lanes)
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..3).map(spawn).collect();
    let start = Instant::now();
    for (rank, mut child) in (0..).map(Rank).zip(children) {
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(2)),
                None => {
                    child.kill().unwrap();
                    break child.wait().unwrap();
                }
            }
        };
        assert_eq!(status.success(), rank != DYING, "rank {rank}: {status}");
    }
}

/// Exchanges through files.
fn connect(rank: Rank) -> Arc<Port> {
    let folder = std::env::var_os(FOLDER).unwrap();
    let file = |rank: Rank| Path::new(&folder).join(rank.to_string());
    let mut exchange = |own: &[u8]| {
        std::fs::write(file(rank).with_extension("new"), own).unwrap();
        std::fs::rename(file(rank).with_extension("new"), file(rank)).unwrap();
        let start = Instant::now();
        let read = |rank| loop {
            match std::fs::read(file(rank)) {
                Ok(bytes) => break bytes,
                Err(_) => assert!(start.elapsed() < DEADLINE, "rank {rank} does not come"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        Ok(Rank::all(3).map(read).collect())
    };
    let settings = vec![("TLS".into(), std::env::var(LANES).unwrap())];
    let ucx = Ucx::connect(rank, 3, &mut exchange, &Options { settings, ..Options::default() }).unwrap();
    Port::new(Box::new(ucx))
}

fn in_process(rank: Rank) {
    let port = connect(rank);
    if rank == DYING {
        return die(&port);
    }
    let other = Rank(2 - rank.0);
    port.open_context(PAIR, EPOCH, Arc::new([Rank(0), Rank(2)]), OnLoss::Close);
    let message = pattern(rank.0, LONG);
    let small = [rank.0 as u8; 8000];
    let (mut place, mut fetched) = (vec![0u8; 8], vec![0u8; LONG]);
    let ended = run(&port, async |comm| {
        let (key, arrival) = comm.recv(DYING, envelope(DYING, 1), vec![0u8; 1000]).await.unwrap();
        let remote = RemoteRegion::open(&port, DYING, &key[..arrival.lengths[0]]).unwrap();
        let long = comm.send(DYING, envelope(rank, 2), &message[..]);
        let many: Vec<_> = (0..400).map(|_| comm.send(DYING, envelope(rank, 3), &small[..])).collect();
        let waiting = comm.recv(DYING, envelope(DYING, 4), &mut place[..]);
        exchange(comm, other, 0..3).await;
        let mut results: Vec<Result<()>> = vec![waiting.await.map(|_| ())];
        let start = Instant::now();
        results.push(comm.recv(DYING, envelope(DYING, 5), &mut fetched[..]).await.map(|_| ()));
        results.push(long.await.map(|_| ()));
        for sent in many {
            let sent = sent.await;
            assert!(matches!(sent, Ok(_) | Err(Error::PeerLost { rank: DYING })), "{:?}", sent.err());
        }
        results.push(comm.put(&remote, 0, vec![1u8; 5000]).await.map(|_| ()));
        results.push(comm.flush(DYING).await);
        results.push(comm.send(DYING, envelope(rank, 6), &[1u8; 8][..]).await.map(|_| ()));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        results
    });
    for result in &ended {
        assert!(matches!(result, Err(Error::PeerLost { rank: DYING })), "{ended:?}");
    }
    assert_eq!((port.failure(0), port.lost()), (Some(Failure::PeerLost(DYING)), vec![DYING]));
    // The other context is open, in both directions, for messages of all lengths, and for puts and gets.
    run(&port, async |comm| {
        exchange(comm, other, 3..40).await;
    });
    assert_eq!(port.failure(PAIR), None);
}

/// Tells both others a key, offers a long message, and dies by a signal.
fn die(port: &Arc<Port>) {
    let region = Region::register(port, vec![0u8; 10_000]).unwrap();
    let message = pattern(1, LONG);
    run(port, async |comm| {
        let mut sends = Vec::new();
        for peer in [Rank(0), Rank(2)] {
            comm.send(peer, envelope(DYING, 1), region.key().to_bytes()).await.unwrap();
            sends.push(comm.send(peer, envelope(DYING, 5), &message[..]));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            comm.port().progress();
        }
        kill_process(getpid(), Signal::KILL).unwrap();
    });
}

fn pair(source: Rank, round: u32) -> Envelope {
    let mut signature = Signature([9; 16]);
    signature.0[Signature::EPOCH_AT] = EPOCH;
    Envelope { tag: Tag::new(source, PAIR, 0, round), signature, mark: Mark::NONE }
}

async fn exchange(comm: &Comm<'_>, other: Rank, rounds: std::ops::Range<u32>) {
    let rank = comm.port().rank();
    for round in rounds {
        let length = [8, 20_000, 1 << 20, LONG][round as usize % 4];
        let receiving = comm.recv(other, pair(other, round), vec![0u8; length]);
        let sending = comm.send(other, pair(rank, round), pattern(rank.0 + round, length));
        assert!(receiving.await.unwrap().0 == pattern(other.0 + round, length), "round {round}");
        sending.await.unwrap();
    }
}
