//! Handles of non-blocking calls.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{Task, next_turn};

use super::deadline::Deadline;
use super::thread::Blocked;
use super::wait::Waiter;
use super::{Background, Engine};

const WAITS_INSIDE: &str = "Handle::wait inside the body of a non-blocking call, during which no other \
    call moves: await the \
                            handle instead";

type Slot<T> = Arc<Mutex<Option<thread::Result<T>>>>;

/// A non-blocking call: test it, wait for it, or await it in any runtime.
///
/// Each poll of a pending handle polls the engine once and wakes its task at once, so awaiting occupies a
/// core. To avoid that, enable the progress thread and call [`test`](Self::test) from time to time, or sleep
/// on [`Engine::prepare_sleep`]. Dropping a handle detaches the call, because its peers still need it: the
/// call continues whenever the engine is polled.
#[must_use = "a dropped handle loses the call's buffers and result"]
pub struct Handle<T> {
    engine: Arc<Engine>,
    slot: Slot<T>,
}

impl<T> Handle<T> {
    /// The handle of a call that has already ended with `value`.
    pub(crate) fn ended(engine: &Arc<Engine>, value: T) -> Self {
        Self { engine: Arc::clone(engine), slot: Arc::new(Mutex::new(Some(Ok(value)))) }
    }

    /// Turns the engine once and returns whether the call has ended. Inside the body of another call no call
    /// makes progress: await the handle there.
    #[must_use]
    pub fn test(&self) -> bool {
        self.engine.turn();
        self.slot.lock().is_some()
    }

    /// Blocks until the call has ended, at the latest by its deadline.
    ///
    /// # Panics
    /// With the call's own panic, if it panicked. Inside the body of another non-blocking call, where this
    /// call can't make progress: await the handle there.
    pub fn wait(self) -> T {
        let _blocked = Blocked::begin(&self.engine);
        let (mut waiter, mut moves) = (Waiter::new(), self.engine.moves());
        loop {
            if let Some(result) = self.slot.lock().take() {
                return result.unwrap_or_else(|panic| resume_unwind(panic));
            }
            assert!(!self.engine.is_polled_here(), "{WAITS_INSIDE}");
            let moved = self.engine.turn();
            let before = std::mem::replace(&mut moves, self.engine.moves());
            if waiter.pause(moved || moves != before, &self.engine.processor) {
                waiter.sleep(Duration::MAX, &self.engine.port, self.engine.local_group());
            }
        }
    }
}

impl<T> Future for Handle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if self.slot.lock().is_none() {
            self.engine.turn();
        }
        match self.slot.lock().take() {
            Some(result) => Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic))),
            None => next_turn(context),
        }
    }
}

/// A task of the engine, and the slot for its result.
pub(super) struct Spawned<B: Send + 'static, R> {
    task: Task<B, R>,
    slot: Slot<(B, R)>,
    deadline: Deadline,
}

impl<B: Send + 'static, R> Spawned<B, R> {
    pub(super) fn new(engine: &Arc<Engine>, task: Task<B, R>, deadline: Deadline) -> (Handle<(B, R)>, Self) {
        let slot = Slot::default();
        (Handle { engine: Arc::clone(engine), slot: Arc::clone(&slot) }, Self { task, slot, deadline })
    }

    /// Polls the task, and returns its result if it has ended.
    fn poll_task(&mut self) -> Option<thread::Result<(B, R)>> {
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| self.task.poll(&mut context))) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(Ok(result)),
            Err(panic) => Some(Err(panic)),
        }
    }
}

impl<B: Send + 'static, R: Send + 'static> Background for Spawned<B, R> {
    fn poll(&mut self) -> bool {
        let Some(result) = self.poll_task() else { return false };
        *self.slot.lock() = Some(result);
        true
    }

    fn look(&mut self, now: Duration, moved: bool) -> bool {
        let comm = self.task.comm();
        self.deadline.look(now, moved, comm.port(), || comm.expire())
    }
}

#[cfg(test)]
mod tests {
    use ucx_sys_wrap::buffer::Port;
    use ucx_sys_wrap::local::{self, Local};
    use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// The engine of rank 0, and a rank 1 that does nothing.
    fn engine() -> (Arc<Engine>, Local) {
        let [own, peer] = <[Local; 2]>::try_from(local::world(2)).ok().unwrap();
        (Engine::new(Port::new(Box::new(own)), None, false), peer)
    }

    /// A call that waits for a message that never arrives.
    fn receive(engine: &Arc<Engine>, timeout: Duration) -> Handle<(Vec<u8>, ucx_sys_wrap::Result<()>)> {
        engine.spawn(timeout, vec![0u8; 8], |comm, place| {
            Box::pin(async move { comm.recv(Rank(1), envelope(0), &mut place[..]).await.map(drop) })
        })
    }

    fn envelope(round: u32) -> Envelope {
        let tag = Tag::new(Rank(1), 0, 0, round);
        Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
    }

    /// Skips the first poll, in which the call is started.
    async fn later() {
        let mut polls = 0..1;
        std::future::poll_fn(|_| if polls.next().is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    #[test]
    fn who_waits_inside_a_body_is_told_what_to_do() {
        let (engine, _peer) = engine();
        let inside = Arc::clone(&engine);
        let outer = engine.spawn(TIMEOUT, (), move |_, ()| {
            Box::pin(async move {
                later().await;
                receive(&inside, TIMEOUT).wait().1
            })
        });
        let panic = catch_unwind(AssertUnwindSafe(|| outer.wait())).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(WAITS_INSIDE));
        // A thread that waits outside is not mistaken for one inside.
        assert!(receive(&engine, Duration::ZERO).wait().1.is_err());
    }

    #[test]
    fn who_awaits_inside_a_body_gets_the_result() {
        let (engine, _peer) = engine();
        let inside = Arc::clone(&engine);
        let outer = engine.spawn(TIMEOUT, (), move |_, ()| {
            Box::pin(async move {
                later().await;
                receive(&inside, Duration::ZERO).await.1
            })
        });
        assert!(outer.wait().1.is_err());
    }

    /// Nobody polled the call until its deadline had passed, but its messages were there.
    #[test]
    fn a_call_that_has_all_its_bytes_ends_well_after_its_deadline() {
        let (engine, peer) = engine();
        let timeout = Duration::from_millis(20);
        let handle = engine.spawn(timeout, (), |comm, ()| {
            Box::pin(async move {
                let mut buffer = vec![0u8; 8];
                for round in 0..3 {
                    (buffer, _) = comm.recv(Rank(1), envelope(round), buffer).await?;
                }
                ucx_sys_wrap::Result::Ok(buffer)
            })
        });
        let peer = Engine::new(Port::new(Box::new(peer)), None, false);
        peer.run(TIMEOUT, async |comm| {
            for round in 0..3 {
                comm.send(Rank(0), envelope(round), vec![7u8; 8]).await.unwrap();
            }
        });
        std::thread::sleep(2 * timeout);
        assert_eq!(handle.wait().1.unwrap(), [7; 8]);
        assert_eq!(engine.port().failure(), None);
    }
}
