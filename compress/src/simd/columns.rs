//! Sums of the columns of a matrix, by sign.

use super::per_level;

/// Rows that are summed before the sums of their columns are written back; as many streams of memory are read
/// in parallel.
const ROWS: usize = 8;
/// Columns that are summed in parallel.
const WIDE: usize = 16;

/// Sums of the magnitudes of each column's positive and negative values, and the number of values. A value
/// with the sign bit counts as negative.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ColumnSums {
    pub(crate) positive: Vec<f64>,
    pub(crate) negative: Vec<f64>,
    /// The number of negative values.
    pub(crate) negatives: Vec<u64>,
    /// The number of values.
    pub(crate) values: Vec<u64>,
}

impl ColumnSums {
    /// Starts again with `columns` columns.
    pub(crate) fn reset(&mut self, columns: usize) {
        for sums in [&mut self.positive, &mut self.negative] {
            sums.clear();
            sums.resize(columns, 0.0);
        }
        for counts in [&mut self.negatives, &mut self.values] {
            counts.clear();
            counts.resize(columns, 0);
        }
    }

    /// Whether all values that have been added are finite.
    pub(crate) fn is_finite(&self) -> bool {
        // The sum of 2^64 of the largest 32-bit numbers is still finite.
        self.positive.iter().chain(&self.negative).fold(true, |finite, sum| finite & sum.is_finite())
    }

    /// Adds one value.
    pub(crate) fn add(&mut self, column: usize, value: f32) {
        let negative = value.is_sign_negative();
        let sums = if negative { &mut self.negative } else { &mut self.positive };
        sums[column] += f64::from(value.abs());
        self.negatives[column] += u64::from(negative);
        self.values[column] += 1;
    }

    /// Adds a matrix, row by row; the last row may be shorter. Cost: one read of it.
    pub(crate) fn add_rows(&mut self, level: super::Level, values: &[f32]) {
        let columns = self.values.len();
        if columns == 0 {
            return;
        }
        add_rows(level, values, &mut self.positive, &mut self.negative, &mut self.negatives);
        let (rows, rest) = (values.len() / columns, values.len() % columns);
        for (column, count) in self.values.iter_mut().enumerate() {
            *count += rows as u64 + u64::from(column < rest);
        }
    }
}

per_level! {
    /// The kernel of [`ColumnSums::add_rows`]. The other three slices have one element for each column of the
    /// matrix.
    fn add_rows(values: &[f32], positive: &mut [f64], negative: &mut [f64], negatives: &mut [u64]) {
        let columns = positive.len();
        for rows in values.chunks(ROWS * columns) {
            let whole = if rows.len() == ROWS * columns { columns / WIDE * WIDE } else { 0 };
            for first in (0..whole).step_by(WIDE) {
                let lists = (&mut positive[first..], &mut negative[first..], &mut negatives[first..]);
                add_tile(rows, columns, first, lists);
            }
            for row in rows.chunks(columns) {
                for (column, value) in row.iter().enumerate().skip(whole) {
                    let (plus, minus) = split(*value);
                    positive[column] += plus;
                    negative[column] += minus;
                    negatives[column] += u64::from(value.is_sign_negative());
                }
            }
        }
    }
}

/// Adds [`WIDE`] columns of [`ROWS`] rows.
#[inline(always)]
fn add_tile(
    rows: &[f32],
    columns: usize,
    first: usize,
    (positive, negative, negatives): (&mut [f64], &mut [f64], &mut [u64]),
) {
    let (mut plus, mut minus, mut counts) = ([0.0; WIDE], [0.0; WIDE], [0; WIDE]);
    plus.copy_from_slice(&positive[..WIDE]);
    minus.copy_from_slice(&negative[..WIDE]);
    for row in 0..ROWS {
        let values = &rows[row * columns + first..][..WIDE];
        for lane in 0..WIDE {
            let (p, m) = split(values[lane]);
            plus[lane] += p;
            minus[lane] += m;
            counts[lane] += values[lane].to_bits() >> 31;
        }
    }
    positive[..WIDE].copy_from_slice(&plus);
    negative[..WIDE].copy_from_slice(&minus);
    negatives[..WIDE].iter_mut().zip(counts).for_each(|(all, count)| *all += u64::from(count));
}

/// The magnitude of a positive value and 0, or 0 and the magnitude of a negative value.
#[inline(always)]
fn split(value: f32) -> (f64, f64) {
    let (bits, minus) = (value.to_bits(), ((value.to_bits() as i32) >> 31) as u32);
    let magnitude = bits & 0x7fff_ffff;
    (f64::from(f32::from_bits(magnitude & !minus)), f64::from(f32::from_bits(magnitude & minus)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simd::Level;

    proptest! {
        #[test]
        fn every_level_adds_rows_as_values_one_by_one(
            values in prop::collection::vec(any::<f32>(), 0..1500),
            columns in prop_oneof![1_usize..9, 15_usize..50, 100_usize..200],
        ) {
            // Without NaNs: which NaN a sum gives is not specified.
            let values: Vec<f32> = values.into_iter().map(|v| if v.is_nan() { -0.0 } else { v }).collect();
            let mut expected = ColumnSums::default();
            expected.reset(columns);
            values.iter().enumerate().for_each(|(i, &value)| expected.add(i % columns, value));
            for level in Level::available() {
                let mut sums = ColumnSums::default();
                sums.reset(columns);
                sums.add_rows(level, &values);
                prop_assert_eq!(&sums, &expected, "{}", level.name());
                prop_assert_eq!(sums.is_finite(), values.iter().all(|v| v.is_finite()));
            }
        }
    }

    #[test]
    fn a_nan_is_seen() {
        let mut sums = ColumnSums::default();
        for place in [0, 300] {
            let mut values = vec![1.0; 400];
            values[place] = -f32::NAN;
            sums.reset(20);
            sums.add_rows(Level::best(), &values);
            assert!(!sums.is_finite());
        }
    }
}
