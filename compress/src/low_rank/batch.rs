//! The phases of many matrices, whose factors are sent together.

use super::{LowRank, Workspace};
use crate::Error;
use crate::generator::Generator;
use crate::state::{self, Fault, Reader, State, Writer};

/// An error, and the matrix of the batch that it is about.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("matrix {position} of the batch: {source}")]
pub struct MatrixError {
    /// Position in the batch.
    pub position: usize,
    /// What is wrong.
    pub source: Error,
}

/// The packed factors of all matrices of a batch, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Factors {
    /// The orthonormal left factors; the same bits on every rank.
    pub p: Vec<f32>,
    /// This rank's own right factors: `p` times their transpose is the projection of this rank's matrices.
    pub own_q: Vec<f32>,
    /// The mean of all ranks' right factors; the same bits on every rank.
    pub q: Vec<f32>,
}

/// The states of many matrices, with one shared workspace.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(super) states: Vec<LowRank>,
    /// The start of each matrix's factor in packed vectors, and the total length.
    p_starts: Vec<usize>,
    q_starts: Vec<usize>,
    origin: u64,
    pub(super) workspace: Workspace,
}

impl Batch {
    /// A batch of matrices. Their factors are packed in this order.
    pub fn new(states: Vec<LowRank>) -> Self {
        let mut batch = Self { p_starts: vec![0], q_starts: vec![0], ..Self::default() };
        states.into_iter().for_each(|state| batch.push(state));
        batch
    }

    /// Adds a matrix at the end.
    pub fn push(&mut self, state: LowRank) {
        let [p_len, q_len] = [self.p_len(), self.q_len()];
        self.p_starts.resize(self.states.len() + 1, p_len);
        self.q_starts.resize(self.states.len() + 1, q_len);
        self.p_starts.push(p_len + state.p_len());
        self.q_starts.push(q_len + state.q_len());
        self.states.push(state);
    }

    /// The states, in order.
    pub fn states(&self) -> &[LowRank] {
        &self.states
    }

    /// How the states began: 0 for seeds, otherwise a checksum of the saved state that was loaded last. Ranks
    /// stay together only if they have the same origin.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// Sets the origin of states that were taken from another rank, to that rank's.
    pub fn set_origin(&mut self, origin: u64) {
        self.origin = origin;
    }

    /// The generators of all matrices.
    pub fn generators(&self) -> Vec<Generator> {
        self.states.iter().map(|state| state.generator().clone()).collect()
    }

    /// Sets the generators of the first matrices back to what [`generators`](Self::generators) gave.
    pub fn set_generators(&mut self, generators: &[Generator]) {
        let states = self.states.iter_mut().zip(generators);
        states.for_each(|(state, generator)| state.set_generator(generator.clone()));
    }

    /// [`LowRank::restart`] for all matrices.
    pub fn restart(&mut self) {
        self.states.iter_mut().for_each(LowRank::restart);
        self.origin = 0;
    }

    /// Elements of all left factors.
    pub fn p_len(&self) -> usize {
        self.p_starts.last().copied().unwrap_or(0)
    }

    /// Elements of all right factors.
    pub fn q_len(&self) -> usize {
        self.q_starts.last().copied().unwrap_or(0)
    }

    /// The range of a matrix's left factor in packed factors.
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn p_range(&self, position: usize) -> std::ops::Range<usize> {
        self.p_starts[position]..self.p_starts[position + 1]
    }

    /// The range of a matrix's right factor in packed factors.
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn q_range(&self, position: usize) -> std::ops::Range<usize> {
        self.q_starts[position]..self.q_starts[position + 1]
    }

    /// The first matrix for which `P Q^T` may not be finite, for packed factors: by the
    /// [bound](super::largest_product) of its elements, so that huge ones may be named that are finite. Cost:
    /// one read of the factors.
    ///
    /// # Panics
    /// If the factors have not the batch's lengths.
    pub fn first_overflow(&self, p: &[f32], q: &[f32]) -> Option<usize> {
        let mut states = self.states.iter().enumerate();
        let overflows = |(position, state): &(usize, &LowRank)| {
            !state.fits(&p[self.p_range(*position)], &q[self.q_range(*position)])
        };
        states.find(overflows).map(|(position, _)| position)
    }

    /// [`LowRank::left_factor`] for all matrices, into packed `p`. Cost: one read of all matrices.
    ///
    /// # Errors
    /// The error of the first matrix that has one; [`Error::LengthMismatch`] for a list of another length.
    /// `p` is unspecified then.
    pub fn left_factors(&mut self, matrices: &[&[f32]], p: &mut [f32]) -> Result<(), MatrixError> {
        self.check(matrices.len(), self.p_len(), p.len())?;
        for (position, (state, m)) in self.states.iter().zip(matrices).enumerate() {
            let p = &mut p[self.p_starts[position]..self.p_starts[position + 1]];
            state.left_factor(m, p, &mut self.workspace).map_err(at(position))?;
        }
        Ok(())
    }

