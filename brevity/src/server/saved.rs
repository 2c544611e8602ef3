//! Saves what a rank keeps of a server, and begins again from what ranks have saved.
//!
//! A file has a head of numbers, then a worker's part, then a shard's, each a sequence of saved states (see
//! [`brevity_compress::state`]). Vectors are those of all elements, in the order of the tensors, so that
//! shards may be cut otherwise later.

use std::io::{Read, Write};
use std::ops::Range;

use brevity_compress::SparseVec;
use brevity_compress::state::{self, Fault};

use super::ParameterServer;
use super::answers::LARGEST;
use super::layout::Layout;
use super::list::{List, Word, load};
use super::method::{Kind, Rule};
use super::plan::Plan;
use super::seat::{Aside, MOST_STEPS};
use super::shard::Shard;
use super::worker::Worker;
use crate::error::{Error, Result};

/// What a rank has saved.
#[derive(Clone)]
pub(super) struct Saved {
    pub(super) head: Head,
    pub(super) worker: Option<SavedWorker>,
    pub(super) shard: Option<SavedShard>,
}

#[derive(Clone, Default, PartialEq)]
pub(super) struct Head {
    /// A digest of names and lengths of the tensors.
    tensors: u64,
    total: u64,
    /// The kind of the method, by which the vectors are read.
    method: u64,
    /// 1 with AdaGrad, which needs its squares.
    rule: u64,
    pub(super) workers: u64,
    pub(super) servers: u64,
    /// One more than the worker's and the shard's number; 0 for none.
    pub(super) worker: u64,
    pub(super) shard: u64,
    vectors: u64,
    aside_bytes: u64,
    has_squares: u64,
}

#[derive(Clone)]
pub(super) struct SavedWorker {
    /// For each vector of the method, the elements of all tensors.
    pub(super) vectors: Vec<Vec<f32>>,
    /// The pushes that may have to be put back: shard, number, entries with their places in the shard.
    pub(super) aside: Vec<(usize, u64, Aside)>,
    /// The number of the last push to each shard.
    pub(super) steps: Vec<u64>,
}

#[derive(Clone)]
pub(super) struct SavedShard {
    pub(super) clock: u64,
    /// The last step of each worker that was applied.
    pub(super) applied: Vec<u64>,
    pub(super) model: Vec<f32>,
    pub(super) squares: Vec<f32>,
}

impl ParameterServer {
    /// Writes what this rank needs after a restart: of a worker its residuals and the pushes that may have to
    /// be put back, of a server its shard. Each rank saves its own state, at any time; call it between steps.
    /// [`ServerBuilder::resume`](super::ServerBuilder::resume) reads it.
    ///
    /// Workers that [keep](super::ServerBuilder::keep_pushes) their pushes do so until
    /// [`confirm_saved`](Self::confirm_saved).
    ///
    /// Cost: 4 bytes an element of each part, and one copy of that in memory. The shard works on after it was
    /// copied.
    ///
    /// # Errors
    /// [`Error::State`] if writing fails, and without memory for the copy.
    pub fn save(&mut self, to: &mut impl Write) -> Result<()> {
        let shard = self.desk.as_ref().and_then(|desk| desk.look(|shard| SavedShard::of(shard)));
        let worker = self.worker.as_ref().map(|worker| SavedWorker::of(&self.plan, worker));
        let aside = worker.as_ref().map_or(Vec::new(), SavedWorker::aside_words);
        let rank = self.group.rank();
        let number = |place: Option<usize>| place.map_or(0, |place| place as u64 + 1);
        let head = Head {
            worker: number(self.plan.roles.worker(rank)),
            shard: number(shard.as_ref().and_then(|_| self.plan.roles.shard(rank))),
            aside_bytes: 4 * aside.len() as u64,
            has_squares: shard.as_ref().map_or(0, |shard| u64::from(!shard.squares.is_empty())),
            ..Head::of(&self.plan)
        };
        state::save(&List::of(head.numbers()), to)?;
        if let Some(worker) = worker {
            worker.vectors.into_iter().try_for_each(|vector| state::save(&List::of(vector), to))?;
            state::save(&List::of(aside), to)?;
            state::save(&List::of(worker.steps), to)?;
        }
        if let Some(SavedShard { clock, applied, model, squares }) = shard {
            let numbers = [vec![clock], applied.clone()].concat();
            state::save(&List::of(numbers), to)?;
            state::save(&List::of(model), to)?;
            state::save(&List::of(squares), to)?;
            to.flush().map_err(|error| Fault::Io(error.kind()))?;
            self.unconfirmed = Some(applied);
        }
        Ok(())
    }

