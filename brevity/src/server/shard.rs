//! One server's part of the model, and what its workers are owed. No network: requests in, replies out.
//!
//! `M` is the model, `v[w]` what worker `w` has of it. Instead of `v[w]` the shard keeps what it owes,
//! `D[w] = M - v[w]`: a push adds its changes to `M` and to every `D`, an answer moves the largest entries of
//! `D[w]` into a message (dual-way sparsification; in gradient dropping the "last version" of a client is
//! `v[w]`). What an answer leaves stays in `D[w]`, so nothing is lost, and answers stay sparse however many
//! workers there are.

use std::sync::Arc;
use std::time::Duration;

use brevity_compress::SparseVec;
use brevity_compress::codec::{Encoder, decode};
use brevity_compress::feedback::{Tracked, TrackedScratch};
use brevity_compress::quantise::Quantiser;

use super::method::Rule;
use super::plan::Plan;
use super::trailer::{Kind, Trailer, read_dense};
use crate::error::Result;

/// So many refusals of each worker are logged; of later ones each whose number is a power of two.
const LOGGED_REFUSALS: u64 = 8;

/// The longest text of a refusal.
pub(super) const REASON_BYTES: usize = 200;

/// A message to a worker.
pub(super) struct Reply {
    pub(super) worker: usize,
    pub(super) bytes: Vec<u8>,
}

/// What a shard has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Pushes that were applied.
    pub pushes: u64,
    /// Requests that were refused, pushes of which entries were dropped, and repeated ones, which are not
    /// applied.
    pub refused: u64,
}

pub(super) struct Shard {
    pub(super) plan: Arc<Plan>,
    /// Of the plan.
    digest: u64,
    pub(super) number: usize,
    pub(super) model: Vec<f32>,
    /// AdaGrad's sums of squares; empty with another rule.
    pub(super) squares: Vec<f32>,
    pub(super) clock: u64,
    pub(super) clients: Vec<Client>,
    pub(super) served: Served,
    /// The most entries of an answer, for each lane.
    pub(super) limits: Vec<usize>,
    pub(super) work: Work,
}

/// A worker, as a shard sees it.
#[derive(Default)]
pub(super) struct Client {
    pub(super) presence: Presence,
    /// What it is owed, for each lane.
    pub(super) owed: Vec<Tracked>,
    /// The last step that was applied, and that was when the shard was last saved.
    pub(super) applied: u64,
    pub(super) saved: u64,
    /// What was applied when it came, and the steps of the slowest worker then: its own count from there.
    pub(super) came: Came,
    /// The clock at its last answer, and its own pushes since.
    pub(super) seen: u64,
    /// The pushes of others between that and its last push; 0 for a pull.
    pub(super) lag: u64,
    /// Its requests that were refused.
    pub(super) refused: u64,
    /// When its last request came, or was answered.
    pub(super) heard: Duration,
    /// The reply to its last push or pull waits for slower workers.
    pub(super) is_held: bool,
    /// What was left out of its last push: the reply, instead of an answer.
    pub(super) refusal: Option<String>,
}

/// Where the steps of a worker begin to count, so that nobody waits for steps that others made before it
/// came.
#[derive(Clone, Copy, Default)]
pub(super) struct Came {
    pub(super) applied: u64,
    pub(super) steps: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has not asked for the model yet.
    #[default]
    Away,
    Here,
    /// It waits for the answer to its last push, and nobody waits for it.
    Leaving,
    Gone,
}

/// Reused from request to request.
pub(super) struct Work {
    pub(super) push: SparseVec,
    pub(super) dense: Vec<f32>,
    /// The elements of the model that a push changes, before it does.
    pub(super) before: Vec<f32>,
    /// The changes of a push, for each lane.
    pub(super) changes: Vec<SparseVec>,
    pub(super) selected: SparseVec,
    /// For all lanes of all workers: it may become as long as a lane.
    pub(super) selection: TrackedScratch,
    pub(super) answer: SparseVec,
    pub(super) decoded: SparseVec,
    pub(super) encoder: Encoder,
    pub(super) quantiser: Box<dyn Quantiser + Send>,
}

