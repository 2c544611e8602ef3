//! Cases in which operations end early: canceled, left behind, or ended with their context.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use ucx_sys_wrap::buffer::{Port, Task, scope};
use ucx_sys_wrap::{Envelope, Error, Failure, Mark, Rank};

use super::{block, envelope, meet, pattern, turn};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

/// The contents of receive buffers before anything is received.
const UNTOUCHED: u8 = 0xa5;

const LENGTHS: [usize; 3] = [16, 10_000, 1 << 20];

/// B asks A to continue; both have then left the earlier operations.
fn go_on(port: &Arc<Port>, round: u32) {
    block(port, async |comm| {
        if port.rank() == A {
            comm.recv(B, envelope(B, 99, round), ()).await.unwrap();
        } else {
            comm.send(A, envelope(B, 99, round), ()).await.unwrap();
        }
    });
}

pub fn canceled_recv(port: &Arc<Port>) {
    for (round, length) in LENGTHS.into_iter().enumerate() {
        if port.rank() == B {
            block(port, async |comm| {
                drop(comm.recv(A, envelope(A, 1, 0), vec![0u8; length]));
                // A shorter one: if it still existed, the message would end it with an error.
                drop(comm.recv(A, envelope(A, 1, 0), vec![0u8; 1]));
            });
        }
        go_on(port, round as u32);
        block(port, async |comm| {
            if port.rank() == A {
                comm.send(B, envelope(A, 1, 0), pattern(round, length)).await.unwrap();
            } else {
                let (bytes, _) = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap();
                assert!(bytes == pattern(round, length), "{length} bytes");
            }
        });
    }
}

/// The peer gets the whole message or none of it, although the sender's memory is used for something else.
pub fn canceled_send(port: &Arc<Port>) {
    const LAST: Mark = Mark(2);
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let tag = envelope(A, 1, round as u32);
        if port.rank() == A {
            let mut bytes = pattern(1, length);
            block(port, async |comm| drop(comm.send(B, tag, &bytes[..])));
            bytes.fill(UNTOUCHED);
            block(port, async |comm| {
                let last = Envelope { mark: LAST, ..tag };
                comm.send(B, last, pattern(2, length)).await.unwrap();
            });
            continue;
        }
        // Sometimes late, so that the send is unmatched when it is canceled.
        thread::sleep(Duration::from_millis(10 * (round as u64 % 2)));
        block(port, async |comm| {
            let mut seen = Mark::NONE;
            while seen != LAST {
                let (bytes, arrived) = comm.recv(A, tag, vec![0u8; length]).await.unwrap();
                assert!(bytes == pattern(if arrived.mark == LAST { 2 } else { 1 }, length), "{length} bytes");
                seen = arrived.mark;
            }
        });
    }
}

pub fn canceled_in_the_middle(port: &Arc<Port>) {
    const LENGTH: usize = 40 << 20;
    for turns in [0, 1, 3, 10] {
        let (large, end) = (envelope(A, 1, turns), envelope(A, 2, turns));
        if port.rank() == A {
            block(port, async |comm| {
                let send = comm.send(B, large, pattern(1, LENGTH));
                comm.send(B, end, ()).await.unwrap();
                // It may never be received.
                drop(send);
            });
            continue;
        }
        let mut place = vec![UNTOUCHED; LENGTH];
        block(port, async |comm| {
            let recv = comm.recv(A, large, &mut place[..]);
            (0..turns).for_each(|_| turn(port));
            drop(recv);
        });
        let left = place.clone();
        block(port, async |comm| comm.recv(A, end, ()).await.unwrap());
        assert!(place == left, "written after the scope was left");
    }
}

/// A borrowed buffer is no longer written once the scope is left, however that happens.
pub fn left_in_a_scope(port: &Arc<Port>) {
    for (round, (way, length)) in (0..3).flat_map(|way| LENGTHS.map(|length| (way, length))).enumerate() {
        let mut place = vec![UNTOUCHED; length];
        if port.rank() == B {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                block(port, async |comm| {
                    let recv = comm.recv(A, envelope(A, 1, 0), &mut place[..]);
                    match way {
                        0 => drop(recv),
                        1 => forget(recv),
                        _ => resume_unwind(Box::new("on purpose")),
                    }
                });
            }));
            assert_eq!(panicked.is_err(), way == 2);
        }
        go_on(port, round as u32);
        block(port, async |comm| {
            if port.rank() == A {
                comm.send(B, envelope(A, 1, 0), pattern(round, length)).await.unwrap();
            } else {
                let (bytes, _) = comm.recv(A, envelope(A, 1, 0), vec![0u8; length]).await.unwrap();
                assert!(bytes == pattern(round, length), "{length} bytes");
            }
        });
        assert!(place.iter().all(|byte| *byte == UNTOUCHED), "way {way}, {length} bytes");
    }
}

