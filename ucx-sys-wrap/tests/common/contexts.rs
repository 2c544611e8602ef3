//! Cases of contexts: each is closed alone, and the others go on.

use std::mem::forget;
use std::sync::Arc;

use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, Recv, Region, RemoteRegion, Send};
use ucx_sys_wrap::{Error, Failure, Rank};

use super::{block, envelope, meet, pattern, turn, within};

const A: Rank = Rank(0);
const B: Rank = Rank(1);
const C: Rank = Rank(2);

/// The context that is closed, and the one that stays open.
const CLOSED: u16 = 1;
const OPEN: u16 = 2;

/// Small and large messages; the largest is more than any transport sends to a peer that does not receive.
const LENGTHS: [usize; 4] = [16, 10_000, 300_000, 2 << 20];

/// The contents of receive buffers before anything is received.
const UNTOUCHED: u8 = 0xa5;

fn open(port: &Port, context: u16, members: &[Rank]) {
    port.open_context(context, 0, members.into(), OnLoss::Close);
}

/// The bytes of a message.
fn bytes(context: u16, source: Rank, round: u32, length: usize) -> Vec<u8> {
    pattern(usize::from(context) * 10_000 + source.index() * 1000 + round as usize, length)
}

fn send<'comm, 'env>(
    comm: &'comm Comm<'env>,
    (context, to, round): (u16, Rank, u32),
    length: usize,
) -> Send<'comm, 'env, Vec<u8>> {
    let own = comm.port().rank();
    comm.send(to, within(context, 0, own, round), bytes(context, own, round, length))
}

fn recv<'comm, 'env>(
    comm: &'comm Comm<'env>,
    (context, from, round): (u16, Rank, u32),
    length: usize,
) -> Recv<'comm, 'env, Vec<u8>> {
    comm.recv(from, within(context, 0, from, round), vec![UNTOUCHED; length])
}

/// A and B exchange messages of all lengths.
async fn exchange(comm: &Comm<'_>, context: u16, first_round: u32) {
    let peer = Rank(1 - comm.port().rank().0);
    for (round, length) in (first_round..).zip(LENGTHS) {
        let sent = send(comm, (context, peer, round), length);
        let (received, _) = recv(comm, (context, peer, round), length).await.unwrap();
        assert!(received == bytes(context, peer, round, length), "round {round}, {length} bytes");
        sent.await.unwrap();
    }
}

/// A and B open each other's region.
async fn exchange_keys(comm: &Comm<'_>, region: &Region<Vec<u8>>) -> RemoteRegion {
    let (own, peer) = (comm.port().rank(), Rank(1 - comm.port().rank().0));
    let sent = comm.send(peer, within(OPEN, 0, own, 999), region.key().to_bytes());
    let (key, arrival) = comm.recv(peer, within(OPEN, 0, peer, 999), vec![0u8; 16 << 10]).await.unwrap();
    sent.await.unwrap();
    RemoteRegion::open(comm.port(), peer, &key[..arrival.lengths[0]]).unwrap()
}

/// Waits for the end of a context, by turns alone.
fn until_closed(port: &Port, context: u16) -> Failure {
    loop {
        if let Some(failure) = port.failure(context) {
            return failure;
        }
        turn(port);
    }
}

