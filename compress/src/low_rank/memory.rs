//! Error feedback of one matrix, with the subtraction deferred.

use super::{LowRank, Workspace, check_product, check_shape};
use crate::bits::check_finite;
use crate::dense::{Element, accumulate, first_infinite_sum, take_out};
use crate::simd::Level;
use crate::simd::low_rank::{self as kernels, Accumulation, Product, Shape, Tile, Tiles};
use crate::state::{Reader, State, Writer};
use crate::{Error, in_standard_float_mode, room};

/// What one matrix has not delivered on this rank: `M`. The factors of the last step may still have to be
/// subtracted from it.
///
/// [`accumulate`](Self::accumulate) subtracts them in its own pass. The result has the same bits as if
/// [`materialise`](Self::materialise) had been called before, so a memory may be read, saved or loaded
/// without changing later results.
#[derive(Debug, Clone)]
pub struct ErrorMemory {
    rows: usize,
    shape: Shape,
    m: Vec<f32>,
    /// The factors of the last step, valid if `is_pending`.
    p: Vec<f32>,
    q: Vec<f32>,
    is_pending: bool,
}

impl ErrorMemory {
    /// An empty memory for a state's matrix.
    ///
    /// # Panics
    /// If the system has no memory for it; [`try_new`](Self::try_new) fails then.
    pub fn new(state: &LowRank) -> Self {
        Self::try_new(state).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`new`](Self::new), for a matrix that there may be no memory for.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn try_new(state: &LowRank) -> Result<Self, Error> {
        Ok(Self {
            rows: state.rows(),
            shape: state.shape(),
            m: room::zeros(state.rows() * state.cols())?,
            p: room::zeros(state.p_len())?,
            q: room::zeros(state.q_len())?,
            is_pending: false,
        })
    }

    /// `M = (M - P' Q'^T) + gradient`, where `P'` and `Q'` are the factors committed last, then `P = M Q`.
    /// Cost: one pass that reads the gradient and `M` and writes `M`; `4 * rows * cols * rank` operations.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]: nothing has changed. [`Error::NonFinite`] for the first element of the sum,
    /// otherwise of `P`, that is not finite: the gradient has been taken out again, up to rounding, and `p`
    /// is unspecified.
    pub fn accumulate<G: Element>(
        &mut self,
        state: &LowRank,
        gradient: &[G],
        p: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        check_shape("the gradient", state.rows(), state.cols(), gradient.len())?;
        check_shape("P", state.rows(), state.rank(), p.len())?;
        self.check_state(state)?;
        let pending = self.is_pending.then_some(Product { p: &self.p, q: &self.q });
        let terms = Accumulation { gradient, pending, q: state.q(), shape: state.shape() };
        let outcome = kernels::accumulate(Level::best(), &mut self.m, terms, p, workspace);
        self.is_pending = false;
        match outcome {
            Err(stopped) => {
                self.subtract_before(stopped, state.cols(), gradient);
                Err(self.first_non_finite(gradient, p))
            }
            // The sums of the single tiles were finite; the total may not be.
            Ok(()) => check_product(&self.m, p).inspect_err(|_| self.withdraw(gradient)),
        }
    }

    /// `M = (M - P' Q'^T) + gradient` without a projection, for a step in which the whole matrix travels;
    /// [`clear`](Self::clear) ends it. Cost: one pass that reads the gradient and `M` and writes `M`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]: nothing has changed. [`Error::NonFinite`] for the first sum that is not
    /// finite: the gradient has been taken out again, up to rounding.
    pub fn add<G: Element>(
        &mut self,
        state: &LowRank,
        gradient: &[G],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        check_shape("the gradient", state.rows(), state.cols(), gradient.len())?;
        self.check_state(state)?;
        self.materialise(state, workspace);
        accumulate(&mut self.m, gradient)
    }

    /// Records that all of `M` has been delivered.
    pub fn clear(&mut self) {
        self.m.fill(0.0);
        self.is_pending = false;
    }

    /// `M` as it is compressed: the result of [`accumulate`](Self::accumulate). After
    /// [`commit`](Self::commit) it differs from the residual: see [`materialise`](Self::materialise).
    pub fn matrix(&self) -> &[f32] {
        &self.m
    }