impl Shard {
    /// A shard that holds `model`.
    pub(super) fn new(plan: &Arc<Plan>, number: usize, model: Vec<f32>) -> Result<Self> {
        let layout = &plan.layout.shards[number];
        let squares = match plan.rule {
            Rule::Sgd => Vec::new(),
            Rule::AdaGrad { .. } => plan.zeros(layout.len)?,
        };
        let lanes = || layout.lanes.iter();
        let work = Work {
            push: SparseVec::new(layout.len),
            dense: Vec::new(),
            before: Vec::new(),
            changes: lanes().map(|lane| SparseVec::new(lane.len())).collect(),
            selected: SparseVec::new(0),
            selection: TrackedScratch::new(),
            answer: SparseVec::new(layout.len),
            decoded: SparseVec::new(0),
            encoder: Encoder::new(),
            quantiser: plan.values.quantiser(),
        };
        let clients = plan.roles.workers.iter().map(|_| Client::default()).collect();
        let (limits, digest) = (plan.answer_limits(number).collect(), plan.digest());
        let (plan, served) = (Arc::clone(plan), Served::default());
        Ok(Self { plan, digest, number, model, squares, clock: 0, clients, served, limits, work })
    }

    /// Whether all workers are gone.
    pub(super) fn is_deserted(&self) -> bool {
        self.clients.iter().all(|client| client.presence == Presence::Gone)
    }

    /// The workers that have not left and are not gone.
    pub(super) fn not_gone(&self) -> Vec<usize> {
        let is_there = |worker: &usize| self.clients[*worker].presence != Presence::Gone;
        (0..self.clients.len()).filter(is_there).collect()
    }

    /// When something was last heard of a worker that is not gone.
    pub(super) fn heard(&self) -> Duration {
        let there = self.clients.iter().filter(|client| client.presence != Presence::Gone);
        there.map(|client| client.heard).max().unwrap_or_default()
    }

    /// Handles a request that came at `now`.
    pub(super) fn handle(&mut self, worker: usize, message: &[u8], now: Duration, out: &mut Vec<Reply>) {
        self.clients[worker].heard = now;
        if let Err(reason) = self.try_to_handle(worker, message, now, out) {
            self.refuse(worker, &reason, out);
        }
        self.release(now, out);
    }

    /// Tells a worker that its request is refused.
    pub(super) fn refuse(&mut self, worker: usize, reason: &str, out: &mut Vec<Reply>) {
        let reply = self.refusal(worker, reason);
        out.push(reply);
    }

    pub(super) fn refusal(&mut self, worker: usize, reason: &str) -> Reply {
        self.note_refused(worker, reason);
        self.refused_reply(worker, reason)
    }

    fn refused_reply(&self, worker: usize, reason: &str) -> Reply {
        let mut bytes = reason.as_bytes().to_vec();
        bytes.truncate(REASON_BYTES);
        self.trailer(worker, Kind::Refused).end(&mut bytes);
        Reply { worker, bytes }
    }

    fn note_refused(&mut self, worker: usize, reason: &str) {
        self.served.refused += 1;
        let count = &mut self.clients[worker].refused;
        *count += 1;
        if *count <= LOGGED_REFUSALS || count.is_power_of_two() {
            let (shard, rank) = (self.number, self.plan.roles.workers[worker]);
            tracing::warn!("shard {shard} refuses a request of rank {rank} (the {count}. of it): {reason}");
        }
    }

    /// The reply to a worker that waits no longer.
    pub(super) fn reply(&mut self, worker: usize) -> Reply {
        let client = &mut self.clients[worker];
        client.is_held = false;
        match client.refusal.take() {
            Some(reason) => self.refused_reply(worker, &reason),
            None => self.answer(worker),
        }
    }

