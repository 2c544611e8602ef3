//! The same faults between ranks of one process: on the simulated network, in virtual time, and between
//! threads.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use brevity::collectives::{Description, Error, Operation};
use brevity::transport::Rank;
use brevity::transport::sim::{Cluster, Fault, Links, run};
use brevity::{Group, ReduceOp, Settings};
use brevity_testing::Wire;
use brevity_tests::{on_groups, on_local};

const TIMEOUT: Duration = Duration::from_secs(60);
const AT: Duration = Duration::from_millis(40);

/// How every rank's all-reduces ended, and when, on a network in which `fault` happens.
fn on_sim(fault: Fault) -> Vec<(Error, Duration)> {
    let cluster = Cluster::new(4, Links::new(0.436e-3, 9e-9)).with_faults([fault]);
    run(cluster.clone(), |transport| {
        let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
        let cluster = cluster.clone();
        async move {
            loop {
                let (_, result) = group.start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum).await;
                let Err(error) = result else { continue };
                let time = cluster.now();
                let (_, later) = group.start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum).await;
                assert!(later.is_err(), "a closed group goes on");
                return (error, time);
            }
        }
    })
    .unwrap()
}

#[test]
fn a_killed_rank_is_named_by_all_on_the_simulator() {
    for (rank, (error, time)) in on_sim(Fault::Kill { rank: Rank(2), at: AT }).into_iter().enumerate() {
        assert!(matches!(error, Error::PeerLost { rank: Rank(2) }), "rank {rank}: {error}");
        assert!(time < AT + Duration::from_millis(10), "rank {rank}: {time:?}");
    }
}

#[test]
fn a_stall_and_a_cut_end_calls_by_their_deadline_on_the_simulator() {
    let stall = Fault::Stall { rank: Rank(2), at: AT, lasting: Duration::from_secs(1000) };
    let cut = Fault::Cut { a: Rank(2), b: Rank(3), at: AT };
    for fault in [stall, cut] {
        let ended = on_sim(fault);
        // A deadline in a silence is seen up to an eighth late, and the longest time without a look, as long
        // again, does not count.
        for (rank, (error, time)) in ended.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            assert!(matches!(error, Error::Timeout { .. }), "rank {rank}: {error}");
            assert!(*time < TIMEOUT * 4 / 3, "rank {rank}: {time:?}");
        }
        assert!(
            ended.iter().any(|(error, _)| matches!(error, Error::Timeout { rank: Rank(2), .. })),
            "{ended:?}"
        );
    }
}

#[test]
fn an_abort_ends_all_calls_between_threads() {
    let errors = on_local(5, |group| {
        group.barrier().unwrap();
        let from = (group.rank() + 1) % group.world_size();
        let description = Description::new(Operation::MESSAGE, 0, 0);
        let pending = group.start(description, vec![0u8; 100], move |call, buffer| {
            Box::pin(async move { call.recv(from, 0, &mut buffer[..]).await.map(drop) })
        });
        if group.rank() == 3 {
            std::thread::sleep(Duration::from_millis(50));
            group.abort();
        }
        let blocking =
            group.run(description, async |call| call.recv(from, 0, vec![0u8; 100]).await.map(drop));
        [blocking, pending.wait().1, group.barrier()]
    });
    for (rank, results) in errors.iter().enumerate() {
        for result in results {
            assert!(matches!(result, Err(Error::Aborted { rank: Rank(3) })), "rank {rank}: {results:?}");
        }
    }
}

/// Outside of calls, by a rank that never calls again; in a call that sleeps, by another thread.
#[test]
fn an_abort_reaches_peers_whatever_the_rank_is_doing() {
    for (wire, is_in_call) in Wire::ALL.into_iter().flat_map(|wire| [(wire, false), (wire, true)]) {
        if !wire.is_here() {
            continue;
        }
        let groups = wire.world(3).into_iter().map(|transport| Group::new(transport, Settings::default()));
        let names = Arc::new(Barrier::new(3));
        let errors = on_groups(groups.collect(), move |group| {
            group.barrier().unwrap();
            // The abort must not reach a rank that is still in the barrier.
            names.wait();
            let receive = |from: u32| {
                let description = Description::new(Operation::MESSAGE, 0, 0);
                group.run(description, async |call| call.recv(from, 0, vec![0u8; 100]).await.map(drop))
            };
            let result = match (group.rank(), is_in_call) {
                (2, true) => {
                    let other = group.clone();
                    let aborter = std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(50));
                        other.abort();
                    });
                    let received = receive(0);
                    aborter.join().unwrap();
                    received
                }
                (2, false) => {
                    group.abort();
                    Err(Error::Aborted { rank: Rank(2) })
                }
                _ => receive(2),
            };
            // Rank 2 keeps its group, and does nothing, until the others have been notified.
            names.wait();
            result
        });
        for (rank, result) in errors.iter().enumerate() {
            let is_named = matches!(result, Err(Error::Aborted { rank: Rank(2) }));
            assert!(is_named, "{wire:?}, in a call: {is_in_call}, rank {rank}: {result:?}");
        }
    }
}

/// Only a simulated rank itself polls its transport: its abort is sent when its group ends at the latest.
#[test]
fn an_abort_before_the_end_is_told_on_the_simulator() {
    let errors = run(Cluster::new(3, Links::new(0.436e-3, 9e-9)), |transport| {
        let group = Group::new(transport, Settings { timeout: TIMEOUT, ..Settings::default() });
        async move {
            if group.rank() == 1 {
                group.abort();
                return None;
            }
            group.start_all_reduce(vec![1.0f32; 100], ReduceOp::Sum).await.1.err()
        }
    });
    let errors = errors.unwrap();
    assert!(
        [0, 2].iter().all(|rank| matches!(errors[*rank], Some(Error::Aborted { rank: Rank(1) }))),
        "{errors:?}"
    );
}
