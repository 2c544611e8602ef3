//! Matrices of which a random projection travels, unbiased and without feedback. All ranks draw the same
//! projection, so it is one all-reduce. Vectors travel in the same message.

use std::mem;
use std::ops::Range;

use brevity_collectives::dense::all_reduce;
use brevity_collectives::{Call, Chunk, Description, Error, Operation, ReduceOp, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::low_rank::{UnbiasedLowRank, Workspace, largest_product};
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Error as Compress, in_standard_float_mode};

use super::dense::DenseBucket;
use super::gradient::GradientMut;
use super::participants::Shares;
use super::pending::Pending;
use super::room::Lacking;
use super::taking::Taking;
use super::{Ending, room};

/// Matrices that travel together, and the vectors that travel with them.
#[derive(Default)]
pub(super) struct UnbiasedBucket {
    matrices: Vec<Matrix>,
    vectors: DenseBucket,
    /// The left factors of all matrices: those of this rank, then the sums over all ranks.
    factors: Vec<f32>,
    /// The steps that were done: each has another projection.
    step: u64,
    /// The step that was loaded. Ranks stay together only if they have the same one.
    origin: u64,
    /// Whether the projection of this step has been drawn.
    is_drawn: bool,
    workspace: Workspace,
}

struct Matrix {
    tensor: usize,
    state: UnbiasedLowRank,
    /// Its part of the factors.
    range: Range<usize>,
    pending: Pending,
}

impl UnbiasedBucket {
    pub(super) fn add(
        &mut self,
        tensor: usize,
        state: UnbiasedLowRank,
        count: usize,
    ) -> std::result::Result<(), Lacking> {
        let start = self.matrices.last().map_or(0, |matrix| matrix.range.end);
        let range = start..start + state.p_len();
        self.matrices.push(Matrix { tensor, state, range, pending: Pending::new(count)? });
        Ok(())
    }

    /// Adds a tensor that travels uncompressed.
    pub(super) fn add_vector(&mut self, tensor: usize, count: usize) {
        self.vectors.add(tensor, count);
    }

