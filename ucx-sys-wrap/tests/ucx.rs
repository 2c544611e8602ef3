//! The transport over UCX between threads of this process: one context and worker for each rank, over shared
//! memory and over UCX's tcp. Skipped without UCX, unless `BREVITY_REQUIRE_UCX` is 1.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

#[path = "ucx/contexts.rs"]
mod contexts;
#[path = "ucx/copies.rs"]
mod copies;
#[path = "ucx/deaths.rs"]
mod deaths;
#[path = "ucx/endings.rs"]
mod endings;
#[path = "ucx/tasks.rs"]
mod tasks;

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use brevity_testing::{Wire, ucx_is_here};
use ucx_sys_wrap::buffer::{Comm, Port, Region, scope};
use ucx_sys_wrap::ucx::rdma_devices;
use ucx_sys_wrap::ucx::{self, Options, Ucx};
use ucx_sys_wrap::{Envelope, Error, Mark, Rank, Signature, Tag};

const DEADLINE: Duration = Duration::from_secs(100);

/// The wires that use UCX alone.
const OVER_UCX: [Wire; 2] = [Wire::UcxShared, Wire::UcxTcp];

/// The wires for everything else.
const WIRES: [Wire; 4] = [Wire::UcxShared, Wire::UcxTcp, Wire::UcxLocalPeers, Wire::Ucx];

/// Ranks with different user settings all report it, and name the same rank.
#[test]
fn ranks_with_other_settings_are_refused_by_all() {
    if !ucx_is_here() {
        return;
    }
    let cards = Mutex::new(vec![Vec::new(); 3]);
    let met = Barrier::new(3);
    let connect = &|rank: Rank| {
        let scheme = if rank == Rank(1) { "am" } else { "get_zcopy" };
        let settings = vec![("TLS".into(), "tcp,self".into()), ("RNDV_SCHEME".into(), scheme.into())];
        let mut exchange = |own: &[u8]| {
            cards.lock().unwrap()[rank.index()] = own.to_vec();
            met.wait();
            Ok(cards.lock().unwrap().clone())
        };
        Ucx::connect(rank, 3, &mut exchange, &Options { settings, ..Options::default() })
            .err()
            .unwrap()
            .to_string()
    };
    std::thread::scope(|threads| {
        let ranks: Vec<_> = Rank::all(3).map(|rank| threads.spawn(move || connect(rank))).collect();
        for rank in ranks {
            let error = rank.join().unwrap();
            assert!(
                error.contains("UCX settings: rank 1 has UCX_TLS=tcp,self UCX_RNDV_SCHEME=am"),
                "{error}"
            );
            assert!(error.contains("expected UCX_TLS=tcp,self UCX_RNDV_SCHEME=get_zcopy"), "{error}");
        }
    });
}

/// Here UCX accesses a peer's memory directly only through shared memory; elsewhere the owner is asked.
#[test]
fn memory_comes_back_where_peers_have_to_ask_for_it() {
    for wire in WIRES.into_iter().filter(|_| ucx_is_here()) {
        let ports: Vec<_> = wire.world(2).into_iter().map(Port::new).collect();
        let region = Region::register(&ports[1], vec![7u8; 100]).unwrap();
        let comes_back = matches!(wire, Wire::UcxTcp | Wire::UcxLocalPeers).then(|| vec![7u8; 100]);
        assert_eq!(region.unregister(), comes_back, "{wire:?}");
    }
}

/// If keeping registrations gains nothing, UCX must not patch the C library's functions: it overwrites their
/// first bytes, while other threads may be in them.
#[test]
fn the_c_library_is_left_alone_until_registrations_are_kept() {
    unsafe extern "C" {
        fn munmap();
        fn brk();
    }
    let first_bytes = || {
        [munmap, brk].map(|function: unsafe extern "C" fn()| {
            // SAFETY: a function's code can be read, and these are longer than 8 bytes.
            unsafe { (function as *const [u8; 8]).read_unaligned() }
        })
    };
    let before = first_bytes();
    let registers = ["/dev/knem", "/dev/xpmem"].iter().any(|device| std::path::Path::new(device).exists());
    if !ucx_is_here() || registers || !rdma_devices().is_empty() {
        return;
    }
    let connect = |settings| {
        let mut exchange = |own: &[u8]| Ok(vec![own.to_vec()]);
        Ucx::connect(Rank(0), 1, &mut exchange, &Options { settings, ..Options::default() }).unwrap()
    };
    let _alone = connect(Vec::new());
    assert_eq!(first_bytes(), before);
    let _keeping = connect(vec![("RCACHE_ENABLE".into(), "try".into())]);
    assert_ne!(first_bytes(), before, "what users ask for is done, and this test sees it");
}

