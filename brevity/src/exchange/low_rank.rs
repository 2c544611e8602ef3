//! Tensors that travel as low-rank factors: all left factors in one message, then all right factors. Vectors,
//! which have no factors, travel with the left ones, so that they cost no message. In dense first steps
//! matrices travel with the vectors instead, as they are.

use std::mem;
use std::ops::Range;

use brevity_collectives::dense::{all_reduce, describe_all_reduce};
use brevity_collectives::low_rank::{describe, powersgd_all_reduce};
use brevity_collectives::{Call, Chunk, Description, Error, ReduceOp, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::generator::Generator;
use brevity_compress::low_rank::{Batch, Factors, LowRank, PowerSgd};
use brevity_compress::state::{Reader, Writer};

use super::course::after_dense_steps;
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
    /// The steps in which matrices travel whole: so many, from the first on.
    dense_steps: u64,
    /// Whether the next step is one of these.
    is_dense: bool,
    /// All matrices in such a step: those of this rank, then the sums over all ranks.
    whole: Vec<f32>,
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

    /// Lets matrices travel whole in the first steps.
    pub(super) fn set_dense_steps(&mut self, steps: u64) {
        self.dense_steps = steps;
    }

    /// The exchange has made so many steps. Returns whether something else travels from now on.
    pub(super) fn follow_steps(&mut self, steps: u64) -> bool {
        let is_dense = steps < self.dense_steps;
        if !is_dense {
            self.whole = Vec::new();
        }
        mem::replace(&mut self.is_dense, is_dense) != is_dense
    }

    /// The elements of all matrices.
    fn elements(&self) -> usize {
        self.powersgd.batch().states().iter().map(|state| state.rows() * state.cols()).sum()
    }

    /// Makes room for the factors of all tensors, and checks that there is as much to work with.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        self.vectors.allocate(world_size)?;
        if self.dense_steps > 0 {
            self.whole = room::with_room(self.elements().saturating_add(self.vectors.count()))?;
        }
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

    /// Adds the gradient of a tensor of the bucket and projects it, unless it travels whole. Returns whether
    /// all sums are finite; if not, nothing is added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Some(position) = self.position(tensor) else { return self.vectors.accumulate(tensor, gradient) };
        let Self { powersgd, factors, .. } = self;
        let accumulated = if self.is_dense {
            for_slice!(Gradient, gradient, slice => powersgd.add(position, slice))
        } else {
            factors.p.resize(powersgd.batch().p_len(), 0.0);
            for_slice!(Gradient, gradient, slice => powersgd.accumulate(position, slice, &mut factors.p))
        };
        self.added[position] = accumulated.is_ok();
        self.added[position]
    }

    pub(super) fn describe(&self) -> Description {
        if self.is_dense {
            return describe_all_reduce::<f32>(self.elements() + self.vectors.count(), ReduceOp::Sum);
        }
        describe(self.powersgd.batch())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        if self.is_dense {
            return self.exchange_whole(call, poisoned).await;
        }
        self.generators = self.powersgd.batch().generators();
        let mut factors = mem::take(&mut self.factors);
        if poisoned {
            factors.p.fill(0.0);
        }
        let mut sums = self.vectors.outgoing(poisoned);
        self.factors =
            powersgd_all_reduce(call, &mut self.powersgd, factors, &self.numbers, &mut sums).await?;
        self.vectors.arrived(sums)
    }

    /// Sums all matrices and vectors as they are.
    async fn exchange_whole(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        let (length, mut whole) = (self.elements(), mem::take(&mut self.whole));
        whole.clear();
        let memories = self.powersgd.memories();
        memories.iter().for_each(|memory| whole.extend_from_slice(memory.matrix()));
        let mut sums = self.vectors.outgoing(poisoned);
        whole.extend_from_slice(&sums);
        if poisoned {
            whole.fill(0.0);
        }
        let mut all = all_reduce(call, Chunk::from(whole), ReduceOp::Sum).await?.into_vec();
        call.check_poison()?;
        sums.copy_from_slice(&all[length..]);
        all.truncate(length);
        self.whole = all;
        // All ranks have the same bits and so take the same branch.
        let is_finite = |range: Range<usize>| self.whole[range].iter().all(|sum| sum.is_finite());
        let overflow = self.tensors.iter().zip(self.ranges()).find(|(_, range)| !is_finite(range.clone()));
        if let Some(tensor) = overflow.map(|(&tensor, _)| tensor as u32) {
            return Err(Error::Overflow { tensor });
        }
        self.vectors.arrived(sums)
    }

    /// Where each matrix is in the vector of all.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.powersgd.batch().states().iter().scan(0, |end, state| {
            let start = *end;
            *end += state.rows() * state.cols();
            Some(start..*end)
        })
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        match ending {
            Ending::Done if self.is_dense => self.deliver(gradients, shares),
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

    /// Writes the averages of matrices that have travelled whole. Nothing is left of them.
    fn deliver(&mut self, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let ranges: Vec<_> = self.ranges().collect();
        for (position, range) in ranges.into_iter().enumerate() {
            gradients[self.tensors[position]].write(&self.whole[range], |sum| shares.average(sum));
            self.powersgd.clear(position);
        }
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
        let factors = self.factors_of(tensor);
        factors.map(|words| after_dense_steps(words, self.is_dense, self.dense_steps)).or_else(dense)
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
