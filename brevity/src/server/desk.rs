//! How requests reach a shard of this rank, and replies their workers.
//!
//! A shard works on a thread of its own, fed by a channel: while it selects an answer, the next push is
//! received. A second thread turns the engine, so that requests come in while the program computes. On a
//! simulated network, where there are no threads, it works where a request is taken, and looks in each turn
//! of the engine whether the patience for a worker has ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
// A shard that a panic has left half changed is not used any more.
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brevity_collectives::Peers;
use crossbeam_channel::{Sender, unbounded};
use ucx_sys_wrap::Error as Fault;

use super::acceptor::{Acceptor, To};
use super::letterbox::Letterbox;
use super::plan::Plan;
use super::shard::{Reply, Shard};
use super::watch::{Alarm, Ended, Watch, poll_alarm, set_alarm};
use super::works::Works;
use crate::Handle;
use crate::error::{Error, Result};

/// The tag of requests.
pub const REQUESTS: u32 = 1;
/// The tag of replies.
pub const REPLIES: u32 = 2;

/// A worker has one request at a time, and beside it a finish and a leave. What comes beyond is dropped.
pub(super) const MOST_WAITING: u32 = 4;

/// What a shard is told.
pub(super) enum Event {
    Request(usize, Vec<u8>),
    /// A request of so many bytes was too long.
    Dropped(usize, u64),
    Gone(usize),
    /// Time has passed.
    Tick,
    /// This rank serves no longer.
    Close,
}

/// A message on its way.
pub(super) type Sending = Handle<(Vec<u8>, brevity_collectives::Result<()>)>;

/// The receiving of requests.
pub(super) type Receiving = Handle<(Acceptor, brevity_collectives::Result<()>)>;

/// A shard of this rank, and what brings requests to it.
pub(super) struct Desk {
    pub(super) counter: Arc<Counter>,
    gate: Arc<Gate>,
    way: Way,
}

enum Way {
    Thread(Threads),
    /// With an alarm for workers that are silent.
    Here(Receiving, Option<Alarm>),
}

/// The threads of a shard: one works, one turns the engine until nobody is served any more.
struct Threads {
    events: Sender<Event>,
    /// Those that were not joined.
    running: Vec<JoinHandle<()>>,
    /// Holds a letter when workers were silent for too long, and is closed in the end.
    ended: Arc<Letterbox<()>>,
    begun: Instant,
}

/// A shard, and where its replies go.
pub(super) struct Counter {
    pub(super) plan: Arc<Plan>,
    pub(super) shard: Mutex<Shard>,
    pub(super) peers: Arc<Peers>,
    /// This rank as a worker, if it is one, and the replies to it.
    pub(super) own: Option<usize>,
    pub(super) letterbox: Letterbox<Vec<u8>>,
    /// What this rank waits for while it serves.
    pub(super) watch: Watch,
}

/// What bounds the requests that wait for a shard's thread.
pub(super) struct Gate {
    /// The requests of each worker.
    waiting: Vec<AtomicU32>,
    /// Set to stop receiving.
    is_closed: AtomicBool,
}

