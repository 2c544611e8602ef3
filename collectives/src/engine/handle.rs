//! Handles of non-blocking calls.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{Task, next_turn};

use super::deadline::Deadline;
use super::thread::Blocked;
use super::wait::Waiter;
use super::{Background, Engine, Status};

const WAITS_INSIDE: &str = "Handle::wait inside the body of a non-blocking call, during which no other \
    call moves: await the \
                            handle instead";

const RESULT_IS_GONE: &str = "a Handle polled or waited for after it has returned its result";

type Slot<T> = Arc<Outcome<T>>;

/// The place for a call's result, or its panic. A panic that nobody takes is logged.
struct Outcome<T> {
    result: Mutex<Option<thread::Result<T>>>,
    /// Whether the call is not wanted any more.
    is_canceled: AtomicBool,
}

impl<T> Outcome<T> {
    fn new(result: Option<thread::Result<T>>) -> Slot<T> {
        Arc::new(Self { result: Mutex::new(result), is_canceled: AtomicBool::new(false) })
    }
}

impl<T> Drop for Outcome<T> {
    fn drop(&mut self) {
        let Some(Err(panic)) = self.result.get_mut() else { return };
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref().map(String::as_str)).unwrap_or("no text");
        tracing::error!("a call whose handle was dropped has panicked, and closed its group: {text}");
    }
}

/// A non-blocking call: test it, wait for it, or await it in any runtime.
///
/// Each poll of a pending handle polls the engine once and wakes its task at once, so awaiting occupies a
/// core. To avoid that, enable the progress thread and call [`test`](Self::test) from time to time, or sleep
/// on [`Engine::prepare_sleep`]. Dropping a handle detaches the call, because its peers still need it: the
/// call continues whenever the engine is polled. If the call then panics, that is logged. Receives of
/// messages between two ranks, and probes for them, are [canceled](Self::cancel) instead.
///
/// # Panics
/// Like other futures, a handle panics if it is polled after it was ready.
#[must_use = "a dropped handle loses the call's buffers and result"]
pub struct Handle<T> {
    engine: Arc<Engine>,
    slot: Slot<T>,
    /// Whether a poll has returned the result.
    is_spent: bool,
    /// Whether dropping it cancels the call.
    is_receive: bool,
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.is_receive {
            self.slot.is_canceled.store(true, Ordering::Relaxed);
        }
    }
}

impl<T> Handle<T> {
    /// The handle of a call that has already ended with `value`.
    pub(crate) fn ended(engine: &Arc<Engine>, value: T) -> Self {
        Self::of(engine, Outcome::new(Some(Ok(value))))
    }

    fn of(engine: &Arc<Engine>, slot: Slot<T>) -> Self {
        Self { engine: Arc::clone(engine), slot, is_spent: false, is_receive: false }
    }

    /// Turns the engine once and returns whether the call has ended. Inside the body of another call no call
    /// makes progress: await the handle there.
    #[must_use]
    pub fn test(&self) -> bool {
        self.engine.turn();
        self.has_ended()
    }

    /// The handle of a receive, which is canceled when it is dropped: nobody else needs it.
    pub(crate) fn of_receive(mut self) -> Self {
        self.is_receive = true;
        self
    }

    /// Gives up a message that was started, and turns the engine once. A receive or probe that has found no
    /// message ends with [`Error::Canceled`](crate::Error::Canceled), and takes none; one whose message has
    /// begun to come goes on. A send that has not ended is given up: its receiver gets the whole message or
    /// nothing. Does nothing to calls of all ranks, which others need.
    ///
    /// The handle must still be waited for.
    pub fn cancel(&self) {
        self.slot.is_canceled.store(true, Ordering::Relaxed);
        self.engine.turn();
    }

