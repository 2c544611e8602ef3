//! Saves what a rank keeps of a server, and begins again from what ranks have saved.
//!
//! A file has a head of numbers, then a worker's part, then a shard's, each a sequence of saved states (see
//! [`brevity_compress::state`]). Vectors are those of all elements, in the order of the tensors, so that
//! shards may be cut otherwise later.

use std::io::{Read, Write};
use std::ops::Range;

use brevity_compress::state::{self, Fault, Reader, State, Writer};
use brevity_compress::{Error as Compress, SparseVec};

use super::ParameterServer;
use super::layout::Layout;
use super::method::Kind;
use super::plan::Plan;
use super::seat::Aside;
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
}

#[derive(Clone)]
pub(super) struct SavedShard {
    pub(super) clock: u64,
    /// The last step of each worker that was applied.
    pub(super) applied: Vec<u64>,
    pub(super) model: Vec<f32>,
    pub(super) squares: Vec<f32>,
}

/// Numbers, values or bytes of a length that the reader knows.
struct Numbers(Vec<u64>);
struct Floats(Vec<f32>);
struct Bytes(Vec<u8>);

macro_rules! state_of_list {
    ($list:ident, $kind:literal, $write:expr, $read:expr) => {
        impl State for $list {
            fn kind(&self) -> [u8; 4] {
                *$kind
            }

            fn shape(&self) -> Vec<u64> {
                vec![self.0.len() as u64]
            }

            fn write_contents(&self, contents: &mut Writer) {
                $write(&self.0, contents);
            }

            fn read_contents(&mut self, contents: &mut Reader<'_>) -> std::result::Result<(), Compress> {
                $read(&mut self.0, contents)
            }
        }
    };
}

state_of_list!(
    Numbers,
    b"srvn",
    |numbers: &[u64], contents: &mut Writer| numbers.iter().for_each(|number| contents.u64(*number)),
    |numbers: &mut Vec<u64>, contents: &mut Reader<'_>| {
        numbers.iter_mut().try_for_each(|number| contents.u64().map(|read| *number = read))
    }
);
state_of_list!(
    Floats,
    b"srvf",
    |values: &[f32], contents: &mut Writer| contents.f32s(values),
    |values: &mut Vec<f32>, contents: &mut Reader<'_>| contents.f32s(values)
);
state_of_list!(
    Bytes,
    b"srvb",
    |bytes: &[u8], contents: &mut Writer| contents.bytes(bytes),
    |bytes: &mut Vec<u8>, contents: &mut Reader<'_>| {
        let count = bytes.len();
        contents.bytes(count).map(|read| bytes.copy_from_slice(read))
    }
);

impl ParameterServer {
    /// Writes what this rank needs after a restart: of a worker its residuals and the pushes that may have to
    /// be put back, of a server its shard. Each rank saves its own state, at any time; call it between steps.
    /// [`ServerBuilder::resume`](super::ServerBuilder::resume) reads it.
    ///
    /// Cost: 4 bytes an element of each part, and one copy of that in memory. The shard works on after it was
    /// copied.
    ///
    /// # Errors
    /// [`Error::State`] if writing fails, and without memory for the copy.
    pub fn save(&mut self, to: &mut impl Write) -> Result<()> {
        let shard = self.desk.as_ref().and_then(|desk| desk.look(|shard| SavedShard::of(shard)));
        let worker = self.worker.as_ref().map(|worker| SavedWorker::of(&self.plan, worker));
        let aside = worker.as_ref().map_or(Vec::new(), SavedWorker::aside_bytes);
        let rank = self.group.rank();
        let number = |place: Option<usize>| place.map_or(0, |place| place as u64 + 1);
        let head = Head {
            worker: number(self.plan.roles.worker(rank)),
            shard: number(shard.as_ref().and_then(|_| self.plan.roles.shard(rank))),
            aside_bytes: aside.len() as u64,
            has_squares: shard.as_ref().map_or(0, |shard| u64::from(!shard.squares.is_empty())),
            ..Head::of(&self.plan)
        };
        state::save(&Numbers(head.numbers()), to)?;
        if let Some(worker) = worker {
            worker.vectors.into_iter().try_for_each(|vector| state::save(&Floats(vector), to))?;
            state::save(&Bytes(aside), to)?;
        }
        if let Some(SavedShard { clock, applied, model, squares }) = shard {
            let numbers = [vec![clock], applied.clone()].concat();
            state::save(&Numbers(numbers), to)?;
            state::save(&Floats(model), to)?;
            state::save(&Floats(squares), to)?;
            // Workers that keep their pushes hear of it: it has to be written by then.
            to.flush().map_err(|error| Fault::Io(error.kind()))?;
            self.desk.as_ref().and_then(|desk| desk.look(|shard| shard.note_saved(&applied)));
        }
        Ok(())
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
        let mut numbers = Numbers(Self::default().numbers());
        state::load(&mut numbers, from)?;
        let mut numbers = numbers.0.into_iter();
        let mut next = || numbers.next().unwrap_or(0);
        Ok(Self {
            tensors: next(),
            total: next(),
            method: next(),
            workers: next(),
            servers: next(),
            worker: next(),
            shard: next(),
            vectors: next(),
            aside_bytes: next(),
            has_squares: next(),
        })
    }

