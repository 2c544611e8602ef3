//! Selection of fixed blocks: those that are not entirely zero, or the largest.

use crate::bits::check_finite;
use crate::error::{check_addressable, check_length};
use crate::{Error, SparseVec};

/// Places of a block, as in OmniReduce.
pub const BLOCK_PLACES: usize = 256;

/// A vector of dense length [`dim`](Self::dim) in blocks of [`BLOCK_PLACES`]; the last block may be shorter.
/// Absent blocks are zero.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Blocks {
    dim: usize,
    places: Vec<u32>,
    values: Vec<f32>,
}

impl Blocks {
    /// An empty vector without blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Length of the dense vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The numbers of the present blocks, rising: block `b` begins at index `b * BLOCK_PLACES`.
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// The values of all present blocks, in order.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Index and value of every place of the present blocks.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f32)> {
        let blocks = self.places.iter().zip(self.values.chunks(BLOCK_PLACES));
        blocks.flat_map(|(&place, block)| (place as usize * BLOCK_PLACES..).zip(block.iter().copied()))
    }

    /// `dense += factor * blocks`. Sums are not checked for overflow.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] for a `dense` of another length, which is unchanged then.
    pub fn add_scaled_to(&self, factor: f32, dense: &mut [f32]) -> Result<(), Error> {
        check_length(self.dim, dense.len())?;
        for (&place, block) in self.places.iter().zip(self.values.chunks(BLOCK_PLACES)) {
            let into = &mut dense[place as usize * BLOCK_PLACES..];
            into.iter_mut().zip(block).for_each(|(sum, value)| *sum += factor * value);
        }
        Ok(())
    }
}

/// Copies the blocks of `values` that are not entirely zero (OmniReduce, Fei et al., SIGCOMM 2021). Nothing
/// is lost.
///
/// Sent for each block: 4 bytes of place and `4 * BLOCK_PLACES` of values, which may include zeros. Suits
/// gradients whose zeros are adjacent, such as those of embeddings. Cost: one read of `values`, two of
/// present blocks.
///
/// # Errors
/// [`Error::NonFinite`] for the first value that is not finite, [`Error::TooLong`]. `out` has no block then.
pub fn non_zero_blocks(values: &[f32], out: &mut Blocks) -> Result<(), Error> {
    out.places.clear();
    out.values.clear();
    out.dim = values.len();
    check_addressable(values.len())?;
    for (place, block) in values.chunks(BLOCK_PLACES).enumerate() {
        if block.iter().fold(0, |bits, value| bits | (value.to_bits() << 1)) == 0 {
            continue;
        }
        if let Err(error) = check_finite(block) {
            out.places.clear();
            out.values.clear();
            return Err(match error {
                Error::NonFinite { index, value } => {
                    Error::NonFinite { index: place * BLOCK_PLACES + index, value }
                }
                other => other,
            });
        }
        out.places.push(place as u32);
        out.values.extend_from_slice(block);
    }
    Ok(())
}

/// Selects the `k` blocks of largest Euclidean norm; on ties, those with lower numbers. Blocks have
/// [`BLOCK_PLACES`] places, of which the last block may have fewer. `out` gets all places of a selected
/// block, zeros too; a block that is entirely zero is never selected. It is the block-wise top k of
/// OmniReduce (Fei et al., SIGCOMM 2021); with error feedback nothing is lost.
///
/// Norms are summed by rising index in `f64`. Cost: two reads of `values`, and one of the selected blocks.
/// `norms` is work space, for reuse: 16 bytes a block.
///
/// # Errors
/// [`Error::NonFinite`] for the first value that is not finite, [`Error::TooLong`]. `out` is empty then.
pub fn largest_blocks(
    values: &[f32],
    k: usize,
    out: &mut SparseVec,
    norms: &mut Vec<(f64, u32)>,
) -> Result<(), Error> {
    out.reset(values.len());
    check_addressable(values.len())?;
    check_finite(values)?;
    let squares = |block: &[f32]| block.iter().fold(0.0, |sum, v| sum + f64::from(*v) * f64::from(*v));
    norms.clear();
    norms.extend((0..).zip(values.chunks(BLOCK_PLACES)).map(|(place, block)| (squares(block), place)));
    // Squares of `f32` are exact in `f64`, and none but zero becomes zero.
    norms.retain(|(norm, _)| *norm > 0.0);
    if k < norms.len() {
        if k > 0 {
            norms.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        norms.truncate(k);
    }
    norms.sort_unstable_by_key(|(_, place)| *place);
    for (_, place) in &*norms {
        let start = *place as usize * BLOCK_PLACES;
        let end = (start + BLOCK_PLACES).min(values.len());
        (start..end).for_each(|index| out.push(index as u32, values[index]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(values: &[f32], k: usize) -> Vec<usize> {
        let (mut out, mut norms) = (SparseVec::new(0), Vec::new());
        largest_blocks(values, k, &mut out, &mut norms).unwrap();
        assert!(out.iter().all(|(index, value)| values[index as usize] == value));
        let mut places: Vec<usize> = out.indices().iter().map(|i| *i as usize / BLOCK_PLACES).collect();
        places.dedup();
        let whole = places.iter().map(|place| values.chunks(BLOCK_PLACES).nth(*place).unwrap().len());
        assert_eq!(out.len(), whole.sum::<usize>());
        places
    }

    #[test]
    fn the_largest_blocks_are_those_of_a_full_sort() {
        let mut generator = crate::generator::Generator::new(11);
        for n in [0, 1, 255, 256, 257, 3000] {
            let mut values: Vec<f32> = (0..n).map(|_| generator.normal()).collect();
            let mut order: Vec<(f64, usize)> = values
                .chunks(BLOCK_PLACES)
                .map(|block| block.iter().map(|v| f64::from(*v).powi(2)).sum())
                .zip(0..)
                .collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            for k in [0, 1, 2, 5, 12, 100] {
                let mut expected: Vec<usize> = order.iter().take(k).map(|(_, place)| *place).collect();
                expected.sort_unstable();
                assert_eq!(selected(&values, k), expected, "n {n}, k {k}");
            }
            values.fill(0.0);
            assert_eq!(selected(&values, 3), []);
        }
    }

    #[test]
    fn equal_norms_go_to_lower_numbers_and_tiny_values_count() {
        assert_eq!(selected(&[-1.0; 4 * BLOCK_PLACES], 2), [0, 1]);
        let mut values = vec![0.0; 3 * BLOCK_PLACES];
        values[2 * BLOCK_PLACES] = 1e-45;
        assert_eq!(selected(&values, 2), [2]);
        values[700] = f32::NAN;
        let (mut out, mut norms) = (SparseVec::new(0), Vec::new());
        let refused = largest_blocks(&values, 1, &mut out, &mut norms);
        assert!(matches!(refused, Err(Error::NonFinite { index: 700, .. })) && out.is_empty());
    }
}
