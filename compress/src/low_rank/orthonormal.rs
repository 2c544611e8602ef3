//! Gram-Schmidt with the same bits on every rank.

use super::{Workspace, check_shape};
use crate::Error;
use crate::bits::check_finite;
use crate::generator::Generator;
use crate::simd::{Level, orthonormal as kernels};

/// Makes the columns of `p` (`rows x rank`, row-major, `rank <= rows`) orthonormal by modified Gram-Schmidt.
/// Each column is projected twice, so the result is orthogonal up to rounding.
///
/// A zero column, or one whose part outside the span of the earlier columns is less than a millionth of it,
/// is replaced by a normally distributed one from `generator`. With equal `p` and generators, all ranks
/// replace the same columns by the same values. Dot products are computed in `f64`, as sixteen partial sums
/// in a fixed order. Cost: `O(rows * rank^2)`.
///
/// # Errors
/// [`Error::RankTooLarge`] when `rank > rows`, [`Error::ShapeMismatch`], [`Error::NonFinite`]. `p` is
/// unchanged then.
pub fn orthonormalise(
    p: &mut [f32],
    rows: usize,
    rank: usize,
    generator: &mut Generator,
    workspace: &mut Workspace,
) -> Result<(), Error> {
    if rank > rows {
        return Err(Error::RankTooLarge { rank, rows });
    }
    check_shape("P", rows, rank, p.len())?;
    check_finite(p)?;
    if p.is_empty() {
        return Ok(());
    }
    let columns = workspace.columns(p.len());
    transpose(p, rank, columns, rows);
    for column in 0..rank {
        let (earlier, column) = columns[..(column + 1) * rows].split_at_mut(column * rows);
        while !normalise_column(earlier, column) {
            column.iter_mut().for_each(|value| *value = generator.normal());
        }
    }
    transpose(columns, rows, p, rank);
    Ok(())
}

/// If a smaller share of a column is outside the span of the earlier ones, that part is rounding noise.
const INDEPENDENT: f64 = 1e-6;

/// Makes a column orthogonal to the earlier ones and of length one. Returns false if nothing is left of it.
fn normalise_column(earlier: &[f32], column: &mut [f32]) -> bool {
    let level = Level::best();
    let before = kernels::dot(level, column, column).sqrt();
    if before == 0.0 {
        return false;
    }
    // Scaled to length one first: rounding would destroy projections of subnormal columns.
    kernels::scale(level, column, 1.0 / before);
    for _ in 0..2 {
        for earlier in earlier.chunks_exact(column.len()) {
            let share = kernels::dot(level, earlier, column);
            kernels::subtract(level, column, share, earlier);
        }
        let left = kernels::dot(level, column, column).sqrt();
        if left < INDEPENDENT {
            return false;
        }
        kernels::scale(level, column, 1.0 / left);
    }
    true
}

/// Rows of `from` that are read together, so that their elements in one column share a cache line.
const STRETCH: usize = 16;

/// Turns rows of `from_cols` elements into rows of `to_cols`; `to_cols` is the number of rows of `from`.
fn transpose(from: &[f32], from_cols: usize, to: &mut [f32], to_cols: usize) {
    for (block, rows) in from.chunks(from_cols * STRETCH).enumerate() {
        for column in 0..from_cols {
            let to = &mut to[column * to_cols + block * STRETCH..];
            to.iter_mut().zip(rows[column..].iter().step_by(from_cols)).for_each(|(to, &from)| *to = from);
        }
    }
}
