//! One bit with a magnitude for each column of a matrix.
//!
//! Either the mean magnitude (Dryden et al., 2016, and the column-wise average of Aji and Heafield, 2017), or
//! one mean for the positive values and one for the negative ones (Seide et al., 2014).

use super::{Format, Quantiser, dense_index, pack_values};
use crate::bits::check_finite;
use crate::simd::pack::packed_bytes;
use crate::simd::{ColumnSums, Level, codes};
use crate::{Error, SparseView};

/// Quantises a row-major matrix to sign bits and one or two magnitudes a column: `4 + 4 * columns + n / 8`
/// bytes, or `4 + 8 * columns + n / 8`. Value `i` of a vector is in column `i % columns`. Cost: two passes.
#[derive(Debug, Clone)]
pub struct ColumnSign {
    columns: u32,
    pairs: bool,
    sums: ColumnSums,
}

impl ColumnSign {
    /// Uses the mean magnitude of each of `columns` columns; 0 counts as 1.
    pub fn means(columns: u32) -> Self {
        Self { columns: columns.max(1), pairs: false, sums: ColumnSums::default() }
    }

    /// Uses the mean of the positive and the mean of the negative values of each of `columns` columns; 0
    /// counts as 1.
    pub fn pairs(columns: u32) -> Self {
        Self { columns: columns.max(1), pairs: true, sums: ColumnSums::default() }
    }

    fn head_bytes(&self) -> usize {
        (self.columns as usize).saturating_mul(if self.pairs { 8 } else { 4 }).saturating_add(4)
    }

    /// Writes head and bits. The sums must include the values already.
    fn write(&self, values: &[f32], bytes: &mut Vec<u8>) {
        bytes.resize(self.encoded_bytes(values.len()), 0);
        let head = self.head_bytes();
        let (head, packed) = bytes.split_at_mut(head);
        head[..4].copy_from_slice(&self.columns.to_le_bytes());
        let ColumnSums { positive, negative, negatives, values: counts } = &self.sums;
        let mean = |sum: f64, count: u64| ((sum / count.max(1) as f64) as f32).to_le_bytes();
        let means = head[4..].as_chunks_mut().0;
        if self.pairs {
            for (column, [of_positive, of_negative]) in means.as_chunks_mut().0.iter_mut().enumerate() {
                *of_positive = mean(positive[column], counts[column] - negatives[column]);
                *of_negative = mean(negative[column], negatives[column]);
            }
        } else {
            for (column, of_both) in means.iter_mut().enumerate() {
                *of_both = mean(positive[column] + negative[column], counts[column]);
            }
        }
        let level = Level::best();
        pack_values(1, values, packed, |_, values, out| codes::sign_codes(level, values, out));
    }
}

impl Quantiser for ColumnSign {
    fn format(&self) -> Format {
        if self.pairs { Format::SignPairs } else { Format::SignColumns }
    }

    fn encoded_bytes(&self, count: usize) -> usize {
        self.head_bytes().saturating_add(packed_bytes(count, 1))
    }

    fn encode(&mut self, values: &[f32], bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.sums.reset(self.columns as usize);
        self.sums.add_rows(Level::best(), values);
        if !self.sums.is_finite() {
            check_finite(values)?;
        }
        self.write(values, bytes);
        Ok(())
    }

    fn encode_sparse(&mut self, entries: SparseView<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_finite(entries.values()).map_err(|error| dense_index(error, entries))?;
        self.sums.reset(self.columns as usize);
        for (index, value) in entries.iter() {
            self.sums.add((index % self.columns) as usize, value);
        }
        self.write(entries.values(), bytes);
        Ok(())
    }

    fn contracts(&self, _: usize, _: bool) -> bool {
        true
    }
}
