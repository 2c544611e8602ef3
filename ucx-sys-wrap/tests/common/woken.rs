//! A case of futures that are polled only after they have woken their task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use brevity_testing::only_when_woken;
use ucx_sys_wrap::buffer::{Comm, OnLoss, Port, Region, RemoteRegion, Task, scope};
use ucx_sys_wrap::{Error, Rank};

use super::{block, envelope, meet, pattern, turn, within};

const LENGTH: usize = 3 << 20;

/// Sends, receives, puts, gets and flushes complete, and tasks too, if only woken futures are polled.
pub fn every_operation(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    let region = Region::register(port, vec![0u8; LENGTH]).unwrap();
    let key = block(port, async |comm| {
        let send = comm.send(peer, envelope(own, 1, 0), region.key().to_bytes());
        let recv = comm.recv(peer, envelope(peer, 1, 0), vec![0u8; 16 << 10]);
        let (mut key, arrival) = only_when_woken(recv).await.unwrap();
        only_when_woken(send).await.unwrap();
        key.truncate(arrival.lengths[0]);
        key
    });
    let remote = RemoteRegion::open(port, peer, &key).unwrap();
    block(port, async |comm| {
        only_when_woken(comm.put(&remote, 0, pattern(own.index(), LENGTH))).await.unwrap();
        only_when_woken(comm.flush(peer)).await.unwrap();
        let (seen, ()) = only_when_woken(comm.get(&remote, 0, vec![0u8; LENGTH])).await.unwrap();
        assert!(seen == pattern(own.index(), LENGTH));
    });
    let mut task = Task::new(port, vec![0u8; LENGTH], move |comm, place| {
        Box::pin(async move {
            let send = comm.send(peer, envelope(own, 2, 0), pattern(own.index(), LENGTH));
            // Dropped, so it is canceled, and the task ends it.
            drop(comm.recv(peer, envelope(peer, 3, 0), vec![0u8; 8]));
            let received = comm.recv(peer, envelope(peer, 2, 0), &mut place[..]).await;
            received.map(drop).and(send.await.map(drop))
        })
    });
    let task = poll_fn(|context| task.poll(context));
    let mut task = pin!(only_when_woken(task));
    let (received, result) = loop {
        turn(port);
        if let Poll::Ready(ended) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break ended;
        }
    };
    result.unwrap();
    assert!(received == pattern(peer.index(), LENGTH));
}

/// The receives that wait at once.
const RECEIVES: u32 = 40;

/// The most polls of one: the first, one when it ends, and some while a long message comes.
const POLLS: u32 = 3;

/// Polls `future` when it has woken its task, and counts.
fn counted<'a, F: Future + 'a>(future: F, polls: &'a Cell<u32>) -> impl Future<Output = F::Output> + 'a {
    let mut future = Box::pin(future);
    only_when_woken(poll_fn(move |context| {
        polls.set(polls.get() + 1);
        future.as_mut().poll(context)
    }))
}

/// Receives that wait are not polled while messages come for others.
pub fn few_polls(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    let polls: Vec<Cell<u32>> = (0..RECEIVES).map(|_| Cell::new(0)).collect();
    block(port, async |comm| {
        let receive = |round, polls| {
            let receive = comm.recv(peer, envelope(peer, 1, round), vec![0u8; 8]);
            Box::pin(async move { (round, counted(receive, polls).await.unwrap().0) })
        };
        let mut waiting: Vec<_> = (0..).zip(&polls).map(|(round, polls)| receive(round, polls)).collect();
        let (mut left, mut sends, mut sent_at) = (RECEIVES, Vec::new(), comm.now());
        poll_fn(|context| {
            waiting.retain_mut(|receive| match receive.as_mut().poll(context) {
                Poll::Ready((round, received)) => {
                    assert!(received == pattern(round as usize, 8), "round {round}");
                    false
                }
                Poll::Pending => true,
            });
            // Many turns lie between two messages.
            if left > 0 && comm.now() - sent_at > Duration::from_micros(500) {
                (left, sent_at) = (left - 1, comm.now());
                sends.push(comm.send(peer, envelope(own, 1, left), pattern(left as usize, 8)));
            }
            if left == 0 && waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for send in sends {
            send.await.unwrap();
        }
    });
    let polls: Vec<u32> = polls.into_iter().map(Cell::into_inner).collect();
    assert!(polls.iter().all(|polls| (1..=POLLS).contains(polls)), "{polls:?}");
}

/// An operation that ends by the end of its context, by the deadline or because it is not wanted any more
/// wakes its task.
pub fn every_end(port: &Arc<Port>) {
    let (own, peer) = (port.rank(), Rank(1 - port.rank().0));
    port.open_context(1, 0, [Rank(0), Rank(1)].into(), OnLoss::Close);
    block(port, async |comm| {
        let receive = comm.recv(peer, within(1, 0, peer, 0), vec![0u8; 8]);
        // Larger than any transport sends to a peer that does not receive.
        let send = comm.send(peer, within(1, 0, own, 1), pattern(0, 2 * LENGTH));
        let told = comm.send(peer, envelope(own, 1, 0), ());
        comm.recv(peer, envelope(peer, 1, 0), ()).await.unwrap();
        told.await.unwrap();
        if own == Rank(0) {
            comm.port().abort(1);
        }
        let ended = only_when_woken(receive).await.map(drop);
        assert!(matches!(ended, Err(Error::Aborted { rank: Rank(0) })), "{ended:?}");
        // The peer may refuse the message before this rank hears of the abort.
        let ended = only_when_woken(send).await.map(drop);
        assert!(matches!(ended, Ok(()) | Err(Error::Aborted { rank: Rank(0) })), "{ended:?}");
    });
    // A rank that forgets the context drops what was sent in it, as if received.
    meet(port);
    port.forget_context(1);
    for is_given_up in [false, true] {
        let start = Instant::now();
        let between = |comm: &Comm<'_>| {
            turn(comm.port());
            if start.elapsed() > Duration::from_millis(5) && !comm.has_expired() && !comm.is_given_up() {
                match is_given_up {
                    false => comm.expire(),
                    true => comm.port().give_up(&comm.to_give_up()),
                }
            }
        };
        let ended = scope(port, between, async |comm| {
            only_when_woken(comm.recv(peer, envelope(peer, 2, 0), vec![0u8; 8])).await.map(drop)
        });
        let is_right = match ended {
            Err(Error::Timeout { .. }) => !is_given_up,
            Err(Error::Canceled) => is_given_up,
            _ => false,
        };
        assert!(is_right, "{ended:?}");
    }
}
