//! Contexts that end while others go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::OnLoss;
use ucx_sys_wrap::{Envelope, Error, Failure, Mark, Rank, Signature, Tag};

use super::{OVER_UCX, pattern, ported_on, run};

const LONG: usize = 4 << 20;
const EPOCH: u8 = 7;

fn envelope(source: Rank, context: u16, round: u32) -> Envelope {
    let mut signature = Signature([9; 16]);
    signature.0[Signature::EPOCH_AT] = EPOCH;
    Envelope { tag: Tag::new(source, context, 2, round), signature, mark: Mark(round.into()) }
}

/// Operations of all kinds are under way on two contexts, in both directions, when a rank closes one.
#[test]
fn closing_a_context_ends_its_operations_and_leaves_the_other() {
    ported_on(&OVER_UCX, 3, |port, rank| {
        let members: Arc<[Rank]> = Arc::new([Rank(0), Rank(1)]);
        if rank == Rank(2) {
            return;
        }
        let peer = Rank(1 - rank.0);
        for context in [1, 2] {
            port.open_context(context, EPOCH, Arc::clone(&members), OnLoss::Close);
        }
        let (long, small) = (pattern(rank.0, LONG), pattern(rank.0, 3000));
        let (mut closed_place, mut open_place) = ([0u8; 8], vec![0u8; LONG]);
        run(port, async |comm| {
            // Of each context: long messages, fragments, more small ones than there is credit for.
            let mut sends = Vec::new();
            let mut parts = Vec::new();
            for context in [1, 2] {
                sends.push((context, comm.send(peer, envelope(rank, context, 0), &long[..])));
                parts.push((
                    context,
                    comm.send(peer, envelope(rank, context, 1), (&long[..], (&small[..], &long[5..]))),
                ));
                for _ in 0..400 {
                    sends.push((context, comm.send(peer, envelope(rank, context, 2), &small[..])));
                }
            }
            let waiting = comm.recv(peer, envelope(peer, 1, 3), &mut closed_place[..]);
            let receiving = comm.recv(peer, envelope(peer, 2, 0), &mut open_place[..]);
            let start = Instant::now();
            if rank == Rank(0) {
                while start.elapsed() < Duration::from_millis(30) {
                    comm.port().progress();
                }
                comm.port().abort(1);
            }
            let aborted = Err(Error::Aborted { rank: Rank(0) });
            assert_eq!(waiting.await.map(|_| ()).map_err(|error| error.to_string()), message_of(&aborted));
            assert!(receiving.await.unwrap().0 == pattern(peer.0, LONG));
            let places = (vec![0u8; LONG], (vec![0u8; 3000], vec![0u8; LONG - 5]));
            let ((a, (b, c)), _) = comm.recv(peer, envelope(peer, 2, 1), places).await.unwrap();
            assert!(a == pattern(peer.0, LONG) && b == pattern(peer.0, 3000) && c == a[5..]);
            for _ in 0..400 {
                let (bytes, _) = comm.recv(peer, envelope(peer, 2, 2), vec![0u8; 3000]).await.unwrap();
                assert!(bytes == pattern(peer.0, 3000));
            }
            let end = |context, result: Result<(), Error>| match (context, result) {
                (_, Ok(())) => {}
                (1, Err(Error::Aborted { rank: Rank(0) })) => {}
                (_, other) => panic!("{context}: {other:?}"),
            };
            for (context, sent) in sends {
                end(context, sent.await.map(|_| ()));
            }
            for (context, sent) in parts {
                end(context, sent.await.map(|_| ()));
            }
            let refused = comm.send(peer, envelope(rank, 1, 4), &small[..]).await;
            assert!(matches!(refused, Err(Error::Aborted { rank: Rank(0) })), "{:?}", refused.err());
        });
        assert_eq!((port.failure(1), port.failure(2)), (Some(Failure::Aborted(Rank(0))), None));
        // The number is used again, once both have forgotten the context: nothing of the earlier context is
        // received.
        port.forget_context(1);
        run(port, async |comm| {
            comm.send(peer, envelope(rank, 2, 5), ()).await.unwrap();
            comm.recv(peer, envelope(peer, 2, 5), ()).await.unwrap();
        });
        port.open_context(1, EPOCH + 1, members, OnLoss::Close);
        let again = |source| {
            let mut envelope = envelope(source, 1, 2);
            envelope.signature.0[Signature::EPOCH_AT] = EPOCH + 1;
            envelope
        };
        run(port, async |comm| {
            for length in [3, 20_000, LONG] {
                let sending = comm.send(peer, again(rank), pattern(rank.0 + 9, length));
                let (bytes, _) = comm.recv(peer, again(peer), vec![0u8; length]).await.unwrap();
                assert!(bytes == pattern(peer.0 + 9, length), "{length}");
                sending.await.unwrap();
            }
        });
    });
}

fn message_of(result: &Result<(), Error>) -> Result<(), String> {
    result.clone().map_err(|error| error.to_string())
}

/// A rank that returns from its call has its memory back at once, and its peer gets nothing of what was
/// written there since.
#[test]
fn memory_of_a_closed_context_comes_back_within_milliseconds() {
    ported_on(&OVER_UCX, 2, |port, rank| {
        let peer = Rank(1 - rank.0);
        port.open_context(1, EPOCH, Arc::new([Rank(0), Rank(1)]), OnLoss::Close);
        let mut bytes = pattern(rank.0, LONG);
        let start = Instant::now();
        run(port, async |comm| {
            let sending = comm.send(peer, envelope(rank, 1, 0), &bytes[..]);
            while start.elapsed() < Duration::from_millis(30) {
                comm.port().progress();
            }
            comm.port().fail(1, Failure::Differs(rank));
            drop(sending);
        });
        // Generous on a loaded machine; a transport that is abandoned takes two seconds.
        assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
        bytes.fill(0);
        run(port, async |comm| {
            comm.send(peer, envelope(rank, 0, 1), ()).await.unwrap();
            comm.recv(peer, envelope(peer, 0, 1), ()).await.unwrap();
        });
        assert!(port.failure(1).is_some() && port.failure(0).is_none());
    });
}

/// An abort in one context leaves a rank alone that computes meanwhile, although it is to give memory back.
#[test]
fn a_rank_that_computes_keeps_its_other_contexts() {
    ported_on(&OVER_UCX, 2, |port, rank| {
        let peer = Rank(1 - rank.0);
        for context in [1, 2] {
            port.open_context(context, EPOCH, Arc::new([Rank(0), Rank(1)]), OnLoss::Close);
        }
        if rank == Rank(0) {
            let bytes = pattern(0, LONG);
            run(port, async |comm| {
                let sending = comm.send(peer, envelope(rank, 1, 0), &bytes[..]);
                comm.port().progress();
                comm.port().abort(1);
                drop(sending);
            });
        } else {
            std::thread::sleep(Duration::from_millis(800));
        }
        run(port, async |comm| {
            comm.send(peer, envelope(rank, 2, 1), ()).await.unwrap();
            comm.recv(peer, envelope(peer, 2, 1), ()).await.unwrap();
        });
        assert!(port.failure(1).is_some() && port.failure(2).is_none());
    });
}