/// C leaves while A and B have messages, puts and gets with each other in flight.
pub fn loss_spares_others(port: &Arc<Port>) {
    if port.rank() == C {
        block(port, async |comm| comm.recv(A, envelope(A, 9, 0), ()).await.map(|_| ()).unwrap());
        return;
    }
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    open(port, OPEN, &[A, B]);
    let region = Region::register(port, vec![0u8; LENGTHS[3]]).unwrap();
    block(port, async |comm| {
        let remote = exchange_keys(comm, &region).await;
        let put = comm.put(&remote, 0, pattern(own.index(), LENGTHS[3]));
        let rounds = || (0..).zip(LENGTHS);
        let sends: Vec<_> = rounds().map(|(round, n)| send(comm, (OPEN, peer, round), n)).collect();
        if own == A {
            comm.send(C, envelope(A, 9, 0), ()).await.unwrap();
        }
        let recvs: Vec<_> = rounds().map(|(round, n)| recv(comm, (OPEN, peer, round), n)).collect();
        let lost = comm.recv(C, envelope(C, 1, 0), vec![0u8; 8]).await.map(|_| ());
        assert!(matches!(lost, Err(Error::PeerLost { rank: C })), "{lost:?}");
        for ((round, length), recv) in rounds().zip(recvs) {
            assert!(recv.await.unwrap().0 == bytes(OPEN, peer, round, length), "{length} bytes");
        }
        for send in sends {
            send.await.unwrap();
        }
        put.await.unwrap();
        comm.flush(peer).await.unwrap();
        let (seen, ()) = comm.get(&remote, 0, vec![0u8; LENGTHS[3]]).await.unwrap();
        assert!(seen == pattern(own.index(), LENGTHS[3]));
        for repetition in 1..5 {
            exchange(comm, OPEN, 10 * repetition).await;
        }
    });
    assert_eq!((port.failure(0), port.failure(OPEN)), (Some(Failure::PeerLost(C)), None));
    // Whoever has only been told of the loss, has not lost C itself.
    assert!(port.lost().iter().all(|rank| *rank == C));
    // The region stays until the peer has got its bytes.
    block(port, async |comm| exchange(comm, OPEN, 90).await);
}

/// B has no operation in flight; A finds C lost.
pub fn notice_without_an_operation(port: &Arc<Port>) {
    match port.rank() {
        A => {
            let lost = block(port, async |comm| comm.recv(C, envelope(C, 1, 0), ()).await.map(|_| ()));
            assert!(matches!(lost, Err(Error::PeerLost { rank: C })), "{lost:?}");
        }
        B => assert_eq!(until_closed(port, 0), Failure::PeerLost(C)),
        _ => return,
    }
    // Neither leaves before the other knows.
    open(port, OPEN, &[A, B]);
    block(port, async |comm| exchange(comm, OPEN, 0).await);
}

/// C is lost: a context with it is closed as soon as it is opened, unless it is to go on.
pub fn opened_after_loss(port: &Arc<Port>) {
    const WITHOUT: u16 = 3;
    let (own, peer) = (port.rank(), Rank(1 ^ port.rank().0));
    if own == C {
        return;
    }
    open(port, WITHOUT, &[A, B]);
    // In a context of two, so that each finds it itself.
    open(port, 4, &[own, C]);
    block(port, async |comm| {
        let tag = within(4, 0, C, 0);
        let lost = comm.recv(C, tag, ()).await.map(|_| ());
        assert!(matches!(lost, Err(Error::PeerLost { rank: C })), "{lost:?}");
        exchange(comm, WITHOUT, 0).await;
    });
    assert_eq!((port.failure(4), port.lost()), (Some(Failure::PeerLost(C)), vec![C]));
    open(port, CLOSED, &[A, B, C]);
    port.open_context(OPEN, 0, [A, B, C].into(), OnLoss::Continue);
    assert_eq!((port.failure(CLOSED), port.failure(OPEN)), (Some(Failure::PeerLost(C)), None));
    block(port, async |comm| {
        let refused = send(comm, (CLOSED, peer, 0), 8).await;
        assert!(matches!(refused, Err(Error::PeerLost { rank: C })), "{refused:?}");
        let refused = send(comm, (OPEN, C, 0), 8).await;
        assert!(matches!(refused, Err(Error::PeerLost { rank: C })), "{refused:?}");
        let refused = recv(comm, (OPEN, C, 0), 8).await;
        assert!(matches!(refused, Err(Error::PeerLost { rank: C })), "{refused:?}");
        exchange(comm, OPEN, 0).await;
    });
    assert_eq!(port.failure(OPEN), None);
}

/// A closes a context of all ranks.
pub fn one_aborted(port: &Arc<Port>) {
    one_closed(port, Failure::Aborted(A), |port| {
        port.abort(CLOSED);
        true
    });
}

pub fn one_timed_out(port: &Arc<Port>) {
    one_closed(port, Failure::TimedOut(A), |port| {
        port.time_out(CLOSED);
        true
    });
}

