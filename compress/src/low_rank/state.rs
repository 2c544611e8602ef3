//! The state of one matrix, and the phases of a step.

use super::{
    Workspace, check_product, check_shape, largest_magnitude, largest_product, orthonormalise, with_roundings,
};
use crate::bits::{check_finite, largest_finite};
use crate::generator::Generator;
use crate::simd::Level;
use crate::simd::low_rank::{self as kernels, Product, Shape};
use crate::state::{Reader, State, Writer};
use crate::{Error, in_standard_float_mode, room};

/// The state of one matrix between steps: its shape, `Q`, and the generator that all ranks share.
#[derive(Debug, Clone)]
pub struct LowRank {
    rows: usize,
    cols: usize,
    rank: usize,
    seed: u64,
    q: Vec<f32>,
    generator: Generator,
}

impl LowRank {
    /// Draws `Q` from the standard normal distribution by `seed`, which all ranks share. Lowers the rank to
    /// `min(rows, cols)` if that is less.
    ///
    /// # Errors
    /// [`Error::MatrixTooLarge`] if `rows * cols` overflows; [`Error::Memory`].
    pub fn new(rows: usize, cols: usize, rank: usize, seed: u64) -> Result<Self, Error> {
        rows.checked_mul(cols).ok_or(Error::MatrixTooLarge { rows, cols })?;
        let rank = rank.min(rows).min(cols);
        let q = room::zeros(cols * rank)?;
        let mut state = Self { rows, cols, rank, seed, q, generator: Generator::new(seed) };
        state.restart();
        Ok(state)
    }

    /// Forgets the warm start: sets `Q` and the generator back to their initial state, independently of the
    /// thread's floating-point mode.
    pub fn restart(&mut self) {
        self.generator = Generator::new(self.seed);
        in_standard_float_mode(|| self.generator.fill_normal(&mut self.q));
    }

    /// Continues from a saved [`q`](Self::q) and [`generator`](Self::generator).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; the state is unchanged then.
    pub fn restore(&mut self, q: &[f32], generator: Generator) -> Result<(), Error> {
        check_shape("Q", self.cols, self.rank, q.len())?;
        check_finite(q)?;
        self.q.copy_from_slice(q);
        self.generator = generator;
        Ok(())
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rank in use.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The seed of its random numbers, to which [`restart`](Self::restart) returns.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Elements of `P`.
    pub fn p_len(&self) -> usize {
        self.rows * self.rank
    }

    /// Elements of `Q`.
    pub fn q_len(&self) -> usize {
        self.cols * self.rank
    }

    /// The current `Q`, `cols x rank`.
    pub fn q(&self) -> &[f32] {
        &self.q
    }

    pub(super) fn set_generator(&mut self, generator: Generator) {
        self.generator = generator;
    }

    /// The generator for redrawn columns, for saving.
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// `P = M Q`. Cost: one read of `m`, `2 * rows * cols * rank` operations.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::NonFinite`] for the first element of `m`, otherwise of the product,
    /// that is not finite: `p` is unspecified then.
    pub fn left_factor(&self, m: &[f32], p: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        check_shape("P", self.rows, self.rank, p.len())?;
        kernels::multiply(Level::best(), m, &self.q, self.shape(), p, workspace);
        check_product(m, p)
    }

    /// Makes the columns of `p` orthonormal. Columns that are zero or depend on earlier ones are replaced by
    /// random ones from the shared generator, so the result never contains a NaN.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; `p` is unchanged then.
    pub fn orthonormalise(&mut self, p: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        orthonormalise(p, self.rows, self.rank, &mut self.generator, workspace)
    }

    /// `Q = M^T P`, written to `q_out`. The state keeps its own `Q` until [`set_q`](Self::set_q).
    ///
    /// # Errors
    /// The same as for [`left_factor`](Self::left_factor), with `q_out` instead of `p`.
    pub fn right_factor(
        &self,
        m: &[f32],
        p: &[f32],
        q_out: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        self.check_factors(p, q_out)?;
        kernels::multiply_transposed(Level::best(), m, p, self.shape(), q_out, workspace);
        check_product(m, q_out)
    }

    /// Sets `q`, the average of all ranks, as the start of the next step.
    ///
    /// It is scaled by the power of two that brings its largest magnitude to between one and two. So the next
    /// `M Q` stays in range for tiny and huge matrices, and spans the same space bit for bit.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; the state is unchanged then.
    pub fn set_q(&mut self, q: &[f32]) -> Result<(), Error> {
        check_shape("Q", self.cols, self.rank, q.len())?;
        let factor = reciprocal_power_of_two(largest_finite(q)?);
        self.q.iter_mut().zip(q).for_each(|(kept, &v)| *kept = (f64::from(v) * factor) as f32);
        Ok(())
    }

    /// `out = P Q^T`. Cost: one write of `out`, `2 * rows * cols * rank` operations.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow; [`largest_product`] bounds them.
    pub fn reconstruct(
        &self,
        p: &[f32],
        q: &[f32],
        out: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        check_shape("out", self.rows, self.cols, out.len())?;
        self.check_factors(p, q)?;
        kernels::reconstruct(Level::best(), out, Product { p, q }, self.shape(), workspace);
        Ok(())
    }

    /// `M -= P Q^T`: the error that this approximation leaves. Cost: one read and write of `m`, `2 * rows *
    /// cols * rank` operations; [`ErrorMemory`](super::ErrorMemory) saves this pass.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow.
    pub fn subtract_reconstruction(
        &self,
        p: &[f32],
        q: &[f32],
        m: &mut [f32],
        workspace: &mut Workspace,
    ) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        self.check_factors(p, q)?;
        kernels::add_product(Level::best(), m, Product { p, q }, -1.0, self.shape(), workspace);
        Ok(())
    }