    /// [`LowRank::orthonormalise`] for all matrices, in packed `p`.
    ///
    /// # Errors
    /// The error of the first matrix that has one. It is the same on all ranks if `p` is.
    pub fn orthonormalise(&mut self, p: &mut [f32]) -> Result<(), MatrixError> {
        self.check(self.states.len(), self.p_len(), p.len())?;
        for (position, state) in self.states.iter_mut().enumerate() {
            let p = &mut p[self.p_starts[position]..self.p_starts[position + 1]];
            state.orthonormalise(p, &mut self.workspace).map_err(at(position))?;
        }
        Ok(())
    }

    /// [`LowRank::right_factor`] for all matrices, into packed `q`. Cost: one read of all matrices.
    ///
    /// # Errors
    /// The same as for [`left_factors`](Self::left_factors), with `q` instead of `p`.
    pub fn right_factors(
        &mut self,
        matrices: &[&[f32]],
        p: &[f32],
        q: &mut [f32],
    ) -> Result<(), MatrixError> {
        self.check(matrices.len(), self.p_len(), p.len())?;
        for (position, m) in matrices.iter().enumerate() {
            self.right_factor(position, m, p, q)?;
        }
        Ok(())
    }

    /// [`LowRank::right_factor`] of one matrix, on packed factors.
    pub(super) fn right_factor(
        &mut self,
        position: usize,
        m: &[f32],
        p: &[f32],
        q: &mut [f32],
    ) -> Result<(), MatrixError> {
        self.check(self.states.len(), self.q_len(), q.len())?;
        let (p, q) = (&p[self.p_range(position)], &mut q[self.q_range(position)]);
        self.states[position].right_factor(m, p, q, &mut self.workspace).map_err(at(position))
    }

    /// [`LowRank::reconstruct`] of one matrix, from the packed left factors and the packed mean of the right
    /// factors.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::LengthMismatch`].
    ///
    /// # Panics
    /// If the batch has no matrix at `position`.
    pub fn reconstruct(
        &mut self,
        position: usize,
        factors: &Factors,
        out: &mut [f32],
    ) -> Result<(), MatrixError> {
        self.check_factors(factors)?;
        let (p, q) = (&factors.p[self.p_range(position)], &factors.q[self.q_range(position)]);
        self.states[position].reconstruct(p, q, out, &mut self.workspace).map_err(at(position))
    }

    /// [`LowRank::set_q`] for all matrices, from the packed mean.
    ///
    /// # Errors
    /// The error of the first matrix that has one; the matrices before it have their new `Q` already.
    pub fn set_q(&mut self, q: &[f32]) -> Result<(), MatrixError> {
        self.check(self.states.len(), self.q_len(), q.len())?;
        for (position, state) in self.states.iter_mut().enumerate() {
            state.set_q(&q[self.q_starts[position]..self.q_starts[position + 1]]).map_err(at(position))?;
        }
        Ok(())
    }

    /// Fails unless the packed factors have the batch's lengths.
    pub(super) fn check_factors(&self, factors: &Factors) -> Result<(), MatrixError> {
        self.check(self.states.len(), self.p_len(), factors.p.len())?;
        self.check(self.states.len(), self.q_len(), factors.own_q.len())?;
        self.check(self.states.len(), self.q_len(), factors.q.len())
    }

    fn check(&self, matrices: usize, expected: usize, found: usize) -> Result<(), MatrixError> {
        let position = matrices.min(self.states.len()).saturating_sub(1);
        crate::error::check_length(self.states.len(), matrices).map_err(at(position))?;
        crate::error::check_length(expected, found).map_err(at(position))
    }
}

/// All matrices' right factors and generators. The shapes of all matrices are compared before any matrix
/// changes.
impl State for Batch {
    fn kind(&self) -> [u8; 4] {
        *b"lrba"
    }

    /// The number of matrices and the lengths of all left and of all right factors.
    fn shape(&self) -> Vec<u64> {
        [self.states.len(), self.p_len(), self.q_len()].map(|length| length as u64).to_vec()
    }

    fn write_contents(&self, contents: &mut Writer) {
        self.states.iter().flat_map(LowRank::dimensions).for_each(|number| contents.u64(number));
        self.states.iter().for_each(|state| contents.part(state));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        for (position, state) in self.states.iter().enumerate() {
            let (found, expected) = ([contents.u64()?, contents.u64()?, contents.u64()?], state.dimensions());
            if found != expected {
                let shown = |[rows, cols, rank]: [u64; 3]| {
                    format!("matrix {position} of {rows} x {cols} at rank {rank}")
                };
                return Err(Fault::Part { found: shown(found), expected: shown(expected) }.into());
            }
        }
        self.states.iter_mut().try_for_each(|state| contents.part(state))?;
        // The last four bytes are the checksum of the contents: 32 bits. A bit above them is set so that the
        // origin is never 0.
        let checksum = state::to_bytes(self).last_chunk().map_or(0, |&bytes| u32::from_le_bytes(bytes));
        self.origin = 1 << 32 | u64::from(checksum);
        Ok(())
    }
}

/// Attaches a matrix's position to its error.
fn at(position: usize) -> impl Fn(Error) -> MatrixError {
    move |source| MatrixError { position, source }
}
