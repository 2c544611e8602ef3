//! Tasks are polled when what they wait for has come, and not because a turn is made.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use brevity::Handle;
use brevity::collectives::engine::{Engine, EngineThread};
use brevity::transport::buffer::{Comm, Port};
use brevity::transport::{Envelope, Mark, Rank, Signature, Tag, Transport, local};
use brevity_testing::{Wire, on_every_wire};

/// Far more than anything takes.
const TIMEOUT: Duration = Duration::from_secs(60);

const PENDING: u32 = 1000;

/// How often every task is polled although nothing has woken it, and for how long nothing comes.
const POLLED_EVERY: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_millis(100);

/// The messages that the combinators wait for, and the most polls of one receive: the first, one when it has
/// ended, and one when its message has begun to come.
const RECEIVES: u32 = 50;
const POLLS: u32 = 3;

fn envelope(source: Rank, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, 0, round), signature: Signature::default(), mark: Mark::NONE }
}

fn engine(transport: Box<dyn Transport>) -> Arc<Engine> {
    Engine::new(Port::new(transport), None, false)
}

/// Runs `body` for rank 0 on this thread, and `peer` for rank 1 on another.
fn on_pair(
    world: Vec<Box<dyn Transport>>,
    body: impl FnOnce(&Arc<Engine>),
    peer: impl FnOnce(&Arc<Engine>) + Send,
) {
    let [own, other] = <[Box<dyn Transport>; 2]>::try_from(world).ok().unwrap();
    thread::scope(|threads| {
        threads.spawn(|| peer(&engine(other)));
        let engine = engine(own);
        body(&engine);
    });
}

/// Sends a byte in this round to the other rank.
fn send(engine: &Engine, round: u32) {
    let (own, peer) = (engine.port().rank(), Rank(1 - engine.port().rank().0));
    engine.run(TIMEOUT, async |comm| {
        comm.send(peer, envelope(own, round), vec![round as u8]).await.unwrap();
    });
}

fn receive(engine: &Engine, round: u32) {
    let peer = Rank(1 - engine.port().rank().0);
    engine.run(TIMEOUT, async |comm| {
        comm.recv(peer, envelope(peer, round), vec![0u8; 1]).await.unwrap();
    });
}

/// Counts the polls of a future.
async fn counted<F: Future>(polls: &AtomicU32, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        polls.fetch_add(1, Ordering::Relaxed);
        future.as_mut().poll(context)
    })
    .await
}

on_every_wire! {
    a_turn_polls_what_has_moved => |wire: Wire| on_pair(wire.world(2), many_pending, |peer| {
        receive(peer, PENDING);
        for round in [700, 3] {
            send(peer, round);
        }
        receive(peer, PENDING + 1);
        (0..PENDING).filter(|round| ![700, 3].contains(round)).for_each(|round| send(peer, round));
        receive(peer, PENDING + 2);
    });
    combinators_poll_what_has_moved => |wire: Wire| on_pair(wire.world(2), combinators, |peer| {
        for _ in 0..2 {
            receive(peer, RECEIVES);
            for round in (0..RECEIVES).rev() {
                thread::sleep(Duration::from_micros(500));
                send(peer, round);
            }
        }
    });
}