/// The same through a port, on all wires.
fn ported(world_size: u32, body: impl Fn(&Arc<Port>, Rank) + Send + Sync) {
    ported_on(&WIRES, world_size, body);
}

fn ported_on(wires: &[Wire], world_size: u32, body: impl Fn(&Arc<Port>, Rank) + Send + Sync) {
    if !ucx_is_here() {
        return;
    }
    for wire in wires {
        std::thread::scope(|threads| {
            for transport in wire.world(world_size) {
                let body = &body;
                threads.spawn(move || {
                    let rank = transport.rank();
                    body(&Port::new(transport), rank);
                });
            }
        });
    }
}

/// Runs `body`, which must end before the deadline.
fn run<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    let start = Instant::now();
    let between = |comm: &Comm<'env>| {
        assert!(start.elapsed() < DEADLINE, "hangs");
        if !comm.port().progress() {
            std::thread::yield_now();
        }
    };
    scope(port, between, body)
}

fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, 2, round), signature: Signature([9; 16]), mark: Mark(round.into()) }
}

fn pattern(seed: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) + at / 251 + seed as usize) as u8).collect()
}

const LENGTHS: [usize; 12] =
    [0, 1, 8, 4095, 4096, 4097, 8192, 10_000, 65_536, 300_001, 1 << 20, (4 << 20) + 3];

#[test]
fn rings_of_all_lengths() {
    ported(3, |port, rank| {
        let (next, before) = (Rank((rank.0 + 1) % 3), Rank((rank.0 + 2) % 3));
        for (round, length) in (0..).zip(LENGTHS) {
            let (sent, mut received) = (pattern(rank.0, length), vec![0; length + 5]);
            let arrival = run(port, async |comm| {
                let receive = comm.recv(before, envelope(before, round), &mut received[..]);
                let send = comm.send(next, envelope(rank, round), &sent[..]);
                let (_, arrival) = receive.await.unwrap();
                send.await.unwrap();
                arrival
            });
            assert_eq!((arrival.mark, &arrival.lengths[..]), (Mark(round.into()), &[length][..]));
            assert!(received[..length] == pattern(before.0, length), "{length}");
            assert_eq!(received[length..], [0; 5]);
        }
    });
}

#[test]
fn parts_come_to_their_places_in_order() {
    const MESSAGES: u32 = 40;
    ported(2, |port, rank| {
        let peer = Rank(1 - rank.0);
        let size = |message: u32, part: usize| LENGTHS[(message as usize * 7 + part * 5) % 9];
        let sent: Vec<_> = (0..MESSAGES)
            .map(|message| [0, 1, 2].map(|part| pattern(message, size(message, part))))
            .collect();
        let mut received: Vec<_> =
            (0..MESSAGES).map(|message| [0, 1, 2].map(|part| vec![0u8; size(message, part)])).collect();
        // One tag for all, with receives posted before, after and in between.
        run(port, async |comm| {
            let mut receives = Vec::new();
            let mut sends = Vec::new();
            for ([a, b, c], places) in sent.iter().zip(&mut received) {
                let [x, y, z] = places;
                let receive = comm.recv(peer, envelope(peer, 0), (&mut x[..], (&mut y[..], &mut z[..])));
                let send = comm.send(peer, envelope(rank, 0), (&a[..], (&b[..], &c[..])));
                receives.push(receive);
                sends.push(send);
            }
            for receive in receives {
                receive.await.unwrap();
            }
            for send in sends {
                send.await.unwrap();
            }
        });
        assert!(sent == received);
    });
}

#[test]
fn what_does_not_fit_leaves_the_next_message_unharmed() {
    ported(2, |port, rank| {
        let peer = Rank(1 - rank.0);
        for length in [10, 20_000, 1 << 20] {
            let bytes = pattern(3, length);
            let mut received = vec![0u8; length];
            run(port, async |comm| {
                if rank == Rank(0) {
                    for _ in 0..4 {
                        comm.send(peer, envelope(rank, 0), (&bytes[..], &bytes[..])).await.unwrap();
                    }
                    comm.recv(peer, envelope(peer, 1), ()).await.unwrap();
                    return;
                }
                let short =
                    comm.recv(peer, envelope(peer, 0), (vec![0u8; length], vec![0u8; length - 1])).await;
                assert!(
                    matches!(short, Err(Error::TooLong { rank: Rank(0), part: 1, sent, capacity })
                        if (sent, capacity) == (length as u64, length - 1)),
                    "{length}"
                );
                let few = comm.recv(peer, envelope(peer, 0), vec![0u8; length]).await;
                assert!(matches!(few, Err(Error::TooLong { part: 1, capacity: 0, .. })));
                let mut signature = Signature([9; 16]);
                signature.0[0] = 8;
                let other = Envelope { signature, ..envelope(peer, 0) };
                let other = comm.recv(peer, other, (vec![0u8; length], vec![0u8; length])).await;
                assert!(matches!(other, Err(Error::Mismatch { rank: Rank(0), found: Signature(found), .. })
                    if found == [9; 16]));
                let ((left, right), _) =
                    comm.recv(peer, envelope(peer, 0), (&mut received[..], vec![0u8; length])).await.unwrap();
                assert!(left == bytes && right == bytes);
                comm.send(peer, envelope(rank, 1), ()).await.unwrap();
            });
        }
    });
}

