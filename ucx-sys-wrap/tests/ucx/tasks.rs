//! Tasks that are dropped while UCX still works on their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Port, Task};
use ucx_sys_wrap::{Error, Rank};

use super::{DEADLINE, OVER_UCX, envelope, pattern, ported_on, run};

const LENGTH: usize = 4 << 20;

/// Bytes that change when they are dropped, and record it.
struct Bytes(Vec<u8>, Arc<AtomicBool>);

impl Drop for Bytes {
    fn drop(&mut self) {
        self.0.fill(0);
        self.1.store(true, Ordering::Release);
    }
}

/// Has rank 0 drop a task with a large send in flight that rank 1 has not received. Returns a flag that says
/// whether its memory has been freed.
fn drop_task_with_a_large_send(port: &Arc<Port>) -> Arc<AtomicBool> {
    let is_freed = Arc::new(AtomicBool::new(false));
    let bytes = Bytes(pattern(1, LENGTH), Arc::clone(&is_freed));
    let mut task = Task::new(port, bytes, |comm, bytes| {
        Box::pin(async move { comm.send(Rank(1), envelope(Rank(0), 1), &bytes.0[..]).await.map(|_| ()) })
    });
    for _ in 0..1000 {
        assert!(task.poll(&mut Context::from_waker(Waker::noop())).is_pending());
        port.progress();
    }
    drop(task);
    assert_eq!(Arc::strong_count(port), 1, "the task holds its transport");
    is_freed
}

#[test]
fn a_transport_goes_whose_task_was_dropped_with_a_large_send_and_whoever_waits_is_told() {
    ported_on(&OVER_UCX, 2, |port, rank| {
        if rank == Rank(0) {
            drop_task_with_a_large_send(port);
            return;
        }
        let result = run(port, async |comm| comm.recv(Rank(0), envelope(Rank(0), 2), vec![0u8; 8]).await);
        assert!(matches!(result, Err(Error::PeerLost { rank: Rank(0) })), "{result:?}");
    });
}

#[test]
fn what_is_fetched_from_a_task_whose_rank_has_gone_is_never_received() {
    let is_dropped = AtomicBool::new(false);
    ported_on(&OVER_UCX, 2, |port, rank| {
        if rank == Rank(0) {
            drop_task_with_a_large_send(port);
            is_dropped.store(true, Ordering::Release);
            return;
        }
        let start = Instant::now();
        while !is_dropped.swap(false, Ordering::Acquire) {
            assert!(start.elapsed() < DEADLINE, "hangs");
            std::thread::yield_now();
        }
        // After this time rank 0, which gets no answer meanwhile, has usually left.
        std::thread::sleep(Duration::from_millis(2500));
        let result =
            run(port, async |comm| comm.recv(Rank(0), envelope(Rank(0), 1), vec![0u8; LENGTH]).await);
        match result {
            Ok((bytes, _)) => assert!(bytes == pattern(1, LENGTH)),
            Err(error) => assert!(matches!(error, Error::PeerLost { rank: Rank(0) }), "{error}"),
        }
    });
}

#[test]
fn the_memory_of_a_dropped_task_goes_once_its_peer_has_let_go_of_it() {
    ported_on(&OVER_UCX, 2, |port, rank| {
        if rank == Rank(0) {
            let is_freed = drop_task_with_a_large_send(port);
            let start = Instant::now();
            while !is_freed.load(Ordering::Acquire) {
                assert!(start.elapsed() < DEADLINE, "the memory is kept");
                port.progress();
            }
            assert_eq!(port.failure(0), None);
        }
        run(port, async |comm| match rank {
            Rank(0) => drop(comm.send(Rank(1), envelope(rank, 3), ()).await.unwrap()),
            _ => drop(comm.recv(Rank(0), envelope(Rank(0), 3), ()).await.unwrap()),
        });
    });
}