fn many_pending(engine: &Arc<Engine>) {
    let polls = Arc::new(AtomicU32::new(0));
    let handles: Vec<Handle<_>> = (0..PENDING)
        .map(|round| {
            let polls = Arc::clone(&polls);
            engine.spawn(TIMEOUT, (), move |comm, ()| {
                let receive = comm.recv(Rank(1), envelope(Rank(1), round), vec![0u8; 1]);
                Box::pin(async move { counted(&polls, receive).await.unwrap().0 })
            })
        })
        .collect();
    // Each is polled once when it is started, and once in the turn after that.
    while polls.load(Ordering::Relaxed) < 2 * PENDING {
        engine.turn();
    }
    let (begun, mut turns, before) = (Instant::now(), 0, polls.load(Ordering::Relaxed));
    while begun.elapsed() < QUIET {
        engine.turn();
        turns += 1;
    }
    let rounds = |begun: Instant| 1 + (begun.elapsed().as_millis() / POLLED_EVERY.as_millis()) as u32;
    let polled = polls.load(Ordering::Relaxed) - before;
    assert!(turns > 20 && polled <= rounds(begun) * PENDING, "{polled} polls in {turns} turns");

    send(engine, PENDING);
    let (begun, before) = (Instant::now(), polls.load(Ordering::Relaxed));
    while !(handles[700].test() & handles[3].test()) {
        assert!(begun.elapsed() < TIMEOUT);
    }
    let polled = polls.load(Ordering::Relaxed) - before;
    assert!(polled <= rounds(begun) * PENDING + 2 * POLLS, "{polled} polls in {:?}", begun.elapsed());
    send(engine, PENDING + 1);
    for (round, handle) in handles.into_iter().enumerate() {
        assert_eq!(handle.wait().1, [round as u8]);
    }
    send(engine, PENDING + 2);
}

/// Futures of which those that were woken are polled, as `FuturesUnordered` does.
struct Unordered<'a, T> {
    futures: Vec<Member<'a, T>>,
    parent: Arc<Mutex<Option<Waker>>>,
}

type Member<'a, T> = (Pin<Box<dyn Future<Output = T> + Send + 'a>>, Arc<Woken>);

struct Woken {
    is_woken: AtomicBool,
    parent: Arc<Mutex<Option<Waker>>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        let parent = self.parent.lock().unwrap().clone();
        parent.into_iter().for_each(Waker::wake);
    }
}

impl<'a, T> Unordered<'a, T> {
    fn new(futures: impl Iterator<Item = Pin<Box<dyn Future<Output = T> + Send + 'a>>>) -> Self {
        let parent = Arc::<Mutex<Option<Waker>>>::default();
        let woken = || Arc::new(Woken { is_woken: AtomicBool::new(true), parent: Arc::clone(&parent) });
        Self { futures: futures.map(|future| (future, woken())).collect(), parent }
    }

