//! The phases of PowerSGD (Vogels et al., NeurIPS 2019, algorithm 1); the caller reduces between them.
//!
//! `M` is a `rows x cols` matrix, row-major; `r` is the rank, at most `min(rows, cols)`; `P` is `rows x r`
//! and `Q` is `cols x r`, both row-major. `E` is what earlier steps did not deliver, `G` the gradient. A step
//! on every rank is:
//!
//! 1. `M = E + G` and `P = M Q`; then all ranks average `P`;
//! 2. the columns of `P` are made orthonormal, with equal bits on all ranks;
//! 3. `Q = M^T P`; then all ranks average `Q`;
//! 4. the update is `P Q^T` with the averages; `E = M - P Q^T` with the rank's own `Q`; the averaged `Q`
//!    starts the next step.
//!
//! [`LowRank`] is the state of one matrix and has a method for each phase. [`Batch`] runs the phases for many
//! matrices, whose factors travel in two messages. [`ErrorMemory`] keeps `E` of one matrix, and [`PowerSgd`]
//! is a batch with memories. Step 4 does not write `E`: the memory keeps the factors, and the next step 1
//! subtracts them in the pass that adds `G`. So a step reads and writes `M` once, reads it a second time, and
//! writes the update.
//!
//! For comparison there are [`UnbiasedLowRank`] and, with the feature `svd`, the compressors in `spectral`.
//!
//! Ranks that start from one seed and go through the same steps have the same bits in `Q` and in the
//! generator for redrawn columns. Threads that may be in another floating-point mode run the steps inside
//! [`in_standard_float_mode`](crate::in_standard_float_mode).
//!
//! ```
//! use brevity_compress::low_rank::{Batch, ErrorRule, Factors, LowRank, PowerSgd};
//!
//! let mut powersgd = PowerSgd::new(Batch::new(vec![LowRank::new(3, 4, 1, 7)?]), ErrorRule::Own);
//! let (gradient, mut update) = ([1.0_f32; 12], [0.0; 12]);
//! let mut factors = Factors::default();
//! factors.p.resize(powersgd.batch().p_len(), 0.0);
//! powersgd.accumulate(0, &gradient, &mut factors.p)?;
//! // Ranks average `factors.p` here.
//! powersgd.batch_mut().orthonormalise(&mut factors.p)?;
//! factors.own_q.resize(powersgd.batch().q_len(), 0.0);
//! powersgd.right_factors(&factors.p, &mut factors.own_q)?;
//! factors.q.clone_from(&factors.own_q);
//! // Ranks average `factors.q` here.
//! powersgd.reconstruct(0, &factors, &mut update)?;
//! powersgd.commit(&factors)?;
//! assert!(update.iter().all(|v| (v - 1.0).abs() < 1e-5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod memory;
mod orthonormal;
mod powersgd;
#[cfg(feature = "svd")]
pub mod spectral;
mod state;
mod unbiased;

pub use batch::{Batch, Factors, MatrixError};
pub use memory::ErrorMemory;
pub use orthonormal::orthonormalise;
pub use powersgd::{ErrorRule, PowerSgd};
pub use state::{LowRank, worth_it};
pub use unbiased::UnbiasedLowRank;

pub use crate::simd::low_rank::Workspace;

use crate::Error;
use crate::bits::check_finite;
use crate::simd::low_rank::{self as kernels, Product, Shape};
use crate::simd::{Level, dense};

fn check_shape(what: &'static str, rows: usize, cols: usize, found: usize) -> Result<(), Error> {
    if rows.checked_mul(cols) == Some(found) {
        Ok(())
    } else {
        Err(Error::ShapeMismatch { what, rows, cols, found })
    }
}

/// `out = P Q^T`, row-major, for factors of `rank` columns: of a whole matrix, or of some of its rows, of
/// which `p` has those. The bits of an element depend on its row of `p` and on `q` alone. Sums are not
/// checked for overflow. Cost: one write of `out`, `2 * rows * cols * rank` operations.
///
/// # Errors
/// [`Error::ShapeMismatch`] if the lengths do not go together; nothing has changed then.
pub fn product(
    p: &[f32],
    q: &[f32],
    rank: usize,
    out: &mut [f32],
    workspace: &mut Workspace,
) -> Result<(), Error> {
    let (rows, cols) = (p.len().checked_div(rank).unwrap_or(0), q.len().checked_div(rank).unwrap_or(0));
    check_shape("P", rows, rank, p.len())?;
    check_shape("Q", cols, rank, q.len())?;
    check_shape("out", rows, cols, out.len())?;
    kernels::reconstruct(Level::best(), out, Product { p, q }, Shape { cols, rank }, workspace);
    Ok(())
}

/// No element of `P Q^T` has a larger magnitude, for factors of `rank` columns, also after the roundings of
/// its sum. Not finite if a factor has a value that is not. Cost: one read of both factors.
pub fn largest_product(p: &[f32], q: &[f32], rank: usize) -> f64 {
    largest_magnitude(p) * largest_magnitude(q) * rank as f64 * with_roundings(rank)
}

/// The largest magnitude; not finite if a value is not.
fn largest_magnitude(values: &[f32]) -> f64 {
    f32::from_bits(dense::largest_magnitude(Level::best(), values)).into()
}

/// A factor for all roundings in a sum of `rank` products and one more number.
fn with_roundings(rank: usize) -> f64 {
    1.0 + (rank + 1) as f64 * f64::from(f32::EPSILON)
}

/// Every non-finite element of `m` makes some element of a product with it non-finite. So in the good case
/// only the small product is read.
fn check_product(m: &[f32], product: &[f32]) -> Result<(), Error> {
    check_finite(product).or_else(|in_product| check_finite(m).and(Err(in_product)))
}
