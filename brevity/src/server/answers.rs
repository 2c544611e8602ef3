//! How a shard applies pushes, and what it answers.

use std::time::Duration;

use brevity_compress::codec::decode;
use brevity_compress::feedback::Tracked;
use brevity_compress::{SparseVec, SparseView};

use super::method::Rule;
use super::shard::{Came, Client, Presence, Reply, Shard};
use super::trailer::{Kind, TRAILER_BYTES, Trailer, write_dense};

/// A model whose elements stay below this can't make what is owed overflow.
pub(super) const LARGEST: f32 = f32::MAX / 4.0;

type Checked<T = ()> = Result<T, String>;

impl Shard {
    /// Adds what the rule makes of a dense push to the model. Returns what was left out because it would
    /// overflow.
    pub(super) fn apply_dense(&mut self, rate: f32) -> LeftOut {
        let Self { plan, model, squares, work, .. } = self;
        let mut left_out = LeftOut::default();
        for (index, &gradient) in work.dense.iter().enumerate() {
            let square = squares.get(index).copied().unwrap_or(0.0);
            let (change, square) = plan.rule.change(rate, square, gradient);
            if left_out.fits(index, model[index], change) {
                model[index] += change;
                if let Some(place) = squares.get_mut(index) {
                    *place = square;
                }
            }
        }
        left_out
    }

    /// Adds what the rule makes of a sparse push to the model and to what each worker is owed. Returns what
    /// was left out because it would overflow.
    pub(super) fn apply_sparse(&mut self, rate: f32) -> Checked<LeftOut> {
        let Self { plan, model, squares, clients, work, number, .. } = self;
        // Read alone, so that the processor waits for many elements at a time: they lie far apart.
        work.before.clear();
        work.before.extend(work.push.indices().iter().map(|index| model[*index as usize]));
        let (mut before, mut left_out) = (work.before.iter(), LeftOut::default());
        for (lane, changes) in plan.layout.shards[*number].lanes.iter().zip(&mut work.changes) {
            changes.reset(lane.len());
            for ((index, gradient), &element) in work.push.view().within(lane.clone()).iter().zip(&mut before)
            {
                let place = index as usize;
                let square = squares.get(place).copied().unwrap_or(0.0);
                let (change, square) = plan.rule.change(rate, square, gradient);
                if !left_out.fits(place, element, change) {
                    continue;
                }
                model[place] = element + change;
                if let Some(place) = squares.get_mut(place) {
                    *place = square;
                }
                changes.push((place - lane.start) as u32, change);
            }
        }
        for client in clients.iter_mut().filter(|client| client.presence == Presence::Here) {
            for (owed, changes) in client.owed.iter_mut().zip(&work.changes) {
                // The model was checked: no sum overflows.
                owed.add(changes.view()).map_err(|error| error.to_string())?;
            }
        }
        Ok(left_out)
    }

    /// Lets a worker begin, or begin again: it gets the whole model and is owed nothing.
    pub(super) fn admit(&mut self, worker: usize, now: Duration) -> Checked {
        // If nothing was heard of the others for long, they are still where they were.
        let slowest = self.slowest(now).or_else(|| self.here().map(Client::steps).min());
        let client = &mut self.clients[worker];
        if !self.plan.method.is_dense() && client.owed.is_empty() {
            let lanes = self.plan.layout.shards[self.number].lanes.iter();
            let owed: Result<Vec<Tracked>, _> = lanes.map(|lane| Tracked::try_new(lane.len())).collect();
            client.owed = owed.map_err(|error| format!("no room for another worker: {error}"))?;
        }
        client.owed.iter_mut().for_each(Tracked::clear);
        if client.presence != Presence::Here {
            client.came = Came { applied: client.applied, steps: slowest.unwrap_or(0) };
        }
        (client.presence, client.seen, client.lag) = (Presence::Here, self.clock, 0);
        (client.is_held, client.refusal) = (false, None);
        Ok(())
    }

    /// Answers the workers that need not wait for slower ones any more.
    ///
    /// With a bound on staleness a worker waits until it is no more than so many steps ahead of the slowest
    /// that is here. One that has not been heard of for the plan's patience is not waited for. Steps count
    /// from a worker's first fetch, where it is level with the slowest.
    pub(super) fn release(&mut self, now: Duration, out: &mut Vec<Reply>) {
        let slowest = self.slowest(now);
        for worker in 0..self.clients.len() {
            if self.may_go_on(&self.clients[worker], slowest) {
                // It could not be heard of while it waited.
                self.clients[worker].heard = now;
                let reply = self.reply(worker);
                out.push(reply);
            }
        }
    }

    /// Whether some worker has waited long enough.
    pub(super) fn is_release_due(&self, now: Duration) -> bool {
        let is_held = |client: &&Client| client.is_held;
        let mut held = self.clients.iter().filter(is_held).peekable();
        held.peek().is_some() && {
            let slowest = self.slowest(now);
            held.any(|client| self.may_go_on(client, slowest))
        }
    }

    /// Whether a worker waits for a reply, and need not wait for others.
    fn may_go_on(&self, client: &Client, slowest: Option<u64>) -> bool {
        let ahead = client.steps().saturating_sub(slowest.unwrap_or(0));
        client.is_held && self.plan.staleness.is_none_or(|bound| ahead <= bound)
    }

    /// The steps of the slowest worker that is here and was heard of. One whose answer is held back waits:
    /// its silence says nothing.
    fn slowest(&self, now: Duration) -> Option<u64> {
        let patience = self.plan.patience;
        let is_awake = |client: &&Client| client.is_held || now.saturating_sub(client.heard) <= patience;
        self.here().filter(is_awake).map(Client::steps).min()
    }

