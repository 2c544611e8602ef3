//! Gram-Schmidt, the same bits on every rank.

use super::{Workspace, check_shape};
use crate::Error;
use crate::bits::check_finite;
use crate::generator::Generator;
use crate::simd::{Level, orthonormal as kernels};

/// Makes the columns of `p` (`rows x rank`, row-major, `rank <= rows`) orthonormal by modified Gram-Schmidt,
/// each column projected twice so that the result is orthogonal to rounding.
///
/// A column that is zero, or whose part outside of the columns before is under a millionth of it, is
/// replaced by a normal one from `generator`; with equal `p` and generators, all ranks replace alike.
/// Dot products are carried in `f64`, sixteen partial sums in a fixed order. Cost: `O(rows * rank^2)`.
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

/// Less than this share of a column outside of the span of those before is rounding noise.
const INDEPENDENT: f64 = 1e-6;

/// Makes a column orthogonal to those before it and of length one; false if nothing is left of it.
fn normalise_column(earlier: &[f32], column: &mut [f32]) -> bool {
    let level = Level::best();
    let before = kernels::dot(level, column, column).sqrt();
    if before == 0.0 {
        return false;
    }
    // To length one first: projections of subnormal columns would be lost to rounding.
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

/// Rows of `from` that are read together: what they have in one column is then on one cache line.
const STRETCH: usize = 16;

/// Turns rows of `from_cols` elements into rows of `to_cols`, which is the number of rows there were.
fn transpose(from: &[f32], from_cols: usize, to: &mut [f32], to_cols: usize) {
    for (block, rows) in from.chunks(from_cols * STRETCH).enumerate() {
        for column in 0..from_cols {
            let to = &mut to[column * to_cols + block * STRETCH..];
            to.iter_mut().zip(rows[column..].iter().step_by(from_cols)).for_each(|(to, &from)| *to = from);
        }
    }
}
