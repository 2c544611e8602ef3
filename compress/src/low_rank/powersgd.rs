//! PowerSGD of many matrices, with error feedback.

use super::{Batch, ErrorMemory, Factors, LowRank, MatrixError};
use crate::Error;
use crate::dense::Element;
use crate::state::{Reader, State, Writer};

/// What a rank counts as delivered of its matrix; the rest stays as its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorRule {
    /// Its own projection, `P P^T M`: the rule of the paper. Errors stay as small as the projection leaves
    /// them.
    #[default]
    Own,
    /// The approximation of the mean of all ranks: the rule of the authors' program. In exact arithmetic the
    /// ranks' errors have the same mean, but each rank's own error drifts away and drowns small gradients in
    /// rounding. An error may overflow where other ranks' matrices are huge; nothing checks that.
    Global,
}

/// A batch of matrices with their error memories. The caller averages the factors over all ranks.
///
/// A step is: [`accumulate`](Self::accumulate) for each matrix, which fills its part of the packed left
/// factors; average these; [`Batch::orthonormalise`]; [`right_factors`](Self::right_factors); average these;
/// [`reconstruct`](Self::reconstruct) for each matrix; [`commit`](Self::commit). A step may be given up after
/// `accumulate`: simply stop to keep everything for later, or [`withdraw`](Self::withdraw) its gradients.
#[derive(Debug, Clone, Default)]
pub struct PowerSgd {
    batch: Batch,
    memories: Vec<ErrorMemory>,
    rule: ErrorRule,
}

impl PowerSgd {
    /// A batch with empty memories.
    pub fn new(batch: Batch, rule: ErrorRule) -> Self {
        let memories = batch.states().iter().map(ErrorMemory::new).collect();
        Self { batch, memories, rule }
    }

    /// Adds a matrix at the end, with an empty memory.
    ///
    /// # Errors
    /// [`Error::Memory`]; nothing has changed then.
    pub fn push(&mut self, state: LowRank) -> Result<(), Error> {
        self.memories.push(ErrorMemory::try_new(&state)?);
        self.batch.push(state);
        Ok(())
    }

    /// The states.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The states, for orthonormalising.
    pub fn batch_mut(&mut self) -> &mut Batch {
        &mut self.batch
    }

    /// [`ErrorMemory::accumulate`] of one matrix, into its part of the packed `p`.
    ///
    /// # Errors
    /// The same as for [`ErrorMemory::accumulate`]; [`Error::LengthMismatch`] if `p` has another length than
    /// the batch's: nothing has changed.
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn accumulate<G: Element>(
        &mut self,
        position: usize,
        gradient: &[G],
        p: &mut [f32],
    ) -> Result<(), Error> {
        crate::error::check_length(self.batch.p_len(), p.len())?;
        let p = &mut p[self.batch.p_range(position)];
        let Batch { states, workspace, .. } = &mut self.batch;
        self.memories[position].accumulate(&states[position], gradient, p, workspace)
    }

    /// [`ErrorMemory::add`] for one matrix: it travels whole in this step, which [`clear`](Self::clear) ends.
    ///
    /// # Errors
    /// The same as for [`ErrorMemory::add`].
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn add<G: Element>(&mut self, position: usize, gradient: &[G]) -> Result<(), Error> {
        let Batch { states, workspace, .. } = &mut self.batch;
        self.memories[position].add(&states[position], gradient, workspace)
    }

    /// [`ErrorMemory::clear`] for one matrix. Its warm start stays.
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn clear(&mut self, position: usize) {
        self.memories[position].clear();
    }

