//! One bit with a magnitude for each column of a matrix.
//!
//! The mean magnitude (Dryden et al., 2016, and the column-wise average of Aji and Heafield, 2017), or one mean for the
//! positive values and one for the negative ones (Seide et al., 2014).

use super::{Format, Quantiser, dense_index, pack_values};
use crate::bits::check_finite;
use crate::simd::pack::packed_bytes;
use crate::simd::{Level, codes};
use crate::{Error, SparseView};

/// Quantises a row-major matrix to sign bits and one or two magnitudes a column: `4 + 4 * columns + n / 8` bytes, or
/// `4 + 8 * columns + n / 8`. Value `i` of a vector is in column `i % columns`. Cost: two passes.
#[derive(Debug, Clone)]
pub struct ColumnSign {
    columns: u32,
    pairs: bool,
    /// Sums and counts of positive values (even places) and negative ones of a column.
    sums: Vec<(f64, u64)>,
}

impl ColumnSign {
    /// With the mean magnitude of each of `columns` columns; 0 counts as 1.
    pub fn means(columns: u32) -> Self {
        Self { columns: columns.max(1), pairs: false, sums: Vec::new() }
    }

    /// With the mean of the positive values and that of the negative values of each of `columns` columns; 0 counts as 1.
    pub fn pairs(columns: u32) -> Self {
        Self { columns: columns.max(1), pairs: true, sums: Vec::new() }
    }

    fn head_bytes(&self) -> usize {
        (self.columns as usize).saturating_mul(if self.pairs { 8 } else { 4 }).saturating_add(4)
    }

    /// Writes head and bits; `places` are the places of the values in the matrix.
    fn write(&mut self, values: &[f32], places: impl Iterator<Item = usize>, bytes: &mut Vec<u8>) {
        bytes.resize(self.encoded_bytes(values.len()), 0);
        self.sums.clear();
        self.sums.resize(2 * self.columns as usize, (0.0, 0));
        let columns = self.columns as usize;
        for (place, &value) in places.zip(values) {
            let (sum, count) = &mut self.sums[2 * (place % columns) + usize::from(value.is_sign_negative())];
            *sum += f64::from(value.abs());
            *count += 1;
        }
        let head = self.head_bytes();
        let (head, packed) = bytes.split_at_mut(head);
        head[..4].copy_from_slice(&self.columns.to_le_bytes());
        let mean = |(sum, count): (f64, u64)| (sum / count.max(1) as f64) as f32;
        let means = head[4..].chunks_exact_mut(4);
        if self.pairs {
            means.zip(&self.sums).for_each(|(bytes, &pair)| bytes.copy_from_slice(&mean(pair).to_le_bytes()));
        } else {
            let both = self.sums.chunks_exact(2).map(|of| (of[0].0 + of[1].0, of[0].1 + of[1].1));
            means.zip(both).for_each(|(bytes, both)| bytes.copy_from_slice(&mean(both).to_le_bytes()));
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
        check_finite(values)?;
        self.write(values, 0..values.len(), bytes);
        Ok(())
    }

    fn encode_sparse(&mut self, entries: SparseView<'_>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        check_finite(entries.values()).map_err(|error| dense_index(error, entries))?;
        self.write(entries.values(), entries.indices().iter().map(|&index| index as usize), bytes);
        Ok(())
    }
}