#[test]
fn a_canceled_receive_leaves_its_place_in_the_line() {
    ported(2, |port, rank| {
        let peer = Rank(1 - rank.0);
        let mut places = [[0u8; 4]; 3];
        run(port, async |comm| {
            if rank == Rank(0) {
                comm.recv(peer, envelope(peer, 1), ()).await.unwrap();
                comm.send(peer, envelope(rank, 0), &[1u8; 4][..]).await.unwrap();
                return;
            }
            let [a, b, c] = &mut places;
            let first = comm.recv(peer, envelope(peer, 0), &mut a[..]);
            let second = comm.recv(peer, envelope(peer, 0), &mut b[..]);
            let third = comm.recv(peer, envelope(peer, 0), &mut c[..]);
            drop(second);
            drop(first);
            comm.send(peer, envelope(rank, 1), ()).await.unwrap();
            third.await.unwrap();
        });
        if rank == Rank(1) {
            assert_eq!(places, [[0; 4], [0; 4], [1; 4]]);
        }
    });
}

#[test]
fn what_nobody_asks_for_is_bounded_and_blocks_no_other_tag() {
    const MESSAGES: u32 = 3000;
    // Without credit these start with an RTS: one part, nothing, several small parts.
    let length = |message: u32| [1000, 1, 0, 700][message as usize % 4];
    ported_on(&OVER_UCX, 2, |port, rank| {
        let peer = Rank(1 - rank.0);
        run(port, async |comm| {
            if rank == Rank(0) {
                let mut sends = Vec::new();
                let mut pairs = Vec::new();
                for message in 0..MESSAGES {
                    let bytes = pattern(message, length(message));
                    match message % 5 {
                        0 => pairs.push(comm.send(peer, envelope(rank, 0), (bytes.clone(), bytes))),
                        _ => sends.push(comm.send(peer, envelope(rank, 0), bytes)),
                    }
                }
                comm.send(peer, envelope(rank, 1), vec![1u8; 8]).await.unwrap();
                for send in sends {
                    send.await.unwrap();
                }
                for pair in pairs {
                    pair.await.unwrap();
                }
                return;
            }
            comm.recv(peer, envelope(peer, 1), vec![0u8; 8]).await.unwrap();
            let kept = comm.port().statistics().bytes_copied;
            assert!((ucx::CREDIT_BYTES / 4..=ucx::CREDIT_BYTES).contains(&kept), "{kept} bytes kept");
            for message in 0..MESSAGES {
                let expected = pattern(message, length(message));
                if message % 5 == 0 {
                    let places = (vec![0u8; 1000], vec![0u8; 1000]);
                    let ((left, right), arrival) = comm.recv(peer, envelope(peer, 0), places).await.unwrap();
                    assert_eq!(arrival.lengths[..], [expected.len(); 2]);
                    assert!(
                        left[..expected.len()] == expected && right[..expected.len()] == expected,
                        "{message}"
                    );
                } else {
                    let (bytes, arrival) = comm.recv(peer, envelope(peer, 0), vec![0u8; 1000]).await.unwrap();
                    assert_eq!(arrival.lengths[..], [expected.len()]);
                    assert!(bytes[..expected.len()] == expected, "{message}");
                }
            }
        });
    });
}

#[test]
fn statistics_are_exact() {
    ported_on(&OVER_UCX, 2, |port, rank| {
        let peer = Rank(1 - rank.0);
        let (small, large) = (vec![1u8; 100], vec![2u8; 100_000]);
        run(port, async |comm| {
            for bytes in [&small, &large] {
                let receive = comm.recv(peer, envelope(peer, 0), vec![0u8; bytes.len()]);
                let send = comm.send(peer, envelope(rank, 0), &bytes[..]);
                receive.await.unwrap();
                send.await.unwrap();
            }
        });
        let statistics = port.statistics();
        assert_eq!((statistics.messages_sent, statistics.messages_received), (2, 2));
        // The second does not repeat the signature.
        assert_eq!((statistics.bytes_sent, statistics.bytes_received), (100_140, 100_140));
        assert_eq!((statistics.copies, statistics.bytes_copied), (1, 100), "received the small one");
    });
}
