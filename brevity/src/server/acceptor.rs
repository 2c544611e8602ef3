//! Takes the requests of other ranks.

use std::sync::Arc;

use brevity_collectives::{Handler, Outbox};
use crossbeam_channel::Sender;

use super::desk::{Counter, Event, Gate, REPLIES};
use super::plan::Plan;
use super::shard::Reply;

/// Brings requests to a shard. Holds no group where the shard has a thread: the engine may drop it.
pub(super) struct Acceptor {
    pub(super) plan: Arc<Plan>,
    /// The number of the shard.
    pub(super) shard: usize,
    pub(super) to: To,
    pub(super) gate: Arc<Gate>,
}

pub(super) enum To {
    Thread(Sender<Event>),
    Here(Arc<Counter>),
}

impl Acceptor {
    fn tell(&mut self, event: Event, out: &mut Outbox) {
        match &self.to {
            To::Thread(events) => {
                // What a rank sends beside its other requests is not even refused.
                let is_admitted = match &event {
                    Event::Request(worker, _) | Event::Dropped(worker, _) => self.gate.admits(*worker),
                    _ => true,
                };
                if is_admitted {
                    // Its thread has ended if nobody hears it.
                    let _ = events.send(event);
                }
            }
            To::Here(counter) => {
                let (replies, cost, is_deserted) = counter.handle_here(event);
                out.computed(cost);
                if is_deserted {
                    self.gate.close();
                }
                for Reply { worker, bytes } in replies {
                    out.send(self.plan.roles.workers[worker], REPLIES, bytes);
                }
            }
        }
    }
}

impl Handler for Acceptor {
    fn limit(&mut self, source: u32) -> usize {
        self.plan.roles.worker(source).map_or(0, |_| self.plan.longest_request(self.shard))
    }

    fn receive(&mut self, source: u32, bytes: Vec<u8>, out: &mut Outbox) {
        if let Some(worker) = self.plan.roles.worker(source) {
            self.tell(Event::Request(worker, bytes), out);
        }
    }

    fn dropped(&mut self, source: u32, bytes: u64, out: &mut Outbox) {
        if let Some(worker) = self.plan.roles.worker(source) {
            self.tell(Event::Dropped(worker, bytes), out);
        }
    }

    fn gone(&mut self, rank: u32, out: &mut Outbox) {
        if let Some(worker) = self.plan.roles.worker(rank) {
            self.tell(Event::Gone(worker), out);
        }
    }

    /// The patience for a worker may have ended.
    fn tick(&mut self, out: &mut Outbox) {
        if let To::Here(counter) = &self.to
            && counter.is_release_due()
        {
            self.tell(Event::Tick, out);
        }
    }

    fn has_ended(&self) -> bool {
        self.gate.is_closed()
    }
}