impl Gate {
    /// Lets a request in, if the worker may have another one waiting.
    pub(super) fn admits(&self, worker: usize) -> bool {
        let has_room = self.waiting[worker].load(Ordering::Relaxed) < MOST_WAITING;
        if has_room {
            self.waiting[worker].fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// A request was handled.
    pub(super) fn passed(&self, worker: usize) {
        self.waiting[worker].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

impl Counter {
    /// Does on this thread what a request asks for, and puts the reply to this rank's own worker into the
    /// letterbox. Returns the replies to others, what it costs, and whether all workers are gone.
    pub(super) fn handle_here(&self, event: Event) -> (Vec<Reply>, Duration, bool) {
        let (mut replies, bytes) = (Vec::new(), event.bytes());
        let Ok(mut shard) = self.shard.lock() else { return (replies, Duration::ZERO, true) };
        let cost = self.plan.charge.time(bytes, || shard.hear(event, self.peers.now(), &mut replies));
        let is_deserted = shard.is_deserted();
        drop(shard);
        for own in replies.extract_if(.., |reply| Some(reply.worker) == self.own) {
            self.letterbox.put(own.bytes);
        }
        (replies, cost, is_deserted)
    }
}

impl Counter {
    /// Whether a worker waits for others only until the shard looks at the clock.
    pub(super) fn is_release_due(&self) -> bool {
        // Without a bound nobody waits.
        self.plan.staleness.is_some()
            && self.shard.lock().is_ok_and(|shard| shard.is_release_due(self.peers.now()))
    }
}

impl Event {
    /// The length of a request.
    fn bytes(&self) -> usize {
        if let Self::Request(_, message) = self { message.len() } else { 0 }
    }
}

impl Shard {
    pub(super) fn hear(&mut self, event: Event, now: Duration, out: &mut Vec<Reply>) {
        match event {
            Event::Request(worker, message) => self.handle(worker, &message, now, out),
            Event::Dropped(worker, bytes) => {
                let reason = format!("a request of {bytes} bytes, which is more than any push has");
                self.refuse(worker, &reason, out);
            }
            Event::Gone(worker) => self.gone(worker, now, out),
            Event::Tick => self.release(now, out),
            Event::Close => {}
        }
    }
}

impl Desk {
    /// Begins to serve.
    pub(super) fn open(shard: Shard, peers: &Arc<Peers>) -> Result<Self> {
        let (plan, number) = (Arc::clone(&shard.plan), shard.number);
        let gate = Arc::new(Gate {
            waiting: plan.roles.workers.iter().map(|_| AtomicU32::new(0)).collect(),
            is_closed: AtomicBool::new(false),
        });
        let counter = Arc::new(Counter {
            own: plan.roles.worker(peers.rank()),
            plan: Arc::clone(&plan),
            shard: Mutex::new(shard),
            peers: Arc::clone(peers),
            letterbox: Letterbox::default(),
            watch: Watch::default(),
        });
        let serve = |to| {
            let (plan, gate) = (Arc::clone(&plan), Arc::clone(&gate));
            peers.start_serving(REQUESTS, Acceptor { plan, shard: number, to, gate })
        };
        let way = if peers.is_simulated() {
            Way::Here(serve(To::Here(Arc::clone(&counter))), None)
        } else {
            let (events, inbox) = unbounded();
            let receiving = Arc::new(serve(To::Thread(events.clone())));
            Way::Thread(Threads::start(events, Works::new(&counter, &gate, inbox, &receiving), receiving)?)
        };
        Ok(Self { counter, gate, way })
    }

    /// The replies to this rank's own worker.
    pub(super) fn letterbox(&self) -> &Letterbox<Vec<u8>> {
        &self.counter.letterbox
    }

    /// A request of this rank's own worker. Returns what it costs on a simulated network.
    pub(super) fn ask(&self, message: Vec<u8>) -> Duration {
        let Some(worker) = self.counter.own else { return Duration::ZERO };
        let request = Event::Request(worker, message);
        match &self.way {
            Way::Thread(threads) => {
                self.gate.waiting[worker].fetch_add(1, Ordering::Relaxed);
                // Its thread has closed the letterbox if nobody hears it.
                let _ = threads.events.send(request);
                Duration::ZERO
            }
            Way::Here(..) => {
                let (replies, cost, is_deserted) = self.counter.handle_here(request);
                if is_deserted {
                    self.gate.close();
                }
                for Reply { worker, bytes } in replies {
                    let rank = self.counter.plan.roles.workers[worker];
                    // It has ended: a simulated send never waits.
                    drop(self.counter.peers.start_send(bytes, rank, REPLIES));
                }
                cost
            }
        }
    }

    /// Calls `look` with the shard, between two requests. `None` if the shard has panicked.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        self.counter.shard.lock().ok().map(|mut shard| look(&mut shard))
    }

    /// Waits until all workers are gone, or nothing was heard of those that are not for so long. Returns at
    /// once on a simulated network.
    pub(super) fn join(&mut self, silence: Duration) -> Ended {
        self.watch(Some(silence));
        let Way::Thread(threads) = &mut self.way else { return Ended::Deserted };
        loop {
            if let Poll::Ready(letter) = threads.ended.wait(Duration::MAX) {
                return threads.end(letter);
            }
        }
    }

    /// Waits for so long until all workers are gone, or those that are not have been silent for `silence`, if
    /// that is given. It counts over calls that follow each other. `None` if time has passed, and on a
    /// simulated network.
    pub(super) fn join_for(&mut self, longest: Duration, silence: Option<Duration>) -> Option<Ended> {
        match (silence, &self.way) {
            (Some(silence), Way::Thread(threads)) => {
                self.counter.watch.go_on(threads.begun.elapsed(), silence);
            }
            _ => self.watch(None),
        }
        let Way::Thread(threads) = &mut self.way else { return None };
        match threads.ended.wait(longest) {
            Poll::Ready(letter) => Some(threads.end(letter)),
            Poll::Pending => None,
        }
    }

    /// Begins to watch for a silence of all workers from now on, or watches no longer.
    pub(super) fn watch(&mut self, silence: Option<Duration>) {
        let Counter { watch, peers, .. } = &*self.counter;
        match &mut self.way {
            Way::Thread(threads) => {
                watch.begin(silence.map(|longest| (threads.begun.elapsed(), longest)));
                // What an earlier one has found.
                let _ = threads.ended.wait(Duration::ZERO);
            }
            Way::Here(_, alarm) => {
                watch.begin(silence.map(|longest| (peers.now(), longest)));
                *alarm = silence.map(|longest| set_alarm(peers, longest));
            }
        }
    }

    /// Ready when all workers are gone, or silent.
    pub(super) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        match &mut self.way {
            Way::Thread(threads) => threads.ended.poll(context).map(|letter| threads.end(letter)),
            Way::Here(receiving, alarm) => {
                if receiving.has_ended() || Pin::new(receiving).poll(context).is_ready() {
                    *alarm = None;
                    return Poll::Ready(Ended::Deserted);
                }
                poll_alarm(&self.counter, alarm, context)
            }
        }
    }
}

impl Drop for Desk {
    /// Serves no longer. Waits for the threads, which may hold the last group: for the request that the shard
    /// is handling, and a turn of the engine.
    fn drop(&mut self) {
        self.gate.close();
        if let Way::Thread(threads) = &mut self.way {
            if self.counter.peers.check_process().is_err() {
                // They are threads of the parent process.
                std::mem::forget(std::mem::take(&mut threads.running));
                return;
            }
            let _ = threads.events.send(Event::Close);
            threads.join();
        }
    }
}

impl Threads {
    fn start(events: Sender<Event>, works: Works, receiving: Arc<Receiving>) -> Result<Self> {
        let ended = Arc::<Letterbox<()>>::default();
        let [last, also_last] = {
            let ends = Arc::new(Ends(Arc::clone(&ended)));
            [Arc::clone(&ends), ends]
        };
        let (peers, closes) = (works.peers(), events.clone());
        let begun = Instant::now();
        let works = start("brevity-shard", move || {
            works.run(begun, &last.0);
            drop(last);
        })?;
        let turns = start("brevity-server", move || {
            peers.wait_until(Duration::MAX, || receiving.has_ended());
            // Receiving may have failed.
            let _ = closes.send(Event::Close);
            drop((receiving, peers, also_last));
        });
        let turns = turns.inspect_err(|_| drop(events.send(Event::Close)))?;
        Ok(Self { events, running: vec![works, turns], ended, begun })
    }

    /// What a letter means, or its absence for ever.
    fn end(&mut self, letter: Option<()>) -> Ended {
        if letter.is_some() {
            return Ended::Silent;
        }
        self.join();
        Ended::Deserted
    }

    fn join(&mut self) {
        // A panic was reported where it happened.
        self.running.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Closes the letterbox when the last of the threads that hold it ends.
struct Ends(Arc<Letterbox<()>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = thread::Builder::new().name(name.into()).spawn(body);
    let failed = |error| Fault::system("can't start a thread of a server", error);
    started.map_err(|error| Error::Collective(brevity_collectives::Error::Transport(failed(error))))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    use brevity_collectives::Group;

    use super::super::ParameterServer;
    use super::*;

    /// A panic beside the shard's thread, while it may be half changed.
    #[test]
    fn a_shard_that_has_panicked_is_lost() {
        let group = Group::solo();
        let mut parameters = [vec![0.0f32; 4]];
        let server = ParameterServer::builder(&group).tensor("all", [4]).build(&parameters);
        let mut server = server.unwrap();
        server.fetch(&mut parameters).unwrap();
        let desk = server.desk.as_ref().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| desk.look(|_| panic!("on purpose"))));
        assert!(panicked.is_err() && server.served().is_none() && server.model().is_none());
        let is_lost = |ended: Result<()>| {
            assert!(matches!(ended, Err(Error::ServerLost { rank: 0, shard: 0 })), "{ended:?}");
        };
        is_lost(server.pull(&mut parameters).map(drop));
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(ended) = pin!(server.fetch_async(&mut parameters)).poll(&mut context) else {
            panic!("it waits for a shard that has ended");
        };
        is_lost(ended);
        assert_eq!(server.leave().unwrap(), None);
    }

    #[test]
    fn requests_wait_in_a_bounded_number() {
        let gate = Gate { waiting: vec![AtomicU32::new(0), AtomicU32::new(0)], is_closed: false.into() };
        let admitted = (0..10).filter(|_| gate.admits(0)).count();
        assert!(admitted == MOST_WAITING as usize && gate.admits(1));
        gate.passed(0);
        assert!(gate.admits(0) && !gate.admits(0));
    }
}
