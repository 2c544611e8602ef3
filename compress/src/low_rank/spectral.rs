//! Compressors that need all singular vectors, for comparison: best rank r, and Spectral Atomo. They are
//! slow: with `k` the smaller and `l` the larger dimension they take `O(k^2 (k + l))` operations in `f64`,
//! seconds for `k` above a thousand.
//!
//! The singular vectors of the smaller side are the eigenvectors of `M M^T` (or `M^T M`), computed in `f64`.
//! They are orthonormal up to rounding for any singular values, and nothing is divided by a singular value,
//! so tiny ones do no harm. The last bits of results depend on the CPU, so ranks send components and never
//! recompute each other's.

use nalgebra::{DMatrix, SymmetricEigen};

use super::{Workspace, check_shape};
use crate::Error;
use crate::bits::check_finite;
use crate::generator::Generator;
use crate::simd::Level;
use crate::simd::low_rank::{self as kernels, Product, Shape};

/// A sum of at most `r` outer products, `P Q^T`. It is not linear in the matrix: ranks gather all components,
/// and average what they reconstruct.
#[derive(Debug, Clone, PartialEq)]
pub struct Components {
    rows: usize,
    cols: usize,
    count: usize,
    p: Vec<f32>,
    q: Vec<f32>,
}

impl Components {
    /// The number of outer products.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The left factor, `rows x count`, row-major.
    pub fn p(&self) -> &[f32] {
        &self.p
    }

    /// The right factor, `cols x count`, row-major.
    pub fn q(&self) -> &[f32] {
        &self.q
    }

    /// `sum += P Q^T`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]. Sums are not checked for overflow.
    pub fn add_to(&self, sum: &mut [f32], workspace: &mut Workspace) -> Result<(), Error> {
        check_shape("sum", self.rows, self.cols, sum.len())?;
        let (shape, product) =
            (Shape { cols: self.cols, rank: self.count }, Product { p: &self.p, q: &self.q });
        kernels::add_product(Level::best(), sum, product, 1.0, shape, workspace);
        Ok(())
    }
}

/// The best rank-`rank` approximation of a `rows x cols` matrix, row-major, in the sum of squares (Eckart and
/// Young, 1936). Biased: use it with error feedback.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::NonFinite`].
pub fn best_low_rank(m: &[f32], rows: usize, cols: usize, rank: usize) -> Result<Components, Error> {
    let spectrum = Spectrum::new(m, rows, cols)?;
    let kept: Vec<_> = (0..rank.min(spectrum.values.len())).map(|i| (i, 1.0)).collect();
    Ok(spectrum.components(&kept))
}

/// Spectral Atomo (Wang et al., NeurIPS 2018): a sample of `rank` singular components, unbiased.
///
/// Component `i` is kept with the probability `p_i` from [`probabilities`] and multiplied by `1 / p_i`.
/// Sampling is systematic (Madow, 1949), so at most `rank` components are kept. Since components are
/// orthogonal, the mean of the squared error is `sum_i s_i^2 (1 / p_i - 1)`, as for the independent draws of
/// the paper; it is the least possible for `rank`.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::NonFinite`]; nothing has been drawn then.
pub fn spectral_atomo(
    m: &[f32],
    rows: usize,
    cols: usize,
    rank: usize,
    generator: &mut Generator,
) -> Result<Components, Error> {
    let spectrum = Spectrum::new(m, rows, cols)?;
    let probabilities = probabilities(&spectrum.values, rank);
    let kept: Vec<_> = systematic_sample(&probabilities, rank, generator.uniform())
        .into_iter()
        .map(|i| (i, 1.0 / probabilities[i]))
        .collect();
    Ok(spectrum.components(&kept))
}

/// The probabilities of keeping components with the singular values `values`, largest first: proportional to
/// the values, at most one, and with the sum `count`, or the number of positive values if that is less.
pub fn probabilities(values: &[f64], count: usize) -> Vec<f64> {
    let mut probabilities = vec![0.0; values.len()];
    let (mut left, mut sum) = (count, values.iter().sum::<f64>());
    for (i, &value) in values.iter().enumerate() {
        if left == 0 || value <= 0.0 {
            break;
        }
        if left as f64 * value < sum {
            let scale = left as f64 / sum;
            probabilities[i..]
                .iter_mut()
                .zip(&values[i..])
                .for_each(|(p, &value)| *p = (value * scale).min(1.0));
            break;
        }
        probabilities[i] = 1.0;
        left -= 1;
        sum = values[i + 1..].iter().sum();
    }
    probabilities
}

/// Positions whose probabilities, laid end to end, cover `start`, `start + 1`, and so on. With a uniform
/// `start` in 0 to 1, each position is drawn with its own probability. Returns at most `limit`.
fn systematic_sample(probabilities: &[f64], limit: usize, start: f64) -> Vec<usize> {
    let (mut kept, mut end) = (Vec::new(), 0.0);
    for (i, &probability) in probabilities.iter().enumerate() {
        end += probability;
        if kept.len() < limit && kept.len() as f64 + start < end {
            kept.push(i);
        }
    }
    kept
}

/// The singular values, largest first, and the singular vectors of the smaller side.
struct Spectrum {
    /// The matrix, or its transpose if the transpose has fewer rows.
    flat: DMatrix<f64>,
    is_transposed: bool,
    values: Vec<f64>,
    vectors: Vec<Vec<f64>>,
}

impl Spectrum {
    fn new(m: &[f32], rows: usize, cols: usize) -> Result<Self, Error> {
        check_shape("M", rows, cols, m.len())?;
        check_finite(m)?;
        let m = DMatrix::from_row_iterator(rows, cols, m.iter().map(|&v| f64::from(v)));
        let is_transposed = rows > cols;
        let flat = if is_transposed { m.transpose() } else { m };
        if flat.is_empty() {
            return Ok(Self { flat, is_transposed, values: Vec::new(), vectors: Vec::new() });
        }
        let eigen = SymmetricEigen::new(&flat * flat.transpose());
        let mut order: Vec<usize> = (0..eigen.eigenvalues.len()).collect();
        order.sort_by(|&a, &b| eigen.eigenvalues[b].total_cmp(&eigen.eigenvalues[a]));
        let values = order.iter().map(|&i| eigen.eigenvalues[i].max(0.0).sqrt()).collect();
        let vectors = order.iter().map(|&i| eigen.eigenvectors.column(i).iter().copied().collect()).collect();
        Ok(Self { flat, is_transposed, values, vectors })
    }

    /// The components at the given positions, each times its weight.
    fn components(&self, kept: &[(usize, f64)]) -> Components {
        let (short, long, count) = (self.flat.nrows(), self.flat.ncols(), kept.len());
        let (mut of_short, mut of_long) = (vec![0.0; short * count], vec![0.0; long * count]);
        for (c, &(i, weight)) in kept.iter().enumerate() {
            let vector = DMatrix::from_column_slice(short, 1, &self.vectors[i]);
            // The singular value times the other singular vector, without a division.
            let other = self.flat.tr_mul(&vector);
            vector.iter().enumerate().for_each(|(row, &v)| of_short[row * count + c] = v as f32);
            other.iter().enumerate().for_each(|(row, &v)| of_long[row * count + c] = (v * weight) as f32);
        }
        let (rows, cols, p, q) = if self.is_transposed {
            (long, short, of_long, of_short)
        } else {
            (short, long, of_short, of_long)
        };
        Components { rows, cols, count, p, q }
    }
}
