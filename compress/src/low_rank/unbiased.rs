//! Unbiased rank r: the linear compressor to which Vogels et al. compare PowerSGD (section 4.1).

use super::{Workspace, check_product, check_shape, orthonormalise};
use crate::generator::Generator;
use crate::simd::Level;
use crate::simd::low_rank::{self as kernels, Product, Shape};
use crate::state::{Reader, State, Writer};
use crate::{Error, room};

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
    seed: u64,
    u: Vec<f32>,
    generator: Generator,
}

impl UnbiasedLowRank {
    /// A compressor for `rows x cols` matrices. All ranks pass the same `seed`. Lowers the rank to `min(rows,
    /// cols)`.
    ///
    /// # Errors
    /// [`Error::MatrixTooLarge`] if `rows * cols` overflows; [`Error::Memory`].
    pub fn new(rows: usize, cols: usize, rank: usize, seed: u64) -> Result<Self, Error> {
        rows.checked_mul(cols).ok_or(Error::MatrixTooLarge { rows, cols })?;
        let rank = rank.min(rows).min(cols);
        let (u, generator) = (room::zeros(cols * rank)?, Generator::new(seed));
        Ok(Self { rows, cols, rank, seed, u, generator })
    }

    /// Rows, columns and rank.
    pub fn dimensions(&self) -> [usize; 3] {
        [self.rows, self.cols, self.rank]
    }

    /// The seed of its random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
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

    /// Like [`draw`](Self::draw), for a caller that counts steps: draws the `U` of step `step`, whatever was
    /// drawn before. Later calls of `draw` go on from there.
    pub fn draw_for(&mut self, step: u64, workspace: &mut Workspace) {
        self.generator = Generator::for_stream(self.seed, step);
        self.draw(workspace);
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
        self.dimensions().map(|number| number as u64).to_vec()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.part(&self.generator);
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Error> {
        contents.part(&mut self.generator)
    }
}
