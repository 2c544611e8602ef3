//! Unbiased rank r: the linear compressor to which Vogels et al. compare PowerSGD (section 4.1).

use super::{LowRank, Workspace, check_product, check_shape, orthonormalise};
use crate::Error;
use crate::generator::Generator;
use crate::simd::Level;
use crate::simd::low_rank::{self as kernels, Product, Shape};
use crate::state::{Reader, State, Writer};

/// `M U U^T`, with a random `U` (`cols x r`) for which the mean of `U U^T` is the identity. Every step draws
/// a new `U`.
///
/// Only `M U` is sent, since all ranks draw the same `U`. It is linear in `M`, so ranks may average it. `U`
/// is `sqrt(cols / r)` times `r` orthonormal columns, uniformly distributed. The mean of `|M U U^T - M|^2` is
/// `(cols / r - 1) |M|^2`, a little less than with normal entries.
#[derive(Debug, Clone)]
pub struct UnbiasedLowRank {
    rows: usize,
    cols: usize,
    rank: usize,
    u: Vec<f32>,
    generator: Generator,
}

impl UnbiasedLowRank {
    /// A compressor for `rows x cols` matrices. All ranks pass the same `seed`. Lowers the rank to `min(rows,
    /// cols)`.
    ///
    /// # Errors
    /// [`Error::MatrixTooLarge`] if `rows * cols` overflows.
    pub fn new(rows: usize, cols: usize, rank: usize, seed: u64) -> Result<Self, Error> {
        let shape = LowRank::new(rows, cols, rank, 0)?;
        let (rank, generator) = (shape.rank(), Generator::new(seed));
        Ok(Self { rows, cols, rank, u: vec![0.0; cols * rank], generator })
    }

    /// Elements of `P`, which is `rows x r`, row-major.
    pub fn p_len(&self) -> usize {
        self.rows * self.rank
    }

    /// The `U` of this step, `cols x r`, row-major.
    pub fn u(&self) -> &[f32] {
        &self.u
    }

    /// Starts a step: draws `U`. All ranks must call it, also those whose matrix is left out.
    pub fn draw(&mut self, workspace: &mut Workspace) {
        self.generator.fill_normal(&mut self.u);
        // The span of normally distributed columns is uniformly distributed, whatever the signs of the
        // columns.
        let drawn = orthonormalise(&mut self.u, self.cols, self.rank, &mut self.generator, workspace);
        debug_assert!(
            drawn.is_ok(),
            "the deviates are finite, and the rank is at most the number of columns"
        );
        let scale = (self.cols as f64 / self.rank.max(1) as f64).sqrt();
        self.u.iter_mut().for_each(|u| *u = (f64::from(*u) * scale) as f32);
    }

    /// `P = M U`, with the current `U`. Cost: one read of `m`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::NonFinite`] for the first element of `m`, otherwise of the product,
    /// that is not finite: `p` is unspecified then.
    pub fn compress(&self, m: &[f32], p: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        check_shape("M", self.rows, self.cols, m.len())?;
        check_shape("P", self.rows, self.rank, p.len())?;
        kernels::multiply(Level::best(), m, &self.u, self.shape(), p, workspace);
        check_product(m, p)
    }

    /// `out = P U^T`, for this rank's `P` or the mean of all ranks'. Cost: one write of `out`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow.
    pub fn reconstruct(&self, p: &[f32], out: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        check_shape("P", self.rows, self.rank, p.len())?;
        check_shape("out", self.rows, self.cols, out.len())?;
        kernels::reconstruct(Level::best(), out, Product { p, q: &self.u }, self.shape(), workspace);
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape { cols: self.cols, rank: self.rank }
    }
}

/// Saves the generator, from which the next step draws; it is the same on all ranks.
impl State for UnbiasedLowRank {
    fn kind(&self) -> [u8; 4] {
        *b"lrun"
    }

    fn shape(&self) -> Vec<u64> {
        [self.rows, self.cols, self.rank].map(|number| number as u64).to_vec()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.generator);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.generator)
    }
}