    /// Says that the last state that this rank has [saved](Self::save) can't be lost any more: its file has
    /// its final name, and is on the disk. Workers then drop the pushes in it that they have kept, with their
    /// next answers. Does nothing if no shard was saved since the last call.
    ///
    /// A server that begins anew from an older state than a confirmed one has lost the pushes between the
    /// two. Its workers log that with their first fetch.
    pub fn confirm_saved(&mut self) {
        if let (Some(applied), Some(desk)) = (self.unconfirmed.take(), &self.desk) {
            desk.look(|shard| shard.note_saved(&applied));
        }
    }
}

impl Head {
    fn of(plan: &Plan) -> Self {
        let Layout { tensors, total, .. } = &plan.layout;
        let text = tensors.iter().flat_map(|tensor| [tensor.name.clone(), tensor.len.to_string()]);
        let text = text.collect::<Vec<_>>().join("\0");
        let (method, vectors) = match plan.method.0 {
            Kind::Asgd => (1, 1),
            Kind::GradientDropping { .. } => (2, 1),
            Kind::Dgs { .. } => (3, 1),
            Kind::Dgc { .. } => (4, 2),
        };
        let digest = brevity_collectives::Description::of_plan(
            brevity_collectives::Operation::SERVER,
            text.as_bytes(),
        );
        Self {
            tensors: digest.count,
            total: *total as u64,
            method,
            rule: u64::from(matches!(plan.rule, Rule::AdaGrad { .. })),
            workers: plan.roles.workers.len() as u64,
            servers: plan.roles.servers.len() as u64,
            vectors,
            ..Self::default()
        }
    }

    fn numbers(&self) -> Vec<u64> {
        vec![
            self.tensors,
            self.total,
            self.method,
            self.rule,
            self.workers,
            self.servers,
            self.worker,
            self.shard,
            self.vectors,
            self.aside_bytes,
            self.has_squares,
        ]
    }

    fn read(from: &mut impl Read) -> Result<Self> {
        let mut numbers = load::<u64>(Self::default().numbers().len(), from)?.into_iter();
        let mut next = || numbers.next().unwrap_or(0);
        Ok(Self {
            tensors: next(),
            total: next(),
            method: next(),
            rule: next(),
            workers: next(),
            servers: next(),
            worker: next(),
            shard: next(),
            vectors: next(),
            aside_bytes: next(),
            has_squares: next(),
        })
    }

    /// Fails unless the plan has the same tensors, method and kind of rule.
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        let own = Self::of(plan);
        let what = |head: &Self| (head.tensors, head.total, head.method, head.rule, head.vectors);
        if what(self) == what(&own) {
            return Ok(());
        }
        let of = |head: &Self, tensors| {
            format!(
                "the state of a server of {} elements in {tensors}, by {}{}",
                head.total,
                head.method_name(),
                if head.rule == 1 { " with AdaGrad" } else { "" }
            )
        };
        let are_other = self.tensors != own.tensors && self.total == own.total;
        let found = of(self, if are_other { "tensors of other names or lengths" } else { "its tensors" });
        Err(Fault::Part { found, expected: of(&own, "its tensors") }.into())
    }

    fn method_name(&self) -> String {
        match self.method {
            1 => "asgd".into(),
            2 => "gradient dropping".into(),
            3 => "dgs".into(),
            4 => "dgc".into(),
            other => format!("method {other}"),
        }
    }

    /// The elements of a shard.
    pub(super) fn range(&self, shard: usize) -> Range<usize> {
        let cut = |shard: usize| (u128::from(self.total) * shard as u128 / u128::from(self.servers)) as usize;
        cut(shard)..cut(shard + 1)
    }
}

impl Saved {
    /// Reads what a rank has saved for a server of these tensors and this method.
    pub(super) fn read(plan: &Plan, from: &mut impl Read) -> Result<Self> {
        let head = Head::read(from)?;
        let is_possible = head.servers > 0
            && head.servers < u64::from(u32::MAX)
            && head.shard <= head.servers
            && head.worker <= head.workers
            && head.workers < u64::from(u32::MAX)
            && head.aside_bytes.is_multiple_of(4)
            && head.aside_bytes < u64::from(u32::MAX) << 24;
        head.check(plan)?;
        if !is_possible {
            return Err(Fault::Contents { what: "numbers that no server has" }.into());
        }
        let total = plan.layout.total;
        let worker = if head.worker > 0 {
            let vectors = (0..head.vectors).map(|_| load(total, from)).collect::<Result<_>>()?;
            let aside = load::<Word>(head.aside_bytes as usize / 4, from)?;
            let aside =
                read_aside(&head, &aside).ok_or(Fault::Contents { what: "pushes that no worker has" })?;
            let steps: Vec<u64> = load(head.servers as usize, from)?;
            if steps.iter().any(|step| *step > MOST_STEPS) {
                return Err(Fault::Contents { what: "steps that no worker has" }.into());
            }
            Some(SavedWorker { vectors, aside, steps })
        } else {
            None
        };
        let shard = if head.shard > 0 { Some(SavedShard::read(&head, from)?) } else { None };
        Ok(Self { head, worker, shard })
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::State(fault.into())
    }
}

