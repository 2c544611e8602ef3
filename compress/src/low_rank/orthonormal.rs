//! Gram-Schmidt, the same bits on every rank.

use super::check_shape;
use crate::Error;
use crate::bits::check_finite;
use crate::generator::Generator;

/// Makes the columns of `p` (`rows x rank`, row-major, `rank <= rows`) orthonormal by modified Gram-Schmidt, each
/// column projected twice so that the result is orthogonal to rounding.
///
/// A column that is zero, or whose part outside of the columns before is under a millionth of it, is
/// replaced by a normal one from `generator`; with equal `p` and generators, all ranks replace alike.
/// Dot products are carried in `f64`, four partial sums in a fixed order. Cost: `O(rows * rank^2)`.
///
/// # Errors
/// [`Error::RankTooLarge`] when `rank > rows`, [`Error::ShapeMismatch`], [`Error::NonFinite`]. `p` is unchanged then.
pub fn orthonormalise(p: &mut [f32], rows: usize, rank: usize, generator: &mut Generator) -> Result<(), Error> {
    if rank > rows {
        return Err(Error::RankTooLarge { rank, rows });
    }
    check_shape("P", rows, rank, p.len())?;
    check_finite(p)?;
    if p.is_empty() {
        return Ok(());
    }
    for column in 0..rank {
        while !normalise_column(p, rank, column) {
            p.chunks_exact_mut(rank).for_each(|row| row[column] = generator.normal());
        }
    }
    Ok(())
}

/// Less than this share of a column outside of the span of those before is rounding noise.
const INDEPENDENT: f64 = 1e-6;

/// Makes a column orthogonal to those before it and of length one; false if nothing is left of it.
fn normalise_column(p: &mut [f32], rank: usize, column: usize) -> bool {
    let before = dot(p, rank, column, column).sqrt();
    if before == 0.0 {
        return false;
    }
    // To length one first: projections of subnormal columns would be lost to rounding.
    scale(p, rank, column, 1.0 / before);
    for _ in 0..2 {
        for earlier in 0..column {
            let share = dot(p, rank, earlier, column);
            for row in p.chunks_exact_mut(rank) {
                row[column] = (f64::from(row[column]) - share * f64::from(row[earlier])) as f32;
            }
        }
        let left = dot(p, rank, column, column).sqrt();
        if left < INDEPENDENT {
            return false;
        }
        scale(p, rank, column, 1.0 / left);
    }
    true
}

fn scale(p: &mut [f32], rank: usize, column: usize, factor: f64) {
    p.chunks_exact_mut(rank).for_each(|row| row[column] = (f64::from(row[column]) * factor) as f32);
}

/// The dot product of two columns.
fn dot(p: &[f32], rank: usize, a: usize, b: usize) -> f64 {
    let product = |row: &[f32]| f64::from(row[a]) * f64::from(row[b]);
    let mut sums = [0.0_f64; 4];
    let groups = p.chunks_exact(4 * rank);
    let rest = groups.remainder();
    for group in groups {
        sums.iter_mut().zip(group.chunks_exact(rank)).for_each(|(sum, row)| *sum += product(row));
    }
    sums.iter_mut().zip(rest.chunks_exact(rank)).for_each(|(sum, row)| *sum += product(row));
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}