    /// Whether the call has ended, without turning the engine.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_spent || self.slot.result.lock().is_some()
    }

    /// The result, if the call has ended.
    fn take(&self) -> Option<thread::Result<T>> {
        assert!(!self.is_spent, "{RESULT_IS_GONE}");
        self.slot.result.lock().take()
    }

    /// Blocks until the call has ended, at the latest by its deadline.
    ///
    /// # Panics
    /// With the call's own panic, if it panicked. Inside the body of another non-blocking call, where this
    /// call can't make progress: await the handle there. If a poll has returned the result already.
    pub fn wait(self) -> T {
        let _blocked = Blocked::begin(&self.engine);
        let (mut waiter, mut moves) = (Waiter::new(), self.engine.moves());
        loop {
            if let Some(result) = self.take() {
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

    /// # Panics
    /// With the call's own panic, if it panicked. If an earlier poll has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let result = self.take().or_else(|| {
            self.engine.turn();
            self.take()
        });
        let Some(result) = result else { return next_turn(context) };
        self.is_spent = true;
        Poll::Ready(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

/// A task of the engine, and the slot for its result.
pub(super) struct Spawned<B: Send + 'static, R> {
    task: Task<B, R>,
    slot: Slot<(B, R)>,
    status: Arc<Status>,
    deadline: Deadline,
    /// Dropped after the task, whose operations may end after its body.
    _kept: Kept,
}

/// What stays as long as a task.
pub(crate) type Kept = Option<Arc<dyn Send + Sync>>;

impl<B: Send + 'static, R> Spawned<B, R> {
    pub(super) fn new(
        engine: &Arc<Engine>,
        task: Task<B, R>,
        (status, kept): (Arc<Status>, Kept),
        deadline: Deadline,
    ) -> (Handle<(B, R)>, Self) {
        let slot = Outcome::new(None);
        (Handle::of(engine, Arc::clone(&slot)), Self { task, slot, status, deadline, _kept: kept })
    }

    /// Polls the task, and returns its result if it has ended.
    fn poll_task(&mut self) -> Option<thread::Result<(B, R)>> {
        let mut context = Context::from_waker(Waker::noop());
        match catch_unwind(AssertUnwindSafe(|| self.task.poll(&mut context))) {
            Ok(Poll::Pending) => None,
            Ok(Poll::Ready(result)) => Some(Ok(result)),
            Err(panic) => {
                self.status.abort(self.task.comm().port());
                Some(Err(panic))
            }
        }
    }
}

impl<B: Send + 'static, R: Send + 'static> Background for Spawned<B, R> {
    fn poll(&mut self) -> bool {
        if self.slot.is_canceled.swap(false, Ordering::Relaxed) {
            let comm = self.task.comm();
            if self.deadline.cancel(comm.now()) {
                comm.time().cancel();
            }
        }
        let Some(result) = self.poll_task() else { return false };
        self.status.look(self.task.comm().port());
        *self.slot.result.lock() = Some(result);
        true
    }

    fn look(&mut self, now: Duration, moved: bool) -> bool {
        let comm = self.task.comm();
        self.deadline.look((now, moved), comm.port(), &self.status, || comm.expire())
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::Field;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};
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

    /// Hears the errors that are logged on a thread.
    #[derive(Clone, Default)]
    struct Hears(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Hears {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::ERROR
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut |_: &Field, value: &dyn std::fmt::Debug| {
                self.0.lock().push(format!("{value:?}"))
            });
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// A call that panics in its second poll.
    fn panics(engine: &Arc<Engine>, message: impl Into<String>) -> Handle<((), ())> {
        let message = message.into();
        engine.spawn(TIMEOUT, (), |_, ()| {
            Box::pin(async move {
                later().await;
                std::panic::panic_any(message);
            })
        })
    }

    #[test]
    fn a_panic_that_no_handle_gets_is_logged() {
        let ((engine, _peer), hears) = (engine(), Hears::default());
        tracing::subscriber::with_default(hears.clone(), || {
            let [waited, dropped_after] = ["waited for", "dropped after"].map(|text| panics(&engine, text));
            drop(panics(&engine, "dropped before"));
            engine.turn();
            assert!(waited.test() && dropped_after.test());
            assert!(catch_unwind(AssertUnwindSafe(|| waited.wait())).is_err());
            drop(dropped_after);
        });
        let heard = hears.0.lock();
        assert_eq!(heard.len(), 2, "{heard:?}");
        assert!(heard[0].contains("dropped before") && heard[1].contains("dropped after"), "{heard:?}");
    }

    /// Polls once, with a waker that does nothing.
    fn poll<T>(handle: &mut Handle<T>) -> Poll<T> {
        Pin::new(handle).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Also if the result was a panic.
    #[test]
    fn a_handle_whose_result_was_returned_panics_instead_of_waiting() {
        let (engine, _peer) = engine();
        let mut ended = Handle::ended(&engine, 7);
        let mut panicked = panics(&engine, "on purpose");
        assert_eq!(poll(&mut ended), Poll::Ready(7));
        while catch_unwind(AssertUnwindSafe(|| poll(&mut panicked))).is_ok() {}
        assert!(ended.test() && panicked.test(), "they have ended");
        let again = [
            catch_unwind(AssertUnwindSafe(|| poll(&mut ended).is_ready())),
            catch_unwind(AssertUnwindSafe(|| poll(&mut panicked).is_ready())),
            catch_unwind(AssertUnwindSafe(|| ended.wait() == 7)),
        ];
        for again in again {
            let panic = again.unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(RESULT_IS_GONE));
        }
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
        assert_eq!(engine.port().failure(0), None);
    }
}
