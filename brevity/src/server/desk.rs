//! How requests reach a shard of this rank, and replies their workers.
//!
//! A shard works on a thread of its own, fed by a channel: while it selects an answer, the next push is
//! received. A second thread turns the engine, so that requests come in while the program computes. On a
//! simulated network, where there are no threads, it works where a request is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brevity_collectives::{Handler, Outbox, Peers};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use parking_lot::{Condvar, Mutex};
use ucx_sys_wrap::Error as Fault;

use super::plan::Plan;
use super::shard::{Reply, Shard};
use crate::Handle;
use crate::error::{Error, Result};

/// The tags of requests and of replies.
pub(super) const REQUESTS: u32 = 1;
pub(super) const REPLIES: u32 = 2;

/// A worker has one request at a time, and may leave after it. What comes beyond is dropped.
const MOST_WAITING: u32 = 4;

/// How often a shard looks for workers that are not heard of any more.
const TICK: Duration = Duration::from_millis(100);

/// How often a wait for some time looks whether the shard's thread has ended.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// The replies of this rank's shard to this rank's worker.
#[derive(Default)]
pub(super) struct Letterbox {
    inside: Mutex<Inside>,
    came: Condvar,
}

#[derive(Default)]
struct Inside {
    reply: Option<Vec<u8>>,
    waker: Option<Waker>,
}

