//! What workers of a parameter server hand in, and whether it has arrived.

use std::ops::Range;

use brevity::compress::SparseVec;
use brevity::compress::generator::Generator;
use brevity::compress::select::{TopKScratch, top_k};
use brevity::server::ServerBuilder;
use brevity::{Group, ParameterServer};

/// Tensors that share shards.
pub const LENS: [usize; 3] = [40, 7, 61];
/// All elements.
pub const TOTAL: usize = 108;

/// A list of [`LENS`].
pub fn builder(group: &Group) -> ServerBuilder {
    let tensors = LENS.iter().enumerate();
    tensors.fold(ParameterServer::builder(group), |builder, (number, len)| {
        builder.tensor(number.to_string(), [*len])
    })
}

/// Parameters of 0.
#[must_use]
pub fn zeros() -> Vec<Vec<f32>> {
    LENS.iter().map(|len| vec![0.0; *len]).collect()
}

/// Integer-valued gradients, so that all sums are exact. Equal for equal arguments.
#[must_use]
pub fn gradients(worker: u32, step: u32) -> Vec<Vec<f32>> {
    let mut generator = Generator::new(u64::from(worker) << 32 | u64::from(step));
    LENS.iter().map(|len| (0..*len).map(|_| generator.below(41) as f32 - 20.0).collect()).collect()
}

/// What a worker has handed in and not pushed.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The sum of its gradients.
    pub handed_in: Vec<f32>,
    /// Its residuals after the last push.
    pub residual: Vec<f32>,
    /// Those before it, with its gradients: the last push is the difference.
    pub before: Vec<f32>,
    /// The step after the last push.
    pub next: u32,
}

impl Default for Record {
    fn default() -> Self {
        Self { handed_in: vec![0.0; TOTAL], residual: vec![0.0; TOTAL], before: vec![0.0; TOTAL], next: 0 }
    }
}

impl Record {
    /// Pushes the gradients of a step.
    ///
    /// # Errors
    /// Those of the push.
    pub fn push(&mut self, server: &mut ParameterServer, worker: u32, step: u32) -> brevity::Result<()> {
        let gradients = gradients(worker, step);
        self.before = residual(server);
        for (index, value) in gradients.concat().into_iter().enumerate() {
            self.handed_in[index] += value;
            self.before[index] += value;
        }
        server.push(&gradients, 1.0)?;
        self.residual = residual(server);
        self.next = step + 1;
        Ok(())
    }

    /// The record as bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let next = [self.next as f32];
        let all = [&self.handed_in[..], &self.residual, &self.before, &next].concat();
        all.into_iter().flat_map(f32::to_le_bytes).collect()
    }

    /// A record that was written as bytes; an empty one if there are none.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let parts: Vec<Vec<f32>> = values.chunks_exact(TOTAL).map(<[f32]>::to_vec).collect();
        match <[Vec<f32>; 3]>::try_from(parts) {
            Ok([handed_in, residual, before]) => {
                Self { handed_in, residual, before, next: values.last().map_or(0, |next| *next as u32) }
            }
            Err(_) => Self::default(),
        }
    }

    /// The record after one more push by gradient dropping of this density to so many shards, for a worker
    /// that was killed before it could write it.
    #[must_use]
    pub fn advanced(&self, worker: u32, density: f64, shards: usize) -> Self {
        let mut next = Self { next: self.next + 1, ..self.clone() };
        for (index, value) in gradients(worker, self.next).concat().into_iter().enumerate() {
            next.handed_in[index] += value;
            next.before[index] = self.residual[index] + value;
        }
        next.residual.clone_from(&next.before);
        let mut scratch = TopKScratch::new();
        for all in lanes(shards) {
            let (k, mut pushed) = ((density * all.len() as f64).ceil() as usize, SparseVec::new(0));
            let selected = top_k(&next.before[all.clone()], k, &mut pushed, &mut scratch);
            selected.unwrap_or_else(|error| panic!("{error}"));
            pushed.iter().for_each(|(index, _)| next.residual[all.start + index as usize] = 0.0);
        }
        next
    }

    /// The last push of this record alone, for a worker whose earlier pushes are in another record.
    #[must_use]
    pub fn last(&self) -> Self {
        let last: Vec<f32> = self.before.iter().zip(&self.residual).map(|(all, left)| all - left).collect();
        Self { handed_in: last.clone(), before: last, ..Self::default() }
    }

    /// Adds what another worker has handed in, and whose residuals this one takes over.
    pub fn absorb(&mut self, other: &Self) {
        for (own, other) in [
            (&mut self.handed_in, &other.handed_in),
            (&mut self.residual, &other.residual),
            (&mut self.before, &other.before),
        ] {
            own.iter_mut().zip(other).for_each(|(own, other)| *own += other);
        }
    }

    /// What the worker has pushed; the last push of it only on those elements where it was applied.
    #[must_use]
    pub fn pushed(&self, index: usize, is_last_applied: bool) -> f32 {
        let last = self.before[index] - self.residual[index];
        self.handed_in[index] - self.residual[index] - if is_last_applied { 0.0 } else { last }
    }
}

/// The tensors, as far as each is on one of so many shards.
fn lanes(shards: usize) -> Vec<Range<usize>> {
    let tensors = LENS.iter().scan(0, |end, len| {
        *end += len;
        Some(*end)
    });
    let mut cuts: Vec<usize> = tensors.chain((0..shards).map(|shard| TOTAL * shard / shards)).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
}

/// What a worker has not pushed, of all tensors.
#[must_use]
pub fn residual(server: &ParameterServer) -> Vec<f32> {
    (0..LENS.len()).flat_map(|number| server.residual(&number.to_string()).unwrap_or_default()).collect()
}

/// Checks the model against what workers have pushed; see [`fits`].
///
/// # Panics
/// If they differ.
pub fn check_mass(model: &[f32], shards: usize, sure: &[Record], unsure: &[Record]) {
    assert!(fits(model, shards, sure, unsure), "{model:?} of {sure:?} and perhaps {unsure:?}");
}

/// Whether the model is what workers have pushed: exactly, but that the last push of each of `unsure` may be
/// applied or not, as a whole on each of the shards.
#[must_use]
pub fn fits(model: &[f32], shards: usize, sure: &[Record], unsure: &[Record]) -> bool {
    (0..shards)
        .all(|shard| fits_within(model, TOTAL * shard / shards..TOTAL * (shard + 1) / shards, sure, unsure))
}

/// The same for the elements of one shard.
#[must_use]
pub fn fits_within(model: &[f32], elements: Range<usize>, sure: &[Record], unsure: &[Record]) -> bool {
    (0..1 << unsure.len()).any(|applied: u32| {
        elements.clone().all(|index| {
            let sure: f32 = sure.iter().map(|record| record.pushed(index, true)).sum();
            let unsure = unsure.iter().enumerate();
            let unsure: f32 =
                unsure.map(|(number, record)| record.pushed(index, applied >> number & 1 == 1)).sum();
            -model[index] == sure + unsure
        })
    })
}