pub fn expired(port: &Arc<Port>) {
    if port.rank() == B {
        let start = port.now();
        let result = scope(
            port,
            |comm| {
                turn(comm.port());
                if comm.now() - start > Duration::from_millis(20) {
                    comm.expire();
                }
            },
            async |comm| comm.recv(A, envelope(A, 1, 5), vec![0u8; 8]).await,
        );
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Timeout { rank: A, tag, .. } if tag == envelope(A, 1, 5).tag),
            "{error}"
        );
    }
}

/// Tasks own their buffers; two of them at once, and one that is dropped while it waits.
pub fn tasks(port: &Arc<Port>) {
    let own = port.rank();
    let (next, previous) = (Rank((own.0 + 1) % 3), Rank((own.0 + 2) % 3));
    let ring = |sequence: u32| {
        let buffers = (pattern(own.index(), 100_000), vec![0u8; 100_000]);
        Task::new(port, buffers, move |comm, buffers| {
            Box::pin(async move {
                let send = comm.send(next, envelope(own, sequence, 0), &buffers.0[..]);
                let recv = comm.recv(previous, envelope(previous, sequence, 0), &mut buffers.1[..]);
                (recv.await.map(|_| ()), send.await.map(|_| ()))
            })
        })
    };
    let mut abandoned = Task::new(port, vec![0u8; 100], move |comm, place| {
        Box::pin(
            async move { comm.recv(previous, envelope(previous, 3, 0), &mut place[..]).await.map(|_| ()) },
        )
    });
    let mut context = Context::from_waker(Waker::noop());
    assert!(abandoned.poll(&mut context).is_pending());
    drop(abandoned);
    // No rank sends before all have dropped theirs.
    meet(port);
    let mut tasks = vec![ring(1), ring(2), ring(3)];
    while !tasks.is_empty() {
        turn(port);
        tasks.retain_mut(|task| match task.poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(((sent, received), (recv, send))) => {
                recv.and(send).unwrap();
                assert!(
                    sent == pattern(own.index(), 100_000) && received == pattern(previous.index(), 100_000)
                );
                false
            }
        });
    }
}

/// One lost wake-up makes this hang.
pub fn sleep(port: &Arc<Port>) {
    const LONGEST: Duration = Duration::from_secs(100_000);
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    for round in 0..200 {
        let bytes = vec![round as u8; [8, 10_000, 500_000][round as usize % 3]];
        let mut place = vec![0u8; bytes.len()];
        scope(
            port,
            |comm| {
                if !comm.port().progress() {
                    comm.port().sleep(LONGEST);
                }
            },
            async |comm| {
                let recv = comm.recv(peer, envelope(peer, 1, round), &mut place[..]);
                if round % 10 == own.0 {
                    // The other sleeps by now.
                    thread::sleep(Duration::from_millis(2));
                }
                let send = comm.send(peer, envelope(own, 1, round), &bytes[..]);
                recv.await.unwrap();
                send.await.unwrap();
            },
        );
        assert_eq!(place, bytes);
    }
}

/// What B has sent still arrives; then all name B, also the one that only waits for A.
pub fn peer_dropped(port: &Arc<Port>) {
    block(port, async |comm| match port.rank() {
        A => {
            let (bytes, _) = comm.recv(B, envelope(B, 1, 0), vec![0u8; 1000]).await.unwrap();
            assert_eq!(bytes, pattern(1, 1000));
            let pending = comm.recv(B, envelope(B, 1, 0), vec![0u8; 1000]);
            expect_lost(pending.await.map(|_| ()));
            expect_lost(comm.recv(B, envelope(B, 1, 0), vec![0u8; 1000]).await.map(|_| ()));
            expect_lost(comm.send(B, envelope(A, 1, 0), pattern(1, 1000)).await.map(|_| ()));
            expect_lost(comm.send(Rank(2), envelope(A, 1, 0), pattern(1, 1000)).await.map(|_| ()));
            assert_eq!(port.failure(0), Some(Failure::PeerLost(B)));
        }
        B => {
            comm.send(A, envelope(B, 1, 0), pattern(1, 1000)).await.unwrap();
        }
        _ => {
            expect_lost(comm.recv(A, envelope(A, 1, 0), vec![0u8; 1000]).await.map(|_| ()));
            assert_eq!(port.failure(0), Some(Failure::PeerLost(B)));
        }
    });
}