    /// The output of one that has ended.
    async fn next(&mut self) -> Option<T> {
        poll_fn(|context| {
            *self.parent.lock().unwrap() = Some(context.waker().clone());
            if self.futures.is_empty() {
                return Poll::Ready(None);
            }
            for (index, (future, woken)) in self.futures.iter_mut().enumerate() {
                if woken.is_woken.swap(false, Ordering::Acquire)
                    && let Poll::Ready(output) =
                        future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
                {
                    drop(self.futures.swap_remove(index));
                    return Poll::Ready(Some(output));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Receives a message in each round, in whichever order they come. Returns how often the receives were
/// polled.
async fn receive_all(comm: &Comm<'_>) -> Vec<u32> {
    let polls: Vec<AtomicU32> = (0..RECEIVES).map(|_| AtomicU32::new(0)).collect();
    let mut receives = Unordered::new((0..).zip(&polls).map(|(round, polls)| {
        let receive = comm.recv(Rank(1), envelope(Rank(1), round), vec![0u8; 1]);
        let receive: Pin<Box<dyn Future<Output = u8> + Send + '_>> =
            Box::pin(async move { counted(polls, receive).await.unwrap().0[0] });
        receive
    }));
    comm.send(Rank(1), envelope(Rank(0), RECEIVES), vec![0u8]).await.unwrap();
    let mut received = Vec::new();
    while let Some(byte) = receives.next().await {
        received.push(u32::from(byte));
    }
    received.sort_unstable();
    assert!(received.into_iter().eq(0..RECEIVES));
    drop(receives);
    polls.into_iter().map(AtomicU32::into_inner).collect()
}

/// Inside the body of a call that was started, and of one that blocks.
fn combinators(engine: &Arc<Engine>) {
    let started = engine.spawn(TIMEOUT, (), |comm, ()| Box::pin(receive_all(comm)));
    let started = started.wait().1;
    let blocking = engine.run(TIMEOUT, async |comm| receive_all(comm).await);
    for polls in started.into_iter().chain(blocking) {
        assert!((1..=POLLS).contains(&polls), "{polls} polls");
    }
}

/// The engine of rank 0 of a world whose rank 1 does nothing.
fn alone() -> (Arc<Engine>, Box<dyn Transport>) {
    let mut world = local::world(2).into_iter();
    let (own, peer) = (world.next().unwrap(), world.next().unwrap());
    (engine(Box::new(own)), Box::new(peer))
}

/// A body that awaits handles of its own engine.
#[test]
fn handles_that_a_body_awaits_are_polled_when_they_end() {
    let (engine, _peer) = alone();
    let (inside, polls) = (Arc::clone(&engine), Arc::new(AtomicU32::new(0)));
    let counts = Arc::clone(&polls);
    let outer = engine.spawn(TIMEOUT, (), move |_, ()| {
        Box::pin(async move {
            let pending = inside.spawn(QUIET, vec![0u8; 1], |comm, place| {
                let receive = comm.recv(Rank(1), envelope(Rank(1), 0), &mut place[..]);
                Box::pin(async move { receive.await.map(drop) })
            });
            counted(&counts, pending).await.1
        })
    });
    let begun = Instant::now();
    assert!(outer.wait().1.is_err(), "its deadline passes");
    let most = 4 + (begun.elapsed().as_millis() / POLLED_EVERY.as_millis()) as u32;
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= most, "{polls} polls");
}

/// The loser of a select is canceled, and a call that is canceled wakes the futures inside its body.
#[test]
fn futures_inside_a_body_end_with_its_deadline() {
    let (engine, _peer) = alone();
    let waits = engine.spawn(QUIET, (), |comm, ()| {
        Box::pin(async move {
            let receive = |round| comm.recv(Rank(1), envelope(Rank(1), round), vec![0u8; 1]);
            let mut both = Unordered::new((0..2).map(|round| {
                let receive = receive(round);
                let receive: Pin<Box<dyn Future<Output = bool> + Send + '_>> =
                    Box::pin(async move { receive.await.is_err() });
                receive
            }));
            [both.next().await, both.next().await]
        })
    });
    let begun = Instant::now();
    assert_eq!(waits.wait().1, [Some(true); 2]);
    assert!(begun.elapsed() < TIMEOUT / 4);
}

/// Another thread wakes a body, while the engine's thread sleeps.
#[test]
fn a_body_is_woken_by_any_thread() {
    let (engine, _peer) = alone();
    let thread = EngineThread::start(&engine, true).unwrap();
    let place = Arc::new(Mutex::new((0u32, None::<Waker>)));
    let inside = Arc::clone(&place);
    let seen = Arc::new(AtomicU32::new(0));
    let seeing = Arc::clone(&seen);
    let handle = engine.spawn(TIMEOUT, (), move |_, ()| {
        Box::pin(poll_fn(move |context| {
            let mut place = inside.lock().unwrap();
            seeing.store(place.0, Ordering::Release);
            if place.0 == 20 {
                return Poll::Ready(());
            }
            place.1 = Some(context.waker().clone());
            Poll::Pending
        }))
    });
    for count in 1..=20 {
        // The thread sleeps by then, mostly.
        thread::sleep(Duration::from_millis(2));
        let waker = {
            let mut place = place.lock().unwrap();
            place.0 = count;
            place.1.take()
        };
        waker.into_iter().for_each(Waker::wake);
        let begun = Instant::now();
        while seen.load(Ordering::Acquire) < count {
            assert!(begun.elapsed() < TIMEOUT, "nobody polls the body");
            thread::yield_now();
        }
    }
    handle.wait();
    // A waker may outlive its task and its engine.
    let waker = place.lock().unwrap().1.take();
    drop((thread, engine));
    waker.into_iter().for_each(Waker::wake);
}