    /// The workers that have fetched and not left.
    fn here(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(|client| client.presence == Presence::Here)
    }

    /// The end of a reply.
    pub(super) fn trailer(&self, worker: usize, kind: Kind) -> Trailer {
        let client = &self.clients[worker];
        Trailer {
            clock: self.clock,
            saved: client.saved,
            lag: client.lag,
            ..Trailer::new(kind, self.number, client.applied)
        }
    }

    /// The whole model, for which there may be no memory.
    pub(super) fn whole(&mut self, worker: usize) -> Checked<Reply> {
        let (mut bytes, room) = (Vec::new(), 4 * self.model.len() + TRAILER_BYTES);
        bytes.try_reserve_exact(room).map_err(|_| format!("no room for an answer of {room} bytes"))?;
        write_dense(&self.model, &mut bytes);
        self.trailer(worker, Kind::Model).end(&mut bytes);
        self.clients[worker].seen = self.clock;
        Ok(Reply { worker, bytes })
    }

    pub(super) fn answer(&mut self, worker: usize) -> Reply {
        if self.plan.method.is_dense() {
            return self.whole(worker).unwrap_or_else(|reason| self.refusal(worker, &reason));
        }
        self.select(worker);
        let mut bytes = Vec::new();
        self.encode(worker, &mut bytes);
        self.trailer(worker, Kind::Answer).end(&mut bytes);
        self.clients[worker].seen = self.clock;
        Reply { worker, bytes }
    }

    /// Moves the largest entries of what a worker is owed into the answer.
    fn select(&mut self, worker: usize) {
        let Self { plan, clients, work, limits, number, .. } = self;
        let layout = &plan.layout.shards[*number];
        work.answer.reset(layout.len);
        for ((owed, lane), &limit) in clients[worker].owed.iter_mut().zip(&layout.lanes).zip(&*limits) {
            // It holds nothing that is not finite.
            if limit >= lane.len() || owed.select(limit, &mut work.selected, &mut work.selection).is_err() {
                owed.take_all(&mut work.selected);
            }
            for (index, value) in work.selected.iter() {
                work.answer.push(index + lane.start as u32, value);
            }
        }
    }

    /// Writes the answer, and puts what rounding takes away back to what the worker is owed.
    fn encode(&mut self, worker: usize, bytes: &mut Vec<u8>) {
        let Self { plan, clients, work, number, .. } = self;
        let layout = &plan.layout.shards[*number];
        let answer = work.answer.view();
        let encoded = work.encoder.encode(answer, plan.codec, &mut *work.quantiser, bytes);
        debug_assert!(encoded.is_ok(), "an answer is finite");
        if plan.values.is_exact() || decode(bytes, layout.len, answer.len(), &mut work.decoded).is_err() {
            return;
        }
        for (owed, lane) in clients[worker].owed.iter_mut().zip(&layout.lanes) {
            differences(answer, work.decoded.view(), lane.clone(), &mut work.selected);
            // Smaller than what was there before.
            let _ = owed.add(work.selected.view());
        }
    }
}

/// What rounding has taken away from the entries of a lane: `exact - rounded`, with indices in the lane. Both
/// have the same indices.
pub(super) fn differences(
    exact: SparseView<'_>,
    rounded: SparseView<'_>,
    lane: std::ops::Range<usize>,
    out: &mut SparseVec,
) {
    out.reset(lane.len());
    let (exact, rounded) = (exact.within(lane.clone()), rounded.within(lane.clone()));
    for ((index, value), said) in exact.iter().zip(rounded.values()) {
        out.push(index - lane.start as u32, value - said);
    }
}

impl Rule {
    /// The change of an element, and its sum of squares afterwards.
    fn change(self, rate: f32, square: f32, gradient: f32) -> (f32, f32) {
        match self {
            Self::Sgd => (-rate * gradient, 0.0),
            Self::AdaGrad { epsilon } => {
                let sum = square + gradient * gradient;
                if sum.is_finite() {
                    return (-rate * gradient / (sum.sqrt() + epsilon), sum);
                }
                // The change is at most the rate. The sum stops at the largest number, so that later changes
                // are as small as they were to be.
                let [rate, square, gradient, epsilon] = [rate, square, gradient, epsilon].map(f64::from);
                let root = (square + gradient * gradient).sqrt();
                ((-rate * gradient / (root + epsilon)) as f32, f32::MAX)
            }
        }
    }
}

/// The entries of a push that would have made the model overflow.
#[derive(Default)]
pub(super) struct LeftOut {
    count: usize,
    /// The first one: its element, which has this value and would have that.
    first: (usize, f32, f32),
}

impl LeftOut {
    /// Whether the changed element is finite and leaves room. Counts it otherwise.
    fn fits(&mut self, index: usize, element: f32, change: f32) -> bool {
        let sum = element + change;
        // Not so for NaN.
        let fits = sum.abs() <= LARGEST;
        if !fits {
            if self.count == 0 {
                self.first = (index, element, sum);
            }
            self.count += 1;
        }
        fits
    }

    /// What to tell the worker, in less than 200 bytes.
    pub(super) fn reason(&self) -> Option<String> {
        let (index, element, sum) = self.first;
        (self.count > 0).then(|| {
            format!(
                "the push is applied without {} entries, which are dropped: element {index} is {element:e} \
                 and would overflow at {sum:e}. Lower the rate, or clip gradients",
                self.count
            )
        })
    }
}