/// C leaves, and A and B find it lost by the operations of [`one_closed`].
pub fn one_with_a_lost_member(port: &Arc<Port>) {
    one_closed(port, Failure::PeerLost(C), |_| false);
}

/// A and B have operations of all kinds in flight in both contexts. `close` closes one at A, and returns
/// whether C stays until it knows.
fn one_closed(port: &Arc<Port>, cause: Failure, close: fn(&Port) -> bool) {
    let (own, peer) = (port.rank(), Rank(1 ^ port.rank().0));
    open(port, CLOSED, &[A, B, C]);
    open(port, OPEN, &[A, B]);
    if own == C {
        block(port, async |comm| {
            // Both have posted everything.
            comm.recv(A, envelope(A, 9, 0), ()).await.unwrap();
            comm.recv(B, envelope(B, 9, 0), ()).await.unwrap();
        });
        if !matches!(cause, Failure::PeerLost(_)) {
            assert_eq!(until_closed(port, CLOSED), cause);
        }
        return;
    }
    let region = Region::register(port, vec![0u8; LENGTHS[3]]).unwrap();
    // The rounds of messages that are expected in time, that are received late, and that are never sent.
    let (timely, late, never) = (|| (0..).zip(LENGTHS), || (10..).zip(LENGTHS), || (20..).zip(LENGTHS));
    let mut places: Vec<Vec<u8>> = timely().chain(never()).map(|(_, n)| vec![UNTOUCHED; n]).collect();
    let outgoing: Vec<Vec<u8>> =
        timely().chain(late()).map(|(round, length)| bytes(CLOSED, own, round, length)).collect();
    block(port, async |comm| {
        let remote = exchange_keys(comm, &region).await;
        let put = comm.put(&remote, 0, pattern(own.index(), LENGTHS[3]));
        let (mut sends, mut recvs, mut doomed) = (Vec::new(), Vec::new(), Vec::new());
        for (round, length) in timely() {
            recvs.push(recv(comm, (OPEN, peer, round), length));
        }
        for ((round, _), place) in timely().chain(never()).zip(&mut places) {
            doomed.push(comm.recv(peer, within(CLOSED, 0, peer, round), &mut place[..]));
        }
        for (round, length) in timely().chain(late()) {
            sends.push(send(comm, (OPEN, peer, round), length));
        }
        for ((round, _), left_behind) in timely().chain(late()).zip(&outgoing) {
            // The scope ends it.
            forget(comm.send(peer, within(CLOSED, 0, own, round), &left_behind[..]));
        }
        let last = comm.recv(C, within(CLOSED, 0, C, 0), vec![0u8; 8]);
        let posted = comm.send(C, envelope(own, 9, 0), ());
        // What was posted is on its way, some of it.
        (0..20).for_each(|_| turn(port));
        if own == A {
            close(port);
        }
        for (at, operation) in doomed.into_iter().enumerate() {
            match operation.await {
                Ok((received, _)) => {
                    let (round, length) = (at as u32, received.len());
                    assert!(at < LENGTHS.len() && *received == bytes(CLOSED, peer, round, length));
                }
                Err(error) => assert_cause(&error, cause),
            }
        }
        assert_cause(&last.await.map(|_| ()).unwrap_err(), cause);
        let posted = posted.await.map(|_| ());
        assert!(posted.is_ok() || matches!(cause, Failure::PeerLost(_)), "{posted:?}");
        for ((round, length), recv) in timely().zip(recvs) {
            assert!(recv.await.unwrap().0 == bytes(OPEN, peer, round, length), "{length} bytes");
        }
        for (round, length) in late() {
            let (received, _) = recv(comm, (OPEN, peer, round), length).await.unwrap();
            assert!(received == bytes(OPEN, peer, round, length), "{length} bytes, received late");
        }
        for send in sends {
            send.await.unwrap();
        }
        put.await.unwrap();
        comm.flush(peer).await.unwrap();
        let (seen, ()) = comm.get(&remote, 0, vec![0u8; LENGTHS[3]]).await.unwrap();
        assert!(seen == pattern(own.index(), LENGTHS[3]));
        assert_cause(&send(comm, (CLOSED, peer, 30), 8).await.map(|_| ()).unwrap_err(), cause);
    });
    let left = places.clone();
    block(port, async |comm| exchange(comm, OPEN, 40).await);
    assert!(places == left, "written after its operation had ended");
    assert_eq!((port.failure(CLOSED), port.failure(OPEN)), (Some(cause), None));
}

