//! A shard at work on its thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brevity_collectives::Peers;
use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::desk::{Counter, Event, Gate, MOST_WAITING, REPLIES, Receiving, Sending};
use super::letterbox::Letterbox;
use super::shard::Reply;

/// How often a shard looks for workers that are not heard of any more.
const TICK: Duration = Duration::from_millis(100);

pub(super) struct Works {
    counter: Arc<Counter>,
    gate: Arc<Gate>,
    inbox: Receiver<Event>,
    receiving: Arc<Receiving>,
    /// The replies to each worker that are on their way. One that is stopped holds up no other.
    sends: Vec<Vec<Sending>>,
}

impl Works {
    pub(super) fn new(
        counter: &Arc<Counter>,
        gate: &Arc<Gate>,
        inbox: Receiver<Event>,
        receiving: &Arc<Receiving>,
    ) -> Self {
        let sends = counter.plan.roles.workers.iter().map(|_| Vec::new()).collect();
        let (counter, gate, receiving) = (Arc::clone(counter), Arc::clone(gate), Arc::clone(receiving));
        Self { counter, gate, inbox, receiving, sends }
    }

    pub(super) fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.counter.peers)
    }

    /// Works until all workers are gone, or this rank serves no longer.
    ///
    /// Puts a letter into `silent` when workers that this rank waits for are not heard of.
    pub(super) fn run(mut self, begun: Instant, silent: &Letterbox<()>) {
        let mut out = Vec::new();
        loop {
            let event = match self.inbox.recv_timeout(TICK) {
                Ok(Event::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => Event::Tick,
            };
            if let Event::Request(worker, _) | Event::Dropped(worker, _) = &event {
                self.gate.passed(*worker);
            }
            let Ok(mut shard) = self.counter.shard.lock() else { break };
            shard.hear(event, begun.elapsed(), &mut out);
            let (is_deserted, heard) = (shard.is_deserted(), shard.heard());
            drop(shard);
            if self.counter.watch.has_found(heard, begun.elapsed()) {
                silent.put(());
            }
            self.send(&mut out);
            if is_deserted || self.gate.is_closed() {
                break;
            }
        }
    }

    fn send(&mut self, out: &mut Vec<Reply>) {
        let Counter { plan, peers, own, letterbox, .. } = &*self.counter;
        for Reply { worker, bytes } in out.drain(..) {
            if Some(worker) == *own {
                letterbox.put(bytes);
                continue;
            }
            let sends = &mut self.sends[worker];
            sends.retain(|send| !send.has_ended());
            if sends.len() >= MOST_WAITING as usize {
                // It asks again and again, and receives nothing.
                continue;
            }
            let sending = peers.start_send(bytes, plan.roles.workers[worker], REPLIES);
            if !sending.has_ended() {
                sends.push(sending);
            }
        }
    }
}

impl Drop for Works {
    /// Ends the receiving of requests when the thread ends, also by a panic.
    fn drop(&mut self) {
        self.gate.close();
        self.receiving.cancel_in_next_turn();
        self.counter.letterbox.close();
    }
}