    /// Fails unless the plan has the same tensors and method.
    pub(super) fn check(&self, plan: &Plan) -> Result<()> {
        let own = Self::of(plan);
        let of = |head: &Self| {
            format!("the state of a server with plan {:x}, method {}", head.tensors, head.method)
        };
        let what = |head: &Self| (head.tensors, head.total, head.method, head.vectors);
        if what(self) == what(&own) {
            return Ok(());
        }
        Err(Fault::Part { found: of(self), expected: of(&own) }.into())
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
            && head.shard <= head.servers
            && head.worker <= head.workers
            && head.workers < u64::from(u32::MAX)
            && head.aside_bytes <= 16 * (head.total + 64) * 1024;
        head.check(plan)?;
        if !is_possible {
            return Err(Fault::Contents { what: "numbers that no server has" }.into());
        }
        let total = plan.layout.total;
        let floats = |len: usize, from: &mut _| -> Result<Vec<f32>> {
            let mut floats = Floats(plan.zeros(len)?);
            state::load(&mut floats, from)?;
            Ok(floats.0)
        };
        let worker = if head.worker > 0 {
            let vectors = (0..head.vectors).map(|_| floats(total, from)).collect::<Result<_>>()?;
            let mut aside = Bytes(vec![0; head.aside_bytes as usize]);
            state::load(&mut aside, from)?;
            let aside =
                read_aside(&head, &aside.0).ok_or(Fault::Contents { what: "pushes that no worker has" })?;
            Some(SavedWorker { vectors, aside })
        } else {
            None
        };
        let shard = if head.shard > 0 {
            let len = head.range(head.shard as usize - 1).len();
            let mut numbers = Numbers(vec![0; 1 + head.workers as usize]);
            state::load(&mut numbers, from)?;
            let model = floats(len, from)?;
            let squares = floats(if head.has_squares == 1 { len } else { 0 }, from)?;
            let applied = numbers.0.split_off(1);
            Some(SavedShard { clock: numbers.0[0], applied, model, squares })
        } else {
            None
        };
        Ok(Self { head, worker, shard })
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::State(fault.into())
    }
}

impl SavedShard {
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
        Self { vectors, aside: aside.collect() }
    }

    /// For each push: shard, number, dense (1) or sparse (0), entries in 8 bytes each, then indices and
    /// values.
    fn aside_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (shard, step, push) in &self.aside {
            let (is_dense, indices, values) = match push {
                Aside::Sparse(entries) => (0, entries.indices(), entries.values()),
                Aside::Dense(values) => (1, &[][..], &values[..]),
            };
            for number in [*shard as u64, *step, is_dense, values.len() as u64] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            bytes.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        bytes
    }
}

/// Reads what [`SavedWorker::aside_bytes`] has written; `None` if it is something else.
fn read_aside(head: &Head, mut bytes: &[u8]) -> Option<Vec<(usize, u64, Aside)>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk::<8>()?;
            bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let (shard, step, is_dense, count) = (number()?, number()?, number()?, number()?);
        let len = if shard < head.servers { head.range(shard as usize).len() } else { return None };
        let count = usize::try_from(count).ok().filter(|count| *count <= len)?;
        let mut words = |count: usize| {
            let (words, rest) = bytes.split_at_checked(4 * count)?;
            bytes = rest;
            Some(words.as_chunks::<4>().0.to_vec())
        };
        let indices = if is_dense == 0 { words(count)? } else { Vec::new() };
        let values: Vec<f32> = words(count)?.into_iter().map(f32::from_le_bytes).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return None;
        }
        let push = match is_dense {
            0 => {
                let indices = indices.into_iter().map(u32::from_le_bytes).collect();
                Aside::Sparse(SparseVec::from_parts(len, indices, values).ok()?)
            }
            1 if count == len => Aside::Dense(values),
            _ => return None,
        };
        all.push((shard as usize, step, push));
    }
    Some(all)
}
