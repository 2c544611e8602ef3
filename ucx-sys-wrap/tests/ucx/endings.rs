//! Ranks that leave, fail, sleep and cancel what they have sent.

use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Comm, scope};
use ucx_sys_wrap::{Error, Failure, Rank};

use super::{DEADLINE, OVER_UCX, envelope, pattern, ported, ported_on, run};

#[test]
fn whoever_waits_for_a_rank_that_leaves_is_told() {
    ported(3, |port, rank| {
        if rank == Rank(2) {
            return;
        }
        let result = run(port, async |comm| comm.recv(Rank(2), envelope(Rank(2), 0), vec![0u8; 8]).await);
        assert!(matches!(result, Err(Error::PeerLost { rank: Rank(2) })), "{result:?}");
        assert_eq!(port.failure(0), Some(Failure::PeerLost(Rank(2))));
    });
}

#[test]
fn a_failure_reaches_those_who_wait_for_others_and_ends_large_sends() {
    ported_on(&OVER_UCX, 4, |port, rank| {
        // 1 and 2 wait for 0, 3 sends to 0 what 0 never receives; 0 aborts after a while.
        let bytes = vec![1u8; 1 << 22];
        let result = run(port, async |comm| match rank.0 {
            0 => {
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(50) {
                    comm.port().progress();
                }
                comm.port().abort(0);
                Err(Error::Aborted { rank })
            }
            3 => comm.send(Rank(0), envelope(rank, 0), &bytes[..]).await.map(|_| ()),
            _ => comm.recv(Rank(0), envelope(Rank(0), 7), vec![0u8; 8]).await.map(|_| ()),
        });
        // 0 discards what it never receives, perhaps before 3 knows of the abort.
        let is_discarded = rank == Rank(3) && result.is_ok();
        assert!(is_discarded || matches!(result, Err(Error::Aborted { rank: Rank(0) })), "{rank} {result:?}");
        while port.failure(0).is_none() {
            port.progress();
        }
        assert_eq!(port.failure(0), Some(Failure::Aborted(Rank(0))));
    });
}

#[test]
fn a_large_send_that_is_dropped_is_discarded_by_its_peer() {
    const LENGTH: usize = 1 << 22;
    ported_on(&OVER_UCX, 2, |port, rank| {
        let start = Instant::now();
        if rank == Rank(0) {
            // Behind a message that is still wanted, before one that is, and between other tags.
            let (first, mut bytes) = (pattern(1, LENGTH), pattern(2, LENGTH));
            run(port, async |comm| {
                let first = comm.send(Rank(1), envelope(rank, 0), &first[..]);
                drop(comm.send(Rank(1), envelope(rank, 1), &bytes[..]));
                drop(comm.send(Rank(1), envelope(rank, 0), &bytes[..]));
                first.await.unwrap();
            });
            bytes.copy_from_slice(&pattern(3, LENGTH));
            run(port, async |comm| comm.send(Rank(1), envelope(rank, 0), &bytes[..]).await.unwrap());
            run(port, async |comm| comm.send(Rank(1), envelope(rank, 1), &bytes[..]).await.unwrap());
        } else {
            let receive = |round, seed: &[u32]| {
                let (bytes, _) = run(port, async |comm| {
                    comm.recv(Rank(0), envelope(Rank(0), round), vec![0u8; LENGTH]).await.unwrap()
                });
                assert!(seed.iter().any(|seed| bytes == pattern(*seed, LENGTH)), "{round} {seed:?}");
                bytes == pattern(3, LENGTH)
            };
            while start.elapsed() < Duration::from_millis(100) {
                port.progress();
            }
            assert!(!receive(0, &[1]));
            // A message that was matched before it was canceled still arrives whole.
            while !receive(0, &[2, 3]) {}
            while !receive(1, &[3]) {}
        }
    });
}

#[test]
fn memory_that_is_taken_back_from_a_stalled_peer_is_never_received() {
    const LENGTH: usize = 1 << 22;
    ported_on(&OVER_UCX, 2, |port, rank| {
        if rank == Rank(0) {
            let mut bytes = pattern(1, LENGTH);
            run(port, async |comm| drop(comm.send(Rank(1), envelope(rank, 0), &bytes[..])));
            assert!(port.statistics().messages_sent == 1 && port.failure(0).is_some());
            bytes.fill(0);
            std::thread::sleep(Duration::from_secs(1));
            let result = run(port, async |comm| comm.recv(Rank(1), envelope(Rank(1), 0), vec![0u8; 8]).await);
            assert!(matches!(result, Err(Error::Closed)), "{result:?}");
        } else {
            std::thread::sleep(Duration::from_millis(2500));
            let result =
                run(port, async |comm| comm.recv(Rank(0), envelope(Rank(0), 0), vec![0u8; LENGTH]).await);
            assert!(matches!(result, Err(Error::PeerLost { rank: Rank(0) })), "{:?}", result.err());
        }
    });
}

#[test]
fn a_sleeping_rank_is_woken_by_messages_and_by_the_end_of_its_peer() {
    ported(2, |port, rank| {
        let peer = Rank(1 - rank.0);
        let start = Instant::now();
        if rank == Rank(0) {
            std::thread::sleep(Duration::from_millis(50));
            run(port, async |comm| comm.send(peer, envelope(rank, 0), &[5u8; 4][..]).await.unwrap());
            std::thread::sleep(Duration::from_millis(100));
            return;
        }
        let mut sleeps = 0;
        for round in 0..2 {
            let mut between = |comm: &Comm<'_>| {
                assert!(start.elapsed() < DEADLINE, "hangs");
                if !comm.port().progress() {
                    comm.port().sleep(DEADLINE);
                    sleeps += 1;
                }
            };
            let result = scope(port, &mut between, async |comm| {
                comm.recv(peer, envelope(peer, round), vec![0u8; 4]).await.map(|(bytes, _)| bytes)
            });
            match round {
                0 => assert_eq!(result.unwrap(), [5; 4]),
                _ => assert!(matches!(result, Err(Error::PeerLost { rank: Rank(0) }))),
            }
        }
        assert!((1..2000).contains(&sleeps), "{sleeps} sleeps");
    });
}

#[test]
fn what_was_sent_before_leaving_arrives() {
    ported(2, |port, rank| {
        for (round, length) in (0..).zip([8, 4096]) {
            if rank == Rank(0) {
                let bytes = pattern(1, length);
                run(port, async |comm| comm.send(Rank(1), envelope(rank, round), &bytes[..]).await.unwrap());
            } else {
                std::thread::sleep(Duration::from_millis(60));
                let received = run(port, async |comm| {
                    comm.recv(Rank(0), envelope(Rank(0), round), vec![0u8; length]).await
                });
                assert!(received.unwrap().0 == pattern(1, length));
            }
        }
    });
}