    /// A worker is gone: nobody waits for it any more.
    pub(super) fn gone(&mut self, worker: usize, now: Duration, out: &mut Vec<Reply>) {
        self.clients[worker].end(Presence::Gone);
        self.release(now, out);
    }

    fn try_to_handle(
        &mut self,
        worker: usize,
        message: &[u8],
        now: Duration,
        out: &mut Vec<Reply>,
    ) -> std::result::Result<(), String> {
        let (payload, trailer) = Trailer::split(message)?;
        if trailer.shard as usize != self.number {
            return Err(format!("a request to shard {}, this is shard {}", trailer.shard, self.number));
        }
        match trailer.kind {
            Kind::Fetch => {
                if trailer.clock != self.digest {
                    return Err(self.plan.refuses_others());
                }
                self.admit(worker, now)?;
                out.push(self.whole(worker)?);
                return Ok(());
            }
            Kind::Finish => {
                if self.clients[worker].is_held {
                    out.push(self.reply(worker));
                }
                self.clients[worker].end(Presence::Leaving);
                return Ok(());
            }
            Kind::Leave => {
                self.clients[worker].end(Presence::Gone);
                return Ok(());
            }
            Kind::Push | Kind::Pull => {}
            Kind::Model | Kind::Answer | Kind::Refused => return Err("a reply, expected a request".into()),
        }
        if self.clients[worker].presence != Presence::Here {
            return Err("a push or pull before a fetch: fetch the model first".into());
        }
        // Otherwise one that does not wait would go on, whatever the bound on staleness.
        if self.clients[worker].is_held {
            return Err("a push or pull before the reply to the last one".into());
        }
        match trailer.kind {
            Kind::Push => self.push(worker, payload, &trailer)?,
            _ => self.clients[worker].lag = 0,
        }
        self.clients[worker].is_held = true;
        Ok(())
    }

    /// Applies a push, unless it was applied before. Notes what was left out: the reply says it, which waits
    /// for slower workers like an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    fn push(&mut self, worker: usize, payload: &[u8], trailer: &Trailer) -> std::result::Result<(), String> {
        let applied = self.clients[worker].applied;
        if trailer.step <= applied {
            let reason = format!("push {}, which is answered and not applied again", trailer.step);
            self.note_refused(worker, &reason);
            return Ok(());
        }
        if trailer.step != applied + 1 {
            return Err(format!("push {} of a worker whose last one was {applied}", trailer.step));
        }
        if !trailer.rate.is_finite() {
            return Err(format!("the rate {}", trailer.rate));
        }
        let left_out = if self.plan.method.is_dense() {
            read_dense(payload, &mut self.work.dense, self.model.len())?;
            self.apply_dense(trailer.rate)
        } else {
            let (len, limit) = (self.model.len(), self.plan.push_limit(self.number));
            decode(payload, len, limit, &mut self.work.push).map_err(|error| error.to_string())?;
            self.apply_sparse(trailer.rate)?
        };
        let client = &mut self.clients[worker];
        client.applied = trailer.step;
        client.lag = self.clock - client.seen;
        client.seen += 1;
        self.clock += 1;
        self.served.pushes += 1;
        // Its number counts as applied, so that what was left out does not come again and again.
        if let Some(reason) = left_out.reason() {
            self.note_refused(worker, &reason);
            self.clients[worker].refusal = Some(reason);
        }
        Ok(())
    }
}

impl Client {
    /// Its steps, as the bound on staleness compares them.
    pub(super) fn steps(&self) -> u64 {
        self.came.steps + self.applied.saturating_sub(self.came.applied)
    }

    /// Nobody waits for it any more, and it is owed nothing.
    fn end(&mut self, presence: Presence) {
        self.presence = presence;
        self.owed = Vec::new();
        (self.is_held, self.refusal) = (false, None);
    }
}