    /// Whether `P Q^T` is finite, by its [bound](largest_product).
    pub(super) fn fits(&self, p: &[f32], q: &[f32]) -> bool {
        largest_product(p, q, self.rank) <= f64::from(f32::MAX)
    }

    /// Whether `P Q^T` and `M - P Q^T` are finite, by bounds. Cost: one read of both factors, and of `m` if
    /// the product may be huge.
    pub(super) fn leaves_finite(&self, m: &[f32], p: &[f32], q: &[f32]) -> bool {
        // Subtracting less than half a unit in the last place of the largest number leaves it as it is.
        const ROUNDED_AWAY: f64 = f32::MAX as f64 * f32::EPSILON as f64 / 8.0;
        let most = largest_product(p, q, self.rank);
        if most <= ROUNDED_AWAY {
            return true;
        }
        (most + largest_magnitude(m)) * with_roundings(self.rank) <= f64::from(f32::MAX)
    }

    /// Rows, columns and rank.
    pub(super) fn dimensions(&self) -> [u64; 3] {
        [self.rows, self.cols, self.rank].map(|number| number as u64)
    }

    pub(super) fn shape(&self) -> Shape {
        Shape { cols: self.cols, rank: self.rank }
    }

    pub(super) fn check_factors(&self, p: &[f32], q: &[f32]) -> Result<(), Error> {
        check_shape("P", self.rows, self.rank, p.len())?;
        check_shape("Q", self.cols, self.rank, q.len())
    }
}

/// Saves `Q` and the generator for redrawn columns; they are the same on all ranks.
/// [`restart`](LowRank::restart) still returns to the seed that the object was made with.
impl State for LowRank {
    fn kind(&self) -> [u8; 4] {
        *b"lowr"
    }

    fn shape(&self) -> Vec<u64> {
        self.dimensions().to_vec()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.f32s(&self.q);
        contents.part(&self.generator);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.f32s(&mut self.q)?;
        contents.part(&mut self.generator)
    }
}

/// Whether the two factors are smaller than the matrix by more than `min_compression`: `(rows + cols) * r <
/// rows * cols / min_compression`, with `r` lowered to `min(rows, cols)`. PowerSGD uses 2. Independent of the
/// thread's floating-point mode.
pub fn worth_it(rows: usize, cols: usize, rank: usize, min_compression: f64) -> bool {
    let (rank, rows, cols) = (rank.min(rows).min(cols) as f64, rows as f64, cols as f64);
    in_standard_float_mode(|| (rows + cols) * rank * min_compression < rows * cols)
}

/// `1 / 2^e` for a `magnitude` of `2^e` up to `2^(e + 1)`; 1 for zero.
fn reciprocal_power_of_two(magnitude: f32) -> f64 {
    if magnitude == 0.0 {
        return 1.0;
    }
    // Every f32, also a subnormal one, is a normal f64, whose sign and exponent bits alone are its power of
    // two.
    1.0 / f64::from_bits(f64::from(magnitude).to_bits() & (0x7ff << 52))
}
