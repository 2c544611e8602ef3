//! PowerSGD in phases (Vogels et al., NeurIPS 2019, algorithm 1), to be reduced between.
//!
//! `M` is a `rows x cols` matrix, row-major; `r` the rank, at most `min(rows, cols)`; `P` is
//! `rows x r` and `Q` is `cols x r`, both row-major. A step on every rank:
//!
//! 1. [`LowRank::left_factor`]: `P = M Q`; then all ranks average `P`;
//! 2. [`LowRank::orthonormalise`]: the columns of `P`, by Gram-Schmidt; same bits in, same bits out;
//! 3. [`LowRank::right_factor`]: `Q = M^T P`; [`LowRank::subtract_reconstruction`] with this own `Q`
//!    leaves the error in `M`; then all ranks average `Q`;
//! 4. [`LowRank::set_q`]: the average starts the next step; [`LowRank::reconstruct`] gives the update `P Q^T`.
//!
//! Ranks stay together if they start from one seed and go through the same steps: `Q` and the
//! generator for redrawn columns are then the same bits everywhere.

mod kernels;
mod orthonormal;

pub use orthonormal::orthonormalise;

use crate::Error;
use crate::bits::{check_finite, largest_finite};
use crate::generator::Generator;

/// The state of one matrix between steps: its shape, `Q`, and the generator shared by all ranks.
#[derive(Debug, Clone)]
pub struct LowRank {
    rows: usize,
    cols: usize,
    rank: usize,
    q: Vec<f32>,
    generator: Generator,
}

impl LowRank {
    /// Starts with `Q` drawn from the standard normal law by `seed`, which all ranks share. The rank is lowered to
    /// `min(rows, cols)` if that is less.
    ///
    /// # Errors
    /// [`Error::MatrixTooLarge`] when `rows * cols` overflows.
    pub fn new(rows: usize, cols: usize, rank: usize, seed: u64) -> Result<Self, Error> {
        rows.checked_mul(cols).ok_or(Error::MatrixTooLarge { rows, cols })?;
        let rank = rank.min(rows).min(cols);
        let mut generator = Generator::new(seed);
        let mut q = vec![0.0; cols * rank];
        generator.fill_normal(&mut q);
        Ok(Self { rows, cols, rank, q, generator })
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

    /// Elements of `P`.
    pub fn p_len(&self) -> usize {
        self.rows * self.rank
    }

    /// Elements of `Q`.
    pub fn q_len(&self) -> usize {
        self.cols * self.rank
    }

    /// The present `Q`, `cols x rank`.
    pub fn q(&self) -> &[f32] {
        &self.q
    }

    /// The generator of redrawn columns, to be saved.
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// `P = M Q`. Cost: one read of `m`, `2 * rows * cols * rank` operations.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::NonFinite`] for the first element of `m`, else of the
    /// product, that is not finite: `p` is unspecified then.
    pub fn left_factor(&self, m: &[f32], p: &mut [f32]) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        check_shape("P", self.rows, self.rank, p.len())?;
        kernels::multiply(m, &self.q, self.shape(), p);
        check_product(m, p)
    }

    /// Makes the columns of `p` orthonormal. Columns that are zero, or depend on those before, are
    /// replaced by random ones from the shared generator, so the result never holds a NaN.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; `p` is unchanged then.
    pub fn orthonormalise(&mut self, p: &mut [f32]) -> Result<(), Error> {
        orthonormalise(p, self.rows, self.rank, &mut self.generator)
    }

    /// `Q = M^T P`, written to `q_out`; the state's own `Q` stays until [`set_q`](Self::set_q).
    ///
    /// # Errors
    /// As [`left_factor`](Self::left_factor), with `q_out` for `p`.
    pub fn right_factor(&self, m: &[f32], p: &[f32], q_out: &mut [f32]) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        self.check_factors(p, q_out)?;
        kernels::multiply_transposed(m, p, self.shape(), q_out);
        check_product(m, q_out)
    }

    /// Takes over `q`, the average of all ranks, as the start of the next step.
    ///
    /// It is kept times the power of two that brings its largest magnitude to between one and two: the next
    /// `M Q` then stays in range for tiny and huge matrices alike, and spans the same space bit for bit.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::NonFinite`]; the state is unchanged then.
    pub fn set_q(&mut self, q: &[f32]) -> Result<(), Error> {
        check_shape("Q", self.cols, self.rank, q.len())?;
        let factor = reciprocal_power_of_two(largest_finite(q)?);
        self.q.iter_mut().zip(q).for_each(|(kept, &v)| *kept = (f64::from(v) * factor) as f32);
        Ok(())
    }

    /// `out = P Q^T`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow.
    pub fn reconstruct(&self, p: &[f32], q: &[f32], out: &mut [f32]) -> Result<(), Error> {
        check_shape("out", self.rows, self.cols, out.len())?;
        self.check_factors(p, q)?;
        out.fill(0.0);
        kernels::add_outer(p, q, 1.0, self.shape(), out);
        Ok(())
    }

    /// `M -= P Q^T`: the error that stays after this approximation.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow.
    pub fn subtract_reconstruction(&self, p: &[f32], q: &[f32], m: &mut [f32]) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        self.check_factors(p, q)?;
        kernels::add_outer(p, q, -1.0, self.shape(), m);
        Ok(())
    }

    fn shape(&self) -> kernels::Shape {
        kernels::Shape { cols: self.cols, rank: self.rank }
    }

    fn check_factors(&self, p: &[f32], q: &[f32]) -> Result<(), Error> {
        check_shape("P", self.rows, self.rank, p.len())?;
        check_shape("Q", self.cols, self.rank, q.len())
    }
}

/// Whether the two factors are smaller than the matrix by more than `min_compression`:
/// `(rows + cols) * r < rows * cols / min_compression`, with `r` lowered to `min(rows, cols)`.
/// PowerSGD takes 2.
pub fn worth_it(rows: usize, cols: usize, rank: usize, min_compression: f64) -> bool {
    let (rank, rows, cols) = (rank.min(rows).min(cols) as f64, rows as f64, cols as f64);
    (rows + cols) * rank * min_compression < rows * cols
}

/// `1 / 2^e` for a `magnitude` of `2^e` up to `2^(e + 1)`; 1 for zero.
fn reciprocal_power_of_two(magnitude: f32) -> f64 {
    if magnitude == 0.0 {
        return 1.0;
    }
    // Every f32, subnormal or not, is a normal f64: its upper bits alone are its power of two.
    1.0 / f64::from_bits(f64::from(magnitude).to_bits() & (0x7ff << 52))
}

fn check_shape(what: &'static str, rows: usize, cols: usize, found: usize) -> Result<(), Error> {
    if rows.checked_mul(cols) == Some(found) { Ok(()) } else { Err(Error::ShapeMismatch { what, rows, cols, found }) }
}

/// Every non-finite element of `m` makes some element of a product with it non-finite, so only the
/// small product is read where all is well.
fn check_product(m: &[f32], product: &[f32]) -> Result<(), Error> {
    check_finite(product).or_else(|in_product| check_finite(m).and(Err(in_product)))
}
