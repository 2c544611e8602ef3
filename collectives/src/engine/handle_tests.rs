//! Handles that are waited for in odd places, and whose calls panic.

use std::sync::mpsc::channel;

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::local::{self, Local};
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag};

use super::*;
use crate::engine::parked::AT_ONCE;

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
    assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(crate::engine::until::WAITS_INSIDE));
    // A thread that waits outside is not mistaken for one inside.
    assert!(receive(&engine, Duration::ZERO).wait().1.is_err());
}

/// Its task can't be polled while another thread polls, but the transport moves.
#[test]
fn a_dropped_receive_takes_no_message_that_comes_while_another_thread_polls() {
    let (engine, peer) = engine();
    let (polls, polled) = channel();
    let (ends, ended) = channel::<()>();
    let blocked = engine.spawn(TIMEOUT, (), move |_, ()| {
        Box::pin(async move {
            later().await;
            polls.send(()).unwrap();
            ended.recv().unwrap();
        })
    });
    let around = (Arc::clone(engine.world()), None);
    let dropped = engine.spawn_in(around, (TIMEOUT, Some(TIMEOUT)), vec![0u8; 8], |comm, place| {
        Box::pin(async move { comm.recv(Rank(1), envelope(0), &mut place[..]).await.map(drop) })
    });
    let dropped = dropped.of_receive();
    thread::scope(|threads| {
        threads.spawn(|| blocked.wait());
        polled.recv().unwrap();
        drop(dropped);
        let peer = Port::new(Box::new(peer));
        scope(
            &peer,
            |comm| _ = comm.port().progress(),
            async |comm| comm.send(Rank(0), envelope(0), &[7u8; 8][..]).await.map(drop),
        )
        .unwrap();
        let mut place = [0u8; 8];
        let received = engine.run_softly(TIMEOUT, async |comm| {
            comm.recv(Rank(1), envelope(0), &mut place[..]).await.map(drop)
        });
        ends.send(()).unwrap();
        received.unwrap();
        assert_eq!(place, [7; 8]);
    });
}

/// Its body may look at a flag of its own.
#[test]
fn canceling_a_call_of_all_ranks_lets_its_body_look() {
    let (engine, _peer) = engine();
    let (polled, polls) = channel();
    let call = engine.spawn(TIMEOUT, (), move |_, ()| {
        Box::pin(std::future::poll_fn(move |_| {
            polled.send(()).unwrap();
            Poll::<()>::Pending
        }))
    });
    while engine.turn() || polls.try_iter().count() > 0 {}
    call.cancel();
    assert_eq!(polls.try_iter().count(), 1);
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
        event.record(&mut |_: &Field, value: &dyn std::fmt::Debug| self.0.lock().push(format!("{value:?}")));
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

/// Otherwise a task that makes such calls in a loop holds up its runtime for ever.
#[test]
fn a_task_whose_calls_all_end_at_once_lets_others_run() {
    let (engine, peer) = engine();
    let peer = Engine::new(Port::new(Box::new(peer)), None, false);
    for number in 0..2 * (AT_ONCE + 1) {
        let (has_come, waits) = (number % 2 == 0, number % (AT_ONCE + 1) == AT_ONCE);
        let mut call = receive(&engine, TIMEOUT);
        peer.run(TIMEOUT, async |comm| comm.send(Rank(0), envelope(0), vec![7u8; 8]).await.unwrap());
        if has_come {
            assert!(call.test(), "its end is there before the first poll");
        }
        assert_eq!(poll(&mut call).is_pending(), waits, "call {number}");
        if waits {
            assert!(poll(&mut call).is_ready(), "once");
        }
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