pub fn peer_dropped_under_a_send(port: &Arc<Port>) {
    block(port, async |comm| {
        if port.rank() == A {
            let pending = comm.send(B, envelope(A, 1, 0), pattern(1, 40 << 20));
            comm.send(B, envelope(A, 2, 0), ()).await.unwrap();
            expect_lost(pending.await.map(|_| ()));
        } else {
            comm.recv(A, envelope(A, 2, 0), ()).await.unwrap();
        }
    });
}

fn expect_lost(result: ucx_sys_wrap::Result<()>) {
    assert!(matches!(result, Err(Error::PeerLost { rank: B })), "{result:?}");
}

/// All wait for rank 0, which waits for B, which aborts.
pub fn abort(port: &Arc<Port>) {
    let expect_aborted = |result: ucx_sys_wrap::Result<()>| {
        assert!(matches!(result, Err(Error::Aborted { rank: B })), "{result:?}");
    };
    if port.rank() == B {
        thread::sleep(Duration::from_millis(20));
        port.abort(0);
    }
    let awaited = if port.rank() == A { B } else { A };
    block(port, async |comm| {
        // More than any transport sends to a peer that does not receive.
        let send = comm.send(awaited, envelope(port.rank(), 1, 0), pattern(1, 2 << 20));
        expect_aborted(comm.recv(awaited, envelope(awaited, 1, 0), vec![0u8; 8]).await.map(|_| ()));
        // A rank that has closed the context drops what comes, as if it had received it.
        let sent = send.await.map(|_| ());
        assert!(matches!(sent, Ok(()) | Err(Error::Aborted { rank: B })), "{sent:?}");
        expect_aborted(comm.recv(awaited, envelope(awaited, 1, 1), vec![0u8; 8]).await.map(|_| ()));
        expect_aborted(comm.send(awaited, envelope(port.rank(), 1, 1), vec![0u8; 8]).await.map(|_| ()));
    });
    assert_eq!(port.failure(0), Some(Failure::Aborted(B)));
}

/// B's deadline passes while it waits for rank 0, which waits for rank 2, which is late: each names the rank
/// it waits for.
pub fn time_over(port: &Arc<Port>) {
    const C: Rank = Rank(2);
    let awaited = if port.rank() == A { C } else { A };
    let tag = envelope(awaited, 1, 0);
    block(port, async |comm| {
        if port.rank() == C {
            comm.recv(B, envelope(B, 2, 0), ()).await.unwrap();
            // Late: it may have learned of it when it finally waits, or it learns of it then.
            thread::sleep(Duration::from_millis(100));
            let error = comm.recv(A, tag, vec![0u8; 8]).await.map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::Timeout { rank: A, .. } | Error::Aborted { rank: B }), "{error}");
        } else {
            let pending = comm.recv(awaited, tag, vec![0u8; 8]);
            let send = comm.send(awaited, envelope(port.rank(), 3, 0), pattern(1, 2 << 20));
            if port.rank() == B {
                comm.send(C, envelope(B, 2, 0), ()).await.unwrap();
                thread::sleep(Duration::from_millis(20));
                port.time_out(0);
            }
            let error = pending.await.map(|_| ()).unwrap_err();
            assert!(
                matches!(error, Error::Timeout { rank, tag: found, .. }
                    if (rank, found) == (awaited, tag.tag)),
                "{error}"
            );
            // A rank that has closed the context drops what comes, as if it had received it.
            let sent = send.await.map(|_| ());
            assert!(
                sent.is_ok() || matches!(sent, Err(Error::Timeout { rank, .. }) if rank == awaited),
                "{sent:?}"
            );
        }
        let later = comm.recv(awaited, envelope(awaited, 1, 1), vec![0u8; 8]).await.map(|_| ()).unwrap_err();
        assert!(matches!(later, Error::Aborted { rank: B }), "{later}");
    });
    assert_eq!(port.failure(0), Some(Failure::TimedOut(B)));
}

/// A scope with operations in flight can be left after its context was closed.
pub fn scope_after_abort(port: &Arc<Port>) {
    let peer = Rank(1 - port.rank().0);
    let bytes = pattern(1, 1 << 20);
    let mut place = vec![0u8; 1 << 20];
    block(port, async |comm| {
        forget(comm.send(peer, envelope(port.rank(), 1, 0), &bytes[..]));
        forget(comm.recv(peer, envelope(peer, 1, 1), &mut place[..]));
        if port.rank() == B {
            port.abort(0);
        }
    });
}
