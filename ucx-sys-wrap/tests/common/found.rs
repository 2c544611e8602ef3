//! Messages that are received by whoever finds them.

use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use super::{block, meet, pattern, turn};
use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, next_turn, scope};
use ucx_sys_wrap::{Envelope, Error, Found, Mark, Rank, Signature, Tag, Wanted};

const A: Rank = Rank(0);
const B: Rank = Rank(1);

const CONTEXT: u16 = 9;
const OLD: u8 = 3;
const NEW: u8 = 4;

/// Of every way that a message can take.
const LENGTHS: [usize; 7] = [0, 1, 100, 5000, 50_000, 600_000, 3_000_000];

fn signature(epoch: u8) -> Signature {
    let mut signature = Signature::default();
    signature.0[Signature::EPOCH_AT] = epoch;
    signature
}

fn of_user(context: u16, epoch: u8, source: Rank, tag: u32) -> Envelope {
    let tag = Tag::of_user(source, context, tag);
    Envelope { tag, signature: signature(epoch), mark: Mark::NONE }
}

fn any(context: u16, epoch: u8) -> Wanted {
    Wanted { context, epoch, source: None, tag: None, after: A }
}

/// Waits for a message that is wanted.
async fn find(comm: &Comm<'_>, wanted: Wanted) -> Found {
    std::future::poll_fn(|context| match comm.port().probe(&wanted).unwrap() {
        Some(found) => Poll::Ready(found),
        None => next_turn(context),
    })
    .await
}

/// Receives a message that was found, or comes first, into a place of its length.
async fn take(comm: &Comm<'_>, wanted: Wanted) -> (Found, Vec<u8>) {
    let epoch = wanted.epoch;
    let (found, receive) = std::future::poll_fn(|context| {
        let place = |found: &Found| Some(vec![0u8; found.lengths.iter().sum()]);
        comm.recv_found(&wanted, signature(epoch), place)
            .unwrap()
            .map_or_else(|| next_turn(context), Poll::Ready)
    })
    .await;
    (found, receive.await.unwrap().0)
}

/// A finds what two others send, in their order, and each has its turn.
pub fn in_turn(port: &Arc<Port>) {
    const EACH: u32 = 40;
    if port.rank() != A {
        block(port, async |comm| {
            for tag in 0..EACH {
                comm.send(A, of_user(0, 0, port.rank(), tag), pattern(tag as usize, 10)).await.unwrap();
            }
        });
        return meet(port);
    }
    // Everything has come then.
    meet(port);
    block(port, async |comm| {
        let mut next = [0; 3];
        let mut wanted = any(0, 0);
        for round in 0..2 * EACH {
            let probed = find(comm, wanted).await;
            assert_eq!(find(comm, wanted).await, probed, "it is still there");
            let (found, bytes) = take(comm, wanted).await;
            let (source, tag) = (found.tag.source(), found.tag.user().unwrap());
            assert_eq!((&found, source), (&probed, Rank(1 + round % 2)));
            assert_eq!((tag, bytes), (next[source.index()], pattern(tag as usize, 10)));
            next[source.index()] += 1;
            wanted.after = source;
        }
        assert_eq!(port.probe(&wanted).unwrap(), None);
    });
}

/// Messages are found by source and by tag, and one that a receive waits for is not.
pub fn picked(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    block(port, async |comm| {
        let waits = comm.recv(peer, of_user(0, 0, peer, 7), vec![0u8; 4]);
        let sends: Vec<_> = [5, 7, 5, 6, 7]
            .into_iter()
            .zip(0..)
            .map(|(tag, index)| comm.send(peer, of_user(0, 0, own, tag), pattern(index, 4)))
            .collect();
        let pick = |source, tag| Wanted { source, tag, ..any(0, 0) };
        assert_eq!(take(comm, pick(None, Some(6))).await.1, pattern(3, 4));
        assert_eq!(take(comm, pick(Some(peer), Some(7))).await.1, pattern(4, 4));
        assert_eq!(waits.await.unwrap().0, pattern(1, 4));
        assert_eq!(take(comm, pick(Some(peer), None)).await.1, pattern(0, 4));
        assert_eq!(take(comm, pick(None, None)).await.1, pattern(2, 4));
        for pick in [pick(Some(own), None), pick(Some(Rank(9)), None), pick(None, Some(8)), pick(None, None)]
        {
            assert_eq!(port.probe(&pick).unwrap(), None);
        }
        for send in sends {
            send.await.unwrap();
        }
    });
}

/// A message that was found goes to its place with one copy more than it takes anyhow, if it is not long.
pub fn lengths(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    for length in LENGTHS {
        let bytes = pattern(length, length);
        block(port, async |comm| {
            let sending = comm.send(peer, of_user(0, 0, own, 1), &bytes[..]);
            let found = find(comm, any(0, 0)).await;
            assert_eq!((found.tag, &found.lengths[..]), (Tag::of_user(peer, 0, 1), &[length][..]));
            let copied = port.statistics().bytes_copied;
            assert_eq!(take(comm, any(0, 0)).await, (found, bytes.clone()));
            sending.await.unwrap();
            if length > 1 << 20 {
                // One for what arrives, one for what is sent, through memory.
                let copied = port.statistics().bytes_copied - copied;
                assert!(copied <= 2 * length as u64, "{copied} bytes of {length} were copied");
            }
        });
    }
}