fn assert_cause(error: &Error, cause: Failure) {
    let is_right = match cause {
        Failure::PeerLost(lost) => matches!(error, Error::PeerLost { rank } if *rank == lost),
        Failure::TimedOut(by) => {
            matches!(error, Error::Timeout { .. }) || matches!(error, Error::Aborted { rank } if *rank == by)
        }
        _ => matches!(error, Error::Aborted { rank } if *rank == cause.rank()),
    };
    assert!(is_right, "{error:?}, expected {cause:?}");
}

pub fn requested_abort(port: &Arc<Port>) {
    open(port, CLOSED, &[A, B]);
    open(port, OPEN, &[A, B]);
    let peer = Rank(1 - port.rank().0);
    block(port, async |comm| {
        exchange(comm, CLOSED, 0).await;
        // Both have all of that before one aborts: the news may overtake messages.
        exchange(comm, OPEN, 100).await;
        let pending = recv(comm, (CLOSED, peer, 9), 8);
        if port.rank() == B {
            port.request_abort(CLOSED);
        }
        let ended = pending.await.map(|_| ());
        assert!(matches!(ended, Err(Error::Aborted { rank: B })), "{ended:?}");
        exchange(comm, OPEN, 0).await;
    });
    assert!(!port.is_abort_wanted());
    let failures = [CLOSED, OPEN, 0].map(|context| port.failure(context));
    assert_eq!(failures, [Some(Failure::Aborted(B)), None, None]);
}

/// A closes contexts that B has not opened. Only the one of the same epoch is closed there too.
pub fn notice_before_opening(port: &Arc<Port>) {
    let peer = Rank(1 - port.rank().0);
    let members = [A, B];
    if port.rank() == A {
        open(port, CLOSED, &members);
        port.abort(CLOSED);
        port.open_context(OPEN, 7, members.into(), OnLoss::Close);
        port.abort(OPEN);
        port.forget_context(OPEN);
    }
    meet(port);
    if port.rank() == B {
        open(port, CLOSED, &members);
        assert_eq!(until_closed(port, CLOSED), Failure::Aborted(A));
    }
    open(port, OPEN, &members);
    block(port, async |comm| {
        exchange(comm, OPEN, 0).await;
        let refused = send(comm, (CLOSED, peer, 0), 8).await;
        assert!(matches!(refused, Err(Error::Aborted { rank: A })), "{refused:?}");
    });
    assert_eq!((port.failure(CLOSED), port.failure(OPEN)), (Some(Failure::Aborted(A)), None));
}

/// A number is used for one context after another. Each leaves messages and receives behind, and is aborted.
pub fn number_used_again(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    for epoch in 0..12u8 {
        port.open_context(OPEN, epoch, [A, B].into(), OnLoss::Close);
        block(port, async |comm| {
            for (round, length) in (0..).zip(&LENGTHS[..3]) {
                let envelope = |source| within(OPEN, epoch, source, round);
                let sent = comm.send(peer, envelope(own), pattern(usize::from(epoch), *length));
                let (received, _) = comm.recv(peer, envelope(peer), vec![0u8; *length]).await.unwrap();
                assert!(received == pattern(usize::from(epoch), *length), "epoch {epoch}, {length} bytes");
                sent.await.unwrap();
            }
            // The same tags, so that the next context would get them.
            for (round, length) in (0..).zip(&LENGTHS[..3]) {
                drop(comm.send(peer, within(OPEN, epoch, own, round), vec![UNTOUCHED; *length]));
                drop(comm.recv(peer, within(OPEN, epoch, peer, round), vec![0u8; *length]));
            }
        });
        meet(port);
        if epoch % 2 == own.0 as u8 {
            port.abort(OPEN);
        }
        port.forget_context(OPEN);
        assert_eq!(port.failure(OPEN), None);
        // Nobody sends in the next context before all have forgotten this one.
        meet(port);
    }
}