    /// Records that `P Q^T` has been delivered. `q` is this rank's own for the paper's rule, the mean of all
    /// ranks' for the other rule. Do not call it for a failed step: `M` then stays and is sent later.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn commit(
        &mut self,
        state: &LowRank,
        p: &[f32],
        q: &[f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        self.check_state(state)?;
        state.check_factors(p, q)?;
        check_finite(p)?;
        check_finite(q)?;
        self.materialise(state, workspace);
        self.p.copy_from_slice(p);
        self.q.copy_from_slice(q);
        self.is_pending = true;
        Ok(())
    }

    /// Takes an accumulated gradient out again: `M -= gradient`. `M` is restored up to rounding.
    pub fn withdraw<G: Element>(&mut self, gradient: &[G]) {
        take_out(Level::best(), &mut self.m, gradient);
    }

    /// Subtracts pending factors; the matrix is the residual then. Cost: one read and write of `M` if factors
    /// are pending, otherwise nothing.
    pub fn materialise(&mut self, state: &LowRank, workspace: &mut Workspace) -> &[f32] {
        if self.is_pending {
            let product = Product { p: &self.p, q: &self.q };
            kernels::add_product(Level::best(), &mut self.m, product, -1.0, state.shape(), workspace);
            self.is_pending = false;
        }
        &self.m
    }

    /// A copy of what [`materialise`](Self::materialise) leaves in the standard floating-point mode.
    pub fn residual(&self) -> Vec<f32> {
        let mut residual = self.m.clone();
        self.subtract_pending(&mut residual);
        residual
    }

    /// Like [`residual`](Self::residual), into `out`.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`].
    pub fn residual_to(&self, out: &mut [f32]) -> Result<(), Error> {
        crate::error::check_length(self.m.len(), out.len())?;
        out.copy_from_slice(&self.m);
        self.subtract_pending(out);
        Ok(())
    }

    fn subtract_pending(&self, m: &mut [f32]) {
        if self.is_pending {
            let (product, mut workspace) = (Product { p: &self.p, q: &self.q }, Workspace::default());
            in_standard_float_mode(|| {
                kernels::add_product(Level::best(), m, product, -1.0, self.shape, &mut workspace)
            });
        }
    }

    /// Replaces the memory by a saved residual.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::NonFinite`]; nothing has changed then.
    pub fn restore(&mut self, residual: &[f32]) -> Result<(), Error> {
        crate::error::check_length(self.m.len(), residual.len())?;
        check_finite(residual)?;
        self.m.copy_from_slice(residual);
        self.is_pending = false;
        Ok(())
    }

    /// Fails unless the state has this memory's shape and rank.
    fn check_state(&self, state: &LowRank) -> Result<(), Error> {
        check_shape("the error memory", state.rows(), state.cols(), self.m.len())?;
        check_shape("P of the error memory", state.rows(), state.rank(), self.p.len())?;
        check_shape("Q of the error memory", state.cols(), state.rank(), self.q.len())
    }

    /// Takes the gradient out of the tiles before `stopped`.
    fn subtract_before<G: Element>(&mut self, stopped: Tile, cols: usize, gradient: &[G]) {
        for tile in Tiles::new(self.m.len(), cols).take_while(|&tile| tile != stopped) {
            for row in tile.row..tile.row + tile.height {
                let part = row * cols + tile.column..row * cols + tile.column + tile.width;
                take_out(Level::best(), &mut self.m[part.clone()], &gradient[part]);
            }
        }
    }

    /// Finds why accumulating stopped, with the gradient taken out again.
    fn first_non_finite<G: Element>(&self, gradient: &[G], p: &[f32]) -> Error {
        first_infinite_sum(&self.m, gradient)
            .or_else(|| check_finite(p).err())
            // The sums of the tile were not finite, but did not reach `p`.
            .unwrap_or(Error::NonFinite { index: 0, value: f32::INFINITY })
    }
}

/// Saves the residual, with nothing left to subtract. A step that was accumulated but not committed counts as
/// not delivered. The state fits any rank `r`.
impl State for ErrorMemory {
    fn kind(&self) -> [u8; 4] {
        *b"lrem"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.rows as u64, self.shape.cols as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.computed_f32s(self.m.len(), || {
            let mut residual = room::zeros(self.m.len())?;
            self.residual_to(&mut residual).map(|()| residual)
        });
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        self.is_pending = false;
        contents.f32s(&mut self.m)
    }
}