impl SavedShard {
    /// # Errors
    /// Also for numbers that no shard has: it would overflow later, when it is half changed.
    fn read(head: &Head, from: &mut impl Read) -> Result<Self> {
        let len = head.range(head.shard as usize - 1).len();
        let mut numbers: Vec<u64> = load(1 + head.workers as usize, from)?;
        let model: Vec<f32> = load(len, from)?;
        let squares: Vec<f32> = load(if head.has_squares == 1 { len } else { 0 }, from)?;
        let is_possible = numbers.iter().all(|number| *number <= MOST_STEPS)
            && model.iter().all(|element| element.abs() <= LARGEST)
            && squares.iter().all(|square| *square >= 0.0);
        if !is_possible {
            return Err(Fault::Contents { what: "numbers that no shard has" }.into());
        }
        let applied = numbers.split_off(1);
        Ok(Self { clock: numbers[0], applied, model, squares })
    }

    fn of(shard: &Shard) -> Self {
        Self {
            clock: shard.clock,
            applied: shard.clients.iter().map(|client| client.applied).collect(),
            model: shard.model.clone(),
            squares: shard.squares.clone(),
        }
    }
}

impl Shard {
    /// The shard was saved when these steps of its workers were applied.
    fn note_saved(&mut self, applied: &[u64]) {
        for (client, applied) in self.clients.iter_mut().zip(applied) {
            client.saved = client.saved.max(*applied);
        }
    }
}

impl SavedWorker {
    fn of(plan: &Plan, worker: &Worker) -> Self {
        let count = Head::of(plan).vectors as usize;
        let mut vectors = vec![vec![0.0; plan.layout.total]; count];
        for seat in &worker.seats {
            let layout = &plan.layout.shards[seat.shard];
            for (lane, range) in seat.lanes.iter().zip(&layout.lanes) {
                let elements = layout.first + range.start..layout.first + range.end;
                for (vector, part) in vectors.iter_mut().zip(lane.vectors()) {
                    // A dense lane that keeps nothing has no vector.
                    if !part.is_empty() {
                        vector[elements.clone()].copy_from_slice(part);
                    }
                }
            }
        }
        let aside = worker
            .seats
            .iter()
            .flat_map(|seat| seat.aside.iter().map(|(step, push)| (seat.shard, *step, push.clone())));
        let steps = worker.seats.iter().map(|seat| seat.step).collect();
        Self { vectors, aside: aside.collect(), steps }
    }

    /// For each push: shard, number, dense (1) or sparse (0), entries, in two words each; then indices and
    /// values. Little-endian.
    fn aside_words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        for (shard, step, push) in &self.aside {
            let (is_dense, indices, values) = match push {
                Aside::Sparse(entries) => (0, entries.indices(), entries.values()),
                Aside::Dense(values) => (1, &[][..], &values[..]),
            };
            for number in [*shard as u64, *step, is_dense, values.len() as u64] {
                words.extend_from_slice(number.to_le_bytes().as_chunks().0);
            }
            words.extend(indices.iter().map(|index| index.to_le_bytes()));
            words.extend(values.iter().map(|value| value.to_le_bytes()));
        }
        words
    }
}

/// Reads what [`SavedWorker::aside_words`] has written; `None` if it is something else.
fn read_aside(head: &Head, mut words: &[Word]) -> Option<Vec<(usize, u64, Aside)>> {
    let mut all = Vec::new();
    while !words.is_empty() {
        let mut take = |count: usize| {
            let (taken, rest) = words.split_at_checked(count)?;
            words = rest;
            Some(taken)
        };
        let numbers = take(8)?;
        let number = |place: usize| {
            let halves = [numbers[2 * place], numbers[2 * place + 1]].map(u32::from_le_bytes).map(u64::from);
            halves[0] | halves[1] << 32
        };
        let (shard, step, is_dense, count) = (number(0), number(1), number(2), number(3));
        if !(1..=MOST_STEPS).contains(&step) {
            return None;
        }
        let len = if shard < head.servers { head.range(shard as usize).len() } else { return None };
        let count = usize::try_from(count).ok().filter(|count| *count <= len)?;
        let indices = if is_dense == 0 { take(count)? } else { &[] };
        let values: Vec<f32> = take(count)?.iter().map(|word| f32::from_le_bytes(*word)).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return None;
        }
        let push = match is_dense {
            0 => {
                let indices = indices.iter().map(|word| u32::from_le_bytes(*word)).collect();
                Aside::Sparse(SparseVec::from_parts(len, indices, values).ok()?)
            }
            1 if count == len => Aside::Dense(values),
            _ => return None,
        };
        all.push((shard as usize, step, push));
    }
    Some(all)
}