    /// Makes room for what is sent, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        self.vectors.allocate(world_size)?;
        self.factors = room::with_room(self.message_len())?;
        room::check(4 * self.factors.capacity())
    }

    /// The elements of the left factors.
    fn factors_len(&self) -> usize {
        self.matrices.last().map_or(0, |matrix| matrix.range.end)
    }

    fn message_len(&self) -> usize {
        self.factors_len().saturating_add(self.vectors.count())
    }

    /// Starts the projections again from the seed.
    pub(super) fn restart(&mut self) {
        (self.step, self.origin, self.is_drawn) = (0, 0, false);
    }

    /// The step, and the one that was loaded.
    pub(super) fn projection(&self) -> (u64, u64) {
        (self.step, self.origin)
    }

    /// Goes on with the projections of a step.
    pub(super) fn resume(&mut self, (step, origin): (u64, u64)) {
        (self.step, self.origin, self.is_drawn) = (step, origin, false);
    }

    /// In the builder's order.
    pub(super) fn tensors(&self) -> Vec<usize> {
        let matrices = self.matrices.iter().map(|matrix| matrix.tensor);
        let mut tensors: Vec<usize> = matrices.chain(self.vectors.tensors()).collect();
        tensors.sort_unstable();
        tensors
    }

    fn matrix(&self, tensor: usize) -> Option<&Matrix> {
        self.matrices.iter().find(|matrix| matrix.tensor == tensor)
    }

    /// Adds the gradient of a tensor of the bucket and projects it. Returns whether all sums are finite; if
    /// not, nothing is added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let length = self.factors_len();
        let Self { matrices, factors, step, is_drawn, workspace, .. } = self;
        if !mem::replace(is_drawn, true) {
            matrices.iter_mut().for_each(|matrix| matrix.state.draw_for(*step, workspace));
        }
        let Some(matrix) = matrices.iter_mut().find(|matrix| matrix.tensor == tensor) else {
            return self.vectors.accumulate(tensor, gradient);
        };
        factors.resize(length, 0.0);
        if !matrix.pending.add(gradient) {
            return false;
        }
        let left = &mut factors[matrix.range.clone()];
        let is_finite = matrix.state.compress(matrix.pending.values(), left, workspace).is_ok();
        if !is_finite {
            matrix.pending.withdraw(gradient);
        }
        is_finite
    }

    pub(super) fn describe(&self) -> Description {
        let seeds = self.matrices.iter().map(|matrix| matrix.state.seed());
        let words = seeds.chain([self.message_len() as u64, self.origin]);
        let plan: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        Description::of_plan(Operation::ALL_REDUCE, &plan)
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        let length = self.factors_len();
        let mut message = mem::take(&mut self.factors);
        message.resize(length, 0.0);
        if poisoned {
            message.fill(0.0);
        }
        let mut sums = self.vectors.outgoing(poisoned);
        message.extend_from_slice(&sums);
        let mut all = all_reduce(call, Chunk::from(message), ReduceOp::Sum).await?.into_vec();
        call.check_poison()?;
        sums.copy_from_slice(&all[length..]);
        all.truncate(length);
        self.factors = all;
        // All ranks have the same bits and so take the same branch.
        let overflows = |matrix: &&Matrix| !matrix.fits(&self.factors[matrix.range.clone()]);
        if let Some(matrix) = in_standard_float_mode(|| self.matrices.iter().find(overflows)) {
            return Err(Error::Overflow { tensor: matrix.tensor as u32 });
        }
        self.vectors.arrived(sums)
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let Self { matrices, factors, workspace, .. } = self;
        for matrix in matrices {
            match ending {
                Ending::Done => {
                    let factors = &mut factors[matrix.range.clone()];
                    factors.iter_mut().for_each(|value| *value = shares.average(*value));
                    gradients[matrix.tensor].write_by(|average| {
                        let written = matrix.state.reconstruct(factors, average, workspace);
                        debug_assert!(written.is_ok(), "{written:?}");
                    });
                    matrix.pending.clear();
                }
                Ending::Failed => matrix.pending.keep(),
                Ending::Poisoned => matrix.pending.withdraw(gradients[matrix.tensor].read()),
            }
        }
        if let Ending::Done = ending {
            self.step = self.step.wrapping_add(1);
            self.is_drawn = false;
        }
        self.vectors.finish(ending, gradients, shares);
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let dense = || Some(self.vectors.travels(tensor)? + ", with the left factors");
        let factors = |matrix: &Matrix| {
            let [rows, cols, rank] = matrix.state.dimensions();
            format!("unbiased rank {rank} of {rows} x {cols}{}", from_step(self.origin))
        };
        self.matrix(tensor).map(factors).or_else(dense)
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        let unbiased = self.matrix(tensor).map(|_| "unbiased low rank".to_owned());
        unbiased.or_else(|| self.vectors.keeps(tensor))
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(matrix) = self.matrix(tensor) {
            contents.u64(self.step);
            contents.f32s(matrix.pending.values());
        }
        self.vectors.write_state(tensor, contents);
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        let Self { matrices, step, origin, is_drawn, .. } = self;
        if let Some(matrix) = matrices.iter_mut().find(|matrix| matrix.tensor == tensor) {
            // The same of all matrices.
            *step = contents.u64()?;
            (*origin, *is_drawn) = (*step, false);
            matrix.pending.load(|values| contents.f32s(values))?;
        }
        self.vectors.read_state(tensor, contents)
    }

    /// Adds what another rank has saved of a tensor. The step stays.
    pub(super) fn take(&mut self, tensor: usize, from: &mut Taking<'_>) -> std::result::Result<(), Compress> {
        if let Some(matrix) = self.matrices.iter_mut().find(|matrix| matrix.tensor == tensor) {
            from.contents().u64()?;
            matrix.pending.take(from)?;
        }
        self.vectors.take(tensor, from)
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(matrix) = self.matrix(tensor) {
            out.copy_from_slice(matrix.pending.values());
        }
        self.vectors.residual_to(tensor, out);
    }
}

impl Matrix {
    /// Whether what these sums reconstruct to is finite.
    fn fits(&self, sums: &[f32]) -> bool {
        let [.., rank] = self.state.dimensions();
        largest_product(sums, self.state.u(), rank) <= f64::from(f32::MAX)
    }
}

/// The step that was loaded, in words that follow others.
pub(super) fn from_step(origin: u64) -> String {
    if origin == 0 { String::new() } else { format!(", from step {origin}") }
}