/// A message that nobody has asked for wakes a rank that sleeps. A lost wake-up makes this hang.
pub fn sleep(port: &Arc<Port>) {
    const LONGEST: Duration = Duration::from_secs(100_000);
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    for round in 0..100u32 {
        let bytes = pattern(round as usize, LENGTHS[round as usize % LENGTHS.len()]);
        let received = scope(
            port,
            |comm| {
                if !comm.port().progress() {
                    comm.port().sleep(LONGEST);
                }
            },
            async |comm| {
                if round % 10 == own.0 {
                    // The other sleeps by now.
                    thread::sleep(Duration::from_millis(2));
                }
                let send = comm.send(peer, of_user(0, 0, own, round), &bytes[..]);
                let received = take(comm, any(0, 0)).await;
                send.await.unwrap();
                received
            },
        );
        assert_eq!(received.1, bytes);
    }
}

/// B has messages of an old context and of a new one with the same number; those of calls are none.
pub fn epochs(port: &Arc<Port>) {
    let open = |epoch| port.open_context(CONTEXT, epoch, vec![A, B].into(), OnLoss::Close);
    open(if port.rank() == A { OLD } else { NEW });
    meet(port);
    block(port, async |comm| {
        if port.rank() == A {
            let call = Envelope { tag: Tag::new(A, CONTEXT, 5, 5), ..of_user(CONTEXT, NEW, A, 0) };
            let sends = [of_user(CONTEXT, OLD, A, 1), of_user(CONTEXT, NEW, A, 2), call]
                .map(|envelope| comm.send(B, envelope, vec![1u8; 8]));
            for send in sends {
                send.await.unwrap();
            }
            return;
        }
        let (found, _) = take(comm, any(CONTEXT, NEW)).await;
        assert_eq!(found.tag.user(), Some(2));
        let call = Envelope { tag: Tag::new(A, CONTEXT, 5, 5), ..of_user(CONTEXT, NEW, A, 0) };
        comm.recv(A, call, vec![0u8; 8]).await.unwrap();
        assert_eq!(port.probe(&any(CONTEXT, NEW)).unwrap(), None);
        assert_eq!(port.probe(&any(0, 0)).unwrap(), None);
    });
    meet(port);
    port.abort(CONTEXT);
    assert!(matches!(port.probe(&any(CONTEXT, NEW)), Err(Error::Aborted { .. })));
}

/// What B has sent before it left is found until A gives B up, and not afterwards: whoever receives all that
/// it finds comes to an end.
pub fn of_one_given_up(port: &Arc<Port>) {
    port.open_context(CONTEXT, NEW, vec![A, B].into(), OnLoss::Continue);
    meet(port);
    block(port, async |comm| {
        if port.rank() == B {
            for tag in 0..3 {
                comm.send(A, of_user(CONTEXT, NEW, B, tag), pattern(1, 10)).await.unwrap();
            }
            comm.recv(A, of_user(CONTEXT, NEW, A, 9), ()).await.unwrap();
            return;
        }
        let wanted = any(CONTEXT, NEW);
        assert_eq!(take(comm, wanted).await.1, pattern(1, 10));
        find(comm, wanted).await;
        comm.send(B, of_user(CONTEXT, NEW, A, 9), ()).await.unwrap();
        let lost = loop {
            if let Err(error) = comm.send(B, of_user(CONTEXT, NEW, A, 0), pattern(2, 10)).await {
                break error;
            }
        };
        assert!(matches!(lost, Error::PeerLost { rank: B }), "{lost}");
        let place = |found: &Found| Some(vec![0u8; found.lengths.iter().sum()]);
        let found = comm.recv_found(&wanted, signature(NEW), place).unwrap();
        assert_eq!(found.map(|(found, _)| found), None);
    });
}

/// A deadline that passes softly ends a receive that has nothing, and no other.
pub fn withdrawn(port: &Arc<Port>) {
    let peer = Rank(1 - port.rank().0);
    for length in LENGTHS {
        let bytes = pattern(length, length);
        let mut place = vec![0u8; length];
        let mut receive = || {
            block(port, async |comm| {
                comm.time().expire_softly_first();
                let receive = comm.recv(peer, of_user(0, 0, peer, 1), &mut place[..]);
                turn(port);
                comm.expire();
                receive.await.map(|(place, _)| assert_eq!(place, bytes))
            })
        };
        assert!(matches!(receive(), Err(Error::Timeout { .. })), "nothing was sent");
        meet(port);
        let sent = block(port, async |comm| {
            let sending = comm.send(peer, of_user(0, 0, port.rank(), 1), bytes.clone());
            // In a scope of its own, while the other one sends.
            loop {
                match receive() {
                    Ok(()) => break,
                    Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
                }
            }
            sending.await
        });
        sent.unwrap();
        meet(port);
    }
}
