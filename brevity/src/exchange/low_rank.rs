//! Tensors that travel as low-rank factors: all left factors in one message, then all right factors. Vectors,
//! which have no factors, travel with the left ones, so that they cost no message.

use brevity_collectives::low_rank::{describe, powersgd_all_reduce};
use brevity_collectives::{Call, Description, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{Batch, Factors, LowRank, PowerSgd};
use brevity_compress::state::{Reader, Writer};

use super::dense::DenseBucket;
use super::gradient::{GradientMut, for_slice};
use super::participants::Shares;
use super::room::Lacking;
use super::taking::Taking;
use super::{Ending, room};

/// Low-rank tensors that travel together.
#[derive(Default)]
pub(super) struct LowRankBucket {
    tensors: Vec<usize>,
    /// The tensors' numbers, for errors.
    numbers: Vec<u32>,
    powersgd: PowerSgd,
    /// Whether this step's gradient has been accumulated.
    added: Vec<bool>,
    factors: Factors,
    /// The generators of all tensors before the step: a step that some ranks have not come as far in leaves
    /// no trace.
    generators: Vec<Generator>,
    /// The tensors that do not shrink.
    vectors: DenseBucket,
    /// Which bucket it is, in words; nothing if there is no other.
    name: String,
}

impl LowRankBucket {
    pub(super) fn add(
        &mut self,
        tensor: usize,
        state: LowRank,
    ) -> std::result::Result<(), brevity_compress::Error> {
        self.powersgd.push(state)?;
        self.tensors.push(tensor);
        self.numbers.push(tensor as u32);
        self.added.push(false);
        Ok(())
    }

    /// Adds a tensor that travels uncompressed.
    pub(super) fn add_vector(&mut self, tensor: usize, count: usize) {
        self.vectors.add(tensor, count);
    }

    /// Names the bucket, where there are several: what is saved of it fits no other.
    pub(super) fn name(&mut self, number: usize) {
        self.name = format!(" in bucket {number}");
    }

    /// Makes room for the factors of all tensors, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        self.vectors.allocate(world_size)?;
        let (p, q) = (self.powersgd.batch().p_len(), self.powersgd.batch().q_len());
        let (p, own_q, q) = (
            room::with_room(p.saturating_add(self.vectors.count()))?,
            room::with_room(q)?,
            room::with_room(q)?,
        );
        self.factors = Factors { p, own_q, q };
        let factors = &self.factors;
        room::check(4 * (factors.p.capacity() + factors.own_q.capacity() + factors.q.capacity()))
    }

    /// The warm start of all tensors.
    pub(super) fn batch(&self) -> &Batch {
        self.powersgd.batch()
    }

    /// Goes on from a warm start of the same matrices.
    pub(super) fn set_batch(&mut self, batch: Batch) {
        *self.powersgd.batch_mut() = batch;
    }

    /// Forgets the warm start of all tensors.
    pub(super) fn restart(&mut self) {
        self.powersgd.restart();
    }

    /// Adds the gradient of a tensor of the bucket and projects it. Returns whether all sums are finite; if
    /// not, nothing is added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Some(position) = self.position(tensor) else { return self.vectors.accumulate(tensor, gradient) };
        let Self { powersgd, factors, .. } = self;
        factors.p.resize(powersgd.batch().p_len(), 0.0);
        let accumulated =
            for_slice!(Gradient, gradient, slice => powersgd.accumulate(position, slice, &mut factors.p));
        self.added[position] = accumulated.is_ok();
        self.added[position]
    }

    pub(super) fn describe(&self) -> Description {
        describe(self.powersgd.batch())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        self.generators = self.powersgd.batch().generators();
        let mut factors = std::mem::take(&mut self.factors);
        if poisoned {
            factors.p.fill(0.0);
        }
        let mut sums = self.vectors.outgoing(poisoned);
        self.factors =
            powersgd_all_reduce(call, &mut self.powersgd, factors, &self.numbers, &mut sums).await?;
        self.vectors.arrived(sums)
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        match ending {
            Ending::Done => self.commit(gradients, shares),
            Ending::Failed => self.powersgd.batch_mut().set_generators(&self.generators),
            Ending::Poisoned => {
                self.powersgd.batch_mut().set_generators(&self.generators);
                self.withdraw(gradients);
            }
        }
        self.generators.clear();
        self.added.fill(false);
        self.vectors.finish(ending, gradients, shares);
    }

    /// In the builder's order.
    pub(super) fn tensors(&self) -> Vec<usize> {
        let mut tensors: Vec<usize> = self.tensors.iter().copied().chain(self.vectors.tensors()).collect();
        tensors.sort_unstable();
        tensors
    }

    /// Writes the approximation of the mean, and keeps in the residual what this rank's own projection misses
    /// (the paper's rule).
    fn commit(&mut self, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let Self { tensors, powersgd, factors, .. } = self;
        for (position, &tensor) in tensors.iter().enumerate() {
            gradients[tensor].write_by(|average| {
                let written = powersgd.reconstruct(position, factors, average);
                debug_assert!(written.is_ok(), "the factors have their state's shape");
                shares.correct(average);
            });
        }
        let committed = powersgd.commit(factors);
        debug_assert!(committed.is_ok(), "the factors are finite and have their state's shape");
    }

    /// Takes this step's gradients out again.
    fn withdraw(&mut self, gradients: &[GradientMut<'_>]) {
        for (position, &tensor) in self.tensors.iter().enumerate() {
            if self.added[position] {
                let gradient = gradients[tensor].read();
                for_slice!(Gradient, gradient, slice => self.powersgd.withdraw(position, slice));
            }
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let dense = || Some(self.vectors.travels(tensor)? + ", with the left factors");
        self.factors_of(tensor).or_else(dense)
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        self.factors_of(tensor).or_else(|| self.vectors.keeps(tensor))
    }

    fn factors_of(&self, tensor: usize) -> Option<String> {
        let state = &self.powersgd.batch().states()[self.position(tensor)?];
        Some(format!("rank {} of {} x {}{}", state.rank(), state.rows(), state.cols(), self.name))
    }

    /// The tensors that do not shrink.
    pub(super) fn vectors(&self) -> &DenseBucket {
        &self.vectors
    }

    pub(super) fn vectors_mut(&mut self) -> &mut DenseBucket {
        &mut self.vectors
    }

    pub(super) fn write_state(&self, contents: &mut Writer) {
        contents.part(&self.powersgd);
    }

    pub(super) fn read_state(
        &mut self,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), brevity_compress::Error> {
        contents.part(&mut self.powersgd)
    }

    /// Adds what another rank has saved of all matrices.
    pub(super) fn take(&mut self, from: &mut Taking<'_>) -> std::result::Result<(), brevity_compress::Error> {
        // The warm start stays.
        from.contents().part(&mut self.powersgd.batch().clone())?;
        for (position, &tensor) in self.tensors.iter().enumerate() {
            from.begin(tensor);
            if let Some(sums) = from.sum(self.powersgd.materialise(position))? {
                self.powersgd.memories_mut()[position].restore(sums)?;
            }
        }
        Ok(())
    }

    fn position(&self, tensor: usize) -> Option<usize> {
        self.tensors.iter().position(|&known| known == tensor)
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(position) = self.position(tensor) {
            let copied = self.powersgd.memories()[position].residual_to(out);
            debug_assert!(copied.is_ok(), "{copied:?}");
        }
        self.vectors.residual_to(tensor, out);
    }
}