    /// The right factors of all memories' matrices for the packed left factors `p`, written to packed `q`.
    /// Cost: one read of all matrices, and another one of those whose factors are huge.
    ///
    /// # Errors
    /// The same as for [`Batch::right_factors`]; [`Error::NonFinite`] also for the first matrix of which
    /// `P Q^T`, or what it leaves of the matrix, may not be finite.
    pub fn right_factors(&mut self, p: &[f32], q: &mut [f32]) -> Result<(), MatrixError> {
        for (position, memory) in self.memories.iter_mut().enumerate() {
            let Batch { states, workspace, .. } = &mut self.batch;
            let m = memory.materialise(&states[position], workspace);
            self.batch.right_factor(position, m, p, q)?;
            let (p, q) = (&p[self.batch.p_range(position)], &q[self.batch.q_range(position)]);
            if !self.batch.states[position].leaves_finite(m, p, q) {
                let source = Error::NonFinite { index: 0, value: f32::INFINITY };
                return Err(MatrixError { position, source });
            }
        }
        Ok(())
    }

    /// The approximation of the mean of all ranks' matrices at `position`: see [`Batch::reconstruct`].
    ///
    /// # Errors
    /// The same as for [`Batch::reconstruct`].
    ///
    /// # Panics
    /// The same as for [`Batch::reconstruct`].
    pub fn reconstruct(
        &mut self,
        position: usize,
        factors: &Factors,
        out: &mut [f32],
    ) -> Result<(), MatrixError> {
        self.batch.reconstruct(position, factors, out)
    }

    /// Ends a step whose factors were delivered: keeps what the rule counts as not delivered, and starts the
    /// next step from the mean. Cost: a copy of the factors.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`]; [`Error::NonFinite`] for the first matrix whose factors are not finite: the
    /// matrices before it are committed then.
    pub fn commit(&mut self, factors: &Factors) -> Result<(), MatrixError> {
        self.batch.check_factors(factors)?;
        let delivered = match self.rule {
            ErrorRule::Own => &factors.own_q,
            ErrorRule::Global => &factors.q,
        };
        for (position, memory) in self.memories.iter_mut().enumerate() {
            let (p, q) = (&factors.p[self.batch.p_range(position)], &delivered[self.batch.q_range(position)]);
            let Batch { states, workspace, .. } = &mut self.batch;
            let committed = memory.commit(&states[position], p, q, workspace);
            committed.map_err(|source| MatrixError { position, source })?;
        }
        self.batch.set_q(&factors.q)
    }

    /// [`ErrorMemory::withdraw`] of one matrix.
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn withdraw<G: Element>(&mut self, position: usize, gradient: &[G]) {
        self.memories[position].withdraw(gradient);
    }

    /// A copy of what one matrix has not delivered on this rank: see [`ErrorMemory::residual`].
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn residual(&self, position: usize) -> Vec<f32> {
        self.memories[position].residual()
    }

    /// The residual of one matrix in place: see [`ErrorMemory::materialise`].
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn materialise(&mut self, position: usize) -> &[f32] {
        let Batch { states, workspace, .. } = &mut self.batch;
        self.memories[position].materialise(&states[position], workspace)
    }

    /// The error memories, in order.
    pub fn memories(&self) -> &[ErrorMemory] {
        &self.memories
    }

    /// The error memories, for loading saved ones.
    pub fn memories_mut(&mut self) -> &mut [ErrorMemory] {
        &mut self.memories
    }

    /// Forgets the warm start of all matrices and keeps their errors. Survivors of a lost rank need it,
    /// because they may be a step apart.
    pub fn restart(&mut self) {
        self.batch.restart();
    }
}

/// Saves the batch, and what each matrix has not delivered: see [`ErrorMemory`].
impl State for PowerSgd {
    fn kind(&self) -> [u8; 4] {
        *b"psgd"
    }

    fn shape(&self) -> Vec<u64> {
        let elements = self.batch.states().iter().map(|state| (state.rows() * state.cols()) as u64).sum();
        [self.batch.shape(), vec![elements]].concat()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.batch);
        self.memories.iter().for_each(|memory| contents.part(memory));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.batch)?;
        self.memories.iter_mut().try_for_each(|memory| contents.part(memory))
    }
}