impl Letterbox {
    fn put(&self, reply: Vec<u8>) {
        let mut inside = self.inside.lock();
        inside.reply = Some(reply);
        let waker = inside.waker.take();
        drop(inside);
        self.came.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for a reply, at most so long.
    pub(super) fn wait(&self, longest: Duration) -> Option<Vec<u8>> {
        let mut inside = self.inside.lock();
        self.came.wait_while_for(&mut inside, |inside| inside.reply.is_none(), longest);
        inside.reply.take()
    }

    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Vec<u8>> {
        let mut inside = self.inside.lock();
        match inside.reply.take() {
            Some(reply) => Poll::Ready(reply),
            None => {
                inside.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// What a shard's thread is told.
enum Event {
    Request(usize, Vec<u8>),
    Dropped(usize, u64),
    Gone(usize),
    /// Something to do with the shard between two requests.
    Look(Box<dyn FnOnce(&mut Shard) + Send>),
}

/// A message on its way.
pub(super) type Sending = Handle<(Vec<u8>, brevity_collectives::Result<()>)>;

/// A shard of this rank, and what brings requests to it.
pub(super) struct Desk {
    pub(super) letterbox: Arc<Letterbox>,
    way: Way,
    /// Set to stop receiving.
    is_closed: Arc<AtomicBool>,
    /// This rank as a worker, if it is one.
    own: Option<usize>,
    peers: Arc<Peers>,
    waiting: Arc<[AtomicU32]>,
}

enum Way {
    Thread(Box<Threads>),
    Here { shard: Arc<Mutex<Shard>>, receiving: Handle<(Acceptor, brevity_collectives::Result<()>)> },
}

/// The threads of a shard.
struct Threads {
    events: Option<Sender<Event>>,
    /// Turns the engine until nobody is served any more.
    turns: Option<JoinHandle<()>>,
    works: Option<JoinHandle<Shard>>,
    /// The shard, once its thread has ended.
    ended: Option<Shard>,
}

impl Threads {
    fn look<R: Send + 'static>(&mut self, look: impl FnOnce(&mut Shard) -> R + Send + 'static) -> Option<R> {
        let (to, result) = crossbeam_channel::bounded(1);
        let look = Arc::new(Mutex::new(Some(look)));
        let taken = Arc::clone(&look);
        let event = Event::Look(Box::new(move |shard| {
            if let Some(look) = taken.lock().take() {
                let _ = to.send(look(shard));
            }
        }));
        let told = self.events.as_ref().is_some_and(|events| events.send(event).is_ok());
        // Its thread may have ended before it has looked.
        let seen = if told { result.recv().ok() } else { None };
        seen.or_else(|| {
            let shard = self.join()?;
            let look = look.lock().take()?;
            Some(look(shard))
        })
    }

    fn join(&mut self) -> Option<&mut Shard> {
        if let Some(works) = self.works.take() {
            // A panic was reported where it happened.
            self.ended = works.join().ok();
        }
        if let Some(turns) = self.turns.take() {
            let _ = turns.join();
        }
        self.ended.as_mut()
    }
}

impl Desk {
    /// Begins to serve.
    pub(super) fn open(shard: Shard, peers: &Arc<Peers>) -> Result<Self> {
        let (plan, number) = (Arc::clone(&shard.plan), shard.number);
        let own = plan.roles.worker(peers.rank());
        let (letterbox, is_closed) = (Arc::<Letterbox>::default(), Arc::<AtomicBool>::default());
        let waiting: Arc<[AtomicU32]> = plan.roles.workers.iter().map(|_| AtomicU32::new(0)).collect();
        let acceptor = |to| Acceptor {
            plan: Arc::clone(&plan),
            shard: number,
            to,
            waiting: Arc::clone(&waiting),
            is_closed: Arc::clone(&is_closed),
        };
        let way = if peers.is_simulated() {
            let shard = Arc::new(Mutex::new(shard));
            let to = To::Here(Arc::clone(&shard), Arc::clone(&letterbox), Arc::clone(peers));
            Way::Here { shard, receiving: peers.start_serving(REQUESTS, acceptor(to)) }
        } else {
            let (events, inbox) = unbounded();
            let receiving = peers.start_serving(REQUESTS, acceptor(To::Thread(events.clone())));
            let post = Post {
                peers: Arc::clone(peers),
                letterbox: Arc::clone(&letterbox),
                own,
                sends: plan.roles.workers.iter().map(|_| Vec::new()).collect(),
            };
            let (waiting, is_closed) = (Arc::clone(&waiting), Arc::clone(&is_closed));
            let works = Works { shard, inbox, post, waiting, is_closed };
            let works = Some(start("brevity-shard", move || works.run())?);
            let turns = Some(start("brevity-server", move || drop(receiving.wait()))?);
            Way::Thread(Box::new(Threads { events: Some(events), turns, works, ended: None }))
        };
        Ok(Self { letterbox, way, is_closed, own, peers: Arc::clone(peers), waiting })
    }

    /// A request of this rank's own worker. Returns what it costs on a simulated network.
    pub(super) fn ask(&self, message: Vec<u8>) -> Duration {
        let Some(worker) = self.own else { return Duration::ZERO };
        match &self.way {
            Way::Thread(threads) => {
                // Its thread ends after this desk has closed the channel.
                self.waiting[worker].fetch_add(1, Ordering::Relaxed);
                let events = threads.events.as_ref();
                let _ = events.map(|events| events.send(Event::Request(worker, message)));
                Duration::ZERO
            }
            Way::Here { shard, .. } => {
                let mut out = Vec::new();
                let plan = Arc::clone(&shard.lock().plan);
                let cost = plan.charge.time(message.len(), || {
                    shard.lock().handle(worker, &message, self.peers.now(), &mut out);
                });
                for Reply { worker: to, bytes } in out {
                    if to == worker {
                        self.letterbox.put(bytes);
                    } else {
                        // It has ended: a simulated send never waits.
                        drop(self.peers.start_send(bytes, plan.roles.workers[to], REPLIES));
                    }
                }
                cost
            }
        }
    }

    /// Calls `look` with the shard, between two requests. `None` if its thread has panicked.
    pub(super) fn look<R: Send + 'static>(
        &mut self,
        look: impl FnOnce(&mut Shard) -> R + Send + 'static,
    ) -> Option<R> {
        match &mut self.way {
            Way::Here { shard, .. } => Some(look(&mut shard.lock())),
            Way::Thread(threads) => threads.look(look),
        }
    }

    /// Waits until all workers are gone, and returns the shard.
    pub(super) fn join(&mut self) -> Option<&mut Shard> {
        match &mut self.way {
            Way::Thread(threads) => threads.join(),
            Way::Here { .. } => None,
        }
    }

    /// Waits for so long, and returns whether all workers are gone.
    pub(super) fn join_for(&mut self, longest: Duration) -> bool {
        let Way::Thread(threads) = &mut self.way else { return false };
        let end = Instant::now().checked_add(longest);
        while threads.works.as_ref().is_some_and(|works| !works.is_finished()) {
            let left = end.map_or(POLL_EVERY, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(POLL_EVERY));
        }
        threads.join();
        true
    }

    /// The same on a simulated network.
    pub(super) fn poll_deserted(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.way {
            Way::Here { receiving, .. } if !receiving.has_ended() => {
                std::pin::Pin::new(receiving).poll(context).map(drop)
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        if let Way::Thread(threads) = &mut self.way {
            threads.events = None;
            threads.join();
        }
    }
}

fn start<R: Send + 'static>(name: &str, body: impl FnOnce() -> R + Send + 'static) -> Result<JoinHandle<R>> {
    let started = thread::Builder::new().name(name.into()).spawn(body);
    let failed = |error| Fault::system("can't start a thread of a server", error);
    started.map_err(|error| Error::Collective(brevity_collectives::Error::Transport(failed(error))))
}

/// Sends replies from the shard's thread.
struct Post {
    peers: Arc<Peers>,
    letterbox: Arc<Letterbox>,
    own: Option<usize>,
    /// The replies to each worker that are on their way. One that is stopped holds up no other.
    sends: Vec<Vec<Sending>>,
}

impl Post {
    fn send(&mut self, out: &mut Vec<Reply>, plan: &Plan) {
        for Reply { worker, bytes } in out.drain(..) {
            if Some(worker) == self.own {
                self.letterbox.put(bytes);
                continue;
            }
            let sends = &mut self.sends[worker];
            sends.retain(|send| !send.has_ended());
            if sends.len() >= MOST_WAITING as usize {
                // It asks again and again, and receives nothing.
                continue;
            }
            let sending = self.peers.start_send(bytes, plan.roles.workers[worker], REPLIES);
            if !sending.has_ended() {
                sends.push(sending);
            }
        }
    }
}

/// A shard at work on its thread.
struct Works {
    shard: Shard,
    inbox: Receiver<Event>,
    post: Post,
    waiting: Arc<[AtomicU32]>,
    is_closed: Arc<AtomicBool>,
}

impl Works {
    fn run(mut self) -> Shard {
        let _closes = Closes(Arc::clone(&self.is_closed));
        let (begun, mut out) = (Instant::now(), Vec::new());
        let plan = Arc::clone(&self.shard.plan);
        loop {
            let event = self.inbox.recv_timeout(TICK);
            let now = begun.elapsed();
            match event {
                Ok(Event::Request(worker, message)) => {
                    self.shard.handle(worker, &message, now, &mut out);
                    self.waiting[worker].fetch_sub(1, Ordering::Relaxed);
                }
                Ok(Event::Dropped(worker, bytes)) => {
                    self.shard.refuse(worker, &too_long(bytes), &mut out);
                    self.waiting[worker].fetch_sub(1, Ordering::Relaxed);
                }
                Ok(Event::Gone(worker)) => self.shard.gone(worker, now, &mut out),
                Ok(Event::Look(look)) => look(&mut self.shard),
                Err(RecvTimeoutError::Timeout) => self.shard.release(now, &mut out),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.post.send(&mut out, &plan);
            if self.shard.is_deserted() || self.is_closed.load(Ordering::Relaxed) {
                break;
            }
        }
        self.shard
    }
}

/// Ends the receiving of requests when the shard's thread ends, also by a panic.
struct Closes(Arc<AtomicBool>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn too_long(bytes: u64) -> String {
    format!("a request of {bytes} bytes, which is more than any push has")
}

/// Takes the requests of other ranks.
struct Acceptor {
    plan: Arc<Plan>,
    shard: usize,
    to: To,
    /// The requests of each worker that the shard has not handled yet.
    waiting: Arc<[AtomicU32]>,
    is_closed: Arc<AtomicBool>,
}

enum To {
    Thread(Sender<Event>),
    Here(Arc<Mutex<Shard>>, Arc<Letterbox>, Arc<Peers>),
}

impl Acceptor {
    /// Whether a worker may have another request waiting.
    fn has_room(&self, worker: usize) -> bool {
        self.waiting[worker].load(Ordering::Relaxed) < MOST_WAITING
    }

    fn tell(&mut self, event: Event, out: &mut Outbox) {
        let own = match &self.to {
            To::Thread(events) => {
                if let Event::Request(worker, _) | Event::Dropped(worker, _) = &event {
                    self.waiting[*worker].fetch_add(1, Ordering::Relaxed);
                }
                // Its thread has ended if nobody hears it.
                let _ = events.send(event);
                return;
            }
            To::Here(_, _, peers) => self.plan.roles.worker(peers.rank()),
        };
        let To::Here(shard, letterbox, peers) = &self.to else { return };
        let (mut replies, now) = (Vec::new(), peers.now());
        let mut shard = shard.lock();
        match event {
            Event::Request(worker, message) => {
                let cost = self.plan.charge.time(message.len(), || {
                    shard.handle(worker, &message, now, &mut replies);
                });
                out.computed(cost);
            }
            Event::Dropped(worker, bytes) => shard.refuse(worker, &too_long(bytes), &mut replies),
            Event::Gone(worker) => shard.gone(worker, now, &mut replies),
            Event::Look(look) => look(&mut shard),
        }
        if shard.is_deserted() {
            self.is_closed.store(true, Ordering::Relaxed);
        }
        for Reply { worker, bytes } in replies {
            if Some(worker) == own {
                letterbox.put(bytes);
            } else {
                out.send(self.plan.roles.workers[worker], REPLIES, bytes);
            }
        }
    }
}

impl Handler for Acceptor {
    fn limit(&mut self, source: u32) -> usize {
        let worker = self.plan.roles.worker(source).filter(|worker| self.has_room(*worker));
        worker.map_or(0, |_| self.plan.longest_request(self.shard))
    }

    fn receive(&mut self, source: u32, bytes: Vec<u8>, out: &mut Outbox) {
        if let Some(worker) = self.plan.roles.worker(source) {
            self.tell(Event::Request(worker, bytes), out);
        }
    }

    fn dropped(&mut self, source: u32, bytes: u64, out: &mut Outbox) {
        // What a rank sends beside its other requests is not even refused.
        if let Some(worker) = self.plan.roles.worker(source).filter(|worker| self.has_room(*worker)) {
            self.tell(Event::Dropped(worker, bytes), out);
        }
    }

    fn gone(&mut self, rank: u32, out: &mut Outbox) {
        if let Some(worker) = self.plan.roles.worker(rank) {
            self.tell(Event::Gone(worker), out);
        }
    }

    fn has_ended(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}
