//! A case of futures that are polled only after they have woken their task.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use brevity_testing::only_when_woken;
use ucx_sys_wrap::Rank;
use ucx_sys_wrap::buffer::{Port, Region, RemoteRegion, Task};

use super::{block, envelope, pattern, turn};

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
    let task = std::future::poll_fn(|context| task.poll(context));
    let mut task = std::pin::pin!(only_when_woken(task));
    let (received, result) = loop {
        turn(port);
        if let Poll::Ready(ended) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break ended;
        }
    };
    result.unwrap();
    assert!(received == pattern(peer.index(), LENGTH));
}
