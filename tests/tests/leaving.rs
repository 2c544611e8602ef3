//! Jobs that are left in a runtime, without blocking its thread.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use brevity::collectives::{Description, Error, Operation};
use brevity::transport::local;
use brevity::{Group, Leaving, ReduceOp, Settings};
use brevity_testing::{Wire, on_every_wire};

/// Far more than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What leaving may take with a peer that is gone, or does not read.
const BOUND: Duration = Duration::from_secs(15);

const MESSAGES: u32 = 50;

/// Wakes a thread, and notes that it did.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs both on this thread, and polls them only when they are woken; the second until the first has ended.
fn run_beside<T>(first: impl Future<Output = T>, mut second: impl FnMut()) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut first, mut context, start) = (pin!(first), Context::from_waker(&waker), Instant::now());
    loop {
        if let Poll::Ready(value) = first.as_mut().poll(&mut context) {
            return value;
        }
        second();
        assert!(start.elapsed() < PATIENCE, "it does not end");
        thread::park_timeout(PATIENCE);
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    run_beside(future, || {})
}

/// The result, if there is one at once.
fn at_once(mut leaving: Leaving) -> Option<brevity::collectives::Result<()>> {
    match Pin::new(&mut leaving).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn groups(world: Vec<Box<dyn brevity::transport::Transport>>) -> Vec<Group> {
    world.into_iter().map(|rank| Group::new(rank, Settings::default())).collect()
}

on_every_wire! {
    what_was_sent_arrives => |wire: Wire| arrives(groups(wire.world(2)));
    a_peer_that_has_left_is_not_waited_for => |wire: Wire| {
        let mut groups = groups(wire.world(2));
        drop(groups.pop());
        let start = Instant::now();
        block_on(groups.remove(0).leave()).unwrap();
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    };
    a_peer_that_does_not_turn_is_waited_for_no_longer_than_said => |wire: Wire| {
        let mut groups = groups(wire.world(2));
        let still = groups.pop();
        let group = groups.remove(0);
        drop(group.start_send(vec![1u8; 3_000_000], 1, 0));
        let start = Instant::now();
        block_on(group.leave()).unwrap();
        assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
        drop(still);
    };
}

/// Rank 0 leaves when it has sent; rank 1 receives.
fn arrives(mut groups: Vec<Group>) {
    let (receiver, sender) = (groups.pop().unwrap(), groups.pop().unwrap());
    let receiving = thread::spawn(move || {
        for message in 0..MESSAGES {
            let mut place = [0u32; 8];
            receiver.recv(&mut place, 0, 1).unwrap();
            assert_eq!(place, [message; 8]);
        }
        block_on(receiver.leave()).unwrap();
    });
    block_on(async move {
        for message in 0..MESSAGES {
            sender.start_send(vec![message; 8], 1, 1).await.1.unwrap();
        }
        sender.leave().await.unwrap();
    });
    receiving.join().unwrap();
}

/// A call whose body waits for a message of this channel when the progress thread polls it. The thread does
/// not end before.
fn hold_the_thread(group: &Group, released: Receiver<()>) -> Arc<AtomicBool> {
    let (is_held, released) = (Arc::new(AtomicBool::new(false)), Mutex::new(released));
    let noted = Arc::clone(&is_held);
    let mut polls = 0;
    drop(group.start(Description::new(Operation::MESSAGE, 0, 0), (), move |_, ()| {
        Box::pin(poll_fn(move |context| {
            polls += 1;
            if polls == 1 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            noted.store(true, Ordering::Release);
            released.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            Poll::Ready(())
        }))
    }));
    is_held
}

/// What leaving waits for is another task of the same thread.
#[test]
fn other_tasks_of_the_thread_run_meanwhile() {
    let settings = Settings { progress_thread: true, ..Settings::default() };
    let group = Group::new(Box::new(local::world(1).remove(0)), settings);
    let (release, released) = channel();
    let is_held = hold_the_thread(&group, released);
    let start = Instant::now();
    while !is_held.load(Ordering::Acquire) {
        assert!(start.elapsed() < PATIENCE, "nobody polls the call");
        thread::yield_now();
    }
    let mut release = Some(release);
    run_beside(group.leave(), || {
        if let Some(release) = release.take() {
            release.send(()).unwrap();
        }
    })
    .unwrap();
    assert!(release.is_none(), "leaving has waited for nothing");
}

/// The job goes on, and is left with its last group.
#[test]
fn leaving_with_other_handles_of_the_job_ends_at_once() {
    let group = Group::solo();
    let (clone, twin) = (group.clone(), group.duplicate().unwrap());
    assert!(matches!(at_once(clone.leave()), Some(Ok(()))));
    assert!(matches!(at_once(group.leave()), Some(Ok(()))));
    let mut sum = [2.0f32];
    twin.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [2.0]);
    let driver = twin.driver().unwrap();
    let weak = Arc::downgrade(twin.engine());
    block_on(twin.leave()).unwrap();
    assert!(weak.upgrade().is_none(), "the engine is left");
    drop(driver);
}

/// A future that is dropped does not stop it.
#[test]
fn leaving_goes_on_if_nobody_awaits_it() {
    let mut groups = groups(local::world(2).into_iter().map(|rank| Box::new(rank) as _).collect());
    let (peer, group) = (groups.pop().unwrap(), groups.pop().unwrap());
    let weak = Arc::downgrade(group.engine());
    drop(group.leave());
    let start = Instant::now();
    while weak.strong_count() > 0 {
        assert!(start.elapsed() < PATIENCE, "it is not left");
        thread::yield_now();
    }
    let error = peer.barrier().unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
}
